#include "common/checkpoint/manifest.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/block/bounds.h"
#include "common/checkpoint/part_file.h"
#include "common/ids.h"
#include "common/io/atomic_file.h"
#include "common/io/regular_file.h"
#include "common/io/sha256.h"
#include "common/optim/optimizer.h"
#include "common/shortened.h"
#include "common/status.h"
#include "google/protobuf/util/json_util.h"

namespace slackline {
namespace {

// One of a thousand parts and as many tables has less than a MiB.
constexpr int64_t kManifestBytesMax = 64 << 20;
constexpr size_t kManifestNameBytesShown = 64;  // In errors.
constexpr size_t kKeptNameBytesMax = 255;
constexpr size_t kKeptNameBytesShown = 96;  // In errors.
constexpr char kSha256Key[] = "sha256";

// Elements of a table of this shape; 0: none, or too many.
int64_t ElementsOf(const checkpoint::Table& table) {
  int64_t elements = 1;
  for (const int64_t extent : table.shape()) {
    if (extent < 1 || extent > kTableElementsMax / elements) return 0;
    elements *= extent;
  }
  return elements;
}

std::string WhyNoTable(const checkpoint::Table& table) {
  const std::string name = absl::StrCat(
      "table '", Shortened(table.name(), kManifestNameBytesShown), "'");
  if (table.name().size() > kTableNameBytesMax) {
    return absl::StrCat(name, " has a name of ", table.name().size(),
                        " bytes; at most ", kTableNameBytesMax, " are allowed");
  }
  if (static_cast<size_t>(table.shape_size()) > kTableExtentsMax) {
    return absl::StrCat(name, " has ", table.shape_size(), " extents; at most ",
                        kTableExtentsMax, " are allowed");
  }
  if (ElementsOf(table) == 0) {
    return absl::StrCat(name, " has the shape [",
                        absl::StrJoin(table.shape(), ", "),
                        "]; extents of at least 1, and at most ",
                        kTableElementsMax, " elements, are required");
  }
  if (table.has_optimizer()) {
    const absl::Status made = Optimizer::Create(table.optimizer()).status();
    if (!made.ok()) return absl::StrCat(name, ": ", made.message());
  }
  return "";
}

std::string WhyNoNumbers(const checkpoint::Manifest& manifest) {
  if (manifest.format() != kCheckpointFormat) {
    return absl::StrCat("format is ", manifest.format(),
                        ", and this version reads ", kCheckpointFormat);
  }
  const struct {
    const char* name;
    int64_t value;
    int64_t low;
    int64_t high;
  } bounds[] = {{"workers", manifest.workers(), 0, kWorkersMax},
                {"steps_total", manifest.steps_total(), 0, kClockMax},
                {"steps_per_epoch", manifest.steps_per_epoch(), 1, kClockMax},
                {"clock", manifest.clock(), 0, kClockMax},
                {"sequence", manifest.sequence(), 0, kClockMax}};
  for (const auto& [name, value, low, high] : bounds) {
    if (value < low || value > high) {
      return absl::StrCat(name, " is ", value, "; ", low, " to ", high,
                          " is required");
    }
  }
  if (!std::isfinite(manifest.seconds()) || manifest.seconds() < 0) {
    return absl::StrCat("seconds is ", manifest.seconds(),
                        "; at least 0 is required");
  }
  if (const Clock first = manifest.delays().first();
      first < 0 || first > manifest.steps_total()) {
    return absl::StrCat("the delays begin at clock ", first, "; 0 to ",
                        manifest.steps_total(), " is required");
  }
  std::set<int32_t> ranks;
  for (const checkpoint::WorkerClock& worker : manifest.worker()) {
    if (worker.rank() < 0 || worker.rank() >= kWorkersMax ||
        !ranks.insert(worker.rank()).second) {
      return absl::StrCat("worker rank ", worker.rank(),
                          " is there twice or outside [0, ", kWorkersMax, ")");
    }
    if (worker.clock() < manifest.clock() || worker.clock() > kClockMax) {
      return absl::StrCat("worker ", worker.rank(), " has clock ",
                          worker.clock(), "; ", manifest.clock(),
                          ", the smallest of all, to ", kClockMax,
                          " is required");
    }
  }
  return "";
}

absl::StatusOr<checkpoint::Manifest> ParseManifest(const std::string& path,
                                                   const std::string& text) {
  const auto bad = [&path](absl::string_view what) {
    return absl::DataLossError(absl::StrCat(path, ": ", what));
  };
  std::string sha256;
  {
    const auto json =
        nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return bad("is damaged: it is not a JSON map");
    const auto format = json.find("format");
    if (format != json.end() && format->is_number_integer() &&
        *format != kCheckpointFormat) {
      return bad(absl::StrCat("format is ", format->get<int64_t>(),
                              ", and this version reads ", kCheckpointFormat));
    }
    const auto hash = json.find(kSha256Key);
    if (hash == json.end() || !hash->is_string())
      return bad("is damaged: it has no sha256");
    sha256 = hash->get<std::string>();
  }
  checkpoint::Manifest manifest;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;  // The hash is one.
  const auto parsed =
      google::protobuf::util::JsonStringToMessage(text, &manifest, options);
  if (!parsed.ok()) {
    return bad(absl::StrCat("is damaged: ", Shortened(parsed.ToString(), 256)));
  }
  if (const std::string of_content = ManifestSha256(manifest);
      of_content != sha256) {
    return bad(absl::StrCat("its content has the sha256 ", of_content,
                            ", and it says ", Shortened(sha256, 64),
                            "; the file is damaged or has been edited"));
  }
  if (const std::string why = WhyNoManifest(manifest); !why.empty())
    return bad(why);
  return manifest;
}

}  // namespace

std::string WhyNoKept(const checkpoint::Kept& kept) {
  const std::string& file = kept.file();
  const std::string name =
      absl::StrCat("state '", Shortened(file, kKeptNameBytesShown), "'");
  if (file.size() > kKeptNameBytesMax || file == "." || file == ".." ||
      file.find_first_of({"/\0", 2}) != std::string::npos) {
    return absl::StrCat(name, ": the name of a file in the folder, of at most ",
                        kKeptNameBytesMax, " bytes, is required");
  }
  if (kept.rank() < 0 || kept.rank() >= kWorkersMax) {
    return absl::StrCat(name, " is of rank ", kept.rank(), ", outside [0, ",
                        kWorkersMax, ")");
  }
  const int64_t bytes_max = file.empty() ? 0 : kKeptBytesMax;
  if (kept.bytes() < 0 || kept.bytes() > bytes_max) {
    return absl::StrCat(name, " has ", kept.bytes(), " bytes; 0 to ", bytes_max,
                        " are allowed");
  }
  return kept.has_residuals() ? WhyNoPart(kept.residuals()) : "";
}

std::string WhyNoManifest(const checkpoint::Manifest& manifest) {
  if (std::string why = WhyNoNumbers(manifest); !why.empty()) return why;
  if (manifest.table_size() < 1 ||
      static_cast<size_t>(manifest.table_size()) > kTablesOfJobMax) {
    return absl::StrCat("there are ", manifest.table_size(), " tables; 1 to ",
                        kTablesOfJobMax, " are required");
  }
  std::set<absl::string_view> tables;
  for (const checkpoint::Table& table : manifest.table()) {
    if (std::string why = WhyNoTable(table); !why.empty()) return why;
    if (!tables.insert(table.name()).second) {
      return absl::StrCat("table '",
                          Shortened(table.name(), kManifestNameBytesShown),
                          "' is there twice");
    }
  }
  if (manifest.part_size() < 1) return "there are no parts";
  std::set<absl::string_view> files = {kManifestFile};
  for (const checkpoint::Part& part : manifest.part()) {
    if (std::string why = WhyNoPart(part); !why.empty()) return why;
    if (!files.insert(part.file()).second) {
      return absl::StrCat("part '",
                          Shortened(part.file(), kManifestNameBytesShown),
                          "': the name is taken");
    }
  }
  std::set<int32_t> ranks;
  for (const checkpoint::Kept& kept : manifest.kept()) {
    if (std::string why = WhyNoKept(kept); !why.empty()) return why;
    for (const std::string* file : {&kept.file(), &kept.residuals().file()}) {
      if (!file->empty() && !files.insert(*file).second) {
        return absl::StrCat("state '",
                            Shortened(*file, kManifestNameBytesShown),
                            "': the name is taken");
      }
    }
    if (!ranks.insert(kept.rank()).second)
      return absl::StrCat("rank ", kept.rank(), " keeps a state twice");
  }
  return "";
}

std::vector<int64_t> TableElements(const checkpoint::Manifest& manifest) {
  std::vector<int64_t> elements;
  for (const checkpoint::Table& table : manifest.table())
    elements.push_back(ElementsOf(table));
  return elements;
}

absl::Status WriteManifest(const std::string& folder,
                           const checkpoint::Manifest& manifest) {
  const std::string path = absl::StrCat(folder, "/", kManifestFile);
  if (const std::string why = WhyNoManifest(manifest); !why.empty())
    return absl::InvalidArgumentError(absl::StrCat("write ", path, ": ", why));
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto printed =
      google::protobuf::util::MessageToJsonString(manifest, &text, options);
  if (!printed.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("write ", path, ": ", printed.ToString()));
  }
  auto json = nlohmann::ordered_json::parse(text, nullptr,
                                            /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("write ", path, ": a name is not UTF-8"));
  }
  json[kSha256Key] = ManifestSha256(manifest);
  text = absl::StrCat(json.dump(2), "\n");
  // What cannot be read again must not look like a checkpoint.
  if (const absl::Status read = ParseManifest(path, text).status(); !read.ok())
    return absl::InvalidArgumentError(absl::StrCat("write ", read.message()));
  return WriteFileAtomically(path, {text});
}

absl::StatusOr<checkpoint::Manifest> ReadManifest(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kManifestFile);
  SL_ASSIGN_OR_RETURN(const std::string text,
                      ReadRegularFile(path, kManifestBytesMax));
  return ParseManifest(path, text);
}

std::string ManifestSha256(const checkpoint::Manifest& manifest) {
  // Without maps and unknown fields, Protobuf writes a message in one way only:
  // by field number.
  return Sha256Hex(manifest.SerializeAsString());
}

}  // namespace slackline
