#include "server/shard/shard_core.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/io/state_hash.h"
#include "common/metrics/histogram.h"
#include "common/status.h"
#include "common/sync/phases.h"

namespace slackline {
ShardCore::ShardCore(const Options& options, Optimizer optimizer,
                     config::LearningRateSchedule schedule)
    : options_(options),
      optimizer_(std::move(optimizer)),
      schedule_config_(std::move(schedule)) {
  stats_.set_index(options.self.server);
}

// Does to the copy of an arriving shard what its owner did.
class ShardCore::Replayer : public HandOverTarget::Replay {
 public:
  explicit Replayer(ShardCore* core) : core_(core) {}
  void Push(ShardState& state, const wire::TakenPush& push,
            const Payload& gradient) override {
    StalenessGate::Participant* const participant =
        state.gate.Find(Rank{push.rank()}, push.incarnation());
    if (participant == nullptr || push.clock() < participant->clock) return;
    core_->Absorb(state, *participant, push.clock(), push.advance(), 0,
                  gradient, push.rate_factor(), nullptr);
  }
  void Left(ShardState& state, const wire::LeftWorkers& left) override {
    state.gate.RemoveUnless([&](const StalenessGate::Participant& p) {
      return std::find(left.incarnation().begin(), left.incarnation().end(),
                       p.incarnation) == left.incarnation().end();
    });
    core_->ApplyCompleteClocks(state, nullptr);
  }

 private:
  ShardCore* const core_;
};

// ---- Views ----------------------------------------------------------------

void ShardCore::OnView(std::shared_ptr<const View> view, Effects* effects) {
  if (view_ != nullptr && view->number() <= view_->number()) return;
  if (view_ != nullptr) Flush(effects);  // A client looks at an answer's view.
  const std::shared_ptr<const View> before = std::move(view_);
  view_ = std::move(view);
  const wire::View& proto = view_->proto();
  if (proto.state() != wire::RUNNING) return;
  if (!schedule_.has_value()) {
    absl::StatusOr<LearningRateSchedule> schedule =
        LearningRateSchedule::Create(
            schedule_config_, {.steps_total = proto.steps_total(),
                               .steps_per_epoch = proto.steps_per_epoch()});
    // The config was validated and the coordinator checked the steps.
    SL_CHECK(schedule.ok(), schedule.status().ToString());
    schedule_ = *std::move(schedule);
  }
  Waiting waiting = EndMoves(effects);
  if (!created_) {
    CreateShards();
  } else {
    SplitShards(*before);
    RemoveWorkersGone(effects);
  }
  BeginMoves(effects);
  HandleWaiting(std::move(waiting), effects);
  HandleWaiting(std::exchange(early_, {}), effects);
}

void ShardCore::CreateShards() {
  created_ = true;
  for (int i = 0; i < view_->shard_count(); ++i) {
    const ShardId id{i};
    if (view_->OwnerOf(id) != options_.self) continue;
    const ShardRange& range = view_->shard(id);
    const auto [at, inserted] = shards_.emplace(
        id, ShardState{.shard = Shard(view_->table(range.table), range,
                                      options_.seed, optimizer_),
                       .gate = {},
                       .held = {},
                       .stale = StalePushes(options_.stale.For(
                           view_->table(range.table).name()))});
    for (const wire::WorkerMember& worker : view_->proto().worker()) {
      if (worker.founder())
        at->second.gate.Join(Rank{worker.rank()}, worker.incarnation(), 0);
    }
  }
}

void ShardCore::SplitShards(const View& before) {
  for (int i = before.proto().split_size(); i < view_->proto().split_size();
       ++i) {
    const ShardId kept{view_->proto().split(i).shard()};
    const auto found = shards_.find(kept);
    if (found == shards_.end()) continue;
    SL_CHECK(leaving_.count(kept) == 0, "a shard on its way is split");
    // Who asked for the whole has to ask for the parts.
    TurnParkedAway(found->second);
    // Later splits of the same view may cut either part again.
    const ShardRange whole = found->second.shard.range();
    const int64_t at = view_->proto().split(i).at();
    ShardRange first = whole;
    ShardRange rest = whole;
    first.end = rest.begin = at;
    rest.shard =
        ShardId{view_->shard_count() - view_->proto().split_size() + i};
    shards_.emplace(rest.shard, SplitState(found->second, first, rest));
  }
}

void ShardCore::RemoveWorkersGone(Effects* effects) {
  const auto stays = [&](const StalenessGate::Participant& participant) {
    return view_->FindWorker(participant.rank, participant.incarnation) !=
           nullptr;
  };
  for (auto& [id, state] : shards_) {
    const auto leaving = leaving_.find(id);
    if (leaving != leaving_.end()) {
      std::vector<Incarnation> left;
      for (const auto& participant : state.gate.participants()) {
        if (!stays(participant)) left.push_back(participant.incarnation);
      }
      if (!left.empty()) leaving->second.source.OnLeft(left);
    }
    state.gate.RemoveUnless(stays);
    ApplyCompleteClocks(state, effects);
    ReleaseParked(state, effects);
  }
}

ShardCore::Waiting ShardCore::EndMoves(Effects* effects) {
  const auto listed = [&](ShardId shard, uint64_t move) {
    const wire::Move* const found = view_->FindMove(shard);
    return found != nullptr && found->id() == move;
  };
  Waiting waiting;
  const auto release = [&](Waiting requests) {
    std::move(requests.begin(), requests.end(), std::back_inserter(waiting));
  };
  for (auto at = leaving_.begin(); at != leaving_.end();) {
    Leaving& leaving = at->second;
    if (listed(at->first, leaving.source.move())) {
      ++at;
      continue;
    }
    // Given up, and we were to keep it. It may also be done, and the shard have
    // moved on since, in views that we have not seen.
    if (leaving.source.gone() && view_->OwnerOf(at->first) == options_.self) {
      leaving.lost = true;
      effects->report = true;
      ++at;
      continue;
    }
    release(std::move(leaving.waiting));
    at = leaving_.erase(at);
  }
  for (auto at = arriving_.begin(); at != arriving_.end();) {
    if (listed(at->first, at->second.target.move())) {
      ++at;
      continue;
    }
    release(std::move(at->second.waiting));
    at = arriving_.erase(at);
  }
  return waiting;
}

void ShardCore::BeginMoves(Effects* effects) {
  for (const wire::Move& move : view_->proto().move()) {
    const ShardId shard{move.shard()};
    const Owner target{move.server(), move.thread()};
    const auto state = shards_.find(shard);
    if (state == shards_.end() || target == options_.self ||
        leaving_.count(shard) > 0) {
      continue;
    }
    const auto added = leaving_.emplace(
        shard, Leaving{.source = HandOverSource(options_.hand_over, target,
                                                move.id(), state->second, now_),
                       .waiting = {}});
    Pump(added.first->second, effects);
  }
}

// ---- Moves ----------------------------------------------------------------

void ShardCore::OnTick(absl::Time now, Effects* effects) {
  now_ = now;
  for (auto& [shard, leaving] : leaving_) {
    if (leaving.source.NextWakeup() <= now) Pump(leaving, effects);
  }
}

absl::Time ShardCore::NextWakeup() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [shard, leaving] : leaving_) {
    next = std::min(next, leaving.source.NextWakeup());
  }
  return next;
}

void ShardCore::Pump(Leaving& leaving, Effects* effects) {
  std::vector<Message> messages;
  leaving.source.Pump(now_, &messages);
  const Owner target = leaving.source.target();
  for (Message& message : messages) {
    message.header.set_view_number(view_->number());
    effects->sends.push_back(
        {.to = {.kind = PeerId::Kind::kShardThread,
                .index = target.server,
                .instance = static_cast<uint64_t>(target.thread)},
         .message = std::move(message)});
  }
}

void ShardCore::OnHandOverReply(const Message& message, Effects* effects) {
  const wire::HandOverReply& reply = message.header.hand_over_reply();
  const ShardId shard{reply.shard()};
  const auto found = leaving_.find(shard);
  if (found == leaving_.end()) return;
  Leaving& leaving = found->second;
  const bool known = leaving.source.owned_by_target();
  leaving.source.OnReply(reply, now_);
  if (leaving.source.owned_by_target() && !known) effects->report = true;
  GoIfCaughtUp(shard, leaving, effects);
  Pump(leaving, effects);
}

void ShardCore::GoIfCaughtUp(ShardId shard, Leaving& leaving,
                             Effects* effects) {
  if (!leaving.source.CaughtUp() || leaving.lost) return;
  leaving.source.Go(now_);
  const auto state = shards_.find(shard);
  TurnParkedAway(state->second);
  shards_.erase(state);
  HandleWaiting(std::exchange(leaving.waiting, {}), effects);
}

void ShardCore::OnHandOver(const PeerId& from, const Message& message,
                           Effects* effects) {
  const wire::HandOver& hand_over = message.header.hand_over();
  if (view_ == nullptr || view_->proto().state() != wire::RUNNING) return;
  const ShardId shard{hand_over.shard()};
  if (message.header.view_number() > view_->number()) {
    // The source has the order, and ours is on its way.
    if (early_.size() < options_.early_max)
      early_.push_back({.to = from, .message = message});
    return;
  }
  // Without the order we do not take part; the source repeats what it sent.
  const wire::Move* const move =
      view_->HasShard(hand_over.shard()) ? view_->FindMove(shard) : nullptr;
  if (move == nullptr || move->id() != hand_over.move() ||
      Owner{move->server(), move->thread()} != options_.self) {
    return;
  }
  Outgoing out{.to = from, .message = {}};
  out.message.header.set_view_number(view_->number());
  wire::HandOverReply& reply = *out.message.header.mutable_hand_over_reply();
  reply.set_shard(hand_over.shard());
  reply.set_move(hand_over.move());
  if (shards_.count(shard) > 0) {  // Our confirmation was lost.
    reply.set_owned(true);
    effects->sends.push_back(std::move(out));
    return;
  }
  const auto arriving =
      arriving_
          .emplace(shard,
                   Arriving{.target = HandOverTarget(from, hand_over.move()),
                            .waiting = {}})
          .first;
  HandOverTarget& target = arriving->second.target;
  Replayer replayer(this);
  if (const absl::Status taken =
          target.OnRecords(hand_over, message.payloads, view_->shard(shard),
                           optimizer_.slot_count(), &replayer);
      !taken.ok()) {
    stats_.set_malformed(stats_.malformed() + 1);
    return;
  }
  reply.set_have(target.have());
  Waiting waiting;
  if (std::optional<ShardState> state = target.TakeIfGone()) {
    reply.set_owned(true);
    waiting = std::move(arriving->second.waiting);
    arriving_.erase(arriving);
    state->stale = StalePushes(
        options_.stale.For(view_->table(view_->shard(shard).table).name()));
    shards_.emplace(shard, *std::move(state));
    // Our view is at least as new as the source's: see `early_`.
    RemoveWorkersGone(effects);
  }
  effects->sends.push_back(std::move(out));
  HandleWaiting(std::move(waiting), effects);
}

void ShardCore::TurnParkedAway(ShardState& state) {
  const int32_t shard = static_cast<int32_t>(state.shard.range().shard);
  for (const StalenessGate::Pull& pull : state.gate.TakeParked()) {
    const PeerId to{.kind = PeerId::Kind::kWorker,
                    .index = static_cast<int32_t>(pull.rank),
                    .instance = pull.incarnation};
    wire::PullReply& reply =
        *ReplyTo(to, pull.request_id).header.mutable_pull_reply();
    reply.add_shard(shard);
    reply.add_code(wire::MOVED);
    reply.add_version(0);
    reply.add_shard_clock(0);
    AddRelocation(shard, reply.mutable_relocation());
  }
}

void ShardCore::AddRelocation(
    int32_t shard,
    google::protobuf::RepeatedPtrField<wire::Relocation>* relocations) const {
  const ShardId id{shard};
  const auto leaving = leaving_.find(id);
  Owner owner = view_->OwnerOf(id);
  uint64_t as_of = view_->number();
  if (leaving != leaving_.end() && leaving->second.source.gone()) {
    if (leaving->second.lost) return;
    owner = leaving->second.source.target();
    as_of = leaving->second.source.move();
  } else if (const wire::Move* const move = view_->FindMove(id)) {
    as_of = move->id() - 1;
  }
  if (owner == options_.self) return;
  wire::Relocation& relocation = *relocations->Add();
  relocation.set_shard(shard);
  relocation.set_server(owner.server);
  relocation.set_thread(owner.thread);
  relocation.set_as_of(as_of);
}

wire::Code ShardCore::CodeForShard(
    int32_t shard, uint64_t view_number,
    google::protobuf::RepeatedPtrField<wire::Relocation>* relocations,
    std::string* error) const {
  if (!view_->HasShard(shard)) {
    if (view_number > view_->number()) return wire::RETRY;
    *error = absl::StrCat("the job has ", view_->shard_count(), " shards");
    return wire::REJECTED;
  }
  // Cut in two since: the sender means another range.
  if (view_number < view_->RangeSince(ShardId{shard})) return wire::MOVED;
  if (shards_.count(ShardId{shard}) > 0) return wire::OK;
  AddRelocation(shard, relocations);
  return wire::MOVED;
}

ShardCore::Waiting* ShardCore::WaitingFor(ShardId shard) {
  const auto leaving = leaving_.find(shard);
  if (leaving != leaving_.end() && leaving->second.source.MustWait(now_)) {
    return &leaving->second.waiting;
  }
  const auto arriving = arriving_.find(shard);
  return arriving == arriving_.end() ? nullptr : &arriving->second.waiting;
}

void ShardCore::HandleWaiting(Waiting waiting, Effects* effects) {
  for (const Outgoing& request : waiting) {
    OnMessage(request.to, request.message, effects);
  }
}

// ---- Messages -------------------------------------------------------------

void ShardCore::OnMessage(const PeerId& from, const Message& message,
                          Effects* effects) {
  switch (message.header.body_case()) {
    case wire::Header::kPushRequest:
      return OnPush(from, message, effects);
    case wire::Header::kPullRequest:
      return OnPull(from, message, effects);
    case wire::Header::kHandOver:
      if (from.kind != PeerId::Kind::kShardThread) break;
      return OnHandOver(from, message, effects);
    case wire::Header::kHandOverReply:
      if (from.kind != PeerId::Kind::kShardThread) break;
      return OnHandOverReply(message, effects);
    default:
      break;
  }
  Refuse(from, 0,
         absl::StrCat("a shard thread takes pushes and pulls, not body ",
                      static_cast<int>(message.header.body_case())),
         effects);
}
void ShardCore::Refuse(const PeerId& from, uint64_t request_id,
                       const std::string& error, Effects* effects) {
  stats_.set_malformed(stats_.malformed() + 1);
  Outgoing reply{.to = from, .message = {}};
  reply.message.header.set_view_number(view_ == nullptr ? 0 : view_->number());
  reply.message.header.mutable_error_reply()->set_error(error);
  reply.message.header.mutable_error_reply()->set_request_id(request_id);
  effects->sends.push_back(std::move(reply));
}

wire::Code ShardCore::CodeForStranger(const Message& message) const {
  const bool we_are_behind = view_ == nullptr ||
                             view_->proto().state() == wire::FORMING ||
                             message.header.view_number() > view_->number();
  return we_are_behind ? wire::RETRY : wire::FENCED;
}

ShardState* ShardCore::FindShard(int32_t shard) {
  const auto found = shards_.find(ShardId{shard});
  return found == shards_.end() ? nullptr : &found->second;
}

void ShardCore::OnPush(const PeerId& from, const Message& message,
                       Effects* effects) {
  const wire::PushRequest& push = message.header.push_request();
  const int entries = push.shard_size();
  const size_t frames = FramesPerEntry(push);
  if (entries == 0 || push.seq_size() != entries ||
      (!push.advance() && push.base_version_size() != entries) ||
      (push.install() && (push.advance() || push.hash_size() != entries)) ||
      message.payloads.size() != frames * static_cast<size_t>(entries) ||
      push.clock() < 0 || push.clock() >= kClockMax) {
    return Refuse(from, 0,
                  absl::StrCat("push of clock ", push.clock(), " has ", entries,
                               " shards, ", push.seq_size(),
                               " sequence numbers, ", push.base_version_size(),
                               " base versions and ", message.payloads.size(),
                               " payload frames; the counts must agree and the "
                               "clock be in [0, 2^60)"),
                  effects);
  }
  Outgoing out{.to = from, .message = {}};
  wire::PushReply& reply = *out.message.header.mutable_push_reply();
  const Rank rank{from.index};
  const bool member = from.kind == PeerId::Kind::kWorker && view_ != nullptr &&
                      view_->FindWorker(rank, from.instance) != nullptr &&
                      view_->proto().state() == wire::RUNNING;
  const wire::Code stranger = CodeForStranger(message);
  for (int i = 0; i < entries; ++i) {
    wire::Code code = stranger;
    uint64_t acked = 0;
    const int32_t shard = push.shard(i);
    if (member && push.phases() > view_->proto().phase_size()) {
      code = wire::RETRY;  // A phase that we have not seen may have begun.
    } else if (member) {
      if (Waiting* const waiting = WaitingFor(ShardId{shard})) {
        if (MayWait(*waiting)) {
          Wait(*waiting, from, message, i);
          continue;
        }
        code = wire::RETRY;
      } else {
        code = CodeForShard(shard, message.header.view_number(),
                            reply.mutable_relocation(), reply.mutable_error());
      }
    }
    if (code == wire::OK) {
      ShardState& state = *FindShard(shard);
      const absl::Span<const Payload> payloads =
          absl::MakeConstSpan(message.payloads).subspan(i * frames, frames);
      const bool may_be_cut = message.header.view_number() > view_->number();
      StalenessGate::Participant* participant =
          state.gate.Find(rank, from.instance);
      if (push.install()) {
        // A worker that we have not heard of may be one of those at this clock.
        code = may_be_cut
                   ? wire::RETRY
                   : Install(state, push, i, payloads, rank, from.instance,
                             reply.mutable_error(), effects);
        participant = state.gate.Find(rank, from.instance);
        if (participant != nullptr) acked = participant->next_seq - 1;
      } else if (participant == nullptr) {
        code = wire::REJECTED;
        reply.set_error(absl::StrCat(
            "push to ", view_->ShardName(ShardId{shard}), " by rank ",
            from.index,
            ", which has not joined the shard: send a join pull first"));
      } else if (may_be_cut && !push.advance() &&
                 payloads.front().size() != state.shard.range().bytes()) {
        code = wire::RETRY;  // Cut in two, and we have yet to hear of it.
      } else {
        code = TakeOver(state, push, i,
                        payloads.empty() ? Payload() : payloads.front(),
                        *participant, reply.mutable_error(), effects);
        acked = participant->next_seq - 1;
      }
    } else if (code == wire::REJECTED) {
      reply.set_error(
          absl::StrCat("push to shard ", shard, ": ", reply.error()));
    }
    reply.add_shard(shard);
    reply.add_acked_seq(acked);
    reply.add_code(code);
  }
  if (reply.shard_size() == 0) return;  // All of it waits.
  if (!reply.error().empty()) stats_.set_malformed(stats_.malformed() + 1);
  out.message.header.set_view_number(view_ == nullptr ? 0 : view_->number());
  effects->sends.push_back(std::move(out));
}

size_t ShardCore::FramesPerEntry(const wire::PushRequest& push) const {
  if (push.advance()) return 0;
  return push.install() ? 1 + static_cast<size_t>(optimizer_.slot_count()) : 1;
}

wire::Code ShardCore::Install(ShardState& state, const wire::PushRequest& push,
                              int entry, absl::Span<const Payload> frames,
                              Rank rank, Incarnation incarnation,
                              std::string* error, Effects* effects) {
  const ShardRange& range = state.shard.range();
  // It is on its way elsewhere, and nothing else happens to it: soon done.
  if (leaving_.count(range.shard) > 0) return wire::RETRY;
  const uint64_t seq = push.seq(entry);
  StalenessGate::Participant* participant = state.gate.Find(rank, incarnation);
  const uint64_t next_seq = participant == nullptr ? 1 : participant->next_seq;
  if (seq < next_seq) {
    stats_.set_duplicates(stats_.duplicates() + 1);
    return wire::OK;
  }
  if (seq > next_seq) return wire::RETRY;
  const auto reject = [&](const std::string& why) {
    *error = absl::StrCat("installation of ", view_->ShardName(range.shard),
                          " by rank ", static_cast<int>(rank), " at clock ",
                          push.clock(), ": ", why);
    return wire::REJECTED;
  };
  const wire::View& view = view_->proto();
  const Clock clock = push.clock();
  if (clock == 0 || PhaseAt(view, clock).from() != clock ||
      PhaseAt(view, clock - 1).mode() != wire::ALLREDUCE) {
    return reject("no phase by all-reduce ends there");
  }
  for (const Payload& frame : frames) {
    if (frame.size() == range.bytes()) continue;
    return reject(absl::StrCat("a tensor has ", frame.size(),
                               " bytes, the shard ", range.bytes()));
  }
  if (StateHash(push.base_version(entry), frames.front(), frames.subspan(1)) !=
      push.hash(entry)) {
    return reject("its bits are not those that the worker sent");
  }
  const bool first = state.bsp_clock < clock;
  if (first) {
    state.shard.Install(push.base_version(entry), frames.front(),
                        {frames.begin() + 1, frames.end()});
    state.stale.Forget();
    for (const wire::WorkerMember& worker : view.worker()) {
      if (state.gate.Find(Rank{worker.rank()}, worker.incarnation()) == nullptr)
        state.gate.Join(Rank{worker.rank()}, worker.incarnation(), clock);
    }
    state.gate.AdvanceAll(clock);
    state.bsp_clock = clock;
    size_t bytes = 0;
    for (const Payload& frame : frames) bytes += frame.size();
    stats_.set_bytes_in(stats_.bytes_in() + bytes);
    Trace(ShardTraceRecord::Kind::kInstalled, state, rank, incarnation, clock,
          state.shard.version(), effects);
  }
  participant = state.gate.Find(rank, incarnation);
  if (participant == nullptr) {
    return reject("the worker came after all had reached that clock");
  }
  ++participant->next_seq;
  if (!first) {
    Trace(ShardTraceRecord::Kind::kAdvanced, state, rank, incarnation, clock,
          state.shard.version(), effects);
  }
  ReleaseParked(state, effects);
  return wire::OK;
}

bool ShardCore::AwaitsInstall(const ShardState& state) const {
  const Clock clock = state.bsp_clock;
  if (PhaseAt(view_->proto(), clock).mode() != wire::ALLREDUCE) return false;
  const wire::Phase* const next = PhaseAfter(view_->proto(), clock);
  return next != nullptr && view_->proto().arrived() >= next->from();
}

void ShardCore::Wait(Waiting& waiting, const PeerId& from,
                     const Message& message, int entry) const {
  Outgoing& request = waiting.emplace_back();
  request.to = from;
  request.message.header.set_view_number(message.header.view_number());
  if (message.header.has_push_request()) {
    const wire::PushRequest& whole = message.header.push_request();
    wire::PushRequest& push = *request.message.header.mutable_push_request();
    push.set_clock(whole.clock());
    push.set_phases(whole.phases());
    push.set_advance(whole.advance());
    push.set_install(whole.install());
    push.add_shard(whole.shard(entry));
    push.add_seq(whole.seq(entry));
    if (whole.advance()) return;
    push.add_base_version(whole.base_version(entry));
    if (whole.install()) push.add_hash(whole.hash(entry));
    const size_t frames = FramesPerEntry(whole);
    const auto first =
        message.payloads.begin() + static_cast<std::ptrdiff_t>(entry * frames);
    request.message.payloads.assign(
        first, first + static_cast<std::ptrdiff_t>(frames));
  } else {
    const wire::PullRequest& whole = message.header.pull_request();
    wire::PullRequest& pull = *request.message.header.mutable_pull_request();
    pull = whole;
    pull.clear_shard();
    pull.add_shard(whole.shard(entry));
  }
}

wire::Code ShardCore::TakeOver(ShardState& state, const wire::PushRequest& push,
                               int entry, const Payload& gradient,
                               StalenessGate::Participant& participant,
                               std::string* error, Effects* effects) {
  const uint64_t seq = push.seq(entry);
  if (seq < participant.next_seq) {
    stats_.set_duplicates(stats_.duplicates() + 1);
    return wire::OK;
  }
  // An earlier one was lost; both are sent again in order.
  if (seq > participant.next_seq) return wire::RETRY;

  const auto describe = [&] {
    return absl::StrCat("push to ", view_->ShardName(state.shard.range().shard),
                        " by rank ", static_cast<int>(participant.rank),
                        " of clock ", push.clock());
  };
  if (push.advance()) {
    if (push.clock() < participant.clock) {
      *error = absl::StrCat(describe(), ": its clock is already ",
                            participant.clock);
      return wire::REJECTED;
    }
  } else if (push.clock() != participant.clock) {
    *error =
        absl::StrCat(describe(), ": its next clock is ", participant.clock);
    return wire::REJECTED;
  } else if (gradient.size() != state.shard.range().bytes()) {
    *error =
        absl::StrCat(describe(), ": ", gradient.size(),
                     " bytes, the shard has ", state.shard.range().bytes());
    return wire::REJECTED;
  }
  const wire::Mode mode = PhaseAt(view_->proto(), push.clock()).mode();
  if (mode == wire::ALLREDUCE && !push.advance()) {
    *error = absl::StrCat(describe(), ": the step of that clock is done by ",
                          "all-reduce");
    return wire::REJECTED;
  }
  // One frame of each worker is held, so a worker that runs ahead has to wait.
  if ((mode == wire::BSP || mode == wire::BACKUP) && !push.advance() &&
      push.clock() > state.bsp_clock) {
    return wire::RETRY;
  }

  Clock clock = push.clock();
  bool advance = push.advance();
  if (!advance && mode == wire::DSSP) {
    state.dssp.OnPush(participant.rank, participant.incarnation, clock, now_);
  }
  const Version base = advance ? 0 : push.base_version(entry);
  Payload applied = gradient;
  double rate_factor = 1;
  if (!advance && mode != wire::BSP && mode != wire::BACKUP) {
    StaleRule::Verdict verdict = state.stale.OnPush(
        {.rank = participant.rank,
         .incarnation = participant.incarnation,
         .base = base,
         .gradient = &gradient,
         .now = state.shard.version(),
         .values = &state.shard.values(),
         .workers = static_cast<int>(state.gate.participants().size())});
    rate_factor = verdict.rate_factor;
    if (!verdict.gradient.empty()) applied = std::move(verdict.gradient);
    if (verdict.drop) {  // As if the worker had only said that it is done.
      CountStaleness(state, base);
      stats_.set_dropped(stats_.dropped() + 1);
      Trace(ShardTraceRecord::Kind::kPushTakenOver, state, participant.rank,
            participant.incarnation, clock, base, effects);
      advance = true;
      ++clock;
      applied = Payload();
    }
  }
  Absorb(state, participant, clock, advance, base, applied, rate_factor,
         effects);
  if (const auto leaving = leaving_.find(state.shard.range().shard);
      leaving != leaving_.end()) {
    leaving->second.source.OnPush(participant.rank, participant.incarnation,
                                  clock, advance, applied, rate_factor);
    Pump(leaving->second, effects);
  }
  ReleaseParked(state, effects);
  return wire::OK;
}

void ShardCore::Absorb(ShardState& state,
                       StalenessGate::Participant& participant, Clock clock,
                       bool advance, Version base, const Payload& gradient,
                       double rate_factor, Effects* effects) {
  const wire::Mode mode = PhaseAt(view_->proto(), clock).mode();
  const bool held = mode == wire::BSP || mode == wire::BACKUP;
  const bool late = held && clock < state.bsp_clock;  // Only in BACKUP.
  ++participant.next_seq;
  const Rank rank = participant.rank;
  const Incarnation incarnation = participant.incarnation;
  const int participants = static_cast<int>(state.gate.participants().size());
  state.gate.Advance(participant, advance ? clock : clock + 1);
  if (effects != nullptr) stats_.set_pushes(stats_.pushes() + 1);
  if (advance && effects != nullptr) {
    Trace(ShardTraceRecord::Kind::kAdvanced, state, rank, incarnation, clock,
          state.shard.version(), effects);
  }
  if (!advance) {
    if (effects != nullptr) {
      stats_.set_bytes_in(stats_.bytes_in() + gradient.size());
      effects->work.push_back({.shard = state.shard.range().shard,
                               .pushes = 1,
                               .bytes_in = gradient.size()});
      CountStaleness(state, base);
      if (late) stats_.set_dropped(stats_.dropped() + 1);
      Trace(ShardTraceRecord::Kind::kPushTakenOver, state, rank, incarnation,
            clock, base, effects);
    }
    if (late) {
      // The others' mean is in the model already.
    } else if (held) {
      const auto at = std::upper_bound(
          state.held.begin(), state.held.end(), rank,
          [&](Rank value, const ShardState::Held& held) {
            return value < held.rank ||
                   (value == held.rank && incarnation < held.incarnation);
          });
      state.held.insert(
          at, {.rank = rank, .incarnation = incarnation, .gradient = gradient});
    } else {
      Update(state, absl::MakeConstSpan(&gradient, 1), {rank}, participants,
             clock, rate_factor, effects);
    }
  }
  ApplyCompleteClocks(state, effects);
}

Clock ShardCore::CompleteClock(const ShardState& state) const {
  const Clock clock = state.bsp_clock;
  if (state.gate.MinClock() > clock || state.held.empty())
    return std::max(clock, state.gate.MinClock());
  const wire::Phase& phase = PhaseAt(view_->proto(), clock);
  if (phase.mode() != wire::BACKUP) return clock;
  // Who has died counts with what it pushed, and is waited for no more.
  const auto count = static_cast<int64_t>(state.held.size());
  const auto workers = static_cast<int64_t>(state.gate.participants().size());
  return count < workers - phase.backups() ? clock : clock + 1;
}

void ShardCore::ApplyCompleteClocks(ShardState& state, Effects* effects) {
  const Clock complete = CompleteClock(state);
  if (complete == state.bsp_clock) return;
  // All held gradients are of bsp_clock. Later clocks, up to the one that is
  // reached, are clocks at which every participant only advanced, or of modes
  // that hold nothing.
  if (!state.held.empty()) {
    std::vector<Payload> gradients;
    gradients.reserve(state.held.size());
    std::vector<Rank> ranks;
    for (ShardState::Held& held : state.held) {
      gradients.push_back(std::move(held.gradient));
      ranks.push_back(held.rank);
    }
    state.held.clear();
    Update(state, gradients, std::move(ranks),
           static_cast<int>(gradients.size()), state.bsp_clock, 1, effects);
  }
  state.bsp_clock = complete;
}

void ShardCore::Update(ShardState& state, absl::Span<const Payload> gradients,
                       std::vector<Rank> ranks, int workers, Clock clock,
                       double rate_factor, Effects* effects) {
  // Holding the old values makes the update write elsewhere.
  const bool compare = state.stale.rule().NeedsUpdates();
  const Payload before = compare ? state.shard.values() : Payload();
  ApplyMean(
      state.shard, optimizer_, gradients, workers,
      optimizer_.learning_rate() * schedule_->FactorAt(clock) * rate_factor);
  if (compare) state.stale.OnUpdate(before, state.shard.values());
  if (effects == nullptr) return;
  stats_.set_updates(stats_.updates() + 1);
  effects->work.push_back(
      {.shard = state.shard.range().shard,
       .bytes_applied = gradients.size() * state.shard.range().bytes()});
  Trace(ShardTraceRecord::Kind::kUpdated, state, Rank{-1}, 0, clock,
        state.shard.version(), effects);
  if (!options_.trace) return;
  effects->trace.back().ranks = std::move(ranks);
  effects->trace.back().workers = workers;
}

void ShardCore::CountStaleness(const ShardState& state, Version base) {
  const Version version = state.shard.version();
  AddToHistogram(base < version ? static_cast<int64_t>(version - base) : 0,
                 stats_.mutable_staleness_updates());
}

void ShardCore::OnPull(const PeerId& from, const Message& message,
                       Effects* effects) {
  const wire::PullRequest& pull = message.header.pull_request();
  if (pull.shard_size() == 0 || !message.payloads.empty() || pull.clock() < 0 ||
      pull.clock() >= kClockMax || pull.own_clock() < 0 ||
      pull.own_clock() > pull.clock()) {
    return Refuse(
        from, pull.request_id(),
        absl::StrCat(
            "pull ", pull.request_id(), " of ", pull.shard_size(),
            " shards at clock ", pull.clock(), " with own clock ",
            pull.own_clock(), " and ", message.payloads.size(),
            " payload frames: it needs at least one shard, no payload, and "
            "clocks with 0 <= own clock <= clock"),
        effects);
  }
  const Rank rank{from.index};
  const bool member = from.kind == PeerId::Kind::kWorker && view_ != nullptr &&
                      view_->FindWorker(rank, from.instance) != nullptr &&
                      view_->proto().state() == wire::RUNNING;
  const wire::Code stranger = CodeForStranger(message);
  const auto answer_code = [&](int32_t shard, wire::Code code) {
    wire::PullReply& reply =
        *ReplyTo(from, pull.request_id()).header.mutable_pull_reply();
    reply.add_shard(shard);
    reply.add_code(code);
    reply.add_version(0);
    reply.add_shard_clock(0);
    return &reply;
  };
  for (int i = 0; i < pull.shard_size(); ++i) {
    const int32_t shard = pull.shard(i);
    if (!member) {
      answer_code(shard, stranger);
      continue;
    }
    if (pull.phases() > view_->proto().phase_size()) {
      answer_code(shard, wire::RETRY);  // As for pushes.
      continue;
    }
    if (Waiting* const waiting = WaitingFor(ShardId{shard})) {
      if (MayWait(*waiting)) {
        Wait(*waiting, from, message, i);
      } else {
        answer_code(shard, wire::RETRY);
      }
      continue;
    }
    wire::PullReply about;
    const wire::Code code =
        CodeForShard(shard, message.header.view_number(),
                     about.mutable_relocation(), about.mutable_error());
    if (code != wire::OK) {
      wire::PullReply* const reply = answer_code(shard, code);
      reply->mutable_relocation()->MergeFrom(about.relocation());
      if (code == wire::REJECTED) {
        stats_.set_malformed(stats_.malformed() + 1);
        reply->set_error(
            absl::StrCat("pull of shard ", shard, ": ", about.error()));
      }
      continue;
    }
    ShardState* const state = FindShard(shard);
    StalenessGate::Participant* participant =
        state->gate.Find(rank, from.instance);
    // Who has joined while the others stepped by all-reduce takes part from the
    // installation on; our view may be too old to say so.
    if (participant == nullptr &&
        (AwaitsInstall(*state) ||
         message.header.view_number() > view_->number())) {
      answer_code(shard, wire::RETRY);
      continue;
    }
    if (participant == nullptr) {
      if (!pull.join()) {
        stats_.set_malformed(stats_.malformed() + 1);
        answer_code(shard, wire::REJECTED)
            ->set_error(absl::StrCat(
                "pull of ", view_->ShardName(ShardId{shard}), " by rank ",
                from.index,
                ", which has not joined the shard: send a join pull first"));
        continue;
      }
      participant = &state->gate.Join(rank, from.instance, state->bsp_clock);
      if (const auto leaving = leaving_.find(ShardId{shard});
          leaving != leaving_.end()) {
        leaving->second.source.OnJoin(*participant);
        Pump(leaving->second, effects);
      }
    }
    const StalenessGate::Pull entry = Gated(*state, from, pull);
    if (state->gate.Admits(state->bsp_clock, entry)) {
      Answer(*state, entry,
             pull.join() ? participant->joined_at : state->bsp_clock, effects);
    } else if (!state->gate.Park(entry)) {
      // Asked again: say what it waits for, so that a person can be told.
      wire::PullReply* const reply = answer_code(shard, wire::PARKED);
      if (const StalenessGate::Participant* const slowest =
              state->gate.Slowest()) {
        reply->set_waiting_rank(static_cast<int32_t>(slowest->rank));
        reply->set_waiting_clock(slowest->clock);
      }
    }
  }
}

StalenessGate::Pull ShardCore::Gated(ShardState& state, const PeerId& from,
                                     const wire::PullRequest& pull) const {
  StalenessGate::Pull gated{.rank = Rank{from.index},
                            .incarnation = from.instance,
                            .request_id = pull.request_id(),
                            .clock = pull.clock(),
                            .own_clock = pull.own_clock(),
                            .state = pull.state()};
  if (pull.state()) gated.needed = pull.clock();
  // A worker that joins takes what is there.
  if (pull.state() || pull.join()) return gated;
  const wire::View& view = view_->proto();
  gated.needed = NeededClock(view, pull.clock());
  gated.complete = NeededCompleteClock(view, pull.clock());
  const wire::Phase& phase = PhaseAt(view, pull.clock());
  if (phase.mode() == wire::DSSP && state.gate.MinClock() < gated.needed &&
      state.dssp.Grants(gated, state.gate,
                        phase.staleness_max() - phase.staleness())) {
    gated.needed = NeededClock(view, pull.clock(), /*granted=*/true);
  }
  return gated;
}

void ShardCore::ReleaseParked(ShardState& state, Effects* effects) {
  if (state.gate.parked_count() == 0) return;
  std::vector<StalenessGate::Pull> admitted;
  state.gate.Release(state.bsp_clock, &admitted);
  for (const StalenessGate::Pull& pull : admitted) {
    Answer(state, pull, state.bsp_clock, effects);
  }
}

void ShardCore::Answer(ShardState& state, const StalenessGate::Pull& pull,
                       Clock reported_clock, Effects* effects) {
  const PeerId to{.kind = PeerId::Kind::kWorker,
                  .index = static_cast<int32_t>(pull.rank),
                  .instance = pull.incarnation};
  Message& message = ReplyTo(to, pull.request_id);
  wire::PullReply& reply = *message.header.mutable_pull_reply();
  reply.add_shard(static_cast<int32_t>(state.shard.range().shard));
  reply.add_code(wire::OK);
  reply.add_version(state.shard.version());
  reply.add_shard_clock(reported_clock);
  message.payloads.push_back(state.shard.values());
  size_t bytes = state.shard.range().bytes();
  if (pull.state) {
    // Entries of other codes have a hash of 0; it comes with the last one.
    while (reply.hash_size() + 1 < reply.code_size()) reply.add_hash(0);
    reply.add_hash(StateHash(state.shard.version(), state.shard.values(),
                             state.shard.slots()));
    for (const Payload& slot : state.shard.slots()) {
      message.payloads.push_back(slot);
      bytes += slot.size();
    }
  }
  pending_reply_bytes_ += bytes;
  stats_.set_pulls(stats_.pulls() + 1);
  stats_.set_bytes_out(stats_.bytes_out() + bytes);
  effects->work.push_back(
      {.shard = state.shard.range().shard, .pulls = 1, .bytes_out = bytes});
  if (pull.state) return;  // For no step.
  state.stale.OnAnswer(pull.rank, pull.incarnation, state.shard.version(),
                       state.shard.values());
  AddToHistogram(std::max<Clock>(0, pull.clock - state.bsp_clock),
                 stats_.mutable_staleness_clocks());
  Trace(ShardTraceRecord::Kind::kPullAnswered, state, pull.rank,
        pull.incarnation, pull.clock, state.shard.version(), effects,
        pull.request_id);
}

Message& ShardCore::ReplyTo(const PeerId& to, uint64_t request_id) {
  for (PendingReply& pending : pending_replies_) {
    if (pending.to == to && pending.request_id == request_id)
      return pending.message;
  }
  PendingReply& pending = pending_replies_.emplace_back(
      PendingReply{.to = to, .request_id = request_id, .message = {}});
  pending.message.header.mutable_pull_reply()->set_request_id(request_id);
  return pending.message;
}

void ShardCore::Flush(Effects* effects) {
  for (PendingReply& pending : pending_replies_) {
    pending.message.header.set_view_number(view_ == nullptr ? 0
                                                            : view_->number());
    effects->sends.push_back(
        {.to = pending.to, .message = std::move(pending.message)});
  }
  pending_replies_.clear();
  pending_reply_bytes_ = 0;
  int64_t parked = 0;
  for (const auto& [id, state] : shards_) parked += state.gate.parked_count();
  stats_.set_pulls_parked(parked);
}

run::ServerStats ShardCore::Stats() const {
  run::ServerStats stats = stats_;
  stats.set_shards(static_cast<int32_t>(shards_.size()));
  for (const auto& [shard, leaving] : leaving_) {
    run::HandOverState& state = *stats.add_hand_over();
    state = leaving.source.Report();
    state.set_state(leaving.lost ? run::HandOverState::LOST
                    : leaving.source.owned_by_target()
                        ? run::HandOverState::DONE
                        : run::HandOverState::COPYING);
  }
  return stats;
}

int64_t ShardCore::participant_count() const {
  int64_t count = 0;
  for (const auto& [id, state] : shards_) {
    count += static_cast<int64_t>(state.gate.participants().size());
  }
  return count;
}

const ShardState* ShardCore::StateOf(ShardId shard) const {
  const auto found = shards_.find(shard);
  return found == shards_.end() ? nullptr : &found->second;
}

size_t ShardCore::waiting_count() const {
  size_t count = 0;
  for (const auto& [shard, leaving] : leaving_) count += leaving.waiting.size();
  for (const auto& [shard, arriving] : arriving_)
    count += arriving.waiting.size();
  return count;
}

void ShardCore::Trace(ShardTraceRecord::Kind kind, const ShardState& state,
                      Rank rank, Incarnation incarnation, Clock clock,
                      Version version, Effects* effects,
                      uint64_t request_id) const {
  if (!options_.trace) return;
  effects->trace.push_back({.kind = kind,
                            .shard = state.shard.range().shard,
                            .rank = rank,
                            .incarnation = incarnation,
                            .clock = clock,
                            .min_clock = state.gate.MinClock(),
                            .version = version,
                            .request_id = request_id,
                            .ranks = {},
                            .workers = 0});
}

}  // namespace slackline
