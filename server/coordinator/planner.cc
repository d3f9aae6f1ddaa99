#include "server/coordinator/planner.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <queue>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status.h"

namespace slackline {
namespace {

// Where nothing fits as it is, only this many shards of a thread, the hottest,
// and this many partners, the ones with the most room, are tried against each
// other: it bounds the search, and small shards fit anywhere.
constexpr int kHottest = 64;
constexpr int kPartners = 8;
// Such searches that find nothing before the plan ends.
constexpr int kStuckMax = 64;
// A piece that is split off is at least this share of a thread's mean load,
// even if its new thread has to make room for it: crumbs would be a burden
// forever.
constexpr double kPieceShareMin = 1.0 / 8;
// A shard that fits nowhere whole is split, although others fit, if moving
// those is so much less worth than moving it would be.
constexpr double kSplitAdvantage = 4;
// Pieces are made to measure unless the smallest allowed is more than this
// share.
constexpr double kCoarseShareMin = 1.0 / 4;
// Of a load: what rounding may do to it.
constexpr double kRounding = 1e-9;

class Planner {
 public:
  Planner(absl::Span<const PlannerThread> threads,
          absl::Span<const PlannerShard> shards, const PlannerOptions& options)
      : threads_(threads),
        options_(options),
        shards_(shards.begin(), shards.end()),
        load_(threads.size()),
        by_thread_(threads.size()) {}

  // `balance` false: only drains.
  PlannerResult Run(bool balance);

  // False if balancing changed something, but too little to be worth the
  // disturbance: near the threshold noise always finds a little.
  bool achieved_enough() const { return achieved_enough_; }

 private:
  struct Candidate {
    double score = 0;  // An upper bound: falls as the thread is relieved.
    int shard = 0;     // Index into shards_.
    bool operator<(const Candidate& other) const {
      return std::pair(score, -shard) < std::pair(other.score, -other.shard);
    }
  };
  // The shards of a thread, to be taken from the front of a heap.
  struct ThreadShards {
    std::vector<int> arrived;  // Beside those listed in home_.
    std::vector<Candidate> heap;
    bool heap_is_current = false;
    int too_hot = -1;  // The first shard from the heap that fits nowhere whole.
  };
  // One shard goes over, and perhaps another one comes back.
  struct Exchange {
    int out = -1;
    int in = -1;
    int partner = -1;                                        // Thread.
    double worst = std::numeric_limits<double>::infinity();  // Of the two.
  };

  void Measure();
  void GroupApart();
  void Drain();
  void Balance();
  bool Relieve(int thread);
  void CollectCandidates(int thread);
  Exchange FindExchange(int thread);
  bool SplitHottest(int thread);
  bool Split(int shard, int to);
  void Place(int shard, int to);
  void Describe(PlannerResult* result) const;

  int ThreadCount() const { return static_cast<int>(threads_.size()); }
  int ShardCount() const { return static_cast<int>(shards_.size()); }
  double Share(int t) const { return mean_ * threads_[t].capacity; }
  double Limit(int t) const { return options_.target * Share(t); }
  double Utilisation(int t) const { return load_[t] / threads_[t].capacity; }
  double Room(int t) const { return Limit(t) - load_[t]; }
  bool Overloaded(int t) const { return load_[t] > Limit(t) * (1 + kRounding); }
  // Both threads of a step that overloads its target have to end up below the
  // utilisation that its source had, by at least this much.
  double StepMin() const {
    return std::max((options_.threshold - options_.target) / 10, 1e-6) * mean_;
  }
  double Worst() const;
  double Excess() const;

  // What moving the shard to `to` adds to the bytes of the plan: it may have
  // been moved already, and it may go home.
  int64_t AddedBytes(const PlannerShard& shard, int origin, int to) const;
  int64_t AddedBytes(int s, int to) const {
    return AddedBytes(shards_[s], origin_[s], to);
  }
  // Load-seconds that it saves for each second that it costs.
  double Worth(double relief, int64_t bytes, int moves) const {
    return relief * options_.horizon_seconds /
           (static_cast<double>(std::max<int64_t>(bytes, 0)) /
                options_.bytes_per_second +
            moves * options_.move_seconds);
  }
  // Off its thread, which is overloaded. Shards that the plan moves already
  // cost no bytes any more.
  double WorthOfMoving(int s) const {
    const PlannerShard& shard = shards_[s];
    return Worth(std::min(shard.demand, -Room(shard.thread)),
                 origin_[s] == shard.thread ? shard.bytes : 0, 1);
  }
  bool CanBeSplit(int s) const {
    const PlannerShard& shard = shards_[s];
    return shard.apart < 0 &&
           shard.region.size() >= 2 * options_.split_elements_min;
  }
  bool InBudget(int64_t bytes);
  bool MayGo(int shard, int to) const;
  // The accepting thread with the most room that may take the shard; or -1.
  int Roomiest(int shard) const;
  // Calls fn(shard index) for each shard with demand that may leave `thread`.
  template <typename Fn>
  void ForEachMovable(int thread, Fn fn) const;
  void CollectHottest(int thread, std::vector<int>* hottest) const;

  const absl::Span<const PlannerThread> threads_;
  const PlannerOptions& options_;

  std::vector<PlannerShard> shards_;  // As planned: given ones, then pieces.
  std::vector<int32_t> origin_;       // Thread of each before the plan.
  std::vector<double> given_load_;    // Of each thread, before the plan ...
  std::vector<double> load_;          // ... and as planned.
  double worst_before_ = 0;
  double mean_ = 0;
  bool achieved_enough_ = true;

  // Accepting threads by (-room, thread).
  std::set<std::pair<double, int>> rooms_;
  // home_[home_begin_[t], home_begin_[t + 1]): shards with demand that were on
  // accepting thread t before balancing.
  std::vector<int> home_, home_begin_;
  std::vector<ThreadShards> by_thread_;
  // Overloaded threads by utilisation. Outdated entries are skipped.
  std::priority_queue<std::pair<double, int>> overloaded_;
  // Shards that belong to a group: (group, index), sorted.
  std::vector<std::pair<int32_t, int>> apart_;

  std::vector<int> order_;  // Shards in the order of their first move.
  std::vector<PlannerSplit> splits_;
  int64_t bytes_ = 0;  // Of shards that did not come off drained threads.
  int moves_ = 0;
  int stuck_ = 0;
  bool budget_used_up_ = false;
  std::vector<int> hot_here_, hot_there_;
};

void Planner::Measure() {
  SL_CHECK(options_.target >= 1 && options_.threshold >= options_.target,
           absl::StrCat("target is ", options_.target, ", threshold is ",
                        options_.threshold));
  SL_CHECK(options_.split_elements_min >= 1,
           absl::StrCat("split_elements_min is ", options_.split_elements_min));
  double demand = 0;
  origin_.reserve(shards_.size());
  for (const PlannerShard& shard : shards_) {
    SL_CHECK(shard.thread >= 0 && shard.thread < ThreadCount(),
             absl::StrCat("shard ", static_cast<int>(shard.shard),
                          ": thread is ", shard.thread));
    SL_CHECK(
        shard.demand >= 0 && shard.bytes >= 0,
        absl::StrCat("shard ", static_cast<int>(shard.shard), ": demand is ",
                     shard.demand, ", bytes is ", shard.bytes));
    origin_.push_back(shard.thread);
    load_[shard.thread] += shard.demand;
    demand += shard.demand;
  }
  for (int t = 0; t < ThreadCount(); ++t) {
    SL_CHECK(
        threads_[t].background >= 0,
        absl::StrCat("thread ", t, ": background is ", threads_[t].background));
    load_[t] += threads_[t].background;
    demand += threads_[t].background;
  }
  given_load_ = load_;
  double capacity = 0;
  for (int t = 0; t < ThreadCount(); ++t) {
    SL_CHECK(
        threads_[t].capacity > 0,
        absl::StrCat("thread ", t, ": capacity is ", threads_[t].capacity));
    worst_before_ = std::max(worst_before_, Utilisation(t));
    if (threads_[t].accepts) capacity += threads_[t].capacity;
  }
  if (capacity > 0) mean_ = demand / capacity;
  for (int t = 0; t < ThreadCount(); ++t) {
    if (threads_[t].accepts) rooms_.emplace(-Room(t), t);
  }
}

void Planner::GroupApart() {
  for (int s = 0; s < ShardCount(); ++s) {
    if (shards_[s].apart >= 0) apart_.emplace_back(shards_[s].apart, s);
  }
  std::sort(apart_.begin(), apart_.end());
}

double Planner::Worst() const {
  double worst = 0;
  for (int t = 0; t < ThreadCount(); ++t) {
    if (threads_[t].accepts) worst = std::max(worst, Utilisation(t));
  }
  return worst;
}

// Utilisation beyond the target, summed over the threads.
double Planner::Excess() const {
  double excess = 0;
  for (int t = 0; t < ThreadCount(); ++t) {
    if (threads_[t].accepts) {
      excess += std::max(0.0, -Room(t) / threads_[t].capacity);
    }
  }
  return excess;
}

int64_t Planner::AddedBytes(const PlannerShard& shard, int origin,
                            int to) const {
  if (!threads_[origin].accepts) return 0;
  if (shard.thread == origin) return shard.bytes;
  return to == origin ? -shard.bytes : 0;
}

bool Planner::InBudget(int64_t bytes) {
  if (bytes_ + bytes <= options_.bytes_max) return true;
  if (bytes <= options_.bytes_max) budget_used_up_ = true;
  return false;
}

bool Planner::MayGo(int s, int to) const {
  const int32_t group = shards_[s].apart;
  if (group < 0) return true;
  const int32_t server = threads_[to].owner.server;
  for (auto it = std::lower_bound(apart_.begin(), apart_.end(),
                                  std::make_pair(group, 0));
       it != apart_.end() && it->first == group; ++it) {
    if (it->second == s) continue;
    // Moves of one plan overlap: where the other one was counts as well.
    if (threads_[shards_[it->second].thread].owner.server == server ||
        threads_[origin_[it->second]].owner.server == server) {
      return false;
    }
  }
  return true;
}

int Planner::Roomiest(int s) const {
  for (const auto& [room, t] : rooms_) {
    if (t != shards_[s].thread && MayGo(s, t)) return t;
  }
  return -1;
}

void Planner::Place(int s, int to) {
  PlannerShard& shard = shards_[s];
  const int from = shard.thread;
  if (from == origin_[s]) order_.push_back(s);
  bytes_ += AddedBytes(s, to);
  if (threads_[origin_[s]].accepts) {
    moves_ += (to != origin_[s]) - (from != origin_[s]);
  }
  const auto change = [this](int t, double demand) {
    auto node = rooms_.extract({-Room(t), t});
    load_[t] += demand;
    if (node.empty()) return;  // Does not accept.
    node.value().first = -Room(t);
    rooms_.insert(std::move(node));
    if (Overloaded(t)) overloaded_.emplace(Utilisation(t), t);
  };
  change(from, -shard.demand);
  change(to, shard.demand);
  shard.thread = to;
  by_thread_[to].arrived.push_back(s);
  by_thread_[to].heap_is_current = false;
}

// Hottest first to the thread with the most room. What nobody asks for goes
// where the fewest bytes are.
void Planner::Drain() {
  std::vector<int> leaving;
  for (int s = 0; s < ShardCount(); ++s) {
    if (!threads_[shards_[s].thread].accepts && !shards_[s].pinned) {
      leaving.push_back(s);
    }
  }
  if (leaving.empty()) return;
  std::sort(leaving.begin(), leaving.end(), [this](int a, int b) {
    const PlannerShard& x = shards_[a];
    const PlannerShard& y = shards_[b];
    if (x.demand != y.demand) return x.demand > y.demand;
    if (x.bytes != y.bytes) return x.bytes > y.bytes;
    return x.shard < y.shard;
  });
  std::vector<int64_t> bytes(threads_.size());
  for (const PlannerShard& shard : shards_) bytes[shard.thread] += shard.bytes;
  std::set<std::pair<int64_t, int>> by_bytes;
  for (const int s : leaving) {
    if (shards_[s].demand > 0) {
      if (const int to = Roomiest(s); to >= 0) {
        Place(s, to);
        bytes[to] += shards_[s].bytes;
      }
      continue;
    }
    if (by_bytes.empty()) {
      for (const auto& [room, t] : rooms_) by_bytes.emplace(bytes[t], t);
    }
    const auto to =
        std::find_if(by_bytes.begin(), by_bytes.end(),
                     [&](const auto& entry) { return MayGo(s, entry.second); });
    if (to == by_bytes.end()) continue;
    auto node = by_bytes.extract(to);
    Place(s, node.value().second);
    node.value().first += shards_[s].bytes;
    by_bytes.insert(std::move(node));
  }
}

template <typename Fn>
void Planner::ForEachMovable(int thread, Fn fn) const {
  const auto visit = [&](int s) {
    const PlannerShard& shard = shards_[s];
    if (shard.thread == thread && !shard.pinned && shard.demand > 0) fn(s);
  };
  for (int i = home_begin_[thread]; i < home_begin_[thread + 1]; ++i) {
    visit(home_[i]);
  }
  for (const int s : by_thread_[thread].arrived) visit(s);
}

void Planner::CollectCandidates(int thread) {
  ThreadShards& here = by_thread_[thread];
  here.heap.clear();
  here.too_hot = -1;
  ForEachMovable(thread, [&](int s) {
    here.heap.push_back({.score = WorthOfMoving(s), .shard = s});
  });
  std::make_heap(here.heap.begin(), here.heap.end());
  here.heap_is_current = true;
}

// One step that takes load off an overloaded thread. False if there is none.
bool Planner::Relieve(int thread) {
  ThreadShards& here = by_thread_[thread];
  if (!here.heap_is_current) CollectCandidates(thread);
  bool over_budget = false;
  const auto put_back = [&here](const Candidate& candidate) {
    here.heap.push_back(candidate);
    std::push_heap(here.heap.begin(), here.heap.end());
  };
  while (!here.heap.empty()) {
    std::pop_heap(here.heap.begin(), here.heap.end());
    Candidate best = here.heap.back();
    here.heap.pop_back();
    const int s = best.shard;
    if (shards_[s].thread != thread) continue;
    best.score = WorthOfMoving(s);
    if (!here.heap.empty() && best < here.heap.front()) {
      put_back(best);
      continue;
    }
    if (best.score <= 1) break;  // Nor is any other one worth its bytes.
    const int to = Roomiest(s);
    if (to < 0) continue;
    const bool in_budget = InBudget(AddedBytes(s, to));
    over_budget |= !in_budget;
    if (in_budget && shards_[s].demand <= Room(to)) {
      const int hot = here.too_hot;
      if (hot >= 0 && shards_[hot].thread == thread &&
          WorthOfMoving(hot) > kSplitAdvantage * best.score &&
          Split(hot, Roomiest(hot))) {
        put_back(best);
        return true;
      }
      Place(s, to);
      return true;
    }
    if (shards_[s].demand > Share(thread) && Split(s, to)) {
      put_back(best);  // What is left of it.
      return true;
    }
    if (here.too_hot < 0 && CanBeSplit(s)) here.too_hot = s;
  }
  if (over_budget) return false;

  const Exchange exchange = FindExchange(thread);
  const auto apply = [this, &exchange, thread] {
    if (exchange.in >= 0) Place(exchange.in, thread);
    Place(exchange.out, exchange.partner);
  };
  if (exchange.worst <= options_.target * mean_) {
    apply();
    return true;
  }
  if (SplitHottest(thread)) return true;
  if (exchange.worst < Utilisation(thread) - StepMin()) {
    apply();
    return true;
  }
  return false;
}

void Planner::CollectHottest(int thread, std::vector<int>* hottest) const {
  hottest->clear();
  ForEachMovable(thread, [&](int s) { hottest->push_back(s); });
  const auto hotter = [this](int a, int b) {
    return std::pair(-shards_[a].demand, a) < std::pair(-shards_[b].demand, b);
  };
  if (hottest->size() > kHottest) {
    std::nth_element(hottest->begin(), hottest->begin() + kHottest,
                     hottest->end(), hotter);
    hottest->resize(kHottest);
  }
  std::sort(hottest->begin(), hottest->end(), hotter);
}

Planner::Exchange Planner::FindExchange(int thread) {
  Exchange best;
  CollectHottest(thread, &hot_here_);
  const double capacity = threads_[thread].capacity;
  int partners = 0;
  for (const auto& candidate : rooms_) {
    const auto partner = candidate.second;
    if (partner == thread) continue;
    if (++partners > kPartners) break;
    const double partner_capacity = threads_[partner].capacity;
    CollectHottest(partner, &hot_there_);
    // This much going over would make both equally busy.
    const double ideal =
        (load_[thread] * partner_capacity - load_[partner] * capacity) /
        (capacity + partner_capacity);
    const auto consider = [&](int out, int in) {
      const double over =
          shards_[out].demand - (in < 0 ? 0 : shards_[in].demand);
      const double worst = std::max((load_[thread] - over) / capacity,
                                    (load_[partner] + over) / partner_capacity);
      if (worst >= best.worst || !MayGo(out, partner)) return;
      if (in >= 0 && !MayGo(in, thread)) return;
      const int64_t bytes =
          AddedBytes(out, partner) + (in < 0 ? 0 : AddedBytes(in, thread));
      if (Worth(std::min(over, -Room(thread)), bytes, in < 0 ? 1 : 2) <= 1 ||
          !InBudget(bytes))
        return;
      if (in >= 0 && moves_ + 2 > options_.moves_max) return;
      best = {.out = out, .in = in, .partner = partner, .worst = worst};
    };
    for (const int out : hot_here_) {
      consider(out, -1);
      const double wanted = shards_[out].demand - ideal;
      const auto below = std::partition_point(
          hot_there_.begin(), hot_there_.end(),
          [&](int in) { return shards_[in].demand > wanted; });
      if (below != hot_there_.end()) consider(out, *below);
      if (below != hot_there_.begin()) consider(out, *(below - 1));
    }
  }
  return best;
}

bool Planner::SplitHottest(int thread) {
  int hottest = -1;
  ForEachMovable(thread, [&](int s) {
    if (!CanBeSplit(s)) return;
    if (hottest < 0 || shards_[s].demand > shards_[hottest].demand) hottest = s;
  });
  if (hottest < 0) return false;
  const int to = Roomiest(hottest);
  return to >= 0 && Split(hottest, to);
}

// Gives `to` a piece of the shard: what its thread has too much of, as far as
// there is room for it. False, and nothing is changed, if that does not help.
bool Planner::Split(int s, int to) {
  const PlannerShard whole = shards_[s];
  const int from = whole.thread;
  const int64_t elements = whole.region.size();
  const int64_t least = options_.split_elements_min;
  if (!CanBeSplit(s)) return false;

  const double wanted =
      std::min(load_[from] - Share(from),
               std::max(Room(to), kPieceShareMin * Share(to)));
  double fraction = std::min(wanted / whole.demand, 1.0);
  // A piece of a shard that has moved already is in the budget already.
  if (const int64_t added = AddedBytes(s, to); added > 0) {
    const int64_t left = options_.bytes_max - bytes_;
    const double affordable =
        static_cast<double>(left) / static_cast<double>(added);
    if (affordable < fraction) {
      fraction = affordable;
      budget_used_up_ = true;
    }
  }
  int64_t moved =
      std::clamp(static_cast<int64_t>(fraction * static_cast<double>(elements)),
                 least, elements - least);
  // Where the smallest pieces are hot themselves, a rest that is not quite two
  // of them could be far too hot and yet not be split: whole numbers of equal
  // pieces leave no such rest.
  const int64_t pieces = elements / least;
  const int64_t even = elements / pieces;
  if (whole.demand / static_cast<double>(pieces) >
      kCoarseShareMin * Share(from)) {
    moved = std::clamp(moved / even, int64_t{1}, pieces - 1) * even;
  }
  const double part =
      static_cast<double>(moved) / static_cast<double>(elements);

  PlannerShard piece = whole;
  piece.shard = ShardId{static_cast<int32_t>(shards_.size())};
  const auto [kept, rest] = whole.region.SplitAfter(elements - moved);
  piece.region = rest;
  piece.demand = part * whole.demand;
  piece.bytes = static_cast<int64_t>(part * static_cast<double>(whole.bytes));
  const int64_t added = AddedBytes(piece, origin_[s], to);
  const double relief = std::min(piece.demand, -Room(from));
  if ((load_[to] + piece.demand) / threads_[to].capacity >=
          Utilisation(from) - StepMin() ||
      Worth(relief, added, 1) <= 1 || !InBudget(added)) {
    return false;
  }

  splits_.push_back(
      {.shard = whole.shard, .new_shard = piece.shard, .at = rest.begin()});
  shards_[s].region = kept;
  shards_[s].demand -= piece.demand;
  shards_[s].bytes -= piece.bytes;
  origin_.push_back(origin_[s]);
  shards_.push_back(piece);
  const int index = static_cast<int>(shards_.size()) - 1;
  if (from != origin_[s]) {  // Now two shards of the plan are moved.
    order_.push_back(index);
    if (threads_[origin_[s]].accepts) ++moves_;
  }
  Place(index, to);
  return true;
}

void Planner::Balance() {
  home_begin_.assign(threads_.size() + 1, 0);
  const auto counts = [this](const PlannerShard& shard) {
    return shard.demand > 0 && threads_[shard.thread].accepts;
  };
  for (const PlannerShard& shard : shards_) {
    if (counts(shard)) ++home_begin_[shard.thread + 1];
  }
  std::partial_sum(home_begin_.begin(), home_begin_.end(), home_begin_.begin());
  home_.resize(home_begin_.back());
  std::vector<int> next(home_begin_.begin(), home_begin_.end() - 1);
  for (int s = 0; s < ShardCount(); ++s) {
    if (counts(shards_[s])) home_[next[shards_[s].thread]++] = s;
  }
  for (ThreadShards& shards : by_thread_) shards.arrived.clear();

  const size_t drained = order_.size();
  const double excess_before = Excess();
  for (int t = 0; t < ThreadCount(); ++t) {
    if (threads_[t].accepts && Overloaded(t)) {
      overloaded_.emplace(Utilisation(t), t);
    }
  }
  // Worst first: when the budget is used up, it went to where it helps most.
  // Every step leaves both of its threads below where its source was, so the
  // steps come to an end; the bound on their number makes that soon.
  int64_t steps_left = int64_t{4} * options_.moves_max;
  while (!overloaded_.empty() && stuck_ < kStuckMax) {
    const auto [utilisation, thread] = overloaded_.top();
    overloaded_.pop();
    if (utilisation != Utilisation(thread)) continue;
    // Once the worst thread is what it is, the others only matter as much as
    // they would by themselves.
    if (stuck_ > 0 && utilisation <= options_.threshold * mean_) break;
    if (moves_ >= options_.moves_max || steps_left-- == 0) {
      budget_used_up_ = true;
      break;
    }
    if (!Relieve(thread)) ++stuck_;
  }
  const double gap = (options_.threshold - options_.target) * mean_;
  const double relieved = excess_before - Excess();
  achieved_enough_ = order_.size() == drained ||
                     (relieved > 0 && (relieved >= gap / 2 || budget_used_up_));
}

std::string Times(double utilisation, double mean) {
  return absl::StrFormat("%.2f", utilisation / mean);
}

// "3 shards"
std::string Count(int64_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

void Planner::Describe(PlannerResult* result) const {
  std::string& text = result->summary;
  const double mean = result->mean;
  int drained = 0;
  for (const PlannerMove& move : result->moves) {
    drained += move.reason == PlannerMove::Reason::kDrained;
  }
  int stranded = 0;
  for (const PlannerShard& shard : shards_) {
    stranded += !threads_[shard.thread].accepts;
  }
  if (rooms_.empty()) {
    text = "nothing can be moved: no thread accepts shards";
    return;
  }
  if (!result->moves.empty()) {
    text = absl::StrCat(
        "moves ", Count(result->moves.size(), "shard"),
        absl::StrFormat(" (%.1f MiB",
                        static_cast<double>(result->bytes) / (1 << 20)),
        drained > 0 ? absl::StrCat(", ", drained, " off drained threads") : "",
        splits_.empty() ? ""
                        : absl::StrCat(", ", Count(splits_.size(), "piece"),
                                       " split off from hot shards"),
        ")");
    if (mean > 0) {
      absl::StrAppend(&text, ": the most loaded thread goes from ",
                      Times(result->worst_before, mean), " to ",
                      Times(result->worst_after, mean), " times the mean");
    }
    if (budget_used_up_) {
      absl::StrAppend(&text, "; the budget ends here, not the imbalance");
    }
  } else if (mean == 0) {
    text = "idle: no shard has any load";
  } else if (result->worst_before <= options_.threshold * mean) {
    text = absl::StrCat("balanced: the most loaded thread has ",
                        Times(result->worst_before, mean),
                        " times the mean; it acts above ",
                        absl::StrFormat("%.2f", options_.threshold));
  } else if (result->worst_before < options_.min_utilisation) {
    text = absl::StrFormat(
        "idle: the most loaded thread is busy for %.1f %% of its time; it acts "
        "from %.1f %%",
        100 * result->worst_before, 100 * options_.min_utilisation);
  } else {
    text = absl::StrCat("stuck: the most loaded thread has ",
                        Times(result->worst_before, mean),
                        " times the mean, and no move or split that is allowed "
                        "and worth its bytes takes enough off it");
  }
  if (stranded > 0) {
    absl::StrAppend(&text, "; ", Count(stranded, "shard"),
                    " on drained threads cannot leave yet");
  }
}

PlannerResult Planner::Run(bool balance) {
  Measure();
  GroupApart();
  if (!rooms_.empty()) {
    Drain();
    const double worst = Worst();
    if (balance && worst > options_.threshold * mean_ &&
        worst >= options_.min_utilisation) {
      Balance();
    }
  }

  PlannerResult result;
  result.splits = splits_;
  result.worst_before = worst_before_;
  result.mean = mean_;
  const double limit = options_.target * mean_;
  std::vector<bool> listed(shards_.size());
  for (const int s : order_) {
    const PlannerShard& shard = shards_[s];
    const int from = origin_[s];
    if (shard.thread == from || listed[s]) continue;
    listed[s] = true;
    using Reason = PlannerMove::Reason;
    const Reason reason = !threads_[from].accepts ? Reason::kDrained
                          : given_load_[from] > limit * threads_[from].capacity
                              ? Reason::kOverloaded
                              : Reason::kMakesRoom;
    result.moves.push_back({.shard = shard.shard,
                            .from = from,
                            .to = shard.thread,
                            .reason = reason});
    result.bytes += shard.bytes;
  }
  // Summed afresh: load_ has gathered the rounding of all steps.
  std::vector<double> load;
  for (const PlannerThread& thread : threads_)
    load.push_back(thread.background);
  for (const PlannerShard& shard : shards_) load[shard.thread] += shard.demand;
  for (int t = 0; t < ThreadCount(); ++t) {
    result.worst_after =
        std::max(result.worst_after, load[t] / threads_[t].capacity);
  }
  Describe(&result);
  return result;
}

}  // namespace

PlannerResult PlanMoves(absl::Span<const PlannerThread> threads,
                        absl::Span<const PlannerShard> shards,
                        const PlannerOptions& options) {
  Planner planner(threads, shards, options);
  PlannerResult result = planner.Run(/*balance=*/true);
  if (planner.achieved_enough()) return result;
  Planner drains(threads, shards, options);
  return drains.Run(/*balance=*/false);
}

}  // namespace slackline
