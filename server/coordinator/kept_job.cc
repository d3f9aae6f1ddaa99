#include "server/coordinator/kept_job.h"

#include "common/status.h"
#include "proto/coordinator_state.pb.h"

namespace slackline {

void KeepJob(const KeptJob& job, KeptState* kept) {
  coordinator::JobState state;
  state.set_job(job.job);
  state.set_run(job.run);
  state.set_config_hash(job.config_hash);
  *state.mutable_build() = job.build;
  state.set_protocol(job.protocol);
  if (job.resume != nullptr) *state.mutable_resume() = *job.resume;
  state.set_resume_sha256(job.resume_sha256);
  state.set_resume_folder(job.resume_folder);
  kept->Put("job", state);
}

absl::StatusOr<KeptJob> KeptJobIn(const CoordinatorState& state) {
  const StateReader reader(state);
  coordinator::JobState job;
  if (!reader.Has("job")) return reader.Broken("job", "it is not there");
  SL_RETURN_IF_ERROR(reader.Read("job", &job));
  KeptJob kept = {.job = job.job(),
                  .run = job.run(),
                  .config_hash = job.config_hash(),
                  .build = job.build(),
                  .protocol = job.protocol(),
                  .resume = nullptr,
                  .resume_sha256 = job.resume_sha256(),
                  .resume_folder = job.resume_folder(),
                  .formed = reader.Has("view")};
  if (job.has_resume())
    kept.resume = std::make_shared<const checkpoint::Manifest>(job.resume());
  // Perhaps of another version. An end is in changes, too.
  wire::View view;
  SL_RETURN_IF_ERROR(reader.Read("view", &view));
  kept.ended = view.has_end();
  kept.end = view.end();
  SL_RETURN_IF_ERROR(reader.ReadAll<wire::ViewChange>(
      "change", [&](uint64_t, const wire::ViewChange& change) {
        if (change.has_end()) kept.end = change.end();
        kept.ended |= change.has_end();
        return absl::OkStatus();
      }));
  return kept;
}

}  // namespace slackline
