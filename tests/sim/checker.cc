#include "tests/sim/checker.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/view/initializer.h"

namespace slackline::sim {
namespace {

std::string Name(Rank rank, Incarnation incarnation) {
  return absl::StrCat("rank ", static_cast<int>(rank), "/", incarnation);
}

std::vector<float> FloatsOf(const Payload& payload) {
  std::vector<float> values(payload.size() / sizeof(float));
  std::memcpy(values.data(), payload.data(), values.size() * sizeof(float));
  return values;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

const char* InvariantName(Invariant invariant) {
  switch (invariant) {
    case Invariant::kStaleness:
      return "staleness";
    case Invariant::kExactlyOnce:
      return "exactly once";
    case Invariant::kLostPush:
      return "lost push";
    case Invariant::kOrder:
      return "order";
    case Invariant::kTornRead:
      return "torn read";
    case Invariant::kVersionOrder:
      return "version order";
    case Invariant::kSyncSum:
      return "sync sum";
    case Invariant::kValue:
      return "value";
    case Invariant::kView:
      return "view";
    case Invariant::kBoundedState:
      return "bounded state";
    case Invariant::kLiveness:
      return "liveness";
    case Invariant::kOutcome:
      return "outcome";
  }
  return "?";
}

void Checker::Report(Invariant invariant, const std::string& what) {
  if (!violation_.has_value())
    violation_ = Violation{.invariant = invariant, .what = what};
}

// ---- Views ----------------------------------------------------------------

void Checker::OnPublished(const wire::View& view) {
  std::string bytes = view.SerializeAsString();
  const auto [at, inserted] = published_.emplace(view.number(), bytes);
  if (!inserted) {
    if (at->second != bytes) {
      Report(Invariant::kView,
             absl::StrCat("two different views have number ", view.number()));
    }
    return;
  }
  if (view.number() < latest_view_.number()) {
    Report(Invariant::kView,
           absl::StrCat("view ", view.number(), " was made after view ",
                        latest_view_.number()));
    return;
  }
  latest_view_ = view;
  live_.clear();
  for (const wire::WorkerMember& worker : view.worker()) {
    live_.insert({Rank{worker.rank()}, worker.incarnation()});
  }
}

void Checker::OnMemberView(const PeerId& member, const wire::View& view) {
  const auto published = published_.find(view.number());
  if (published == published_.end() ||
      published->second != view.SerializeAsString()) {
    return Report(Invariant::kView,
                  absl::StrCat(member.ToString(), " took over a view ",
                               view.number(), " that nobody published"));
  }
  uint64_t& last = member_view_[member];
  if (view.number() <= last) {
    return Report(Invariant::kView,
                  absl::StrCat(member.ToString(), " took over view ",
                               view.number(), " after view ", last));
  }
  last = view.number();
}

// ---- The worker's end -----------------------------------------------------

void Checker::OnSent(Rank rank, Incarnation incarnation,
                     const Message& message) {
  if (!message.header.has_pull_request()) return;
  const wire::PullRequest& pull = message.header.pull_request();
  PullIntent& intent = pulls_[{{rank, incarnation}, pull.request_id()}];
  intent.clock = pull.clock();
  intent.own_clock = pull.own_clock();
  intent.join = pull.join();
}

void Checker::OnWorkerReceived(Rank rank, Incarnation incarnation,
                               const Message& message) {
  const Life life{rank, incarnation};
  if (message.header.has_push_reply()) {
    const wire::PushReply& reply = message.header.push_reply();
    for (int i = 0; i < reply.shard_size(); ++i) {
      const auto twin = twins_.find(reply.shard(i));
      if (twin == twins_.end() || reply.acked_seq(i) == 0) continue;
      const auto participant = twin->second.participants.find(life);
      const uint64_t taken = participant == twin->second.participants.end()
                                 ? 0
                                 : participant->second.next_seq - 1;
      if (reply.acked_seq(i) > taken) {
        Report(Invariant::kLostPush,
               absl::StrCat(Name(rank, incarnation), " was told that its push ",
                            reply.acked_seq(i), " to ", twin->second.name,
                            " is taken over; the shard has ", taken));
      }
    }
  }
  if (!message.header.has_pull_reply()) return;
  const wire::PullReply& reply = message.header.pull_reply();
  const auto intent = pulls_.find({life, reply.request_id()});
  size_t next_payload = 0;
  for (int i = 0; i < reply.shard_size(); ++i) {
    if (reply.code(i) != wire::OK) continue;
    const auto found = twins_.find(reply.shard(i));
    if (found == twins_.end() || next_payload >= message.payloads.size()) {
      return Report(Invariant::kValue,
                    absl::StrCat("an answer to ", Name(rank, incarnation),
                                 " has a shard or payload too many"));
    }
    const Twin& twin = found->second;
    const Version version = reply.version(i);
    const std::vector<float> actual =
        FloatsOf(message.payloads[next_payload++]);
    if (intent == pulls_.end() ||
        intent->second.answered[reply.shard(i)].count(version) == 0) {
      return Report(
          Invariant::kVersionOrder,
          absl::StrCat(Name(rank, incarnation), " was given version ", version,
                       " of ", twin.name,
                       ", which the shard did not answer to its pull ",
                       reply.request_id()));
    }
    if (intent->second.join &&
        twin.participants.at(life).joined_at != reply.shard_clock(i)) {
      Report(Invariant::kStaleness,
             absl::StrCat(Name(rank, incarnation),
                          " was told to start at clock ", reply.shard_clock(i),
                          " of ", twin.name, "; it takes part from clock ",
                          twin.participants.at(life).joined_at));
    }
    ++stats_.answers;
    if (!SameBits(actual, twin.versions[version])) {
      Violation why = Explain(twin, version, actual);
      return Report(why.invariant,
                    absl::StrCat(Name(rank, incarnation), ": ", why.what));
    }
  }
}

void Checker::OnPulled(Rank rank, Incarnation incarnation,
                       const ClientCore::PullResult& result) {
  for (size_t shard = 0; shard < result.shards.size(); ++shard) {
    const int32_t id = static_cast<int32_t>(shard);
    Version& last = seen_[{{rank, incarnation}, id}];
    if (result.shards[shard].version < last) {
      Report(Invariant::kVersionOrder,
             absl::StrCat(Name(rank, incarnation), " pulled version ",
                          result.shards[shard].version, " of ",
                          twins_.at(id).name, " after version ", last));
    }
    last = result.shards[shard].version;
  }
}

void Checker::OnFinalPull(const ClientCore::PullResult& result) {
  for (auto& [id, twin] : twins_) {
    const Version version = result.shards[static_cast<size_t>(id)].version;
    std::set<Contribution> contained;
    for (Version v = 0; v < version; ++v) {
      for (const Contribution& contribution : twin.updates[v].contributions) {
        contained.insert(contribution);
      }
    }
    for (const wire::WorkerMember& worker : latest_view_.worker()) {
      const Life life{Rank{worker.rank()}, worker.incarnation()};
      const auto participant = twin.participants.find(life);
      if (!worker.done())
        continue;  // Joined when the chief's pull was on its way.
      if (participant == twin.participants.end()) {
        Report(Invariant::kLostPush,
               absl::StrCat(Name(life.first, life.second),
                            " is done and never took part at ", twin.name));
        continue;
      }
      const auto start = pushed_from_.find(life);
      if (start == pushed_from_.end()) continue;
      for (Clock clock = start->second; clock < scenario_.steps; ++clock) {
        if (contained.count({life, clock}) > 0) continue;
        Report(Invariant::kLostPush,
               absl::StrCat("the final model lacks the push of clock ", clock,
                            " by ", Name(life.first, life.second), " to ",
                            twin.name));
      }
    }
  }
}

void Checker::OnStart(Rank rank, Incarnation incarnation, Clock clock) {
  pushed_from_[{rank, incarnation}] = clock;
}

// ---- The shard's end ------------------------------------------------------

std::vector<float> Checker::GradientOf(const Twin& twin,
                                       const Contribution& contribution) const {
  return scenario_.Gradient(contribution.life.first, contribution.life.second,
                            contribution.clock, twin.range.table,
                            twin.range.begin, twin.range.end);
}

// SGD with learning rate 1: values - (g0 + g1 + ...) * (1 / divisor).
std::vector<float> Checker::Apply(const Twin& twin,
                                  const std::vector<float>& values,
                                  const Update& update) const {
  std::vector<float> sum = GradientOf(twin, update.contributions.front());
  for (size_t i = 1; i < update.contributions.size(); ++i) {
    const std::vector<float> gradient =
        GradientOf(twin, update.contributions[i]);
    for (size_t e = 0; e < sum.size(); ++e) sum[e] += gradient[e];
  }
  const float scale = 1.0f / static_cast<float>(update.divisor);
  std::vector<float> next = values;
  for (size_t e = 0; e < next.size(); ++e) {
    const float mean = sum[e] * scale;
    next[e] -= mean;
  }
  return next;
}

void Checker::UpdateMinClock(Twin& twin) {
  std::optional<Clock> min_clock;
  for (const auto& [life, participant] : twin.participants) {
    if (!participant.present) continue;
    min_clock =
        std::min(min_clock.value_or(participant.clock), participant.clock);
  }
  twin.min_clock = min_clock.value_or(twin.min_clock);
}

void Checker::OnShardView(Owner owner, const View& view,
                          const ShardCore::Effects& effects) {
  uint64_t& last = shard_view_[owner];
  if (view.number() > last && view.proto().state() == wire::RUNNING) {
    for (int32_t id = 0; id < view.shard_count(); ++id) {
      if (view.OwnerOf(ShardId{id}) != owner) continue;
      const auto [at, inserted] = twins_.try_emplace(id);
      Twin& twin = at->second;
      if (inserted) {
        twin.range = view.shard(ShardId{id});
        twin.name = view.ShardName(ShardId{id});
        std::vector<float> initial(static_cast<size_t>(twin.range.elements()));
        InitializeElements(view.table(twin.range.table), scenario_.seed,
                           twin.range.begin, absl::MakeSpan(initial));
        twin.versions.push_back(std::move(initial));
        for (const wire::WorkerMember& worker : view.proto().worker()) {
          if (worker.founder()) {
            twin.participants[{Rank{worker.rank()}, worker.incarnation()}] = {};
          }
        }
        continue;
      }
      for (auto& [life, participant] : twin.participants) {
        if (view.FindWorker(life.first, life.second) == nullptr)
          participant.present = false;
      }
      UpdateMinClock(twin);
    }
  }
  last = std::max(last, view.number());
  OnTrace(effects);
}

void Checker::OnShardMessage(const PeerId& from, const Message& message,
                             const ShardCore::Effects& effects) {
  const Life life{Rank{from.index}, from.instance};
  const wire::PushReply* reply = nullptr;
  for (const Outgoing& out : effects.sends) {
    if (out.message.header.has_push_reply())
      reply = &out.message.header.push_reply();
  }
  const wire::PushRequest& push = message.header.push_request();
  if (push.advance() && reply != nullptr) {
    for (int i = 0; i < push.shard_size(); ++i) {
      const auto twin = twins_.find(push.shard(i));
      if (twin == twins_.end() || reply->code(i) != wire::OK) continue;
      const auto participant = twin->second.participants.find(life);
      if (participant == twin->second.participants.end() ||
          participant->second.next_seq != push.seq(i)) {
        continue;  // Nobody we know, or a duplicate.
      }
      ++participant->second.next_seq;
      participant->second.clock = push.clock();
      ++stats_.advances;
      UpdateMinClock(twin->second);
    }
  }
  OnTrace(effects);
  if (reply == nullptr) return;
  for (int i = 0; i < reply->shard_size(); ++i) {
    if (reply->code(i) != wire::OK && reply->code(i) != wire::RETRY) continue;
    const auto twin = twins_.find(reply->shard(i));
    if (twin == twins_.end()) continue;
    const auto participant = twin->second.participants.find(life);
    if (participant == twin->second.participants.end()) continue;
    if (reply->acked_seq(i) > participant->second.next_seq - 1) {
      Report(Invariant::kLostPush,
             absl::StrCat(twin->second.name, " acknowledges push ",
                          reply->acked_seq(i), " of ",
                          Name(life.first, life.second), " and has taken over ",
                          participant->second.next_seq - 1));
    }
  }
}

void Checker::OnTrace(const ShardCore::Effects& effects) {
  for (const ShardTraceRecord& record : effects.trace) {
    const auto twin = twins_.find(static_cast<int32_t>(record.shard));
    if (twin == twins_.end()) {
      Report(Invariant::kValue, "a shard that nobody placed is at work");
      continue;
    }
    switch (record.kind) {
      case ShardTraceRecord::Kind::kPushTakenOver:
        OnPushTakenOver(twin->second, record);
        break;
      case ShardTraceRecord::Kind::kUpdated:
        OnUpdated(twin->second, record);
        break;
      case ShardTraceRecord::Kind::kPullAnswered:
        OnPullAnswered(twin->second, record);
        break;
    }
  }
}

void Checker::OnPushTakenOver(Twin& twin, const ShardTraceRecord& record) {
  ++stats_.pushes;
  const std::string who =
      absl::StrCat(twin.name, " took over clock ", record.clock, " of ",
                   Name(record.rank, record.incarnation));
  const auto found = twin.participants.find({record.rank, record.incarnation});
  if (found == twin.participants.end() || !found->second.present) {
    return Report(Invariant::kBoundedState,
                  absl::StrCat(who, ", which takes no part"));
  }
  Participant& participant = found->second;
  if (record.clock != participant.clock) {
    return Report(record.clock < participant.clock ? Invariant::kExactlyOnce
                                                   : Invariant::kOrder,
                  absl::StrCat(who, ", its next one is ", participant.clock));
  }
  ++participant.clock;
  ++participant.next_seq;
  const Contribution contribution{.life = found->first, .clock = record.clock};
  twin.held.insert(
      std::upper_bound(twin.held.begin(), twin.held.end(), contribution),
      contribution);
  UpdateMinClock(twin);
}

void Checker::OnUpdated(Twin& twin, const ShardTraceRecord& record) {
  ++stats_.updates;
  if (record.version != twin.versions.size()) {
    return Report(
        Invariant::kVersionOrder,
        absl::StrCat(twin.name, " went from version ", twin.versions.size() - 1,
                     " to version ", record.version));
  }
  Update update;
  update.contributions = std::move(twin.held);
  twin.held.clear();
  if (update.contributions.empty()) {
    return Report(Invariant::kExactlyOnce,
                  absl::StrCat(twin.name, " was updated to version ",
                               record.version, " without a push"));
  }
  int present = 0;
  for (const auto& [life, participant] : twin.participants)
    present += participant.present;
  if (scenario_.mode == wire::BSP) {
    update.divisor = static_cast<int>(update.contributions.size());
    for (const Contribution& contribution : update.contributions) {
      if (contribution.clock != record.clock) {
        Report(Invariant::kSyncSum,
               absl::StrCat(
                   twin.name, " sums clock ", contribution.clock, " of ",
                   Name(contribution.life.first, contribution.life.second),
                   " into clock ", record.clock));
      }
    }
    for (const auto& [life, participant] : twin.participants) {
      if (participant.present && Live(life) &&
          participant.clock <= record.clock) {
        Report(Invariant::kSyncSum,
               absl::StrCat(twin.name, " applied clock ", record.clock,
                            " without ", Name(life.first, life.second),
                            ", whose clock is ", participant.clock));
      }
    }
    if (update.divisor < scenario_.workers) ++stats_.partial_sums;
  } else {
    update.divisor = present;
  }
  twin.versions.push_back(Apply(twin, twin.versions.back(), update));
  twin.updates.push_back(std::move(update));
}

void Checker::OnPullAnswered(Twin& twin, const ShardTraceRecord& record) {
  const Life life{record.rank, record.incarnation};
  const auto who = [&] {
    return absl::StrCat(twin.name, " answered pull ", record.request_id, " of ",
                        Name(record.rank, record.incarnation));
  };
  const auto intent = pulls_.find({life, record.request_id});
  if (intent == pulls_.end()) {
    return Report(Invariant::kValue,
                  absl::StrCat(who(), ", which was never sent"));
  }
  PullIntent& pull = intent->second;
  auto puller = twin.participants.find(life);
  if (puller == twin.participants.end()) {
    if (!pull.join)
      return Report(Invariant::kStaleness,
                    absl::StrCat(who(), ", which takes no part"));
    puller = twin.participants.emplace(life, Participant()).first;
    puller->second.joined_at = puller->second.clock = twin.min_clock;
    ++stats_.joins;
    UpdateMinClock(twin);
  }
  pull.answered[static_cast<int32_t>(twin.range.shard)].insert(record.version);
  if (record.version + 1 != twin.versions.size()) {
    return Report(Invariant::kVersionOrder,
                  absl::StrCat(who(), " with version ", record.version,
                               " while at ", twin.versions.size() - 1));
  }
  if (puller->second.clock < pull.own_clock) {
    Report(Invariant::kStaleness,
           absl::StrCat(who(), " for its clock ", pull.own_clock,
                        ", but has only ", puller->second.clock, " of it"));
  }
  const Clock needed = pull.clock - scenario_.StalenessBound();
  if (needed <= 0) return;
  ++stats_.gated;
  for (const auto& [other, participant] : twin.participants) {
    if (!Live(other)) continue;
    if (participant.clock < needed) {
      Report(Invariant::kStaleness,
             absl::StrCat(who(), " at clock ", pull.clock, " with bound ",
                          scenario_.StalenessBound(), ", but has only ",
                          participant.clock, " clocks of ",
                          Name(other.first, other.second)));
    }
  }
  for (const Contribution& contribution : twin.held) {
    if (contribution.clock < needed && Live(contribution.life)) {
      Report(
          Invariant::kStaleness,
          absl::StrCat(who(), " at clock ", pull.clock, " without clock ",
                       contribution.clock, " of ",
                       Name(contribution.life.first, contribution.life.second),
                       ", which it holds and has not applied"));
    }
  }
}

void Checker::OnShardFlush(Owner owner, const ShardCore& core) {
  int64_t participants = 0;
  for (const auto& [id, twin] : twins_) {
    if (latest_view_.owner_server(id) != owner.server ||
        latest_view_.owner_thread(id) != owner.thread) {
      continue;
    }
    for (const auto& [life, participant] : twin.participants)
      participants += participant.present;
  }
  if (core.participant_count() != participants) {
    Report(Invariant::kBoundedState,
           absl::StrCat("server ", owner.server, " thread ", owner.thread,
                        " keeps the state of ", core.participant_count(),
                        " participants of its shards, not ", participants));
  }
  if (core.Stats().pulls_parked() > participants) {
    Report(Invariant::kBoundedState,
           absl::StrCat("server ", owner.server, " thread ", owner.thread,
                        " parks ", core.Stats().pulls_parked(),
                        " pulls; its shards have ", participants,
                        " participants"));
  }
}

void Checker::OnFinished() {
  for (const auto& [id, twin] : twins_) {
    if (!twin.held.empty()) {
      Report(Invariant::kLostPush,
             absl::StrCat(twin.name, " still holds ", twin.held.size(),
                          " gradients that it never applied"));
    }
  }
}

// ---- What a wrong answer means ---------------------------------------------

Violation Checker::Explain(const Twin& twin, Version version,
                           const std::vector<float>& actual) const {
  const std::string where =
      absl::StrCat("the answer for version ", version, " of ", twin.name);
  const size_t size = twin.versions.front().size();
  if (actual.size() != size) {
    return {Invariant::kValue, absl::StrCat(where, " has ", actual.size(),
                                            " elements, not ", size)};
  }
  size_t prefix = 0, suffix = 0;
  Version prefix_of = 0, suffix_of = 0;
  for (Version v = 0; v < twin.versions.size(); ++v) {
    const std::vector<float>& values = twin.versions[v];
    const size_t same_first =
        std::mismatch(actual.begin(), actual.end(), values.begin()).first -
        actual.begin();
    const size_t same_last =
        std::mismatch(actual.rbegin(), actual.rend(), values.rbegin()).first -
        actual.rbegin();
    if (same_first > prefix) prefix = same_first, prefix_of = v;
    if (same_last > suffix) suffix = same_last, suffix_of = v;
  }
  if (prefix + suffix >= size) {
    return {Invariant::kTornRead,
            absl::StrCat(where, " begins as version ", prefix_of,
                         " and ends as version ", suffix_of)};
  }
  if (std::optional<Violation> found =
          ExplainAsOtherPushes(twin, version, actual)) {
    found->what = absl::StrCat(where, found->what);
    return *found;
  }
  if (scenario_.mode == wire::BSP) {
    return {Invariant::kSyncSum,
            absl::StrCat(where, " is no sum of what the workers pushed")};
  }
  return {Invariant::kValue,
          absl::StrCat(where, " cannot come from what the workers pushed")};
}

// Replays the updates with one push replaced, repeated or left out.
std::optional<Violation> Checker::ExplainAsOtherPushes(
    const Twin& twin, Version version, const std::vector<float>& actual) const {
  const auto becomes_actual = [&](Version changed, const Update* update) {
    std::vector<float> values = twin.versions[changed];
    if (update != nullptr) values = Apply(twin, values, *update);
    for (Version v = changed + 1; v < version; ++v)
      values = Apply(twin, values, twin.updates[v]);
    return SameBits(values, actual);
  };
  // The latest ones first: earlier updates were seen right by somebody.
  for (Version changed = version; changed-- > 0;) {
    const Update& update = twin.updates[changed];
    const bool whole = update.contributions.size() == 1;
    for (size_t i = 0; i < update.contributions.size(); ++i) {
      const Contribution& contribution = update.contributions[i];
      const std::string push =
          absl::StrCat(" the push of clock ", contribution.clock, " by ",
                       Name(contribution.life.first, contribution.life.second));
      Update other = update;
      other.contributions.insert(other.contributions.begin() + i, contribution);
      if (becomes_actual(changed, &other)) {
        return Violation{Invariant::kExactlyOnce,
                         absl::StrCat(" contains twice", push)};
      }
      other = update;
      other.contributions.erase(other.contributions.begin() + i);
      if (becomes_actual(changed, whole ? nullptr : &other)) {
        return Violation{Invariant::kLostPush, absl::StrCat(" lacks", push)};
      }
      for (Clock clock = 0; clock < scenario_.steps; ++clock) {
        if (clock == contribution.clock) continue;
        other = update;
        other.contributions[i].clock = clock;
        if (!becomes_actual(changed, &other)) continue;
        return Violation{
            clock < contribution.clock ? Invariant::kExactlyOnce
                                       : Invariant::kOrder,
            absl::StrCat(" contains clock ", clock, " in the place of", push)};
      }
    }
  }
  return std::nullopt;
}

}  // namespace slackline::sim
