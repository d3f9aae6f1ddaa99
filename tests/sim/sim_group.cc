#include "tests/sim/sim_group.h"

#include <algorithm>

#include "common/status.h"

namespace slackline::sim {

SimGroup::SimGroup(const std::vector<Share>& members, const Scenario& scenario,
                   const Faults* faults, EventQueue* queue,
                   const SimNetwork* network, Rng rng)
    : faults_(faults), queue_(queue), network_(network), rng_(rng) {
  for (const Share& who : members) {
    Member& member = members_[who.rank];
    member.who = who;
    member.node = scenario.WorkerNode(static_cast<int>(who.rank));
  }
}

absl::Duration SimGroup::Soon() {
  const double luck = rng_.Uniform();
  return absl::Milliseconds(10) * luck * luck;
}

void SimGroup::Begin(Rank rank, Share share, Done done) {
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
    Deliver(number);
}

void SimGroup::Deliver(size_t operation) {
  const absl::Time now = queue_->now();
  complete_[operation] = true;
  for (auto& [rank, member] : members_) {
    absl::Time cut_until = now;
    for (const auto& [other_rank, other] : members_) {
      cut_until =
          std::max({cut_until, network_->CutUntil(member.node, other.node),
                    network_->CutUntil(other.node, member.node)});
    }
    bool fails =
        rng_.Chance(operation == 0 ? faults_->connect : faults_->operation);
    absl::Time at = now + Soon();
    if (cut_until > now) {
      fails = fails || rng_.Chance(0.5);
      if (!fails) at += cut_until - now;
    }
    queue_->At(at, lifetime_.Guard([this, rank = rank, fails, operation] {
      Member& at_end = members_.at(rank);
      if (at_end.next != operation + 1) return;
      std::vector<Share> shares;
      for (const auto& [other, share] : operations_[operation])
        shares.push_back(share);
      End(at_end, fails ? nullptr : &shares);
    }));
  }
}

void SimGroup::End(Member& member, const std::vector<Share>* shares) {
  if (member.left || member.done == nullptr) return;
  const Done done = std::exchange(member.done, nullptr);
  SimMachine& machine = network_->machine(member.node);
  if (!machine.stands_still()) return done(shares);
  machine.Arrive([done, failed = shares == nullptr,
                  copy = shares == nullptr ? std::vector<Share>() : *shares] {
    done(failed ? nullptr : &copy);
  });
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
    std::vector<SimGroup::Share> members;
    for (const wire::WorkerMember& worker : view.workers()) {
      members.push_back({.rank = Rank{worker.rank()},
                         .incarnation = worker.incarnation(),
                         .standing = {},
                         .state = nullptr,
                         .gradients = {}});
    }
    group = std::make_unique<SimGroup>(members, scenario_, &faults_, queue_,
                                       network_, rng_.Fork("group"));
    rng_.Next();
  }
  return group.get();
}

}  // namespace slackline::sim
