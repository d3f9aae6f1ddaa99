// Does the planner keep 1,000 servers with 1,000,000 shards balanced while
// popularity drifts, how many bytes does that move, and how long does it take
// to plan?
//
// A simulation of load, driven by the real planner. The shard of rank r has a
// demand proportional to r^-exponent. Each round every shard's rank wanders
// (normal steps of its logarithm, then all are ranked again) and a few cold
// shards become hot at once; then one plan is made and carried out. Pieces that
// the planner split stay so and have the demand of their share of the elements.
//
// Beside it, on the same demand:
//   static   every shard stays where its hash puts it
//   greedy   everything is placed anew in each round, largest first, each shard
//            to the least loaded server; with the same pieces as the planner
//
// Greedy bounds what a placement can reach. Its bytes: nearly every shard goes
// elsewhere in every round, (1 - 1 / servers) of all bytes. A plan needs at
// least the bytes that carry the load above the target; planning takes one pass
// over all shards and n log n for the shards of overloaded servers.
//
// Every plan is verified before its time counts: shards are moved from where
// they are, at most once, pieces make up their shard, bounds are kept, and the
// worst utilisation is the predicted one.
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/report.h"
#include "common/rng.h"
#include "common/status.h"
#include "server/coordinator/planner.h"

namespace slackline::bench {
namespace {

struct Options {
  int servers = 1000;
  int shards = 1000000;
  std::vector<double> exponents = {0.6, 1.0, 1.2};
  int rounds = 60;
  int64_t elements = int64_t{1} << 18;
  double mean = 0.5;   // Utilisation.
  double drift = 0.1;  // Standard deviation of a step of ln(rank).
  int jumps = 5;       // Shards per round that get one of the top 1,000 ranks.
  int budget_mib = 16384;
  int moves_max = 10000;
  uint64_t seed = 1;
  bool smoke = false;
};

// Values and one optimizer slot.
constexpr int64_t kBytesPerElement = 8;
constexpr int kHotRanks = 1000;

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

// Seconds that this thread has had a core: what planning costs, even where
// other work keeps it from running.
double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) +
         1e-9 * static_cast<double>(now.tv_nsec);
}

// Who is how popular.
class Popularity {
 public:
  Popularity(const Options& options, double exponent, Rng rng)
      : options_(options), rng_(rng), by_rank_(options.shards) {
    double total = 0;
    for (int r = 0; r < options.shards; ++r) {
      demand_of_rank_.push_back(std::pow(r + 1.0, -exponent));
      total += demand_of_rank_.back();
    }
    for (double& demand : demand_of_rank_) {
      demand *= options.mean * options.servers / total;
    }
    std::iota(by_rank_.begin(), by_rank_.end(), 0);
    for (int i = options.shards - 1; i > 0; --i) {
      std::swap(by_rank_[i], by_rank_[rng_.Below(i + 1)]);
    }
    Assign();
  }

  void Drift() {
    std::vector<std::pair<double, int>> keys(by_rank_.size());
    for (size_t r = 0; r < by_rank_.size(); ++r) {
      keys[r] = {
          std::log(static_cast<double>(r + 1)) + options_.drift * rng_.Normal(),
          by_rank_[r]};
    }
    const int hot = std::min(kHotRanks, options_.shards);
    for (int j = 0; j < options_.jumps; ++j) {
      keys[rng_.Below(keys.size())].first =
          std::log(static_cast<double>(rng_.Between(1, hot)));
    }
    std::sort(keys.begin(), keys.end());
    for (size_t r = 0; r < keys.size(); ++r) by_rank_[r] = keys[r].second;
    Assign();
  }

  // Of the whole shard, as it was at the start.
  double demand(int shard) const { return demand_[shard]; }
  double hottest() const { return demand_of_rank_[0]; }

 private:
  void Assign() {
    demand_.resize(by_rank_.size());
    for (size_t r = 0; r < by_rank_.size(); ++r) {
      demand_[by_rank_[r]] = demand_of_rank_[r];
    }
  }

  const Options& options_;
  Rng rng_;
  std::vector<double> demand_of_rank_;
  std::vector<int> by_rank_;
  std::vector<double> demand_;
};

double Worst(const std::vector<PlannerShard>& shards, int servers) {
  std::vector<double> load(servers);
  for (const PlannerShard& shard : shards) load[shard.thread] += shard.demand;
  return *std::max_element(load.begin(), load.end());
}

// Places everything anew; counts what goes elsewhere.
class Greedy {
 public:
  explicit Greedy(const std::vector<PlannerShard>& shards) {
    for (const PlannerShard& shard : shards) where_.push_back(shard.thread);
  }

  void OnSplit(const PlannerSplit& split) {
    where_.push_back(where_[static_cast<size_t>(split.shard)]);
  }

  struct Outcome {
    double worst = 0;
    int64_t bytes = 0;
  };
  Outcome Place(const std::vector<PlannerShard>& shards, int servers) {
    std::vector<int> order(shards.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int a, int b) {
      return std::pair(-shards[a].demand, a) < std::pair(-shards[b].demand, b);
    });
    std::priority_queue<std::pair<double, int>,
                        std::vector<std::pair<double, int>>, std::greater<>>
        loads;
    for (int s = 0; s < servers; ++s) loads.emplace(0, s);
    Outcome outcome;
    for (const int i : order) {
      const auto [load, server] = loads.top();
      loads.pop();
      loads.emplace(load + shards[i].demand, server);
      outcome.worst = std::max(outcome.worst, load + shards[i].demand);
      if (where_[i] != server) outcome.bytes += shards[i].bytes;
      where_[i] = server;
    }
    return outcome;
  }

 private:
  std::vector<int> where_;
};

// Shards and pieces of shards.
class Cluster {
 public:
  Cluster(const Options& options, const Popularity& popularity)
      : options_(options) {
    for (int s = 0; s < options.servers; ++s) {
      threads_.push_back({.owner = {s, 0}});
    }
    for (int i = 0; i < options.shards; ++i) {
      PlannerShard shard;
      shard.shard = ShardId{i};
      shard.thread = static_cast<int>(Mix64(options.seed + i) %
                                      static_cast<uint64_t>(options.servers));
      shard.bytes = options.elements * kBytesPerElement;
      shard.region = Region::First(options.elements);
      shards_.push_back(shard);
      whole_.push_back(i);
    }
    SetDemand(popularity);
  }

  void SetDemand(const Popularity& popularity) {
    for (size_t i = 0; i < shards_.size(); ++i) {
      const double share = static_cast<double>(shards_[i].region.size()) /
                           static_cast<double>(options_.elements);
      shards_[i].demand = share * popularity.demand(whole_[i]);
    }
  }

  // False, with the reason on stderr, if the plan is wrong.
  bool CarryOut(const PlannerResult& plan, const PlannerOptions& bounds) {
    for (const PlannerSplit& split : plan.splits) {
      PlannerShard& shard = shards_[static_cast<size_t>(split.shard)];
      const auto [kept, rest] = shard.region.SplitAt(split.at);
      if (kept.size() < bounds.split_elements_min ||
          rest.size() < bounds.split_elements_min ||
          static_cast<size_t>(split.new_shard) != shards_.size()) {
        return Wrong("split", split.shard);
      }
      PlannerShard piece = shard;
      const double part = static_cast<double>(rest.size()) /
                          static_cast<double>(shard.region.size());
      piece.shard = split.new_shard;
      piece.region = rest;
      piece.bytes =
          static_cast<int64_t>(part * static_cast<double>(shard.bytes));
      piece.demand = part * shard.demand;
      shard.region = kept;
      shard.bytes -= piece.bytes;
      shard.demand -= piece.demand;
      whole_.push_back(whole_[static_cast<size_t>(split.shard)]);
      shards_.push_back(piece);
    }
    int64_t bytes = 0;
    std::vector<bool> moved(shards_.size());
    for (const PlannerMove& move : plan.moves) {
      const auto index = static_cast<size_t>(move.shard);
      if (index >= shards_.size() || moved[index] ||
          shards_[index].thread != move.from) {
        return Wrong("move", move.shard);
      }
      moved[index] = true;
      bytes += shards_[index].bytes;
      shards_[index].thread = move.to;
    }
    const double worst = Worst(shards_, options_.servers);
    if (bytes != plan.bytes || bytes > bounds.bytes_max ||
        static_cast<int>(plan.moves.size()) > bounds.moves_max ||
        std::fabs(worst - plan.worst_after) > 1e-9 ||
        plan.worst_after > plan.worst_before + 1e-9) {
      std::fprintf(stderr,
                   "the plan moves %lld bytes and says %lld; worst utilisation "
                   "%.9g, it says %.9g\n",
                   static_cast<long long>(bytes),
                   static_cast<long long>(plan.bytes), worst, plan.worst_after);
      return false;
    }
    return true;
  }

  const std::vector<PlannerThread>& threads() const { return threads_; }
  const std::vector<PlannerShard>& shards() const { return shards_; }
  std::string PlacementChecksum() const {
    std::vector<int32_t> where;
    for (const PlannerShard& shard : shards_) where.push_back(shard.thread);
    return Checksum(where.data(), where.size() * sizeof(int32_t));
  }

 private:
  static bool Wrong(const char* what, ShardId shard) {
    std::fprintf(stderr, "%s of shard %d is not possible\n", what,
                 static_cast<int>(shard));
    return false;
  }

  const Options& options_;
  std::vector<PlannerThread> threads_;
  std::vector<PlannerShard> shards_;
  std::vector<int> whole_;  // The shard that each is a piece of.
};

double RoundTo(double value, double steps_per_unit) {
  return std::round(value * steps_per_unit) / steps_per_unit;
}

// False if a plan was wrong.
bool Simulate(const Options& options, double exponent) {
  PlannerOptions bounds;
  bounds.bytes_max = int64_t{options.budget_mib} << 20;
  bounds.moves_max = options.moves_max;
  Popularity popularity(options, exponent, Rng(options.seed).Fork("rank"));
  Cluster cluster(options, popularity);
  std::vector<PlannerShard> hashed = cluster.shards();
  Greedy greedy(cluster.shards());

  std::fprintf(stderr,
               "\nZipf %.2f: the hottest shard has %.2f times the mean of a "
               "server\n%5s %8s %8s %8s %8s %7s %7s %9s %9s %11s\n",
               exponent, popularity.hottest() / options.mean, "round", "static",
               "greedy", "before", "after", "moves", "splits", "MiB", "cpu ms",
               "greedy MiB");
  std::vector<double> before, after, fixed, anew, mib, anew_mib, plan_ms,
      cpu_ms, planned_ms;
  int64_t splits = 0;
  int64_t moves = 0;
  int first_round_at_110 = -1;
  for (int round = 0; round < options.rounds; ++round) {
    if (round > 0) {
      popularity.Drift();
      cluster.SetDemand(popularity);
      for (PlannerShard& shard : hashed) {
        shard.demand = popularity.demand(static_cast<int>(shard.shard));
      }
    }
    const auto start = std::chrono::steady_clock::now();
    const double cpu_start = CpuSeconds();
    const PlannerResult plan =
        PlanMoves(cluster.threads(), cluster.shards(), bounds);
    cpu_ms.push_back(1e3 * (CpuSeconds() - cpu_start));
    plan_ms.push_back(1e3 * SecondsSince(start));
    if (!plan.moves.empty()) planned_ms.push_back(cpu_ms.back());
    if (!cluster.CarryOut(plan, bounds)) return false;
    for (const PlannerSplit& split : plan.splits) greedy.OnSplit(split);
    const Greedy::Outcome fresh =
        greedy.Place(cluster.shards(), options.servers);

    before.push_back(plan.worst_before / plan.mean);
    after.push_back(plan.worst_after / plan.mean);
    fixed.push_back(Worst(hashed, options.servers) / plan.mean);
    anew.push_back(fresh.worst / plan.mean);
    mib.push_back(static_cast<double>(plan.bytes) / (1 << 20));
    anew_mib.push_back(static_cast<double>(fresh.bytes) / (1 << 20));
    splits += static_cast<int64_t>(plan.splits.size());
    moves += static_cast<int64_t>(plan.moves.size());
    if (first_round_at_110 < 0 && after.back() <= 1.1) {
      first_round_at_110 = round;
    }
    if (round < 4 || (round + 1) % 10 == 0) {
      std::fprintf(stderr,
                   "%5d %8.3f %8.3f %8.3f %8.3f %7zu %7zu %9.1f %9.1f %11.0f\n",
                   round, fixed.back(), anew.back(), before.back(),
                   after.back(), plan.moves.size(), plan.splits.size(),
                   mib.back(), cpu_ms.back(), anew_mib.back());
    }
  }
  // The first rounds undo the hashing; from then on it follows the drift.
  const size_t settled =
      std::min<size_t>(10, static_cast<size_t>(options.rounds) - 1);
  const auto from_settled = [settled](const std::vector<double>& all) {
    return std::vector<double>(all.begin() + static_cast<int64_t>(settled),
                               all.end());
  };
  const auto total = [](const std::vector<double>& all) {
    return std::accumulate(all.begin(), all.end(), 0.0);
  };
  std::fprintf(
      stderr,
      "from round %zu: before plans median %.3f, max %.3f; after plans median "
      "%.3f, max %.3f; %.1f MiB per round (greedy %.0f)\n"
      "all rounds: %lld moves, %lld splits, %.0f MiB (greedy %.0f); planning "
      "p50 %.1f ms, max %.1f ms of one core, max %.1f ms of time\n",
      settled, SpreadOf(from_settled(before)).median,
      SpreadOf(from_settled(before)).max, SpreadOf(from_settled(after)).median,
      SpreadOf(from_settled(after)).max,
      total(from_settled(mib)) / static_cast<double>(mib.size() - settled),
      total(from_settled(anew_mib)) / static_cast<double>(mib.size() - settled),
      static_cast<long long>(moves), static_cast<long long>(splits), total(mib),
      total(anew_mib), Percentile(cpu_ms, 50), Percentile(cpu_ms, 100),
      Percentile(plan_ms, 100));

  nlohmann::ordered_json line;
  line["exponent"] = exponent;
  line["servers"] = options.servers;
  line["shards"] = options.shards;
  line["rounds"] = options.rounds;
  line["elements"] = options.elements;
  line["mean"] = options.mean;
  line["drift"] = options.drift;
  line["jumps"] = options.jumps;
  line["budget_mib"] = options.budget_mib;
  line["moves_max"] = options.moves_max;
  line["seed"] = options.seed;
  line["smoke"] = options.smoke;
  line["hottest_shard_over_mean"] = popularity.hottest() / options.mean;
  line["moves"] = moves;
  line["splits"] = splits;
  line["first_round_at_1.1"] = first_round_at_110;
  line["plan_cpu_ms_p50"] = Percentile(cpu_ms, 50);
  line["plan_cpu_ms_max"] = Percentile(cpu_ms, 100);
  line["plan_ms_p50"] = Percentile(plan_ms, 50);
  line["plan_ms_max"] = Percentile(plan_ms, 100);
  if (!planned_ms.empty()) {
    line["plan_with_moves_cpu_ms_p50"] = Percentile(planned_ms, 50);
  }
  line["settled_from_round"] = settled;
  line["settled_worst_over_mean_before"] =
      ToJson(SpreadOf(from_settled(before)));
  line["settled_worst_over_mean_after"] = ToJson(SpreadOf(from_settled(after)));
  line["settled_mib_per_round"] = ToJson(SpreadOf(from_settled(mib)));
  const auto series = [&line](const std::string& name,
                              const std::vector<double>& values,
                              double steps_per_unit) {
    for (const double value : values) {
      line[name].push_back(RoundTo(value, steps_per_unit));
    }
  };
  series("static_worst_over_mean", fixed, 1e4);
  series("greedy_worst_over_mean", anew, 1e4);
  series("worst_over_mean_before", before, 1e4);
  series("worst_over_mean_after", after, 1e4);
  series("mib", mib, 10);
  series("greedy_mib", anew_mib, 10);
  line["checksum"] = cluster.PlacementChecksum();
  PrintJsonLine("planner", line);
  return true;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Does the planner keep many servers balanced under drift?");
  auto* const servers =
      app.add_option("--servers", options.servers, "of one shard thread each")
          ->check(CLI::Range(2, 100000))
          ->capture_default_str();
  auto* const shards = app.add_option("--shards", options.shards, "at first")
                           ->check(CLI::Range(1, 10000000))
                           ->capture_default_str();
  app.add_option("--exponents", options.exponents, "of the Zipf law")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 3.0))
      ->capture_default_str();
  auto* const rounds =
      app.add_option("--rounds", options.rounds, "drift, then plan")
          ->check(CLI::Range(2, 10000))
          ->capture_default_str();
  app.add_option("--elements", options.elements, "of each shard")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->capture_default_str();
  app.add_option("--mean", options.mean, "utilisation of the servers")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  app.add_option("--drift", options.drift,
                 "standard deviation of a round's step of ln(rank)")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
  app.add_option("--jumps", options.jumps, "shards that turn hot per round")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  app.add_option("--budget-mib", options.budget_mib, "bytes of one plan")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  app.add_option("--moves-max", options.moves_max, "moves of one plan")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "of popularity and hashing")
      ->capture_default_str();
  app.add_flag("--smoke", options.smoke, "tiny: does it still work?")
      ->excludes(servers)
      ->excludes(shards)
      ->excludes(rounds);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (options.smoke) {
    options.servers = 20;
    options.shards = 5000;
    options.rounds = 12;
  }
  for (const double exponent : options.exponents) {
    if (!Simulate(options, exponent)) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace slackline::bench

int main(int argc, char** argv) { return slackline::bench::Main(argc, argv); }
