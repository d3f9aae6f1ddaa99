#include "common/delays/delay_plan.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace slackline {
namespace {

constexpr int64_t kUnknown = -1;

template <typename... Parts>
absl::Status Unfit(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const DelayPlan>> DelayPlan::Create(
    DelayTrace trace, int workers, Clock first, Clock steps) {
  if (trace.workers != workers) {
    return Unfit("the delays are those of ", trace.workers,
                 " workers, the job has ", workers, "; give it as many");
  }
  if (trace.first != first) {
    return Unfit("the delays begin at clock ", trace.first,
                 ", the job's steps over servers at clock ", first,
                 "; the tables of one of them begin with a worker's values, "
                 "and those of the other do not");
  }
  const auto shards = static_cast<int64_t>(trace.shards.size());
  if (steps > kGradientsMax / workers / std::max<int64_t>(1, shards)) {
    return Unfit("the job has ", steps, " steps of ", workers, " workers",
                 shards > 1
                     ? absl::StrCat(", and the recording ", shards, " shards")
                     : "",
                 "; with given delays at most ", kGradientsMax,
                 " gradients are allowed, lower train { max_steps: ... }",
                 shards > 1 ? " or raise limits { shard_kib: ... }" : "");
  }
  const bool by_name = trace.any_model;
  std::shared_ptr<DelayPlan> plan(new DelayPlan(std::move(trace), steps));
  plan->index_.resize(plan->trace_.shards.size());
  for (size_t shard = 0; shard < plan->index_.size(); ++shard)
    SL_RETURN_IF_ERROR(plan->MakeIndex(shard));
  if (!by_name) SL_RETURN_IF_ERROR(plan->CheckFeasible());
  return plan;
}

absl::Status DelayPlan::MakeIndex(size_t shard) {
  const DelayTrace::Shard& trace = trace_.shards[shard];
  Index& index = index_[shard];
  const Clock first = trace_.first;
  const auto gradients =
      static_cast<size_t>(std::max<Clock>(0, steps_ - first) * trace_.workers);
  index.turns_before.assign(gradients, kUnknown);
  index.uses.assign(gradients, false);
  const auto fits = [&](int32_t rank, Clock clock) {
    return rank >= 0 && rank < trace_.workers && clock >= first;
  };
  const auto place = [&](int32_t rank, Clock clock) {
    return absl::StrCat("shard ", shard,
                        " of the delays has a gradient of rank ", rank,
                        " and clock ", clock);
  };
  const auto turns = static_cast<int64_t>(trace.updates.size());
  for (const DelayTrace::Read& read : trace.reads) {
    if (!fits(read.rank, read.clock) || read.version < 0 ||
        read.version > turns) {
      return Unfit(place(read.rank, read.clock), ", computed from version ",
                   read.version, "; it has ", turns, " updates of ",
                   trace_.workers, " workers");
    }
    if (read.clock >= steps_) {
      return Unfit(place(read.rank, read.clock), "; the job has ", steps_,
                   " steps; give it as many as were recorded");
    }
    int64_t& before = index.turns_before[GradientId(read.rank, read.clock)];
    if (before != kUnknown)
      return Unfit(place(read.rank, read.clock), " twice");
    before = read.version;
    index.readers.push_back(
        {.turns = read.version, .rank = read.rank, .clock = read.clock});
  }
  for (size_t id = 0; id < gradients; ++id) {
    if (index.turns_before[id] != kUnknown) continue;
    return Unfit("shard ", shard, " of the delays has no gradient of rank ",
                 id % trace_.workers, " and clock ",
                 first + static_cast<Clock>(id) / trace_.workers, "; a job of ",
                 steps_,
                 " steps needs one of every worker and "
                 "step: the recorded run had another number of steps, or its "
                 "worker skipped some, came late or was lost");
  }
  for (const DelayTrace::Update& update : trace.updates) {
    for (const int32_t rank : update.ranks) {
      if (!fits(rank, update.clock) || update.clock >= steps_ ||
          index.uses[GradientId(rank, update.clock)]) {
        return Unfit("shard ", shard, " of the delays has an update of rank ",
                     rank, " and clock ", update.clock,
                     ", whose gradient is used already or is not there");
      }
      index.uses[GradientId(rank, update.clock)] = true;
    }
    if (update.ranks.empty() || update.workers < 1) {
      return Unfit("shard ", shard, " of the delays has an update of ",
                   update.ranks.size(), " gradients, divided by ",
                   update.workers, " workers; at least 1 of both is required");
    }
  }
  index.complete = CompleteClocks(trace_, trace);
  std::sort(index.readers.begin(), index.readers.end(),
            [](const Reader& a, const Reader& b) {
              return std::tie(a.turns, a.clock, a.rank) <
                     std::tie(b.turns, b.clock, b.rank);
            });
  return absl::OkStatus();
}

absl::Status DelayPlan::CheckFeasible() const {
  std::vector<int64_t> turns(trace_.shards.size(), 0);
  std::vector<Clock> computed(static_cast<size_t>(trace_.workers),
                              trace_.first);
  const auto compute = [&](int32_t rank) {
    Clock& clock = computed[static_cast<size_t>(rank)];
    const Clock before = clock;
    const auto there = [&] {
      for (size_t shard = 0; shard < turns.size(); ++shard) {
        if (index_[shard].turns_before[GradientId(rank, clock)] > turns[shard])
          return false;
      }
      return true;
    };
    while (clock < steps_ && there()) ++clock;
    return clock != before;
  };
  const auto apply = [&](size_t shard) {
    const std::vector<DelayTrace::Update>& updates =
        trace_.shards[shard].updates;
    const int64_t before = turns[shard];
    const auto there = [&](const DelayTrace::Update& update) {
      return std::all_of(
          update.ranks.begin(), update.ranks.end(), [&](int32_t rank) {
            return computed[static_cast<size_t>(rank)] > update.clock;
          });
    };
    while (turns[shard] < static_cast<int64_t>(updates.size()) &&
           there(updates[static_cast<size_t>(turns[shard])])) {
      ++turns[shard];
    }
    return turns[shard] != before;
  };
  bool progress = true;
  while (progress) {
    progress = false;
    for (int32_t rank = 0; rank < trace_.workers; ++rank)
      progress = compute(rank) || progress;
    for (size_t shard = 0; shard < turns.size(); ++shard)
      progress = apply(shard) || progress;
  }
  for (int32_t rank = 0; rank < trace_.workers; ++rank) {
    if (computed[static_cast<size_t>(rank)] == steps_) continue;
    return Unfit("the delays contradict themselves: rank ", rank,
                 " would wait for ever at clock ",
                 computed[static_cast<size_t>(rank)]);
  }
  return absl::OkStatus();
}

bool DelayPlan::Has(ShardId shard) const {
  const auto number = static_cast<int64_t>(shard);
  return number >= 0 && (trace_.any_model ||
                         number < static_cast<int64_t>(trace_.shards.size()));
}

absl::Status DelayPlan::CheckShards(int shards) const {
  if (trace_.any_model || static_cast<int>(trace_.shards.size()) == shards)
    return absl::OkStatus();
  return Unfit("the delays were recorded with ", trace_.shards.size(),
               " shards, and the job's model has ", shards,
               "; take the same model and limits.shard_kib, and a recording "
               "without splits of shards");
}

int64_t DelayPlan::kept_versions_max() const {
  int64_t most = 0;
  for (size_t shard = 0; shard < index_.size(); ++shard) {
    const Index& index = index_[shard];
    const std::vector<DelayTrace::Update>& updates =
        trace_.shards[shard].updates;
    // When each version is needed last: its readers' gradients are there at
    // their turns at the latest. One that is in no turn may come at any time.
    std::vector<int64_t> turn_of(index.turns_before.size(),
                                 static_cast<int64_t>(updates.size()));
    for (size_t turn = 0; turn < updates.size(); ++turn) {
      for (const int32_t rank : updates[turn].ranks) {
        turn_of[GradientId(rank, updates[turn].clock)] =
            static_cast<int64_t>(turn);
      }
    }
    // By turn: versions that begin to be kept there, less those that end.
    std::vector<int64_t> change(updates.size() + 2, 0);
    for (size_t i = 0; i < index.readers.size();) {
      const int64_t version = index.readers[i].turns;
      int64_t last = version;
      for (; i < index.readers.size() && index.readers[i].turns == version; ++i)
        last = std::max(
            last,
            turn_of[GradientId(index.readers[i].rank, index.readers[i].clock)]);
      // It is the present one until the turn after it is taken.
      if (last <= version) continue;
      ++change[static_cast<size_t>(version) + 1];
      --change[static_cast<size_t>(last) + 1];
    }
    int64_t kept = 0;
    for (const int64_t difference : change) {
      kept += difference;
      most = std::max(most, kept);
    }
  }
  return most;
}

std::vector<Clock> DelayPlan::CutAt(const std::vector<Clock>& at_least) const {
  SL_CHECK(at_least.size() == static_cast<size_t>(trace_.workers),
           "a cut of another number of workers");
  std::vector<Clock> clocks;
  for (const Clock clock : at_least)
    clocks.push_back(std::min(std::max(clock, trace_.first), steps_));
  // Gradients before these clocks have been looked at, and these turns.
  std::vector<Clock> looked(clocks.size(), trace_.first);
  std::vector<int64_t> turns(trace_.shards.size(), 0);
  const auto look_at = [&](size_t gradient) {
    for (size_t shard = 0; shard < turns.size(); ++shard) {
      const int64_t before = index_[shard].turns_before[gradient];
      for (int64_t& turn = turns[shard]; turn < before; ++turn) {
        const DelayTrace::Update& update =
            trace_.shards[shard].updates[static_cast<size_t>(turn)];
        for (const int32_t rank : update.ranks) {
          Clock& clock = clocks[static_cast<size_t>(rank)];
          clock = std::max(clock, update.clock + 1);
        }
      }
    }
  };
  bool grows = true;
  while (grows) {
    grows = false;
    for (int32_t rank = 0; rank < trace_.workers; ++rank) {
      Clock& clock = looked[static_cast<size_t>(rank)];
      for (; clock < clocks[static_cast<size_t>(rank)]; ++clock, grows = true)
        look_at(GradientId(rank, clock));
    }
  }
  return clocks;
}

DelayPlan::OfShard::OfShard(const DelayPlan* plan, size_t index)
    : plan_(plan), shard_(&plan->trace_.shards[index]), index_(index) {}

DelayPlan::OfShard DelayPlan::Of(ShardId shard) const {
  return {this, static_cast<size_t>(TracedAs(shard))};
}

int64_t DelayPlan::OfShard::TurnsBefore(int32_t rank, Clock clock) const {
  if (clock >= plan_->steps_) return turn_count();
  return plan_->index_[index_].turns_before[plan_->GradientId(rank, clock)];
}

Clock DelayPlan::OfShard::CompleteFor(int32_t rank, Clock clock) const {
  return plan_->index_[index_]
      .complete[static_cast<size_t>(TurnsBefore(rank, clock))];
}

bool DelayPlan::OfShard::Uses(int32_t rank, Clock clock) const {
  return clock < plan_->steps_ &&
         plan_->index_[index_].uses[plan_->GradientId(rank, clock)];
}

absl::Span<const DelayPlan::Reader> DelayPlan::OfShard::ReadersAfter(
    int64_t turns) const {
  const std::vector<Reader>& readers = plan_->index_[index_].readers;
  const auto range = std::equal_range(
      readers.begin(), readers.end(), Reader{.turns = turns},
      [](const Reader& a, const Reader& b) { return a.turns < b.turns; });
  return absl::MakeConstSpan(readers).subspan(
      static_cast<size_t>(range.first - readers.begin()),
      static_cast<size_t>(range.second - range.first));
}

absl::Span<const DelayPlan::Reader> DelayPlan::OfShard::ReadersBefore(
    int64_t turns) const {
  const std::vector<Reader>& readers = plan_->index_[index_].readers;
  const auto end = std::lower_bound(
      readers.begin(), readers.end(), Reader{.turns = turns},
      [](const Reader& a, const Reader& b) { return a.turns < b.turns; });
  return absl::MakeConstSpan(readers).first(
      static_cast<size_t>(end - readers.begin()));
}

}  // namespace slackline
