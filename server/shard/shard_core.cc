#include "server/shard/shard_core.h"

#include <algorithm>

#include "common/metrics/histogram.h"
#include "common/status.h"

namespace slackline {
namespace {

Clock StalenessOf(const wire::View& view) {
  switch (view.mode()) {
    case wire::BSP:
      return 0;
    case wire::SSP:
      return view.staleness();
    default:
      return kUnboundedStaleness;
  }
}

}  // namespace

ShardCore::ShardCore(const Options& options, Optimizer optimizer,
                     config::LearningRateSchedule schedule)
    : options_(options),
      optimizer_(std::move(optimizer)),
      schedule_config_(std::move(schedule)) {
  stats_.set_index(options.self.server);
}

void ShardCore::OnView(std::shared_ptr<const View> view, Effects* effects) {
  if (view_ != nullptr && view->number() <= view_->number()) return;
  view_ = std::move(view);
  const wire::View& proto = view_->proto();
  if (proto.state() != wire::RUNNING || proto.mode() == wire::ALLREDUCE) return;
  if (!schedule_.has_value()) {
    absl::StatusOr<LearningRateSchedule> schedule =
        LearningRateSchedule::Create(
            schedule_config_, {.steps_total = proto.steps_total(),
                               .steps_per_epoch = proto.steps_per_epoch()});
    // The config was validated and the coordinator checked the steps.
    SL_CHECK(schedule.ok(), schedule.status().ToString());
    schedule_ = *std::move(schedule);
  }
  if (shards_.empty()) {
    for (int i = 0; i < view_->shard_count(); ++i) {
      const ShardId id{i};
      if (view_->OwnerOf(id) != options_.self) continue;
      const ShardRange& range = view_->shard(id);
      const auto [at, inserted] = shards_.emplace(
          id, ShardState{.shard = Shard(view_->table(range.table), range,
                                        options_.seed, optimizer_),
                         .gate = StalenessGate(StalenessOf(proto)),
                         .held = {}});
      for (const wire::WorkerMember& worker : proto.worker()) {
        if (worker.founder())
          at->second.gate.Join(Rank{worker.rank()}, worker.incarnation(), 0);
      }
    }
    stats_.set_shards(static_cast<int32_t>(shards_.size()));
    return;
  }
  for (auto& [id, state] : shards_) {
    state.gate.RemoveUnless([&](const StalenessGate::Participant& participant) {
      return view_->FindWorker(participant.rank, participant.incarnation) !=
             nullptr;
    });
    ApplyCompleteClocks(state, effects);
    ReleaseParked(state, effects);
  }
}

void ShardCore::OnMessage(const PeerId& from, const Message& message,
                          Effects* effects) {
  switch (message.header.body_case()) {
    case wire::Header::kPushRequest:
      return OnPush(from, message, effects);
    case wire::Header::kPullRequest:
      return OnPull(from, message, effects);
    default:
      return Refuse(
          from, 0,
          absl::StrCat("a shard thread takes pushes and pulls, not body ",
                       static_cast<int>(message.header.body_case())),
          effects);
  }
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

ShardCore::ShardState* ShardCore::FindShard(int32_t shard) {
  const auto found = shards_.find(ShardId{shard});
  return found == shards_.end() ? nullptr : &found->second;
}

void ShardCore::OnPush(const PeerId& from, const Message& message,
                       Effects* effects) {
  const wire::PushRequest& push = message.header.push_request();
  const int entries = push.shard_size();
  const int payloads = push.advance() ? 0 : entries;
  if (entries == 0 || push.seq_size() != entries ||
      (!push.advance() && push.base_version_size() != entries) ||
      message.payloads.size() != static_cast<size_t>(payloads) ||
      push.clock() < 0 || push.clock() >= kUnboundedStaleness) {
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
    if (member) {
      ShardState* const state = FindShard(push.shard(i));
      StalenessGate::Participant* const participant =
          state == nullptr ? nullptr : state->gate.Find(rank, from.instance);
      if (state == nullptr) {
        code = wire::MOVED;
        if (!view_->HasShard(push.shard(i))) {
          code = wire::REJECTED;
          reply.set_error(absl::StrCat("push to shard ", push.shard(i),
                                       ": the job has ", view_->shard_count(),
                                       " shards"));
        }
      } else if (participant == nullptr) {
        code = wire::REJECTED;
        reply.set_error(absl::StrCat(
            "push to ", view_->ShardName(ShardId{push.shard(i)}), " by rank ",
            from.index,
            ", which has not joined the shard: send a join pull first"));
      } else {
        code = TakeOver(*state, push, i,
                        push.advance() ? Payload() : message.payloads[i],
                        *participant, reply.mutable_error(), effects);
        acked = participant->next_seq - 1;
      }
    }
    reply.add_shard(push.shard(i));
    reply.add_acked_seq(acked);
    reply.add_code(code);
  }
  if (!reply.error().empty()) stats_.set_malformed(stats_.malformed() + 1);
  out.message.header.set_view_number(view_ == nullptr ? 0 : view_->number());
  effects->sends.push_back(std::move(out));
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
  const bool bsp = view_->proto().mode() == wire::BSP;
  // One frame of each worker is held, so a worker that runs ahead has to wait.
  if (bsp && !push.advance() && push.clock() > state.bsp_clock)
    return wire::RETRY;

  ++participant.next_seq;
  stats_.set_pushes(stats_.pushes() + 1);
  const Rank rank = participant.rank;
  const Incarnation incarnation = participant.incarnation;
  const Clock clock_after = push.advance() ? push.clock() : push.clock() + 1;
  const int participants = static_cast<int>(state.gate.participants().size());
  state.gate.Advance(participant, clock_after);
  if (!push.advance()) {
    stats_.set_bytes_in(stats_.bytes_in() + gradient.size());
    const Version base = push.base_version(entry);
    const Version version = state.shard.version();
    AddToHistogram(base < version ? static_cast<int64_t>(version - base) : 0,
                   stats_.mutable_staleness_updates());
    Trace(ShardTraceRecord::Kind::kPushTakenOver, state, rank, incarnation,
          push.clock(), base, effects);
    if (bsp) {
      const auto at = std::upper_bound(
          state.held.begin(), state.held.end(), rank,
          [&](Rank value, const Held& held) {
            return value < held.rank ||
                   (value == held.rank && incarnation < held.incarnation);
          });
      state.held.insert(
          at, {.rank = rank, .incarnation = incarnation, .gradient = gradient});
    } else {
      Update(state, absl::MakeConstSpan(&gradient, 1), participants,
             push.clock(), effects);
    }
  }
  if (bsp) ApplyCompleteClocks(state, effects);
  ReleaseParked(state, effects);
  return wire::OK;
}

void ShardCore::ApplyCompleteClocks(ShardState& state, Effects* effects) {
  if (view_->proto().mode() != wire::BSP ||
      state.gate.MinClock() <= state.bsp_clock)
    return;
  // All held gradients are of bsp_clock. Later clocks, up to the smallest one,
  // are clocks at which every participant only advanced.
  if (!state.held.empty()) {
    std::vector<Payload> gradients;
    gradients.reserve(state.held.size());
    for (Held& held : state.held) gradients.push_back(std::move(held.gradient));
    state.held.clear();
    Update(state, gradients, static_cast<int>(gradients.size()),
           state.bsp_clock, effects);
  }
  state.bsp_clock = state.gate.MinClock();
}

void ShardCore::Update(ShardState& state, absl::Span<const Payload> gradients,
                       int divisor, Clock clock, Effects* effects) {
  // The mean over the workers: one clock of all of them moves the model by the
  // same amount in every mode.
  state.shard.Apply(optimizer_, gradients, 1.0f / static_cast<float>(divisor),
                    static_cast<float>(optimizer_.learning_rate() *
                                       schedule_->FactorAt(clock)));
  stats_.set_updates(stats_.updates() + 1);
  Trace(ShardTraceRecord::Kind::kUpdated, state, Rank{-1}, 0, clock,
        state.shard.version(), effects);
}

void ShardCore::OnPull(const PeerId& from, const Message& message,
                       Effects* effects) {
  const wire::PullRequest& pull = message.header.pull_request();
  if (pull.shard_size() == 0 || !message.payloads.empty() || pull.clock() < 0 ||
      pull.own_clock() < 0 || pull.own_clock() > pull.clock()) {
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
  for (const int32_t shard : pull.shard()) {
    if (!member) {
      answer_code(shard, stranger);
      continue;
    }
    ShardState* const state = FindShard(shard);
    if (state == nullptr) {
      if (view_->HasShard(shard)) {
        answer_code(shard, wire::MOVED);
      } else {
        stats_.set_malformed(stats_.malformed() + 1);
        answer_code(shard, wire::REJECTED)
            ->set_error(absl::StrCat("pull of shard ", shard, ": the job has ",
                                     view_->shard_count(), " shards"));
      }
      continue;
    }
    StalenessGate::Participant* participant =
        state->gate.Find(rank, from.instance);
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
      participant = &state->gate.Join(rank, from.instance, 0);
    }
    const StalenessGate::Pull entry{.rank = rank,
                                    .incarnation = from.instance,
                                    .request_id = pull.request_id(),
                                    .clock = pull.clock(),
                                    .own_clock = pull.own_clock()};
    if (state->gate.Admits(entry)) {
      Answer(*state, entry,
             pull.join() ? participant->joined_at : state->gate.MinClock(),
             effects);
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

void ShardCore::ReleaseParked(ShardState& state, Effects* effects) {
  if (state.gate.parked_count() == 0) return;
  std::vector<StalenessGate::Pull> admitted;
  state.gate.Release(&admitted);
  for (const StalenessGate::Pull& pull : admitted) {
    Answer(state, pull, state.gate.MinClock(), effects);
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
  pending_reply_bytes_ += state.shard.range().bytes();
  stats_.set_pulls(stats_.pulls() + 1);
  stats_.set_bytes_out(stats_.bytes_out() + state.shard.range().bytes());
  AddToHistogram(std::max<Clock>(0, pull.clock - state.gate.MinClock()),
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

int64_t ShardCore::participant_count() const {
  int64_t count = 0;
  for (const auto& [id, state] : shards_) {
    count += static_cast<int64_t>(state.gate.participants().size());
  }
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
                            .request_id = request_id});
}

}  // namespace slackline
