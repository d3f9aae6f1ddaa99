#include "tests/sim/scenario.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/rng.h"
#include "common/sync/staleness_gate.h"

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
  const int nodes = scenario.servers + scenario.workers;
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

}  // namespace

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
  switch (rng.Below(3)) {
    case 0:
      s.mode = wire::BSP;
      break;
    case 1:
      s.mode = wire::SSP;
      s.staleness = rng.Between(0, 4);
      break;
    default:
      s.mode = wire::ASP;
  }
  // A bound of 0 would make a worker wait for the push it has yet to make.
  s.pull_ahead = s.StalenessBound() >= 1 && rng.Chance(0.5);
  s.even_pull = rng.Chance(0.5);
  s.steps = rng.Between(5, 30);
  s.window_bytes = static_cast<size_t>(rng.Between(16, 1024));
  s.message_bytes = static_cast<size_t>(rng.Between(16, 256));
  s.lease = Between(rng, absl::Milliseconds(200), absl::Milliseconds(800));
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
  if (!faulty) return s;
  if (rng.Chance(0.01))
    s.start_at[rng.Below(s.start_at.size())] = absl::InfiniteDuration();

  const absl::Duration first =
      *std::max_element(s.start_at.begin(), s.start_at.end()) > absl::Seconds(3)
          ? absl::ZeroDuration()
          : *std::max_element(s.start_at.begin(), s.start_at.end());
  const absl::Duration end =
      first +
      static_cast<double>(s.steps) * (slowest + 2 * s.network.delay_max) * 1.5 +
      absl::Milliseconds(50);
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
    initializer.set_a(-100);
    initializer.set_b(100);
  }
  return tables;
}

Clock Scenario::StalenessBound() const {
  switch (mode) {
    case wire::BSP:
      return 0;
    case wire::SSP:
      return staleness;
    default:
      return kUnboundedStaleness;
  }
}

std::string Scenario::ToString() const {
  std::string text = absl::StrCat(
      "seed ", seed, ": ", servers, " servers x ", threads, " threads, ",
      workers, " workers, ", wire::Mode_Name(mode),
      mode == wire::SSP ? absl::StrCat("(", staleness, ")") : "",
      pull_ahead ? " pulling ahead" : "", ", ", steps, " steps, tables of ",
      absl::StrJoin(table_elements, "+"), " elements in shards of ",
      shard_elements, ", window ", window_bytes, " B, messages of ",
      message_bytes, " B, lease ", absl::FormatDuration(lease), ", retry ",
      absl::FormatDuration(retry_initial), " to ",
      absl::FormatDuration(retry_max), ", compute");
  for (const absl::Duration time : compute)
    absl::StrAppend(&text, " ", absl::FormatDuration(time));
  absl::StrAppend(&text, "; loss ", network.loss, ", duplicates ",
                  network.duplicate, ", reordering ", network.reorder,
                  ", slow ", network.slow, ", delay ",
                  absl::FormatDuration(network.delay_min), " to ",
                  absl::FormatDuration(network.delay_max), ", healed at ",
                  absl::FormatDuration(heal_at));
  return text;
}

std::vector<float> Scenario::Gradient(Rank rank, Incarnation incarnation,
                                      Clock clock, TableId table, int64_t begin,
                                      int64_t end) const {
  uint64_t hash = seed;
  for (const uint64_t part :
       {static_cast<uint64_t>(rank), static_cast<uint64_t>(incarnation),
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
  }
  return values;
}

}  // namespace slackline::sim
