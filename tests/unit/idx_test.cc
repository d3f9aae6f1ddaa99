// Goal: IDX files are read as they were written, damaged ones are refused with
// the reason, and generated stand-ins are never taken for the real data.
#include "worker/data/idx.h"

#include <zlib.h>

#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/temp_folder.h"
#include "worker/data/load_data.h"
#include "worker/data/stand_in.h"

namespace slackline {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string BigEndian(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16 & 0xff),
          static_cast<char>(value >> 8 & 0xff),
          static_cast<char>(value & 0xff)};
}

std::string Images(uint32_t count, uint32_t rows, uint32_t columns,
                   const std::string& pixels) {
  return BigEndian(0x803) + BigEndian(count) + BigEndian(rows) +
         BigEndian(columns) + pixels;
}

std::string Labels(uint32_t count, const std::string& labels) {
  return BigEndian(0x801) + BigEndian(count) + labels;
}

// Three pictures of 1x2 pixels.
const std::string kImages = Images(3, 1, 2, std::string("\0\1\2\3\4\377", 6));
const std::string kLabels = Labels(3, std::string("\7\0\11", 3));

void WriteGzip(const std::string& path, const std::string& content) {
  gzFile file = gzopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr);
  ASSERT_EQ(
      gzwrite(file, content.data(), static_cast<unsigned>(content.size())),
      static_cast<int>(content.size()));
  ASSERT_EQ(gzclose(file), Z_OK);
}

float Normalised(int pixel) {
  return (static_cast<float>(pixel) / 255.0f - 0.1307f) / 0.3081f;
}

void ExpectThreePictures(const Dataset& data) {
  ASSERT_EQ(data.examples(), 3);
  EXPECT_EQ(data.features(), 2);
  EXPECT_EQ(data.classes(), 10);
  std::vector<float> inputs(8);
  std::vector<int64_t> labels(4);
  data.Gather({2, 0, 2, 1}, inputs.data(), labels.data());
  EXPECT_THAT(labels, ElementsAre(9, 7, 9, 0));
  EXPECT_THAT(inputs, ElementsAre(Normalised(4), Normalised(255), Normalised(0),
                                  Normalised(1), Normalised(4), Normalised(255),
                                  Normalised(2), Normalised(3)));
}

// Message of the error that reading these two files gives.
std::string ErrorOf(const std::string& images, const std::string& labels) {
  const TempFolder folder;
  const auto data = ReadIdx({.images = folder.Write("images", images),
                             .labels = folder.Write("labels", labels)});
  EXPECT_FALSE(data.ok());
  return std::string(data.status().message());
}

TEST(Idx, GatherGivesRowsInTheOrderAsked) {
  const TempFolder folder;
  const auto data = ReadIdx({.images = folder.Write("images", kImages),
                             .labels = folder.Write("labels", kLabels)});
  ASSERT_TRUE(data.ok()) << data.status();
  ExpectThreePictures(**data);
}

TEST(Idx, GzipReadsAsPlain) {
  const TempFolder folder;
  WriteGzip(folder.File("images.gz"), kImages);
  WriteGzip(folder.File("labels.gz"), kLabels);
  const auto data = ReadIdx(
      {.images = folder.File("images.gz"), .labels = folder.File("labels.gz")});
  ASSERT_TRUE(data.ok()) << data.status();
  ExpectThreePictures(**data);
}

TEST(Idx, WrongMagicNumberIsRefused) {
  EXPECT_THAT(ErrorOf(kLabels, kImages),
              AllOf(HasSubstr("images: "), HasSubstr("0x00000801"),
                    HasSubstr("0x00000803")));
}

TEST(Idx, FileThatEndsEarlyIsRefused) {
  EXPECT_THAT(ErrorOf("", kLabels),
              HasSubstr("ends at offset 0 inside the magic number"));
  EXPECT_THAT(ErrorOf(kImages.substr(0, 14), kLabels),
              HasSubstr("ends at offset 14 inside the number of columns"));
  EXPECT_THAT(
      ErrorOf(kImages.substr(0, kImages.size() - 1), kLabels),
      HasSubstr("promises 3 images of 1x2, 6 bytes, but only 5 follow"));
}

TEST(Idx, BytesAfterTheEndAreRefused) {
  EXPECT_THAT(ErrorOf(kImages, kLabels + "x"),
              HasSubstr("promises 3 labels, 3 bytes, but more follow"));
}

TEST(Idx, GzipThatIsCutOffIsRefused) {
  const TempFolder folder;
  WriteGzip(folder.File("images.gz"), kImages);
  const std::string whole = ReadWholeFile(folder.File("images.gz"));
  folder.Write("images.gz", whole.substr(0, whole.size() - 9));
  const auto data = ReadIdx({.images = folder.File("images.gz"),
                             .labels = folder.Write("labels", kLabels)});
  EXPECT_EQ(data.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(data.status().message()),
              AllOf(HasSubstr("images.gz"), HasSubstr("cut off"),
                    HasSubstr("unexpected end of file")));
}

TEST(Idx, GzipWithDamagedBytesIsRefused) {
  const TempFolder folder;
  WriteGzip(folder.File("images.gz"), kImages);
  std::string damaged = ReadWholeFile(folder.File("images.gz"));
  damaged[damaged.size() - 8] ^= 1;  // In the checksum.
  folder.Write("images.gz", damaged);
  const auto data = ReadIdx({.images = folder.File("images.gz"),
                             .labels = folder.Write("labels", kLabels)});
  EXPECT_EQ(data.status().code(), absl::StatusCode::kDataLoss) << data.status();
}

TEST(Idx, DifferentNumbersOfImagesAndLabelsAreRefused) {
  EXPECT_THAT(ErrorOf(kImages, Labels(2, "\1\2")),
              AllOf(HasSubstr("3 images"), HasSubstr("2 labels")));
}

TEST(Idx, LabelOutOfRangeIsRefused) {
  EXPECT_THAT(ErrorOf(kImages, Labels(3, "\1\12\2")),
              HasSubstr("label 10 at offset 9 is outside [0, 10)"));
}

TEST(Idx, NoImagesAreRefused) {
  EXPECT_THAT(ErrorOf(Images(0, 28, 28, ""), Labels(0, "")),
              HasSubstr("holds no images"));
}

TEST(Idx, HeaderThatPromisesTooMuchIsRefusedBeforeAnythingIsAllocated) {
  EXPECT_THAT(ErrorOf(Images(0xffffffff, 4096, 4096, "x"), kLabels),
              HasSubstr("more than a file of this size can hold"));
  EXPECT_THAT(ErrorOf(Images(1, 0xffffffff, 0xffffffff, "x"), kLabels),
              HasSubstr("rows and columns must be in [1, 4096]"));
}

class IdxFolder : public testing::Test {
 protected:
  absl::StatusOr<DataSplit> Load() {
    config::Data data;
    data.mutable_idx()->set_folder("digits");
    return LoadData(data, folder_.path());
  }
  std::string digits() const { return folder_.File("digits"); }
  TempFolder folder_;
};

TEST_F(IdxFolder, MissingFileNamesBothPathsAndTheFix) {
  const auto data = Load();
  EXPECT_EQ(data.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(
      std::string(data.status().message()),
      AllOf(HasSubstr(digits() + "/train-images-idx3-ubyte nor "),
            HasSubstr("ubyte.gz"), HasSubstr("slackline data fetch mnist"),
            HasSubstr("--data-dir")));
}

TEST_F(IdxFolder, FilesMayBePlainOrGzip) {
  std::filesystem::create_directory(digits());
  folder_.Write("digits/train-images-idx3-ubyte", kImages);
  WriteGzip(digits() + "/train-labels-idx1-ubyte.gz", kLabels);
  WriteGzip(digits() + "/t10k-images-idx3-ubyte.gz", Images(1, 1, 2, "ab"));
  folder_.Write("digits/t10k-labels-idx1-ubyte", Labels(1, "\3"));
  const auto data = Load();
  ASSERT_TRUE(data.ok()) << data.status();
  ExpectThreePictures(*data->train);
  EXPECT_EQ(data->test->examples(), 1);
  EXPECT_EQ(data->test->label(0), 3);
  EXPECT_THAT(data->description, testing::Not(HasSubstr("stand-in")));
}

TEST_F(IdxFolder, TestImagesOfAnotherSizeAreRefused) {
  std::filesystem::create_directory(digits());
  folder_.Write("digits/train-images-idx3-ubyte", kImages);
  folder_.Write("digits/train-labels-idx1-ubyte", kLabels);
  folder_.Write("digits/t10k-images-idx3-ubyte", Images(1, 1, 3, "abc"));
  folder_.Write("digits/t10k-labels-idx1-ubyte", Labels(1, "\3"));
  EXPECT_THAT(std::string(Load().status().message()),
              HasSubstr("must be of one kind"));
}

using StandIn = IdxFolder;

TEST_F(StandIn, LoadsAndSaysThatItIsNotMnist) {
  ASSERT_TRUE(
      WriteStandInMnist(digits(),
                        {.seed = 1, .train_examples = 50, .test_examples = 20})
          .ok());
  const auto data = Load();
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->train->examples(), 50);
  EXPECT_EQ(data->test->examples(), 20);
  EXPECT_EQ(data->train->features(), 784);
  EXPECT_THAT(data->description, HasSubstr("generated stand-in, not MNIST"));
}

TEST_F(StandIn, SameSeedGivesSameBytes) {
  const auto images = [this](uint64_t seed) {
    EXPECT_TRUE(
        WriteStandInMnist(
            digits(), {.seed = seed, .train_examples = 5, .test_examples = 5})
            .ok());
    return ReadWholeFile(digits() + "/train-images-idx3-ubyte");
  };
  const std::string first = images(1);
  EXPECT_NE(first, images(2));
  EXPECT_EQ(first, images(1));
}

TEST_F(StandIn, NeverOverwritesFilesWithoutTheMarker) {
  std::filesystem::create_directory(digits());
  folder_.Write("digits/t10k-labels-idx1-ubyte.gz", "real");
  const absl::Status status = WriteStandInMnist(digits(), {});
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("t10k-labels-idx1-ubyte.gz"));
  EXPECT_FALSE(std::filesystem::exists(digits() + "/" + kStandInMarker));
}

// The mean picture of each class, from the training set, tells the classes of
// the test set apart far better than chance (0.1): there is something to learn.
TEST_F(StandIn, ClassesCanBeToldApart) {
  ASSERT_TRUE(
      WriteStandInMnist(
          digits(), {.seed = 1, .train_examples = 3000, .test_examples = 500})
          .ok());
  const auto data = Load();
  ASSERT_TRUE(data.ok()) << data.status();
  const int64_t features = data->train->features();
  std::vector<std::vector<double>> mean(10, std::vector<double>(features));
  std::vector<int> count(10);
  std::vector<float> input(features);
  int64_t label = 0;
  for (int64_t row = 0; row < data->train->examples(); ++row) {
    data->train->Gather({row}, input.data(), &label);
    ++count[label];
    for (int64_t i = 0; i < features; ++i) mean[label][i] += input[i];
  }
  for (int c = 0; c < 10; ++c) {
    ASSERT_GT(count[c], 150) << "class " << c;
    for (double& value : mean[c]) value /= count[c];
  }
  int correct = 0;
  for (int64_t row = 0; row < data->test->examples(); ++row) {
    data->test->Gather({row}, input.data(), &label);
    std::vector<double> distance(10);
    for (int c = 0; c < 10; ++c) {
      for (int64_t i = 0; i < features; ++i) {
        distance[c] += (input[i] - mean[c][i]) * (input[i] - mean[c][i]);
      }
    }
    correct +=
        std::min_element(distance.begin(), distance.end()) - distance.begin() ==
        label;
  }
  EXPECT_GT(correct, 250) << "of 500";
}

}  // namespace
}  // namespace slackline
