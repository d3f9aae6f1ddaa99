#include "server/shard/shard_core.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "common/compress/gradient_code.h"
#include "common/io/state_hash.h"
#include "common/metrics/staleness.h"
#include "common/optim/finite.h"
#include "common/status.h"
#include "common/sync/phases.h"
#include "server/shard/request_faults.h"
#include "server/shard/shard_codec.h"

namespace slackline {
namespace {

// Of an owner by a view; the next one is that of an owner by a move in it.
// Smaller terms are of copies that no owner's log has reached: what a shard was
// at first, to threads that began with views of different workers.
uint64_t TermOf(uint64_t view_number) { return view_number << 32; }

size_t PayloadBytes(const Message& message) {
  size_t bytes = 0;
  for (const Payload& payload : message.payloads) bytes += payload.size();
  return bytes;
}

PeerId PeerOf(Owner thread) {
  return {.kind = PeerId::Kind::kShardThread,
          .index = thread.server,
          .instance = static_cast<uint64_t>(thread.thread)};
}

Owner OwnerOf(const PeerId& thread) {
  return {.server = thread.index,
          .thread = static_cast<int32_t>(thread.instance)};
}

std::vector<FollowerFeeds::Known> AwaitedOf(const wire::Go& go) {
  std::vector<FollowerFeeds::Known> awaited;
  for (const wire::Go::InSync& follower : go.in_sync())
    awaited.push_back({.server = follower.server(), .since = follower.since()});
  return awaited;
}

// As the push says, or as its frame has.
size_t ElementsOf(const wire::Push& push, const Payload& frame) {
  return push.has_encoding() ? static_cast<size_t>(push.encoding().elements())
                             : frame.size() / sizeof(float);
}

bool AllFinite(const Payload& gradient) {
  return optim::AllFinite(gradient.data(), gradient.size() / sizeof(float));
}

wire::Refusal Retry() {
  wire::Refusal refusal;
  refusal.mutable_retry();
  return refusal;
}

wire::Refusal Rejected(std::string why) {
  wire::Refusal refusal;
  refusal.set_rejected(std::move(why));
  return refusal;
}

wire::Refusal Moved(std::optional<wire::Relocation> to) {
  wire::Refusal refusal;
  refusal.mutable_moved();
  if (to.has_value()) *refusal.mutable_moved()->mutable_to() = *std::move(to);
  return refusal;
}

// The participant whose own clock the record changes; nullopt: it may be
// everybody's.
std::optional<Rank> ChangedBy(const ShardRecord& record) {
  if (const auto* const join = std::get_if<JoinRecord>(&record))
    return join->who.rank;
  if (const auto* const push = std::get_if<GradientRecord>(&record))
    return push->who.rank;
  if (const auto* const advance = std::get_if<AdvanceRecord>(&record))
    return advance->who.rank;
  return std::nullopt;
}

// One more gradient of the rank among the counts, of which `*entries` has the
// places by rank. Returns that of the rank.
template <typename Count>
Count* CountOne(ShardId shard, Rank rank, Clock clock,
                absl::flat_hash_map<int32_t, int>* entries,
                google::protobuf::RepeatedPtrField<Count>* counts) {
  const auto number = static_cast<int32_t>(rank);
  const auto [entry, added] = entries->try_emplace(number, counts->size());
  Count* const count = added ? counts->Add() : counts->Mutable(entry->second);
  count->set_rank(number);
  count->set_gradients(count->gradients() + 1);
  count->set_last_clock(clock);
  count->set_last_shard(static_cast<int32_t>(shard));
  return count;
}

const char* KindOf(const wire::Header& header) {
  switch (header.body_case()) {
    case wire::Header::kPushRequest:
      return "push";
    case wire::Header::kPullRequest:
      return "pull";
    case wire::Header::kHandOver:
    case wire::Header::kHandOverReply:
      return "hand-over";
    default:
      return "message";
  }
}

// What a checkpoint has of the shard as what the shard begins with, in memory
// of its own.
absl::StatusOr<ShardSnapshot> Restored(const ShardState& stored,
                                       const ShardRange& range,
                                       const Optimizer& optimizer) {
  const auto slot_count = static_cast<size_t>(optimizer.slot_count());
  if (stored.version > kVersionMax) {
    return absl::DataLossError(absl::StrCat("the checkpoint has version ",
                                            stored.version, ", above 2^60"));
  }
  if (!stored.slots.empty() && stored.slots.size() != slot_count) {
    return absl::DataLossError(absl::StrCat(
        "the checkpoint has ", stored.slots.size(),
        " optimizer slots, and the table's optimizer has ", slot_count));
  }
  const auto own = [&](const Payload& tensor) -> absl::StatusOr<Payload> {
    if (tensor.size() != range.bytes()) {
      return absl::DataLossError(
          absl::StrCat("the checkpoint has a tensor of ", tensor.size(),
                       " bytes, and the shard has ", range.bytes()));
    }
    return Payload::Copy(tensor.data(), tensor.size());
  };
  ShardSnapshot snapshot;
  SL_ASSIGN_OR_RETURN(snapshot.values, own(stored.values));
  for (const Payload& slot : stored.slots) {
    SL_ASSIGN_OR_RETURN(Payload tensor, own(slot));
    snapshot.slots.push_back(std::move(tensor));
  }
  // A rule that corrects its young moments by the number of updates they have
  // seen counts anew with moments that begin anew.
  const bool anew = snapshot.slots.size() < slot_count;
  snapshot.version = anew ? 0 : stored.version;
  snapshot.running_rms = stored.running_rms;
  while (snapshot.slots.size() < slot_count) {
    Payload& zeros =
        snapshot.slots.emplace_back(Payload::Allocate(range.bytes()));
    std::memset(zeros.MutableData(), 0, range.bytes());
  }
  return snapshot;
}

}  // namespace

ShardCore::ShardCore(const Options& options,
                     config::LearningRateSchedule schedule)
    : options_(options),
      schedule_config_(std::move(schedule)),
      replies_(options.reply_bytes) {
  stats_.set_index(options.self.server);
}

// ---- Places -----------------------------------------------------------------

template <typename P>
auto* ShardCore::ServingOf(P* place) {
  auto* const leaving = std::get_if<Leaving>(place);
  return leaving == nullptr ? std::get_if<Serving>(place) : &leaving->serving;
}

template <typename P>
auto* ShardCore::WaitingOf(P* place) {
  auto* const leaving = std::get_if<Leaving>(place);
  if (leaving != nullptr) return &leaving->waiting;
  auto* const arriving = std::get_if<Arriving>(place);
  return arriving == nullptr ? nullptr : &arriving->waiting;
}

// The feed to the target of a move, if it is not that to a follower.
template <typename P>
auto* ShardCore::SourceOf(P* place) {
  auto* const leaving = std::get_if<Leaving>(place);
  if (leaving != nullptr && leaving->source.has_value())
    return &*leaving->source;
  auto* const gone = std::get_if<Gone>(place);
  return gone == nullptr ? nullptr : &gone->source;
}

template <typename P>
auto* ShardCore::CopyIn(P* place) {
  auto* const following = std::get_if<Following>(place);
  if (following != nullptr) return &following->copy;
  auto* const gone = std::get_if<Gone>(place);
  return gone == nullptr || !gone->copy.has_value() ? nullptr : &*gone->copy;
}

uint64_t ShardCore::MoveOf(const Place& place) {
  if (const auto* const leaving = std::get_if<Leaving>(&place))
    return leaving->move;
  if (const auto* const gone = std::get_if<Gone>(&place)) return gone->move;
  return std::get<Arriving>(place).target.feed().move();
}

ShardCore::Place* ShardCore::FindPlace(ShardId shard) {
  const auto found = places_.find(shard);
  return found == places_.end() ? nullptr : &found->second;
}

const ShardCore::Place* ShardCore::FindPlace(ShardId shard) const {
  const auto found = places_.find(shard);
  return found == places_.end() ? nullptr : &found->second;
}

const ShardMachine* ShardCore::MachineOf(ShardId shard) const {
  const Serving* const serving = ServingOf(FindPlace(shard));
  return serving == nullptr ? nullptr : &serving->machine;
}

const StalenessGate* ShardCore::GateOf(ShardId shard) const {
  const Serving* const serving = ServingOf(FindPlace(shard));
  return serving == nullptr ? nullptr : &serving->gate;
}

const ShardCut* ShardCore::CutOf(ShardId shard) const {
  const Serving* const serving = ServingOf(FindPlace(shard));
  return serving == nullptr || !serving->cut.has_value() ? nullptr
                                                         : &*serving->cut;
}

const LogFeed* ShardCore::FeedOf(const Leaving& leaving) {
  return leaving.source.has_value()
             ? &*leaving.source
             : leaving.serving.followers.FeedTo(leaving.target);
}

bool ShardCore::Follows(ShardId shard) const {
  return CopyIn(FindPlace(shard)) != nullptr;
}

const ShardMachine* ShardCore::CopyOf(ShardId shard) const {
  const LogCopy* const copy = CopyIn(FindPlace(shard));
  return copy == nullptr ? nullptr : copy->machine();
}

size_t ShardCore::copies_count() const {
  return static_cast<size_t>(std::count_if(
      places_.begin(), places_.end(),
      [](const auto& entry) { return CopyIn(&entry.second) != nullptr; }));
}

const GivenDelays* ShardCore::DelaysOf(ShardId shard) const {
  const Serving* const serving = ServingOf(FindPlace(shard));
  return serving == nullptr ? nullptr : &serving->delays;
}

ShardOutcome ShardCore::Commit(Place& place, const ShardRecord& record,
                               const std::optional<ShardTraceRecord>& cause,
                               Effects* effects) {
  Serving& serving = *ServingOf(&place);
  ShardMachine& machine = serving.machine;
  // Holding the old values makes an update write elsewhere.
  const bool compare = serving.stale.rule().NeedsUpdates();
  const Payload before = compare ? machine.shard().values() : Payload();
  if (serving.cut.has_value()) {
    if (const absl::Status cut = serving.cut->OnRecord(record, machine);
        !cut.ok()) {
      FailCut(machine.shard().range().shard, cut, effects);
    }
  }
  absl::StatusOr<ShardOutcome> applied = machine.Apply(
      record, {.memory = *options_.memory, .sums = !serving.followers.empty()});
  SL_CHECK(applied.ok(), applied.status().ToString());
  if (!applied->updates.empty() ||
      !std::holds_alternative<GradientRecord>(record))
    serving.rounded.reset();
  if (serving.cut.has_value()) LookAtCut(serving, effects);
  const ShardRange& range = machine.shard().range();
  if (Leaving* const leaving = std::get_if<Leaving>(&place);
      leaving != nullptr && leaving->source.has_value()) {
    leaving->source->OnRecord(record, machine.position());
    Pump(*leaving->source, effects);
  }
  if (!serving.followers.empty()) {
    serving.followers.OnRecord(record, *applied, machine, now_);
    to_pump_.insert(range.shard);
  }
  const auto trace = [&](ShardTraceRecord event) {
    event.shard = range.shard;
    event.min_clock = machine.participants().MinClock();
    event.index = machine.position().index;
    effects->trace.push_back(std::move(event));
  };
  if (cause.has_value() && options_.trace) trace(*cause);
  for (const ShardOutcome::Update& update : applied->updates) {
    if (compare) serving.stale.OnUpdate(before, machine.shard().values());
    stats_.set_updates(stats_.updates() + 1);
    stats_.set_applied(stats_.applied() + update.ranks.size());
    effects->work.push_back(
        {.shard = range.shard,
         .bytes_applied = update.ranks.size() * range.bytes()});
    if (!options_.trace) continue;
    trace({.kind = ShardTraceRecord::Kind::kUpdated,
           .rank = Rank{-1},
           .clock = update.clock,
           .version = update.version,
           .ranks = {update.ranks.begin(), update.ranks.end()},
           .workers = update.workers});
  }
  stats_.set_dropped(stats_.dropped() +
                     static_cast<uint64_t>(applied->replaced));
  ReleaseParked(serving, ChangedBy(record), effects);
  return *std::move(applied);
}

// ---- Views ----------------------------------------------------------------

void ShardCore::OnView(std::shared_ptr<const View> view, Effects* effects) {
  if (view_ != nullptr && view->number() <= view_->number()) return;
  if (view_ != nullptr) Flush(effects);  // A client looks at an answer's view.
  const std::shared_ptr<const View> before = std::move(view_);
  view_ = std::move(view);
  const wire::View& proto = view_->proto();
  if (proto.cut().number() > cut_seen_ || proto.state() != wire::RUNNING)
    DropCut();
  if (proto.state() != wire::RUNNING) return;
  if (rules_.empty()) MakeRules();
  EndLinks();
  Requests waiting = EndMoves(effects);
  if (!created_) {
    CreateShards(effects);
  } else {
    FollowOwners(*before, effects);
    SplitShards(*before, effects);
    FollowFollowers(*before);
    RemoveGone(*before, effects);
  }
  if (!effects->failure.ok()) return;
  BeginMoves(effects);
  // Those whose followers a go has waited for may follow no more.
  const std::set<ShardId> moving = moving_;
  for (const ShardId shard : moving)
    GoIfCaughtUp(shard, places_.at(shard), effects);
  BeginCut(effects);  // Before anybody who knows of it.
  HandleWaiting(std::move(waiting), effects);
  HandleWaiting(std::exchange(early_, {}), effects);
}

void ShardCore::MakeRules() {
  const wire::View& proto = view_->proto();
  const absl::StatusOr<LearningRateSchedule> schedule =
      LearningRateSchedule::Create(
          schedule_config_, {.steps_total = proto.steps_total(),
                             .steps_per_epoch = proto.steps_per_epoch()});
  // The config was validated and the coordinator checked the steps.
  SL_CHECK(schedule.ok(), schedule.status().ToString());
  for (int table = 0; table < proto.table_size(); ++table) {
    rules_.push_back(std::make_shared<const UpdateRule>(UpdateRule{
        .optimizer = view_->optimizer(TableId{table}), .schedule = *schedule}));
  }
}

StalePushes ShardCore::NewStalePushes(ShardId shard) const {
  const TableId table = view_->shard(shard).table;
  return StalePushes(options_.stale.For(view_->table(table).name()),
                     view_->optimizer(table).maximize());
}

void ShardCore::CreateShards(Effects* effects) {
  created_ = true;
  std::shared_ptr<const DelayPlan> plan;
  if (const wire::Phase* const given = GivenDelaysPhase(view_->proto())) {
    SL_CHECK(options_.delays != nullptr, "the delays of the job are not here");
    absl::StatusOr<std::shared_ptr<const DelayPlan>> made =
        options_.delays->PlanFor(static_cast<int>(view_->workers().size()),
                                 given->from(), view_->proto().steps_total(),
                                 options_.seed);
    // The coordinator has looked at the same ones.
    SL_CHECK(made.ok(), made.status().ToString());
    plan = *std::move(made);
  }
  for (int i = 0; i < view_->shard_count(); ++i) {
    const ShardId id{i};
    const bool owned = view_->OwnerOf(id) == options_.self;
    // Who follows a shard from the start has it as its owner has it.
    const wire::Follower* const listed = owned ? nullptr : ListedHere(id);
    if (!owned && (listed == nullptr || !listed->in_sync())) continue;
    absl::StatusOr<ShardMachine> machine = NewMachine(view_->shard(id));
    if (!machine.ok()) {
      effects->failure = Annotate(
          machine.status(),
          absl::StrCat("cannot begin with shard ", view_->ShardName(id)));
      return;
    }
    if (listed != nullptr) {
      wire::Feed feed;
      feed.set_follower(listed->since());
      places_.emplace(
          id, Following{.copy = LogCopy(PeerOf(view_->OwnerOf(id)), feed,
                                        TableEnd(view_->shard(id)),
                                        *std::move(machine))});
      continue;
    }
    Serving serving =
        BeginToServe(*std::move(machine), TermOf(view_->number()), {});
    if (plan != nullptr) serving.delays = GivenDelays(plan, id);
    if (!serving.followers.empty()) to_pump_.insert(id);
    places_.emplace(id, std::move(serving));
  }
}

ShardCore::Serving ShardCore::BeginToServe(
    ShardMachine machine, uint64_t term,
    std::vector<FollowerFeeds::Known> awaited) const {
  const ShardId shard = machine.shard().range().shard;
  const LogPosition begins_at = machine.position();
  machine.BeginTerm(term);
  Serving serving{.machine = std::move(machine),
                  .gate = {},
                  .stale = NewStalePushes(shard),
                  .dssp = {},
                  .followers = FollowerFeeds(options_.feed, shard, begins_at,
                                             term, std::move(awaited))};
  serving.followers.Follow(view_->FollowersOf(shard), options_.self,
                           /*keep=*/0, serving.machine, now_);
  return serving;
}

// ---- Followers
// ----------------------------------------------------------------

const wire::Follower* ShardCore::ListedHere(ShardId shard) const {
  for (const wire::Follower& follower : view_->FollowersOf(shard)) {
    if (Owner{follower.server(), follower.thread()} == options_.self)
      return &follower;
  }
  return nullptr;
}

void ShardCore::FollowOwners(const View& before, Effects* effects) {
  std::vector<int32_t> changed = view_->OwnersThatDiffer(before);
  for (const int32_t id : changed) CutCopy(ShardId{id});
  // Of shards that were cut off since, all are new to us.
  for (int32_t id = before.shard_count(); id < view_->shard_count(); ++id)
    changed.push_back(id);
  for (const int32_t id : changed) {
    const ShardId shard{id};
    Place* const place = FindPlace(shard);
    if (place == nullptr) continue;
    if (view_->OwnerOf(shard) == options_.self) {
      if (CopyIn(place) != nullptr) TakeOver(shard, effects);
    } else if (ServingOf(place) != nullptr) {
      Depose(shard, effects);
    }
  }
}

void ShardCore::CutCopy(ShardId shard) {
  const LogCopy* const copy = CopyIn(FindPlace(shard));
  if (copy == nullptr || copy->machine() == nullptr) return;
  std::map<ShardId, ShardMachine> parts;
  parts.emplace(shard, *copy->machine());
  const int32_t first = view_->shard_count() - view_->proto().split_size();
  for (int i = 0; i < view_->proto().split_size(); ++i) {
    const wire::Split& split = view_->proto().split(i);
    const auto whole = parts.find(ShardId{split.shard()});
    if (whole == parts.end() ||
        split.at() >= whole->second.shard().range().end) {
      continue;
    }
    const ShardId part{first + i};
    absl::StatusOr<ShardOutcome> cut =
        whole->second.Apply(SplitRecord{.at = split.at(), .part = part});
    SL_CHECK(cut.ok(), cut.status().ToString());
    parts.emplace(part, *std::move(cut->part));
  }
  parts.erase(shard);
  for (auto& [part, machine] : parts) {
    const wire::Follower* const listed = ListedHere(part);
    if (listed == nullptr && view_->OwnerOf(part) != options_.self) continue;
    if (FindPlace(part) != nullptr) {
      // Its own feed may have begun, and have brought nothing whole yet.
      const LogCopy* const begun = CopyIn(FindPlace(part));
      if (begun == nullptr || begun->machine() != nullptr) continue;
      places_.erase(part);
    }
    wire::Feed feed;
    if (listed != nullptr) feed.set_follower(listed->since());
    places_.emplace(
        part, Following{.copy = LogCopy(PeerOf(view_->OwnerOf(part)), feed,
                                        TableEnd(view_->shard(part)),
                                        std::move(machine))});
  }
}

void ShardCore::TakeOver(ShardId shard, Effects* effects) {
  Place& place = *FindPlace(shard);
  LogCopy& copy = *CopyIn(&place);
  if (copy.machine() == nullptr) {
    effects->failure = absl::DataLossError(
        absl::StrCat("cannot take over shard ", view_->ShardName(shard),
                     ": the copy of it is not whole"));
    return;
  }
  const Serving& serving = place.emplace<Serving>(
      BeginToServe(ShardMachine(copy.Take()), TermOf(view_->number()), {}));
  // The owner before is counted without them.
  stats_.set_pushes(stats_.pushes() + serving.machine.held().size());
  to_pump_.insert(shard);
  // Also those that its owner has not come to.
  const int32_t first = view_->shard_count() - view_->proto().split_size();
  std::set<ShardId> parts = {shard};
  for (int i = 0; i < view_->proto().split_size(); ++i) {
    if (parts.count(ShardId{view_->proto().split(i).shard()}) == 0) continue;
    SplitShard(i, effects);
    if (Owns(ShardId{first + i})) parts.insert(ShardId{first + i});
  }
  for (const ShardId part : parts) RemoveStrangers(*FindPlace(part), effects);
}

void ShardCore::Depose(ShardId shard, Effects* effects) {
  Place& place = *FindPlace(shard);
  Serving& serving = *ServingOf(&place);
  if (serving.cut.has_value()) {
    FailCut(shard, absl::FailedPreconditionError("it has another owner"),
            effects);
  }
  StalenessGate gate = std::move(serving.gate);
  Requests waiting;
  if (Waiting* const of_shard = WaitingOf(&place))
    waiting = std::move(of_shard->requests);
  held_.DropAbout(shard);
  moving_.erase(shard);
  to_pump_.erase(shard);
  unconfirmed_.erase(shard);
  places_.erase(shard);
  TurnParkedAway(shard, gate);
  HandleWaiting(std::move(waiting), effects);
}

void ShardCore::FollowFollowers(const View& before) {
  for (const int32_t id : view_->FollowersThatDiffer(before)) {
    const ShardId shard{id};
    Place* const place = FindPlace(shard);
    if (Serving* const serving = ServingOf(place)) {
      // Who was the owner before us is a follower in no view yet.
      const wire::Move* const move = view_->FindMove(shard);
      serving->followers.Follow(view_->FollowersOf(shard), options_.self,
                                move == nullptr ? 0 : move->id(),
                                serving->machine, now_);
      to_pump_.insert(shard);
      confirmed_ = true;  // Who was awaited may be gone.
      continue;
    }
    const Following* const following = std::get_if<Following>(place);
    if (following == nullptr) continue;
    const wire::Follower* const listed = ListedHere(shard);
    if (listed == nullptr ||
        listed->since() != following->copy.feed().follower()) {
      CutCopy(shard);  // Of its parts some may be followed further.
      places_.erase(shard);
    }
  }
}

void ShardCore::PumpFollowersOf(ShardId shard, Effects* effects) {
  Serving* const serving = ServingOf(FindPlace(shard));
  if (serving == nullptr) return;
  bytes_resent_to_followers_ += serving->followers.Pump(
      now_, [&](Owner target) -> FeedLink& { return LinkTo(target); },
      [&](Owner target, Message message) {
        bytes_to_followers_ += PayloadBytes(message);
        SendFeed(target, std::move(message), effects);
      });
  if (serving->followers.AllConfirmed()) {
    unconfirmed_.erase(shard);
  } else {
    unconfirmed_.insert(shard);
    feeds_due_ = std::min(feeds_due_, serving->followers.NextWakeup());
  }
}

void ShardCore::PumpFeeds(Effects* effects) {
  for (auto& [target, to] : links_) {
    for (const ShardId shard : to.link.TakeWaiting()) {
      LogFeed* const source = SourceOf(FindPlace(shard));
      if (source != nullptr) Pump(*source, effects);
      PumpFollowersOf(shard, effects);
    }
  }
  for (const ShardId shard : std::exchange(to_pump_, {}))
    PumpFollowersOf(shard, effects);
}

void ShardCore::SendToWorker(Outgoing out, Effects* effects) {
  Sign(&out.message.header);
  std::vector<HeldAnswers::Need> needs = NeedsOf(out.message.header);
  if (needs.empty() && !held_.Holds(out.to)) {
    effects->sends.push_back(std::move(out));
  } else {
    held_.Add(std::move(out), std::move(needs));
  }
}

std::vector<HeldAnswers::Need> ShardCore::NeedsOf(
    const wire::Header& header) const {
  std::vector<HeldAnswers::Need> needs;
  // Whatever is followed is confirmed, or nothing is.
  if (to_pump_.empty() && unconfirmed_.empty()) return needs;
  const auto about = [&](int32_t shard) {
    const Serving* const serving = ServingOf(FindPlace(ShardId{shard}));
    if (serving == nullptr || FollowersHaveAll(*serving)) return;
    needs.push_back(
        {.shard = ShardId{shard}, .index = serving->machine.position().index});
  };
  for (const wire::PushAnswer& answer : header.push_reply().answer())
    about(answer.shard());
  for (const wire::ProbeAnswer& answer : header.probe_reply().answer())
    about(answer.shard());
  for (const wire::PullAnswer& answer : header.pull_reply().answer()) {
    if (answer.has_values() || answer.has_state()) about(answer.shard());
  }
  return needs;
}

absl::StatusOr<ShardMachine> ShardCore::NewMachine(
    const ShardRange& range) const {
  const wire::Table& table = view_->table(range.table);
  const Optimizer& optimizer = view_->optimizer(range.table);
  ShardSnapshot snapshot;
  if (options_.stored != nullptr) {
    SL_ASSIGN_OR_RETURN(
        const ShardState stored,
        options_.stored->Read(table.name(), range.begin, range.end));
    SL_ASSIGN_OR_RETURN(snapshot, Restored(stored, range, optimizer));
  } else if (table.initializer().kind() == wire::Initializer::OF_CHECKPOINT) {
    return absl::FailedPreconditionError(
        "the job goes on from a checkpoint, and this server was started "
        "without one: start every server with the same --resume");
  } else {
    const Shard initial(table, range, options_.seed, optimizer);
    snapshot.values = initial.values();
    snapshot.slots = initial.slots();
  }
  for (const wire::WorkerMember& worker : view_->workers()) {
    if (!worker.founder()) continue;
    snapshot.participants.push_back({.rank = Rank{worker.rank()},
                                     .incarnation = worker.incarnation(),
                                     .joined_at = worker.begins_at(),
                                     .clock = worker.begins_at()});
  }
  // Founders only leave, and shards are only cut, so where as many are left and
  // as many cuts made, a shard begins as the same.
  snapshot.position.term =
      snapshot.participants.size() +
      (static_cast<uint64_t>(view_->proto().split_size()) << 16);
  snapshot.min_clock = view_->proto().begins_at();
  if (!snapshot.participants.empty()) {
    snapshot.min_clock =
        std::ranges::min(snapshot.participants, {}, &Participant::clock).clock;
  }
  snapshot.complete_clock = snapshot.min_clock;
  return ShardMachine(RuleFor(range), range, std::move(snapshot));
}

void ShardCore::SplitShards(const View& before, Effects* effects) {
  for (int i = before.proto().split_size(); i < view_->proto().split_size();
       ++i) {
    SplitShard(i, effects);
  }
}

void ShardCore::SplitShard(int number, Effects* effects) {
  const wire::Split& split = view_->proto().split(number);
  const ShardId kept{split.shard()};
  const auto found = places_.find(kept);
  // Whoever follows it is told by its log.
  if (found == places_.end() || CopyIn(&found->second) != nullptr) return;
  // Done before, here or by an owner before: it may be moving since then.
  const Serving* const owned = ServingOf(&found->second);
  if (owned != nullptr && split.at() >= owned->machine.shard().range().end)
    return;
  Serving* const serving = std::get_if<Serving>(&found->second);
  if (serving == nullptr) {
    // Lost to a server that died, which the coordinator has yet to hear. Then
    // the job ends.
    const Gone* const gone = std::get_if<Gone>(&found->second);
    SL_CHECK(gone != nullptr && gone->lost, "a shard on its way is split");
    return;
  }
  // A gradient that is held becomes one of each part.
  stats_.set_pushes(stats_.pushes() + serving->machine.held().size());
  // Who asked for the whole has to ask for the parts.
  TurnParkedAway(kept, serving->gate);
  // Later splits of the same view may cut either part again.
  const ShardId part{view_->shard_count() - view_->proto().split_size() +
                     number};
  ShardOutcome outcome =
      Commit(found->second, SplitRecord{.at = split.at(), .part = part},
             std::nullopt, effects);
  serving->stale.Forget();
  if (view_->OwnerOf(part) != options_.self || FindPlace(part) != nullptr)
    return;
  // The followers' copies of it are made by the same record.
  const uint64_t term = serving->machine.position().term;
  places_.emplace(part, BeginToServe(*std::move(outcome.part), term,
                                     serving->followers.Awaited()));
  to_pump_.insert(part);
}

void ShardCore::RemoveGone(const View& before, Effects* effects) {
  if (view_->WorkersSince() <= before.number()) return;
  std::vector<WorkerLife> gone;
  for (const wire::WorkerMember& worker : before.workers()) {
    const WorkerLife who{Rank{worker.rank()}, worker.incarnation()};
    if (view_->FindWorker(who.rank, who.incarnation) == nullptr)
      gone.push_back(who);
  }
  if (gone.empty()) return;
  // In the order of their ids, for those who get answers.
  std::vector<std::pair<ShardId, Place*>> served;
  for (auto& [shard, place] : places_) {
    if (ServingOf(&place) != nullptr) served.emplace_back(shard, &place);
  }
  std::sort(served.begin(), served.end());
  for (const auto& [shard, place] : served) {
    const Participants& participants = ServingOf(place)->machine.participants();
    LeaveRecord leave;
    for (const WorkerLife& who : gone) {
      if (participants.Find(who.rank, who.incarnation) != nullptr)
        leave.incarnations.push_back(who.incarnation);
    }
    Remove(std::move(leave), *place, effects);
  }
}

void ShardCore::RemoveStrangers(Place& place, Effects* effects) {
  LeaveRecord leave;
  for (const Participant& participant :
       ServingOf(&place)->machine.participants()) {
    if (view_->FindWorker(participant.rank, participant.incarnation) == nullptr)
      leave.incarnations.push_back(participant.incarnation);
  }
  Remove(std::move(leave), place, effects);
}

void ShardCore::Remove(LeaveRecord leave, Place& place, Effects* effects) {
  if (leave.incarnations.empty()) return;
  Commit(place, std::move(leave), std::nullopt, effects);
  Serving& serving = *ServingOf(&place);
  serving.gate.ForgetStrangers(serving.machine.participants());
}

ShardCore::Requests ShardCore::EndMoves(Effects* effects) {
  Requests waiting;
  for (auto at = moving_.begin(); at != moving_.end();) {
    const ShardId shard = *at;
    Place& place = places_.at(shard);
    const wire::Move* const listed = view_->FindMove(shard);
    bool stays = listed != nullptr && listed->id() == MoveOf(place);
    // Given up, and we were to keep it. It may also be done, and the shard have
    // moved on since, in views that we have not seen.
    Gone* const gone = std::get_if<Gone>(&place);
    if (gone != nullptr && !stays && view_->OwnerOf(shard) == options_.self) {
      if (gone->copy.has_value()) {
        at = moving_.erase(at);
        TakeOver(shard, effects);
        continue;
      }
      stays = gone->lost = effects->report = true;
    }
    if (stays) {
      ++at;
      continue;
    }
    if (Waiting* const of_shard = WaitingOf(&place)) {
      std::move(of_shard->requests.begin(), of_shard->requests.end(),
                std::back_inserter(waiting));
    }
    if (Leaving* const leaving = std::get_if<Leaving>(&place)) {
      Serving serving = std::move(leaving->serving);
      place.emplace<Serving>(std::move(serving));
    } else if (gone != nullptr && gone->copy.has_value() &&
               ListedHere(shard) != nullptr &&
               ListedHere(shard)->since() == gone->move) {
      LogCopy copy = *std::move(gone->copy);
      place.emplace<Following>(Following{.copy = std::move(copy)});
    } else {
      places_.erase(shard);
    }
    at = moving_.erase(at);
  }
  return waiting;
}

void ShardCore::BeginMoves(Effects* effects) {
  for (const wire::Move& move : view_->proto().move()) {
    const ShardId shard{move.shard()};
    const Owner target{move.server(), move.thread()};
    Place* const place = FindPlace(shard);
    Serving* const here = std::get_if<Serving>(place);
    if (here == nullptr || target == options_.self) continue;
    std::optional<LogFeed> source;
    if (here->followers.FeedTo(target) == nullptr) {
      wire::Feed feed;
      feed.set_move(move.id());
      feed.set_term(here->machine.position().term);
      source.emplace(options_.feed, target, feed, here->machine, now_);
    } else {
      here->followers.BeginMove(target, now_);
    }
    Serving serving = std::move(*here);
    Leaving& leaving =
        place->emplace<Leaving>(Leaving{.serving = std::move(serving),
                                        .move = move.id(),
                                        .target = target,
                                        .source = std::move(source),
                                        .waiting = {}});
    moving_.insert(shard);
    if (leaving.source.has_value()) Pump(*leaving.source, effects);
    GoIfCaughtUp(shard, *place, effects);
  }
}

// ---- Cuts -----------------------------------------------------------------

void ShardCore::BeginCut(Effects* effects) {
  const wire::Cut& cut = view_->proto().cut();
  if (cut.number() <= cut_seen_) return;
  cut_seen_ = cut.number();
  if (cut.by_worker()) return;
  PendingCut& pending = cut_.emplace(PendingCut());
  pending.state.number = cut.number();
  pending.state.run = view_->proto().run();
  const auto limits = std::make_shared<const CutLimits>(cut);
  // In the order of their ids, for which one is told to have no state.
  std::vector<std::pair<ShardId, Serving*>> served;
  for (auto& [shard, place] : places_) {
    Serving* const serving = ServingOf(&place);
    if (serving == nullptr) continue;
    serving->cut.emplace(limits);
    served.emplace_back(shard, serving);
  }
  std::sort(served.begin(), served.end());
  pending.missing = served.size();
  for (const auto& [shard, serving] : served) {
    if (!serving->delays.given()) continue;
    return FailCut(shard,
                   absl::FailedPreconditionError("it follows given delays"),
                   effects);
  }
  // Some may be there already.
  for (const auto& [shard, serving] : served) LookAtCut(*serving, effects);
  EndCutIfComplete(effects);
}

void ShardCore::LookAtCut(Serving& serving, Effects* effects) {
  const ShardMachine* const machine = serving.cut->Complete(serving.machine);
  if (machine == nullptr) return;
  const Shard& shard = machine->shard();
  const ShardRange& range = shard.range();
  cut_->state.shards.push_back({.table = view_->table(range.table).name(),
                                .begin = range.begin,
                                .end = range.end,
                                .version = shard.version(),
                                .values = shard.values(),
                                .slots = shard.slots(),
                                .running_rms = machine->running_rms()});
  serving.cut.reset();
  --cut_->missing;
  EndCutIfComplete(effects);
}

void ShardCore::EndCutIfComplete(Effects* effects) {
  if (!cut_.has_value() || cut_->missing > 0) return;
  std::vector<ShardState>& shards = cut_->state.shards;
  std::sort(shards.begin(), shards.end(),
            [](const ShardState& a, const ShardState& b) {
              return std::tie(a.table, a.begin) < std::tie(b.table, b.begin);
            });
  effects->cut = std::move(cut_->state);
  cut_.reset();
}

void ShardCore::DropCut() {
  if (!cut_.has_value()) return;
  cut_.reset();
  for (auto& [shard, place] : places_) {
    if (Serving* const serving = ServingOf(&place)) serving->cut.reset();
  }
}

void ShardCore::FailCut(ShardId shard, const absl::Status& why,
                        Effects* effects) {
  CutState state{
      .number = cut_->state.number,
      .run = cut_->state.run,
      .error = absl::StrCat("shard ", view_->ShardName(shard),
                            " has no state at the cut: ", why.message())};
  DropCut();
  effects->cut = std::move(state);
}

// ---- Moves ----------------------------------------------------------------

void ShardCore::OnTick(absl::Time now, Effects* effects) {
  now_ = now;
  for (const ShardId shard : moving_) {
    LogFeed* const source = SourceOf(&places_.at(shard));
    if (source != nullptr && source->NextWakeup() <= now)
      Pump(*source, effects);
  }
  ProbeLinks(effects);
  if (now < feeds_due_) return;
  // It is never too late: what was confirmed since then is looked at for
  // nothing.
  feeds_due_ = absl::InfiniteFuture();
  for (const ShardId shard : unconfirmed_) {
    const absl::Time wakeup =
        ServingOf(FindPlace(shard))->followers.NextWakeup();
    if (wakeup <= now) {
      to_pump_.insert(shard);
    } else {
      feeds_due_ = std::min(feeds_due_, wakeup);
    }
  }
  PumpFeeds(effects);
}

absl::Time ShardCore::NextWakeup() const {
  absl::Time next = feeds_due_;
  for (const ShardId shard : moving_) {
    const LogFeed* const source = SourceOf(&places_.at(shard));
    if (source != nullptr) next = std::min(next, source->NextWakeup());
  }
  for (const auto& [target, to] : links_)
    next = std::min(next, to.link.NextWakeup());
  return next;
}

FeedLink& ShardCore::LinkTo(Owner target) {
  const auto known = links_.find(target);
  if (known != links_.end()) return known->second.link;
  const wire::ServerMember* const server = view_->FindServer(target.server);
  return links_
      .emplace(
          target,
          LinkToThread{.server = server == nullptr ? 0 : server->incarnation(),
                       .link = FeedLink(options_.feed.link)})
      .first->second.link;
}

const FeedLink* ShardCore::LinkOf(Owner target) const {
  const auto known = links_.find(target);
  return known == links_.end() ? nullptr : &known->second.link;
}

void ShardCore::EndLinks() {
  std::erase_if(links_, [&](const auto& entry) {
    const wire::ServerMember* const server =
        view_->FindServer(entry.first.server);
    return server == nullptr || server->incarnation() != entry.second.server;
  });
}

void ShardCore::ProbeLinks(Effects* effects) {
  for (auto& [target, to] : links_) {
    if (const std::optional<FeedLink::Feed> feed = to.link.OnTick(now_))
      SendFeed(target, to.link.Probe(*feed, now_), effects);
  }
}

void ShardCore::SendFeed(Owner target, Message message,
                         Effects* effects) const {
  Sign(&message.header);
  effects->sends.push_back(
      {.to = PeerOf(target), .message = std::move(message)});
}

void ShardCore::Pump(LogFeed& source, Effects* effects) {
  std::vector<Message> messages;
  source.Pump(LinkTo(source.target()), now_, &messages);
  for (Message& message : messages)
    SendFeed(source.target(), std::move(message), effects);
}

bool ShardCore::MustWait(const Leaving& leaving) const {
  const FollowerFeeds& followers = leaving.serving.followers;
  return leaving.source.has_value() ? leaving.source->MustWait(now_) ||
                                          (leaving.source->CaughtUp() &&
                                           !FollowersHaveAll(leaving.serving))
                                    : !followers.CaughtUp(leaving.target) ||
                                          !FollowersHaveAll(leaving.serving);
}

void ShardCore::OnHandOverReply(const PeerId& from, const Message& message,
                                Effects* effects) {
  const wire::HandOverReply& reply = message.header.hand_over_reply();
  const auto to = links_.find(OwnerOf(from));
  if (to == links_.end()) return;  // Of a life before.
  const std::vector<FeedLink::Feed> passed_over =
      to->second.link.OnReply(reply, now_);
  for (const FeedLink::Feed& feed : passed_over) {
    const ShardId shard{feed.shard};
    const LogFeed* const log = FeedTo(shard, to->first);
    if (log != nullptr && log->IsInDoubt(feed.feed, reply.number()))
      SendFeed(to->first, to->second.link.Probe(feed, now_), effects);
  }
  const ShardId shard{reply.shard()};
  Place* const place = FindPlace(shard);
  LogFeed* const source = SourceOf(place);
  if (source != nullptr && source->target() == OwnerOf(from)) {
    const Leaving* const leaving = std::get_if<Leaving>(place);
    const bool known = source->owned_by_target();
    source->OnReply(
        reply, leaving == nullptr ? nullptr : &leaving->serving.machine, now_);
    if (source->owned_by_target() && !known) effects->report = true;
    Pump(*source, effects);
  }
  if (Serving* const serving = ServingOf(place)) {
    if (serving->followers.FeedTo(OwnerOf(from)) != nullptr) {
      effects->report |= serving->followers.OnReply(OwnerOf(from), reply,
                                                    serving->machine, now_);
      to_pump_.insert(shard);
      confirmed_ = true;
    }
    GoIfCaughtUp(shard, *place, effects);
  }
}

const LogFeed* ShardCore::FeedTo(ShardId shard, Owner target) const {
  const Place* const place = FindPlace(shard);
  const LogFeed* const source = SourceOf(place);
  if (source != nullptr && source->target() == target) return source;
  const Serving* const serving = ServingOf(place);
  return serving == nullptr ? nullptr : serving->followers.FeedTo(target);
}

void ShardCore::GoIfCaughtUp(ShardId shard, Place& place, Effects* effects) {
  Leaving* const leaving = std::get_if<Leaving>(&place);
  if (leaving == nullptr || !FollowersHaveAll(leaving->serving)) return;
  FollowerFeeds& followers = leaving->serving.followers;
  const bool swap = !leaving->source.has_value();
  if (swap && followers.FeedTo(leaving->target) == nullptr) return;
  if (swap ? !followers.CaughtUp(leaving->target)
           : !leaving->source->CaughtUp()) {
    return;
  }
  // What we have told anybody they have, and nobody is told more.
  confirmed_ = true;
  Flush(effects);
  StalenessGate gate = std::move(leaving->serving.gate);
  Requests waiting = std::move(leaving->waiting.requests);
  const wire::Go go = followers.GoTo(leaving->target, leaving->move);
  LogFeed source =
      swap ? followers.Take(leaving->target) : *std::move(leaving->source);
  source.Go(go, now_);
  if (leaving->serving.cut.has_value()) {
    FailCut(shard,
            absl::FailedPreconditionError("it has moved to another thread"),
            effects);
  }
  std::optional<LogCopy> copy;
  if (swap) {
    wire::Feed feed;
    feed.set_follower(leaving->move);
    copy.emplace(PeerOf(leaving->target), feed, TableEnd(view_->shard(shard)),
                 std::move(leaving->serving.machine));
  }
  const uint64_t move = leaving->move;
  Gone& gone = place.emplace<Gone>(
      Gone{.source = std::move(source), .move = move, .copy = std::move(copy)});
  to_pump_.erase(shard);
  unconfirmed_.erase(shard);
  Pump(gone.source, effects);
  TurnParkedAway(shard, gate);
  HandleWaiting(std::move(waiting), effects);
}

void ShardCore::OnHandOver(const PeerId& from, const Message& message,
                           Effects* effects) {
  const wire::HandOver& hand_over = message.header.hand_over();
  if (view_ == nullptr || view_->proto().state() != wire::RUNNING)
    return Decline(from, message, effects);
  if (message.header.view_number() > view_->number()) {
    // The source has the order, and ours is on its way.
    size_t bytes = PayloadBytes(message);
    for (const Outgoing& early : early_) bytes += PayloadBytes(early.message);
    if (early_.size() >= options_.early_max || bytes > options_.early_bytes_max)
      return Decline(from, message, effects);
    early_.push_back({.to = from, .message = message});
    return;
  }
  if (!view_->HasShard(hand_over.shard()))
    return Decline(from, message, effects);
  if (hand_over.feed().has_move()) {
    OnMove(from, message, effects);
  } else {
    OnFeed(from, message, effects);
  }
}

void ShardCore::Confirm(const PeerId& to, const wire::HandOver& hand_over,
                        const LogCopy* copy, bool owned, Effects* effects) {
  Outgoing out{.to = to, .message = {}};
  Sign(&out.message.header);
  wire::HandOverReply& reply = *out.message.header.mutable_hand_over_reply();
  reply.set_shard(hand_over.shard());
  *reply.mutable_feed() = hand_over.feed();
  reply.set_number(hand_over.number());
  reply.set_owned(owned);
  if (copy != nullptr) {
    reply.set_have(copy->have());
    reply.set_lacks(copy->lacks());
  }
  effects->sends.push_back(std::move(out));
}

void ShardCore::Decline(const PeerId& to, const Message& message,
                        Effects* effects) const {
  const wire::HandOver& hand_over = message.header.hand_over();
  Outgoing out{.to = to, .message = {}};
  out.message.header.set_run(message.header.run());  // If we know of none.
  Sign(&out.message.header);
  wire::HandOverReply& reply = *out.message.header.mutable_hand_over_reply();
  reply.set_shard(hand_over.shard());
  *reply.mutable_feed() = hand_over.feed();
  reply.set_number(hand_over.number());
  reply.set_declined(true);
  effects->sends.push_back(std::move(out));
}

void ShardCore::OnMove(const PeerId& from, const Message& message,
                       Effects* effects) {
  const wire::HandOver& hand_over = message.header.hand_over();
  const ShardId shard{hand_over.shard()};
  // Without the order we do not take part; the source asks again.
  const wire::Move* const move = view_->FindMove(shard);
  if (move == nullptr || move->id() != hand_over.feed().move() ||
      Owner{move->server(), move->thread()} != options_.self) {
    return Decline(from, message, effects);
  }
  if (Owns(shard))  // Our confirmation was lost.
    return Confirm(from, hand_over, nullptr, /*owned=*/true, effects);
  const ShardRange& range = view_->shard(shard);
  Place& place =
      places_
          .try_emplace(shard,
                       Arriving{.target = LogCopy(from, hand_over.feed(), range,
                                                  range.end, RuleFor(range)),
                                .waiting = {}})
          .first->second;
  Arriving* const arriving = std::get_if<Arriving>(&place);
  if (arriving == nullptr)  // Gone, and lost.
    return Decline(from, message, effects);
  moving_.insert(shard);
  if (const absl::Status taken =
          arriving->target.OnHandOver(hand_over, message.payloads);
      !taken.ok()) {
    stats_.set_malformed(stats_.malformed() + 1);
    return Decline(from, message, effects);
  }
  const bool owned = arriving->target.go().has_value();
  Confirm(from, hand_over, &arriving->target, owned, effects);
  if (!owned) return;
  Requests waiting = std::move(arriving->waiting.requests);
  const wire::Go go = *arriving->target.go();
  place.emplace<Serving>(BeginToServe(ShardMachine(arriving->target.Take()),
                                      TermOf(view_->number()) + 1,
                                      AwaitedOf(go)));
  moving_.erase(shard);
  to_pump_.insert(shard);
  // Our view is at least as new as the source's: see `early_`.
  RemoveStrangers(place, effects);
  HandleWaiting(std::move(waiting), effects);
}

void ShardCore::OnFeed(const PeerId& from, const Message& message,
                       Effects* effects) {
  const wire::HandOver& hand_over = message.header.hand_over();
  const wire::Feed& feed = hand_over.feed();
  const ShardId shard{hand_over.shard()};
  const wire::Follower* const listed = ListedHere(shard);
  Place* place = FindPlace(shard);
  if (ServingOf(place) != nullptr) {
    // Our confirmation of the go was lost.
    const wire::Move* const move = view_->FindMove(shard);
    if (move != nullptr && OwnerOf(from) == view_->OwnerOf(shard) &&
        Owner{move->server(), move->thread()} == options_.self) {
      return Confirm(from, hand_over, nullptr, /*owned=*/true, effects);
    }
    return Decline(from, message, effects);
  }
  const Gone* const gone = std::get_if<Gone>(place);
  const bool is_listed =
      (listed != nullptr && listed->since() == feed.follower()) ||
      (gone != nullptr && gone->move == feed.follower());
  if (!is_listed) return Decline(from, message, effects);
  // Of an owner that was replaced nobody takes anything any more.
  const wire::Move* const move = view_->FindMove(shard);
  const bool from_owner =
      OwnerOf(from) == view_->OwnerOf(shard) ||
      (move != nullptr &&
       OwnerOf(from) == Owner{move->server(), move->thread()});
  if (!from_owner) return Decline(from, message, effects);
  if (place == nullptr) {
    const ShardRange& range = view_->shard(shard);
    // Before our copy of what it was cut off from has heard of that, it has
    // this one, too; and cutting it makes a copy of this one.
    for (ShardId part = shard; view_->OriginOf(part) != part;) {
      part = view_->OriginOf(part);
      const LogCopy* const whole = CopyIn(FindPlace(part));
      if (whole != nullptr && whole->machine() != nullptr &&
          whole->machine()->shard().range().end > range.begin) {
        return Decline(from, message, effects);  // For now.
      }
    }
    place =
        &places_
             .try_emplace(shard, Following{.copy = LogCopy(from, feed, range,
                                                           TableEnd(range),
                                                           RuleFor(range))})
             .first->second;
  }
  LogCopy* const copy = CopyIn(place);
  if (copy == nullptr || IsNewer(copy->feed(), feed))
    return Decline(from, message, effects);
  if (IsNewer(feed, copy->feed())) copy->Follow(from, feed);
  if (copy->source() != from) return Decline(from, message, effects);
  if (const absl::Status taken = copy->OnHandOver(hand_over, message.payloads);
      !taken.ok()) {
    stats_.set_malformed(stats_.malformed() + 1);
    return Decline(from, message, effects);
  }
  if (const size_t bytes = copy->TakeBytesApplied(); bytes > 0)
    effects->work.push_back({.shard = shard, .bytes_applied = bytes});
  for (ShardMachine& part : copy->TakeParts()) {
    const ShardRange range = part.shard().range();
    // Others may have come to follow the part before we heard of it.
    const wire::Follower* const of_part = ListedHere(range.shard);
    if (of_part == nullptr || of_part->since() != feed.follower()) continue;
    places_.try_emplace(range.shard,
                        Following{.copy = LogCopy(from, feed, TableEnd(range),
                                                  std::move(part))});
  }
  const bool owned = copy->go().has_value();
  Confirm(from, hand_over, copy, owned, effects);
  if (!owned) return;
  const wire::Go go = *copy->go();
  Serving& serving = place->emplace<Serving>(BeginToServe(
      ShardMachine(copy->Take()), TermOf(view_->number()) + 1, AwaitedOf(go)));
  serving.followers.Add(OwnerOf(from), go.move(), serving.machine, now_);
  to_pump_.insert(shard);
  RemoveStrangers(*place, effects);
}

void ShardCore::TurnParkedAway(ShardId shard, StalenessGate& gate) {
  for (const StalenessGate::Pull& pull : gate.TakeParked()) {
    const PeerId to{.kind = PeerId::Kind::kWorker,
                    .index = static_cast<int32_t>(pull.rank),
                    .instance = pull.incarnation};
    *replies_.Add(to, pull.request_id, shard).mutable_refusal() =
        Moved(RelocationOf(shard));
  }
}

std::optional<wire::Relocation> ShardCore::RelocationOf(ShardId shard) const {
  Owner owner = view_->OwnerOf(shard);
  uint64_t as_of = view_->number();
  const Gone* const gone = std::get_if<Gone>(FindPlace(shard));
  if (gone != nullptr) {
    if (gone->lost) return std::nullopt;
    owner = gone->source.target();
    as_of = gone->move;
  } else if (const wire::Move* const move = view_->FindMove(shard)) {
    as_of = move->id() - 1;
  }
  if (owner == options_.self) return std::nullopt;
  wire::Relocation relocation;
  relocation.set_server(owner.server);
  relocation.set_thread(owner.thread);
  relocation.set_as_of(as_of);
  return relocation;
}

void ShardCore::HandleWaiting(Requests requests, Effects* effects) {
  for (const Outgoing& request : requests) {
    OnMessage(request.to, request.message, effects);
  }
}

// ---- Admission --------------------------------------------------------------

ShardCore::Sender ShardCore::SenderOf(const PeerId& from,
                                      const wire::Header& header,
                                      Known known) const {
  const bool running =
      view_ != nullptr && view_->proto().state() == wire::RUNNING;
  Sender sender{.peer = from,
                .rank = Rank{from.index},
                .view_number = header.view_number(),
                .known = known};
  sender.member = running && from.kind == PeerId::Kind::kWorker &&
                  view_->FindWorker(Rank{from.index}, from.instance) != nullptr;
  // Only a view of a running job says who is no member any more. Who has not
  // heard of the end of the job, which we have, hears it from the coordinator.
  sender.fenced =
      !sender.member && running && sender.view_number <= view_->number();
  return sender;
}

ShardCore::Admission ShardCore::Admit(const Sender& sender, int32_t shard) {
  if (sender.fenced) {
    wire::Refusal fenced;
    fenced.mutable_fenced();
    return {.refusal = std::move(fenced)};
  }
  // A phase that we have not seen may have begun, or a gradient be after a cut
  // that we have not seen.
  if (!sender.member || sender.known.phases > view_->proto().phase_size() ||
      sender.known.cuts > view_->proto().cut().number()) {
    return {.refusal = Retry()};
  }
  const ShardId id{shard};
  Place* const place = FindPlace(id);
  const Leaving* const leaving = std::get_if<Leaving>(place);
  const bool owner_unclear = leaving != nullptr
                                 ? MustWait(*leaving)
                                 : std::get_if<Arriving>(place) != nullptr;
  if (owner_unclear) return {.waiting = WaitingOf(place), .refusal = Retry()};
  if (!view_->HasShard(shard)) {
    if (sender.view_number > view_->number()) return {.refusal = Retry()};
    return {.refusal = Rejected(absl::StrCat("there is no shard ", shard,
                                             ": the job has ",
                                             view_->shard_count(), " shards"))};
  }
  // Cut in two since: the sender means another range.
  if (sender.view_number < view_->RangeSince(id))
    return {.refusal = Moved(std::nullopt)};
  if (ServingOf(place) != nullptr) return {.place = place, .refusal = {}};
  return {.refusal = Moved(RelocationOf(id))};
}

// ---- Messages -------------------------------------------------------------

void ShardCore::OnMessage(const PeerId& from, const Message& message,
                          Effects* effects) {
  const wire::Header& header = message.header;
  // A process of an earlier start of the job may still be there and know our
  // address.
  const uint64_t run = view_ == nullptr ? 0 : view_->proto().run();
  if (run != 0 && header.run() != run) {
    return Refuse(
        from,
        absl::StrCat("this ", KindOf(header), " belongs to ",
                     header.run() == 0
                         ? "no run"
                         : absl::StrCat("run ", absl::Hex(header.run()),
                                        " of another start of the job"),
                     "; this server serves run ", absl::Hex(run)),
        effects);
  }
  switch (header.body_case()) {
    case wire::Header::kPushRequest:
      return OnPush(from, message, effects);
    case wire::Header::kPullRequest:
      return OnPull(from, message, effects);
    case wire::Header::kProbeRequest:
      return OnProbe(from, message, effects);
    case wire::Header::kHandOver:
      if (from.kind != PeerId::Kind::kShardThread) break;
      return OnHandOver(from, message, effects);
    case wire::Header::kHandOverReply:
      if (from.kind != PeerId::Kind::kShardThread) break;
      return OnHandOverReply(from, message, effects);
    default:
      break;
  }
  Refuse(from,
         absl::StrCat("a shard thread takes pushes and pulls, not body ",
                      static_cast<int>(header.body_case())),
         effects);
}

void ShardCore::Refuse(const PeerId& from, const std::string& error,
                       Effects* effects) {
  stats_.set_malformed(stats_.malformed() + 1);
  // Two threads that refuse each other's refusals would never end.
  if (from.kind == PeerId::Kind::kShardThread) return;
  Outgoing reply{.to = from, .message = {}};
  Sign(&reply.message.header);
  reply.message.header.mutable_error_reply()->set_error(error);
  effects->sends.push_back(std::move(reply));
}

void ShardCore::Sign(wire::Header* header) const {
  if (view_ == nullptr) return;
  header->set_view_number(view_->number());
  header->set_run(view_->proto().run());
}

void ShardCore::OnPush(const PeerId& from, const Message& message,
                       Effects* effects) {
  const wire::PushRequest& request = message.header.push_request();
  const std::string fault = FaultOf(request, message.payloads.size());
  if (!fault.empty())
    return Refuse(from, absl::StrCat("malformed push: ", fault), effects);
  Outgoing out{.to = from, .message = {}};
  wire::PushReply& reply = *out.message.header.mutable_push_reply();
  reply.set_request_id(request.request_id());
  const Sender sender =
      SenderOf(from, message.header,
               {.phases = request.phases(), .cuts = request.cuts()});
  absl::Span<const Payload> left = message.payloads;
  bool rejected = false;
  for (const wire::Push& push : request.push()) {
    const absl::Span<const Payload> frames = left.first(FramesOf(push));
    left.remove_prefix(frames.size());
    Admission admission = Admit(sender, push.shard());
    if (Message* const kept =
            Wait(admission.waiting, from, message.header, frames)) {
      wire::PushRequest& later = *kept->header.mutable_push_request();
      later.set_request_id(request.request_id());
      later.set_phases(request.phases());
      later.set_cuts(request.cuts());
      *later.add_push() = push;
      continue;
    }
    uint64_t accepted = 0;
    std::optional<wire::Refusal> refusal =
        admission.place == nullptr ? std::move(admission.refusal)
                                   : OnAdmitted(*admission.place, sender, push,
                                                frames, &accepted, effects);
    rejected |= refusal.has_value() && refusal->has_rejected();
    // Neighbours for one shard share an answer: acceptance is cumulative.
    const int answers = reply.answer_size();
    wire::PushAnswer& answer =
        answers > 0 && reply.answer(answers - 1).shard() == push.shard()
            ? *reply.mutable_answer(answers - 1)
            : *reply.add_answer();
    answer.set_shard(push.shard());
    answer.set_accepted_seq(std::max(answer.accepted_seq(), accepted));
    if (refusal.has_value() && !answer.has_refusal())
      *answer.mutable_refusal() = *std::move(refusal);
  }
  if (reply.answer_size() == 0) return;  // All of it waits.
  if (rejected) stats_.set_malformed(stats_.malformed() + 1);
  SendToWorker(std::move(out), effects);
}

std::optional<wire::Refusal> ShardCore::OnAdmitted(
    Place& place, const Sender& sender, const wire::Push& push,
    absl::Span<const Payload> frames, uint64_t* accepted_seq,
    Effects* effects) {
  const ShardMachine& machine = ServingOf(&place)->machine;
  const WorkerLife who{sender.rank, sender.peer.instance};
  // Cut in two, perhaps, and we have yet to hear of it.
  const bool may_be_cut = sender.view_number > view_->number();
  const Participant* participant =
      machine.participants().Find(who.rank, who.incarnation);
  std::optional<wire::Refusal> refusal;
  if (push.has_installation()) {
    // A worker that we have not heard of may be one of those at this clock.
    refusal = may_be_cut ? Retry() : Install(place, push, frames, who, effects);
    participant = machine.participants().Find(who.rank, who.incarnation);
  } else if (participant == nullptr) {
    return Rejected(absl::StrCat(
        "push to ", view_->ShardName(ShardId{push.shard()}), " by rank ",
        sender.peer.index,
        ", which has not joined the shard: send a join pull first"));
  } else if (may_be_cut && push.has_gradient() &&
             ElementsOf(push, frames.front()) !=
                 static_cast<size_t>(machine.shard().range().elements())) {
    return Retry();
  } else {
    refusal = Accept(place, push, frames.empty() ? Payload() : frames.front(),
                     *participant, effects);
  }
  if (participant != nullptr) *accepted_seq = participant->next_seq - 1;
  return refusal;
}

std::optional<wire::Refusal> ShardCore::Install(
    Place& place, const wire::Push& push, absl::Span<const Payload> frames,
    WorkerLife who, Effects* effects) {
  Serving& serving = *ServingOf(&place);
  const ShardMachine& machine = serving.machine;
  const ShardRange& range = machine.shard().range();
  const uint64_t seq = push.seq();
  const Participant* const participant =
      machine.participants().Find(who.rank, who.incarnation);
  const uint64_t next_seq = participant == nullptr ? 1 : participant->next_seq;
  if (seq < next_seq) {
    stats_.set_duplicates(stats_.duplicates() + 1);
    return std::nullopt;
  }
  if (seq > next_seq) return Retry();
  const auto reject = [&](const std::string& why) {
    return Rejected(absl::StrCat(
        "installation of ", view_->ShardName(range.shard), " by rank ",
        static_cast<int>(who.rank), " at clock ", push.clock(), ": ", why));
  };
  const wire::View& view = view_->proto();
  const Clock clock = push.clock();
  const Version version = push.installation().version();
  if (clock == 0 || PhaseAt(view, clock).from() != clock ||
      RuleAt(view, clock - 1).over_servers()) {
    return reject("no phase by all-reduce ends there");
  }
  for (const Payload& frame : frames) {
    if (frame.size() == range.bytes()) continue;
    return reject(absl::StrCat("a tensor has ", frame.size(),
                               " bytes, the shard ", range.bytes()));
  }
  const size_t slots = machine.shard().slots().size();
  if (frames.size() != 1 + slots) {
    return reject(absl::StrCat("it has ", frames.size() - 1,
                               " optimizer slots, the table ", slots));
  }
  if (version > kVersionMax) return reject("its version is above 2^60");
  if (StateHash(version, frames.front(), frames.subspan(1)) !=
      push.installation().hash()) {
    return reject("its bits are not those that the worker sent");
  }
  ShardTraceRecord cause{.kind = ShardTraceRecord::Kind::kInstalled,
                         .rank = who.rank,
                         .incarnation = who.incarnation,
                         .clock = clock,
                         .version = version};
  if (machine.complete_clock() >= clock) {  // Others have installed it already.
    if (participant == nullptr)
      return reject("the worker came after all had reached that clock");
    cause.kind = ShardTraceRecord::Kind::kAdvanced;
    cause.version = machine.shard().version();
    Commit(place, AdvanceRecord{.who = who, .clock = participant->clock}, cause,
           effects);
    return std::nullopt;
  }
  InstallRecord record{.who = who,
                       .clock = clock,
                       .version = version,
                       .values = frames.front(),
                       .slots = {frames.begin() + 1, frames.end()}};
  for (const wire::WorkerMember& worker : view_->workers()) {
    const WorkerLife member{Rank{worker.rank()}, worker.incarnation()};
    if (machine.participants().Find(member.rank, member.incarnation) == nullptr)
      record.joining.push_back(member);
  }
  size_t bytes = 0;
  for (const Payload& frame : frames) bytes += frame.size();
  stats_.set_bytes_in(stats_.bytes_in() + bytes);
  serving.stale.Forget();
  Commit(place, record, cause, effects);
  return std::nullopt;
}

bool ShardCore::AwaitsInstall(const ShardMachine& machine) const {
  const Clock clock = machine.complete_clock();
  if (RuleAt(view_->proto(), clock).over_servers()) return false;
  const wire::Phase* const next = PhaseAfter(view_->proto(), clock);
  return next != nullptr && view_->proto().arrived() >= next->from();
}

Message* ShardCore::Wait(Waiting* waiting, const PeerId& from,
                         const wire::Header& header,
                         absl::Span<const Payload> payloads) const {
  if (waiting == nullptr) return nullptr;
  size_t bytes = 0;
  for (const Payload& payload : payloads) bytes += payload.size();
  if (waiting->requests.size() >= options_.waiting_max ||
      waiting->bytes + bytes > options_.waiting_bytes_max ||
      waiting_bytes() + bytes > options_.waiting_bytes_max_all) {
    return nullptr;
  }
  waiting->bytes += bytes;
  Outgoing& request = waiting->requests.emplace_back();
  request.to = from;
  request.message.header.set_view_number(header.view_number());
  request.message.header.set_run(header.run());
  request.message.payloads.assign(payloads.begin(), payloads.end());
  return &request.message;
}

void ShardCore::OnProbe(const PeerId& from, const Message& message,
                        Effects* effects) {
  const wire::ProbeRequest& probe = message.header.probe_request();
  const std::string fault = FaultOf(probe, message.payloads.size());
  if (!fault.empty())
    return Refuse(from, absl::StrCat("malformed probe: ", fault), effects);
  // Whoever has this reply has every answer that was sent before it.
  Flush(effects);
  Outgoing out{.to = from, .message = {}};
  wire::ProbeReply& reply = *out.message.header.mutable_probe_reply();
  reply.set_request_id(probe.request_id());
  const Sender sender = SenderOf(from, message.header, Known());
  for (const int32_t shard : probe.shard()) {
    Admission admission = Admit(sender, shard);
    wire::ProbeAnswer& answer = *reply.add_answer();
    answer.set_shard(shard);
    if (admission.place == nullptr) {
      *answer.mutable_refusal() = *std::move(admission.refusal);
      continue;
    }
    const Participant* const participant =
        ServingOf(admission.place)
            ->machine.participants()
            .Find(sender.rank, from.instance);
    answer.set_accepted_seq(participant == nullptr ? 0
                                                   : participant->next_seq - 1);
  }
  SendToWorker(std::move(out), effects);
}

std::optional<wire::Refusal> ShardCore::Accept(Place& place,
                                               const wire::Push& push,
                                               const Payload& frame,
                                               const Participant& participant,
                                               Effects* effects) {
  const uint64_t seq = push.seq();
  if (seq < participant.next_seq) {
    stats_.set_duplicates(stats_.duplicates() + 1);
    return std::nullopt;
  }
  // An earlier one was lost; both are sent again in order.
  if (seq > participant.next_seq) return Retry();

  Serving& serving = *ServingOf(&place);
  const ShardMachine& machine = serving.machine;
  const ShardRange& range = machine.shard().range();
  const auto describe = [&] {
    return absl::StrCat("push to ", view_->ShardName(range.shard), " by rank ",
                        static_cast<int>(participant.rank), " of clock ",
                        push.clock());
  };
  if (push.has_advance()) {
    if (serving.delays.given()) {
      if (push.clock() != participant.clock + 1) {
        return Rejected(absl::StrCat(
            describe(),
            ": it skips steps, and the job's delays have a gradient of each"));
      }
      return AcceptGivenNothing(place, participant, effects);
    }
    if (push.clock() < participant.clock) {
      return Rejected(absl::StrCat(describe(), ": its clock is already ",
                                   participant.clock));
    }
    const WorkerLife who{participant.rank, participant.incarnation};
    Commit(place, AdvanceRecord{.who = who, .clock = push.clock()},
           ShardTraceRecord{.kind = ShardTraceRecord::Kind::kAdvanced,
                            .rank = who.rank,
                            .incarnation = who.incarnation,
                            .clock = push.clock(),
                            .version = machine.shard().version()},
           effects);
    return std::nullopt;
  }
  if (push.clock() != participant.clock) {
    return Rejected(
        absl::StrCat(describe(), ": its next clock is ", participant.clock));
  }
  const absl::Status fits =
      CheckMomentum(FromWire(push.options()), machine.rule()->optimizer,
                    view_->table(range.table).name());
  if (!fits.ok())
    return Rejected(absl::StrCat(describe(), ": ", fits.message()));
  const GradientCode code = CodeOf(push.encoding());
  const auto elements = static_cast<size_t>(range.elements());
  if (ElementsOf(push, frame) != elements && push.has_encoding()) {
    return Rejected(absl::StrCat(describe(), ": ", push.encoding().elements(),
                                 " elements, the shard has ", elements));
  }
  if (frame.size() != code.Bytes(elements)) {
    return Rejected(absl::StrCat(describe(), ": ", frame.size(),
                                 " bytes, the shard has ",
                                 code.Bytes(elements)));
  }
  const ModeRule& rule = RuleAt(view_->proto(), push.clock());
  if (!rule.over_servers()) {
    return Rejected(absl::StrCat(
        describe(), ": the step of that clock is done by ", "all-reduce"));
  }
  // One frame of each worker is held, so a worker that runs ahead has to wait.
  if (!serving.delays.given() && rule.holds_gradients() &&
      push.clock() > machine.complete_clock()) {
    return Retry();
  }
  Payload gradient = frame;
  if (!code.whole()) {
    gradient = Payload::Allocate(range.bytes());
    const absl::Span<float> floats(
        reinterpret_cast<float*>(gradient.MutableData()), elements);
    if (!Decode(code, frame.data(), floats)) {
      return Rejected(absl::StrCat(
          describe(), ": its frame is not in the code that it names"));
    }
  }
  if (serving.delays.given())
    return AcceptGiven(place, push, gradient, frame.size(), participant,
                       effects);
  CountPush(range.shard, frame.size(), effects);
  const Accepted accepted =
      Judge(serving, push, gradient, participant, effects);
  Commit(place, accepted.record, accepted.cause, effects);
  return std::nullopt;
}

ShardCore::Accepted ShardCore::Judge(Serving& serving, const wire::Push& push,
                                     const Payload& gradient,
                                     const Participant& participant,
                                     Effects* effects) {
  const Shard& shard = serving.machine.shard();
  const sync::Mode& mode = PhaseAt(view_->proto(), push.clock()).mode();
  const ModeRule& rule = RuleOf(mode);
  const Version base = push.gradient();
  GradientRecord record{.who = {participant.rank, participant.incarnation},
                        .clock = push.clock(),
                        .gradient = gradient,
                        .held = rule.holds_gradients(),
                        .spare = rule.spare_workers(mode),
                        .options = FromWire(push.options())};
  ShardTraceRecord cause{.kind = ShardTraceRecord::Kind::kPushAccepted,
                         .rank = participant.rank,
                         .incarnation = participant.incarnation,
                         .clock = push.clock(),
                         .version = base};
  if (rule.extra_steps(mode) > 0) {
    serving.dssp.OnPush(participant.rank, participant.incarnation, push.clock(),
                        now_);
  }
  const auto workers = static_cast<int>(serving.machine.participants().size());
  // Also what a rule remembers must not come from such a gradient.
  const std::optional<double> rms = Measure(gradient);
  bool finite = rms.has_value();
  std::optional<GradientBound::Excess> excess;
  if (finite) {
    record.rms = *rms;
    excess = options_.gradient_bound.Judge(*rms, serving.machine.running_rms());
  }
  bool dropped = false;
  if (finite && !excess.has_value() && !record.held) {
    StaleRule::Verdict verdict =
        serving.stale.OnPush({.rank = participant.rank,
                              .incarnation = participant.incarnation,
                              .base = base,
                              .gradient = &gradient,
                              .now = shard.version(),
                              .values = &shard.values(),
                              .workers = workers});
    record.options.rate_factor *= verdict.rate_factor;
    dropped = verdict.drop;
    if (!verdict.gradient.empty()) {
      record.gradient = std::move(verdict.gradient);
      finite = AllFinite(record.gradient);  // Products may overflow.
    }
  }
  // To the shard, a discarded gradient is as if the worker had only said that
  // it is done.
  const AdvanceRecord nothing{.who = record.who, .clock = push.clock() + 1};
  if (dropped || !finite || excess.has_value()) {
    cause.kind = ShardTraceRecord::Kind::kPushDiscarded;
    if (dropped) stats_.set_dropped(stats_.dropped() + 1);
    if (!finite) {
      CountNonfinite(shard.range().shard, participant.rank, push.clock(),
                     effects);
    }
    if (excess.has_value()) {
      CountOversized(shard.range().shard, participant.rank, push.clock(),
                     *excess, effects);
    }
    return {.record = nothing, .cause = cause};
  }
  if (record.held && push.clock() < serving.machine.complete_clock()) {
    // Late: the others' mean is in the model already.
    stats_.set_dropped(stats_.dropped() + 1);
    return {.record = nothing, .cause = cause};
  }
  CountMissed(
      base < shard.version() ? static_cast<int64_t>(shard.version() - base) : 0,
      record.held ? 1 : workers, &stats_);
  return {.record = std::move(record), .cause = cause};
}

void ShardCore::CountPush(ShardId shard, size_t bytes, Effects* effects) {
  stats_.set_pushes(stats_.pushes() + 1);
  stats_.set_bytes_in(stats_.bytes_in() + bytes);
  effects->work.push_back({.shard = shard, .pushes = 1, .bytes_in = bytes});
}

std::optional<wire::Refusal> ShardCore::AcceptGiven(
    Place& place, const wire::Push& push, const Payload& gradient,
    size_t frame_bytes, const Participant& participant, Effects* effects) {
  Serving& serving = *ServingOf(&place);
  GivenDelays& delays = serving.delays;
  const Shard& shard = serving.machine.shard();
  const WorkerLife who{participant.rank, participant.incarnation};
  const Clock clock = push.clock();
  const auto reject = [&](const std::string& why) {
    return Rejected(absl::StrCat(
        "push to ", view_->ShardName(shard.range().shard), " by rank ",
        static_cast<int>(who.rank), " of clock ", clock, ": ", why));
  };
  if (clock >= delays.plan().steps())
    return reject(
        absl::StrCat("the job has ", delays.plan().steps(), " steps"));
  const std::optional<GivenDelays::Base> base =
      delays.BaseOf(who.rank, clock, shard);
  if (!base.has_value() || base->version != push.gradient()) {
    return reject(absl::StrCat(
        "it was computed from version ", push.gradient(),
        ", and the delays of the job name the version after ",
        delays.TurnsBefore(who.rank, clock), " updates",
        base.has_value() ? absl::StrCat(", which is ", base->version)
                         : ", which is not there yet"));
  }
  GivenDelays::Push given{.rank = who.rank,
                          .clock = clock,
                          .base = base->version,
                          .base_values = {},
                          .gradient = {},
                          .options = FromWire(push.options())};
  if (serving.stale.rule().NeedsBase()) given.base_values = base->values;
  CountPush(shard.range().shard, frame_bytes, effects);
  const std::optional<double> rms = Measure(gradient);
  if (!rms.has_value()) {
    CountNonfinite(shard.range().shard, who.rank, clock, effects);
  } else if (!delays.Uses(who.rank, clock)) {
    stats_.set_dropped(stats_.dropped() + 1);
  } else {
    given.gradient = gradient;
    given.rms = *rms;
  }
  Commit(place, AdvanceRecord{.who = who, .clock = clock + 1},
         ShardTraceRecord{.kind = ShardTraceRecord::Kind::kPushAccepted,
                          .rank = who.rank,
                          .incarnation = who.incarnation,
                          .clock = clock,
                          .version = base->version},
         effects);
  delays.Add(std::move(given));
  TakeTurns(place, effects);
  return std::nullopt;
}

std::optional<wire::Refusal> ShardCore::AcceptGivenNothing(
    Place& place, const Participant& participant, Effects* effects) {
  Serving& serving = *ServingOf(&place);
  const Shard& shard = serving.machine.shard();
  const WorkerLife who{participant.rank, participant.incarnation};
  const Clock clock = participant.clock;
  const std::optional<GivenDelays::Base> base =
      clock < serving.delays.plan().steps()
          ? serving.delays.BaseOf(who.rank, clock, shard)
          : std::nullopt;
  if (!base.has_value()) {
    return Rejected(absl::StrCat(
        "skip of ", view_->ShardName(shard.range().shard), " by rank ",
        static_cast<int>(who.rank), " at clock ", clock,
        ": the job's delays name no version for it that is there"));
  }
  Commit(place, AdvanceRecord{.who = who, .clock = clock + 1},
         ShardTraceRecord{.kind = ShardTraceRecord::Kind::kAdvanced,
                          .rank = who.rank,
                          .incarnation = who.incarnation,
                          .clock = clock + 1,
                          .version = shard.version()},
         effects);
  serving.delays.Add({.rank = who.rank,
                      .clock = clock,
                      .base = base->version,
                      .base_values = {},
                      .gradient = {}});
  TakeTurns(place, effects);
  return std::nullopt;
}

void ShardCore::TakeTurns(Place& place, Effects* effects) {
  Serving& serving = *ServingOf(&place);
  const Shard& shard = serving.machine.shard();
  while (serving.delays.Ready()) {
    GivenDelays::Turn turn = serving.delays.Take(shard);
    UpdateRecord update{.clock = turn.clock,
                        .ranks = {},
                        .gradients = {},
                        .workers = turn.workers};
    // In the order of the turns, so the verdict is the same however gradients
    // come; and of all gradients of a turn by those before it.
    const RunningRms before = serving.machine.running_rms();
    for (GivenDelays::Push& push : turn.pushes) {
      if (push.gradient.empty()) continue;
      if (const std::optional<GradientBound::Excess> excess =
              options_.gradient_bound.Judge(push.rms, before)) {
        CountOversized(shard.range().shard, push.rank, push.clock, *excess,
                       effects);
        continue;
      }
      StepOptions options = push.options;
      if (!turn.mean) {
        StaleRule::Verdict verdict =
            serving.stale.OnPush({.rank = push.rank,
                                  .base = push.base,
                                  .base_values = &push.base_values,
                                  .gradient = &push.gradient,
                                  .now = shard.version(),
                                  .values = &shard.values(),
                                  .workers = turn.workers});
        options.rate_factor *= verdict.rate_factor;
        if (verdict.drop) {
          stats_.set_dropped(stats_.dropped() + 1);
          continue;
        }
        if (!verdict.gradient.empty())
          push.gradient = std::move(verdict.gradient);
        if (!AllFinite(push.gradient)) {  // Products may overflow.
          CountNonfinite(shard.range().shard, push.rank, push.clock, effects);
          continue;
        }
      }
      CountMissed(static_cast<int64_t>(shard.version() - push.base),
                  turn.mean ? 1 : turn.workers, &stats_);
      // One update has one rate: that of its first gradient.
      if (update.gradients.empty()) update.options = options;
      update.ranks.push_back(push.rank);
      update.gradients.push_back(std::move(push.gradient));
      if (options_.gradient_bound.any()) update.rms.push_back(push.rms);
    }
    if (update.gradients.empty()) {
      ReleaseParked(serving, std::nullopt, effects);
      continue;
    }
    if (turn.mean) update.workers = static_cast<int>(update.gradients.size());
    Commit(place, std::move(update), std::nullopt, effects);
  }
}

Clock ShardCore::ProgressOf(const Serving& serving) {
  return serving.delays.given() ? serving.delays.turns()
                                : serving.machine.complete_clock();
}

std::optional<double> ShardCore::Measure(const Payload& gradient) const {
  return options_.gradient_bound.Measure(gradient.data(),
                                         gradient.size() / sizeof(float));
}

void ShardCore::CountNonfinite(ShardId shard, Rank rank, Clock clock,
                               Effects* effects) {
  CountOne(shard, rank, clock, &nonfinite_entries_, stats_.mutable_nonfinite());
  if (options_.nonfinite == config::Train::STOP) effects->report = true;
}

void ShardCore::CountOversized(ShardId shard, Rank rank, Clock clock,
                               const GradientBound::Excess& excess,
                               Effects* effects) {
  run::OversizedGradients& count = *CountOne(
      shard, rank, clock, &oversized_entries_, stats_.mutable_oversized());
  count.set_last_rms(excess.rms);
  count.set_last_bound(excess.bound);
  count.clear_last_running_rms();
  if (excess.running.has_value()) count.set_last_running_rms(*excess.running);
  if (options_.gradient_bound.stops()) effects->report = true;
}

void ShardCore::OnPull(const PeerId& from, const Message& message,
                       Effects* effects) {
  const wire::PullRequest& request = message.header.pull_request();
  const std::string fault = FaultOf(request, message.payloads.size());
  if (!fault.empty())
    return Refuse(from, absl::StrCat("malformed pull: ", fault), effects);
  const Sender sender =
      SenderOf(from, message.header,
               {.phases = request.phases(), .cuts = request.cuts()});
  for (const wire::Pull& pull : request.pull()) {
    for (const int32_t shard : pull.shard()) {
      Admission admission = Admit(sender, shard);
      if (Message* const kept =
              Wait(admission.waiting, from, message.header, {})) {
        wire::PullRequest& later = *kept->header.mutable_pull_request();
        later.set_phases(request.phases());
        later.set_cuts(request.cuts());
        wire::Pull& part = *later.add_pull();
        part.set_id(pull.id());
        part.add_shard(shard);
        if (pull.has_step()) *part.mutable_step() = pull.step();
        if (pull.has_join()) *part.mutable_join() = pull.join();
        if (pull.has_state()) *part.mutable_state() = pull.state();
        continue;
      }
      std::optional<wire::Refusal> refusal =
          admission.place == nullptr
              ? std::move(admission.refusal)
              : OnAdmitted(*admission.place, sender, pull, effects);
      if (!refusal.has_value()) continue;
      if (refusal->has_rejected()) stats_.set_malformed(stats_.malformed() + 1);
      *replies_.Add(from, pull.id(), ShardId{shard}).mutable_refusal() =
          *std::move(refusal);
    }
  }
}

std::optional<wire::Refusal> ShardCore::OnAdmitted(Place& place,
                                                   const Sender& sender,
                                                   const wire::Pull& pull,
                                                   Effects* effects) {
  Serving& serving = *ServingOf(&place);
  const ShardMachine& machine = serving.machine;
  const ShardId shard = machine.shard().range().shard;
  const WorkerLife who{sender.rank, sender.peer.instance};
  const Participant* participant =
      machine.participants().Find(who.rank, who.incarnation);
  if (participant == nullptr) {
    // Who has joined while the others stepped by all-reduce takes part from the
    // installation on; our view may be too old to say so.
    if (AwaitsInstall(machine) || sender.view_number > view_->number())
      return Retry();
    if (!pull.has_join()) {
      return Rejected(absl::StrCat(
          "pull of ", view_->ShardName(shard), " by rank ", sender.peer.index,
          ", which has not joined the shard: send a join pull first"));
    }
    Commit(place, JoinRecord{.who = who, .clock = machine.complete_clock()},
           std::nullopt, effects);
    participant = machine.participants().Find(who.rank, who.incarnation);
  }
  // A late copy: the worker has computed that step, and what it was computed
  // from may be let go.
  if (serving.delays.given() && !pull.has_state() &&
      pull.step().clock() <
          std::max(participant->clock, serving.delays.plan().first())) {
    return Retry();
  }
  const StalenessGate::Pull gated = Gated(serving, sender.peer, pull);
  if (StalenessGate::Admits(machine.participants(), ProgressOf(serving),
                            gated)) {
    Answer(serving, gated,
           pull.has_join() ? participant->joined_at : machine.complete_clock(),
           effects);
  } else if (!serving.gate.Park(gated)) {
    // Asked again: say what it waits for, so that a person can be told.
    wire::PullAnswer::Parked& parked =
        *replies_.Add(sender.peer, pull.id(), shard).mutable_parked();
    if (serving.delays.given()) {
      if (const auto missing = serving.delays.Missing()) {
        parked.set_rank(static_cast<int32_t>(missing->first));
        parked.set_clock(missing->second);
      }
    } else if (const Participant* const slowest =
                   machine.participants().Slowest()) {
      parked.set_rank(static_cast<int32_t>(slowest->rank));
      parked.set_clock(slowest->clock);
    }
  }
  return std::nullopt;
}

StalenessGate::Pull ShardCore::Gated(Serving& serving, const PeerId& from,
                                     const wire::Pull& pull) const {
  StalenessGate::Pull gated{.rank = Rank{from.index},
                            .incarnation = from.instance,
                            .request_id = pull.id(),
                            .state = pull.has_state(),
                            .since = now_};
  if (pull.has_state()) {
    gated.clock = gated.own_clock = gated.needed = pull.state().clock();
    return gated;
  }
  if (serving.delays.given()) {
    gated.clock = pull.step().clock();  // 0 of a worker that joins.
    gated.own_clock = pull.step().own_clock();
    gated.exact = pull.step().exact();
    gated.needed = NeedsAt(view_->proto(), gated.clock).of_all;
    gated.complete = serving.delays.TurnsBefore(gated.rank, gated.clock);
    return gated;
  }
  // A worker that joins takes what is there.
  if (pull.has_join()) return gated;
  const wire::View& view = view_->proto();
  const Clock clock = pull.step().clock();
  const PullNeeds needs = NeedsAt(view, clock);
  gated.clock = clock;
  gated.own_clock = pull.step().own_clock();
  gated.exact = pull.step().exact();
  gated.needed = needs.of_all;
  gated.complete = needs.complete;
  const sync::Mode& mode = PhaseAt(view, clock).mode();
  const int64_t extra = RuleOf(mode).extra_steps(mode);
  const Participants& participants = serving.machine.participants();
  if (extra > 0 && participants.MinClock() < gated.needed &&
      serving.dssp.Grants(gated, participants, extra)) {
    gated.needed = NeedsAt(view, clock, /*granted=*/true).of_all;
  }
  return gated;
}

void ShardCore::ReleaseParked(Serving& serving, std::optional<Rank> changed,
                              Effects* effects) {
  if (serving.gate.parked_count() == 0) return;
  const ShardMachine& machine = serving.machine;
  std::vector<StalenessGate::Pull> admitted;
  serving.gate.Release(machine.participants(), ProgressOf(serving), changed,
                       &admitted);
  for (const StalenessGate::Pull& pull : admitted)
    Answer(serving, pull, machine.complete_clock(), effects);
}

Payload ShardCore::RoundedOf(Serving& serving,
                             const GivenDelays::Base& told) const {
  const wire::Encoding::Kind kind =
      view_->table(serving.machine.shard().range().table).pulled_as();
  if (kind == wire::Encoding::FLOAT32) return told.values;
  std::optional<Rounded>& rounded = serving.rounded;
  if (!rounded.has_value() || rounded->version != told.version) {
    rounded = {.version = told.version,
               .values = RoundParameters(kind, told.values, *options_.memory)};
  }
  return rounded->values;
}

void ShardCore::Answer(Serving& serving, const StalenessGate::Pull& pull,
                       Clock reported_clock, Effects* effects) {
  const ShardMachine& machine = serving.machine;
  const Shard& shard = machine.shard();
  GivenDelays::Base told{.version = shard.version(), .values = shard.values()};
  if (serving.delays.given() && !pull.state) {
    std::optional<GivenDelays::Base> named =
        serving.delays.BaseOf(pull.rank, pull.clock, shard);
    SL_CHECK(named.has_value(), "a pull is answered before its turn");
    told = *std::move(named);
  }
  const PeerId to{.kind = PeerId::Kind::kWorker,
                  .index = static_cast<int32_t>(pull.rank),
                  .instance = pull.incarnation};
  wire::PullAnswer& answer =
      replies_.Add(to, pull.request_id, shard.range().shard);
  wire::PullAnswer::Values& values =
      pull.state ? *answer.mutable_state()->mutable_values()
                 : *answer.mutable_values();
  values.set_version(told.version);
  values.set_shard_clock(reported_clock);
  if (pull.since < now_)
    values.set_parked_micros(absl::ToInt64Microseconds(now_ - pull.since));
  const bool as_they_are = pull.state || pull.exact;
  if (!as_they_are)
    values.set_kind(view_->table(shard.range().table).pulled_as());
  size_t bytes =
      replies_.Attach(as_they_are ? told.values : RoundedOf(serving, told));
  if (pull.state) {
    answer.mutable_state()->set_hash(
        StateHash(shard.version(), shard.values(), shard.slots()));
    answer.mutable_state()->set_slots(static_cast<int>(shard.slots().size()));
    for (const Payload& slot : shard.slots()) bytes += replies_.Attach(slot);
  }
  stats_.set_pulls(stats_.pulls() + 1);
  stats_.set_bytes_out(stats_.bytes_out() + bytes);
  effects->work.push_back(
      {.shard = shard.range().shard, .pulls = 1, .bytes_out = bytes});
  if (pull.state) return;  // For no step.
  if (!serving.delays.given()) {
    serving.stale.OnAnswer(pull.rank, pull.incarnation, told.version,
                           told.values);
  }
  // Not of the final model; and once for each step, though who has not heard
  // the answer asks again.
  LeadCounted& counted = serving.leads[pull.rank];
  if (counted.incarnation != pull.incarnation)
    counted = {.incarnation = pull.incarnation};
  if (pull.clock > counted.clock && pull.clock < EndOf(view_->proto())) {
    counted.clock = pull.clock;
    CountLead(pull.clock,
              serving.delays.given()
                  ? serving.delays.CompleteFor(pull.rank, pull.clock)
                  : machine.complete_clock(),
              &stats_);
  }
  if (!options_.trace) return;
  effects->trace.push_back({.kind = ShardTraceRecord::Kind::kPullAnswered,
                            .shard = shard.range().shard,
                            .rank = pull.rank,
                            .incarnation = pull.incarnation,
                            .clock = pull.clock,
                            .min_clock = machine.participants().MinClock(),
                            .version = told.version,
                            .request_id = pull.request_id,
                            .ranks = {},
                            .workers = 0,
                            .index = machine.position().index});
}

void ShardCore::Flush(Effects* effects) {
  for (Outgoing& reply : replies_.Take())
    SendToWorker(std::move(reply), effects);
  PumpFeeds(effects);
  if (!std::exchange(confirmed_, false)) return;
  held_.Release(
      [&](const HeldAnswers::Need& need) {
        // A shard that has moved on had all of it confirmed before.
        const Serving* const serving = ServingOf(FindPlace(need.shard));
        return serving == nullptr || serving->followers.Have(need.index);
      },
      &effects->sends);
}

run::ServerStats ShardCore::Stats() const {
  run::ServerStats stats = stats_;
  int32_t shards = 0;
  int32_t copies = 0;
  size_t held = 0;
  Clock reached = 0;
  int64_t parked = 0;
  for (const auto& [shard, place] : places_) {
    if (const Serving* const serving = ServingOf(&place)) {
      ++shards;
      held += serving->machine.held().size() + serving->delays.waiting();
      reached = std::max(reached, serving->machine.complete_clock());
      parked += static_cast<int64_t>(serving->gate.parked_count());
      serving->followers.Report(&stats);
    } else if (CopyIn(&place) != nullptr) {
      ++copies;
    }
  }
  for (const ShardId shard : moving_) {
    const Place& place = places_.at(shard);
    const Leaving* const leaving = std::get_if<Leaving>(&place);
    const LogFeed* const source =
        leaving == nullptr ? SourceOf(&place) : FeedOf(*leaving);
    if (source == nullptr) continue;
    run::HandOverState& state = *stats.add_hand_over();
    state = source->Report();
    state.set_move(MoveOf(place));
    const Gone* const gone = std::get_if<Gone>(&place);
    state.set_state(gone != nullptr && gone->lost ? run::HandOverState::LOST
                    : source->owned_by_target()   ? run::HandOverState::DONE
                                                : run::HandOverState::COPYING);
  }
  std::sort(stats.mutable_follower()->begin(), stats.mutable_follower()->end(),
            [](const run::FollowerState& a, const run::FollowerState& b) {
              return std::pair(a.shard(), a.server()) <
                     std::pair(b.shard(), b.server());
            });
  stats.set_shards(shards);
  stats.set_copies(copies);
  stats.set_answers_held(static_cast<int64_t>(held_.count()));
  stats.set_bytes_to_followers(bytes_to_followers_);
  stats.set_bytes_to_followers_resent(bytes_resent_to_followers_);
  stats.set_held(held);
  stats.set_reached_clock(reached);
  stats.set_pulls_parked(parked);
  return stats;
}

int64_t ShardCore::participant_count() const {
  int64_t count = 0;
  for (const auto& [shard, place] : places_) {
    if (const ShardMachine* const machine = MachineOf(shard))
      count += static_cast<int64_t>(machine->participants().size());
  }
  return count;
}

size_t ShardCore::waiting_count() const {
  size_t count = 0;
  for (const ShardId shard : moving_) {
    const Waiting* const waiting = WaitingOf(&places_.at(shard));
    if (waiting != nullptr) count += waiting->requests.size();
  }
  return count;
}

size_t ShardCore::waiting_bytes() const {
  size_t bytes = 0;
  for (const ShardId shard : moving_) {
    const Waiting* const waiting = WaitingOf(&places_.at(shard));
    if (waiting != nullptr) bytes += waiting->bytes;
  }
  return bytes;
}

}  // namespace slackline
