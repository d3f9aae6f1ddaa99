#include "worker/client/client_core.h"

#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/io/state_hash.h"
#include "common/status.h"
#include "worker/client/shard_tensors.h"

namespace slackline {

ClientCore::ClientCore(const Options& options, std::shared_ptr<const View> view)
    : options_(options),
      routes_(std::move(view)),
      sequences_(this->view().shard_count()),
      push_clock_(this->view().proto().table_size()) {}

ClientParts ClientCore::Parts(absl::Time now, Effects* effects) {
  return {.options = options_,
          .routes = routes_,
          .sequences = sequences_,
          .pulls = pulls_,
          .numbers = numbers_,
          .counts = counts_,
          .now = now,
          .effects = *effects};
}

// ---- Moves and splits -----------------------------------------------------

void ClientCore::OnView(std::shared_ptr<const View> view, absl::Time now,
                        Effects* effects) {
  if (view->number() <= routes_.view().number()) return;
  const Routes::Change change = routes_.Adopt(std::move(view));
  if (this->view().FindWorker(options_.rank, options_.incarnation) == nullptr)
    effects->fenced = true;
  for (const ShardSplit& split : change.splits) {
    sequences_.Split(split);
    links_.Split(split, counts_);
    pulls_.Split(split);
  }
  links_.OnNewView(now + options_.refused_delay);
  if (change.moved) links_.Reroute(Parts(now, effects));
  counts_.ForgetServersGone(this->view());
  links_.ForgetServersGone(routes_);
}

template <typename Answers>
void ClientCore::FollowRefusals(const Answers& answers,
                                const ClientParts& parts) {
  bool moved = false;
  for (const auto& answer : answers) {
    if (answer.refusal().moved().has_to())
      moved |= routes_.Relocate(answer.shard(), answer.refusal().moved().to());
  }
  if (moved) links_.Reroute(parts);
}

bool ClientCore::EndsHere(Owner from, int32_t shard, const char* what,
                          const wire::Refusal& refusal,
                          Effects* effects) const {
  switch (refusal.why_case()) {
    case wire::Refusal::kRetry:
    case wire::Refusal::kMoved:
      return false;
    case wire::Refusal::kFenced:
      effects->fenced = true;
      return true;
    default:
      effects->failure = absl::InternalError(
          absl::StrCat(routes_.NameOf(from), " refused a ", what, " ",
                       view().ShardName(ShardId{shard}), ": ",
                       refusal.rejected().empty() ? "it does not say why"
                                                  : refusal.rejected()));
      return true;
  }
}

// ---- Push -----------------------------------------------------------------

absl::Status ClientCore::Push(Clock clock, TableId table,
                              const CodedGradient& gradient,
                              const StepOptions& options,
                              absl::Span<const Version> base_versions,
                              absl::Time now, Effects* effects) {
  SL_RETURN_IF_ERROR(push_clock_.Check(clock, table, view()));
  const wire::Table& of = view().table(table);
  std::string fault = WhyNoGradient(gradient, of);
  const size_t shards_at_first =
      sequences_.shard_count() -
      static_cast<size_t>(view().proto().split_size());
  if (base_versions.size() < shards_at_first ||
      base_versions.size() > sequences_.shard_count()) {
    fault = absl::StrCat(base_versions.size(), " base versions, the job has ",
                         sequences_.shard_count(), " shards");
  }
  if (!fault.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("push to ", of.name(), ": ", fault));
  }
  SL_RETURN_IF_ERROR(
      CheckMomentum(options, view().optimizer(table), of.name()));
  for (const ShardRange& range : view().ShardsOf(table)) {
    // A shard that was split off since then has the version of its origin.
    ShardId versioned = range.shard;
    while (static_cast<size_t>(versioned) >= base_versions.size())
      versioned = view().OriginOf(versioned);
    CodedGradient part = PartOf(gradient, of, range.region);
    Add({.kind = PushEntry::Kind::kGradient,
         .shard = static_cast<int32_t>(range.shard),
         .clock = clock,
         .version = base_versions[static_cast<size_t>(versioned)],
         .options = options,
         .code = part.code,
         .elements = static_cast<size_t>(range.region.size()),
         .values = std::move(part.bytes),
         .slots = {},
         .then_pull = push_clock_.pull_behind()});
  }
  EndTable(table, Parts(now, effects));
  return absl::OkStatus();
}

absl::Status ClientCore::SkipTable(Clock clock, TableId table, absl::Time now,
                                   Effects* effects) {
  SL_RETURN_IF_ERROR(push_clock_.Check(clock, table, view()));
  for (const ShardRange& range : view().ShardsOf(table)) {
    AddAdvance(static_cast<int32_t>(range.shard), clock + 1,
               push_clock_.pull_behind());
  }
  EndTable(table, Parts(now, effects));
  return absl::OkStatus();
}

void ClientCore::EndTable(TableId table, const ClientParts& parts) {
  if (push_clock_.End(table)) {
    links_.EndClock(parts);
  } else {
    links_.PumpTouched(parts);
  }
}

Clock ClientCore::StartAt(const PullResult& joined, absl::Time now,
                          Effects* effects) {
  const Clock start = joined.ShardClocks().second;
  for (int32_t shard = 0; shard < view().shard_count(); ++shard) {
    ShardId joined_as{shard};  // What it was split off from since, if it was.
    while (static_cast<size_t>(joined_as) >= joined.shards.size())
      joined_as = view().OriginOf(joined_as);
    if (joined.shards[static_cast<size_t>(joined_as)].shard_clock != start)
      AddAdvance(shard, start);
  }
  push_clock_.GoTo(start);
  links_.EndClock(Parts(now, effects));
  return start;
}

void ClientCore::SkipTo(Clock clock, absl::Time now, Effects* effects) {
  SL_CHECK(clock >= push_clock_.clock() && BetweenClocks(),
           "a worker skips clocks that it has pushed");
  for (int32_t shard = 0; shard < view().shard_count(); ++shard)
    AddAdvance(shard, clock);
  push_clock_.GoTo(clock);
  links_.EndClock(Parts(now, effects));
}

void ClientCore::Install(Clock clock, std::vector<InstalledShard> shards,
                         absl::Time now, Effects* effects) {
  for (InstalledShard& installed : shards) {
    ShardValue& state = installed.state;
    const uint64_t hash = StateHash(state.version, state.values, state.slots);
    Add({.kind = PushEntry::Kind::kInstallation,
         .shard = static_cast<int32_t>(installed.shard),
         .clock = clock,
         .version = state.version,
         .values = std::move(state.values),
         .slots = std::move(state.slots),
         .hash = hash});
  }
  push_clock_.GoTo(clock);
  links_.EndClock(Parts(now, effects));
}

void ClientCore::AddAdvance(int32_t shard, Clock clock, uint64_t then_pull) {
  Add({.kind = PushEntry::Kind::kAdvance,
       .shard = shard,
       .clock = clock,
       .values = Payload(),
       .slots = {},
       .then_pull = then_pull});
}

void ClientCore::Add(PushEntry entry) {
  entry.seq = sequences_.Next(entry.shard);
  counts_.Pushed(entry.bytes());
  const TableId table = view().shard(ShardId{entry.shard}).table;
  ClientLink& link =
      links_.Touch(routes_.OwnerOf(entry.shard), options_, routes_);
  link.Add(std::move(entry), table, options_);
}

void ClientCore::OnPushReply(Owner from, const wire::PushReply& reply,
                             const ClientParts& parts) {
  FollowRefusals(reply.answer(), parts);
  ClientLink* const link = links_.Find(from);
  if (link != nullptr) link->OnPushReply(reply.request_id(), parts);
  for (const wire::PushAnswer& answer : reply.answer()) {
    const int32_t shard = answer.shard();
    if (!view().HasShard(shard)) continue;
    OnAccepted(from, shard, answer.accepted_seq(), parts);
    if (!answer.has_refusal()) continue;
    if (EndsHere(from, shard, "push to", answer.refusal(), &parts.effects))
      return;
    // What goes elsewhere by now is not tried again here.
    if (link != nullptr && routes_.OwnerOf(shard) == from)
      link->OnPushRefused(reply.request_id(), shard, parts);
  }
  if (link == nullptr) return;
  link->OnPushReplyEnd(reply.request_id(), parts);
  links_.SetWakeup(*link);
}

void ClientCore::OnAccepted(Owner from, int32_t shard, uint64_t seq,
                            const ClientParts& parts) {
  if (!sequences_.Accept(shard, seq)) return;
  const Owner owner = routes_.OwnerOf(shard);
  if (owner == from) return;
  // It has moved since, and its new owner has been or will be sent the same.
  ClientLink* const elsewhere = links_.Find(owner);
  if (elsewhere == nullptr) return;
  elsewhere->DropAccepted(parts);
  elsewhere->Pump(parts);
  links_.SetWakeup(*elsewhere);
}

// ---- Pull -----------------------------------------------------------------

uint64_t ClientCore::Pull(Clock clock, Clock own_clock, absl::Time now,
                          Effects* effects) {
  return StartPull(AskForStep(clock, own_clock), now, effects);
}

uint64_t ClientCore::PullModel(Clock clock, absl::Time now, Effects* effects) {
  return StartPull(AskForStep(clock, clock, /*exact=*/true), now, effects);
}

uint64_t ClientCore::PullState(Clock clock, absl::Time now, Effects* effects) {
  auto asked = std::make_shared<wire::Pull>();
  asked->mutable_state()->set_clock(clock);
  return StartPull(std::move(asked), now, effects);
}

uint64_t ClientCore::JoinPull(absl::Time now, Effects* effects) {
  auto asked = std::make_shared<wire::Pull>();
  asked->mutable_join();
  return StartPull(std::move(asked), now, effects);
}

uint64_t ClientCore::PullBehindPushes() {
  const uint64_t pull_id =
      pulls_.Add(routes_.shared_view(), push_clock_.clock() + 1);
  push_clock_.PullBehind(pull_id);
  return pull_id;
}

void ClientCore::ForgetPull(uint64_t pull_id, absl::Time now,
                            Effects* effects) {
  push_clock_.ForgetPull(pull_id);
  pulls_.Forget(pull_id);
  links_.ForgetPull(pull_id, Parts(now, effects));
}

uint64_t ClientCore::StartPull(std::shared_ptr<const wire::Pull> asked,
                               absl::Time now, Effects* effects) {
  const uint64_t pull_id = pulls_.Add(routes_.shared_view());
  PullUnit like;
  like.pull_id = pull_id;
  like.asked = std::move(asked);
  std::map<Owner, PullUnit> open;  // By owner: the message being filled.
  const auto close = [&](Owner owner, PullUnit& unit) {
    if (unit.shards.empty()) return;
    unit.id = numbers_.Next();
    links_.Touch(owner, options_, routes_)
        .Queue(std::exchange(unit, like.Sibling()));
  };
  for (int32_t shard = 0; shard < view().shard_count(); ++shard) {
    const Owner owner = routes_.OwnerOf(shard);
    PullUnit& unit = open.try_emplace(owner, like).first->second;
    unit.shards.push_back(shard);
    unit.bytes += AnswerBytes(view(), shard, *like.asked);
    if (unit.bytes >= links_.To(owner, options_, routes_).message_bytes() ||
        unit.shards.size() >= options_.message_entries) {
      close(owner, unit);
    }
  }
  for (auto& [owner, unit] : open) close(owner, unit);
  links_.PumpTouched(Parts(now, effects));
  return pull_id;
}

void ClientCore::OnPullReply(Owner from, const Message& message,
                             const ClientParts& parts) {
  const wire::PullReply& reply = message.header.pull_reply();
  FollowRefusals(reply.answer(), parts);
  ClientLink* const link = links_.Find(from);
  if (link == nullptr) return;
  PullUnit* unit = nullptr;  // Of the last answer; most are of the same.
  // For whom the pulls wait: for each the one that is furthest behind.
  std::map<uint64_t, const wire::PullAnswer::Parked*> parked;
  absl::Span<const Payload> frames = message.payloads;
  for (const wire::PullAnswer& answer : reply.answer()) {
    size_t frame_count = answer.has_values() ? 1 : 0;
    if (answer.has_state())
      frame_count = 1 + static_cast<size_t>(answer.state().slots());
    if (frame_count > frames.size()) break;
    const absl::Span<const Payload> tensors = frames.first(frame_count);
    frames.remove_prefix(frame_count);
    if (unit == nullptr || unit->id != answer.pull())
      unit = link->FindPull(answer.pull());
    if (unit == nullptr) continue;  // A repeated answer.
    switch (answer.what_case()) {
      case wire::PullAnswer::kValues:
      case wire::PullAnswer::kState:
        if (!TakeValues(*link, *unit, answer, tensors,
                        message.header.view_number(), parts)) {
          return;
        }
        break;
      case wire::PullAnswer::kParked: {
        const wire::PullAnswer::Parked*& at = parked[unit->id];
        if (at == nullptr || answer.parked().clock() < at->clock())
          at = &answer.parked();
        break;
      }
      case wire::PullAnswer::kRefusal:
        if (!view().HasShard(answer.shard())) break;
        if (EndsHere(from, answer.shard(), "pull of", answer.refusal(),
                     &parts.effects)) {
          return;
        }
        // What goes elsewhere by now is not asked for here again.
        if (unit->Wants(answer.shard())) link->OnPullRefused(*unit, parts);
        break;
      default:
        break;
    }
  }
  for (const auto& [id, at] : parked)
    link->OnParked(*link->FindPull(id), *at, parts);
  link->OnPullReplyEnd(parts);
  links_.SetWakeup(*link);
}

bool ClientCore::TakeValues(ClientLink& link, PullUnit& unit,
                            const wire::PullAnswer& answer,
                            absl::Span<const Payload> frames,
                            uint64_t view_number, const ClientParts& parts) {
  const int32_t shard = answer.shard();
  if (!unit.Wants(shard)) return true;
  if (view_number < view().RangeSince(ShardId{shard})) {
    // It was answered before the shard was split in two.
    link.OnPullRefused(unit, parts);
    return true;
  }
  absl::StatusOr<ShardValue> value =
      ValueOf(answer, frames, *unit.asked, routes_, link.to());
  if (!value.ok()) {
    parts.effects.failure = value.status();
    return false;
  }
  // It cannot have been parked for longer than it was under way.
  if (const int64_t parked = ValuesIn(answer).parked_micros(); parked > 0) {
    value->parked.until = parts.now;
    value->parked.from =
        std::max(unit.sent, parts.now - absl::Microseconds(parked));
  }
  // A shard answers the pull of a worker that is at own_clock when it has the
  // gradients of earlier clocks, though the replies to these may be lost.
  // Nearly always it has answered the push first.
  if (unit.asked->has_step() && !sequences_.AllAccepted(shard)) {
    OnAccepted(link.to(), shard,
               link.pushes().LastBefore(shard, unit.asked->step().own_clock()),
               parts);
  }
  link.OnValues(unit, shard, parts);
  for (const Payload& frame : frames) parts.counts.Pulled(frame.size());
  pulls_.Bring(unit.pull_id, shard, *std::move(value), &parts.effects);
  return true;
}

// ---- Both -----------------------------------------------------------------

void ClientCore::OnProbeReply(Owner from, const wire::ProbeReply& reply,
                              const ClientParts& parts) {
  FollowRefusals(reply.answer(), parts);
  std::set<int32_t> answered;
  for (const wire::ProbeAnswer& answer : reply.answer()) {
    const int32_t shard = answer.shard();
    if (!view().HasShard(shard)) continue;
    if (answer.refusal().has_fenced()) {
      parts.effects.fenced = true;
      return;
    }
    if (answer.what_case() != wire::ProbeAnswer::kAcceptedSeq) continue;
    OnAccepted(from, shard, answer.accepted_seq(), parts);
    answered.insert(shard);
  }
  ClientLink* const link = links_.Find(from);
  if (link == nullptr) return;
  link->OnProbeReply(reply.request_id(), answered, parts);
  links_.SetWakeup(*link);
}

void ClientCore::OnMessage(Owner from, const Message& message, absl::Time now,
                           Effects* effects) {
  // Of an earlier job on the same ports.
  if (options_.run != 0 && message.header.run() != 0 &&
      message.header.run() != options_.run) {
    return;
  }
  const ClientParts parts = Parts(now, effects);
  switch (message.header.body_case()) {
    case wire::Header::kPushReply:
      return OnPushReply(from, message.header.push_reply(), parts);
    case wire::Header::kPullReply:
      return OnPullReply(from, message, parts);
    case wire::Header::kProbeReply:
      return OnProbeReply(from, message.header.probe_reply(), parts);
    case wire::Header::kErrorReply:
      effects->failure = absl::InternalError(absl::StrCat(
          routes_.NameOf(from), ": ", message.header.error_reply().error()));
      return;
    default:
      return;
  }
}

void ClientCore::OnTick(absl::Time now, Effects* effects) {
  links_.OnTick(Parts(now, effects));
}

ClientCore::Sizes ClientCore::sizes() const {
  Sizes sizes{.links = links_.size(), .pulls = pulls_.size()};
  links_.ForEach([&](const ClientLink& link) {
    sizes.pull_messages += link.pulls().size();
    sizes.push_messages += link.pushes().size();
  });
  return sizes;
}

}  // namespace slackline
