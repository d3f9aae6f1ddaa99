#include "server/coordinator/rebalancer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/metrics/server_stats.h"
#include "common/status.h"
#include "common/view/shard_bytes.h"
#include "server/coordinator/planner.h"

namespace slackline {
namespace {

constexpr size_t kLastMovesMax = 1000;
constexpr size_t kPausesMax = 100000;

std::string KeyOf(int32_t shard) {
  return NumberedKey("move", static_cast<uint64_t>(shard));
}

std::string ThreadName(Owner owner) {
  return absl::StrCat("server ", owner.server, " thread ", owner.thread);
}

const run::ThreadLoad* LoadOf(const Rebalancer::Server& server, int thread) {
  for (const run::ThreadLoad& load : server.stats->thread()) {
    if (load.thread() == thread) return &load;
  }
  return nullptr;
}

constexpr absl::Duration kObserveEvery = absl::Milliseconds(400);
// A thread that was relieved because it is slow has too little to do to show
// that it still is. So it is believed to be slow at once, and fast only slowly:
// else its load would go to and fro.
constexpr absl::Duration kSlowsWithin = absl::Seconds(1);
constexpr absl::Duration kRecoversWithin = absl::Minutes(5);

// Smaller differences in speed are noise.
constexpr double kSameSpeed = 1.35;

// What the planner is told of a thread.
struct ThreadSpeed {
  // Factor from seconds of this thread's work to seconds of the reference: of
  // the thread that works the fastest, with messages as full as its own are.
  double to_reference = 1;
  // Work that it does in a second, relative to the median.
  double capacity = 1;
};

// A thread with much to do finds more in each message and each waking, and so
// does more work per second than one with little. This says nothing about their
// machines. So a thread counts as slow only if it does less than the median
// although it has more to do than the mean, and as fast only if it does more
// although it has less to do.
std::vector<ThreadSpeed> SpeedsOf(
    const std::vector<Rebalancer::Server>& servers) {
  struct Load {
    double utilisation = 0;
    double speed = 0;  // Not known.
  };
  std::vector<Load> loads;
  std::vector<double> known;
  double sum = 0;
  for (const Rebalancer::Server& server : servers) {
    const double factor = IoFactor(*server.stats);
    for (int t = 0; t < server.threads; ++t) {
      Load& load = loads.emplace_back();
      const run::ThreadLoad* const measured = LoadOf(server, t);
      if (measured == nullptr) continue;
      load.utilisation = measured->utilisation() * factor;
      load.speed = measured->bytes_per_busy_second() / factor;
      sum += load.utilisation;
      if (load.speed > 0) known.push_back(load.speed);
    }
  }
  std::vector<ThreadSpeed> speeds(loads.size());
  if (known.empty()) return speeds;
  const double mean = sum / static_cast<double>(loads.size());
  std::sort(known.begin(), known.end());
  const double median = known[known.size() / 2];
  for (size_t i = 0; i < loads.size(); ++i) {
    if (loads[i].speed <= 0) continue;
    speeds[i].to_reference = loads[i].speed / known.back();
    const double relative = loads[i].speed / median;
    const bool busy = loads[i].utilisation >= mean;
    if (busy ? relative < 1 / kSameSpeed : relative > kSameSpeed) {
      speeds[i].capacity = relative;
    }
  }
  return speeds;
}

// Who has a copy of the shard on this server; nullptr: nobody.
const wire::Follower* FollowerOn(const View& view, ShardId shard,
                                 int32_t server) {
  for (const wire::Follower& follower : view.FollowersOf(shard)) {
    if (follower.server() == server) return &follower;
  }
  return nullptr;
}

}  // namespace

run::PlannedMove Rebalancer::Describe(const View& view, ShardId shard,
                                      Owner to) const {
  const Owner from = view.OwnerOf(shard);
  run::PlannedMove move;
  move.set_shard(static_cast<int32_t>(shard));
  move.set_name(view.ShardName(shard));
  move.set_from_server(from.server);
  move.set_from_thread(from.thread);
  move.set_to_server(to.server);
  move.set_to_thread(to.thread);
  move.set_bytes(BytesOf(view, shard));
  return move;
}

bool Rebalancer::ObserveDue(absl::Time now) const {
  return now - observed_ >= kObserveEvery;
}

void Rebalancer::Observe(const std::vector<Server>& servers, absl::Time now) {
  if (!ObserveDue(now)) return;
  const absl::Duration passed =
      observed_ == absl::InfinitePast() ? kObserveEvery : now - observed_;
  observed_ = now;
  const std::vector<ThreadSpeed> speeds = SpeedsOf(servers);
  size_t i = 0;
  for (const Server& server : servers) {
    for (int t = 0; t < server.threads; ++t) {
      const double measured = speeds[i++].capacity;
      double& capacity =
          capacities_.try_emplace({server.index, t}, 1).first->second;
      const absl::Duration inertia =
          measured < capacity ? kSlowsWithin : kRecoversWithin;
      capacity += (measured - capacity) *
                  (1 - std::exp(-absl::FDivDuration(passed, inertia)));
    }
  }
}

struct Rebalancer::Measured {
  std::vector<PlannerThread> threads;
  std::vector<PlannerShard> shards;
  // Of each shard and each thread, as people are told them: of the thread's own
  // time, not of the reference's.
  std::vector<double> busy;
  std::vector<double> utilisation;
};

absl::StatusOr<Rebalancer::Measured> Rebalancer::Measure(
    const View& view, const std::vector<Server>& servers,
    absl::Time now) const {
  Measured measured;
  auto& [threads, shards, busy, utilisation] = measured;
  std::map<Owner, int> index_of;
  const std::vector<ThreadSpeed> speeds = SpeedsOf(servers);
  for (const Server& server : servers) {
    for (int t = 0; t < server.threads; ++t) {
      if (LoadOf(server, t) == nullptr) {
        return absl::UnavailableError(absl::StrCat(
            "server ", server.index,
            " has not said yet how loaded it is; try again in a second"));
      }
      const Owner owner{server.index, t};
      index_of[owner] = static_cast<int>(threads.size());
      threads.push_back({.owner = owner,
                         .capacity = CapacityOf(owner),
                         .accepts = !server.draining});
    }
  }
  shards.resize(static_cast<size_t>(view.shard_count()));
  for (int32_t id = 0; id < view.shard_count(); ++id) {
    const ShardId shard{id};
    PlannerShard& planned = shards[static_cast<size_t>(id)];
    planned.shard = shard;
    planned.thread = index_of.at(view.OwnerOf(shard));
    planned.bytes = BytesOf(view, shard);
    planned.region = view.shard(shard).region;
    const auto moved = moved_at_.find(id);
    const bool rests =
        moved != moved_at_.end() &&
        now - moved->second < absl::Milliseconds(options_.config.rest_ms());
    planned.pinned =
        ordered_.count(id) > 0 || (rests && threads[planned.thread].accepts);
  }
  for (const run::PlannedMove& move : wanted_) {
    shards[static_cast<size_t>(move.shard())].pinned = true;
  }
  busy.resize(shards.size(), 0);
  utilisation.resize(threads.size(), 0);
  for (const Server& server : servers) {
    const double factor = IoFactor(*server.stats);
    for (const run::ThreadLoad& load : server.stats->thread()) {
      const auto at = index_of.find({server.index, load.thread()});
      if (at == index_of.end()) continue;
      for (const run::ShardLoad& shard : load.shard()) {
        if (!view.HasShard(shard.shard())) continue;
        PlannerShard& planned = shards[static_cast<size_t>(shard.shard())];
        if (planned.thread != at->second) {
          const Owner here = threads[at->second].owner;
          const wire::Follower* const follower =
              FollowerOn(view, ShardId{shard.shard()}, here.server);
          if (follower == nullptr || follower->thread() != here.thread)
            continue;  // Its new owner tells.
          // The copy stays, wherever the shard goes.
          utilisation[at->second] += shard.busy() * factor;
          threads[at->second].background +=
              shard.busy() * factor * speeds[at->second].to_reference;
          continue;
        }
        busy[static_cast<size_t>(shard.shard())] = shard.busy() * factor;
        utilisation[static_cast<size_t>(at->second)] += shard.busy() * factor;
        planned.demand =
            shard.busy() * factor * speeds[at->second].to_reference;
      }
    }
  }
  return measured;
}

absl::StatusOr<run::Plan> Rebalancer::Plan(const View& view,
                                           const std::vector<Server>& servers,
                                           Aim aim, absl::Time now) const {
  SL_ASSIGN_OR_RETURN(const Measured measured, Measure(view, servers, now));
  const config::Rebalance& config = options_.config;
  PlannerOptions options;
  options.target = config.target();
  options.threshold = config.threshold();
  options.min_utilisation = config.min_utilisation();
  if (aim == Aim::kDrainOnly) {
    options.threshold = std::numeric_limits<double>::infinity();
  } else if (aim == Aim::kFill) {
    options.threshold = options.target;
    options.min_utilisation = 0;
  }
  options.bytes_max = int64_t{config.budget_mib()} << 20;
  options.moves_max = config.moves_max();
  options.split_elements_min = options_.split_elements_min;
  return PlanOf(
      slackline::PlanMoves(measured.threads, measured.shards, options),
      measured, view);
}

run::Plan Rebalancer::PlanOf(const PlannerResult& result,
                             const Measured& measured, const View& view) const {
  const auto& [threads, shards, busy, utilisation] = measured;
  std::vector<double> reference;
  for (const PlannerThread& thread : threads)
    reference.push_back(thread.background / thread.capacity);
  for (const PlannerShard& shard : shards) {
    reference[static_cast<size_t>(shard.thread)] +=
        shard.demand / threads[static_cast<size_t>(shard.thread)].capacity;
  }
  const auto worst =
      std::max_element(reference.begin(), reference.end()) - reference.begin();
  const double to_own =
      reference[worst] > 0 ? utilisation[worst] / reference[worst] : 1;
  run::Plan plan;
  plan.set_worst_before(result.worst_before * to_own);
  plan.set_mean(result.mean * to_own);
  plan.set_worst_after(result.worst_after * to_own);
  plan.set_bytes(result.bytes);
  plan.set_summary(result.summary);
  // Parts of a shard that is to be split: what they are of it.
  struct Part {
    int32_t origin = 0;
    Region region;
  };
  std::map<int32_t, Part> parts;
  const auto part_of = [&](int32_t id) {
    const auto found = parts.find(id);
    if (found != parts.end()) return found->second;
    return Part{.origin = id, .region = view.shard(ShardId{id}).region};
  };
  for (const PlannerSplit& split : result.splits) {
    const int32_t kept = static_cast<int32_t>(split.shard);
    run::PlannedSplit& message = *plan.add_split();
    message.set_shard(kept);
    message.set_new_shard(static_cast<int32_t>(split.new_shard));
    message.set_at(split.at);
    message.set_reason("alone it is more than a fair share of a thread");
    Part first = part_of(kept);
    Part rest = first;
    std::tie(first.region, rest.region) = first.region.SplitAt(split.at);
    parts[kept] = first;
    parts[static_cast<int32_t>(split.new_shard)] = rest;
  }
  for (const PlannerMove& move : result.moves) {
    const int32_t id = static_cast<int32_t>(move.shard);
    const Part part = part_of(id);
    const PlannerShard& whole = shards[static_cast<size_t>(part.origin)];
    run::PlannedMove& message = *plan.add_move();
    Owner to = threads[move.to].owner;
    if (const wire::Follower* const follower =
            FollowerOn(view, ShardId{part.origin}, to.server)) {
      to.thread = follower->thread();
    }
    message = Describe(view, ShardId{part.origin}, to);
    message.set_shard(id);
    const double share = static_cast<double>(part.region.size()) /
                         static_cast<double>(whole.region.size());
    if (parts.count(id) > 0) {
      const ShardRange& range = view.shard(ShardId{part.origin});
      message.set_name(
          absl::StrCat(view.table(range.table).name(), part.region.Text()));
      message.set_bytes(StateBytes(view, range.table, part.region));
    }
    message.set_load(share * busy[static_cast<size_t>(part.origin)]);
    switch (move.reason) {
      case PlannerMove::Reason::kDrained:
        message.set_reason(absl::StrCat(
            "server ", threads[move.from].owner.server, " is drained"));
        break;
      case PlannerMove::Reason::kMakesRoom:
        message.set_reason("makes room for a shard with more load");
        break;
      case PlannerMove::Reason::kOverloaded:
        message.set_reason(absl::StrFormat(
            "%s is busy %.0f %% of its time, %s %.0f %%",
            ThreadName(threads[move.from].owner), 100 * utilisation[move.from],
            ThreadName(threads[move.to].owner), 100 * utilisation[move.to]));
        break;
    }
  }
  return plan;
}

absl::StatusOr<run::Plan> Rebalancer::PlanMoves(
    const View& view, const std::vector<Server>& servers,
    const std::vector<int32_t>& shards, int32_t server, int32_t thread) const {
  const auto target =
      std::find_if(servers.begin(), servers.end(),
                   [&](const Server& entry) { return entry.index == server; });
  if (target == servers.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the job has no server ", server));
  }
  if (target->draining) {
    return absl::InvalidArgumentError(
        absl::StrCat("server ", server, " is being drained"));
  }
  if (thread < -1 || thread >= target->threads) {
    return absl::InvalidArgumentError(
        absl::StrCat("server ", server, " has no thread ", thread, "; it has ",
                     target->threads));
  }
  std::map<int, int64_t> bytes_on;  // By thread of the target.
  for (int t = 0; t < target->threads; ++t) bytes_on[t] = 0;
  for (int32_t id = 0; id < view.shard_count(); ++id) {
    const Owner owner = view.OwnerOf(ShardId{id});
    if (owner.server == server) {
      bytes_on[owner.thread] += BytesOf(view, ShardId{id});
    }
  }
  run::Plan plan;
  std::set<int32_t> seen, wanted;
  for (const run::PlannedMove& move : wanted_) wanted.insert(move.shard());
  for (const int32_t id : shards) {
    if (!view.HasShard(id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no shard ", id, "; the job has shards 0 to ",
                       view.shard_count() - 1));
    }
    if (!seen.insert(id).second) continue;
    if (wanted.count(id) > 0 || ordered_.count(id) > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("shard ", id, " (", view.ShardName(ShardId{id}),
                       ") is on its way already"));
    }
    Owner to{server, thread};
    const wire::Follower* const follower =
        FollowerOn(view, ShardId{id}, server);
    if (follower != nullptr && thread >= 0 && thread != follower->thread()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "thread ", follower->thread(), " of server ", server,
          " has a copy of shard ", id, " (", view.ShardName(ShardId{id}),
          "), so the shard cannot go to thread ", thread,
          " there; leave the thread out"));
    }
    if (follower != nullptr) {
      to.thread = follower->thread();
    } else if (thread < 0) {
      to.thread = std::min_element(bytes_on.begin(), bytes_on.end(),
                                   [](const auto& a, const auto& b) {
                                     return a.second < b.second;
                                   })
                      ->first;
    }
    const Owner from = view.OwnerOf(ShardId{id});
    if (from == to || (thread < 0 && from.server == server)) continue;
    bytes_on[to.thread] += BytesOf(view, ShardId{id});
    run::PlannedMove& move = *plan.add_move();
    move = Describe(view, ShardId{id}, to);
    move.set_reason("a user asked for it");
    plan.set_bytes(plan.bytes() + move.bytes());
  }
  plan.set_summary(
      plan.move_size() == 0
          ? absl::StrCat("all of it is on server ", server, " already")
          : absl::StrCat(plan.move_size(), " shards to server ", server));
  return plan;
}

void Rebalancer::Adopt(const run::Plan& plan, ViewEditor* editor) {
  for (const run::PlannedSplit& planned : plan.split())
    editor->Split(planned.shard(), planned.at());
  for (const run::PlannedMove& move : plan.move()) {
    changed_.insert(move.shard());
    wanted_.push_back(move);
  }
}

void Rebalancer::Order(ViewEditor* editor) {
  std::map<int32_t, int> busy;  // Moves in or out, by server.
  for (const auto& [shard, ordered] : ordered_) {
    const run::PlannedMove& move = ordered.move;
    ++busy[move.from_server()];
    if (move.to_server() != move.from_server()) ++busy[move.to_server()];
  }
  const int most = options_.config.concurrent_moves();
  for (auto at = wanted_.begin(); at != wanted_.end();) {
    const auto followers = editor->FollowersOf(at->shard());
    const bool all_in_sync =
        std::all_of(followers.begin(), followers.end(),
                    [](const wire::Follower* f) { return f->in_sync(); });
    if (busy[at->from_server()] >= most || busy[at->to_server()] >= most ||
        !all_in_sync) {
      ++at;
      continue;
    }
    if (const wire::Follower* const target =
            editor->FindFollower(at->shard(), at->to_server())) {
      at->set_to_thread(target->thread());
    }
    ++busy[at->from_server()];
    if (at->to_server() != at->from_server()) ++busy[at->to_server()];
    editor->OrderMove(at->shard(),
                      {.server = at->to_server(), .thread = at->to_thread()});
    changed_.insert(at->shard());
    ordered_[at->shard()] = {.move = *at, .id = editor->next_number()};
    at = wanted_.erase(at);
  }
}

bool Rebalancer::Done(const run::HandOverState& state, double seconds,
                      absl::Time now, ViewEditor* editor,
                      run::MoveRecord* record) {
  const wire::Move* const listed = editor->FindMove(state.shard());
  if (listed == nullptr || listed->id() != state.move()) return false;
  editor->FinishMove(state.shard());
  const run::PlannedMove planned = ordered_.at(state.shard()).move;
  changed_.insert(state.shard());
  ordered_.erase(state.shard());
  moved_at_[state.shard()] = now;

  record->set_seconds(seconds);
  record->set_shard(planned.shard());
  record->set_name(planned.name());
  record->set_from_server(planned.from_server());
  record->set_from_thread(planned.from_thread());
  record->set_to_server(planned.to_server());
  record->set_to_thread(planned.to_thread());
  record->set_shard_bytes(planned.bytes());
  record->set_bytes(state.bytes());
  record->set_copy_micros(state.copy_micros());
  record->set_pause_micros(state.pause_micros());
  record->set_reason(planned.reason());
  if (last_moves_.size() == kLastMovesMax) last_moves_.pop_front();
  last_moves_.push_back(*record);
  ++shards_moved_;
  bytes_moved_ += static_cast<uint64_t>(state.bytes());
  if (pauses_.size() < kPausesMax) pauses_.push_back(state.pause_micros());
  return true;
}

void Rebalancer::Forget(int32_t server) {
  const auto there = [&](const run::PlannedMove& move) {
    if (move.to_server() != server && move.from_server() != server)
      return false;
    changed_.insert(move.shard());
    return true;
  };
  std::erase_if(wanted_, there);
  for (const auto& [shard, ordered] : ordered_) {
    if (ordered.move.to_server() == server) cut_short_[shard] = ordered.id;
  }
  std::erase_if(ordered_,
                [&](const auto& entry) { return there(entry.second.move); });
}

void Rebalancer::ForgetShard(int32_t shard) {
  changed_.insert(shard);
  cut_short_.erase(shard);
  ordered_.erase(shard);
  std::erase_if(wanted_, [&](const run::PlannedMove& move) {
    return move.shard() == shard;
  });
}

bool Rebalancer::AreOrdered(
    const google::protobuf::RepeatedPtrField<wire::Move>& moves) const {
  return static_cast<size_t>(moves.size()) == ordered_.size() &&
         std::all_of(moves.begin(), moves.end(), [&](const wire::Move& move) {
           const auto found = ordered_.find(move.shard());
           return found != ordered_.end() && found->second.id == move.id();
         });
}

run::Plan Rebalancer::Present() const {
  run::Plan plan;
  for (const auto& [shard, ordered] : ordered_) {
    *plan.add_move() = ordered.move;
    plan.mutable_move(plan.move_size() - 1)->set_ordered(true);
  }
  for (const run::PlannedMove& move : wanted_) *plan.add_move() = move;
  return plan;
}

run::Percentiles Rebalancer::PauseMicros() const {
  run::Percentiles percentiles;
  if (pauses_.empty()) return percentiles;
  std::vector<int64_t> sorted = pauses_;
  std::sort(sorted.begin(), sorted.end());
  const auto at = [&](double share) {
    return sorted[static_cast<size_t>(
        share * static_cast<double>(sorted.size() - 1) + 0.5)];
  };
  percentiles.set_p50(at(0.5));
  percentiles.set_p99(at(0.99));
  percentiles.set_max(sorted.back());
  return percentiles;
}

// ---- For the next coordinator -----------------------------------------------

void Rebalancer::Keep(KeptState* kept, coordinator::MovesState* state) {
  state->mutable_cut_short()->insert(cut_short_.begin(), cut_short_.end());
  state->set_shards_moved(shards_moved_);
  state->set_bytes_moved(bytes_moved_);
  if (changed_.empty()) return;
  for (const auto& [shard, ordered] : ordered_) {
    if (changed_.erase(shard) == 0) continue;
    coordinator::MoveState move;
    *move.mutable_move() = ordered.move;
    move.set_id(ordered.id);
    kept->Put(KeyOf(shard), move);
  }
  for (const run::PlannedMove& wanted : wanted_) {
    if (changed_.erase(wanted.shard()) == 0) continue;
    coordinator::MoveState move;
    *move.mutable_move() = wanted;
    kept->Put(KeyOf(wanted.shard()), move);
  }
  for (const int32_t shard : std::exchange(changed_, {}))
    kept->Remove(KeyOf(shard));
  const int64_t first =
      shards_moved_ - static_cast<int64_t>(last_moves_.size());
  for (int64_t i = shards_moved_ - 1; i >= first; --i) {
    const std::string key = NumberedKey("moved", static_cast<uint64_t>(i));
    if (kept->Has(key)) break;
    kept->Put(key, last_moves_[static_cast<size_t>(i - first)]);
    // Of those that were kept until now, as many as are new go.
    const int64_t gone = i - static_cast<int64_t>(kLastMovesMax);
    if (gone >= 0)
      kept->Remove(NumberedKey("moved", static_cast<uint64_t>(gone)));
  }
}

absl::Status Rebalancer::Load(const StateReader& reader,
                              const coordinator::MovesState& state) {
  cut_short_.insert(state.cut_short().begin(), state.cut_short().end());
  shards_moved_ = state.shards_moved();
  bytes_moved_ = state.bytes_moved();
  SL_RETURN_IF_ERROR(reader.ReadAll<coordinator::MoveState>(
      "move", [&](uint64_t shard, const auto& move) {
        if (move.move().shard() != static_cast<int64_t>(shard))
          return absl::InvalidArgumentError("a move of another shard");
        if (move.id() > 0) {
          ordered_[move.move().shard()] = {.move = move.move(),
                                           .id = move.id()};
        } else {
          wanted_.push_back(move.move());
        }
        return absl::OkStatus();
      }));
  return reader.ReadAll<run::MoveRecord>(
      "moved", [&](uint64_t, const auto& record) {
        last_moves_.push_back(record);
        pauses_.push_back(record.pause_micros());
        return absl::OkStatus();
      });
}

}  // namespace slackline
