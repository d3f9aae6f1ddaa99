#include "tests/sim/long_run.h"

#include <algorithm>

#include "nlohmann/json.hpp"

namespace slackline::sim {

std::optional<LongRun::Chunk> LongRun::Next() {
  Chunk chunk{.first = next_, .seeds = options_.chunk};
  if (options_.seeds > 0) {
    const uint64_t end = options_.first + options_.seeds;
    chunk.seeds = std::min(chunk.seeds, end - std::min(next_, end));
  }
  if (chunk.seeds == 0) return std::nullopt;
  next_ += chunk.seeds;
  return chunk;
}

void LongRun::Done(const Chunk& chunk, const RunCounts& counts) {
  ahead_[chunk.first] = {.seeds = chunk.seeds, .counts = counts};
  while (!ahead_.empty() && ahead_.begin()->first == done_) {
    counts_.Add(ahead_.begin()->second.counts);
    done_ += ahead_.begin()->second.seeds;
    ahead_.erase(ahead_.begin());
  }
}

std::string LongRun::State() const {
  nlohmann::ordered_json state;
  state["what"] = options_.what;
  state["first"] = options_.first;
  state["done_up_to"] = done_;
  state["counts"] = nlohmann::ordered_json::parse(counts_.ToJson());
  return state.dump(1) + "\n";
}

bool LongRun::Resume(const std::string& text) {
  const nlohmann::json state =
      nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  RunCounts counts;
  if (!state.is_object() || !state.contains("counts") ||
      state.value("what", "") != options_.what ||
      state.value("first", uint64_t{0}) != options_.first ||
      state.value("done_up_to", uint64_t{0}) < options_.first ||
      !counts.FromJson(state["counts"].dump())) {
    return false;
  }
  counts_ = counts;
  ahead_.clear();
  next_ = done_ = state.value("done_up_to", uint64_t{0});
  return true;
}

}  // namespace slackline::sim
