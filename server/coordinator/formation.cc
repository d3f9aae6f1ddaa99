#include "server/coordinator/formation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/some_names.h"
#include "common/status.h"
#include "common/sync/phases.h"
#include "common/view/shard_map.h"
#include "server/coordinator/job_end.h"
#include "server/coordinator/milliseconds.h"
#include "server/coordinator/resume.h"

namespace slackline {
namespace {

// Why members are missing, in the reason of a job's end.
constexpr size_t kSentencesOfEndMax = 3;
// How long the members of a job at least have to connect with each other.
constexpr int kLinkLeases = 2;

}  // namespace

Formation::Formation(const Options& options, JobDelays* delays,
                     Membership* members, ViewEditor* editor)
    : options_(options),
      delays_(delays),
      members_(members),
      editor_(editor),
      links_({.lease = options.lease,
              .servers_need_each_other = options.servers_need_each_other},
             members) {}

// ---- Whether all are there --------------------------------------------------

absl::Time Formation::GivesUpAt() const {
  const absl::Time joined_by = started_ + options_.start_timeout;
  if (!links_.under_way()) return joined_by;
  return std::max(joined_by, links_.since() + options_.lease * kLinkLeases);
}

WakeUp Formation::NextWakeUp() const {
  if (editor_->view().state() != wire::FORMING) return {};
  return {.awake = std::min(GivesUpAt(), links_.NextNews())};
}

void Formation::OnTime(const Moment& moment, CoordinatorEffects* effects) {
  for (std::string& sentence : links_.TakeNews(moment.awake))
    effects->warnings.push_back(std::move(sentence));
  if (editor_->view().state() == wire::FORMING && moment.awake > GivesUpAt())
    editor_->End(NotFormed(moment.awake));
}

wire::JobEnd Formation::NotFormed(absl::Time awake_now) const {
  const auto some = [](std::vector<std::string> sentences) {
    if (sentences.size() > kSentencesOfEndMax)
      sentences.resize(kSentencesOfEndMax);
    return absl::StrJoin(sentences, "; ");
  };
  const std::string within =
      absl::StrCat(" within ", MillisecondsText(options_.start_timeout));
  const Membership::Missing missing = members_->WhoIsMissing();
  if (missing.empty()) {
    const std::vector<std::string> left = links_.Left(awake_now);
    return JobEndOf(
        wire::JobEnd::NOT_FORMED,
        absl::StrCat(
            "not all members could connect with each other", within, ": ",
            some(left),
            left.size() > kSentencesOfEndMax
                ? absl::StrCat("; and ", left.size() - kSentencesOfEndMax,
                               " more, as the log of server 0 says")
                : "",
            "; let these connections through the firewalls between"));
  }
  const std::string why = some(members_->WhyMissing(missing));
  wire::JobEnd end = JobEndOf(
      wire::JobEnd::NOT_FORMED,
      absl::StrCat(
          SomeNames(members_->NamesOf(missing)), " did not join", within,
          why.empty() ? "" : "; ", why,
          "; look at their logs, or raise limits { start_timeout_ms: ... }"));
  end.mutable_server()->Add(missing.servers.begin(), missing.servers.end());
  end.mutable_worker()->Add(missing.workers.begin(), missing.workers.end());
  return end;
}

bool Formation::IsComplete(absl::Time now, CoordinatorEffects* effects) {
  if (editor_->view().state() != wire::FORMING ||
      !members_->WhoIsMissing().empty()) {
    return false;
  }
  return !options_.try_links ||
         LinksAreThere(members_->AwakeTime(now), effects);
}

bool Formation::LinksAreThere(absl::Time awake_now,
                              CoordinatorEffects* effects) {
  if (!links_.under_way()) {
    links_.Begin(awake_now);
    for (const auto& [incarnation, member] : members_->all()) {
      Outgoing out = HeartbeatReplyTo(member);
      links_.PutRound(member, out.message.header.mutable_heartbeat_reply());
      effects->sends.push_back(std::move(out));
    }
  }
  if (!links_.Complete(awake_now)) return false;
  for (std::string& sentence : links_.TakeNews(awake_now))
    effects->warnings.push_back(std::move(sentence));
  links_.Stop();
  return true;
}

// ---- How the job begins -----------------------------------------------------

std::vector<wire::Table> Formation::Tables() const {
  const wire::JoinRequest& model = members_->model();
  std::vector<wire::Table> tables(model.table().begin(), model.table().end());
  if (options_.resume == nullptr) return tables;
  for (wire::Table& table : tables) {
    table.clear_initializer();
    table.mutable_initializer()->set_kind(wire::Initializer::OF_CHECKPOINT);
  }
  return tables;
}

bool Formation::PlaceWorkers(CoordinatorEffects* effects) {
  if (options_.resume != nullptr) GoOnFromCheckpoint(effects);
  if (editor_->ended()) return false;
  const wire::View& view = editor_->view();
  if (const std::string unfit = WhyDelaysUnfit(effects); !unfit.empty()) {
    editor_->End(JobEndOf(wire::JobEnd::NOT_FORMED, unfit));
    return false;
  }
  Clock begins_at = view.steps_total();
  for (const wire::WorkerMember& worker : view.worker())
    begins_at = std::min<Clock>(begins_at, worker.begins_at());
  editor_->SetBeginsAt(begins_at);
  return true;
}

void Formation::GoOnFromCheckpoint(CoordinatorEffects* effects) {
  const wire::View& view = editor_->view();
  const checkpoint::Manifest& manifest = *options_.resume;
  const std::string& folder = options_.resume_folder;
  std::string why = delays_->WhyNotResumed(view);
  if (why.empty()) why = WhyNotFrom(manifest, view);
  if (!why.empty()) {
    return editor_->End(
        JobEndOf(wire::JobEnd::NOT_FORMED,
                 absl::StrCat("the job cannot go on from checkpoint ", folder,
                              ": ", why)));
  }
  const std::string& data_hash = members_->model().data_hash();
  if (!manifest.data_hash().empty() && !data_hash.empty() &&
      manifest.data_hash() != data_hash) {
    effects->warnings.push_back(absl::StrCat(
        "the checkpoint was trained on other examples: ", manifest.data(),
        ", and the job trains on ", members_->FindWorker(0)->join.data()));
  }
  const Clock end = view.steps_total();
  Clock smallest = end;
  Clock largest = 0;
  for (const auto& [rank, clock] : BeginningsOf(manifest, view)) {
    const Member* const worker = members_->FindWorker(rank);
    members_->SetBeginsAt(*worker, clock);
    editor_->PutWorker(WorkerOf(*worker));
    smallest = std::min(smallest, clock);
    largest = std::max(largest, clock);
  }
  editor_->SetEntered(PhaseIndexAt(view, smallest));
  // The servers have the model, so nobody steps by all-reduce to its end: who
  // joins such a phase would wait for the others for ever.
  if (smallest == end) editor_->SetArrived(end);
  effects->log.push_back(absl::StrCat(
      "the job goes on from checkpoint ", folder, ", at ",
      largest > smallest ? absl::StrCat("steps ", smallest, " to ", largest)
                         : absl::StrCat("step ", smallest),
      " of ", end, smallest == end ? ": nothing is left to do" : ""));
}

std::string Formation::WhyDelaysUnfit(CoordinatorEffects* effects) const {
  const wire::View& view = editor_->view();
  if (GivenDelaysPhase(view) == nullptr) return "";
  if (view.elastic()) {
    return "the job cannot follow the delays that are given: with elastic "
           "sampling nobody knows which worker does which step; take static "
           "sampling";
  }
  const absl::StatusOr<const DelayPlan*> plan = delays_->PlanOf(view);
  const absl::Status fits = plan.ok()
                                ? (*plan)->CheckShards(view.owner_server_size())
                                : plan.status();
  if (!fits.ok()) {
    return absl::StrCat("the job cannot follow the delays that are given: ",
                        fits.message());
  }
  int64_t bytes = 0;
  for (const wire::Table& table : view.table())
    bytes += TableElements(table) * static_cast<int64_t>(sizeof(float));
  const int64_t kept = (*plan)->kept_versions_max();
  effects->log.push_back(absl::StrCat(
      "delays are given: the servers keep up to ", kept,
      " earlier versions of the model for gradients that are computed from "
      "them, ",
      (kept * bytes) >> 20,
      " MiB in all and as much for each copy, beside the gradients that wait "
      "for "
      "their turn"));
  return "";
}

// ---- Reports ----------------------------------------------------------------

void Formation::PutStatus(const StatusQuestion& question,
                          wire::StatusReply* status) const {
  if (editor_->view().state() != wire::FORMING) return;
  const Membership::Missing missing = members_->WhoIsMissing();
  for (const std::string& name : members_->NamesOf(missing))
    status->add_missing(name);
  for (const std::string& why : members_->WhyMissing(missing))
    status->add_held_up(why);
  for (const std::string& left : links_.Left(question.moment.awake))
    status->add_held_up(left);
}

}  // namespace slackline
