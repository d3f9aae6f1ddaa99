// JobTerms: what a process has to bring that is to be a member of this job. Of
// both roles that is the job's name, protocol and config; of a server the
// recorded delays and the checkpoint that the others have read; of a worker the
// same model, optimizers, data and length as the others.
//
// The first worker says what that model is. Its join is kept here: all others
// are compared with it, and the next coordinator gets it. Who is a member, and
// whether a place is free, is Membership's.
//
// Deterministic. Thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "proto/wire.pb.h"
#include "server/coordinator/job_terms_options.h"
#include "server/coordinator/state/kept_state.h"

namespace slackline {

class JobTerms {
 public:
  using Options = JobTermsOptions;

  explicit JobTerms(const Options& options) : options_(options) {}

  // Empty if the request is meant for this job, of the same config and version.
  std::string WhyOfAnotherJob(const wire::JoinRequest& join) const;
  // The request, which is of this job, as members keep it: with an optimizer
  // for each table.
  wire::JoinRequest Complete(const wire::JoinRequest& join) const;
  // Empty if the request, which is complete, fits the job as it is, and the
  // model.
  // `runs`: the job has begun. `next_server` is the smallest index that no
  // server ever had.
  std::string WhyUnfit(const wire::JoinRequest& join, bool runs,
                       int32_t next_server) const;

  // A worker with this request, which is complete and fits, is a member.
  void OnWorker(const wire::JoinRequest& join);
  // No worker is left of a job that has not begun: the next first worker may
  // bring another model.
  void ForgetModel() { model_.reset(); }
  bool has_model() const { return model_.has_value(); }
  // The join of the first worker, with its tables. There has been a worker.
  const wire::JoinRequest& model() const { return *model_; }

  void Keep(KeptState* kept) const;
  absl::Status Load(const StateReader& reader);

 private:
  // Empty, or completes "worker 2": its tables or the length of the job cannot
  // be, whatever others bring.
  std::string WhyModelUnfit(const wire::JoinRequest& join) const;
  // Empty, or a sentence that begins with `who`: the model or the data are not
  // those of the first worker, which there is.
  std::string WhyOtherModel(const std::string& who,
                            const wire::JoinRequest& join) const;
  // Empty, or completes "server 1" of a job that forms: it goes on from another
  // checkpoint than the others.
  std::string WhyOtherCheckpoint(const wire::JoinRequest& join) const;

  const Options options_;
  // All workers bring the same tables, and the same length of the job. Its hash
  // of the data is that of the first worker that has one.
  std::optional<wire::JoinRequest> model_;
};

}  // namespace slackline
