#include "worker/core/worker_parts.h"

#include <iterator>

#include "worker/core/conclusion.h"

namespace slackline {

bool WorkerParts::IsChief() const {
  return slackline::IsChief(view(), member.incarnation());
}

void WorkerParts::Enter(WorkerStage next) const {
  state = next;
  patience.CameFurther(now);
}

uint64_t WorkerParts::Call(wire::Call call) const {
  MemberCore::Effects sent;
  const uint64_t id = member.Call(std::move(call), Payload(), now, &sent);
  std::move(sent.sends.begin(), sent.sends.end(),
            std::back_inserter(effects.to_coordinator));
  return id;
}

void WorkerParts::Notify(wire::Call call) const {
  notices.OnSent(Call(std::move(call)));
}

void WorkerParts::SendHeartbeat(const run::WorkerStats& stats) const {
  MemberCore::Effects sent;
  member.SetStats(stats);
  member.SendHeartbeat(now, &sent);
  std::move(sent.sends.begin(), sent.sends.end(),
            std::back_inserter(effects.to_coordinator));
}

void WorkerParts::Send(const ClientCore& client,
                       ClientCore::Effects sent) const {
  std::move(sent.sends.begin(), sent.sends.end(),
            std::back_inserter(effects.to_shards));
  patience.SawBytes(client.bytes_pulled() + client.unacknowledged_bytes(),
                    /*has_pulled=*/false, now);
}

}  // namespace slackline
