#include "server/coordinator/view_editor.h"

#include <algorithm>
#include <utility>

#include "common/membership/end_status.h"
#include "common/status.h"
#include "common/view/followers.h"
#include "common/view/member_lists.h"
#include "common/view/shard_map.h"

namespace slackline {
namespace {

void Forget(int32_t value, google::protobuf::RepeatedField<int32_t>* values) {
  values->erase(std::remove(values->begin(), values->end(), value),
                values->end());
}

void CountDown(int32_t key, std::map<int32_t, int32_t>* counts) {
  const auto count = counts->find(key);
  if (--count->second == 0) counts->erase(count);
}

}  // namespace

ViewEditor::ViewEditor(wire::View view)
    : view_(std::move(view)), owners_since_(view_.number()) {
  for (const int32_t server : view_.owner_server()) ++owned_[server];
  for (const wire::Follower& follower : view_.follower())
    ++followed_[follower.server()];
}

void ViewEditor::Run(int64_t steps_total, int64_t steps_per_epoch,
                     bool elastic) {
  view_.set_steps_total(steps_total);
  view_.set_steps_per_epoch(steps_per_epoch);
  view_.set_elastic(elastic);
  view_.set_state(wire::RUNNING);
  edited_ = whole_ = true;
}

void ViewEditor::SetBeginsAt(Clock clock) {
  SL_CHECK(whole_, "only a job that begins to run has a beginning");
  view_.set_begins_at(clock);
}

void ViewEditor::End(wire::JobEnd end) {
  if (ended()) return;
  view_.set_state(IsFinished(end) ? wire::FINISHED : wire::FAILED);
  *view_.mutable_end() = std::move(end);
  edited_ = true;
}

void ViewEditor::PutServer(wire::ServerMember server) {
  Forget(server.index(), pending_.mutable_server_gone());
  PutMember(server, pending_.mutable_server());
  PutMember(std::move(server), view_.mutable_server());
  edited_ = true;
}

void ViewEditor::PutWorker(wire::WorkerMember worker) {
  Forget(worker.rank(), pending_.mutable_worker_gone());
  PutMember(worker, pending_.mutable_worker());
  PutMember(std::move(worker), view_.mutable_worker());
  edited_ = true;
}

void ViewEditor::RemoveServer(int32_t index,
                              const std::map<int32_t, int32_t>& heirs) {
  if (!RemoveMember(index, view_.mutable_server())) return;
  RemoveMember(index, pending_.mutable_server());
  pending_.add_server_gone(index);
  edited_ = true;
  DropMoves([&](const wire::Move& move) {
    return move.server() == index || Owns(index, move.shard());
  });
  for (const auto& [shard, server] : heirs) {
    const wire::Follower* const heir = FindFollower(shard, server);
    SL_CHECK(heir != nullptr && Owns(index, shard),
             "a shard that goes to who has no copy of it");
    GiveShard(shard, {.server = server, .thread = heir->thread()});
  }
  SL_CHECK(heirs.empty() || !OwnsShards(index), "a shard without an heir");
  // All at once: there may be very many.
  auto& followers = *view_.mutable_follower();
  const auto goes = [&](const wire::Follower& follower) {
    const auto heir = heirs.find(follower.shard());
    return follower.server() == index ||
           (heir != heirs.end() && heir->second == follower.server());
  };
  for (const wire::Follower& follower : followers) {
    if (!goes(follower)) continue;
    Touch({follower.shard(), follower.server()});
    CountDown(follower.server(), &followed_);
  }
  followers.erase(std::remove_if(followers.begin(), followers.end(), goes),
                  followers.end());
}

void ViewEditor::RemoveWorker(int32_t rank) {
  if (!RemoveMember(rank, view_.mutable_worker())) return;
  RemoveMember(rank, pending_.mutable_worker());
  pending_.add_worker_gone(rank);
  edited_ = true;
}

void ViewEditor::Regroup() {
  regroup_ = true;
  edited_ = true;
}

void ViewEditor::PlaceTables(absl::Span<const wire::Table> tables,
                             absl::Span<const Owner> threads,
                             int64_t shard_elements) {
  slackline::PlaceTables(tables, threads, shard_elements, &view_);
  SetFollowers({});
  owned_.clear();
  for (const int32_t server : view_.owner_server()) ++owned_[server];
  owners_since_ = next_number();
  edited_ = whole_ = true;
}

void ViewEditor::GiveShard(int32_t shard, Owner owner) {
  CountDown(view_.owner_server(shard), &owned_);
  ++owned_[owner.server];
  owners_since_ = next_number();
  view_.set_owner_server(shard, owner.server);
  view_.set_owner_thread(shard, owner.thread);
  wire::ShardOwner& given = *pending_.add_owner();
  given.set_shard(shard);
  given.set_server(owner.server);
  given.set_thread(owner.thread);
}

void ViewEditor::Unlist(const wire::Move& move) {
  if (move.id() != next_number()) return pending_.add_move_gone(move.shard());
  auto& ordered = *pending_.mutable_move();  // In these edits.
  ordered.erase(std::remove_if(ordered.begin(), ordered.end(),
                               [&](const wire::Move& other) {
                                 return other.shard() == move.shard();
                               }),
                ordered.end());
}

void ViewEditor::Split(int32_t shard, int64_t at) {
  wire::Split& split = *view_.add_split();
  split.set_shard(shard);
  split.set_at(at);
  split.set_since(next_number());
  *pending_.add_split() = split;
  const int32_t added = view_.owner_server_size();
  const Owner owner{.server = view_.owner_server(shard),
                    .thread = view_.owner_thread(shard)};
  view_.add_owner_server(owner.server);
  view_.add_owner_thread(owner.thread);
  ++owned_[owner.server];
  const bool given = std::any_of(
      pending_.owner().begin(), pending_.owner().end(),
      [&](const wire::ShardOwner& other) { return other.shard() == shard; });
  if (given) GiveShard(added, owner);
  // A view to which the change is made gives the new shard the followers that
  // the other one has before the edits.
  std::vector<std::pair<FollowerKey, std::optional<wire::Follower>>> inherited;
  for (auto at = touched_.lower_bound({shard, 0});
       at != touched_.end() && at->first.first == shard; ++at) {
    inherited.emplace_back(FollowerKey{added, at->first.second}, at->second);
    if (at->second.has_value()) inherited.back().second->set_shard(added);
  }
  touched_.insert(inherited.begin(), inherited.end());
  std::vector<wire::Follower> followers;
  for (const wire::Follower* const follower : FollowersOf(shard))
    followers.push_back(*follower);
  for (wire::Follower& follower : followers) {
    follower.set_shard(added);
    ++followed_[follower.server()];
    *view_.add_follower() = std::move(follower);
  }
  edited_ = true;
}

void ViewEditor::OrderMove(int32_t shard, Owner to) {
  SL_CHECK(FindMove(shard) == nullptr, "a shard that moves already");
  wire::Move& move = *view_.add_move();
  move.set_shard(shard);
  move.set_server(to.server);
  move.set_thread(to.thread);
  move.set_id(next_number());
  *pending_.add_move() = move;
  edited_ = true;
}

void ViewEditor::FinishMove(int32_t shard) {
  const wire::Move* const listed = FindMove(shard);
  SL_CHECK(listed != nullptr, "a shard that does not move");
  const wire::Move move = *listed;
  const Owner source{.server = view_.owner_server(shard),
                     .thread = view_.owner_thread(shard)};
  const wire::Follower* const target = FindFollower(shard, move.server());
  const bool swap = target != nullptr && target->thread() == move.thread();
  if (target != nullptr) RemoveFollower(shard, move.server());
  GiveShard(shard, {.server = move.server(), .thread = move.thread()});
  if (swap) {
    wire::Follower follower;
    follower.set_shard(shard);
    follower.set_server(source.server);
    follower.set_thread(source.thread);
    follower.set_since(move.id());
    follower.set_in_sync(true);
    PutFollower(std::move(follower));
  }
  DropMoves([&](const wire::Move& other) { return other.shard() == shard; });
}

template <typename Predicate>
void ViewEditor::DropMoves(Predicate is_over) {
  auto& moves = *view_.mutable_move();
  for (auto move = moves.begin(); move != moves.end();) {
    if (!is_over(*move)) {
      ++move;
      continue;
    }
    Unlist(*move);
    move = moves.erase(move);
    edited_ = true;
  }
}

const wire::Move* ViewEditor::FindMove(int32_t shard) const {
  const auto found = std::find_if(
      view_.move().begin(), view_.move().end(),
      [&](const wire::Move& move) { return move.shard() == shard; });
  return found == view_.move().end() ? nullptr : &*found;
}

bool ViewEditor::GetsShards(int32_t server) const {
  return std::any_of(
      view_.move().begin(), view_.move().end(),
      [&](const wire::Move& move) { return move.server() == server; });
}

// ---- Followers --------------------------------------------------------------

void ViewEditor::SetFollowers(std::vector<wire::Follower> sorted) {
  followed_.clear();
  view_.clear_follower();
  for (wire::Follower& follower : sorted) {
    ++followed_[follower.server()];
    *view_.add_follower() = std::move(follower);
  }
  edited_ = whole_ = true;
}

int ViewEditor::PlaceOf(FollowerKey key) const {
  const auto& followers = view_.follower();
  return static_cast<int>(
      std::lower_bound(
          followers.begin(), followers.end(), key,
          [](const wire::Follower& follower, FollowerKey k) {
            return FollowerKey{follower.shard(), follower.server()} < k;
          }) -
      followers.begin());
}

const wire::Follower* ViewEditor::FindFollower(int32_t shard,
                                               int32_t server) const {
  const int place = PlaceOf({shard, server});
  if (place == view_.follower_size()) return nullptr;
  const wire::Follower& follower = view_.follower(place);
  return follower.shard() == shard && follower.server() == server ? &follower
                                                                  : nullptr;
}

wire::Follower* ViewEditor::MutableFollower(int32_t shard, int32_t server) {
  SL_CHECK(FindFollower(shard, server) != nullptr,
           "a follower that is not there");
  return view_.mutable_follower(PlaceOf({shard, server}));
}

absl::Span<const wire::Follower* const> ViewEditor::FollowersOf(
    int32_t shard) const {
  const int begin = PlaceOf({shard, 0});
  int end = begin;
  while (end < view_.follower_size() && view_.follower(end).shard() == shard)
    ++end;
  return absl::MakeConstSpan(view_.follower().data() + begin,
                             static_cast<size_t>(end - begin));
}

void ViewEditor::Touch(FollowerKey key) {
  const wire::Follower* const present = FindFollower(key.first, key.second);
  touched_.try_emplace(
      key, present == nullptr ? std::nullopt : std::optional(*present));
  edited_ = true;
}

void ViewEditor::PutFollower(wire::Follower follower) {
  const FollowerKey key{follower.shard(), follower.server()};
  Touch(key);
  ++followed_[follower.server()];
  const int place = PlaceOf(key);
  auto& followers = *view_.mutable_follower();
  *followers.Add() = std::move(follower);
  for (int last = followers.size() - 1; last > place; --last)
    followers.SwapElements(last, last - 1);
}

void ViewEditor::AddFollower(int32_t shard, Owner thread) {
  SL_CHECK(FindFollower(shard, thread.server) == nullptr &&
               !Owns(thread.server, shard),
           "a second copy of a shard on one server");
  wire::Follower follower;
  follower.set_shard(shard);
  follower.set_server(thread.server);
  follower.set_thread(thread.thread);
  follower.set_since(next_number());
  PutFollower(std::move(follower));
}

void ViewEditor::SetInSync(int32_t shard, int32_t server) {
  Touch({shard, server});
  MutableFollower(shard, server)->set_in_sync(true);
}

void ViewEditor::RemoveFollower(int32_t shard, int32_t server) {
  SL_CHECK(FindFollower(shard, server) != nullptr,
           "a follower that is not there");
  Touch({shard, server});
  CountDown(server, &followed_);
  view_.mutable_follower()->DeleteSubrange(PlaceOf({shard, server}), 1);
}

void ViewEditor::Promote(int32_t shard, int32_t server) {
  const Owner owner{.server = server,
                    .thread = MutableFollower(shard, server)->thread()};
  RemoveFollower(shard, server);
  GiveShard(shard, owner);
  DropMoves([&](const wire::Move& move) { return move.shard() == shard; });
}

void ViewEditor::PutFollowerChanges() {
  for (const auto& [key, before] : std::exchange(touched_, {})) {
    const wire::Follower* const now = FindFollower(key.first, key.second);
    if (now == nullptr && before.has_value()) {
      wire::FollowerGone& gone = *pending_.add_follower_gone();
      gone.set_shard(key.first);
      gone.set_server(key.second);
    } else if (now != nullptr &&
               (!before.has_value() || !IsSame(*now, *before))) {
      *pending_.add_follower() = *now;
    }
  }
}

// ---- Modes ------------------------------------------------------------------

void ViewEditor::SetPhases(const std::vector<wire::Phase>& phases) {
  view_.mutable_phase()->Assign(phases.begin(), phases.end());
  edited_ = whole_ = true;
}

void ViewEditor::AddPhase(const wire::Phase& phase) {
  *view_.add_phase() = phase;
  *pending_.add_phase() = phase;
  edited_ = true;
}

void ViewEditor::OpenChange(wire::ModeChange change) {
  change.set_id(next_number());
  *view_.mutable_change() = std::move(change);
  edited_ = true;
}

void ViewEditor::CloseChange() {
  view_.clear_change();
  edited_ = true;
}

void ViewEditor::SetEndClock(Clock clock) {
  view_.set_end_clock(clock);
  edited_ = true;
}

void ViewEditor::SetArrived(Clock arrived) {
  view_.set_arrived(arrived);
  edited_ = true;
}

void ViewEditor::SetEntered(int phase) {
  view_.set_entered(phase);
  edited_ = true;
}

void ViewEditor::SetCut(const wire::Cut& cut) {
  *view_.mutable_cut() = cut;
  *pending_.mutable_cut() = cut;
  edited_ = true;
}

ViewEditor::Committed ViewEditor::Commit() {
  if (!edited_) return Committed::kNothing;
  pending_.set_base(view_.number());
  view_.set_number(next_number());
  if (regroup_ && running()) {
    view_.set_group(view_.number());
    regroup_ = false;
  }
  pending_.set_number(view_.number());
  PutFollowerChanges();
  pending_.set_state(view_.state());
  if (view_.has_end()) *pending_.mutable_end() = view_.end();
  if (view_.has_change()) *pending_.mutable_change() = view_.change();
  pending_.set_arrived(view_.arrived());
  pending_.set_end_clock(view_.end_clock());
  pending_.set_group(view_.group());
  pending_.set_entered(view_.entered());
  change_ = std::exchange(pending_, {});
  edited_ = false;
  return std::exchange(whole_, false) ? Committed::kWhole : Committed::kChange;
}

}  // namespace slackline
