#include "worker/data/stand_in.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/io/atomic_file.h"
#include "common/rng.h"
#include "common/status.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

constexpr int kClasses = 10;
constexpr int kSide = 28;
constexpr int kPixels = kSide * kSide;
constexpr int kShapesPerClass = 3;  // A class is not just one picture.
constexpr int kShiftMax = 2;        // Pixels, each way.
constexpr float kNoise = 0.4f;  // Largest noise, as a part of full brightness.
// Brightness of the shape behind, as a part of the first.
constexpr double kBackgroundMax = 0.7;

using Picture = std::array<float, kPixels>;  // Brightness in [0, 1], row-major.

// Smooth blobs on black: random heights on a coarse grid, interpolated, of
// which only the tops are seen. Dark at the border, so that a shift cuts
// nothing off.
Picture DrawShape(Rng* rng) {
  constexpr int kGrid = 7;
  std::array<std::array<double, kGrid>, kGrid> height{};
  for (int y = 1; y + 1 < kGrid; ++y) {
    for (int x = 1; x + 1 < kGrid; ++x) height[y][x] = rng->Normal();
  }
  Picture picture{};
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide; ++x) {
      const double grid_y = y * (kGrid - 1.0) / kSide;
      const double grid_x = x * (kGrid - 1.0) / kSide;
      const int top = static_cast<int>(grid_y);
      const int left = static_cast<int>(grid_x);
      const double down = grid_y - top;
      const double right = grid_x - left;
      const double level = (1 - down) * ((1 - right) * height[top][left] +
                                         right * height[top][left + 1]) +
                           down * ((1 - right) * height[top + 1][left] +
                                   right * height[top + 1][left + 1]);
      picture[y * kSide + x] =
          static_cast<float>(std::clamp(2 * (level - 0.3), 0.0, 1.0));
    }
  }
  return picture;
}

using Shapes = std::array<std::array<Picture, kShapesPerClass>, kClasses>;

Shapes DrawShapes(Rng rng) {
  Shapes shapes{};
  for (auto& of_class : shapes) {
    for (Picture& shape : of_class) shape = DrawShape(&rng);
  }
  return shapes;
}

void AppendBigEndian(uint32_t value, std::string* bytes) {
  for (int shift = 24; shift >= 0; shift -= 8)
    bytes->push_back(static_cast<char>(value >> shift & 0xff));
}

// Adds `shape` times `brightness`, shifted at random, to `picture`.
void Overlay(const Picture& shape, float brightness, Rng* rng,
             Picture* picture) {
  const auto shift_y = static_cast<int>(rng->Between(-kShiftMax, kShiftMax));
  const auto shift_x = static_cast<int>(rng->Between(-kShiftMax, kShiftMax));
  for (int y = std::max(0, shift_y); y < std::min(kSide, kSide + shift_y);
       ++y) {
    for (int x = std::max(0, shift_x); x < std::min(kSide, kSide + shift_x);
         ++x) {
      (*picture)[y * kSide + x] +=
          brightness * shape[(y - shift_y) * kSide + x - shift_x];
    }
  }
}

void AppendWithNoise(const Picture& picture, Rng* rng, std::string* bytes) {
  uint64_t random = 0;
  for (int i = 0; i < kPixels; ++i) {
    if (i % 8 == 0) random = rng->Next();
    const float noise =
        kNoise * (static_cast<float>(random & 0xff) / 127.5f - 1);
    random >>= 8;
    const float level = std::clamp(picture[i] + noise, 0.0f, 1.0f);
    bytes->push_back(static_cast<char>(static_cast<uint8_t>(255 * level)));
  }
}

// Appends a picture of class `label`: one of its shapes, and fainter behind it
// a shape of any class, which a linear model has trouble to tell apart.
void AppendPicture(const Shapes& shapes, uint64_t label, Rng* rng,
                   std::string* bytes) {
  Picture picture{};
  const float brightness = static_cast<float>(0.5 + 0.5 * rng->Uniform());
  const float background =
      static_cast<float>(kBackgroundMax * rng->Uniform()) * brightness;
  Overlay(shapes[label][rng->Below(kShapesPerClass)], brightness, rng,
          &picture);
  Overlay(shapes[rng->Below(kClasses)][rng->Below(kShapesPerClass)], background,
          rng, &picture);
  AppendWithNoise(picture, rng, bytes);
}

absl::Status WritePart(const fs::path& folder, const std::string& part,
                       int64_t examples, const Shapes& shapes, Rng rng) {
  std::string images;
  std::string labels;
  images.reserve(static_cast<size_t>(16 + examples * kPixels));
  AppendBigEndian(0x803, &images);
  AppendBigEndian(static_cast<uint32_t>(examples), &images);
  AppendBigEndian(kSide, &images);
  AppendBigEndian(kSide, &images);
  AppendBigEndian(0x801, &labels);
  AppendBigEndian(static_cast<uint32_t>(examples), &labels);
  for (int64_t i = 0; i < examples; ++i) {
    const uint64_t label = rng.Below(kClasses);
    labels.push_back(static_cast<char>(label));
    AppendPicture(shapes, label, &rng, &images);
  }
  SL_RETURN_IF_ERROR(WriteFileAtomically(
      (folder / (part + "-images-idx3-ubyte")).string(), {images}));
  return WriteFileAtomically((folder / (part + "-labels-idx1-ubyte")).string(),
                             {labels});
}

// Refuses a folder with data files that are not marked as a stand-in.
absl::Status CheckFolder(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / kStandInMarker, error)) return absl::OkStatus();
  for (const char* const part : {"train", "t10k"}) {
    for (const char* const kind :
         {"-images-idx3-ubyte", "-labels-idx1-ubyte"}) {
      for (const char* const ending : {"", ".gz"}) {
        const fs::path file = folder / absl::StrCat(part, kind, ending);
        if (fs::exists(file, error)) {
          return absl::AlreadyExistsError(
              absl::StrCat("stand-in data: ", file.string(),
                           " is there and may be the real data; "
                           "choose another folder"));
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteStandInMnist(const std::string& folder,
                               const StandInOptions& options) {
  for (const int64_t examples :
       {options.train_examples, options.test_examples}) {
    if (examples < 1 || examples > 1'000'000) {
      return absl::InvalidArgumentError(absl::StrCat(
          "stand-in data: ", examples, " examples are outside [1, 1000000]"));
    }
  }
  SL_RETURN_IF_ERROR(CheckFolder(folder));
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat("stand-in data: create folder ",
                                               folder, ": ", error.message()));
  }
  // The marker first: whatever happens then, generated files are never
  // unmarked.
  const std::string marker = absl::StrCat(
      "The files in this folder are generated (seed ", options.seed,
      "). They are a stand-in for MNIST where it cannot be had, and are not "
      "MNIST:\n"
      "accuracies reached on them say nothing about it. Delete the folder to "
      "get rid of them.\n");
  SL_RETURN_IF_ERROR(WriteFileAtomically(
      (fs::path(folder) / kStandInMarker).string(), {marker}));
  const Rng rng(options.seed);
  const Shapes shapes = DrawShapes(rng.Fork("shapes"));
  SL_RETURN_IF_ERROR(WritePart(folder, "train", options.train_examples, shapes,
                               rng.Fork("train")));
  return WritePart(folder, "t10k", options.test_examples, shapes,
                   rng.Fork("test"));
}

}  // namespace slackline
