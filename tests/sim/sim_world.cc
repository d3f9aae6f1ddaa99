#include "tests/sim/sim_world.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "absl/strings/match.h"
#include "common/status.h"

namespace slackline::sim {
namespace {

// A run of this many events goes in circles: the largest need some 30 000.
constexpr int64_t kEventsMax = 3'000'000;

template <typename Struct>
void AddAll(std::initializer_list<int64_t Struct::*> fields, const Struct& from,
            Struct* to) {
  for (const auto field : fields) to->*field += from.*field;
}

}  // namespace

void RunCounts::Add(const RunCounts& other) {
  using N = NetworkStats;
  using C = CheckerStats;
  using R = RunCounts;
  AddAll<N>(
      {&N::delivered, &N::lost, &N::repeated, &N::reordered, &N::slow, &N::cut,
       &N::held, &N::to_nobody, &N::of_the_dead, &N::dropped_of_the_dead},
      other.network, &network);
  AddAll<C>({&C::answers, &C::gated, &C::pushes, &C::updates, &C::joins,
             &C::advances, &C::partial_sums},
            other.checker, &checker);
  AddAll<R>(
      {&R::runs, &R::events, &R::finished, &R::failed, &R::coordinator_lost,
       &R::bsp, &R::ssp, &R::asp, &R::cuts, &R::crashes, &R::server_crashes,
       &R::restarts, &R::fenced, &R::gave_up},
      other, this);
  workers.Add(other.workers);
}

std::string RunCounts::ToString() const {
  return absl::StrCat(
      runs, " runs (", bsp, " bsp, ", ssp, " ssp, ", asp, " asp), ", events,
      " events: ", finished, " finished, ", failed, " failed, ",
      coordinator_lost, " lost the coordinator\n  ", cuts, " partitions, ",
      crashes, " worker and ", server_crashes, " server crashes, ", restarts,
      " restarts, ", fenced, " lives fenced, ", gave_up, " gave up\n  ",
      network.delivered, " messages delivered, ", network.lost, " lost, ",
      network.repeated, " repeated, ", network.reordered, " reordered, ",
      network.slow, " slow, ", network.cut, " cut, ", network.held, " held, ",
      network.of_the_dead, " of the dead, ", network.dropped_of_the_dead,
      " of the dead dropped\n  ", workers.steps, " steps, ", workers.retries,
      " retries, ", workers.pulls_ahead, " pulls ahead, ", workers.late_starts,
      " late starts, ", workers.uneven_starts, " uneven, ", workers.final_pulls,
      " final pulls\n  ", checker.answers, " answers checked, ", checker.gated,
      " of them gated, ", checker.pushes, " pushes taken over, ",
      checker.updates, " updates, ", checker.joins, " late joins, ",
      checker.advances, " advances, ", checker.partial_sums, " partial sums");
}

SimWorld::SimWorld(const Scenario& scenario, bool keep_log)
    : context_(scenario, keep_log),
      servers_(scenario.servers),
      workers_(scenario.workers),
      restart_pending_(scenario.workers, false) {}

void SimWorld::StartServer(int index) {
  if (index == 0) coordinator_ = std::make_unique<SimCoordinator>(&context_);
  context_.Log("server ", index, " starts");
  servers_[index] =
      std::make_unique<SimServer>(&context_, index, context_.rng.Next());
  if (on_server_started) on_server_started(servers_[index].get());
}

void SimWorld::StartWorker(int rank) {
  restart_pending_[rank] = false;
  if (workers_[rank] != nullptr) {
    if (workers_[rank]->end().kind == ProcessEnd::Kind::kAlive) return;
    const SimWorker::Counts past = workers_[rank]->counts();
    counts_.workers.Add(past);
    ++counts_.restarts;
  }
  context_.Log("worker ", rank, " starts");
  workers_[rank] =
      std::make_unique<SimWorker>(&context_, Rank{rank}, context_.rng.Next());
}

void SimWorld::Inject(const FaultEvent& fault) {
  const absl::Time now = context_.queue.now();
  const Scenario& scenario = context_.scenario;
  switch (fault.kind) {
    case FaultEvent::Kind::kIsolate:
      ++counts_.cuts;
      context_.Log("node ", fault.node, " is cut off for ",
                   absl::FormatDuration(fault.duration),
                   fault.held ? ", messages are held" : ", messages are lost");
      for (Node other = 0; other < scenario.servers + scenario.workers;
           ++other) {
        context_.network.Cut(fault.node, other, now + fault.duration,
                             fault.held);
        if (!fault.one_way) {
          context_.network.Cut(other, fault.node, now + fault.duration,
                               fault.held);
        }
      }
      return;
    case FaultEvent::Kind::kCutLink:
      ++counts_.cuts;
      context_.Log("the link from node ", fault.node, " to ", fault.peer,
                   " is cut for ", absl::FormatDuration(fault.duration),
                   fault.held ? ", messages are held" : ", messages are lost");
      context_.network.Cut(fault.node, fault.peer, now + fault.duration,
                           fault.held);
      if (!fault.one_way) {
        context_.network.Cut(fault.peer, fault.node, now + fault.duration,
                             fault.held);
      }
      return;
    case FaultEvent::Kind::kCrash:
      break;
  }
  if (fault.node < scenario.servers) {
    SimServer* const server = servers_[fault.node].get();
    if (server == nullptr || server->end().kind != ProcessEnd::Kind::kAlive)
      return;
    ++counts_.server_crashes;
    server->Crash(fault.drop_sent);
    if (fault.node == 0) {
      server0_crashed_ = true;
      coordinator_->Crash();
    }
    return;
  }
  const int rank = fault.node - scenario.servers;
  SimWorker* const worker = workers_[rank].get();
  if (worker == nullptr || worker->end().kind != ProcessEnd::Kind::kAlive)
    return;
  ++counts_.crashes;
  worker->Crash(fault.drop_sent);
  if (!fault.restart) return;
  restart_pending_[rank] = true;
  context_.queue.After(fault.duration, [this, rank] { StartWorker(rank); });
}

void SimWorld::FollowUp() {
  for (int rank = 0; rank < static_cast<int>(workers_.size()); ++rank) {
    if (workers_[rank] == nullptr || restart_pending_[rank]) continue;
    const ProcessEnd& end = workers_[rank]->end();
    if (end.kind != ProcessEnd::Kind::kFenced) continue;
    ++counts_.fenced;
    restart_pending_[rank] = true;
    context_.queue.After(absl::Milliseconds(1),
                         [this, rank] { StartWorker(rank); });
  }
}

bool SimWorld::AllEnded() const {
  const auto ended = [&](const auto& process, Node node) {
    return process == nullptr ? NeverStarts(node)
                              : process->end().kind != ProcessEnd::Kind::kAlive;
  };
  if (coordinator_ == nullptr ? !NeverStarts(0) : !coordinator_->over())
    return false;
  for (int index = 0; index < static_cast<int>(servers_.size()); ++index) {
    if (!ended(servers_[index], index)) return false;
  }
  for (int rank = 0; rank < static_cast<int>(workers_.size()); ++rank) {
    if (restart_pending_[rank]) return false;
    if (!ended(workers_[rank], context_.scenario.WorkerNode(rank)))
      return false;
  }
  return true;
}

bool SimWorld::NeverStarts(Node node) const {
  return context_.scenario.start_at[node] == absl::InfiniteDuration();
}

std::string SimWorld::StatusLines() const {
  std::string text =
      coordinator_ == nullptr
          ? "no coordinator"
          : absl::StrCat("coordinator: ",
                         wire::JobState_Name(coordinator_->core().state()));
  for (const auto& server : servers_) {
    if (server != nullptr) absl::StrAppend(&text, "\n  ", server->StatusLine());
  }
  for (const auto& worker : workers_) {
    if (worker != nullptr) absl::StrAppend(&text, "\n  ", worker->StatusLine());
  }
  return text;
}

void SimWorld::CheckOutcome() {
  Checker& checker = context_.checker;
  const auto check_end = [&](const std::string& who, const ProcessEnd& end) {
    // Whoever gives up has to say on whom.
    if (end.kind == ProcessEnd::Kind::kGaveUp &&
        !absl::StrContains(end.what, "coordinator") &&
        !absl::StrContains(end.what, "worker ") && end.what != "fenced") {
      checker.Report(
          Invariant::kOutcome,
          absl::StrCat(who, " gave up without naming anybody: ", end.what));
    }
  };
  for (const auto& server : servers_) {
    if (server != nullptr) check_end(server->StatusLine(), server->end());
  }
  for (const auto& worker : workers_) {
    if (worker != nullptr) check_end(worker->StatusLine(), worker->end());
  }
  const wire::JobState state = coordinator_ == nullptr
                                   ? wire::JOB_STATE_UNSPECIFIED
                                   : coordinator_->core().state();
  if (state == wire::FINISHED) {
    ++counts_.finished;
    checker.OnFinished();
    return;
  }
  if (state != wire::FAILED) {
    ++counts_.coordinator_lost;
    if (!server0_crashed_ && !NeverStarts(0)) {
      checker.Report(Invariant::kOutcome,
                     "the job has not ended and its coordinator has");
    }
    return;
  }
  ++counts_.failed;
  // Every removal was checked when it happened, so these reasons are true ones.
  const std::string& reason = coordinator_->core().reason();
  const bool named = absl::StrContains(reason, "server ") ||
                     absl::StrContains(reason, "worker ");
  const bool had_to = absl::StrContains(reason, "its shards are lost") ||
                      absl::StrContains(reason, "no worker is left") ||
                      absl::StrContains(reason, "did not join within");
  if (!named || !had_to) {
    checker.Report(Invariant::kOutcome,
                   absl::StrCat("the job failed without need: ", reason));
  }
}

RunReport SimWorld::Run() {
  const Scenario& scenario = context_.scenario;
  context_.Log(scenario.ToString());
  for (Node node = 0; node < static_cast<Node>(scenario.start_at.size());
       ++node) {
    if (scenario.start_at[node] == absl::InfiniteDuration()) continue;
    context_.queue.After(scenario.start_at[node], [this, node] {
      if (node < context_.scenario.servers) {
        StartServer(node);
      } else {
        StartWorker(node - context_.scenario.servers);
      }
    });
  }
  for (const FaultEvent& fault : scenario.faults) {
    context_.queue.After(fault.at, [this, fault] { Inject(fault); });
  }
  context_.queue.After(scenario.heal_at, [this] {
    context_.Log("from here on nothing goes wrong any more");
    context_.network.Heal();
  });
  const absl::Duration slowest =
      *std::max_element(scenario.compute.begin(), scenario.compute.end());
  // Joining, leases, giving up; then the work that is left, done by one after
  // the other at worst.
  const absl::Time deadline = context_.queue.now() + scenario.heal_at +
                              scenario.start_timeout * 3 + scenario.lease * 20 +
                              scenario.retry_max * 20 +
                              4 * static_cast<double>(scenario.steps) *
                                  (slowest + absl::Milliseconds(100));
  while (!context_.checker.violation().has_value() &&
         context_.queue.RunNext()) {
    FollowUp();
    if (AllEnded()) break;
    if (context_.queue.now() > deadline ||
        context_.queue.events_run() > kEventsMax) {
      context_.checker.Report(
          Invariant::kLiveness,
          absl::StrCat("not everybody has come to an end ",
                       absl::FormatDuration(deadline - absl::UnixEpoch()),
                       " after the start: ", StatusLines()));
    }
  }
  CheckOutcome();

  RunReport report;
  report.violation = context_.checker.violation();
  report.outcome =
      coordinator_ == nullptr
          ? "no coordinator"
          : absl::StrCat(wire::JobState_Name(coordinator_->core().state()),
                         ": ", coordinator_->core().reason());
  counts_.runs = 1;
  counts_.events = context_.queue.events_run();
  counts_.network = context_.network.stats();
  counts_.checker = context_.checker.stats();
  for (const auto& worker : workers_) {
    if (worker == nullptr) continue;
    counts_.workers.Add(worker->counts());
    counts_.gave_up += worker->end().kind == ProcessEnd::Kind::kGaveUp;
  }
  counts_.bsp = scenario.mode == wire::BSP;
  counts_.ssp = scenario.mode == wire::SSP;
  counts_.asp = scenario.mode == wire::ASP;
  report.counts = counts_;
  report.log = std::move(context_.log);
  return report;
}

RunReport RunSeed(uint64_t seed, bool keep_log) {
  SimWorld world(Scenario::Random(seed), keep_log);
  return world.Run();
}

}  // namespace slackline::sim
