// ClientReplies: what the answers of a shard thread to pushes, pulls and probes
// do to a worker's links, its routes and the pulls that it waits for. It is
// made for one message.
//
// Deterministic, without I/O, threads or clocks. Thread-compatible.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "common/ids.h"
#include "common/message.h"
#include "worker/client/client_links.h"
#include "worker/client/client_parts.h"
#include "worker/client/pending_pulls.h"
#include "worker/client/push_sequences.h"
#include "worker/client/routes.h"

namespace slackline {

struct ClientReplies {
  const Owner from;
  Routes& routes;
  PushSequences& sequences;
  PendingPulls& pulls;
  ClientLinks& links;
  const ClientParts& parts;

  void OnPushReply(const wire::PushReply& reply) const;
  void OnPullReply(const Message& message) const;
  void OnProbeReply(const wire::ProbeReply& reply) const;

 private:
  // Learns what all refusals of a reply say of moves; moves what waits.
  template <typename Answers>
  void FollowRefusals(const Answers& answers) const;
  // Ends the work of the core for good if the refusal says so; else false.
  bool EndsHere(int32_t shard, const char* what,
                const wire::Refusal& refusal) const;
  // The pushes to the shard up to `seq` are accepted. Whoever calls it drops
  // them from the link to `from`.
  void OnAccepted(int32_t shard, uint64_t seq) const;
  // The values of a shard have come, if the unit wants them. False if they make
  // no sense.
  bool TakeValues(ClientLink& link, PullUnit& unit,
                  const wire::PullAnswer& answer,
                  absl::Span<const Payload> frames, uint64_t view_number) const;
};

}  // namespace slackline
