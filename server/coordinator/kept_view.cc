#include "server/coordinator/kept_view.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/view/shard_map.h"

namespace slackline {

void KeptView::Keep(absl::Time, KeptState* kept) {
  const auto committed =
      std::exchange(committed_, ViewEditor::Committed::kNothing);
  if (committed == ViewEditor::Committed::kNothing) return;
  const size_t whole = kept->BytesOf("view");
  if (committed == ViewEditor::Committed::kChange && !next_is_whole_ &&
      changes_bytes_ < whole) {
    changes_bytes_ += editor_->change().ByteSizeLong();
    return kept->Put(NumberedKey("change", editor_->view().number()),
                     editor_->change());
  }
  for (const std::string& key : kept->KeysOf("change/")) kept->Remove(key);
  kept->Put("view", editor_->view());
  changes_bytes_ = 0;
  next_is_whole_ = false;
}

absl::Status KeptView::Load(const StateReader& reader, const Moment&,
                            CoordinatorEffects*) {
  next_is_whole_ = true;
  if (!reader.Has("view")) {  // The job forms.
    for (const auto& [incarnation, member] : members_->all()) {
      if (member.worker_role()) {
        editor_->PutWorker(WorkerOf(member));
      } else {
        editor_->PutServer(ServerOf(member));
      }
    }
    return absl::OkStatus();
  }
  wire::View whole;
  SL_RETURN_IF_ERROR(reader.Read("view", &whole));
  absl::StatusOr<std::shared_ptr<const View>> view =
      View::Create(std::move(whole));
  if (!view.ok())
    return reader.Broken("view", std::string(view.status().message()));
  SL_RETURN_IF_ERROR(reader.ReadAll<wire::ViewChange>(
      "change", [&](uint64_t, const wire::ViewChange& change) {
        view = (*view)->With(change);
        return view.status();
      }));
  *editor_ = ViewEditor((*view)->ToProto());
  const wire::View& loaded = editor_->view();
  if (loaded.state() == wire::FORMING ||
      (editor_->running() && loaded.phase_size() == 0) ||
      (loaded.phase_size() > 0 &&
       (loaded.entered() < 0 || loaded.entered() >= loaded.phase_size()))) {
    return reader.Broken("view", "it is none of a job that has begun");
  }
  const int listed = members_->FollowView(loaded);
  // The last view still lists those who have left since the job ended.
  const bool all_listed = listed == static_cast<int>(members_->all().size());
  const bool all_kept = listed == loaded.server_size() + loaded.worker_size();
  if (!all_listed || (editor_->running() && !all_kept)) {
    return reader.Broken(
        "view", absl::StrCat("it lists ", loaded.server_size(), " servers and ",
                             loaded.worker_size(), " workers; ", listed,
                             " of them are among the ", members_->all().size(),
                             " that are kept"));
  }
  if (loaded.phase_size() > 0 && !reader.Has("model"))
    return reader.Broken("model", "it is not there");
  return absl::OkStatus();
}

}  // namespace slackline
