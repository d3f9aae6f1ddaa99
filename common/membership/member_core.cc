#include "common/membership/member_core.h"

#include <algorithm>

#include "common/status.h"

namespace slackline {
namespace {

// A lease has room for several lost heartbeats.
constexpr int kHeartbeatsPerLease = 5;
// After this many leases of silence the coordinator counts as gone.
constexpr int kSilentLeases = 2;
constexpr size_t kRecordsPerHeartbeat = 256;

}  // namespace

void MemberCore::Start(absl::Time now, Effects* effects) {
  started_ = true;
  give_up_at_ = now + options_.start_timeout;
  SendJoin(now, effects);
}

void MemberCore::SendJoin(absl::Time now, Effects* effects) {
  Message message;
  *message.header.mutable_join_request() = options_.join;
  effects->sends.push_back(std::move(message));
  next_join_ = now + options_.join_retry;
}

void MemberCore::SendHeartbeat(absl::Time now, Effects* effects) {
  Message message;
  message.header.set_view_number(view_ == nullptr ? 0 : view_->number());
  wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
  heartbeat = heartbeat_;
  heartbeat.set_incarnation(incarnation_);
  heartbeat.set_first_record(first_record_);
  for (size_t i = 0; i < std::min(records_.size(), kRecordsPerHeartbeat); ++i) {
    run::MetricRecord& record = *heartbeat.add_record();
    record = records_[i].record;
    record.set_seconds(absl::ToDoubleSeconds(now - records_[i].made_at));
  }
  effects->sends.push_back(std::move(message));
  next_heartbeat_ = now + lease_ / kHeartbeatsPerLease;
}

void MemberCore::AddRecord(const run::MetricRecord& record,
                           absl::Time made_at) {
  records_.push_back({.record = record, .made_at = made_at});
  if (record.kind() == run::MetricRecord::EVAL)
    next_heartbeat_ = std::min(next_heartbeat_, made_at);
}

uint64_t MemberCore::Call(wire::Call kind, Payload value, absl::Time now,
                          Effects* effects) {
  const uint64_t id = next_call_id_++;
  kind.set_call_id(id);
  kind.set_incarnation(incarnation_);
  Message message;
  message.header.set_view_number(view_ == nullptr ? 0 : view_->number());
  *message.header.mutable_call() = std::move(kind);
  if (!value.empty()) message.payloads.push_back(std::move(value));
  effects->sends.push_back(message);
  calls_[id] = {.message = std::move(message),
                .resend_at = now + options_.call_retry};
  return id;
}

void MemberCore::OnMessage(const Message& message, absl::Time now,
                           Effects* effects) {
  heard_ = now;
  switch (message.header.body_case()) {
    case wire::Header::kJoinReply: {
      const wire::JoinReply& reply = message.header.join_reply();
      if (incarnation_ != 0 || reply.token() != options_.join.token()) return;
      if (reply.code() == wire::OK) {
        incarnation_ = reply.incarnation();
        lease_ = absl::Milliseconds(reply.lease_ms());
        effects->joined = true;
        SendHeartbeat(now, effects);
      } else if (reply.code() == wire::RETRY) {
        join_obstacle_ = reply.error();
      } else {
        effects->failure = absl::FailedPreconditionError(absl::StrCat(
            "the coordinator refused to let us join: ", reply.error()));
      }
      return;
    }
    case wire::Header::kHeartbeatReply: {
      const wire::HeartbeatReply& reply = message.header.heartbeat_reply();
      if (incarnation_ == 0 || reply.incarnation() != incarnation_) return;
      if (reply.code() == wire::FENCED) effects->fenced = true;
      while (first_record_ < reply.records_acked() && !records_.empty()) {
        records_.pop_front();
        ++first_record_;
      }
      return;
    }
    case wire::Header::kView: {
      // Meant for an incarnation; the first view may overtake the join reply.
      if (incarnation_ == 0) return;
      if (view_ != nullptr && message.header.view().number() <= view_->number())
        return;
      absl::StatusOr<std::shared_ptr<const View>> view =
          View::Create(message.header.view());
      if (!view.ok()) {
        effects->failure = view.status();
        return;
      }
      view_ = *view;
      effects->view = view_;
      // Tells the coordinator that we have it. The last view is acknowledged by
      // the caller, together with the last statistics.
      if (view_->proto().state() == wire::RUNNING) SendHeartbeat(now, effects);
      return;
    }
    case wire::Header::kCallReply: {
      const auto call = calls_.find(message.header.call_reply().call_id());
      if (call == calls_.end()) return;
      if (message.header.call_reply().code() == wire::RETRY)
        return;  // Not yet.
      if (message.header.call_reply().code() == wire::FENCED) {
        effects->fenced = true;
        return;
      }
      calls_.erase(call);
      effects->answers.push_back(
          {.call_id = message.header.call_reply().call_id(),
           .reply = message.header.call_reply(),
           .value = message.payloads.empty() ? Payload()
                                             : message.payloads.front()});
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

void MemberCore::OnTick(absl::Time now, Effects* effects) {
  if (!started_) return;
  if (incarnation_ == 0) {
    if (now >= give_up_at_) {
      const std::string waited = absl::FormatDuration(options_.start_timeout);
      effects->failure = absl::DeadlineExceededError(
          join_obstacle_.empty()
              ? absl::StrCat("no coordinator answered at ",
                             options_.coordinator_address, " within ", waited,
                             "; is slackline_server --index=0 of this config "
                             "running there?")
              : absl::StrCat("could not join within ", waited, ": ",
                             join_obstacle_));
      return;
    }
    if (now >= next_join_) SendJoin(now, effects);
    return;
  }
  if (now - heard_ > lease_ * kSilentLeases) {
    effects->failure = absl::UnavailableError(absl::StrCat(
        "the coordinator in server 0 at ", options_.coordinator_address,
        " has been silent for ",
        absl::FormatDuration(absl::Trunc(now - heard_, absl::Milliseconds(1))),
        "; that server died or cannot be reached"));
    return;
  }
  if (now >= next_heartbeat_) SendHeartbeat(now, effects);
  for (auto& [id, call] : calls_) {
    if (now < call.resend_at) continue;
    call.resend_at = now + options_.call_retry;
    effects->sends.push_back(call.message);
  }
}

absl::Time MemberCore::NextWakeup() const {
  if (!started_) return absl::InfiniteFuture();
  if (incarnation_ == 0) return std::min(next_join_, give_up_at_);
  absl::Time next = next_heartbeat_;
  for (const auto& [id, call] : calls_) next = std::min(next, call.resend_at);
  return next;
}

}  // namespace slackline
