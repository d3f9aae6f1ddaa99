#include "worker/client/client_core.h"

#include "absl/strings/str_cat.h"
#include "common/io/state_hash.h"
#include "common/status.h"
#include "worker/client/client_replies.h"
#include "worker/client/shard_tensors.h"

namespace slackline {

ClientCore::ClientCore(const Options& options, std::shared_ptr<const View> view)
    : options_(options),
      routes_(std::move(view)),
      sequences_(this->view().shard_count()),
      push_clock_(this->view().proto().table_size()),
      links_(options_, routes_) {}

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
  links_.ForgetServersGone();
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
  ClientLink& link = links_.Touch(routes_.OwnerOf(entry.shard));
  link.Add(std::move(entry), table);
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
  PullUnit like;
  like.pull_id = pulls_.Add(routes_.shared_view());
  like.asked = std::move(asked);
  links_.PullAll(like, Parts(now, effects));
  return like.pull_id;
}

// ---- Both -----------------------------------------------------------------

void ClientCore::OnMessage(Owner from, const Message& message, absl::Time now,
                           Effects* effects) {
  // The message is of an earlier job on the same ports.
  if (options_.run != 0 && message.header.run() != 0 &&
      message.header.run() != options_.run) {
    return;
  }
  const ClientParts parts = Parts(now, effects);
  const ClientReplies replies{.from = from,
                              .routes = routes_,
                              .sequences = sequences_,
                              .pulls = pulls_,
                              .links = links_,
                              .parts = parts};
  switch (message.header.body_case()) {
    case wire::Header::kPushReply:
      return replies.OnPushReply(message.header.push_reply());
    case wire::Header::kPullReply:
      return replies.OnPullReply(message);
    case wire::Header::kProbeReply:
      return replies.OnProbeReply(message.header.probe_reply());
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
