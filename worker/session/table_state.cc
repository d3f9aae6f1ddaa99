#include "worker/session/table_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/optim/optimizer.h"
#include "common/status.h"
#include "common/sync/modes/mode.h"
#include "common/sync/modes/mode_rule.h"
#include "common/view/shard_map.h"

namespace slackline {
namespace {

// Far above any job, and far below what a shard's version may be.
constexpr int64_t kUpdatesMax = int64_t{1} << 50;

}  // namespace

absl::Status CheckTableStates(absl::Span<const TableState> states,
                              absl::Span<const wire::Table> tables,
                              const config::ClusterConfig& config) {
  if (const ModeRule& rule = RuleOf(ConfiguredMode(config.sync()));
      rule.is_of_whole_job()) {
    return absl::InvalidArgumentError(
        absl::StrCat(rule.whole_job().job,
                     " begins with a new optimizer; leave out one of them"));
  }
  if (states.size() != tables.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the optimizer's state is of ", states.size(), " tables; ",
                     tables.size(), " are required"));
  }
  for (size_t t = 0; t < tables.size(); ++t) {
    const wire::Table& table = tables[t];
    const TableState& state = states[t];
    const auto wrong = [&](const auto&... what) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the optimizer's state of '", table.name(), "' ", what...));
    };
    if (table.initializer().kind() != wire::Initializer::OF_WORKER)
      return wrong("has no use: the table begins with its initializer");
    SL_ASSIGN_OR_RETURN(
        const Optimizer optimizer,
        Optimizer::Create(table.has_optimizer() ? table.optimizer()
                                                : config.optimizer()));
    if (state.updates < 0 || state.updates > kUpdatesMax) {
      return wrong("is of ", state.updates, " updates; 0 to ", kUpdatesMax,
                   " is required");
    }
    const auto slots = static_cast<size_t>(optimizer.slot_count());
    if (state.slots.size() != slots) {
      return wrong("has ", state.slots.size(), " tensors; ", slots,
                   " are required");
    }
    const size_t bytes =
        static_cast<size_t>(TableElements(table)) * sizeof(float);
    for (const Payload& slot : state.slots) {
      if (slot.size() != bytes) {
        return wrong("has a tensor of ", slot.size(), " bytes; ", bytes,
                     " are required");
      }
    }
  }
  return absl::OkStatus();
}

std::vector<TableState> TableStatesOf(const PullResult& pulled) {
  const View& view = *pulled.view;
  std::vector<TableState> states;
  for (int32_t t = 0; t < view.proto().table_size(); ++t) {
    TableState& state = states.emplace_back();
    const size_t bytes =
        static_cast<size_t>(TableElements(view.table(TableId{t}))) *
        sizeof(float);
    size_t at = 0;
    for (const ShardRange& range : view.ShardsOf(TableId{t})) {
      const ShardValue& shard = pulled.shards[static_cast<size_t>(range.shard)];
      state.updates =
          std::max(state.updates, static_cast<int64_t>(shard.version));
      for (size_t s = 0; s < shard.slots.size(); ++s) {
        if (at == 0) state.slots.push_back(Payload::Allocate(bytes));
        std::memcpy(state.slots[s].MutableData() + at, shard.slots[s].data(),
                    shard.slots[s].size());
      }
      at += shard.values.size();
    }
  }
  return states;
}

}  // namespace slackline
