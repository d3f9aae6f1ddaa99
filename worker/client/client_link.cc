#include "worker/client/client_link.h"

#include <algorithm>
#include <optional>

namespace slackline {

ClientLink::ClientLink(Owner to, bool by_socket, const ClientOptions& options)
    : to_(to),
      round_trip_({.timeout_min = options.retry_initial,
                   .timeout_max = options.retry_max}),
      message_size_({.bytes_min = options.message_bytes,
                     .bytes_max = by_socket
                                      ? std::max(options.message_bytes,
                                                 options.socket_message_bytes)
                                      : options.message_bytes,
                     .time = options.socket_message_time}),
      pushes_(to, options),
      pulls_(to) {}

absl::Time ClientLink::NextWakeup() const {
  return std::min(
      {pushes_.NextWakeup(), pulls_.NextWakeup(), probe_.NextWakeup()});
}

void ClientLink::Pump(const ClientParts& parts) {
  pushes_.Repair(/*trial=*/false, parts);
  while (std::optional<PushUnit> unit = pushes_.TakeNext()) {
    pulls_.QueueBehind(&*unit, parts);
    pushes_.SendFirst(*std::move(unit), parts);
    pulls_.SendWhatFits(round_trip_, parts);
  }
  pulls_.SendWhatFits(round_trip_, parts);
  pushes_.SetTimers(round_trip_, probe_.under_way(), parts);
}

void ClientLink::OnTick(const ClientParts& parts) {
  bool in_doubt = pulls_.OnTick(round_trip_, parts);
  in_doubt |= pushes_.OnTick(parts);
  if (probe_.OnTick(parts.now) || (in_doubt && !probe_.under_way()))
    SendProbe(parts);
  pushes_.SetTimers(round_trip_, probe_.under_way(), parts);
}

void ClientLink::SendProbe(const ClientParts& parts) {
  std::set<int32_t> shards;
  pushes_.AddShardsInDoubt(parts.options.probe_shards_max, parts.sequences,
                           &shards);
  // Any shard will do for pulls: what counts is when the reply comes.
  const int32_t* const pulled = pulls_.ShardInDoubt();
  if (shards.empty() && pulled != nullptr) shards.insert(*pulled);
  probe_.End();
  if (shards.empty()) return;
  const uint64_t number = parts.numbers.Next();
  probe_.Begin(number, round_trip_, parts.now);
  ClientSend send = parts.NewSend(to_);
  wire::ProbeRequest& probe = *send.message.header.mutable_probe_request();
  probe.set_request_id(number);
  for (const int32_t shard : shards) probe.add_shard(shard);
  parts.effects.sends.push_back(std::move(send));
}

void ClientLink::OnPushReply(uint64_t request_id, const ClientParts& parts) {
  const PushUnit* const unit = pushes_.OnReply(request_id);
  if (unit == nullptr) return;
  const absl::Duration took = parts.now - unit->sent;
  round_trip_.Add(took);
  message_size_.Add(unit->under_way, took);
  parts.counts.Answered(to_.server, took);
}

void ClientLink::OnPushReplyEnd(uint64_t request_id, const ClientParts& parts) {
  pushes_.OnReplyEnd(request_id, parts.sequences);
  DropAccepted(parts);
  if (pushes_.HasOvertaken(request_id, probe_.last())) SendProbe(parts);
  Pump(parts);
}

void ClientLink::OnPullReplyEnd(const ClientParts& parts) {
  DropAccepted(parts);
  pulls_.DropAnswered();
  Pump(parts);
}

void ClientLink::OnProbeReply(uint64_t probe, const std::set<int32_t>& answered,
                              const ClientParts& parts) {
  if (!probe_.OnReply(probe, round_trip_, parts.now)) return;
  pushes_.OnProbeReply(probe, answered, parts);
  const bool in_doubt = pulls_.OnProbeReply(probe, round_trip_, parts);
  Pump(parts);
  if (in_doubt && !probe_.under_way()) SendProbe(parts);
}

void ClientLink::OnNewView(absl::Time soon) {
  pushes_.OnNewView(soon);
  pulls_.OnNewView(soon);
}

void ClientLink::TakeStrays(const ClientParts& parts, StraysByOwner* strays) {
  pushes_.TakeStrays(parts, strays);
  pulls_.TakeStrays(parts, strays);
}

void ClientLink::AddStrays(Strays strays) {
  for (PushUnit& unit : strays.pushes) pushes_.Queue(std::move(unit));
  pulls_.QueueFirst(std::move(strays.pulls));
}

void ClientLink::Split(const ShardSplit& split, ClientCounts& counts) {
  pushes_.Split(split, counts);
  pulls_.Split(split);
}

}  // namespace slackline
