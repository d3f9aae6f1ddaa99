#include "common/membership/member_core.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/endpoint.h"
#include "common/membership/refused.h"
#include "common/shortened.h"
#include "common/status.h"

namespace slackline {
namespace {

// A lease has room for several lost heartbeats.
constexpr int kHeartbeatsPerLease = 5;
// After this many leases of silence the coordinator counts as gone.
constexpr int kSilentLeases = 2;
constexpr size_t kRecordsPerHeartbeat = 256;
// The coordinator's sentence about a removal is cut at this.
constexpr size_t kWhyBytesMax = 1024;
// Of one answer, and of those that are remembered.
constexpr int kInspectionsMax = 16;
constexpr size_t kInspectedMax = 64;
// Payload of a call: beyond kSoonSent its way takes time, on a link of so many
// bytes per second.
constexpr size_t kSoonSent = 256 << 10;
constexpr double kSlowLink = 500e3;
// An address of several is tried for at least this long, or twice if somebody
// listens there and says nothing, as a process that is stopped.
constexpr absl::Duration kTryMin = absl::Milliseconds(200);
// For so long after it was stopped a member takes that for the reason of what
// happens to it. A dead coordinator is found out after kSilentLeases.
constexpr int kStoppedLeases = kSilentLeases + 2;

std::string Text(absl::Duration duration) {
  return absl::FormatDuration(absl::Trunc(duration, absl::Milliseconds(1)));
}

std::string RunText(uint64_t run) { return absl::StrFormat("%016x", run); }

}  // namespace

void MemberCore::Run(absl::Time now) {
  const absl::Duration late = awake_.Run(now);
  if (late == absl::ZeroDuration() || lease_ == absl::ZeroDuration()) return;
  const absl::Duration stopped = late + lease_ / kHeartbeatsPerLease;
  if (stopped <= lease_) return;
  stopped_for_ = stopped;
  resumed_at_ = now;
}

bool MemberCore::WasStopped(absl::Time now) const {
  return now - resumed_at_ <= lease_ * kStoppedLeases;
}

Message MemberCore::NewMessage() const {
  Message message;
  message.header.set_view_number(view_ == nullptr ? 0 : view_->number());
  message.header.set_run(run_);
  return message;
}

void MemberCore::Start(absl::Time now, Effects* effects) {
  Run(now);
  started_ = true;
  give_up_at_ = awake_.At(now) + options_.start_timeout;
  looks_since_ = awake_.At(now);
  SendJoin(now, effects);
}

void MemberCore::SendJoin(absl::Time now, Effects* effects) {
  Message message;
  *message.header.mutable_join_request() = options_.join;
  effects->sends.push_back(std::move(message));
  next_join_ = now + options_.join_retry;
}

void MemberCore::SendHeartbeat(absl::Time now, Effects* effects) {
  Message message = NewMessage();
  wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
  heartbeat = heartbeat_;
  heartbeat.set_incarnation(incarnation_);
  heartbeat.set_first_record(first_record_);
  heartbeat.set_sent_micros(absl::ToUnixMicros(now));
  const size_t count = std::min(records_.size(), kRecordsPerHeartbeat);
  for (size_t i = 0; i < count; ++i) {
    run::MetricRecord& record = *heartbeat.add_record();
    record = records_[i].record;
    record.set_seconds(absl::ToDoubleSeconds(now - records_[i].made_at));
  }
  if (links_tried_.has_value() && view_ == nullptr)
    *heartbeat.mutable_links_tried() = *links_tried_;
  records_sent_ = std::max(records_sent_, count);
  effects->sends.push_back(std::move(message));
  next_heartbeat_ = now + lease_ / kHeartbeatsPerLease;
}

void MemberCore::SayWhichView(Effects* effects) const {
  Message message = NewMessage();
  message.header.mutable_heartbeat()->set_incarnation(incarnation_);
  effects->sends.push_back(std::move(message));
}

void MemberCore::AddRecord(const run::MetricRecord& record,
                           absl::Time made_at) {
  if (records_.size() >= options_.records_max) {
    const auto unsent =
        records_.begin() + static_cast<ptrdiff_t>(records_sent_);
    const auto oldest = std::find_if(unsent, records_.end(), [](const auto& r) {
      return r.record.kind() == run::MetricRecord::TRAIN;
    });
    records_.erase(oldest == records_.end() ? unsent : oldest);
    ++records_dropped_;
  }
  records_.push_back({.record = record, .made_at = made_at});
  if (record.kind() == run::MetricRecord::EVAL)
    next_heartbeat_ = std::min(next_heartbeat_, made_at);
}

uint64_t MemberCore::Call(wire::Call kind, Payload value, absl::Time now,
                          Effects* effects) {
  const uint64_t id = next_call_id_++;
  kind.set_call_id(id);
  kind.set_incarnation(incarnation_);
  Message message = NewMessage();
  *message.header.mutable_call() = std::move(kind);
  if (!value.empty()) message.payloads.push_back(std::move(value));
  effects->sends.push_back(message);
  // What is large is not sent again while it may be under way.
  size_t bytes = 0;
  for (const Payload& payload : message.payloads) bytes += payload.size();
  const absl::Duration retry =
      options_.call_retry +
      absl::Seconds(static_cast<double>(bytes > kSoonSent ? bytes : 0) /
                    kSlowLink);
  calls_[id] = {.message = std::move(message),
                .retry = retry,
                .resend_at = now + retry,
                .obstacle = {}};
  return id;
}

uint64_t MemberCore::AnswerInspection(wire::Inspected inspected, Payload frame,
                                      absl::Time now, Effects* effects) {
  if (inspected.has_timeline()) {
    const std::optional<ClockOffset::Estimate> clock = clock_offset_.At(now);
    wire::Timeline& timeline = *inspected.mutable_timeline();
    timeline.set_offset_micros(
        clock.has_value() ? absl::ToInt64Microseconds(clock->offset) : 0);
    timeline.set_offset_bound_micros(
        clock.has_value() ? absl::ToInt64Microseconds(
                                absl::Ceil(clock->bound, absl::Microseconds(1)))
                          : -1);
  }
  wire::Call call;
  *call.mutable_inspected() = std::move(inspected);
  return Call(std::move(call), std::move(frame), now, effects);
}

std::string MemberCore::ObstacleOf(uint64_t call_id) const {
  const auto call = calls_.find(call_id);
  return call == calls_.end() ? "" : call->second.obstacle;
}

void MemberCore::OnJoinReply(const wire::JoinReply& reply, absl::Time now,
                             Effects* effects) {
  if (incarnation_ != 0 || reply.token() != options_.join.token()) return;
  lease_ = absl::Milliseconds(reply.lease_ms());
  obstacle_ = reply.obstacle();
  coordinator_may_return_ = reply.coordinator_may_return();
  if (reply.code() == wire::OK) {
    incarnation_ = reply.incarnation();
    run_ = reply.run();
    checkpoint_ = reply.checkpoint();
    checkpoint_sha256_ = reply.checkpoint_sha256();
    awake_.SetGapMax(lease_ / kHeartbeatsPerLease);
    effects->joined = true;
    SendHeartbeat(now, effects);
  } else if (reply.code() == wire::RETRY) {
    // The place is held, mostly: somebody may wonder what this process does.
    if (join_obstacle_.empty()) {
      effects->log.push_back(
          absl::StrCat("cannot join yet, tries again for up to ",
                       Text(options_.start_timeout), ": ", reply.error()));
    }
    join_obstacle_ = reply.error();
  } else {
    effects->failure = absl::FailedPreconditionError(absl::StrCat(
        "the coordinator refused to let us join: ", reply.error()));
    if (reply.obstacle() == wire::JoinReply::JOB_ENDED)
      effects->ended_before = reply.end();
  }
}

void MemberCore::OnView(absl::StatusOr<std::shared_ptr<const View>> view,
                        uint64_t number, Effects* effects) {
  if (!view.ok()) {
    if (std::exchange(view_refused_, number) != number) {
      effects->log.push_back(
          absl::StrCat("a view from the coordinator is not followed: ",
                       view.status().message()));
    }
    return;
  }
  view_ = *std::move(view);
  effects->view = view_;
  // The last view is acknowledged by the caller, together with the last
  // statistics.
  if (view_->proto().state() == wire::RUNNING) SayWhichView(effects);
}

void MemberCore::OnLinks(const wire::LinksTried& tried, absl::Time now,
                         Effects* effects) {
  if (view_ != nullptr || !links_.has_value() ||
      tried.round() != links_->round()) {
    return;
  }
  links_tried_ = tried;
  // All may wait for this one.
  if (tried.unreached().empty()) SendHeartbeat(now, effects);
}

void MemberCore::SayWhomItMisses(absl::Time now, Effects* effects) {
  if (view_ != nullptr || !links_tried_.has_value() || said_links_ ||
      now - links_since_ <= lease_) {
    return;
  }
  said_links_ = true;
  for (const wire::Unreached& of : links_tried_->unreached()) {
    std::string endpoint;
    for (const wire::ServerMember& server : links_->server()) {
      if (!of.worker() && server.index() == of.index() &&
          of.thread() < server.thread_size()) {
        endpoint = NetworkEndpoint(server.thread(of.thread()));
      }
    }
    for (const wire::Door& door : links_->worker()) {
      if (of.worker() && door.rank() == of.index()) endpoint = door.endpoint();
    }
    effects->log.push_back(absl::StrCat(
        "cannot connect to ", of.worker() ? "worker " : "server ", of.index(),
        " at ", endpoint, " for ", Text(now - links_since_),
        ", and tries on; is there a firewall between?"));
  }
}

void MemberCore::OnLink(LinkState link, absl::Time now) {
  Run(now);
  const auto since = [&](LinkState state, absl::Time* begin) {
    if (link == state) *begin = std::min(*begin, awake_.At(now));
    if (link == LinkState::kUp || link == LinkState::kGone)
      *begin = absl::InfiniteFuture();
  };
  since(LinkState::kRefused, &refused_since_);
  since(LinkState::kDropped, &dropped_since_);
  link_ = link;
}

void MemberCore::OnHeartbeatReply(const wire::HeartbeatReply& reply,
                                  absl::Time now, Effects* effects) {
  if (incarnation_ == 0 || reply.incarnation() != incarnation_) return;
  if (reply.code() == wire::FENCED) return Fence(reply.error(), effects);
  if (reply.sent_micros() != 0) {
    clock_offset_.OnRoundTrip(absl::FromUnixMicros(reply.sent_micros()),
                              absl::FromUnixMicros(reply.heard_micros()), now);
  }
  OnInspections(reply, effects);
  if (reply.has_try_links() && view_ == nullptr &&
      (!links_.has_value() || links_->round() < reply.try_links().round())) {
    links_ = reply.try_links();
    links_since_ = now;
    links_tried_.reset();
    said_links_ = false;
    effects->try_links = links_;
  }
  while (first_record_ < reply.records_acked() && !records_.empty()) {
    records_.pop_front();
    if (records_sent_ > 0) --records_sent_;
    ++first_record_;
  }
  if (records_dropped_ > records_dropped_said_) {
    effects->log.push_back(absl::StrCat(
        records_dropped_ - records_dropped_said_,
        " metric records were dropped while the coordinator did not take "
        "them; at most ",
        options_.records_max, " are kept"));
    records_dropped_said_ = records_dropped_;
  }
}

void MemberCore::OnInspections(const wire::HeartbeatReply& reply,
                               Effects* effects) {
  const int count = std::min(reply.inspection_size(), kInspectionsMax);
  for (int i = 0; i < count; ++i) {
    const wire::Inspection& inspection = reply.inspection(i);
    if (absl::c_linear_search(inspected_, inspection.number())) continue;
    if (inspected_.size() == kInspectedMax) inspected_.pop_front();
    inspected_.push_back(inspection.number());
    effects->inspections.push_back(inspection);
  }
}

void MemberCore::OnMessage(const Message& message, absl::Time now,
                           Effects* effects) {
  Run(now);
  if (options_.coordinators.size() > 1 && IsOfAnotherJob(message)) return;
  if (message.header.has_wrong_run()) {
    const wire::WrongRun& other = message.header.wrong_run();
    if (run_ == 0 || other.run() == run_) return;
    effects->failure = absl::FailedPreconditionError(absl::StrCat(
        "this process belongs to another run (", RunText(run_), ") of job '",
        options_.join.job(), "'; the coordinator at ",
        options_.coordinators[looks_at_], " runs job '", other.job(), "' (run ",
        RunText(other.run()), ")"));
    return;
  }
  if (run_ != 0 && message.header.run() != 0 && message.header.run() != run_)
    return;  // From another coordinator than the one that we have joined.
  // What has no run may be of anybody, at an address that the coordinator has
  // left: it does not show that the coordinator is there.
  if (run_ == 0 || message.header.run() == run_) {
    const bool moved = std::exchange(heard_at_, looks_at_) != looks_at_;
    if (said_silent_ || (moved && incarnation_ != 0)) {
      said_silent_ = false;
      effects->log.push_back(absl::StrCat(CoordinatorText(), " is heard",
                                          moved ? "" : " again", ", after ",
                                          Text(Silence(now))));
    }
    heard_ = awake_.At(now);
    heard_here_ = true;
  }
  switch (message.header.body_case()) {
    case wire::Header::kJoinReply:
      return OnJoinReply(message.header.join_reply(), now, effects);
    case wire::Header::kHeartbeatReply:
      return OnHeartbeatReply(message.header.heartbeat_reply(), now, effects);
    case wire::Header::kView: {
      // Meant for an incarnation; the first view may overtake the join reply.
      const uint64_t number = message.header.view().number();
      if (incarnation_ == 0 || (view_ != nullptr && number <= view_->number()))
        return;
      return OnView(View::Create(message.header.view()), number, effects);
    }
    case wire::Header::kViewChange: {
      const wire::ViewChange& change = message.header.view_change();
      if (incarnation_ == 0 ||
          (view_ != nullptr && change.number() <= view_->number())) {
        return;
      }
      // Something between is lost. The coordinator learns which view we have.
      if (view_ == nullptr || change.base() != view_->number())
        return SayWhichView(effects);
      return OnView(view_->With(change), change.number(), effects);
    }
    case wire::Header::kCallReply: {
      const auto call = calls_.find(message.header.call_reply().call_id());
      if (call == calls_.end()) return;
      if (message.header.call_reply().code() == wire::RETRY) {  // Not yet.
        call->second.obstacle = message.header.call_reply().error();
        return;
      }
      if (message.header.call_reply().code() == wire::FENCED)
        return Fence(message.header.call_reply().error(), effects);
      calls_.erase(call);
      effects->answers.push_back(
          {.call_id = message.header.call_reply().call_id(),
           .reply = message.header.call_reply(),
           .values = message.payloads});
      return;
    }
    case wire::Header::kErrorReply:
      effects->failure = absl::InternalError(
          absl::StrCat("the coordinator did not understand us: ",
                       message.header.error_reply().error()));
      return;
    default:
      return;
  }
}

bool MemberCore::HearsCoordinator(absl::Time now) const {
  return incarnation_ != 0 && Silence(now) <= lease_ * kSilentLeases;
}

void MemberCore::CheckSilence(absl::Time now, Effects* effects) {
  const absl::Duration silence = Silence(now);
  if (lease_ == absl::ZeroDuration() || silence <= lease_ * kSilentLeases)
    return;
  const std::string who =
      absl::StrCat(CoordinatorText(), " has been silent for ", Text(silence));
  // Who refuses us is another process than the one that we have joined.
  const bool replaced =
      link_ == LinkState::kRefused || link_ == LinkState::kDropped;
  const bool gone = link_ == LinkState::kGone || replaced;
  const std::string nobody =
      replaced ? "what listens there now is none that knows this process' key"
               : "nobody listens there any more";
  if (gone && !coordinator_may_return_) {
    effects->failure = absl::UnavailableError(absl::StrCat(
        who, " and ", nobody, "; that server died or the job has ended",
        WasStopped(now)
            ? absl::StrCat("; this process itself was stopped for ",
                           Text(stopped_for_), ", longer than its lease of ",
                           Text(lease_))
            : ""));
    return;
  }
  if (silence > options_.coordinator_timeout) {
    effects->failure = absl::UnavailableError(absl::StrCat(
        who,
        options_.coordinators.size() > 1
            ? "; no other server has gone on with the job, and "
        : gone
            ? absl::StrCat("; ", nobody,
                           ", nobody has gone on with the job (start "
                           "slackline_server --index=0 again, as the first "
                           "time), and ")
            : "; its process is there or cannot be reached, but says nothing, "
              "and ",
        "limits { coordinator_timeout_ms } is ",
        absl::ToInt64Milliseconds(options_.coordinator_timeout)));
    return;
  }
  if (said_silent_) return;
  said_silent_ = true;
  effects->log.push_back(absl::StrCat(
      who,
      gone ? absl::StrCat("; ", nobody,
                          ", and this process waits for another one that goes "
                          "on with the job, up to ")
           : "; nothing says that it is dead, so this process waits for it, up "
             "to ",
      Text(options_.coordinator_timeout)));
}

void MemberCore::CheckRefused(absl::Time now, Effects* effects) {
  if (options_.coordinators.size() > 1) return;
  const std::string& endpoint = options_.coordinators.front();
  const absl::Duration refused_max =
      incarnation_ == 0 ? kRefusedMax : kMemberRefusedMax;
  if (awake_.At(now) - refused_since_ >= refused_max) {
    effects->failure = RefusedStatus(endpoint);
  } else if (awake_.At(now) - dropped_since_ >= kRefusedMax && !said_dropped_) {
    said_dropped_ = true;
    effects->log.push_back(
        absl::StrCat(DroppedText(endpoint), "; this process tries on"));
  }
}

std::string MemberCore::CoordinatorText() const {
  return absl::StrCat("the coordinator",
                      options_.coordinators.size() > 1 ? "" : " in server 0",
                      " at ", options_.coordinators[heard_at_]);
}

bool MemberCore::IsOfAnotherJob(const Message& message) const {
  const wire::Header& header = message.header;
  return (header.has_wrong_run() &&
          header.wrong_run().job() != options_.join.job()) ||
         (header.has_join_reply() &&
          header.join_reply().job() != options_.join.job());
}

namespace {

// Who is not connected looks at an address for so long: at all of them within
// half a lease, where that leaves time to connect.
absl::Duration TryFor(size_t coordinators, absl::Duration lease) {
  return std::max(kTryMin, lease / (2 * static_cast<double>(coordinators)));
}

}  // namespace

absl::Duration MemberCore::FoundWithin(size_t coordinators,
                                       absl::Duration lease) {
  if (coordinators == 1) return TryFor(1, lease) * 2;
  return kTryMin * 2 * static_cast<double>(coordinators);
}

absl::Duration MemberCore::LookPatience() const {
  const bool up = link_ == LinkState::kUp || link_ == LinkState::kConnected;
  if (up && heard_here_) return lease_;
  // One that has said nothing yet may have heard us, and died: the next one
  // gives us up if we do not find it within our lease.
  const bool alone = options_.coordinators.size() == 1;
  const absl::Duration lease =
      alone && lease_ == absl::ZeroDuration() ? options_.lease : lease_;
  const absl::Duration patience = TryFor(options_.coordinators.size(), lease);
  return up ? patience * 2 : patience;
}

void MemberCore::LookElsewhere(absl::Time now, Effects* effects) {
  // Where none comes after it, a connection that breaks is the news.
  if (options_.coordinators.size() == 1 && incarnation_ != 0 &&
      !coordinator_may_return_) {
    return;
  }
  const absl::Time last = std::max(looks_since_, heard_);
  if (awake_.At(now) - last < LookPatience()) return;
  looks_at_ = (looks_at_ + 1) % options_.coordinators.size();
  looks_since_ = awake_.At(now);
  heard_here_ = false;
  // At the only address the next connection goes on where this one was.
  if (options_.coordinators.size() > 1) {
    link_.reset();
    refused_since_ = absl::InfiniteFuture();
    dropped_since_ = absl::InfiniteFuture();
  }
  effects->look_at = looks_at_;
  // Whatever was sent to the last one has reached nobody.
  next_join_ = now;
  next_heartbeat_ = now;
  for (auto& [id, call] : calls_) call.resend_at = now;
}

void MemberCore::Fence(const std::string& why, Effects* effects) {
  why_removed_ = Shortened(why, kWhyBytesMax);
  effects->fenced = true;
}

std::string MemberCore::WhyFenced(absl::Time now) const {
  if (!why_removed_.empty()) return absl::StrCat("it ", why_removed_);
  const std::string lease =
      absl::StrCat("its lease of ", Text(lease_), " ran out");
  if (WasStopped(now)) {
    return absl::StrCat(lease, " while this process was stopped for ",
                        Text(stopped_for_));
  }
  return absl::StrCat(lease,
                      " although it runs; was it cut off, or the machine "
                      "overloaded? limits { lease_ms: ... } can be raised");
}

void MemberCore::OnTick(absl::Time now, Effects* effects) {
  if (!started_) return;
  Run(now);
  if (incarnation_ == 0) {
    CheckSilence(now, effects);
    if (effects->failure.ok()) CheckRefused(now, effects);
    if (!effects->failure.ok()) return;
    if (awake_.At(now) >= give_up_at_) {
      const std::string waited = absl::FormatDuration(options_.start_timeout);
      effects->failure = absl::DeadlineExceededError(
          join_obstacle_.empty()
              ? absl::StrCat(
                    "no coordinator answered at ",
                    absl::StrJoin(options_.coordinators, ", "), " within ",
                    waited,
                    dropped_since_ == absl::InfiniteFuture()
                        ? "; is slackline_server --index=0 of this "
                          "config running there?"
                        : absl::StrCat(
                              "; ",
                              DroppedText(options_.coordinators[looks_at_])))
              : absl::StrCat("could not join within ", waited, ": ",
                             join_obstacle_));
      return;
    }
    LookElsewhere(now, effects);
    if (now >= next_join_) SendJoin(now, effects);
    return;
  }
  CheckSilence(now, effects);
  if (!effects->failure.ok()) return;
  LookElsewhere(now, effects);
  SayWhomItMisses(now, effects);
  if (now >= next_heartbeat_) SendHeartbeat(now, effects);
  for (auto& [id, call] : calls_) {
    if (now < call.resend_at) continue;
    call.resend_at = now + call.retry;
    effects->sends.push_back(call.message);
  }
}

absl::Time MemberCore::NextWakeup() const {
  if (!started_) return absl::InfiniteFuture();
  if (incarnation_ == 0) {
    return std::min(next_join_, awake_.RealTimeOf(give_up_at_));
  }
  absl::Time next = next_heartbeat_;
  for (const auto& [id, call] : calls_) next = std::min(next, call.resend_at);
  return next;
}

wire::Call SuspendCall(const std::string& reason) {
  wire::Call call;
  call.mutable_suspend()->set_reason(reason);
  return call;
}

std::string SuspendingText(const std::string& reason) {
  return absl::StrCat(reason,
                      ": a checkpoint is to be taken, then the job ends; a "
                      "second signal ends this process at once");
}

}  // namespace slackline
