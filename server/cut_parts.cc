#include "server/cut_parts.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/timeline/event_names.h"

namespace slackline {

void CutParts::OnCut(int thread, ShardCore::CutState state) {
  wire::CutPart part;
  part.set_cut(state.number);
  part.set_thread(thread);
  std::string error = std::move(state.error);
  if (error.empty() && options_.root.empty()) {
    error = absl::StrCat(
        "server ", options_.server,
        " has no folder for checkpoints: the config has no checkpoint.folder, "
        "and the server was started without --out");
  }
  if (!error.empty()) {
    spdlog::warn("checkpoint {}: {}", state.number, error);
    part.set_error(error);
    return options_.told(std::move(part));
  }
  if (state.shards.empty()) {
    part.mutable_part();
    return options_.told(std::move(part));
  }
  TimelineTrack* const track =
      options_.timeline == nullptr
          ? nullptr
          : options_.timeline->TrackOf(absl::StrCat(
                timeline_names::kCheckpoints, " of shard thread ", thread));
  writer_.Write(
      {.folder = PartialFolder(options_.root, state.run, state.number),
       .file = absl::StrCat("server-", options_.server, "-thread-", thread,
                            ".safetensors"),
       .shards = std::move(state.shards),
       .done = [this, part, track, begun = options_.time.Now()](
                   const absl::StatusOr<checkpoint::Part>& written) mutable {
         if (track != nullptr) {
           track->Add({.name = timeline_names::kWritePart,
                       .begun = begun,
                       .until = options_.time.Now(),
                       .number = part.cut()});
         }
         if (written.ok()) {
           *part.mutable_part() = *written;
         } else {
           part.set_error(std::string(written.status().message()));
           spdlog::warn("checkpoint {}: {}", part.cut(), part.error());
         }
         options_.told(std::move(part));
       }});
}

}  // namespace slackline
