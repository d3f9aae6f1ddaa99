#include "server/coordinator/view_editor.h"

#include <algorithm>
#include <utility>

#include "common/status.h"
#include "common/view/member_lists.h"
#include "common/view/shard_map.h"

namespace slackline {
namespace {

void Forget(int32_t value, google::protobuf::RepeatedField<int32_t>* values) {
  values->erase(std::remove(values->begin(), values->end(), value),
                values->end());
}

}  // namespace

ViewEditor::ViewEditor(wire::View view) : view_(std::move(view)) {
  for (const int32_t server : view_.owner_server()) ++owned_[server];
}

void ViewEditor::Run(int64_t steps_total, int64_t steps_per_epoch,
                     bool elastic) {
  view_.set_steps_total(steps_total);
  view_.set_steps_per_epoch(steps_per_epoch);
  view_.set_elastic(elastic);
  view_.set_state(wire::RUNNING);
  edited_ = whole_ = true;
}

void ViewEditor::End(wire::JobEnd end) {
  if (ended()) return;
  const bool finished = end.cause() == wire::JobEnd::COMPLETED ||
                        end.cause() == wire::JobEnd::STOP_RULE ||
                        end.cause() == wire::JobEnd::FINISHED_EARLY;
  view_.set_state(finished ? wire::FINISHED : wire::FAILED);
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

void ViewEditor::RemoveServer(int32_t index) {
  if (!RemoveMember(index, view_.mutable_server())) return;
  RemoveMember(index, pending_.mutable_server());
  pending_.add_server_gone(index);
  edited_ = true;
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
  owned_.clear();
  for (const int32_t server : view_.owner_server()) ++owned_[server];
  edited_ = whole_ = true;
}

void ViewEditor::GiveShard(int32_t shard, Owner owner) {
  const auto before = owned_.find(view_.owner_server(shard));
  if (--before->second == 0) owned_.erase(before);
  ++owned_[owner.server];
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
  view_.add_owner_server(view_.owner_server(shard));
  view_.add_owner_thread(view_.owner_thread(shard));
  ++owned_[view_.owner_server(shard)];
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
  auto& moves = *view_.mutable_move();
  const auto move = std::find_if(
      moves.begin(), moves.end(),
      [&](const wire::Move& listed) { return listed.shard() == shard; });
  SL_CHECK(move != moves.end(), "a shard that does not move");
  GiveShard(shard, {.server = move->server(), .thread = move->thread()});
  Unlist(*move);
  moves.erase(move);
  edited_ = true;
}

void ViewEditor::DropMovesTo(int32_t server) {
  auto& moves = *view_.mutable_move();
  for (auto move = moves.begin(); move != moves.end();) {
    if (move->server() != server) {
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
