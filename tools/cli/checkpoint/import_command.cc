#include "tools/cli/checkpoint/import_command.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/block/bounds.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/part_file.h"
#include "common/config/shell_line.h"
#include "common/io/safetensors.h"
#include "common/process/exit_code.h"
#include "common/shortened.h"
#include "common/status.h"
#include "common/version.h"
#include "tools/cli/command_output.h"
#include "tools/cli/json.h"
#include "tools/cli/text.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kShardElements = 65536;
constexpr char kPartFile[] = "values.safetensors";
// No job has this one.
constexpr uint64_t kRun = 0;
// Of tensors, in errors.
constexpr size_t kNamesShown = 20;
constexpr size_t kNameBytesShown = 64;

struct Imported {
  std::string folder = {};  // Of the checkpoint.
  int tables = 0;
  int64_t floats = 0;
  int64_t bytes = 0;  // Of its part.
  // Tensors of other types, which are float32 now: how many, by type.
  std::map<std::string, int> converted = {};
  std::vector<std::string> left_out = {};  // Names of tensors.
};

absl::Status CheckOut(const std::string& out) {
  std::error_code error;
  if (!fs::exists(out, error)) return absl::OkStatus();
  if (fs::is_directory(out, error) && fs::is_empty(out, error))
    return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("--out: ", out,
                   " is there and not an empty folder, and checkpoints are not "
                   "overwritten; choose another or remove it"));
}

std::string NamesText(const SafetensorsHeader& header) {
  std::vector<std::string> names;
  for (const TensorPlace& tensor : header.tensors) {
    if (names.size() == kNamesShown) break;
    names.push_back(tensor.name);
  }
  const size_t more = header.tensors.size() - names.size();
  return absl::StrCat(absl::StrJoin(names, ", "),
                      more == 0 ? "" : absl::StrCat(" and ", more, " more"));
}

// Every word of the flags is of use.
absl::Status CheckChoice(const ImportOptions& options,
                         const SafetensorsHeader& header) {
  const auto check = [&](const std::string& flag, const std::string& word,
                         auto fits, absl::string_view what) {
    if (absl::c_any_of(header.tensors, fits)) return absl::OkStatus();
    return absl::NotFoundError(
        absl::StrCat(flag, ": no tensor of ", options.file, what, "'", word,
                     "'; there are ", NamesText(header)));
  };
  for (const std::string& prefix : options.only) {
    const auto fits = [&](const TensorPlace& tensor) {
      return absl::StartsWith(tensor.name, prefix);
    };
    SL_RETURN_IF_ERROR(check("--only", prefix, fits, " begins with "));
  }
  for (const std::string& name : options.skip) {
    const auto fits = [&](const TensorPlace& tensor) {
      return tensor.name == name;
    };
    SL_RETURN_IF_ERROR(check("--skip", name, fits, " is "));
  }
  return absl::OkStatus();
}

bool IsChosen(const ImportOptions& options, const std::string& name) {
  const bool wanted =
      options.only.empty() ||
      absl::c_any_of(options.only, [&](const std::string& prefix) {
        return absl::StartsWith(name, prefix);
      });
  return wanted && !absl::c_linear_search(options.skip, name);
}

// Empty: a table may have this name, in logs and paths, too.
std::string WhyNoName(absl::string_view name) {
  if (name.empty() || name.size() > kTableNameBytesMax) {
    return absl::StrCat("its name has ", name.size(), " bytes; 1 to ",
                        kTableNameBytesMax, " are required");
  }
  if (absl::c_any_of(name, [](char c) { return absl::ascii_iscntrl(c); }))
    return "its name has control characters";
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '/');
  if (parts.front().empty() || absl::c_linear_search(parts, ".."))
    return "its name is a path";
  return "";
}

absl::Status CheckTable(const std::string& file, const std::string& name,
                        const std::string& why) {
  if (why.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      file, ": tensor '", absl::CEscape(Shortened(name, kNameBytesShown)),
      "': ", why, "; leave it out with --skip, or rename it"));
}

// Empty, or why no training can begin with it.
std::string WhyNoValues(const Tensor& tensor) {
  for (size_t i = 0; i < tensor.values.size(); ++i) {
    if (!std::isfinite(tensor.values[i])) {
      return absl::StrCat("element ", i, " is ", tensor.values[i],
                          ", and no training goes on from that");
    }
  }
  return "";
}

// The tensors that are chosen, as float32.
absl::StatusOr<std::shared_ptr<const SafetensorsFile>> ReadChosen(
    const ImportOptions& options, Imported* imported) {
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsReader> reader,
                      SafetensorsReader::Open(options.file));
  const SafetensorsHeader& header = reader->header();
  if (header.tensors.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(options.file, " has no tensors"));
  }
  SL_RETURN_IF_ERROR(CheckChoice(options, header));
  std::vector<const TensorPlace*> chosen;
  for (const TensorPlace& tensor : header.tensors) {
    if (!IsChosen(options, tensor.name)) {
      imported->left_out.push_back(tensor.name);
      continue;
    }
    if (!SafetensorsReader::IsFloat(tensor.type)) {
      return absl::UnimplementedError(absl::StrCat(
          options.file, ": tensor '", tensor.name, "' is of type ", tensor.type,
          ", and tables are of float32, which F32, F16, BF16 and F64 can "
          "become; leave it out with --skip ",
          ShellLine({tensor.name})));
    }
    SL_RETURN_IF_ERROR(
        CheckTable(options.file, tensor.name, WhyNoName(tensor.name)));
    if (tensor.type != "F32") ++imported->converted[tensor.type];
    chosen.push_back(&tensor);
  }
  if (chosen.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("--only and --skip leave no tensor of ", options.file));
  }
  if (chosen.size() > kTablesOfJobMax) {
    return absl::FailedPreconditionError(
        absl::StrCat(options.file, " has ", chosen.size(),
                     " tensors that are chosen; a job "
                     "has at most ",
                     kTablesOfJobMax, " tables"));
  }
  auto file = std::make_shared<SafetensorsFile>();
  file->metadata = header.metadata;
  for (const TensorPlace* const tensor : chosen) {
    SL_ASSIGN_OR_RETURN(file->tensors.emplace_back(),
                        reader->ReadFloats(*tensor));
    SL_RETURN_IF_ERROR(CheckTable(options.file, tensor->name,
                                  WhyNoValues(file->tensors.back())));
  }
  return file;
}

// Shares the tensors' memory.
std::vector<ShardState> SplitIntoShards(
    const std::shared_ptr<const SafetensorsFile>& file) {
  std::vector<ShardState> shards;
  for (const Tensor& tensor : file->tensors) {
    const auto whole =
        Region::First(static_cast<int64_t>(tensor.values.size()));
    for (const Region& region : whole.Pieces(kShardElements)) {
      shards.push_back(
          {.table = tensor.name,
           .region = region,
           .values = Payload::Wrap(tensor.values.data() + region.begin(),
                                   region.DenseBytes(), file)});
    }
  }
  return shards;
}

absl::StatusOr<Imported> Import(const ImportOptions& options) {
  SL_RETURN_IF_ERROR(CheckOut(options.out));
  Imported imported;
  SL_ASSIGN_OR_RETURN(const std::shared_ptr<const SafetensorsFile> file,
                      ReadChosen(options, &imported));
  checkpoint::Manifest manifest;
  manifest.set_format(kCheckpointFormat);
  manifest.set_version(VersionNumber());
  manifest.set_commit(BuildCommit());
  const auto job = file->metadata.find("job");
  if (job != file->metadata.end()) manifest.set_job(job->second);
  manifest.set_steps_per_epoch(1);  // Of none that were done.
  imported.tables = static_cast<int>(file->tensors.size());
  for (const Tensor& tensor : file->tensors) {
    checkpoint::Table& table = *manifest.add_table();
    table.set_name(tensor.name);
    for (const int64_t extent : tensor.shape) table.add_shape(extent);
    imported.floats += static_cast<int64_t>(tensor.values.size());
  }
  const std::string partial = PartialFolder(options.out, kRun, 0);
  SL_ASSIGN_OR_RETURN(*manifest.add_part(),
                      WritePart(partial, kPartFile, SplitIntoShards(file)));
  imported.bytes = manifest.part(0).bytes();
  SL_ASSIGN_OR_RETURN(
      imported.folder,
      CompleteCheckpoint(options.out, kRun, 0, manifest, /*keep=*/1));
  return imported;
}

// "; to float32: 2 tensors of F16, 1 tensor of F64"
std::string ConvertedText(const Imported& imported) {
  std::string text;
  for (const auto& [type, count] : imported.converted) {
    absl::StrAppend(&text, text.empty() ? "; to float32: " : ", ", count,
                    count == 1 ? " tensor of " : " tensors of ", type);
  }
  return text;
}

std::string LeftOutText(const Imported& imported) {
  const size_t count = imported.left_out.size();
  if (count == 0) return "";
  return absl::StrCat("; left out: ", count,
                      count == 1 ? " tensor" : " tensors");
}

}  // namespace

int ImportCheckpoint(const ImportOptions& options) {
  const absl::StatusOr<Imported> done = Import(options);
  if (!done.ok()) {
    RemovePartial(options.out, kRun, 0);
    return Fail("import", done.status());
  }
  if (options.json) {
    PrintJson({{"checkpoint", done->folder},
               {"tables", done->tables},
               {"floats", done->floats},
               {"bytes", done->bytes},
               {"converted", done->converted},
               {"left_out", done->left_out}});
  } else {
    PrintResult(absl::StrCat(
        "wrote ", done->folder, ": ", done->tables,
        done->tables == 1 ? " table" : " tables", " of ", done->floats,
        " floats in all, ", BytesText(static_cast<double>(done->bytes)),
        ConvertedText(*done), LeftOutText(*done),
        "; begin with it: slackline run CONFIG --resume ", options.out, "\n"));
  }
  return kExitDone;
}

}  // namespace slackline
