// Goal: the checker of the simulation finds what it is there for.
// Method: for each invariant something is broken on purpose, in the simulated
// world and never in the product, in one run after the other until it has an
// effect; the first thing reported must be that invariant.
#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/io/state_hash.h"
#include "gtest/gtest.h"
#include "tests/sim/sim_world.h"
#include "tests/support/modes.h"

namespace slackline::sim {
namespace {

bool ToShard(const PeerId& to) { return to.kind == PeerId::Kind::kShardThread; }

// A push with payload, on its way to a shard thread.
bool IsPush(const PeerId& to, const Message& message) {
  return ToShard(to) && message.header.has_push_request() &&
         !message.payloads.empty();
}

// Of a log; probes have none.
bool HasEntries(const Message& message) {
  return message.header.hand_over().record_size() > 0;
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
  std::optional<std::pair<PeerId, wire::Examples>> given;
  bool done = false;

  SimNetwork& network() { return world->context().network; }
};

// Calls `visit` with each push and its payload frames.
void ForEachPush(Message* message,
                 const std::function<void(wire::Push& push,
                                          absl::Span<Payload> frames)>& visit) {
  absl::Span<Payload> left = absl::MakeSpan(message->payloads);
  for (wire::Push& push :
       *message->header.mutable_push_request()->mutable_push()) {
    const size_t frames =
        push.has_advance()
            ? 0
            : 1 + static_cast<size_t>(push.installation().slots());
    visit(push, left.first(frames));
    left.remove_prefix(frames);
  }
}

using Tamper = std::function<bool(Plant& plant, const PeerId& from,
                                  const PeerId& to, Message* message)>;

struct Case {
  std::string name;
  Invariant expected;
  std::vector<std::string> modes;  // Names.
  Tamper tamper;
  SimServer::Plant plant = SimServer::Plant::kNone;
  // For those that are about changes of the mode.
  bool changes = false;
  SimWorker::Plant worker_plant = SimWorker::Plant::kNone;
  // The second face of a fault that has two: which one is seen first depends on
  // what else is on its way.
  std::optional<Invariant> also = std::nullopt;
  void (*tamper_sizes)(CoordinatorCore::Sizes* sizes) = nullptr;
  void (*change)(Scenario* scenario) = nullptr;
  // About checkpoints, of which the others have none; or about jobs that go on
  // from one.
  bool checkpoints = false;
  bool resumes = false;
  void (*tamper_manifest)(checkpoint::Manifest* manifest) = nullptr;
  bool completes_without_files = false;
};

Case OfSizes(const std::string& name,
             void (*tamper_sizes)(CoordinatorCore::Sizes* sizes)) {
  return {.name = name,
          .expected = Invariant::kBoundedState,
          .modes = {"bsp", "asp"},
          .tamper = nullptr,
          .tamper_sizes = tamper_sizes};
}

Case OfChanges(const std::string& name, Invariant expected, Tamper tamper,
               SimWorker::Plant plant = SimWorker::Plant::kNone,
               std::optional<Invariant> also = std::nullopt) {
  return {.name = name,
          .expected = expected,
          .modes = {"bsp", "ssp", "asp", "allreduce"},
          .tamper = std::move(tamper),
          .changes = true,
          .worker_plant = plant,
          .also = also};
}

// A state that is taken too early lacks pushes of shards, or is another one
// than that of the others.
Case OfEarlyState(const std::string& name, Tamper tamper) {
  Case planted = OfChanges(name, Invariant::kLostPush, std::move(tamper));
  planted.also = Invariant::kReplica;
  return planted;
}

Case OfSampling(const std::string& name, Invariant expected, Tamper tamper) {
  return {.name = name,
          .expected = expected,
          .modes = {"bsp", "ssp", "asp"},
          .tamper = std::move(tamper),
          .change = [](Scenario* scenario) {
            wire::Elastic& elastic = scenario->elastic.emplace();
            elastic.set_batch_size(3);
            elastic.set_examples(50);
            elastic.set_total(100);
          }};
}

Case OfCheckpoints(const std::string& name,
                   const std::vector<std::string>& modes,
                   SimServer::Plant plant, Tamper tamper = nullptr) {
  return {.name = name,
          .expected = Invariant::kCheckpoint,
          .modes = modes,
          .tamper = std::move(tamper),
          .plant = plant,
          .checkpoints = true};
}

// Three servers, and shards with followers. Nothing goes wrong by itself.
void GiveFollowers(Scenario* scenario) {
  scenario->RemoveFaults();
  scenario->servers = 3;
  scenario->start_at.assign(static_cast<size_t>(3 + scenario->workers),
                            absl::Milliseconds(1));
  scenario->replicas = 1 + static_cast<int>(scenario->seed % 2);
  scenario->placement.linger = true;
  scenario->elastic.reset();  // With it nobody waits with the last step.
}

// Servers keep all tables by rows, and a store loses one now and then.
void LoseRows(Scenario* scenario, PlantedRowLoss loss) {
  scenario->row_widths.assign(scenario->table_elements.size(), 2);
  scenario->asks_state = 0;
  scenario->planted_row_loss = loss;
}

void GiveGivenDelays(Scenario* scenario) {
  Rng rng = Rng(scenario->seed).Fork("given delays");
  scenario->GiveDelays(rng);
}

// And gradients wait for their turn, in copies, too.
void GiveFollowersAndDelays(Scenario* scenario) {
  GiveFollowers(scenario);
  GiveGivenDelays(scenario);
}

// Shard threads have more under way than they may.
void GiveFollowersWithoutBudget(Scenario* scenario) {
  GiveFollowers(scenario);
  scenario->placement.feed.link.window_bytes = 100;
  scenario->placement.feed.window_bytes = 256;
  scenario->planted_no_budget = true;
}

// And a server dies and comes back.
void GiveFollowersAndCrash(Scenario* scenario) {
  GiveFollowers(scenario);
  FaultEvent& crash = scenario->faults.emplace_back();
  crash.kind = FaultEvent::Kind::kCrash;
  crash.node = 1;
  crash.at = scenario->heal_at * 0.3;
  crash.restart = true;
  crash.duration = absl::Milliseconds(1);
}

// And the coordinator dies with its server, and goes on in another one.
void GiveFollowersAndTakeOver(Scenario* scenario) {
  GiveFollowers(scenario);
  scenario->recovers = true;
  Rng rng(scenario->seed);
  scenario->DrawTakeOvers(/*faulty=*/false, scenario->heal_at, rng);
  CoordinatorFault& fault = scenario->coordinator_faults.emplace_back();
  fault.at = scenario->heal_at * 0.3;
  fault.duration = scenario->lease * 12;
  fault.with_host = true;
  scenario->heal_at += fault.duration;
}

// And server 0 with the coordinator comes back at once, at another address.
void GiveFollowersAndMove(Scenario* scenario) {
  GiveFollowers(scenario);
  scenario->recovers = scenario->address_moves = scenario->host_vanishes = true;
  CoordinatorFault& fault = scenario->coordinator_faults.emplace_back();
  fault.at = scenario->heal_at * 0.3;
  fault.duration = absl::Milliseconds(1);
  fault.with_host = true;
  scenario->heal_at += scenario->lease * 4;
}

Case OfTakeOvers(const std::string& name, Invariant expected,
                 void (*change)(Scenario* scenario)) {
  return {.name = name,
          .expected = expected,
          .modes = {"bsp", "ssp", "asp"},
          .tamper = nullptr,
          .change = change};
}

// And the coordinator does not hear a server, which all others reach.
void GiveFollowersAndDepose(Scenario* scenario) {
  GiveFollowers(scenario);
  scenario->inner_cuts.push_back(
      {.kind = InnerCut::Kind::kControlFromCoordinator,
       .server = 1,
       .at = scenario->heal_at * 0.3,
       .duration = scenario->lease * 3});
  scenario->heal_at += scenario->lease * 3;
}

Case OfCopies(const std::string& name, Tamper tamper,
              void (*change)(Scenario* scenario),
              SimServer::Plant plant = SimServer::Plant::kNone) {
  return {.name = name,
          .expected = Invariant::kCopies,
          .modes = {"bsp", "ssp", "asp"},
          .tamper = std::move(tamper),
          .plant = plant,
          .change = change};
}

Case OfInstallations(const std::string& name) {
  Case planted = OfChanges(name, Invariant::kExactlyOnce, nullptr);
  planted.plant = SimServer::Plant::kInstallAgain;
  return planted;
}

// Of that name, with bounds that the seed gives.
sync::Mode ModeNamed(const std::string& name, const Scenario& scenario) {
  sync::Mode mode = ModeOf(name);
  const auto bound = static_cast<int32_t>(1 + scenario.seed % 3);
  if (mode.has_ssp()) mode.mutable_ssp()->set_staleness(bound);
  if (mode.has_dssp()) {
    mode.mutable_dssp()->set_min_staleness(bound);
    mode.mutable_dssp()->set_max_staleness(bound + 2);
  }
  // One gradient is enough.
  if (mode.has_backup())
    mode.mutable_backup()->set_workers(scenario.workers - 1);
  return mode;
}

// nullptr: the job of this seed has left none.
std::shared_ptr<const SimCheckpoint> CheckpointOf(Scenario scenario) {
  scenario.elastic.reset();
  scenario.checkpoints.config.set_every_steps(2);
  const RunReport report = SimWorld(scenario, /*keep_log=*/false).Run();
  return report.checkpoints.empty() ? nullptr : report.checkpoints.back();
}

RunReport RunPlanted(const Case& planted, uint64_t seed) {
  Scenario scenario =
      planted.changes ? Scenario::RandomModes(seed) : Scenario::Random(seed);
  scenario.RemoveCheckpoints();
  scenario.gradient_code = {};  // Faults are planted in floats.
  scenario.pulled_as.clear();
  if (planted.checkpoints) {
    scenario.elastic.reset();
    scenario.checkpoints.wanted = true;
    scenario.checkpoints.config.set_every_steps(2);
  }
  if (planted.resumes) {
    const auto checkpoint = CheckpointOf(scenario);
    if (checkpoint == nullptr) return {};
    scenario.Resume(checkpoint);
  }
  scenario.mode =
      ModeNamed(planted.modes[seed % planted.modes.size()], scenario);
  if (!planted.changes &&
      (scenario.mode.has_bsp() || scenario.mode.has_backup())) {
    scenario.pull_ahead = false;
  }
  // A gradient that has the rate of another could be explained in two ways.
  scenario.rate_factors = false;
  scenario.skips_tables = false;
  if (planted.change != nullptr) planted.change(&scenario);
  SimWorld world(scenario, /*keep_log=*/false);
  Plant plant;
  plant.world = &world;
  plant.rng = Rng(seed).Fork("plant");
  world.context().network.tamper = [&](const PeerId& from, const PeerId& to,
                                       Message* message) {
    const std::optional<wire::View> view =
        world.context().checker.ViewIn(message->header);
    if (view.has_value() && view->state() == wire::RUNNING)
      plant.view = *View::Create(*view);
    return planted.tamper == nullptr ||
           planted.tamper(plant, from, to, message);
  };
  if (planted.tamper_sizes != nullptr)
    world.context().tamper_sizes = planted.tamper_sizes;
  if (planted.tamper_manifest != nullptr)
    world.context().tamper_manifest = planted.tamper_manifest;
  world.context().completes_without_files = planted.completes_without_files;
  world.on_server_started = [&](SimServer* server) {
    server->SetPlant(planted.plant);
  };
  world.on_worker_started = [&](SimWorker* worker) {
    worker->SetPlant(planted.worker_plant);
  };
  return world.Run();
}

// Delays are given, and the servers have others than the checker. `also`: a
// shard waits for the wrong thing.
Case OfDelays(const std::string& name, Invariant expected, Invariant also,
              void (*change)(Scenario* scenario)) {
  return {.name = name,
          .expected = expected,
          .modes = {"asp"},  // Which they take the place of.
          .tamper = nullptr,
          .also = also,
          .change = change};
}

// By name: a recording with two things exchanged may contradict itself.
DelayTrace::Shard& PlantDelays(Scenario* scenario) {
  Rng rng = Rng(scenario->seed).Fork("given delays");
  do {
    scenario->GiveDelays(rng);
  } while (!scenario->delays.any_model);
  scenario->planted_delays = scenario->delays;
  return scenario->planted_delays->shards.front();
}

// Two workers of a clock change their turns.
void SwapTurns(Scenario* scenario) {
  DelayTrace::Shard& shard = PlantDelays(scenario);
  for (size_t i = shard.updates.size() / 2; i + 1 < shard.updates.size(); ++i) {
    if (shard.updates[i].clock != shard.updates[i + 1].clock) continue;
    return std::swap(shard.updates[i].ranks, shard.updates[i + 1].ranks);
  }
}

// The coordinator takes the delays for so long that nothing is computed from
// anything, and so each worker's promise for a place of the cut.
void CutAnywhere(Scenario* scenario) {
  GiveGivenDelays(scenario);
  scenario->planted_cut_delays =
      MakeTrace({.kind = SyntheticDelays::Kind::kConstant, .clocks = 1000},
                scenario->workers, scenario->steps, scenario->seed,
                scenario->delays.first);
}

// A job whose delays are given takes checkpoints.
Case OfGivenCheckpoints(const std::string& name,
                        void (*change)(Scenario* scenario),
                        SimServer::Plant plant = SimServer::Plant::kNone) {
  Case planted = OfCheckpoints(name, {"asp"}, plant);
  planted.change = change;
  return planted;
}

// Two workers of a clock change what they compute from.
void SwapVersions(Scenario* scenario) {
  DelayTrace::Shard& shard = PlantDelays(scenario);
  for (size_t i = 0; i + 1 < shard.reads.size(); ++i) {
    DelayTrace::Read& one = shard.reads[i];
    DelayTrace::Read& other = shard.reads[i + 1];
    if (one.clock == other.clock && one.version != other.version)
      return std::swap(one.version, other.version);
  }
}

// A push is sent once more, with the next sequence number and clock.
bool RepeatAsNextPush(Plant& plant, const PeerId& from, const PeerId& to,
                      Message* message) {
  if (plant.done || !IsPush(to, *message) || plant.rng.Chance(0.8)) return true;
  plant.done = true;
  Message again = *message;
  ForEachPush(&again, [](wire::Push& push, absl::Span<Payload>) {
    push.set_clock(push.clock() + 1);
    push.set_seq(push.seq() + 1);
  });
  plant.world->context().queue.After(
      absl::ZeroDuration(),
      [&plant, from, to, again] { plant.network().Send(from, to, again); });
  return true;
}

// Gradients of one step arrive as if the step had none of these tables.
bool SkipGradients(Plant&, const PeerId& from, const PeerId& to,
                   Message* message) {
  if (!IsPush(to, *message) || from.index != 0) return true;
  std::vector<Payload> frames_left;
  ForEachPush(message, [&](wire::Push& push, absl::Span<Payload> frames) {
    if (!push.has_gradient() || push.clock() != 3) {
      frames_left.insert(frames_left.end(), frames.begin(), frames.end());
      return;
    }
    push.mutable_advance();
    push.set_clock(push.clock() + 1);
    push.clear_options();
    push.clear_encoding();
  });
  message->payloads = std::move(frames_left);
  return true;
}

// A worker pushes the gradient of a table that its step has none of.
bool PushSkipped(Plant& plant, const PeerId& from, const PeerId& to,
                 Message* message) {
  if (!IsPush(to, *message) || from.index != 0) return true;
  const Scenario& scenario = plant.world->context().scenario;
  std::vector<Payload> frames_now;
  ForEachPush(message, [&](wire::Push& push, absl::Span<Payload> frames) {
    frames_now.insert(frames_now.end(), frames.begin(), frames.end());
    const ShardRange& range = plant.view->shard(ShardId{push.shard()});
    const Clock clock = push.clock() - 1;
    if (!push.has_advance() || !scenario.Skips(clock, range.table)) return;
    const std::vector<float> gradient =
        scenario.Gradient(Rank{from.index}, from.instance, clock, range.table,
                          range.region.begin(), range.region.end());
    push.set_gradient(plant.rng.Below(3));
    push.set_clock(clock);
    frames_now.push_back(
        Payload::Copy(gradient.data(), gradient.size() * sizeof(float)));
  });
  message->payloads = std::move(frames_now);
  return true;
}

void WithSkips(Scenario* scenario) {
  scenario->skips_tables = true;
  scenario->gradient_code = {};
}

// Two clocks of a worker change their gradients.
bool SwapClocks(Plant& plant, const PeerId& from, const PeerId& to,
                Message* message) {
  if (!IsPush(to, *message) || from.index != 0) return true;
  ForEachPush(message, [&](wire::Push& push, absl::Span<Payload> frames) {
    if (!push.has_gradient() || (push.clock() != 2 && push.clock() != 3))
      return;
    const ShardRange& range = plant.view->shard(ShardId{push.shard()});
    const std::vector<float> other = plant.world->context().scenario.Gradient(
        Rank{from.index}, from.instance, 5 - push.clock(), range.table,
        range.region.begin(), range.region.end());
    frames.front() = Payload::Copy(other.data(), other.size() * sizeof(float));
  });
  return true;
}

// A pull asks for less than the worker meant.
bool LowerPullClock(Plant&, const PeerId&, const PeerId& to, Message* message) {
  if (!ToShard(to) || !message->header.has_pull_request()) return true;
  for (wire::Pull& pull :
       *message->header.mutable_pull_request()->mutable_pull()) {
    if (pull.has_step()) pull.mutable_step()->Clear();
    if (pull.has_state()) pull.mutable_state()->Clear();
  }
  return true;
}

// Calls `visit` with each answer of values and its payload.
void ForEachValues(Message* message,
                   const std::function<void(wire::PullAnswer& answer,
                                            Payload& values)>& visit) {
  if (!message->header.has_pull_reply()) return;
  auto& answers = *message->header.mutable_pull_reply()->mutable_answer();
  size_t next = 0;
  for (wire::PullAnswer& answer : answers) {
    if (answer.has_state()) return;  // States come by themselves.
    if (answer.has_values()) visit(answer, message->payloads[next++]);
  }
}

// An answer begins as the version before.
bool MixVersions(Plant& plant, const PeerId&, const PeerId&, Message* message) {
  ForEachValues(message, [&](wire::PullAnswer& answer, Payload& payload) {
    auto& [version, before] = plant.last_answer[answer.shard()];
    const Payload now = payload;
    if (version != answer.values().version() && !before.empty()) {
      payload = Payload::Copy(now.data(), now.size());
      std::memcpy(payload.MutableData(), before.data(),
                  now.size() / sizeof(float) / 2 * sizeof(float));
    }
    version = answer.values().version();
    before = now;
  });
  return true;
}

// An answer is what the one before was rounded to.
bool AnswerOldRounding(Plant& plant, const PeerId&, const PeerId&,
                       Message* message) {
  ForEachValues(message, [&](wire::PullAnswer& answer, Payload& payload) {
    auto& [version, before] = plant.last_answer[answer.shard()];
    const Payload now = payload;
    if (before.size() == now.size()) payload = before;
    version = answer.values().version();
    before = now;
  });
  return true;
}

// An answer is the version before, and says so.
bool AnswerOldVersion(Plant& plant, const PeerId&, const PeerId&,
                      Message* message) {
  ForEachValues(message, [&](wire::PullAnswer& answer, Payload& payload) {
    auto& [version, before] = plant.last_answer[answer.shard()];
    std::pair<Version, Payload> now = {answer.values().version(), payload};
    if (!before.empty()) {
      answer.mutable_values()->set_version(version);
      payload = before;
    }
    plant.last_answer[answer.shard()] = now;
  });
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
          .insert(absl::StrCat(from.ToString(), to.ToString(),
                               push.push(0).shard(), ".", push.push(0).seq()))
          .second) {
    return true;
  }
  Message acknowledgement;
  wire::PushReply& reply = *acknowledgement.header.mutable_push_reply();
  for (const wire::Push& fact : push.push()) {
    wire::PushAnswer& answer = *reply.add_answer();
    answer.set_shard(fact.shard());
    answer.set_accepted_seq(fact.seq());
  }
  plant.network().Send(to, from, acknowledgement);
  return false;
}

// A view loses a worker on its way to a member.
bool ChangeView(Plant&, const PeerId&, const PeerId&, Message* message) {
  if (message->header.has_view() && message->header.view().worker_size() > 1) {
    message->header.mutable_view()->mutable_worker()->RemoveLast();
  }
  if (message->header.has_view_change())
    message->header.mutable_view_change()->clear_worker();
  return true;
}

bool NoAnswersForRank0(Plant&, const PeerId&, const PeerId& to,
                       Message* message) {
  return !(message->header.has_pull_reply() && to.index == 0);
}

// Nothing that the coordinator says reaches rank 0, once the job runs.
bool SilenceForRank0(Plant& plant, const PeerId& from, const PeerId& to,
                     Message*) {
  return plant.view == nullptr || from.kind != PeerId::Kind::kCoordinator ||
         to.kind != PeerId::Kind::kWorker || to.index != 0;
}

// Users' and workers' calls are done, and never answered.
bool NoCallReplies(Plant&, const PeerId&, const PeerId&, Message* message) {
  return !message->header.has_call_reply();
}

// A push says that it was computed from the version before.
bool OlderBase(Plant&, const PeerId&, const PeerId& to, Message* message) {
  if (!IsPush(to, *message)) return true;
  ForEachPush(message, [](wire::Push& push, absl::Span<Payload>) {
    if (!push.has_gradient()) return;
    push.set_gradient(push.gradient() > 0 ? push.gradient() - 1 : 1);
  });
  return true;
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

// Of a shard, without the gradients that it holds.
int TensorsOf(const Plant& plant, int32_t shard) {
  const TableId table = plant.view->shard(ShardId{shard}).table;
  return 1 + plant.view->optimizer(table).slot_count();
}

// A push asks for three times the rate.
bool FasterPush(Plant&, const PeerId&, const PeerId& to, Message* message) {
  if (!IsPush(to, *message)) return true;
  ForEachPush(message, [](wire::Push& push, absl::Span<Payload>) {
    if (!push.has_gradient()) return;
    push.mutable_options()->set_rate_factor(
        3 * FromWire(push.options()).rate_factor);
  });
  return true;
}

// A push asks for a momentum that its worker has not given.
bool OtherMomentum(Plant& plant, const PeerId&, const PeerId& to,
                   Message* message) {
  if (!IsPush(to, *message)) return true;
  ForEachPush(message, [&](wire::Push& push, absl::Span<Payload>) {
    if (!push.has_gradient() || plant.view == nullptr ||
        push.shard() >= plant.view->shard_count()) {
      return;
    }
    const TableId table = plant.view->shard(ShardId{push.shard()}).table;
    if (plant.view->optimizer(table).momentum().has_value())
      push.mutable_options()->set_momentum(0.0625);
  });
  return true;
}

// What is handed over forgets the factors of rates.
bool ForgetFactors(Plant&, const PeerId&, const PeerId&, Message* message) {
  if (!HasEntries(*message)) return true;
  for (wire::HandOverRecord& entry :
       *message->header.mutable_hand_over()->mutable_record()) {
    if (entry.record().has_gradient())
      entry.mutable_record()
          ->mutable_gradient()
          ->mutable_options()
          ->set_rate_factor(7);
    if (!entry.has_snapshot()) continue;
    for (wire::HeldGradient& held : *entry.mutable_snapshot()->mutable_held())
      held.mutable_options()->set_rate_factor(7);
  }
  return true;
}

// The last part of the snapshot says go as well.
bool GoTooEarly(Plant& plant, const PeerId&, const PeerId&, Message* message) {
  if (!HasEntries(*message)) return true;
  wire::HandOver& hand_over = *message->header.mutable_hand_over();
  const wire::HandOverRecord& last =
      hand_over.record(hand_over.record_size() - 1);
  const int tensors = TensorsOf(plant, hand_over.shard());
  if (!last.has_part() || last.part().tensor() != tensors - 1 ||
      last.part().offset() + message->payloads.back().size() !=
          plant.view->shard(ShardId{hand_over.shard()}).region.DenseBytes()) {
    return true;
  }
  hand_over.add_record()->mutable_go()->set_move(hand_over.feed().move());
  return true;
}

// The payload frames of one that moves no installation.
std::ptrdiff_t PayloadsOf(const wire::HandOverRecord& entry) {
  return entry.has_part() || entry.record().has_gradient() ? 1 : 0;
}

// A gradient that the source accepted meanwhile becomes one that was discarded.
bool DropPushRecord(Plant&, const PeerId&, const PeerId&, Message* message) {
  if (!HasEntries(*message)) return true;
  std::ptrdiff_t payload = 0;
  for (wire::HandOverRecord& entry :
       *message->header.mutable_hand_over()->mutable_record()) {
    if (entry.record().has_gradient()) {
      message->payloads.erase(message->payloads.begin() + payload);
      const wire::ShardRecord::Gradient dropped = entry.record().gradient();
      wire::ShardRecord::Advance& advance =
          *entry.mutable_record()->mutable_advance();
      *advance.mutable_who() = dropped.who();
      advance.set_clock(dropped.clock() + 1);
    } else {
      payload += PayloadsOf(entry);
    }
  }
  return true;
}

wire::ShardSnapshot* SnapshotIn(Message* message) {
  if (!HasEntries(*message)) return nullptr;
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

// Their parts become records of nothing.
bool ForgetHeld(Plant& plant, const PeerId&, const PeerId&, Message* message) {
  if (!HasEntries(*message)) return true;
  if (wire::ShardSnapshot* const snapshot = SnapshotIn(message))
    snapshot->clear_held();
  const int tensors = TensorsOf(plant, message->header.hand_over().shard());
  std::ptrdiff_t payload = 0;
  for (wire::HandOverRecord& entry :
       *message->header.mutable_hand_over()->mutable_record()) {
    if (entry.has_part() && entry.part().tensor() >= tensors) {
      message->payloads.erase(message->payloads.begin() + payload);
      entry.mutable_record()->mutable_leave();
    } else {
      payload += PayloadsOf(entry);
    }
  }
  return true;
}

// The shard's running size of gradients is another one at its target.
bool ForgetRunningSize(Plant&, const PeerId&, const PeerId&, Message* message) {
  if (!HasEntries(*message)) return true;
  if (wire::ShardSnapshot* const snapshot = SnapshotIn(message))
    snapshot->set_running_rms(snapshot->running_rms() + 7);
  return true;
}

void WithBound(Scenario* scenario) {
  scenario->gradient_code = {};
  scenario->gradient_bound.emplace();
  scenario->gradient_bound->set_rms(1000);
  scenario->gradient_bound->set_policy(config::GradientBound::SKIP);
}

// All workers are said to be one clock further than they are.
bool ForgetClocks(Plant&, const PeerId&, const PeerId&, Message* message) {
  if (!HasEntries(*message)) return true;
  if (wire::ShardSnapshot* const snapshot = SnapshotIn(message)) {
    snapshot->set_min_clock(snapshot->min_clock() + 1);
    snapshot->set_complete_clock(snapshot->complete_clock() + 1);
    for (wire::ShardParticipant& who : *snapshot->mutable_participant())
      who.set_clock(who.clock() + 1);
  }
  for (wire::HandOverRecord& entry :
       *message->header.mutable_hand_over()->mutable_record()) {
    if (entry.record().has_gradient()) {
      wire::ShardRecord::Gradient& push =
          *entry.mutable_record()->mutable_gradient();
      push.set_clock(push.clock() + 1);
    } else if (entry.record().has_advance()) {
      wire::ShardRecord::Advance& advance =
          *entry.mutable_record()->mutable_advance();
      advance.set_clock(advance.clock() + 1);
    }
  }
  return true;
}

bool ChangeMomentum(Plant& plant, const PeerId&, const PeerId&,
                    Message* message) {
  if (!HasEntries(*message)) return true;
  const int32_t shard = message->header.hand_over().shard();
  if (TensorsOf(plant, shard) == 1) return true;
  const wire::HandOverRecord& record = message->header.hand_over().record(0);
  if (record.has_part() && record.part().tensor() == 1)
    message->payloads.front() = Changed(message->payloads.front());
  return true;
}

// Somebody tells the owner that the follower has what is on its way to it.
void ConfirmAtOnce(Plant& plant, const PeerId& from, const PeerId& to,
                   const Message& message) {
  const wire::HandOver& hand_over = message.header.hand_over();
  Message forged;
  forged.header.set_run(message.header.run());
  forged.header.set_view_number(message.header.view_number());
  wire::HandOverReply& reply = *forged.header.mutable_hand_over_reply();
  reply.set_shard(hand_over.shard());
  *reply.mutable_feed() = hand_over.feed();
  reply.set_have(hand_over.position() +
                 static_cast<uint64_t>(hand_over.record_size()) - 1);
  plant.network().Send(to, from, forged);
}

bool ToFollower(const Message& message) {
  return HasEntries(message) &&
         message.header.hand_over().feed().has_follower();
}

// A part of the log is confirmed and gets lost.
bool ConfirmUnseen(Plant& plant, const PeerId& from, const PeerId& to,
                   Message* message) {
  if (!ToFollower(*message) || message->header.hand_over().position() < 10 ||
      plant.rng.Chance(0.8)) {
    return true;
  }
  ConfirmAtOnce(plant, from, to, *message);
  return false;
}

// Who was given up hears that followers go on to confirm, and a worker does not
// hear that it was.
bool ConfirmToTheDeposed(Plant& plant, const PeerId& from, const PeerId& to,
                         Message* message) {
  const wire::View& view = plant.world->context().checker.latest_view();
  const auto listed = [&](int32_t index) {
    return std::any_of(
        view.server().begin(), view.server().end(),
        [&](const auto& server) { return server.index() == index; });
  };
  if (plant.view == nullptr) return true;
  if (message->header.has_view() || message->header.has_view_change())
    return listed(1) || to.kind != PeerId::Kind::kWorker || to.index > 0;
  if (!ToFollower(*message) || listed(from.index)) return true;
  ConfirmAtOnce(plant, from, to, *message);
  return true;
}

// As DropPushRecord(), of what followers are sent.
bool DropCopiedPush(Plant& plant, const PeerId& from, const PeerId& to,
                    Message* message) {
  return !ToFollower(*message) || DropPushRecord(plant, from, to, message);
}

// What followers are sent goes again without having been lost.
bool SendFeedsTwice(Plant& plant, const PeerId& from, const PeerId& to,
                    Message* message) {
  if (ToFollower(*message) && plant.rng.Chance(0.2))
    plant.network().Send(from, to, *message);
  return true;
}

// All followers are said to have everything, and perhaps have nothing.
bool InSyncAtOnce(Plant&, const PeerId&, const PeerId&, Message* message) {
  if (!message->header.heartbeat().has_server()) return true;
  for (run::FollowerState& state : *message->header.mutable_heartbeat()
                                        ->mutable_server()
                                        ->mutable_follower()) {
    state.set_in_sync(true);
  }
  return true;
}

bool NeverInSync(Plant&, const PeerId&, const PeerId&, Message* message) {
  if (message->header.heartbeat().has_server())
    message->header.mutable_heartbeat()->mutable_server()->clear_follower();
  return true;
}

// Members say that they have been connected with all.
bool ConnectedWithAll(Plant&, const PeerId&, const PeerId&, Message* message) {
  if (message->header.heartbeat().has_links_tried()) {
    message->header.mutable_heartbeat()
        ->mutable_links_tried()
        ->clear_unreached();
  }
  return true;
}

// A source never hears that the target owns the shard.
bool NoConfirmations(Plant&, const PeerId&, const PeerId&, Message* message) {
  return !message->header.hand_over_reply().owned();
}

bool NoLeaving(Plant&, const PeerId& from, const PeerId&, Message* message) {
  return !(from.kind == PeerId::Kind::kServer &&
           message->header.call().has_leave());
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
  if (!ToShard(to) || !message->header.has_pull_request()) return true;
  for (wire::Pull& pull :
       *message->header.mutable_pull_request()->mutable_pull()) {
    if (pull.has_state()) pull.mutable_state()->Clear();
  }
  return true;
}

// A shard thread takes its own view for new enough. Views come late.
bool ForgetPhases(Plant& plant, const PeerId&, const PeerId& to,
                  Message* message) {
  const std::optional<wire::View> view =
      plant.world->context().checker.ViewIn(message->header);
  if (view.has_value() && to.kind == PeerId::Kind::kServer &&
      view->phase_size() > 1 && !view->has_end() && plant.rng.Chance(0.8)) {
    return false;
  }
  if (!ToShard(to)) return true;
  if (message->header.has_pull_request())
    message->header.mutable_pull_request()->set_phases(0);
  if (message->header.has_push_request())
    message->header.mutable_push_request()->set_phases(0);
  return true;
}

// The same for cuts.
bool ForgetCuts(Plant& plant, const PeerId&, const PeerId& to,
                Message* message) {
  const std::optional<wire::View> view =
      plant.world->context().checker.ViewIn(message->header);
  if (view.has_value() && to.kind == PeerId::Kind::kServer &&
      view->cut().number() > 0 && !view->has_end() && plant.rng.Chance(0.8)) {
    return false;
  }
  if (!ToShard(to)) return true;
  if (message->header.has_pull_request())
    message->header.mutable_pull_request()->set_cuts(0);
  if (message->header.has_push_request())
    message->header.mutable_push_request()->set_cuts(0);
  return true;
}

bool NoParts(Plant&, const PeerId&, const PeerId&, Message* message) {
  return !message->header.call().has_cut_part();
}

// What is given back changes on its way, and the hash as well.
bool ChangeInstallation(Plant&, const PeerId&, const PeerId& to,
                        Message* message) {
  if (!IsPush(to, *message)) return true;
  ForEachPush(message, [](wire::Push& push, absl::Span<Payload> frames) {
    if (!push.has_installation()) return;
    frames.front() = Changed(frames.front());
    push.mutable_installation()->set_hash(StateHash(
        push.installation().version(), frames.front(), frames.subspan(1)));
  });
  return true;
}

// The coordinator gives a worker what another one has.
bool GiveTwice(Plant& plant, const PeerId&, const PeerId& to,
               Message* message) {
  if (!message->header.call_reply().granted().has_examples()) return true;
  wire::Examples& examples = *message->header.mutable_call_reply()
                                  ->mutable_granted()
                                  ->mutable_examples();
  if (!plant.given.has_value()) {
    plant.given = {to, examples};
  } else if (to != plant.given->first && !std::exchange(plant.done, true)) {
    examples = plant.given->second;
  }
  return true;
}

// It gives fewer than it thinks.
bool GiveLess(Plant&, const PeerId&, const PeerId&, Message* message) {
  if (!message->header.call_reply().granted().has_examples()) return true;
  wire::Examples& examples = *message->header.mutable_call_reply()
                                  ->mutable_granted()
                                  ->mutable_examples();
  if (examples.end() - examples.begin() > 1)
    examples.set_end(examples.end() - 1);
  return true;
}

// Nobody hears that the examples are used up.
bool NobodyIsDone(Plant&, const PeerId&, const PeerId&, Message* message) {
  if (message->header.call().has_next_examples())
    message->header.mutable_call()->mutable_next_examples()->set_done(0);
  return true;
}

void PrintTo(const Case& planted, std::ostream* out) { *out << planted.name; }

class PlantedFault : public ::testing::TestWithParam<Case> {};

TEST_P(PlantedFault, IsTheFirstThingReported) {
  constexpr uint64_t kSeeds = 1000;
  int caught = 0;
  int expected_seen = 0;
  for (uint64_t seed = 1; seed <= kSeeds && caught < 5; ++seed) {
    const RunReport report = RunPlanted(GetParam(), seed);
    if (!report.violation.has_value()) continue;
    const Invariant seen = report.violation->invariant;
    EXPECT_STREQ(
        InvariantName(seen),
        InvariantName(seen == GetParam().also ? seen : GetParam().expected))
        << "seed " << seed << ": " << report.violation->what;
    expected_seen += seen == GetParam().expected;
    ++caught;
  }
  EXPECT_EQ(caught, 5) << "of " << kSeeds << " runs";
  EXPECT_GE(expected_seen, 1);
}

INSTANTIATE_TEST_SUITE_P(
    All, PlantedFault,
    ::testing::Values(
        Case{"RepeatedPush",
             Invariant::kExactlyOnce,
             {"asp", "ssp"},
             RepeatAsNextPush},
        // Where a shard is split in two while it still holds the gradient, that
        // is seen before the update.
        Case{.name = "SwappedClocks",
             .expected = Invariant::kOrder,
             .modes = {"bsp", "ssp", "asp"},
             .tamper = SwapClocks,
             .also = Invariant::kSyncSum},
        Case{"GradientsSkipped",
             Invariant::kLostPush,
             {"bsp", "ssp", "asp"},
             SkipGradients},
        Case{.name = "SkippedTablesPushed",
             .expected = Invariant::kExactlyOnce,
             .modes = {"bsp", "ssp", "asp"},
             .tamper = PushSkipped,
             .change = WithSkips},
        Case{"PullOfAnEarlierClock",
             Invariant::kStaleness,
             {"bsp", "ssp"},
             LowerPullClock},
        Case{"LargestBoundIgnored",
             Invariant::kStaleness,
             {"dssp"},
             nullptr,
             SimServer::Plant::kLooseBounds},
        Case{"LateGradientApplied",
             Invariant::kExactlyOnce,
             {"backup"},
             nullptr,
             SimServer::Plant::kTakeLate},
        Case{"TwoVersionsInOneAnswer",
             Invariant::kTornRead,
             {"bsp", "ssp", "asp"},
             MixVersions},
        Case{"AnswerOfAnEarlierVersion",
             Invariant::kVersionOrder,
             {"bsp", "ssp", "asp"},
             AnswerOldVersion},
        Case{.name = "RoundingOfAnEarlierVersion",
             .expected = Invariant::kValue,
             .modes = {"bsp", "ssp", "asp"},
             .tamper = AnswerOldRounding,
             .change =
                 [](Scenario* scenario) {
                   scenario->pulled_as.assign(scenario->table_elements.size(),
                                              wire::Encoding::BFLOAT16);
                 }},
        Case{"ChangedGradientInBsp",
             Invariant::kSyncSum,
             {"bsp"},
             ChangeGradient},
        Case{
            "ChangedGradientInAsp", Invariant::kValue, {"asp"}, ChangeGradient},
        Case{"AnotherRateInBsp", Invariant::kSyncSum, {"bsp"}, FasterPush},
        Case{"AnotherRateInAsp", Invariant::kValue, {"asp"}, FasterPush},
        Case{"AnotherMomentumInBsp",
             Invariant::kSyncSum,
             {"bsp"},
             OtherMomentum},
        Case{"AnotherMomentumInAsp", Invariant::kValue, {"asp"}, OtherMomentum},
        Case{.name = "RatesChangeOnTheWay",
             .expected = Invariant::kSyncSum,
             .modes = {"bsp", "asp"},
             .tamper = ForgetFactors,
             // Of what the source did not hold.
             .also = Invariant::kValue},
        // The row was zeros in the first version.
        Case{.name = "SplitLosesARow",
             .expected = Invariant::kTornRead,
             .modes = {"bsp", "ssp", "asp"},
             .tamper = nullptr,
             .also = Invariant::kValue,
             .change =
                 [](Scenario* scenario) {
                   LoseRows(scenario, PlantedRowLoss::kInSplits);
                 }},
        Case{.name = "SnapshotLosesARow",
             .expected = Invariant::kTornRead,
             .modes = {"bsp", "ssp", "asp"},
             .tamper = nullptr,
             .also = Invariant::kValue,
             .change =
                 [](Scenario* scenario) {
                   LoseRows(scenario, PlantedRowLoss::kInSnapshots);
                 }},
        Case{.name = "CopyLosesARow",
             .expected = Invariant::kCopies,
             .modes = {"bsp", "ssp", "asp"},
             .tamper = nullptr,
             .change =
                 [](Scenario* scenario) {
                   GiveFollowersAndCrash(scenario);
                   scenario->placement.user.clear();
                   scenario->placement.rebalance.set_mode(
                       config::Rebalance::MANUAL);
                   LoseRows(scenario, PlantedRowLoss::kInSnapshots);
                 }},
        Case{"AcknowledgedAndThrownAway",
             Invariant::kLostPush,
             {"bsp", "ssp", "asp"},
             AcknowledgeRetries},
        Case{"ChangedView", Invariant::kView, {"bsp"}, ChangeView},
        Case{"LossesHiddenFromShards",
             Invariant::kBoundedState,
             {"bsp", "ssp", "asp"},
             nullptr,
             SimServer::Plant::kHideLosses},
        Case{
            .name = "NoAnswers",
            .expected = Invariant::kLiveness,
            .modes = {"bsp", "asp"},
            .tamper = NoAnswersForRank0,
            // Who has no answers is not removed in time.
            .change = [](Scenario* scenario) { scenario->stall_leases = 1e6; }},
        Case{"NoReasonToGiveUp",
             Invariant::kGaveUp,
             {"bsp", "asp"},
             SilenceForRank0},
        Case{.name = "RemovedForAStepOfUsualLength",
             .expected = Invariant::kGaveUp,
             .modes = {"bsp", "ssp"},
             .tamper = nullptr,
             // Where nobody is left, servers are blamed.
             .also = Invariant::kOutcome,
             .change =
                 [](Scenario* scenario) { scenario->stall_leases = 0.001; }},
        OfDelays("TurnsInAnotherOrder", Invariant::kOrder, Invariant::kLostPush,
                 SwapTurns),
        OfDelays("AnotherVersionThanGiven", Invariant::kVersionOrder,
                 Invariant::kStaleness, SwapVersions),
        OfChanges("CallsWithoutAnswers", Invariant::kLiveness, NoCallReplies),
        Case{"ComputedFromAnotherVersion",
             Invariant::kVersionOrder,
             {"bsp", "ssp", "asp"},
             OlderBase},
        Case{"StalenessMiscounted",
             Invariant::kStaleness,
             {"bsp", "ssp", "asp"},
             nullptr,
             SimServer::Plant::kMiscount},
        OfSizes("MembersNeverForgotten",
                [](CoordinatorCore::Sizes* sizes) { sizes->members += 20; }),
        OfSizes("KeysNeverForgotten",
                [](CoordinatorCore::Sizes* sizes) { sizes->store_keys += 11; }),
        OfSizes("CallsNeverForgotten",
                [](CoordinatorCore::Sizes* sizes) {
                  sizes->parked_calls += 31;
                }),
        Case{"LeaseLostThoughHeard",
             Invariant::kOutcome,
             {"bsp", "asp"},
             GarbleHeartbeats},
        Case{"TargetServesBeforeTheGo",
             Invariant::kOwnership,
             {"bsp", "ssp", "asp"},
             GoTooEarly},
        Case{"SourceServesAfterTheGo",
             Invariant::kOwnership,
             {"bsp", "ssp", "asp"},
             nullptr,
             SimServer::Plant::kServeOn},
        Case{.name = "RecordDroppedAndConfirmed",
             .expected = Invariant::kLostPush,
             .modes = {"bsp", "ssp", "asp"},
             .tamper = DropPushRecord,
             .also = Invariant::kVersionOrder},
        // It waits for its turn; the turn then passes without it.
        Case{.name = "WaitingGradientLostOnTheWay",
             .expected = Invariant::kLostPush,
             .modes = {"asp"},
             .tamper = DropPushRecord,
             .also = Invariant::kVersionOrder,
             .change = GiveGivenDelays},
        Case{"SequenceNumbersNotHandedOver",
             Invariant::kExactlyOnce,
             {"bsp", "ssp", "asp"},
             ForgetSequence},
        Case{"HeldGradientsNotHandedOver",
             Invariant::kLostPush,
             {"bsp"},
             ForgetHeld},
        Case{.name = "RunningSizeChangesOnTheWay",
             .expected = Invariant::kValue,
             .modes = {"bsp", "asp"},
             .tamper = ForgetRunningSize,
             .change = WithBound},
        Case{.name = "GradientAboveTheBoundApplied",
             .expected = Invariant::kExactlyOnce,
             .modes = {"bsp", "asp"},
             .tamper = nullptr,
             .change =
                 [](Scenario* scenario) {
                   WithBound(scenario);
                   scenario->planted_loose_bound = true;
                 }},
        Case{"ClocksChangeOnTheWay",
             Invariant::kStaleness,
             {"ssp", "asp"},
             ForgetClocks,
             SimServer::Plant::kNone,
             /*changes=*/false,
             SimWorker::Plant::kNone,
             // On its way a gradient has the rate of a later clock.
             Invariant::kValue},
        Case{.name = "MomentumChangesOnTheWay",
             .expected = Invariant::kValue,
             .modes = {"bsp", "ssp", "asp"},
             .tamper = ChangeMomentum,
             // Of bsp, if the new owner's next answer is of a whole clock.
             .also = Invariant::kSyncSum},
        Case{"SplitForgetsSequenceNumbers",
             Invariant::kExactlyOnce,
             {"bsp", "ssp", "asp"},
             nullptr,
             SimServer::Plant::kForgetSequence},
        Case{"MoveWithoutEnd",
             Invariant::kLiveness,
             {"bsp", "ssp", "asp"},
             NoConfirmations},
        Case{"DrainedServerStays",
             Invariant::kLiveness,
             {"bsp", "ssp", "asp"},
             NoLeaving},
        Case{.name = "ComputedBeforeTheParametersCame",
             .expected = Invariant::kVersionOrder,
             .modes = {"bsp", "ssp", "asp"},
             .tamper = nullptr,
             .worker_plant = SimWorker::Plant::kComputeAtOnce,
             .change =
                 [](Scenario* scenario) { scenario->step_by_table = true; }},
        OfSampling("ExamplesGivenTwice", Invariant::kExamples, GiveTwice),
        OfSampling("ExamplesNotGiven", Invariant::kExamples, GiveLess),
        OfSampling("ExamplesNeverDone", Invariant::kLiveness, NobodyIsDone),
        OfCheckpoints("LateGradientsLeftOutOfACut", {"ssp", "asp"},
                      SimServer::Plant::kCutTooEarly),
        OfCheckpoints("LaterGradientsInACut", {"ssp", "asp"},
                      SimServer::Plant::kCutTooLate),
        OfCheckpoints("ChangedWhileItIsWritten", {"bsp", "asp"},
                      SimServer::Plant::kWriteLater),
        OfCheckpoints("ShardsIgnoreTheCutsOfOthers", {"ssp", "asp"},
                      SimServer::Plant::kNone, ForgetCuts),
        OfCheckpoints("PartOfAnotherCutCounted", {"bsp", "asp"},
                      SimServer::Plant::kOldPart),
        OfGivenCheckpoints("WaitingGradientsLeftOutOfAPart", GiveGivenDelays,
                           SimServer::Plant::kNothingWaits),
        OfGivenCheckpoints("CutWithGradientsThatComeFromOthers", CutAnywhere),
        Case{.name = "PartsNeverArrive",
             .expected = Invariant::kCheckpoint,
             .modes = {"bsp", "asp"},
             .tamper = NoParts,
             .change =
                 [](Scenario* scenario) {
                   scenario->RemoveFaults();
                   scenario->steps = 1000;
                   scenario->stall_leases = 2;
                   scenario->save_leases = 1;
                 },
             .checkpoints = true},
        Case{.name = "AnotherClockInTheManifest",
             .expected = Invariant::kCheckpoint,
             .modes = {"bsp", "asp"},
             .tamper = nullptr,
             .checkpoints = true,
             .tamper_manifest =
                 [](checkpoint::Manifest* manifest) {
                   manifest->set_clock(manifest->clock() + 1);
                 }},
        Case{.name = "KeptTooLate",
             .expected = Invariant::kCheckpoint,
             .modes = {"allreduce"},
             .tamper = nullptr,
             .changes = true,
             .worker_plant = SimWorker::Plant::kKeepLater,
             .change =
                 [](Scenario* scenario) {
                   scenario->checkpoints.slow = 1;
                   scenario->checkpoints.slow_max = scenario->lease;
                 },
             .checkpoints = true},
        Case{.name = "ProgramKeptAStepLater",
             .expected = Invariant::kCheckpoint,
             .modes = {"bsp", "ssp", "asp"},
             .tamper = nullptr,
             .worker_plant = SimWorker::Plant::kKeepProgramLater,
             .change =
                 [](Scenario* scenario) {
                   for (int32_t rank = 0; rank < scenario->workers; ++rank)
                     scenario->checkpoints.programs.insert(rank);
                   scenario->checkpoints.slow = 1;
                   scenario->checkpoints.slow_max = scenario->lease;
                 },
             .checkpoints = true},
        Case{.name = "SuspendedBeforeTheCheckpointWasThere",
             .expected = Invariant::kOutcome,
             .modes = {"bsp", "ssp", "asp"},
             .tamper = nullptr,
             .change =
                 [](Scenario* scenario) {
                   scenario->RemoveFaults();
                   scenario->checkpoints.config.Clear();
                   scenario->placement.user.push_back(
                       {UserAction::Kind::kSuspend, scenario->heal_at / 4});
                 },
             .checkpoints = true,
             .completes_without_files = true},
        Case{.name = "BegunAtAnotherClock",
             .expected = Invariant::kCheckpoint,
             .modes = {"bsp", "ssp", "asp"},
             .tamper = nullptr,
             .plant = SimServer::Plant::kBeginLate,
             .checkpoints = true,
             .resumes = true},
        OfCopies("AnsweredBeforeFollowersHaveIt", ConfirmUnseen, GiveFollowers),
        OfCopies("RecordNotCopied", DropCopiedPush, GiveFollowers),
        OfCopies("WaitingGradientNotCopied", DropCopiedPush,
                 GiveFollowersAndDelays),
        OfCopies("SequenceNumbersNotCopied", nullptr, GiveFollowers,
                 SimServer::Plant::kForgetInCopies),
        OfCopies("InSyncThoughItIsNot", InSyncAtOnce, GiveFollowersAndCrash),
        OfCopies("DeposedOwnerAnswers", ConfirmToTheDeposed,
                 GiveFollowersAndDepose),
        Case{.name = "EntriesSentAgain",
             .expected = Invariant::kSentAgain,
             .modes = {"bsp", "ssp", "asp"},
             .tamper = SendFeedsTwice,
             .change = GiveFollowers},
        Case{.name = "MoreUnderWayThanTheBudget",
             .expected = Invariant::kUnread,
             .modes = {"bsp", "ssp", "asp"},
             .tamper = nullptr,
             .change = GiveFollowersWithoutBudget},
        Case{.name = "FollowersNeverInSync",
             .expected = Invariant::kLiveness,
             .modes = {"bsp", "ssp", "asp"},
             .tamper = NeverInSync,
             .change = GiveFollowersAndCrash},
        Case{
            .name = "BeginsWithoutConnections",
            .expected = Invariant::kOutcome,
            .modes = {"bsp", "ssp", "asp"},
            .tamper = ConnectedWithAll,
            .change = [](Scenario* scenario) { scenario->tries_links = true; }},
        OfTakeOvers("LooksAtOneAddressOnly", Invariant::kOutcome,
                    [](Scenario* scenario) {
                      GiveFollowersAndTakeOver(scenario);
                      scenario->planted_one_address = true;
                    }),
        OfTakeOvers("TheCommandOfServer0BeginsAnew", Invariant::kGaveUp,
                    [](Scenario* scenario) {
                      GiveFollowersAndMove(scenario);
                      scenario->address_moves = scenario->host_vanishes = false;
                      scenario->planted_new_run = true;
                    }),
        OfTakeOvers("NoTimeToFindAnotherAddress", Invariant::kOutcome,
                    [](Scenario* scenario) {
                      GiveFollowersAndMove(scenario);
                      scenario->planted_no_patience = true;
                    }),
        OfTakeOvers("TimeGoesOnByAnotherClock", Invariant::kCoordinator,
                    [](Scenario* scenario) {
                      GiveFollowersAndTakeOver(scenario);
                      scenario->planted_one_clock = true;
                      scenario->reality.clocks = true;
                    }),
        Case{.name = "SumOfAServerLacksAWorker",
             .expected = Invariant::kReplica,
             .modes = {"allreduce"},
             .tamper = nullptr,
             .changes = true,
             .change =
                 [](Scenario* scenario) {
                   scenario->modes.lanes = true;
                   scenario->planted_partial_sum = true;
                 }},
        Case{.name = "DeadServerCountsAsTheGroups",
             .expected = Invariant::kGaveUp,
             .modes = {"allreduce"},
             .tamper = nullptr,
             .changes = true,
             .change =
                 [](Scenario* scenario) {
                   scenario->modes.lanes = true;
                   GiveFollowersAndCrash(scenario);
                   scenario->faults.back().duration = scenario->lease * 3;
                   scenario->planted_no_wait_for_sums = true;
                 }},
        OfChanges("StepBeyondTheFence", Invariant::kMode, nullptr,
                  SimWorker::Plant::kIgnoreFence),
        OfChanges("SmallestLimitInsteadOfTheLargest", Invariant::kMode,
                  LowerLimits),
        OfChanges("PromisesNeverArrive", Invariant::kLiveness, NoLimits),
        OfChanges("ArrivalsNeverArrive", Invariant::kLiveness, NobodyArrives),
        OfEarlyState("StateTakenTooEarly", TakeStateEarly),
        OfChanges("ShardsIgnoreThePhasesOfOthers", Invariant::kStaleness,
                  ForgetPhases, SimWorker::Plant::kNone, Invariant::kSyncSum),
        OfChanges("ChangedOnTheWayBack", Invariant::kValue, ChangeInstallation),
        OfInstallations("InstalledTwice"),
        OfChanges("FailedStepKept", Invariant::kReplica, nullptr,
                  SimWorker::Plant::kKeepFailedStep),
        OfChanges("BegunWithItsOwnValues", Invariant::kReplica, nullptr,
                  SimWorker::Plant::kBeginAlone),
        OfChanges("NoHelpTaken", Invariant::kReplica, nullptr,
                  SimWorker::Plant::kTakeNoHelp),
        OfChanges("StepsAlone", Invariant::kReplica, nullptr,
                  SimWorker::Plant::kStepAlone)),
    [](const auto& param) { return param.param.name; });

// Views that no coordinator may make; what the checker says of the second one.
std::optional<Violation> JudgeLossOf(bool in_sync, bool fails) {
  Scenario scenario = Scenario::Random(1);
  scenario.replicas = 1;
  Checker checker(scenario);
  wire::View view;
  view.set_number(1);
  view.set_state(wire::RUNNING);
  for (const int32_t index : {0, 1}) {
    wire::ServerMember& server = *view.add_server();
    server.set_index(index);
    server.set_incarnation(static_cast<uint64_t>(10 + index));
  }
  view.add_phase();
  view.add_owner_server(1);
  view.add_owner_thread(0);
  wire::Follower& follower = *view.add_follower();
  follower.set_since(1);
  follower.set_in_sync(in_sync);
  checker.OnPublished(view);
  view.set_number(2);
  view.mutable_server()->RemoveLast();
  if (fails) {
    view.set_state(wire::FAILED);
    view.mutable_end()->set_cause(wire::JobEnd::SERVER_LOST);
    view.mutable_end()->add_server(1);
  } else {
    view.set_owner_server(0, 0);
    view.clear_follower();
  }
  checker.OnPublished(view);
  return checker.violation();
}

TEST(PlantedViews, AJobThatFailsThoughAFollowerHasAll) {
  EXPECT_FALSE(JudgeLossOf(/*in_sync=*/false, /*fails=*/true).has_value());
  EXPECT_FALSE(JudgeLossOf(/*in_sync=*/true, /*fails=*/false).has_value());
  const std::optional<Violation> failed = JudgeLossOf(true, true);
  ASSERT_TRUE(failed.has_value());
  EXPECT_STREQ(InvariantName(failed->invariant),
               InvariantName(Invariant::kOutcome));
}

TEST(PlantedViews, AShardThatIsLostThoughNobodyDied) {
  const Scenario scenario = Scenario::Random(1);
  Checker checker(scenario);
  wire::View view;
  view.set_number(1);
  view.set_state(wire::RUNNING);
  view.add_server()->set_index(0);
  view.add_phase();
  view.add_owner_server(0);
  view.add_owner_thread(0);
  checker.OnPublished(view);
  view.set_number(2);
  view.set_state(wire::FAILED);
  view.mutable_end()->set_cause(wire::JobEnd::SHARD_LOST);
  view.mutable_end()->add_shard(0);
  checker.OnPublished(view);
  ASSERT_TRUE(checker.violation().has_value());
  EXPECT_STREQ(InvariantName(checker.violation()->invariant),
               InvariantName(Invariant::kOutcome));
}

TEST(PlantedViews, AnHeirThatNeedNotHaveAll) {
  const std::optional<Violation> given = JudgeLossOf(false, false);
  ASSERT_TRUE(given.has_value());
  EXPECT_STREQ(InvariantName(given->invariant),
               InvariantName(Invariant::kCopies));
}

}  // namespace
}  // namespace slackline::sim
