// Goal: the checker of the simulation finds what it is there for.
// Method: for each invariant something is broken on purpose, in the simulated
// world and never in the product, in one run after the other until it has an
// effect; the first thing reported must be that invariant.
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/io/state_hash.h"
#include "gtest/gtest.h"
#include "tests/sim/sim_world.h"

namespace slackline::sim {
namespace {

bool ToShard(const PeerId& to) { return to.kind == PeerId::Kind::kShardThread; }

// A push with gradients, on its way to a shard thread.
bool IsPush(const PeerId& to, const Message& message) {
  return ToShard(to) && message.header.has_push_request() &&
         !message.header.push_request().advance();
}

// The same for several elements in the middle, so that no two versions joined
// together look like it.
Payload Changed(const Payload& payload) {
  Payload changed = Payload::Copy(payload.data(), payload.size());
  auto* const values = reinterpret_cast<float*>(changed.MutableData());
  for (size_t i = 0; i < payload.size() / sizeof(float); i += 2) {
    values[i] += 7;
  }
  return changed;
}

// What a planted fault works with; lives as long as the run.
struct Plant {
  SimWorld* world = nullptr;
  Rng rng{1};
  std::shared_ptr<const View> view;  // The last one sent in which the job runs.
  std::map<int32_t, std::pair<Version, Payload>> last_answer;  // By shard.
  std::set<std::string> seen;
  bool done = false;

  SimNetwork& network() { return world->context().network; }
};

using Tamper = std::function<bool(Plant& plant, const PeerId& from,
                                  const PeerId& to, Message* message)>;

struct Case {
  std::string name;
  Invariant expected;
  std::vector<wire::Mode> modes;
  Tamper tamper;
  SimServer::Plant plant = SimServer::Plant::kNone;
  // For those that are about changes of the mode.
  bool changes = false;
  SimWorker::Plant worker_plant = SimWorker::Plant::kNone;
};

Case OfChanges(const std::string& name, Invariant expected, Tamper tamper,
               SimWorker::Plant plant = SimWorker::Plant::kNone) {
  return {.name = name,
          .expected = expected,
          .modes = {wire::BSP, wire::SSP, wire::ASP, wire::ALLREDUCE},
          .tamper = std::move(tamper),
          .changes = true,
          .worker_plant = plant};
}

Case OfInstallations(const std::string& name) {
  Case planted = OfChanges(name, Invariant::kExactlyOnce, nullptr);
  planted.plant = SimServer::Plant::kInstallAgain;
  return planted;
}

RunReport RunPlanted(const Case& planted, uint64_t seed) {
  Scenario scenario =
      planted.changes ? Scenario::RandomModes(seed) : Scenario::Random(seed);
  const wire::Mode mode = planted.modes[seed % planted.modes.size()];
  const auto bound = static_cast<int64_t>(1 + seed % 3);
  // In BACKUP one gradient is enough.
  scenario.sync = OwnParameters({.mode = mode,
                                 .staleness = bound,
                                 .staleness_max = bound + 2,
                                 .backups = scenario.workers - 1});
  if (!planted.changes && (mode == wire::BSP || mode == wire::BACKUP))
    scenario.pull_ahead = false;
  SimWorld world(scenario, /*keep_log=*/false);
  Plant plant;
  plant.world = &world;
  plant.rng = Rng(seed).Fork("plant");
  world.context().network.tamper = [&](const PeerId& from, const PeerId& to,
                                       Message* message) {
    if (message->header.has_view() &&
        message->header.view().state() == wire::RUNNING) {
      plant.view = *View::Create(message->header.view());
    }
    return planted.tamper == nullptr ||
           planted.tamper(plant, from, to, message);
  };
  world.on_server_started = [&](SimServer* server) {
    server->SetPlant(planted.plant);
  };
  world.on_worker_started = [&](SimWorker* worker) {
    worker->SetPlant(planted.worker_plant);
  };
  return world.Run();
}

// A push is sent once more, with the next sequence number and clock.
bool RepeatAsNextPush(Plant& plant, const PeerId& from, const PeerId& to,
                      Message* message) {
  if (plant.done || !IsPush(to, *message) || plant.rng.Chance(0.8)) return true;
  plant.done = true;
  Message again = *message;
  wire::PushRequest& push = *again.header.mutable_push_request();
  push.set_clock(push.clock() + 1);
  for (uint64_t& seq : *push.mutable_seq()) ++seq;
  plant.world->context().queue.After(
      absl::ZeroDuration(),
      [&plant, from, to, again] { plant.network().Send(from, to, again); });
  return true;
}

// Two clocks of a worker change their gradients.
bool SwapClocks(Plant& plant, const PeerId& from, const PeerId& to,
                Message* message) {
  if (!IsPush(to, *message) || from.index != 0) return true;
  const Clock clock = message->header.push_request().clock();
  if (clock != 2 && clock != 3) return true;
  for (size_t i = 0; i < message->payloads.size(); ++i) {
    const ShardRange& range =
        plant.view->shard(ShardId{message->header.push_request().shard(i)});
    const std::vector<float> other = plant.world->context().scenario.Gradient(
        Rank{from.index}, from.instance, 5 - clock, range.table, range.begin,
        range.end);
    message->payloads[i] =
        Payload::Copy(other.data(), other.size() * sizeof(float));
  }
  return true;
}

// A pull asks for less than the worker meant.
bool LowerPullClock(Plant&, const PeerId&, const PeerId& to, Message* message) {
  if (!ToShard(to) || !message->header.has_pull_request()) return true;
  message->header.mutable_pull_request()->set_clock(0);
  message->header.mutable_pull_request()->set_own_clock(0);
  return true;
}

// An answer begins as the version before.
bool MixVersions(Plant& plant, const PeerId&, const PeerId&, Message* message) {
  if (!message->header.has_pull_reply()) return true;
  const wire::PullReply& reply = message->header.pull_reply();
  size_t next = 0;
  for (int i = 0; i < reply.shard_size(); ++i) {
    if (reply.code(i) != wire::OK) continue;
    Payload& payload = message->payloads[next++];
    auto& [version, before] = plant.last_answer[reply.shard(i)];
    const Payload now = payload;
    if (version != reply.version(i) && !before.empty()) {
      payload = Payload::Copy(now.data(), now.size());
      std::memcpy(payload.MutableData(), before.data(),
                  now.size() / sizeof(float) / 2 * sizeof(float));
    }
    version = reply.version(i);
    before = now;
  }
  return true;
}

// An answer is the version before, and says so.
bool AnswerOldVersion(Plant& plant, const PeerId&, const PeerId&,
                      Message* message) {
  if (!message->header.has_pull_reply()) return true;
  wire::PullReply& reply = *message->header.mutable_pull_reply();
  size_t next = 0;
  for (int i = 0; i < reply.shard_size(); ++i) {
    if (reply.code(i) != wire::OK) continue;
    Payload& payload = message->payloads[next++];
    auto& [version, before] = plant.last_answer[reply.shard(i)];
    std::pair<Version, Payload> now = {reply.version(i), payload};
    if (!before.empty()) {
      reply.set_version(i, version);
      payload = before;
    }
    plant.last_answer[reply.shard(i)] = now;
  }
  return true;
}

// One gradient of one worker changes on its way to one shard.
bool ChangeGradient(Plant& plant, const PeerId&, const PeerId& to,
                    Message* message) {
  if (plant.done || !IsPush(to, *message) || plant.rng.Chance(0.9)) return true;
  plant.done = true;
  message->payloads.front() = Changed(message->payloads.front());
  return true;
}

// A push that is sent again is acknowledged and thrown away.
bool AcknowledgeRetries(Plant& plant, const PeerId& from, const PeerId& to,
                        Message* message) {
  if (!IsPush(to, *message)) return true;
  const wire::PushRequest& push = message->header.push_request();
  if (plant.seen
          .insert(absl::StrCat(from.ToString(), to.ToString(), push.shard(0),
                               ".", push.seq(0)))
          .second) {
    return true;
  }
  Message acknowledgement;
  wire::PushReply& reply = *acknowledgement.header.mutable_push_reply();
  for (int i = 0; i < push.shard_size(); ++i) {
    reply.add_shard(push.shard(i));
    reply.add_acked_seq(push.seq(i));
    reply.add_code(wire::OK);
  }
  plant.network().Send(to, from, acknowledgement);
  return false;
}

// A view loses a worker on its way to a member.
bool ChangeView(Plant&, const PeerId&, const PeerId&, Message* message) {
  if (message->header.has_view() && message->header.view().worker_size() > 1) {
    message->header.mutable_view()->mutable_worker()->RemoveLast();
  }
  return true;
}

bool NoAnswersForRank0(Plant&, const PeerId&, const PeerId& to,
                       Message* message) {
  return !(message->header.has_pull_reply() && to.index == 0);
}

// The coordinator hears rank 0, but not as who it is.
bool GarbleHeartbeats(Plant&, const PeerId& from, const PeerId&,
                      Message* message) {
  if (message->header.has_heartbeat() && from.index == 0 &&
      from.kind == PeerId::Kind::kWorker) {
    message->header.mutable_heartbeat()->set_incarnation(1 << 30);
  }
  return true;
}

// The last part of the snapshot says go as well.
bool GoTooEarly(Plant& plant, const PeerId&, const PeerId&, Message* message) {
  if (!message->header.has_hand_over()) return true;
  wire::HandOver& hand_over = *message->header.mutable_hand_over();
  const wire::HandOverRecord& last =
      hand_over.record(hand_over.record_size() - 1);
  const int tensors = plant.world->context().scenario.momentum > 0 ? 2 : 1;
  if (!last.has_part() || last.part().tensor() != tensors - 1 ||
      last.part().offset() + message->payloads.back().size() !=
          plant.view->shard(ShardId{hand_over.shard()}).bytes()) {
    return true;
  }
  hand_over.add_record()->set_go(true);
  return true;
}

// A push that the source took over meanwhile becomes a record of nothing.
bool DropPushRecord(Plant&, const PeerId&, const PeerId&, Message* message) {
  if (!message->header.has_hand_over()) return true;
  size_t payload = 0;
  for (wire::HandOverRecord& record :
       *message->header.mutable_hand_over()->mutable_record()) {
    if (record.has_snapshot()) {
      payload += static_cast<size_t>(record.snapshot().held_size());
    } else if (record.has_part()) {
      ++payload;
    } else if (record.has_push() && !record.push().advance()) {
      message->payloads.erase(message->payloads.begin() +
                              static_cast<std::ptrdiff_t>(payload));
      record.mutable_left();
    }
  }
  return true;
}

wire::ShardSnapshot* SnapshotIn(Message* message) {
  if (!message->header.has_hand_over()) return nullptr;
  wire::HandOver& hand_over = *message->header.mutable_hand_over();
  return hand_over.record(0).has_snapshot()
             ? hand_over.mutable_record(0)->mutable_snapshot()
             : nullptr;
}

bool ForgetSequence(Plant&, const PeerId&, const PeerId&, Message* message) {
  if (wire::ShardSnapshot* const snapshot = SnapshotIn(message)) {
    for (wire::ShardParticipant& who : *snapshot->mutable_participant())
      who.set_next_seq(1);
  }
  return true;
}

bool ForgetHeld(Plant&, const PeerId&, const PeerId&, Message* message) {
  if (wire::ShardSnapshot* const snapshot = SnapshotIn(message)) {
    message->payloads.erase(message->payloads.begin(),
                            message->payloads.begin() + snapshot->held_size());
    snapshot->clear_held();
  }
  return true;
}

bool ForgetClocks(Plant&, const PeerId&, const PeerId&, Message* message) {
  if (wire::ShardSnapshot* const snapshot = SnapshotIn(message)) {
    for (wire::ShardParticipant& who : *snapshot->mutable_participant())
      who.set_clock(who.clock() + 1);
  }
  return true;
}

bool ChangeMomentum(Plant&, const PeerId&, const PeerId&, Message* message) {
  if (!message->header.has_hand_over()) return true;
  const wire::HandOverRecord& record = message->header.hand_over().record(0);
  if (record.has_part() && record.part().tensor() == 1)
    message->payloads.front() = Changed(message->payloads.front());
  return true;
}

// A source never hears that the target has taken over.
bool NoConfirmations(Plant&, const PeerId&, const PeerId&, Message* message) {
  return !message->header.hand_over_reply().owned();
}

bool NoLeaving(Plant&, const PeerId& from, const PeerId&, Message* message) {
  return !(from.kind == PeerId::Kind::kServer &&
           message->header.call().has_leave());
}

bool CryLost(Plant&, const PeerId&, const PeerId&, Message* message) {
  if (!message->header.heartbeat().has_server()) return true;
  for (run::HandOverState& state : *message->header.mutable_heartbeat()
                                        ->mutable_server()
                                        ->mutable_hand_over()) {
    state.set_state(run::HandOverState::LOST);
  }
  return true;
}

// Promises of long ago.
bool LowerLimits(Plant&, const PeerId&, const PeerId&, Message* message) {
  if (message->header.call().has_step_limit()) {
    message->header.mutable_call()->mutable_step_limit()->set_clock(1);
  }
  return true;
}

bool NoLimits(Plant&, const PeerId&, const PeerId&, Message* message) {
  return !message->header.call().has_step_limit();
}

bool NobodyArrives(Plant&, const PeerId&, const PeerId&, Message* message) {
  return !message->header.call().has_arrive();
}

// Who takes the state does not wait for the others' pushes.
bool TakeStateEarly(Plant&, const PeerId&, const PeerId& to, Message* message) {
  if (!ToShard(to) || !message->header.pull_request().state()) return true;
  message->header.mutable_pull_request()->set_clock(0);
  message->header.mutable_pull_request()->set_own_clock(0);
  return true;
}

// A shard thread takes its own view for new enough. Views come late.
bool ForgetPhases(Plant& plant, const PeerId&, const PeerId& to,
                  Message* message) {
  if (message->header.has_view() && to.kind == PeerId::Kind::kServer &&
      message->header.view().phase_size() > 1 && plant.rng.Chance(0.8)) {
    return false;
  }
  if (!ToShard(to)) return true;
  if (message->header.has_pull_request())
    message->header.mutable_pull_request()->set_phases(0);
  if (message->header.has_push_request())
    message->header.mutable_push_request()->set_phases(0);
  return true;
}

// What is given back changes on its way, and the hash as well.
bool ChangeInstallation(Plant&, const PeerId&, const PeerId& to,
                        Message* message) {
  if (!ToShard(to) || !message->header.push_request().install()) return true;
  wire::PushRequest& push = *message->header.mutable_push_request();
  const size_t frames =
      message->payloads.size() / static_cast<size_t>(push.shard_size());
  for (int i = 0; i < push.shard_size(); ++i) {
    const size_t first = frames * static_cast<size_t>(i);
    message->payloads[first] = Changed(message->payloads[first]);
    push.set_hash(i, StateHash(push.base_version(i), message->payloads[first],
                               absl::MakeConstSpan(message->payloads)
                                   .subspan(first + 1, frames - 1)));
  }
  return true;
}

void PrintTo(const Case& planted, std::ostream* out) { *out << planted.name; }

class PlantedFault : public ::testing::TestWithParam<Case> {};

TEST_P(PlantedFault, IsTheFirstThingReported) {
  constexpr uint64_t kSeeds = 300;
  int caught = 0;
  for (uint64_t seed = 1; seed <= kSeeds && caught < 5; ++seed) {
    const RunReport report = RunPlanted(GetParam(), seed);
    if (!report.violation.has_value()) continue;
    EXPECT_STREQ(InvariantName(report.violation->invariant),
                 InvariantName(GetParam().expected))
        << "seed " << seed << ": " << report.violation->what;
    ++caught;
  }
  EXPECT_EQ(caught, 5) << "of " << kSeeds << " runs";
}

INSTANTIATE_TEST_SUITE_P(
    All, PlantedFault,
    ::testing::Values(
        Case{"RepeatedPush",
             Invariant::kExactlyOnce,
             {wire::ASP, wire::SSP},
             RepeatAsNextPush},
        Case{"SwappedClocks",
             Invariant::kOrder,
             {wire::BSP, wire::SSP, wire::ASP},
             SwapClocks},
        Case{"PullOfAnEarlierClock",
             Invariant::kStaleness,
             {wire::BSP, wire::SSP},
             LowerPullClock},
        Case{"LargestBoundIgnored",
             Invariant::kStaleness,
             {wire::DSSP},
             nullptr,
             SimServer::Plant::kLooseBounds},
        Case{"LateGradientApplied",
             Invariant::kExactlyOnce,
             {wire::BACKUP},
             nullptr,
             SimServer::Plant::kTakeLate},
        Case{"TwoVersionsInOneAnswer",
             Invariant::kTornRead,
             {wire::BSP, wire::SSP, wire::ASP},
             MixVersions},
        Case{"AnswerOfAnEarlierVersion",
             Invariant::kVersionOrder,
             {wire::BSP, wire::SSP, wire::ASP},
             AnswerOldVersion},
        Case{"ChangedGradientInBsp",
             Invariant::kSyncSum,
             {wire::BSP},
             ChangeGradient},
        Case{"ChangedGradientInAsp",
             Invariant::kValue,
             {wire::ASP},
             ChangeGradient},
        Case{"AcknowledgedAndThrownAway",
             Invariant::kLostPush,
             {wire::BSP, wire::SSP, wire::ASP},
             AcknowledgeRetries},
        Case{"ChangedView", Invariant::kView, {wire::BSP}, ChangeView},
        Case{"LossesHiddenFromShards",
             Invariant::kBoundedState,
             {wire::BSP, wire::SSP, wire::ASP},
             nullptr,
             SimServer::Plant::kHideLosses},
        Case{"NoAnswers",
             Invariant::kLiveness,
             {wire::BSP, wire::ASP},
             NoAnswersForRank0},
        Case{"LeaseLostThoughHeard",
             Invariant::kOutcome,
             {wire::BSP, wire::ASP},
             GarbleHeartbeats},
        Case{"TargetServesBeforeTheGo",
             Invariant::kOwnership,
             {wire::BSP, wire::SSP, wire::ASP},
             GoTooEarly},
        Case{"SourceServesAfterTheGo",
             Invariant::kOwnership,
             {wire::BSP, wire::SSP, wire::ASP},
             nullptr,
             SimServer::Plant::kServeOn},
        Case{"RecordDroppedAndConfirmed",
             Invariant::kLostPush,
             {wire::BSP, wire::SSP, wire::ASP},
             DropPushRecord},
        Case{"SequenceNumbersNotHandedOver",
             Invariant::kExactlyOnce,
             {wire::BSP, wire::SSP, wire::ASP},
             ForgetSequence},
        Case{"HeldGradientsNotHandedOver",
             Invariant::kLostPush,
             {wire::BSP},
             ForgetHeld},
        Case{"ClocksChangeOnTheWay",
             Invariant::kStaleness,
             {wire::SSP, wire::ASP},
             ForgetClocks},
        Case{"MomentumChangesOnTheWay",
             Invariant::kValue,
             {wire::BSP, wire::SSP, wire::ASP},
             ChangeMomentum},
        Case{"SplitForgetsSequenceNumbers",
             Invariant::kExactlyOnce,
             {wire::BSP, wire::SSP, wire::ASP},
             nullptr,
             SimServer::Plant::kForgetSequence},
        Case{"MoveWithoutEnd",
             Invariant::kLiveness,
             {wire::BSP, wire::SSP, wire::ASP},
             NoConfirmations},
        Case{"DrainedServerStays",
             Invariant::kLiveness,
             {wire::BSP, wire::SSP, wire::ASP},
             NoLeaving},
        Case{"LostThoughNobodyDied",
             Invariant::kOutcome,
             {wire::BSP, wire::SSP, wire::ASP},
             CryLost},
        OfChanges("StepBeyondTheFence", Invariant::kMode, nullptr,
                  SimWorker::Plant::kIgnoreFence),
        OfChanges("SmallestLimitInsteadOfTheLargest", Invariant::kMode,
                  LowerLimits),
        OfChanges("PromisesNeverArrive", Invariant::kLiveness, NoLimits),
        OfChanges("ArrivalsNeverArrive", Invariant::kLiveness, NobodyArrives),
        OfChanges("StateTakenTooEarly", Invariant::kLostPush, TakeStateEarly),
        OfChanges("ShardsIgnoreThePhasesOfOthers", Invariant::kStaleness,
                  ForgetPhases),
        OfChanges("ChangedOnTheWayBack", Invariant::kValue, ChangeInstallation),
        OfInstallations("InstalledTwice"),
        OfChanges("FailedStepKept", Invariant::kReplica, nullptr,
                  SimWorker::Plant::kKeepFailedStep),
        OfChanges("NoHelpTaken", Invariant::kReplica, nullptr,
                  SimWorker::Plant::kTakeNoHelp),
        OfChanges("StepsAlone", Invariant::kReplica, nullptr,
                  SimWorker::Plant::kStepAlone)),
    [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace slackline::sim
