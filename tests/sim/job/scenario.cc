#include "tests/sim/job/scenario.h"

#include <algorithm>
#include <cmath>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/optim/schedule.h"
#include "common/status.h"
#include "common/sync/phases.h"
#include "tests/sim/job/sim_checkpoint.h"

namespace slackline::sim {
namespace {

absl::Duration Between(Rng& rng, absl::Duration low, absl::Duration high) {
  return absl::Nanoseconds(rng.Between(absl::ToInt64Nanoseconds(low),
                                       absl::ToInt64Nanoseconds(high)));
}

// Zero half of the time, else up to `max` with small values more likely.
double Odds(Rng& rng, double max) {
  if (rng.Chance(0.5)) return 0;
  const double root = rng.Uniform();
  return max * root * root;
}

NetworkFaults RandomNetwork(Rng& rng, bool faulty) {
  NetworkFaults network;
  network.delay_min =
      Between(rng, absl::Microseconds(20), absl::Microseconds(500));
  network.delay_max = network.delay_min +
                      Between(rng, absl::ZeroDuration(), absl::Milliseconds(5));
  if (!faulty) return network;
  network.loss = Odds(rng, 0.15);
  network.duplicate = Odds(rng, 0.2);
  network.reorder = Odds(rng, 0.1);
  network.slow = Odds(rng, 0.1);
  return network;
}

FaultEvent RandomPartition(const Scenario& scenario, absl::Duration end,
                           Rng& rng) {
  const int nodes = scenario.UserNode();
  FaultEvent event;
  event.at = Between(rng, absl::ZeroDuration(), end);
  // Mostly shorter than the lease: those have no right to change anything.
  event.duration =
      rng.Chance(0.75)
          ? Between(rng, absl::Milliseconds(5), scenario.lease * 0.6)
          : Between(rng, scenario.lease, scenario.lease * 4);
  event.held = rng.Chance(0.5);
  event.one_way = rng.Chance(0.25);
  event.kind =
      rng.Chance(0.5) ? FaultEvent::Kind::kIsolate : FaultEvent::Kind::kCutLink;
  event.node = static_cast<Node>(rng.Below(nodes));
  // A server that is silent for a lease ends the job; most runs are to go on.
  if (event.node < scenario.servers && event.duration >= scenario.lease &&
      rng.Chance(0.8)) {
    event.node =
        scenario.WorkerNode(static_cast<int>(rng.Below(scenario.workers)));
  }
  if (event.kind == FaultEvent::Kind::kCutLink) {
    event.peer = static_cast<Node>(rng.Below(nodes));
    if (event.peer == event.node) event.kind = FaultEvent::Kind::kIsolate;
  }
  return event;
}

FaultEvent RandomCrash(const Scenario& scenario, absl::Duration end, Rng& rng) {
  FaultEvent event;
  event.kind = FaultEvent::Kind::kCrash;
  event.at = Between(rng, absl::ZeroDuration(), end);
  event.node =
      rng.Chance(0.04)
          ? static_cast<Node>(rng.Below(scenario.servers))
          : scenario.WorkerNode(static_cast<int>(rng.Below(scenario.workers)));
  event.restart = event.node >= scenario.servers && rng.Chance(0.75);
  event.duration = Between(rng, absl::Milliseconds(1), scenario.lease * 2);
  event.drop_sent = rng.Chance(0.5);
  return event;
}

LogFeedOptions RandomFeed(const Scenario& scenario, Rng& rng) {
  LogFeedOptions options;
  options.part_bytes = static_cast<size_t>(rng.Between(16, 64));
  options.window_bytes = static_cast<size_t>(rng.Between(16, 256));
  options.backlog_bytes_max = static_cast<size_t>(
      rng.Chance(0.5) ? rng.Between(0, 256) : rng.Between(1024, 65536));
  options.catch_up_max =
      rng.Chance(0.5)
          ? Between(rng, absl::ZeroDuration(), absl::Milliseconds(20))
          : Between(rng, absl::Milliseconds(20), absl::Milliseconds(500));
  options.declined_min =
      Between(rng, absl::Milliseconds(5), scenario.retry_initial * 2);
  options.declined_max = options.declined_min * rng.Between(1, 8);
  Rng link = rng.Fork("link");
  options.link.window_bytes = static_cast<size_t>(
      link.Chance(0.5) ? link.Between(100, 1000) : link.Between(1000, 100000));
  options.link.messages_max = static_cast<int>(link.Between(1, 64));
  options.link.probe_min =
      Between(link, absl::Milliseconds(5), scenario.retry_initial * 2);
  options.link.probe_max = options.link.probe_min * link.Between(1, 8);
  // An answer to a worker may wait for copies, so what holds for its own
  // requests holds for these, too: bad luck alone is no silence.
  if (scenario.network.loss > 0) {
    options.link.probe_max =
        std::min(options.link.probe_max, scenario.stall_timeout() / 16);
  }
  Rng gather = rng.Fork("gather");
  options.gather_max =
      Between(gather, absl::ZeroDuration(), absl::Milliseconds(40));
  return options;
}

MoveFault RandomMoveFault(const Scenario& scenario, Rng& rng) {
  MoveFault fault;
  fault.step = static_cast<MoveStep>(rng.Below(kMoveSteps));
  fault.occurrence = static_cast<int>(rng.Below(rng.Chance(0.5) ? 2 : 10));
  fault.on_arrival = rng.Chance(0.5);
  fault.before = rng.Chance(0.3);
  fault.kind = rng.Chance(0.35)
                   ? MoveFault::Kind::kCrash
                   : static_cast<MoveFault::Kind>(rng.Between(1, 3));
  fault.victim =
      rng.Chance(0.5) ? MoveFault::Victim::kTarget : MoveFault::Victim::kSource;
  if (rng.Chance(0.2)) fault.victim = MoveFault::Victim::kWorker;
  if (rng.Chance(0.1)) {
    fault.victim = rng.Chance(0.5) ? MoveFault::Victim::kCoordinator
                                   : MoveFault::Victim::kServer0;
  }
  fault.duration =
      rng.Chance(0.75)
          ? Between(rng, absl::Milliseconds(5), scenario.lease * 0.6)
          : Between(rng, scenario.lease, scenario.lease * 3);
  fault.held = rng.Chance(0.5);
  fault.one_way = rng.Chance(0.25);
  fault.drop_sent = rng.Chance(0.5);
  // A source that has given its shard away and does not hear what comes next.
  if (rng.Chance(0.15)) {
    fault.step = rng.Chance(0.5) ? MoveStep::kDone : MoveStep::kPublished;
    fault.on_arrival = fault.before = false;
    fault.kind = MoveFault::Kind::kCutFromCoordinator;
    fault.victim = MoveFault::Victim::kSource;
    fault.held = false;
    fault.duration = scenario.lease * (0.3 + 0.6 * rng.Uniform());
  }
  return fault;
}

Placement RandomPlacement(const Scenario& scenario, bool faulty,
                          absl::Duration first, absl::Duration end, Rng& rng) {
  Placement placement;
  config::Rebalance& rebalance = placement.rebalance;
  if (rng.Chance(0.15)) {
    rebalance.set_mode(config::Rebalance::OFF);
    if (rng.Chance(0.8)) return placement;  // Nobody even asks.
  } else {
    rebalance.set_mode(rng.Chance(0.5) ? config::Rebalance::AUTO
                                       : config::Rebalance::MANUAL);
  }
  rebalance.set_interval_ms(static_cast<int32_t>(rng.Between(20, 200)));
  rebalance.set_threshold(1.1 + 0.5 * rng.Uniform());
  rebalance.set_target(1 + 0.1 * rng.Uniform());
  rebalance.set_min_utilisation(0.01);
  rebalance.set_rest_ms(static_cast<int32_t>(
      rng.Chance(0.5) ? rng.Between(0, 50) : rng.Between(50, 500)));
  rebalance.set_concurrent_moves(
      rng.Chance(0.5) ? 1 : static_cast<int32_t>(rng.Between(2, 4)));
  rebalance.set_moves_max(static_cast<int32_t>(rng.Between(1, 20)));
  placement.hot = rng.Uniform() * 0.4;
  if (rng.Chance(0.5)) {
    placement.hot_for = Between(rng, absl::Milliseconds(100), absl::Seconds(1));
  }
  placement.feed = RandomFeed(scenario, rng);
  if (rng.Chance(0.5))
    placement.waiting_max = static_cast<size_t>(rng.Between(0, 8));
  for (uint64_t left = rng.Below(8); left > 0; --left) {
    UserAction& action = placement.user.emplace_back();
    action.at = Between(rng, first, end);
    const uint64_t kind = rng.Below(20);
    action.kind = kind < 9    ? UserAction::Kind::kMove
                  : kind < 12 ? UserAction::Kind::kMoveAll
                  : kind < 14 ? UserAction::Kind::kRebalance
                  : kind < 17 ? UserAction::Kind::kDrain
                              : UserAction::Kind::kAddServer;
  }
  // A server that is new has nothing, so it may die while it gets something.
  if (rng.Chance(0.35)) {
    const absl::Duration at = Between(rng, first, (first + end) / 2);
    placement.user.push_back({UserAction::Kind::kAddServer, at});
    for (uint64_t left = rng.Below(4); left > 0; --left) {
      placement.user.push_back(
          {UserAction::Kind::kMove, Between(rng, at, end)});
    }
  }
  // One shard goes to and fro, so that somebody misses the views between.
  if (rng.Chance(0.3)) {
    absl::Duration at = Between(rng, first, (first + end) / 2);
    const auto shard = static_cast<int32_t>(rng.Below(4));
    for (uint64_t left = rng.Between(3, 12); left > 0; --left) {
      placement.user.push_back({UserAction::Kind::kMove, at, shard});
      at += Between(rng, absl::Milliseconds(5), scenario.lease * 0.3);
    }
  }
  if (faulty && rng.Chance(0.6)) {
    for (int64_t left = rng.Between(1, 3); left > 0; --left)
      placement.faults.push_back(RandomMoveFault(scenario, rng));
  }
  placement.linger = rng.Chance(0.5);
  return placement;
}

struct NamedPart {
  const char* name;
  bool Reality::*part;
};
config::Optimizer Sgd() {
  config::Optimizer optimizer;
  optimizer.mutable_sgd()->set_learning_rate(1);
  return optimizer;
}

config::Optimizer Momentum(double momentum) {
  config::Optimizer optimizer;
  optimizer.mutable_momentum()->set_learning_rate(1);
  optimizer.mutable_momentum()->set_momentum(momentum);
  return optimizer;
}

config::Optimizer Adam() {
  config::Optimizer optimizer;
  optimizer.mutable_adam()->set_learning_rate(1);
  return optimizer;
}

// Rules whose numbers depend on the count of updates, or with three slots.
config::Optimizer DrawLaterRule(Rng& rng) {
  config::Optimizer optimizer;
  switch (rng.Below(4)) {
    case 0:
      optimizer.mutable_nadam()->set_learning_rate(0.3);
      break;
    case 1:
      optimizer.mutable_radam()->set_learning_rate(0.3);
      break;
    case 2:
      optimizer.mutable_adam()->set_learning_rate(0.3);
      optimizer.mutable_adam()->set_amsgrad(true);
      break;
    default:
      optimizer.mutable_rmsprop()->set_learning_rate(0.1);
      optimizer.mutable_rmsprop()->set_momentum(0.5);
      optimizer.mutable_rmsprop()->set_centered(true);
      optimizer.set_maximize(true);
      break;
  }
  return optimizer;
}

bool MomentumMayChange(const config::Optimizer& config) {
  const absl::StatusOr<Optimizer> optimizer = Optimizer::Create(config);
  SL_CHECK(optimizer.ok(), optimizer.status().ToString());
  return optimizer->momentum().has_value();
}

constexpr NamedPart kParts[] = {{"stand_still", &Reality::stand_still},
                                {"clocks", &Reality::clocks},
                                {"trainer_stalls", &Reality::trainer_stalls},
                                {"shard_stalls", &Reality::shard_stalls},
                                {"inner_cuts", &Reality::inner_cuts},
                                {"links", &Reality::links},
                                {"rules", &Reality::rules},
                                {"stop_rules", &Reality::stop_rules},
                                {"disk_errors", &Reality::disk_errors},
                                {"garbage", &Reality::garbage},
                                {"given_delays", &Reality::given_delays},
                                {"bad_gradients", &Reality::bad_gradients},
                                {"replicas", &Reality::replicas},
                                {"rows", &Reality::rows},
                                {"coordinators", &Reality::coordinators}};

// Mostly shorter than a lease.
absl::Duration ForAWhile(Rng& rng, absl::Duration lease, double longest) {
  return rng.Chance(0.6) ? Between(rng, absl::Milliseconds(5), lease * 0.9)
                         : Between(rng, lease, lease * longest);
}

// `last`: when the training ends if nothing goes wrong.
std::vector<StandStillFault> RandomStandStill(const Scenario& scenario,
                                              absl::Duration last, Rng& rng) {
  std::vector<StandStillFault> faults;
  for (int64_t left = rng.Between(1, 3); left > 0; --left) {
    StandStillFault& fault = faults.emplace_back();
    fault.at = Between(rng, absl::ZeroDuration(), last);
    fault.duration = ForAWhile(rng, scenario.lease, 6);
    fault.node = static_cast<Node>(rng.Below(scenario.UserNode()));
    if (rng.Chance(0.3)) fault.node = 0;
    // Another server with shards that is silent for a lease ends the job.
    if (fault.node > 0 && fault.node < scenario.servers &&
        fault.duration >= scenario.lease * 0.9 && rng.Chance(0.9)) {
      fault.node = 0;
    }
    fault.suspend = rng.Chance(0.3);
    fault.order = static_cast<WakeOrder>(rng.Below(3));
  }
  return faults;
}

config::LearningRateSchedule RandomSchedule(const Scenario& scenario,
                                            Rng& rng) {
  config::LearningRateSchedule schedule;
  if (rng.Chance(0.5)) schedule.set_warmup_steps(rng.Between(1, 10));
  if (rng.Chance(0.4)) {
    schedule.mutable_step()->set_every_epochs(
        static_cast<double>(rng.Between(1, 5)) /
        static_cast<double>(scenario.steps));
    schedule.mutable_step()->set_factor(0.5);
  } else if (rng.Chance(0.5)) {
    schedule.mutable_cosine()->set_final_factor(0.5 * rng.Uniform());
  }
  return schedule;
}

// Those that need no values of earlier versions: their rules are element by
// element and are compared with LibTorch-free twins in the unit tests.
config::StaleGradients RandomStaleRule(Rng& rng) {
  config::StaleGradients stale;
  switch (rng.Below(3)) {
    case 0:
      stale.mutable_scale();
      break;
    case 1:
      stale.mutable_staleness_aware_rate();
      break;
    default:
      stale.mutable_drop()->set_beyond_clocks(rng.Uniform() * 2);
  }
  return stale;
}

// Others' gradients are hardly ever above it.
config::GradientBound RandomGradientBound(Rng& rng) {
  config::GradientBound bound;
  if (rng.Chance(0.5)) {
    bound.set_rms(1000);
  } else {
    bound.set_times_running_rms(100);
    bound.set_warm_up_gradients(static_cast<int32_t>(rng.Between(1, 6)));
  }
  bound.set_policy(rng.Chance(0.25) ? config::GradientBound::STOP
                                    : config::GradientBound::SKIP);
  return bound;
}

}  // namespace

Reality Reality::All() {
  Reality all;
  for (const NamedPart& part : kParts) all.*part.part = true;
  return all;
}

Reality Reality::Usual() { return All(); }

bool* Reality::Find(const std::string& name) {
  for (const NamedPart& part : kParts) {
    if (name == part.name) return &(this->*part.part);
  }
  return nullptr;
}

std::vector<std::string> Reality::Names() {
  std::vector<std::string> names;
  for (const NamedPart& part : kParts) names.push_back(part.name);
  return names;
}

void Scenario::Widen(const Reality& wanted) {
  const absl::Duration last = heal_at;
  const bool faulty = network.loss + network.slow > 0 || !faults.empty();
  const auto draws = [&](bool Reality::*part, const char* name,
                         double chance) -> std::optional<Rng> {
    Rng rng = Rng(seed).Fork("reality").Fork(name);
    if (!(wanted.*part) || !rng.Chance(chance)) return std::nullopt;
    reality.*part = true;
    return rng;
  };
  draws(&Reality::clocks, "clocks", 0.5);
  // In place of a mode; of BACKUP there are few enough.
  if (!modes.changes && !mode.has_backup()) {
    if (auto rng =
            draws(&Reality::given_delays, "given delays", given_delays_chance))
      GiveDelays(*rng);
  }
  if (auto rng = draws(&Reality::rules, "rules", 0.3)) {
    if (rng->Chance(0.6)) schedule = RandomSchedule(*this, *rng);
    if (rng->Chance(0.6)) stale = RandomStaleRule(*rng);
  }
  // All else is for dense tables alone.
  if (!modes.changes && !modes.begins_with_worker && !mode.has_allreduce() &&
      !mode.has_delays() && resume == nullptr) {
    if (auto rng = draws(&Reality::rows, "rows", 0.3)) DrawRows(*rng);
  }
  if (HasRows()) {
    asks_state = 0;
    if (stale.has_scale()) stale.Clear();
  }
  // Codes lose what such large numbers are.
  if (!modes.changes && !mode.has_allreduce() && !mode.has_delays() &&
      gradient_code.whole()) {
    if (auto rng = draws(&Reality::bad_gradients, "bad gradients", 0.25)) {
      gradient_bound = RandomGradientBound(*rng);
      broken = Rank{static_cast<int32_t>(rng->Below(workers))};
    }
  }
  if (auto rng = draws(&Reality::stop_rules, "stop rules", 0.1)) {
    if (rng->Chance(0.5)) {
      stop.set_wall_seconds(absl::ToDoubleSeconds(last) * rng->Uniform());
    } else {
      stop.set_test_accuracy(rng->Uniform());
    }
  }
  if (servers > 1) {
    if (auto rng = draws(&Reality::replicas, "replicas", 0.35))
      DrawReplicas(faulty, last, *rng);
  }
  if (auto rng = draws(&Reality::coordinators, "coordinators", 0.35))
    DrawCoordinators(faulty, last, *rng);
  if (!faulty) return;
  if (auto rng = draws(&Reality::stand_still, "stand still", 0.35)) {
    const std::vector<StandStillFault> more =
        RandomStandStill(*this, last, *rng);
    stand_still.insert(stand_still.end(), more.begin(), more.end());
  }
  if (auto rng = draws(&Reality::trainer_stalls, "trainer stalls", 0.15)) {
    TrainerStall& stall = trainer_stalls.emplace_back();
    stall.rank = Rank{static_cast<int32_t>(rng->Below(workers))};
    stall.clock = rng->Between(0, steps - 1);
    stall.duration = rng->Chance(0.3) ? absl::InfiniteDuration()
                                      : ForAWhile(*rng, lease, 10);
  }
  if (auto rng = draws(&Reality::shard_stalls, "shard stalls", 0.2)) {
    for (int64_t left = rng->Between(1, 3); left > 0; --left) {
      shard_stalls.push_back({.at = Between(*rng, absl::ZeroDuration(), last),
                              .server = static_cast<int>(rng->Below(servers)),
                              .thread = static_cast<int>(rng->Below(threads)),
                              .duration = ForAWhile(*rng, lease, 8)});
    }
  }
  if (auto rng = draws(&Reality::inner_cuts, "inner cuts", 0.2)) {
    if (rng->Chance(0.5)) {
      inner_cuts.push_back(
          {.kind = static_cast<InnerCut::Kind>(rng->Below(2)),
           .at = Between(*rng, absl::ZeroDuration(), last),
           .duration = rng->Chance(0.9)
                           ? Between(*rng, absl::Milliseconds(5), lease * 0.6)
                           : Between(*rng, lease, lease * 4),
           .held = rng->Chance(0.5)});
    } else {
      FaultEvent& cut = faults.emplace_back();
      cut.kind = FaultEvent::Kind::kCutLink;
      cut.at = Between(*rng, absl::ZeroDuration(), last);
      cut.node = WorkerNode(static_cast<int>(rng->Below(workers)));
      // Server 0 has the coordinator on its machine.
      cut.peer = static_cast<Node>(rng->Below(servers));
      cut.duration = ForAWhile(*rng, lease, 8);
      cut.one_way = true;
      if (rng->Chance(0.5)) std::swap(cut.node, cut.peer);
      cut.held = rng->Chance(0.5);
      heal_at = std::max(heal_at, cut.at + cut.duration);
    }
  }
  if (auto rng = draws(&Reality::links, "links", 0.25)) {
    const double scale = rng->Uniform();
    links.bytes_per_second =
        static_cast<int64_t>(20'000 * std::pow(100.0, scale));
    links.queue_max = static_cast<int>(rng->Between(4, 64));
  }
  if (auto rng = draws(&Reality::disk_errors, "disk errors", 0.1)) {
    disk.push_back({.file = static_cast<DiskFault::File>(rng->Below(2)),
                    .at = Between(*rng, absl::ZeroDuration(), last),
                    .duration = ForAWhile(*rng, lease, 12)});
  }
  if (checkpoints.wanted) {
    if (auto rng = draws(&Reality::disk_errors, "checkpoint disk errors", 0.3))
      disk.push_back({.file = rng->Chance(0.7) ? DiskFault::File::kPart
                                               : DiskFault::File::kManifest,
                      .at = Between(*rng, absl::ZeroDuration(), last),
                      .duration = ForAWhile(*rng, lease, 3)});
  }
  if (auto rng = draws(&Reality::garbage, "garbage", 0.3)) {
    // Strangers speak in the coordinator's name there, from any address of it.
    address_moves = host_vanishes = false;
    for (int64_t left = rng->Between(5, 60); left > 0; --left) {
      garbage.push_back({.at = Between(*rng, absl::ZeroDuration(), last * 1.2),
                         .luck = rng->Next()});
    }
  }
  for (const StandStillFault& fault : stand_still)
    heal_at = std::max(heal_at, fault.at + fault.duration);
  for (const ShardStall& stall : shard_stalls)
    heal_at = std::max(heal_at, stall.at + stall.duration);
  for (const DiskFault& fault : disk)
    heal_at = std::max(heal_at, fault.at + fault.duration);
  for (const InnerCut& cut : inner_cuts)
    heal_at = std::max(heal_at, cut.at + cut.duration);
  for (const CoordinatorFault& fault : coordinator_faults)
    heal_at = std::max(heal_at, fault.at + fault.duration);
}

void Scenario::DrawRows(Rng& rng) {
  row_widths.clear();
  for (size_t t = 0; t < table_elements.size(); ++t)
    row_widths.push_back(rng.Chance(0.7) ? rng.Between(1, 6) : 0);
  if (absl::c_all_of(row_widths, [](int64_t width) { return width == 0; }))
    row_widths.back() = rng.Between(1, 6);
}

void Scenario::DrawCoordinators(bool faulty, absl::Duration last, Rng& rng) {
  recovers = true;
  Rng take_over = rng.Fork("take over");
  if (replicas > 0 && take_over.Chance(0.5))
    DrawTakeOvers(faulty, last, take_over);
  if (!faulty) return;
  Rng address = rng.Fork("address");
  address_moves = !takes_over && address.Chance(0.4);
  host_vanishes = address_moves && address.Chance(0.5);
  for (int64_t left = rng.Between(0, 3); left > 0; --left) {
    CoordinatorFault& fault = coordinator_faults.emplace_back();
    fault.at = Between(rng, absl::ZeroDuration(), last);
    fault.duration = ForAWhile(rng, lease, 4);
    fault.moment = static_cast<CoordinatorFault::Moment>(rng.Below(3));
    // Without followers the job ends with server 0.
    fault.with_host = rng.Chance(replicas > 0 ? 0.5 : 0.1);
  }
}

void Scenario::DrawTakeOvers(bool faulty, absl::Duration last, Rng& rng) {
  takes_over = true;
  if (!faulty) return;
  for (int64_t left = rng.Between(0, 3); left > 0; --left) {
    const absl::Duration at = Between(rng, absl::ZeroDuration(), last);
    if (rng.Chance(0.4)) {  // Perhaps of the server that has it then.
      const auto server = rng.Below(static_cast<uint64_t>(servers));
      stand_still.push_back({.at = at,
                             .node = ServerNode(static_cast<int>(server)),
                             .duration = Between(rng, lease, lease * 3),
                             .suspend = rng.Chance(0.3),
                             .order = static_cast<WakeOrder>(rng.Below(3))});
      continue;
    }
    CoordinatorFault& fault = coordinator_faults.emplace_back();
    fault.at = at;
    fault.duration = ForAWhile(rng, lease, 4);
    fault.with_host = rng.Chance(0.7);
  }
}

void Scenario::DrawReplicas(bool faulty, absl::Duration last, Rng& rng) {
  replicas = static_cast<int>(rng.Between(1, std::min(2, servers - 1)));
  // Nobody moves a shard in some jobs; else the two often change places.
  if (placement.rebalance.mode() != config::Rebalance::OFF) {
    for (uint64_t left = rng.Below(4); left > 0; --left) {
      placement.user.push_back(
          {UserAction::Kind::kMove, Between(rng, absl::ZeroDuration(), last)});
    }
    if (rng.Chance(0.3)) {
      placement.user.push_back({UserAction::Kind::kAddServer,
                                Between(rng, absl::ZeroDuration(), last)});
    }
  }
  // What is lost has time to be made good.
  placement.linger = placement.linger || rng.Chance(0.6);
  if (mode.has_delays()) placement.linger = false;  // As in GiveDelays().
  if (!faulty) return;
  absl::Duration at = Between(rng, absl::ZeroDuration(), last);
  for (uint64_t left = rng.Below(4); left > 0; --left) {
    DrawServerFault(at, rng);
    // The next one may come before all is well again.
    at = rng.Chance(0.5) ? at + Between(rng, absl::ZeroDuration(), lease * 4)
                         : Between(rng, absl::ZeroDuration(), last);
  }
  if (rng.Chance(0.6)) {
    for (int64_t left = rng.Between(1, 3); left > 0; --left) {
      MoveFault fault = RandomMoveFault(*this, rng);
      fault.step = static_cast<MoveStep>(kMoveSteps + rng.Below(kCopySteps));
      placement.faults.push_back(fault);
    }
  }
}

void Scenario::DrawServerFault(absl::Duration at, Rng& rng) {
  // With server 0 the coordinator dies, and nothing is left to look at.
  const int server = static_cast<int>(rng.Between(1, servers - 1));
  const Node node = ServerNode(server);
  const absl::Duration duration =
      rng.Chance(0.3) ? Between(rng, absl::Milliseconds(5), lease * 0.9)
                      : Between(rng, lease, lease * 4);
  const auto cut = [&](FaultEvent::Kind kind, Node peer) {
    FaultEvent& event = faults.emplace_back();
    event.kind = kind;
    event.at = at;
    event.node = node;
    event.peer = peer;
    event.duration = duration;
    event.held = rng.Chance(0.5);
    event.one_way = rng.Chance(0.25);
  };
  switch (rng.Below(8)) {
    case 0:  // Its shard threads go on, and reach everybody.
      inner_cuts.push_back({.kind = InnerCut::Kind::kControlFromCoordinator,
                            .server = server,
                            .at = at,
                            .duration = duration,
                            .held = rng.Chance(0.5)});
      break;
    case 1:  // It reaches all but the machine with the coordinator,
      cut(FaultEvent::Kind::kCutLink, 0);
      break;
    case 2:  // or nobody but that one.
      for (Node peer = 1; peer < UserNode(); ++peer) {
        if (peer != node) cut(FaultEvent::Kind::kCutLink, peer);
      }
      break;
    case 3:
      stand_still.push_back({.at = at,
                             .node = node,
                             .duration = duration,
                             .suspend = rng.Chance(0.3),
                             .order = static_cast<WakeOrder>(rng.Below(3))});
      break;
    case 4:
      cut(FaultEvent::Kind::kIsolate, 0);
      break;
    default: {
      cut(FaultEvent::Kind::kCrash, 0);
      FaultEvent& crash = faults.back();
      crash.restart = rng.Chance(0.75);
      crash.drop_sent = rng.Chance(0.5);
    }
  }
  heal_at = std::max(heal_at, at + duration);
}

namespace {

// What a run of so many steps, in which everything takes its time, could have
// left: gradients reach each shard by themselves, and now and then one is
// dropped; or each shard makes one mean of a clock's.
DelayTrace RandomRecording(int workers, Clock first, Clock steps, size_t shards,
                           Rng& rng) {
  DelayTrace trace;
  trace.workers = workers;
  trace.first = first;
  trace.shards.resize(shards);
  const bool means = rng.Chance(0.3);
  // By worker: its next step; by worker and shard: its gradients that are
  // there.
  std::vector<Clock> computed(static_cast<size_t>(workers), first);
  std::vector<std::vector<Clock>> arrived(static_cast<size_t>(workers),
                                          std::vector<Clock>(shards, first));
  const auto complete = [&](size_t shard) {
    Clock least = steps;
    for (const std::vector<Clock>& of_worker : arrived)
      least = std::min(least, of_worker[shard]);
    return least;
  };
  const auto deliver = [&](int32_t rank, size_t shard) {
    const Clock before = complete(shard);
    const Clock clock = arrived[static_cast<size_t>(rank)][shard]++;
    DelayTrace::Update update{
        .clock = clock, .ranks = {rank}, .workers = workers};
    if (means && complete(shard) == before) return;
    if (means) {
      update.ranks.clear();
      for (int32_t other = 0; other < workers; ++other)
        update.ranks.push_back(other);
    } else if (workers > 1 && rng.Chance(0.05)) {
      return;  // Dropped.
    }
    trace.shards[shard].updates.push_back(std::move(update));
  };
  const auto left = [&](size_t rank) {
    return computed[rank] < steps ||
           std::any_of(arrived[rank].begin(), arrived[rank].end(),
                       [&](Clock clock) { return clock < steps; });
  };
  while (true) {
    std::vector<int32_t> open;
    for (int32_t rank = 0; rank < workers; ++rank) {
      if (left(static_cast<size_t>(rank))) open.push_back(rank);
    }
    if (open.empty()) return trace;
    const int32_t rank = open[rng.Below(open.size())];
    const auto index = static_cast<size_t>(rank);
    const size_t shard = rng.Below(shards);
    if (arrived[index][shard] < computed[index]) {
      deliver(rank, shard);
      continue;
    }
    // A step begins with what is there; each shard has the worker's own before.
    if (computed[index] == steps) continue;
    const Clock clock = computed[index]++;
    for (size_t s = 0; s < shards; ++s) {
      while (arrived[index][s] < clock) deliver(rank, s);
    }
    for (DelayTrace::Shard& of_shard : trace.shards) {
      const auto version = static_cast<int64_t>(of_shard.updates.size());
      of_shard.reads.push_back(
          {.rank = rank, .clock = clock, .version = version});
    }
  }
}

}  // namespace

void Scenario::GiveDelays(Rng& rng) {
  elastic.reset();  // They do not go together.
  std::string& given = *mode.mutable_delays()->mutable_given();
  // Then the first step is by all-reduce.
  modes.begins_with_worker = rng.Chance(0.3);
  const Clock first = modes.begins_with_worker ? 1 : 0;
  if (rng.Chance(0.4)) {
    given = "a recording";
    size_t shards = 0;
    for (const int64_t elements : table_elements) {
      shards +=
          static_cast<size_t>((elements + shard_elements - 1) / shard_elements);
    }
    delays = RandomRecording(workers, first, steps, shards, rng);
  } else {
    constexpr const char* kNames[] = {"constant", "uniform", "geometric",
                                      "straggler"};
    // One after the other, so that all compilers draw the same.
    const char* const name = kNames[rng.Below(4)];
    given = absl::StrCat(name, ":", rng.Between(0, 6));
    const absl::StatusOr<SyntheticDelays> named = ParseSyntheticDelays(given);
    SL_CHECK(named.ok(), named.status().ToString());
    delays = MakeTrace(*named, workers, steps, seed, first);
  }
  // Nobody waits for moves at its last step: others may wait for that step.
  placement.linger = false;
  // Who dies ends the job; most runs are to go on.
  if (rng.Chance(0.7)) {
    faults.erase(std::remove_if(faults.begin(), faults.end(),
                                [&](const FaultEvent& fault) {
                                  return fault.kind == FaultEvent::Kind::kCrash;
                                }),
                 faults.end());
  }
  if (rng.Chance(0.3)) {  // It is refused.
    placement.user.push_back({UserAction::Kind::kSetMode,
                              Between(rng, absl::ZeroDuration(), heal_at)});
  }
}

void Scenario::TakeDelaysOf(const Scenario& first) {
  SL_CHECK(workers == first.workers, "a job of other workers");
  elastic.reset();
  mode = first.mode;
  modes = Modes();
  modes.begins_with_worker = first.modes.begins_with_worker;
  delays = first.delays;
  steps = first.steps;
  shard_elements = first.shard_elements;
  optimizer = first.optimizer;
  schedule = first.schedule;
  stale = first.stale;
  gradient_seed = first.gradient_seed;
  gradient_code = first.gradient_code;
  gradient_keep = first.gradient_keep;
  gradient_bound.reset();
  stop = first.stop;
  placement.linger = false;
}

MachineClock Scenario::ClockOf(Node node) const {
  if (!reality.clocks) return {};
  Rng rng = Rng(seed).Fork("reality").Fork(absl::StrCat("clock ", node));
  return {.ahead = Between(rng, absl::ZeroDuration(), absl::Hours(10'000)),
          .drift = 2e-4 * (rng.Uniform() - 0.5)};
}

StaleRules Scenario::MakeStaleRules() const {
  config::Sync sync;
  if (stale.rule_case() != config::StaleGradients::RULE_NOT_SET)
    *sync.add_stale() = stale;
  absl::StatusOr<StaleRules> rules = StaleRules::Create(sync);
  SL_CHECK(rules.ok(), rules.status().ToString());
  return *std::move(rules);
}

double Scenario::RateFactorAt(Clock clock) const {
  const absl::StatusOr<LearningRateSchedule> rates =
      LearningRateSchedule::Create(
          schedule, {.steps_total = steps, .steps_per_epoch = steps});
  SL_CHECK(rates.ok(), rates.status().ToString());
  return rates->FactorAt(clock);
}

const char* PhaseStepName(PhaseStep step) {
  constexpr const char* kNames[kPhaseSteps] = {
      "asked",      "promised",  "settled",     "taking",     "taken",
      "connecting", "connected", "caught up",   "reducing",   "reduced",
      "regroup",    "arrived",   "all arrived", "installing", "entered"};
  return kNames[static_cast<int>(step)];
}

const char* MoveStepName(MoveStep step) {
  constexpr const char* kNames[kShardSteps] = {
      "ordered",  "ordered there", "snapshot",     "record",
      "push",     "confirmed",     "go",           "owned",
      "done",     "published",     "new follower", "new follower there",
      "copied",   "followed",      "resumed",      "has",
      "lacks",    "in sync",       "swap go",      "swap owned",
      "promoted", "promoted there"};
  return kNames[static_cast<int>(step)];
}

Scenario Scenario::Random(uint64_t seed) {
  Rng rng = Rng(seed).Fork("scenario");
  Scenario s;
  s.seed = seed;
  s.servers = static_cast<int>(rng.Between(1, 3));
  s.threads = static_cast<int>(rng.Between(1, 2));
  s.workers = static_cast<int>(rng.Between(1, 5));
  s.shard_elements = rng.Between(4, 16);
  for (int64_t tables = rng.Between(1, 3); tables > 0; --tables) {
    s.table_elements.push_back(rng.Between(8, 40));
  }
  int32_t bound = 0;
  switch (rng.Below(3)) {
    case 0:
      s.mode.mutable_bsp();
      break;
    case 1:
      bound = static_cast<int32_t>(rng.Between(0, 4));
      s.mode.mutable_ssp()->set_staleness(bound);
      break;
    default:
      s.mode.mutable_asp();
  }
  // Apart, so that seeds from before there were these modes stay the same.
  Rng varying = Rng(seed).Fork("newer modes");
  s.Vary(varying, &s.mode);
  // A bound of 0 would make a worker wait for the push it has yet to make.
  const bool ahead = s.mode.has_asp() || bound >= 1;
  s.pull_ahead = ahead && rng.Chance(0.5);
  s.step_by_table = Rng(seed).Fork("by table").Chance(0.7);
  s.DrawGradientCode();
  s.DrawPulledAs();
  if (Rng(seed).Fork("gathers").Chance(0.3)) s.gathers = 0.4;
  if (Rng(seed).Fork("asks state").Chance(0.3)) s.asks_state = 0.05;
  s.even_pull = rng.Chance(0.5);
  const bool goes_on_after = Rng(seed).Fork("after last").Chance(0.5);
  s.steps = rng.Between(5, 30);
  s.window_bytes = static_cast<size_t>(rng.Between(16, 1024));
  s.message_bytes = static_cast<size_t>(rng.Between(16, 256));
  s.lease = Between(rng, absl::Milliseconds(200), absl::Milliseconds(800));
  // Longer than a step may stall, shorter than it may take to write the model.
  if (goes_on_after) s.after_last_max = 2 * s.stall_timeout();
  s.retry_initial =
      Between(rng, absl::Milliseconds(10), absl::Milliseconds(100));
  s.retry_max = s.retry_initial * rng.Between(1, 16);

  absl::Duration slowest;
  const absl::Duration usual =
      Between(rng, absl::Milliseconds(1), absl::Milliseconds(30));
  for (int rank = 0; rank < s.workers; ++rank) {
    s.compute.push_back(usual * (0.7 + 0.6 * rng.Uniform()));
  }
  if (rng.Chance(0.4)) {
    s.compute[rng.Below(s.workers)] *= static_cast<double>(rng.Between(2, 8));
  }
  for (const absl::Duration compute : s.compute)
    slowest = std::max(slowest, compute);
  for (Node node = 0; node < s.servers + s.workers; ++node) {
    s.start_at.push_back(
        rng.Chance(0.1)
            ? Between(rng, absl::ZeroDuration(), absl::Seconds(2))
            : Between(rng, absl::ZeroDuration(), absl::Milliseconds(50)));
  }
  const bool faulty = rng.Chance(0.875);
  s.network = RandomNetwork(rng, faulty);
  // Bad luck alone must not look like a server that does not answer: a request
  // and its answer get through with at least (1 - 0.15)^2, so 16 attempts in a
  // row fail once in 10^9 times.
  if (s.network.loss > 0)
    s.retry_max = std::min(s.retry_max, s.stall_timeout() / 16);
  const absl::Duration last_start =
      *std::max_element(s.start_at.begin(), s.start_at.end());
  if (faulty && rng.Chance(0.01))
    s.start_at[rng.Below(s.start_at.size())] = absl::InfiniteDuration();
  const absl::Duration end =
      last_start +
      static_cast<double>(s.steps) * (slowest + 2 * s.network.delay_max) * 1.5 +
      absl::Milliseconds(50);
  Rng placing = rng.Fork("placement");
  s.placement = RandomPlacement(s, faulty, last_start, end, placing);
  s.optimizer = placing.Chance(0.3) ? Momentum(0.5) : Sgd();
  s.DrawRates();
  s.DrawSampling();
  s.heal_at = end;
  s.DrawEarlyEnd();
  s.DrawCheckpoints();
  if (!faulty) return s;
  for (uint64_t left = rng.Below(4); left > 0; --left) {
    s.faults.push_back(RandomPartition(s, end, rng));
  }
  for (uint64_t left = rng.Chance(0.5) ? rng.Between(1, 3) : 0; left > 0;
       --left) {
    s.faults.push_back(RandomCrash(s, end, rng));
  }
  s.heal_at = end + s.lease * 3 * rng.Uniform();
  return s;
}

Scenario Scenario::RandomModes(uint64_t seed) {
  Scenario s = Random(seed);
  Rng rng = Rng(seed).Fork("modes");
  Modes& modes = s.modes;
  modes.changes = true;
  Rng varying = Rng(seed).Fork("newer modes");
  modes.begins_with_worker = Rng(seed).Fork("initial values").Chance(0.25);
  modes.lanes = Rng(seed).Fork("lanes").Chance(0.3);
  const auto random_mode = [&] {
    sync::Mode mode = RandomMode(rng);
    s.Vary(varying, &mode);
    return mode;
  };
  s.mode = random_mode();
  s.pull_ahead = rng.Chance(0.5);
  s.steps = rng.Between(5, 40);
  s.DrawSampling();
  const uint64_t optimizer = rng.Below(3);
  s.optimizer = optimizer == 1   ? Momentum(0.5)
                : optimizer == 2 ? Adam()
                                 : Sgd();
  // Most of what happens is to be about modes.
  if (rng.Chance(0.7)) {
    s.placement.user.clear();
    s.placement.faults.clear();
    if (s.placement.rebalance.mode() == config::Rebalance::AUTO &&
        rng.Chance(0.7)) {
      s.placement.rebalance.set_mode(config::Rebalance::MANUAL);
    }
  }
  s.DrawEarlyEnd();
  s.DrawCheckpoints();
  if (rng.Chance(0.5)) {
    for (Clock from = rng.Between(1, 10); from < s.steps;
         from += rng.Between(1, 15)) {
      Modes::Phase& phase = modes.later.emplace_back();
      phase.mode = random_mode();
      phase.from = from;
    }
  }
  const bool faulty = s.network.loss + s.network.slow > 0 || !s.faults.empty();
  const absl::Duration first =
      *std::max_element(s.start_at.begin(), s.start_at.end());
  const absl::Duration last =
      first == absl::InfiniteDuration() ? s.heal_at : s.heal_at * 1.2;
  for (int64_t left = rng.Between(modes.later.empty() ? 1 : 0, 6); left > 0;
       --left) {
    UserAction action;
    action.kind = UserAction::Kind::kSetMode;
    action.at = Between(rng, absl::ZeroDuration(), last);
    s.placement.user.push_back(action);
    if (rng.Chance(0.7)) continue;  // Else another one follows at once.
    action.at += Between(rng, absl::ZeroDuration(), absl::Milliseconds(20));
    s.placement.user.push_back(action);
  }
  if (rng.Chance(0.3)) {
    s.placement.linger = true;  // What was begun has time to end.
  }
  if (!faulty) return s;
  modes.group_faults.connect = Odds(rng, 0.1);
  modes.group_faults.operation = Odds(rng, 0.1);
  modes.group_faults.late = Odds(rng, 0.5);
  for (uint64_t left = rng.Below(4); left > 0; --left) {
    PhaseFault& fault = modes.faults.emplace_back();
    fault.step = static_cast<PhaseStep>(rng.Below(kPhaseSteps));
    fault.occurrence = static_cast<int>(rng.Below(rng.Chance(0.5) ? 4 : 20));
    fault.on_arrival = rng.Chance(0.5);
    fault.before = rng.Chance(0.3);
    fault.kind = rng.Chance(0.6)
                     ? PhaseFault::Kind::kCrash
                     : static_cast<PhaseFault::Kind>(rng.Between(1, 2));
    fault.victim = rng.Chance(0.6) ? PhaseFault::Victim::kItself
                                   : PhaseFault::Victim::kAnother;
    if (rng.Chance(0.08)) {
      fault.victim = rng.Chance(0.5) ? PhaseFault::Victim::kServer
                                     : PhaseFault::Victim::kCoordinator;
    }
    fault.duration = rng.Chance(0.75)
                         ? Between(rng, absl::Milliseconds(1), s.lease * 0.6)
                         : Between(rng, s.lease, s.lease * 3);
    fault.held = rng.Chance(0.5);
    fault.drop_sent = rng.Chance(0.5);
    fault.restart = rng.Chance(0.75);
  }
  return s;
}

sync::Mode Scenario::RandomMode(Rng& rng) {
  sync::Mode mode;
  switch (rng.Below(5)) {
    case 0:
      mode.mutable_bsp();
      break;
    case 1:
      mode.mutable_ssp()->set_staleness(
          static_cast<int32_t>(rng.Between(0, 4)));
      break;
    case 2:
      mode.mutable_asp();
      break;
    default:  // More often, as changes to and from it have the most steps.
      mode.mutable_allreduce();
  }
  return mode;
}

void Scenario::Vary(Rng& rng, sync::Mode* mode) const {
  if (!rng.Chance(0.5)) return;
  if (mode->has_ssp()) {
    const int32_t bound = mode->ssp().staleness();
    mode->mutable_dssp()->set_min_staleness(bound);
    mode->mutable_dssp()->set_max_staleness(
        bound + static_cast<int32_t>(rng.Between(0, 6)));
  } else if (mode->has_bsp() && workers > 1) {
    mode->mutable_backup()->set_workers(
        static_cast<int32_t>(rng.Between(1, workers - 1)));
  }
}

std::vector<wire::Table> Scenario::Tables() const {
  Rng rng = Rng(seed).Fork("tables");
  std::vector<wire::Table> tables;
  for (size_t t = 0; t < table_elements.size(); ++t) {
    wire::Table& table = tables.emplace_back();
    table.set_name(absl::StrCat("t", t));
    table.add_shape(table_elements[t]);
    wire::Initializer& initializer = *table.mutable_initializer();
    initializer.set_kind(
        static_cast<wire::Initializer::Kind>(rng.Between(1, 3)));
    if (modes.begins_with_worker)
      initializer.set_kind(wire::Initializer::OF_WORKER);
    initializer.set_a(-100);
    initializer.set_b(100);
    if (HasRows(TableId{static_cast<int32_t>(t)})) {  // They are not there yet.
      initializer.set_kind(wire::Initializer::CONSTANT);
      initializer.set_a(0);
    }
    table.set_pulled_as(PulledAs(TableId{static_cast<int32_t>(t)}));
    if (t < own_optimizers.size() &&
        own_optimizers[t].kind_case() != config::Optimizer::KIND_NOT_SET) {
      *table.mutable_optimizer() = own_optimizers[t];
    }
  }
  return tables;
}

const config::Optimizer& Scenario::OptimizerOf(TableId table) const {
  const auto index = static_cast<size_t>(table);
  if (index < own_optimizers.size() &&
      own_optimizers[index].kind_case() != config::Optimizer::KIND_NOT_SET) {
    return own_optimizers[index];
  }
  return optimizer;
}

bool Scenario::GathersAt(Clock clock) const {
  // With elastic sampling scripts do different steps, and may not; a recording
  // may have been made without them. For who stands still without end a driver
  // has a time limit of its own.
  return gathers > 0 && !elastic.has_value() &&
         mode.delays().given() != "a recording" &&
         absl::c_none_of(trainer_stalls,
                         [](const TrainerStall& stall) {
                           return stall.duration == absl::InfiniteDuration();
                         }) &&
         Rng(seed).Fork(absl::StrCat("gather ", clock)).Chance(gathers);
}

StepOptions Scenario::GradientOptions(Rank rank, Clock clock,
                                      TableId table) const {
  if (!rate_factors) return {};
  constexpr double kFactors[] = {1, 1, 1, 0, 0.1, 0.5, 2, 3};
  const uint64_t drawn_by = gradient_seed.value_or(seed);
  const uint64_t bits =
      Mix64(Mix64(Mix64(drawn_by ^ static_cast<uint64_t>(rank)) ^
                  static_cast<uint64_t>(clock)) ^
            static_cast<uint64_t>(table));
  StepOptions options;
  options.rate_factor = kFactors[bits % std::size(kFactors)];
  const double momentum = 0.0625 + 0.125 * static_cast<double>(bits >> 61);
  const bool told = (bits >> 60) % 2 == 1;
  if (told && MomentumMayChange(OptimizerOf(table)))
    options.momentum = momentum;
  return options;
}

bool Scenario::Skips(Clock clock, TableId table) const {
  if (!skips_tables) return false;
  const uint64_t drawn_by = gradient_seed.value_or(seed);
  return Mix64(Mix64(drawn_by ^ static_cast<uint64_t>(clock)) + 1 +
               static_cast<uint64_t>(table)) %
             3 ==
         0;
}

void Scenario::DrawGradientCode() {
  Rng rng = Rng(seed).Fork("gradient code");
  if (rng.Chance(0.5)) return;
  gradient_code.kind = static_cast<wire::Encoding::Kind>(
      rng.Between(wire::Encoding::BFLOAT16, wire::Encoding::SPARSE));
  // Shards often end in the middle of a block.
  gradient_code.block = static_cast<int32_t>(rng.Between(1, 12));
  gradient_code.kept =
      static_cast<int32_t>(rng.Between(1, gradient_code.block));
  gradient_keep = rng.Chance(0.5) ? Keep::kLargest : Keep::kRandom;
}

void Scenario::DrawPulledAs() {
  Rng rng = Rng(seed).Fork("pulled as");
  if (rng.Chance(0.5)) return;
  for (size_t t = 0; t < table_elements.size(); ++t) {
    pulled_as.push_back(static_cast<wire::Encoding::Kind>(
        rng.Between(wire::Encoding::FLOAT32, wire::Encoding::FLOAT16)));
  }
}

void Scenario::DrawSampling() {
  Rng rng = Rng(seed).Fork("sampling");
  elastic.reset();
  if (!rng.Chance(0.3)) return;
  wire::Elastic& drawn = elastic.emplace();
  drawn.set_batch_size(rng.Between(1, 4));
  // Some are left over, in an epoch and at the end.
  drawn.set_total(std::max<int64_t>(
      1, steps * workers * drawn.batch_size() - rng.Between(0, 6)));
  drawn.set_examples(std::max<int64_t>(1, drawn.total() / rng.Between(1, 4)));
}

void Scenario::DrawEarlyEnd() {
  Rng rng = Rng(seed).Fork("early end");
  const bool wanted = rng.Chance(modes.changes ? 0.12 : 0.06);
  // Late, so that there is something to end.
  UserAction action{UserAction::Kind::kFinish,
                    Between(rng, heal_at * 0.3, heal_at)};
  if (!wanted) return;
  placement.user.push_back(action);
  if (rng.Chance(0.8)) return;  // Else somebody asks once more.
  action.at = Between(rng, absl::ZeroDuration(), heal_at);
  placement.user.push_back(action);
}

void Scenario::RemoveCheckpoints() {
  checkpoints = {};
  std::erase_if(placement.user, [](const UserAction& action) {
    return action.kind == UserAction::Kind::kCheckpoint ||
           action.kind == UserAction::Kind::kSuspend;
  });
}

void Scenario::DrawCheckpoints() {
  Rng rng = Rng(seed).Fork("checkpoints");
  RemoveCheckpoints();
  if (Rng keeps = Rng(seed).Fork("kept programs"); keeps.Chance(0.5)) {
    for (int32_t rank = 0; rank < workers; ++rank) {
      if (keeps.Chance(0.8)) checkpoints.programs.insert(rank);
    }
  }
  checkpoints.wanted = rng.Chance(0.35);
  if (!checkpoints.wanted) return;
  const bool by_config = rng.Chance(0.6);
  if (by_config && rng.Chance(0.5)) {
    checkpoints.config.set_every_steps(rng.Between(2, 10));
  } else if (by_config && rng.Chance(0.5)) {
    checkpoints.config.set_every_epochs(0.1 + 0.3 * rng.Uniform());
  } else if (by_config) {
    checkpoints.config.set_every_seconds(absl::ToDoubleSeconds(lease) *
                                         (0.1 + rng.Uniform()));
  }
  for (int64_t left = rng.Between(by_config ? 0 : 1, 3); left > 0; --left) {
    UserAction action{UserAction::Kind::kCheckpoint,
                      Between(rng, absl::ZeroDuration(), heal_at)};
    placement.user.push_back(action);
    if (rng.Chance(0.7)) continue;  // Else somebody asks once more at once.
    action.at += Between(rng, absl::ZeroDuration(), absl::Milliseconds(50));
    placement.user.push_back(action);
  }
  checkpoints.late = rng.Chance(0.5);
  checkpoints.slow = rng.Chance(0.5) ? 0.2 * rng.Uniform() : 0;
  checkpoints.slow_max = lease * 3;
  DrawSuspension();
}

void Scenario::DrawSuspension() {
  if (Rng told = Rng(seed).Fork("server notice"); told.Chance(0.2)) {
    checkpoints.server_notice = {
        .server = static_cast<int32_t>(told.Below(servers)),
        .at = Between(told, absl::ZeroDuration(), heal_at)};
  }
  Rng rng = Rng(seed).Fork("suspension");
  if (!rng.Chance(0.15)) return;
  const absl::Duration at = Between(rng, absl::ZeroDuration(), heal_at);
  const bool by_user = rng.Chance(0.5);
  if (by_user || rng.Chance(0.3))
    placement.user.push_back({UserAction::Kind::kSuspend, at});
  if (!by_user) {
    checkpoints.notice = {.rank = static_cast<int32_t>(rng.Below(workers)),
                          .at = at};
  }
}

bool Scenario::suspends() const {
  return checkpoints.notice.has_value() ||
         checkpoints.server_notice.has_value() ||
         absl::c_any_of(placement.user, [](const UserAction& action) {
           return action.kind == UserAction::Kind::kSuspend;
         });
}

void Scenario::RemoveFaults() {
  network = NetworkFaults();
  faults.clear();
  placement.faults.clear();
  modes.faults.clear();
  modes.group_faults = Modes::GroupFaults();
  for (absl::Duration& start : start_at) start = absl::Milliseconds(1);
  std::erase_if(placement.user, [](const UserAction& action) {
    return action.kind == UserAction::Kind::kFinish ||
           action.kind == UserAction::Kind::kSuspend;
  });
  checkpoints.notice.reset();
  checkpoints.server_notice.reset();
}

void Scenario::Resume(std::shared_ptr<const SimCheckpoint> checkpoint) {
  resume = std::move(checkpoint);
  elastic.reset();
  table_elements.clear();
  own_optimizers.clear();
  for (const checkpoint::Table& table : resume->manifest.table()) {
    table_elements.push_back(table.shape(0));
    own_optimizers.push_back(table.optimizer());
  }
}

void Scenario::DrawRates() {
  Rng rng = Rng(seed).Fork("rates");
  rate_factors = rng.Chance(0.4);
  skips_tables = Rng(seed).Fork("skips").Chance(0.25);
  tries_links = Rng(seed).Fork("try links").Chance(0.5);
  if (!rng.Chance(0.5)) return;
  for (size_t t = 0; t < table_elements.size(); ++t) {
    config::Optimizer& own = own_optimizers.emplace_back();
    switch (rng.Below(7)) {
      case 0:
        own = Sgd();
        own.mutable_sgd()->set_weight_decay(0.01);
        break;
      case 1:
        own = Momentum(0.75);
        own.mutable_momentum()->set_learning_rate(0.5);
        break;
      case 2:
        own = Adam();
        break;
      case 3:
        own.mutable_adagrad()->set_learning_rate(0.1);
        break;
      case 4:
        own.mutable_adamw()->set_learning_rate(0.3);
        break;
      case 5:
        own = DrawLaterRule(rng);
        break;
      default:
        break;  // The job's.
    }
  }
}

std::string Scenario::ToString() const {
  std::string phases;
  for (const Modes::Phase& phase : modes.later) {
    absl::StrAppend(&phases, ", ", ModeText(phase.mode), " from ", phase.from);
  }
  std::string text = absl::StrCat(
      "seed ", seed, ": ", servers, " servers x ", threads, " threads, ",
      workers, " workers, ", ModeText(mode), phases,
      modes.begins_with_worker ? ", from a worker's values" : "",
      modes.lanes ? ", with lanes" : "", pull_ahead ? " pulling ahead" : "",
      step_by_table ? " stepping by table" : "",
      asks_state > 0 ? " asking for the state" : "",
      gathers > 0 ? " with collectives" : "",
      after_last_max > absl::ZeroDuration() ? " at work after the end" : "",
      ", ", steps, " steps, ",
      elastic.has_value()
          ? absl::StrCat("elastic { ", elastic->ShortDebugString(), " }, ")
          : "",
      optimizer.ShortDebugString(), rate_factors ? ", rate factors" : "",
      skips_tables ? ", skipped tables" : "",
      tries_links ? ", links tried" : "",
      gradient_code.whole()
          ? ""
          : absl::StrCat(", pushed in { ",
                         EncodingOf(gradient_code, 0).ShortDebugString(),
                         gradient_keep == Keep::kRandom ? " any" : "", " }"),
      pulled_as.empty()
          ? ""
          : absl::StrCat(", pulled as ",
                         absl::StrJoin(pulled_as, "+",
                                       [](std::string* to, auto kind) {
                                         absl::StrAppend(
                                             to,
                                             wire::Encoding::Kind_Name(kind));
                                       })),
      ", tables of ", absl::StrJoin(table_elements, "+"),
      " elements in shards of ", shard_elements,
      HasRows() ? absl::StrCat(", in rows of ", absl::StrJoin(row_widths, "+"))
                : "",
      ", window ", window_bytes, " B, messages of ", message_bytes,
      " B, lease ", absl::FormatDuration(lease), ", retry ",
      absl::FormatDuration(retry_initial), " to ",
      absl::FormatDuration(retry_max), ", compute");
  for (const absl::Duration time : compute)
    absl::StrAppend(&text, " ", absl::FormatDuration(time));
  for (const config::Optimizer& own : own_optimizers)
    absl::StrAppend(&text, "; ", own.ShortDebugString());
  absl::StrAppend(
      &text, "; loss ", network.loss, ", duplicates ", network.duplicate,
      ", reordering ", network.reorder, ", slow ", network.slow, ", delay ",
      absl::FormatDuration(network.delay_min), " to ",
      absl::FormatDuration(network.delay_max), ", healed at ",
      absl::FormatDuration(heal_at), "; rebalance { ",
      placement.rebalance.ShortDebugString(), " } parts of ",
      placement.feed.part_bytes, " B, window ", placement.feed.window_bytes,
      " B of ", placement.feed.link.window_bytes, " B, backlog ",
      placement.feed.backlog_bytes_max, " B, catching up ",
      absl::FormatDuration(placement.feed.catch_up_max), ", gathering ",
      absl::FormatDuration(placement.feed.gather_max), ", waiting ",
      placement.waiting_max, placement.linger ? ", lingering" : "");
  if (replicas > 0) absl::StrAppend(&text, ", ", replicas, " followers");
  if (recovers) absl::StrAppend(&text, ", the coordinator comes back");
  if (takes_over) absl::StrAppend(&text, " in any server");
  if (address_moves) absl::StrAppend(&text, " at another address");
  if (host_vanishes) absl::StrAppend(&text, ", without a sign");
  for (const MoveFault& fault : placement.faults) {
    absl::StrAppend(&text, ", fault at '", MoveStepName(fault.step), "'");
  }
  for (const PhaseFault& fault : modes.faults) {
    absl::StrAppend(&text, ", fault at '", PhaseStepName(fault.step), "'");
  }
  for (const NamedPart& part : kParts) {
    if (reality.*part.part) absl::StrAppend(&text, ", with ", part.name);
  }
  for (const TrainerStall& stall : trainer_stalls) {
    absl::StrAppend(&text, ", rank ", static_cast<int>(stall.rank),
                    " stalls at clock ", stall.clock, " for ",
                    absl::FormatDuration(stall.duration));
  }
  if (links.queue_max > 0) {
    absl::StrAppend(&text, ", links of ", links.bytes_per_second,
                    " B/s and queues of ", links.queue_max);
  }
  const std::string rules = absl::StrCat(
      schedule.ShortDebugString(), stale.ShortDebugString(),
      stop.ShortDebugString(),
      gradient_bound.has_value()
          ? absl::StrCat(" bound { ", gradient_bound->ShortDebugString(),
                         " } for rank ", static_cast<int>(broken))
          : "");
  if (!rules.empty()) absl::StrAppend(&text, ", rules ", rules);
  if (checkpoints.wanted) {
    absl::StrAppend(&text, ", checkpoints { ",
                    checkpoints.config.ShortDebugString(), " }, ",
                    checkpoints.slow, " of the files slow, with programs { ",
                    absl::StrJoin(checkpoints.programs, " "), " }",
                    suspends() ? ", and is to be suspended" : "");
    if (checkpoints.server_notice.has_value()) {
      absl::StrAppend(&text, ", server ", checkpoints.server_notice->server,
                      " is told that its time is over");
    }
  }
  if (resume != nullptr)
    absl::StrAppend(&text, ", from ", resume->manifest.ShortDebugString());
  return text;
}

GradientBound Scenario::MakeGradientBound() const {
  return gradient_bound.has_value() ? GradientBound(*gradient_bound)
                                    : GradientBound();
}

bool Scenario::IsBroken(Rank rank, Clock clock) const {
  return gradient_bound.has_value() && rank == broken &&
         Mix64(seed ^ static_cast<uint64_t>(clock)) % 3 == 0;
}

std::vector<float> Scenario::Gradient(Rank rank, Incarnation incarnation,
                                      Clock clock, TableId table, int64_t begin,
                                      int64_t end) const {
  uint64_t hash = gradient_seed.value_or(seed);
  const Incarnation life = gradient_seed.has_value() ? 0 : incarnation;
  for (const uint64_t part :
       {static_cast<uint64_t>(rank), static_cast<uint64_t>(life),
        static_cast<uint64_t>(clock), static_cast<uint64_t>(table)}) {
    hash = Mix64(hash ^ part);
  }
  std::vector<float> values;
  values.reserve(static_cast<size_t>(end - begin));
  for (int64_t i = begin; i < end; ++i) {
    const uint64_t bits = Mix64(hash ^ static_cast<uint64_t>(i));
    const auto mantissa = static_cast<double>(static_cast<int32_t>(bits >> 32));
    values.push_back(static_cast<float>(
        std::ldexp(mantissa, -31 + static_cast<int>(bits % 8))));
    if (HasRows(table) &&
        Mix64(hash + 1 + static_cast<uint64_t>(i / RowWidth(table))) % 3 > 0) {
      values.back() = 0;
    }
  }
  if (IsBroken(rank, clock)) {
    for (float& value : values) value *= kBrokenFactor;
  }
  return values;
}

CodedGradient Scenario::PushOf(Rank rank, Incarnation incarnation, Clock clock,
                               TableId table) const {
  const int64_t elements = table_elements[static_cast<size_t>(table)];
  const std::vector<float> floats =
      Gradient(rank, incarnation, clock, table, 0, elements);
  Payload bytes =
      Payload::Allocate(gradient_code.Bytes(static_cast<size_t>(elements)));
  uint32_t first = 0;  // Differs from gradient to gradient, as all of it does.
  std::memcpy(&first, floats.data(), sizeof(first));
  Rng rng(first);
  Encode(gradient_code, gradient_keep, floats, &rng, bytes.MutableData());
  return {std::move(bytes), gradient_code};
}

std::vector<float> Scenario::Pushed(Rank rank, Incarnation incarnation,
                                    Clock clock, TableId table, int64_t begin,
                                    int64_t end) const {
  if (gradient_code.whole())
    return Gradient(rank, incarnation, clock, table, begin, end);
  const CodedGradient pushed = PushOf(rank, incarnation, clock, table);
  std::vector<float> floats(
      static_cast<size_t>(table_elements[static_cast<size_t>(table)]));
  SL_CHECK(Decode(pushed.code, pushed.bytes.data(), absl::MakeSpan(floats)),
           "a gradient that was encoded here cannot be decoded");
  return {floats.begin() + begin, floats.begin() + end};
}

}  // namespace slackline::sim
