#include "common/membership/member_core.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/membership/end_status.h"
#include "common/membership/refused.h"
#include "common/shortened.h"
#include "common/status.h"
#include "common/time/duration_text.h"

namespace slackline {
namespace {

// A lease has room for several lost heartbeats.
constexpr int kHeartbeatsPerLease = 5;
// Of one answer, and of those that are remembered.
constexpr int kInspectionsMax = 16;
constexpr size_t kInspectedMax = 64;
// Payload of a call: beyond kSoonSent its way takes time, on a link of so many
// bytes per second.
constexpr size_t kSoonSent = 256 << 10;
constexpr double kSlowLink = 500e3;
// For so long after it was stopped a member takes that for the reason of what
// happens to it. A dead coordinator is found out after kSilentLeases.
constexpr int kStoppedLeases = CoordinatorWatch::kSilentLeases + 2;

std::string RunText(uint64_t run) { return absl::StrFormat("%016x", run); }

}  // namespace

void MemberCore::Run(absl::Time now) {
  const absl::Duration late = awake_.Run(now);
  if (late == absl::ZeroDuration() || lease() == absl::ZeroDuration()) return;
  const absl::Duration stopped = late + lease() / kHeartbeatsPerLease;
  if (stopped <= lease()) return;
  stopped_for_ = stopped;
  resumed_at_ = now;
}

bool MemberCore::WasStopped(absl::Time now) const {
  return now - resumed_at_ <= lease() * kStoppedLeases;
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
  coordinator_.Start(awake_.At(now));
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
  heartbeat.set_sent_micros(absl::ToUnixMicros(now));
  records_.PutInto(&heartbeat, now);
  if (links_.tried().has_value() && view_ == nullptr)
    *heartbeat.mutable_links_tried() = *links_.tried();
  effects->sends.push_back(std::move(message));
  next_heartbeat_ = now + lease() / kHeartbeatsPerLease;
}

void MemberCore::SayWhichView(Effects* effects) const {
  Message message = NewMessage();
  message.header.mutable_heartbeat()->set_incarnation(incarnation_);
  effects->sends.push_back(std::move(message));
}

void MemberCore::AddRecord(const run::MetricRecord& record,
                           absl::Time made_at) {
  records_.Add(record, made_at);
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
  coordinator_.OnTerms(absl::Milliseconds(reply.lease_ms()),
                       reply.coordinator_may_return());
  obstacle_ = reply.obstacle();
  if (reply.code() == wire::OK) {
    incarnation_ = reply.incarnation();
    run_ = reply.run();
    checkpoint_ = reply.checkpoint();
    checkpoint_sha256_ = reply.checkpoint_sha256();
    awake_.SetGapMax(lease() / kHeartbeatsPerLease);
    effects->joined = true;
    SendHeartbeat(now, effects);
  } else if (reply.code() == wire::RETRY) {
    // The place is held, mostly: somebody may wonder what this process does.
    if (join_obstacle_.empty()) {
      effects->log.push_back(absl::StrCat(
          "cannot join yet, tries again for up to ",
          DurationText(options_.start_timeout), ": ", reply.error()));
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
  if (view_ != nullptr || !links_.OnTried(tried)) return;
  // All may wait for this one.
  if (tried.unreached().empty()) SendHeartbeat(now, effects);
}

void MemberCore::OnLink(LinkState link, absl::Time now) {
  Run(now);
  coordinator_.OnLink(link, awake_.At(now));
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
      links_.OnTryLinks(reply.try_links(), now)) {
    effects->try_links = reply.try_links();
  }
  records_.OnKept(reply.records_acked());
  if (const int64_t dropped = records_.DroppedSince(); dropped > 0) {
    effects->log.push_back(absl::StrCat(
        dropped,
        " metric records were dropped while the coordinator did not take "
        "them; at most ",
        options_.records_max, " are kept"));
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
        options_.join.job(), "'; the coordinator at ", coordinator_.address(),
        " runs job '", other.job(), "' (run ", RunText(other.run()), ")"));
    return;
  }
  if (run_ != 0 && message.header.run() != 0 && message.header.run() != run_)
    return;  // From another coordinator than the one that we have joined.
  // What has no run may be of anybody, at an address that the coordinator has
  // left: it does not show that the coordinator is there.
  if (run_ == 0 || message.header.run() == run_)
    coordinator_.OnHeard(incarnation_ != 0, awake_.At(now), &effects->log);
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
  return incarnation_ != 0 && !coordinator_.IsSilent(awake_.At(now));
}

bool MemberCore::IsOfAnotherJob(const Message& message) const {
  const wire::Header& header = message.header;
  return (header.has_wrong_run() &&
          header.wrong_run().job() != options_.join.job()) ||
         (header.has_join_reply() &&
          header.join_reply().job() != options_.join.job());
}

void MemberCore::LookElsewhere(absl::Time now, Effects* effects) {
  const std::optional<size_t> next =
      coordinator_.LookElsewhere(incarnation_ != 0, awake_.At(now));
  if (!next.has_value()) return;
  effects->look_at = next;
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
  const std::string ran_out =
      absl::StrCat("its lease of ", DurationText(lease()), " ran out");
  if (WasStopped(now)) {
    return absl::StrCat(ran_out, " while this process was stopped for ",
                        DurationText(stopped_for_));
  }
  return absl::StrCat(ran_out,
                      " although it runs; was it cut off, or the machine "
                      "overloaded? limits { lease_ms: ... } can be raised");
}

void MemberCore::OnTick(absl::Time now, Effects* effects) {
  if (!started_) return;
  Run(now);
  const absl::Time awake = awake_.At(now);
  const auto fails = [&](const absl::Status& status) {
    if (!status.ok()) effects->failure = status;
    return !status.ok();
  };
  const absl::Status silent = coordinator_.CheckSilence(
      awake,
      WasStopped(now)
          ? absl::StrCat("; this process itself was stopped for ",
                         DurationText(stopped_for_),
                         ", longer than its lease of ", DurationText(lease()))
          : "",
      &effects->log);
  if (fails(silent)) return;
  if (incarnation_ == 0) {
    if (fails(coordinator_.CheckRefused(awake, &effects->log))) return;
    if (awake >= give_up_at_) {
      const std::string waited = absl::FormatDuration(options_.start_timeout);
      effects->failure = absl::DeadlineExceededError(
          join_obstacle_.empty()
              ? absl::StrCat(
                    "no coordinator answered at ",
                    absl::StrJoin(options_.coordinators, ", "), " within ",
                    waited,
                    coordinator_.dropped()
                        ? absl::StrCat("; ",
                                       DroppedText(coordinator_.address()))
                        : "; is slackline_server --index=0 of this "
                          "config running there?")
              : absl::StrCat("could not join within ", waited, ": ",
                             join_obstacle_));
      return;
    }
    LookElsewhere(now, effects);
    if (now >= next_join_) SendJoin(now, effects);
    return;
  }
  LookElsewhere(now, effects);
  if (view_ == nullptr) links_.SayWhomItMisses(now, lease(), &effects->log);
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
