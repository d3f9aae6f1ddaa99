#include "tools/cli/checkpoint/export_command.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/checkpoint/best_checkpoint.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/manifest.h"
#include "common/io/atomic_file.h"
#include "common/io/safetensors.h"
#include "common/process/exit_code.h"
#include "common/status.h"
#include "tools/cli/command_output.h"
#include "tools/cli/json.h"
#include "tools/cli/text.h"

namespace slackline {
namespace {

constexpr int64_t kFloatsAtOnce = 1 << 20;

struct Exported {
  std::string folder;  // Of the checkpoint.
  int64_t step = 0;
  int tables = 0;
  int64_t floats = 0;
  int64_t bytes = 0;  // Of the file.
};

// What the model file of a run says, and the step.
TensorMetadata MetadataOf(const checkpoint::Manifest& manifest) {
  TensorMetadata metadata = {{"step", absl::StrCat(manifest.clock())}};
  if (!manifest.job().empty()) metadata["job"] = manifest.job();
  if (!manifest.mode().empty()) metadata["mode"] = manifest.mode();
  return metadata;
}

absl::StatusOr<Exported> Export(const ExportOptions& options) {
  std::error_code error;
  if (std::filesystem::exists(options.file, error)) {
    return absl::AlreadyExistsError(absl::StrCat(
        options.file, " is there already; choose another name, or remove it"));
  }
  std::string path = options.checkpoint;
  if (options.best) {
    SL_ASSIGN_OR_RETURN(path, FindBestCheckpoint(options.checkpoint));
  }
  std::vector<std::string> passed_over;
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<StoredCheckpoint> stored,
                      OpenCheckpoint(path, &passed_over));
  for (const std::string& sentence : passed_over) Say(sentence);

  const checkpoint::Manifest& manifest = stored->manifest();
  const std::vector<int64_t> elements = TableElements(manifest);
  Exported exported = {.folder = stored->folder(),
                       .step = manifest.clock(),
                       .tables = manifest.table_size()};
  std::vector<TensorHeading> headings;
  for (int t = 0; t < manifest.table_size(); ++t) {
    const checkpoint::Table& table = manifest.table(t);
    headings.push_back({table.name(),
                        "F32",
                        {table.shape().begin(), table.shape().end()},
                        static_cast<size_t>(elements[t]) * sizeof(float)});
    exported.floats += elements[t];
  }
  SL_ASSIGN_OR_RETURN(
      const std::string header,
      MakeSafetensorsHeader(options.file, headings, MetadataOf(manifest)));
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<AtomicFile> file,
                      AtomicFile::Create(options.file));
  SL_RETURN_IF_ERROR(file->Append(header));
  for (int t = 0; t < manifest.table_size(); ++t) {
    for (const Region& region :
         Region::First(elements[t]).Pieces(kFloatsAtOnce)) {
      SL_ASSIGN_OR_RETURN(const Payload values,
                          stored->ReadValues(manifest.table(t).name(), region));
      SL_RETURN_IF_ERROR(file->Append(absl::string_view(
          reinterpret_cast<const char*>(values.data()), values.size())));
    }
  }
  SL_RETURN_IF_ERROR(file->Commit());
  exported.bytes =
      static_cast<int64_t>(header.size() + exported.floats * sizeof(float));
  return exported;
}

}  // namespace

int ExportCheckpoint(const ExportOptions& options) {
  const absl::StatusOr<Exported> done = Export(options);
  if (!done.ok()) return Fail("export", done.status());
  if (options.json) {
    PrintJson({{"checkpoint", done->folder},
               {"file", options.file},
               {"step", done->step},
               {"tables", done->tables},
               {"floats", done->floats},
               {"bytes", done->bytes}});
  } else {
    PrintResult(absl::StrCat(
        "wrote ", options.file, ": ", done->tables,
        done->tables == 1 ? " table" : " tables", " of ", done->floats,
        " floats in all, ", BytesText(static_cast<double>(done->bytes)),
        ", as they are at step ", done->step, " in ", done->folder, "\n"));
  }
  return kExitDone;
}

}  // namespace slackline
