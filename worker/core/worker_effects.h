// What comes out of an event of a WorkerCore. A driver carries out everything
// at once but the actions, which it performs in their order.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/membership/member_core.h"
#include "common/message.h"
#include "common/view/shard_map.h"
#include "worker/client/client_core.h"
#include "worker/core/worker_actions.h"

namespace slackline {

struct WorkerEffects {
  std::optional<size_t> look_at;              // As in MemberCore::Effects.
  std::optional<wire::TryLinks> try_links;    // As in MemberCore::Effects.
  std::vector<wire::Inspection> inspections;  // To AnswerInspection().
  std::vector<Message> to_coordinator;
  // A newer view. The driver connects to its servers before it sends what is
  // in to_shards.
  std::shared_ptr<const View> view;
  std::vector<ClientSend> to_shards;
  std::vector<worker_action::Action> actions;
  // Answers to Call()s of the driver.
  std::vector<MemberCore::CallResult> answers;
  std::vector<std::string> log;       // Sentences for people.
  std::vector<std::string> warnings;  // Sentences on what has gone wrong.
  // Parameters of the last Compute that came without them.
  std::vector<TableValues> tables;
  // The answer to AskState().
  PulledParameters state;
  // Everything else that was pulled; the actions carry what the driver needs.
  std::vector<PulledParameters> pulled;
};

}  // namespace slackline
