#include "tests/sim/sim_group.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "common/status.h"
#include "worker/collective/sum_client_core.h"

namespace slackline::sim {

SimGroup::SimGroup(const std::vector<SimShare>& members,
                   std::vector<int> servers, const Scenario& scenario,
                   const Faults* faults, EventQueue* queue,
                   const SimNetwork* network, LaneCounts* lanes, Rng rng)
    : servers_(std::move(servers)),
      scenario_(scenario),
      faults_(faults),
      queue_(queue),
      network_(network),
      lanes_(lanes),
      rng_(rng) {
  for (const SimShare& who : members) {
    Member& member = members_[who.rank];
    member.who = who;
    member.node = scenario.WorkerNode(static_cast<int>(who.rank));
  }
}

absl::Duration SimGroup::Soon() {
  const double luck = rng_.Uniform();
  return absl::Milliseconds(10) * luck * luck;
}

void SimGroup::Begin(Rank rank, SimShare share, Done done) {
  Member& member = members_.at(rank);
  SL_CHECK(!member.left && member.done == nullptr,
           "an operation of a rank that has left, or is at another one");
  member.done = std::move(done);
  const size_t number = member.next++;
  if (number >= operations_.size()) {
    operations_.resize(number + 1);
    complete_.resize(number + 1, false);
  }
  operations_[number][rank] = std::move(share);
  if (member.broken) {
    queue_->After(Soon(), lifetime_.Guard([this, rank] {
      End(members_.at(rank), nullptr);
    }));
    return;
  }
  const bool all_here =
      std::none_of(members_.begin(), members_.end(),
                   [](const auto& entry) { return entry.second.left; });
  if (all_here && operations_[number].size() == members_.size())
    Deliver(number, queue_->now());
}

bool SimGroup::MissesServer() const {
  return absl::c_any_of(servers_, [&](int server) {
    return !network_->attached(
        {.kind = PeerId::Kind::kShardThread, .index = server, .instance = 0});
  });
}

bool SimGroup::HasStillServer() const {
  return absl::c_any_of(servers_, [&](int server) {
    return network_->machine(scenario_.ServerNode(server)).stands_still();
  });
}

bool SimGroup::IsWanted(size_t operation) const {
  return absl::c_any_of(members_, [&](const auto& entry) {
    const Member& member = entry.second;
    return member.done != nullptr && member.next == operation + 1;
  });
}

void SimGroup::Deliver(size_t operation, absl::Time begun) {
  const absl::Time now = queue_->now();
  const bool misses = MissesServer();
  const absl::Duration gone_max = scenario_.planted_no_wait_for_sums
                                      ? absl::ZeroDuration()
                                      : SumClientCore::Options().gone_max;
  const bool waits = misses ? now < begun + gone_max : HasStillServer();
  if (waits && IsWanted(operation)) {
    ++lanes_->held;
    queue_->After(absl::Milliseconds(10),
                  lifetime_.Guard(
                      [this, operation, begun] { Deliver(operation, begun); }));
    return;
  }
  complete_[operation] = true;
  lanes_->operations += !servers_.empty();
  lanes_->without_server += misses;
  for (auto& [rank, member] : members_) {
    absl::Time cut_until = now;
    for (const auto& [other_rank, other] : members_) {
      cut_until =
          std::max({cut_until, network_->CutUntil(member.node, other.node),
                    network_->CutUntil(other.node, member.node)});
    }
    for (const int server : servers_) {
      const Node node = scenario_.ServerNode(server);
      cut_until = std::max({cut_until, network_->CutUntil(member.node, node),
                            network_->CutUntil(node, member.node)});
    }
    bool fails = misses || rng_.Chance(operation == 0 ? faults_->connect
                                                      : faults_->operation);
    absl::Time at = now + Soon();
    if (cut_until > now) {
      fails = fails || rng_.Chance(0.5);
      if (!fails) at += cut_until - now;
    }
    queue_->At(at, lifetime_.Guard([this, rank = rank, fails, operation] {
      Member& at_end = members_.at(rank);
      if (at_end.next != operation + 1) return;
      std::vector<SimShare> shares;
      for (const auto& [other, share] : operations_[operation])
        shares.push_back(share);
      if (scenario_.planted_partial_sum && !servers_.empty() &&
          rank == members_.begin()->first) {
        shares.back().counts = false;
      }
      End(at_end, fails ? nullptr : &shares);
    }));
  }
}

void SimGroup::End(Member& member, const std::vector<SimShare>* shares) {
  if (member.left || member.done == nullptr) return;
  const Done done = std::exchange(member.done, nullptr);
  SimMachine& machine = network_->machine(member.node);
  if (!machine.stands_still()) return done(shares);
  machine.Arrive([done, failed = shares == nullptr,
                  copy = shares == nullptr
                             ? std::vector<SimShare>()
                             : *shares] { done(failed ? nullptr : &copy); });
}

void SimGroup::Leave(Rank rank, bool silent) {
  Member& gone = members_.at(rank);
  if (gone.left) return;
  gone.left = true;
  gone.done = nullptr;
  for (auto& [other, member] : members_) {
    if (member.left) continue;
    absl::Duration delay = Soon();
    if (silent || rng_.Chance(faults_->late)) {
      delay = absl::Seconds(3) * rng_.Uniform();
    }
    queue_->After(delay, lifetime_.Guard([this, other = other] {
      Member& left_behind = members_.at(other);
      left_behind.broken = true;
      if (left_behind.done == nullptr) return;
      // What all have begun may yet come to its end.
      if (!complete_[left_behind.next - 1] || rng_.Chance(0.5))
        End(left_behind, nullptr);
    }));
  }
}

SimGroup* SimGroups::Of(const View& view) {
  std::unique_ptr<SimGroup>& group = groups_[view.proto().group()];
  if (group == nullptr) {
    std::vector<SimShare> members;
    for (const wire::WorkerMember& worker : view.workers()) {
      members.push_back({.rank = Rank{worker.rank()},
                         .incarnation = worker.incarnation(),
                         .standing = {},
                         .state = nullptr,
                         .gradients = {}});
    }
    std::vector<int> servers;
    if (scenario_.modes.lanes) {
      for (const wire::ServerMember& server : view.servers())
        servers.push_back(server.index());
    }
    group = std::make_unique<SimGroup>(members, std::move(servers), scenario_,
                                       &faults_, queue_, network_, &lanes_,
                                       rng_.Fork("group"));
    rng_.Next();
  }
  return group.get();
}

}  // namespace slackline::sim
