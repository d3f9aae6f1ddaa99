#include "server/coordinator/job_terms.h"

#include "absl/strings/str_cat.h"
#include "common/block/config_difference.h"
#include "common/status.h"
#include "server/coordinator/grant_book.h"
#include "server/coordinator/join_check.h"
#include "server/coordinator/table_terms.h"

namespace slackline {
namespace {

constexpr int32_t kServersMax = 100000;

std::string SamplingText(const wire::JoinRequest& join) {
  if (!join.has_elastic()) return "static sampling";
  const wire::Elastic& elastic = join.elastic();
  return absl::StrCat("elastic sampling of ", elastic.total(), " examples, ",
                      elastic.examples(), " in an epoch and up to ",
                      elastic.batch_size(), " in a step");
}

// "IDX images from data/mnist: 60000 ... (hash 5d41402abc4b2a76)".
std::string DataText(const wire::JoinRequest& join) {
  return absl::StrCat(join.data(), " (hash ", join.data_hash(), ")");
}

}  // namespace

std::string JobTerms::WhyOtherCheckpoint(const wire::JoinRequest& join) const {
  const std::string& ours = options_.checkpoint_sha256;
  if (join.checkpoint_sha256() == ours) return "";
  if (join.checkpoint_sha256().empty()) {
    return " begins anew, and server 0 goes on from a checkpoint; give all "
           "servers the same --resume";
  }
  if (ours.empty()) {
    return " goes on from a checkpoint, and server 0 begins anew; give all "
           "servers the same --resume, or none of them";
  }
  return " has read another checkpoint than server 0; give all servers a "
         "--resume of the same folder";
}

std::string JobTerms::WhyOfAnotherJob(const wire::JoinRequest& join) const {
  const bool is_worker = join.role() == wire::JoinRequest::WORKER;
  if (!is_worker && join.role() != wire::JoinRequest::SERVER) {
    return absl::StrCat("a member joins as server or worker, not in role ",
                        static_cast<int>(join.role()));
  }
  const std::string who =
      absl::StrCat(is_worker ? "worker " : "server ", join.index());
  if (join.job() != options_.job) {
    return absl::StrCat(who, " belongs to job '", join.job(),
                        "', the coordinator at this address to '", options_.job,
                        "'; give each job its own coordinator { port: ... }");
  }
  // Before all else that it says: it may mean something else by it.
  if (join.protocol() != options_.protocol) {
    return absl::StrCat(
        who, " (", join.build().program(), " ", join.build().version(),
        ") speaks protocol ", join.protocol(), ", the coordinator (",
        options_.build.program(), " ", options_.build.version(), ") ",
        options_.protocol, "; install the same version on all hosts");
  }
  if (join.config_hash() != options_.config_hash) {
    config::ClusterConfig theirs;
    std::string field;
    if (options_.config.server_size() > 0 && !join.config().empty() &&
        theirs.ParseFromString(join.config())) {
      field = FirstDifference(theirs, options_.config);
    }
    return absl::StrCat(
        who, " was started with another config than the coordinator",
        field.empty() ? "" : ": ", field,
        "; start all processes with one file and the same --mode and --set");
  }
  return "";
}

std::string JobTerms::WhyModelUnfit(const wire::JoinRequest& join) const {
  if (std::string unfit = WhyTablesUnfit(join, options_); !unfit.empty())
    return unfit;
  if (join.steps_total() < 1 || join.steps_per_epoch() < 1) {
    return absl::StrCat(" has ", join.steps_total(), " steps to do, ",
                        join.steps_per_epoch(),
                        " in an epoch; at least 1 is required");
  }
  if (join.has_elastic()) {
    if (const std::string unfit = GrantBook::WhyUnfit(join.elastic());
        !unfit.empty()) {
      return absl::StrCat(": ", unfit);
    }
  }
  return "";
}

std::string JobTerms::WhyUnfit(const wire::JoinRequest& join, bool runs,
                               int32_t next_server) const {
  const bool is_worker = join.role() == wire::JoinRequest::WORKER;
  const std::string who =
      absl::StrCat(is_worker ? "worker " : "server ", join.index());
  const int count = is_worker ? options_.workers : options_.servers;
  const bool new_server = !is_worker && runs;
  if (new_server && (join.index() < 0 || join.index() >= kServersMax)) {
    return absl::StrCat(who,
                        ": the job runs; a server that is added to it takes "
                        "an index that no other has, from ",
                        next_server, " on, below ", kServersMax,
                        ", or that of one that is gone");
  }
  if (!new_server && (join.index() < 0 || join.index() >= count)) {
    return absl::StrCat(who, ": the config has ", count,
                        is_worker ? " workers" : " servers",
                        ", so the index must be in [0, ", count, ")");
  }
  if (!is_worker && join.thread_size() == 0)
    return absl::StrCat(who, " offers no shard threads");
  if (!is_worker && join.delays_sha256() != options_.delays_sha256) {
    return absl::StrCat(who,
                        " has read other recorded delays than server 0; give "
                        "all servers a copy of the same folder");
  }
  if (!is_worker && !new_server) {
    if (const std::string other = WhyOtherCheckpoint(join); !other.empty())
      return absl::StrCat(who, other);
  }
  if (!is_worker) return "";
  if (const std::string unfit = WhyModelUnfit(join); !unfit.empty())
    return absl::StrCat(who, unfit);
  return has_model() ? WhyOtherModel(who, join) : "";
}

std::string JobTerms::WhyOtherModel(const std::string& who,
                                    const wire::JoinRequest& join) const {
  const wire::JoinRequest& first = *model_;
  const std::string other = absl::StrCat("worker ", first.index());
  if (SamplingText(join) != SamplingText(first)) {
    return absl::StrCat(who, " has ", SamplingText(join), ", but ", other,
                        " has ", SamplingText(first),
                        "; all workers must train on the same data");
  }
  if (join.steps_total() != first.steps_total() ||
      join.steps_per_epoch() != first.steps_per_epoch()) {
    return absl::StrCat(who, " has ", join.steps_total(), " steps to do, ",
                        join.steps_per_epoch(), " in an epoch, but ", other,
                        " has ", first.steps_total(), " and ",
                        first.steps_per_epoch(),
                        "; all workers must train on the same data");
  }
  if (!join.data_hash().empty() && !first.data_hash().empty() &&
      join.data_hash() != first.data_hash()) {
    return absl::StrCat(
        who, " has other examples than ", other, ": ", DataText(join), ", ",
        other, " has ", DataText(first),
        "; give all workers the same files (--data-dir of each host), or draw "
        "them from one seed");
  }
  return WhyOtherTables(who, join, other, first);
}

wire::JoinRequest JobTerms::Complete(const wire::JoinRequest& join) const {
  wire::JoinRequest complete = join;
  complete.clear_config();
  complete.DiscardUnknownFields();
  CompleteTables(options_, &complete);
  return complete;
}

void JobTerms::OnWorker(const wire::JoinRequest& join) {
  if (!model_.has_value()) model_ = join;
  if (model_->data_hash().empty()) model_->set_data_hash(join.data_hash());
}

// ---- For the next coordinator -----------------------------------------------

void JobTerms::Keep(KeptState* kept) const {
  if (model_.has_value()) {
    kept->Put("model", *model_);
  } else {
    kept->Remove("model");
  }
}

absl::Status JobTerms::Load(const StateReader& reader) {
  if (!reader.Has("model")) return absl::OkStatus();
  SL_RETURN_IF_ERROR(reader.Read("model", &model_.emplace()));
  std::string unfit = WhyNoJoin(*model_);
  if (unfit.empty()) unfit = WhyModelUnfit(*model_);
  if (unfit.empty()) return absl::OkStatus();
  return reader.Broken("model", absl::StrCat("its worker", unfit));
}

}  // namespace slackline
