#include "tools/cli/checkpoint/import_command.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/part_file.h"
#include "common/io/safetensors.h"
#include "common/status.h"
#include "common/version.h"
#include "tools/cli/command_output.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/json.h"
#include "tools/cli/text.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kShardElements = 65536;
constexpr char kPartFile[] = "values.safetensors";
// No job has this one.
constexpr uint64_t kRun = 0;

struct Imported {
  std::string folder = {};  // Of the checkpoint.
  int tables = 0;
  int64_t floats = 0;
  int64_t bytes = 0;  // Of its part.
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

// Shares the tensors' memory.
std::vector<ShardState> CutIntoShards(
    const std::shared_ptr<const SafetensorsFile>& file) {
  std::vector<ShardState> shards;
  for (const Tensor& tensor : file->tensors) {
    const int64_t elements = static_cast<int64_t>(tensor.values.size());
    for (int64_t begin = 0; begin < elements; begin += kShardElements) {
      const int64_t end = std::min(begin + kShardElements, elements);
      shards.push_back(
          {.table = tensor.name,
           .begin = begin,
           .end = end,
           .values = Payload::Wrap(
               tensor.values.data() + begin,
               static_cast<size_t>(end - begin) * sizeof(float), file)});
    }
  }
  return shards;
}

absl::StatusOr<Imported> Import(const ImportOptions& options) {
  SL_RETURN_IF_ERROR(CheckOut(options.out));
  SL_ASSIGN_OR_RETURN(SafetensorsFile read, ReadSafetensors(options.file));
  const auto file = std::make_shared<const SafetensorsFile>(std::move(read));
  if (file->tensors.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(options.file, " has no tensors"));
  }
  checkpoint::Manifest manifest;
  manifest.set_format(kCheckpointFormat);
  manifest.set_version(VersionNumber());
  manifest.set_commit(BuildCommit());
  const auto job = file->metadata.find("job");
  if (job != file->metadata.end()) manifest.set_job(job->second);
  manifest.set_steps_per_epoch(1);  // Of none that were done.
  Imported imported = {.tables = static_cast<int>(file->tensors.size())};
  for (const Tensor& tensor : file->tensors) {
    checkpoint::Table& table = *manifest.add_table();
    table.set_name(tensor.name);
    for (const int64_t extent : tensor.shape) table.add_shape(extent);
    imported.floats += static_cast<int64_t>(tensor.values.size());
  }
  const std::string partial = PartialFolder(options.out, kRun, 0);
  SL_ASSIGN_OR_RETURN(*manifest.add_part(),
                      WritePart(partial, kPartFile, CutIntoShards(file)));
  imported.bytes = manifest.part(0).bytes();
  SL_ASSIGN_OR_RETURN(
      imported.folder,
      CompleteCheckpoint(options.out, kRun, 0, manifest, /*keep=*/1));
  return imported;
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
               {"bytes", done->bytes}});
  } else {
    PrintResult(absl::StrCat(
        "wrote ", done->folder, ": ", done->tables,
        done->tables == 1 ? " table" : " tables", " of ", done->floats,
        " floats in all, ", BytesText(static_cast<double>(done->bytes)),
        "; begin with it: slackline run CONFIG --resume ", options.out, "\n"));
  }
  return kExitDone;
}

}  // namespace slackline
