#include "tests/sim/checker.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/metrics/staleness.h"
#include "common/status.h"
#include "common/sync/phases.h"
#include "common/view/initializer.h"
#include "tests/sim/checker_bits.h"
#include "tests/sim/sim_checkpoint.h"

namespace slackline::sim {
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
    case Invariant::kExamples:
      return "every example once";
    case Invariant::kSyncSum:
      return "sync sum";
    case Invariant::kValue:
      return "value";
    case Invariant::kMode:
      return "mode";
    case Invariant::kReplica:
      return "replica";
    case Invariant::kOwnership:
      return "ownership";
    case Invariant::kCopies:
      return "copies";
    case Invariant::kSentAgain:
      return "sent again";
    case Invariant::kUnread:
      return "unread bytes";
    case Invariant::kView:
      return "view";
    case Invariant::kBoundedState:
      return "bounded state";
    case Invariant::kLiveness:
      return "liveness";
    case Invariant::kGaveUp:
      return "gave up";
    case Invariant::kGathers:
      return "gathers";
    case Invariant::kCheckpoint:
      return "checkpoint";
    case Invariant::kCoordinator:
      return "coordinator";
    case Invariant::kOutcome:
      return "outcome";
  }
  return "?";
}

Checker::Checker(const Scenario& scenario) : scenario_(scenario) {
  for (size_t t = 0; t < scenario.table_elements.size(); ++t) {
    absl::StatusOr<Optimizer> optimizer = Optimizer::Create(
        scenario.OptimizerOf(TableId{static_cast<int32_t>(t)}));
    SL_CHECK(optimizer.ok(), optimizer.status().ToString());
    optimizers_.push_back(*std::move(optimizer));
  }
}

void Checker::Report(Invariant invariant, const std::string& what) {
  if (!violation_.has_value() && !judges_no_more_)
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
  const wire::View before = std::exchange(latest_view_, view);
  for (const wire::ServerMember& server : view.server())
    server_indices_.insert(server.index());
  live_.clear();
  for (const wire::WorkerMember& worker : view.worker()) {
    live_.insert({Rank{worker.rank()}, worker.incarnation()});
    joined_in_.try_emplace({Rank{worker.rank()}, worker.incarnation()},
                           view.number());
  }
  CheckCut(before, view);
  CheckMoves(before, view);
  CheckFollowers(before, view);
  CheckPhases(before, view);
  if (before.state() != wire::RUNNING && view.state() == wire::RUNNING)
    CheckBegin(view);
  if (view.state() == wire::FAILED && before.state() == wire::RUNNING)
    CheckFailure(before, view);
}

void Checker::OnJoined(bool server, int32_t index) {
  ++joined_count_;
  if (server) server_indices_.insert(index);
}

void Checker::CheckPhases(const wire::View& before, const wire::View& view) {
  if (view.state() != wire::RUNNING || before.state() != wire::RUNNING) return;
  stats_.changes_opened += view.has_change() && !before.has_change();
  const bool ends_early = before.change().has_ending() && !view.has_change() &&
                          view.end_clock() > 0 && before.end_clock() == 0;
  stats_.ended_early += ends_early;
  stats_.changes_dropped += before.has_change() && !view.has_change() &&
                            view.phase_size() == before.phase_size() &&
                            view.cut().number() == before.cut().number() &&
                            !ends_early;
  if (before.end_clock() > 0 && view.end_clock() != before.end_clock()) {
    Report(Invariant::kMode,
           absl::StrCat("view ", view.number(), " ends the job at ",
                        view.end_clock(), ", not at ", before.end_clock()));
  }
  // An elastic job may end by itself meanwhile: all wait at its last clock.
  const Clock beyond = view.end_clock() + view.elastic();
  for (const auto& [life, clock] : reached_) {
    if (!ends_early || !Live(life) || clock < beyond) continue;
    Report(Invariant::kMode,
           absl::StrCat("view ", view.number(), " ends the job at clock ",
                        view.end_clock(), "; ", Name(life.first, life.second),
                        " has reached clock ", clock, " already"));
  }
  stats_.phases_entered += view.entered() - before.entered();
  for (int i = 0; i < before.phase_size(); ++i) {
    if (i < view.phase_size() && before.phase(i).SerializeAsString() ==
                                     view.phase(i).SerializeAsString()) {
      continue;
    }
    Report(Invariant::kMode, absl::StrCat("view ", view.number(),
                                          " takes back a phase that view ",
                                          before.number(), " has"));
  }
  for (int i = before.phase_size(); i < view.phase_size(); ++i) {
    const Clock from = view.phase(i).from();
    for (const auto& [life, clock] : reached_) {
      if (!Live(life) || clock < from) continue;
      Report(Invariant::kMode,
             absl::StrCat("view ", view.number(), " begins a phase at clock ",
                          from, "; ", Name(life.first, life.second),
                          " has reached clock ", clock, " already"));
    }
  }
}

const wire::Phase& Checker::PhaseOf(Clock clock) const {
  return PhaseAt(latest_view_, clock);
}

const wire::View& Checker::ViewFor(const Life& life, Owner owner) const {
  return Live(life) ? latest_view_ : shard_threads_.at(owner).view->proto();
}

const wire::View& Checker::ViewForHeld(const Twin& twin, Owner owner) const {
  const auto live =
      std::find_if(twin.held.begin(), twin.held.end(),
                   [&](const Contribution& held) { return Live(held.life); });
  return ViewFor((live == twin.held.end() ? twin.held.begin() : live)->life,
                 owner);
}

Clock Checker::NeededClock(const wire::View& view, Clock clock,
                           bool largest_bound) {
  const wire::Phase& phase = PhaseAt(view, clock);
  const sync::Mode& mode = phase.mode();
  Clock needed = clock;
  if (mode.has_ssp()) needed = clock - mode.ssp().staleness();
  if (mode.has_dssp()) {
    needed = clock - (largest_bound ? mode.dssp().max_staleness()
                                    : mode.dssp().min_staleness());
  }
  if (mode.has_asp() || mode.has_backup()) needed = 0;
  if (phase.from() == 0) return needed;
  // No clock of these is left half done.
  const sync::Mode& before = PhaseAt(view, phase.from() - 1).mode();
  if (before.has_bsp() || before.has_allreduce())
    needed = std::max<Clock>(needed, phase.from());
  return needed;
}

Clock Checker::NeededComplete(const wire::View& view, Clock clock) {
  const wire::Phase& phase = PhaseAt(view, clock);
  if (phase.mode().has_backup()) return clock;
  if (phase.from() == 0) return 0;
  return PhaseAt(view, phase.from() - 1).mode().has_backup() ? phase.from() : 0;
}

bool Checker::HasEnough(const Twin& twin, const wire::View& view) {
  const Clock clock = twin.held.front().clock;
  int present = 0;
  bool may_come = false;  // Somebody's gradient of this clock.
  for (const auto& [life, participant] : twin.participants) {
    present += participant.present;
    may_come = may_come || (participant.present && participant.clock <= clock);
  }
  const sync::Mode& mode = PhaseAt(view, clock).mode();
  const int spare = mode.has_backup() ? mode.backup().workers() : 0;
  return !may_come ||
         static_cast<int>(twin.held.size()) >= std::max(1, present - spare);
}

void Checker::CheckFence(const Life& life, Clock clock, int phases,
                         const std::string& what) {
  if (!Live(life) || latest_view_.state() != wire::RUNNING) return;
  if (phases >= latest_view_.phase_size() ||
      latest_view_.phase(phases).from() > clock) {
    return;
  }
  Report(Invariant::kMode,
         absl::StrCat(Name(life.first, life.second), " ", what, " of clock ",
                      clock, " and knows ", phases,
                      " phases; the next one begins at clock ",
                      latest_view_.phase(phases).from()));
}

void Checker::CheckMoves(const wire::View& before, const wire::View& view) {
  if (view.state() != wire::RUNNING) return;
  stats_.splits += view.split_size() - before.split_size();
  if (before.state() == wire::RUNNING &&
      view.split_size() > before.split_size()) {
    CheckNoCutPending("cuts a shard in two");
  }
  if (before.state() == wire::RUNNING &&
      view.server_size() < before.server_size())
    ++stats_.dropped_server;
  const auto owner_in = [](const wire::View& in, int32_t shard) {
    return Owner{in.owner_server(shard), in.owner_thread(shard)};
  };
  std::set<std::pair<int32_t, uint64_t>> listed;
  for (const wire::Move& move : view.move()) {
    listed.insert({move.shard(), move.id()});
    const auto [at, inserted] =
        moves_.try_emplace({move.shard(), move.id()},
                           Move{.source = owner_in(view, move.shard()),
                                .target = {move.server(), move.thread()}});
    if (inserted) {
      ++stats_.moves_ordered;
      CheckNoCutPending("orders a move");
    }
    if (at->second.source != owner_in(view, move.shard())) {
      Report(Invariant::kOwnership,
             absl::StrCat("view ", view.number(), " moves shard ", move.shard(),
                          " and has given it away already"));
    }
  }
  for (const wire::Move& move : before.move()) {
    if (listed.count({move.shard(), move.id()}) > 0) continue;
    const Owner target{move.server(), move.thread()};
    const Owner source = owner_in(before, move.shard());
    const bool swap = Follows(before, move.shard(), target);
    // If the source is lost, its heir is perhaps the one that it would have
    // been anyway.
    const bool lost = swap && !Stays(before, view, source.server);
    if (owner_in(view, move.shard()) != target || lost) {
      ++stats_.moves_cancelled;
      given_up_.insert(move.shard());
      if (!Stays(before, view, target.server)) {
        moves_.at({move.shard(), move.id()}).cancelled = true;
        if (swap) inherited_.insert(move.shard());
      }
      continue;
    }
    ++stats_.moves_done;
    stats_.swaps += swap;
    done_in_[view.number()] = {move.shard(), move.id()};
    const std::optional<Owner>& owner = twins_.at(move.shard()).owner;
    if (owner.has_value() && *owner != target) {
      Report(Invariant::kOwnership,
             absl::StrCat("view ", view.number(), " says that shard ",
                          move.shard(), " is on server ", target.server,
                          " thread ", target.thread, "; it is on server ",
                          owner->server, " thread ", owner->thread));
    }
  }
  // Nothing changes its owner but by a move, or because it was lost.
  for (int32_t shard = 0; shard < before.owner_server_size(); ++shard) {
    if (before.state() != wire::RUNNING ||
        owner_in(before, shard) == owner_in(view, shard)) {
      continue;
    }
    const bool moved = std::any_of(
        before.move().begin(), before.move().end(), [&](const auto& move) {
          return move.shard() == shard &&
                 owner_in(view, shard) == Owner{move.server(), move.thread()};
        });
    if (!Stays(before, view, before.owner_server(shard)) ||
        (!moved && WasGivenToTheLost(shard))) {
      CheckHeir(before, view, shard);
    } else if (!moved) {
      Report(Invariant::kOwnership,
             absl::StrCat("view ", view.number(), " gives shard ", shard,
                          " to another owner without a move"));
    }
  }
}

// Whether the job had to fail for a reason that is about servers.
void Checker::CheckFailure(const wire::View& before, const wire::View& view) {
  const wire::JobEnd& end = view.end();
  if (end.cause() == wire::JobEnd::SHARD_LOST) {
    const bool lost =
        std::any_of(moves_.begin(), moves_.end(), [&](const auto& entry) {
          return given_up_.count(entry.first.first) > 0 && entry.second.go &&
                 end.shard(0) == entry.first.first;
        });
    if (!lost || HasHeir(before, view, end.shard(0))) {
      Report(Invariant::kOutcome,
             absl::StrCat("no shard was given to a server that died, or a "
                          "follower has it: ",
                          end.reason()));
    }
    return;
  }
  if (end.cause() == wire::JobEnd::WORKER_LOST) {
    const auto needed = [&](const wire::WorkerMember& worker) {
      return worker.rank() == end.worker(0) && !worker.done() &&
             std::none_of(view.worker().begin(), view.worker().end(),
                          [&](const auto& other) {
                            return other.rank() == worker.rank();
                          });
    };
    if (!scenario_.mode.has_delays() ||
        std::none_of(before.worker().begin(), before.worker().end(), needed)) {
      Report(Invariant::kOutcome,
             absl::StrCat("no worker was lost that the job's delays count on: ",
                          end.reason()));
    }
    return;
  }
  if (end.cause() != wire::JobEnd::SERVER_LOST) return;
  for (const wire::ServerMember& server : before.server()) {
    const bool gone = std::none_of(
        view.server().begin(), view.server().end(),
        [&](const auto& other) { return other.index() == server.index(); });
    bool lost = false;  // A shard that nobody else has.
    for (int32_t shard = 0; shard < before.owner_server_size(); ++shard) {
      // Perhaps of another one that died at the same time.
      lost = lost || (!Stays(before, view, before.owner_server(shard)) &&
                      (scenario_.replicas > 0 ||
                       before.owner_server(shard) == server.index()) &&
                      !HasHeir(before, view, shard));
    }
    if (gone && lost && end.server(0) == server.index()) return;
  }
  Report(Invariant::kOutcome,
         absl::StrCat("no server has died that had a shard of which no "
                      "follower has all: ",
                      end.reason()));
}

const Checker::Move* Checker::DoneIn(uint64_t view_number) const {
  const auto done = done_in_.find(view_number);
  return done == done_in_.end() ? nullptr : &moves_.at(done->second);
}

void Checker::OnGo(int32_t shard, uint64_t move) {
  const auto found = moves_.find({shard, move});
  if (found == moves_.end()) {
    return Report(Invariant::kOwnership,
                  absl::StrCat("shard ", shard,
                               " is given away by a move that nobody ordered"));
  }
  found->second.go = true;
}

void Checker::OnServerGone(int32_t server) {
  for (auto& [id, twin] : twins_) {
    if (twin.owner.has_value() && twin.owner->server == server)
      twin.owner.reset();
  }
}

std::optional<wire::View> Checker::ViewIn(const wire::Header& header) const {
  if (header.has_view()) return header.view();
  const auto published = published_.find(header.view_change().number());
  if (!header.has_view_change() || published == published_.end())
    return std::nullopt;
  wire::View view;
  SL_CHECK(view.ParseFromString(published->second), "a view that was sent");
  return view;
}

void Checker::OnMemberView(const PeerId& member, const wire::View& view) {
  const auto published = published_.find(view.number());
  if (published == published_.end() ||
      published->second != view.SerializeAsString()) {
    return Report(Invariant::kView,
                  absl::StrCat(member.ToString(), " follows a view ",
                               view.number(), " that nobody published"));
  }
  uint64_t& last = member_view_[member];
  if (view.number() <= last) {
    return Report(Invariant::kView,
                  absl::StrCat(member.ToString(), " follows view ",
                               view.number(), " after view ", last));
  }
  last = view.number();
}

// ---- The worker's end -----------------------------------------------------

void Checker::OnSent(Rank rank, Incarnation incarnation,
                     const Message& message) {
  const Life life{rank, incarnation};
  if (message.header.has_push_request()) {
    const wire::PushRequest& request = message.header.push_request();
    for (const wire::Push& push : request.push()) {
      if (!push.has_advance())
        CheckFence(life, push.clock(), request.phases(), "pushes");
    }
  }
  if (!message.header.has_pull_request()) return;
  const wire::PullRequest& request = message.header.pull_request();
  for (const wire::Pull& pull : request.pull()) {
    PullIntent& intent = pulls_[{life, pull.id()}];
    intent.join = pull.has_join();
    intent.state = pull.has_state();
    intent.exact = pull.step().exact();
    intent.clock =
        pull.has_state() ? pull.state().clock() : pull.step().clock();
    intent.own_clock =
        pull.has_state() ? pull.state().clock() : pull.step().own_clock();
    if (intent.join) continue;
    CheckFence(life, intent.clock, request.phases(), "pulls");
    Clock& reached = reached_[life];
    reached = std::max<Clock>(reached, intent.clock);
  }
}

void Checker::OnWorkerReceived(Rank rank, Incarnation incarnation,
                               const Message& message) {
  const Life life{rank, incarnation};
  if (message.header.has_push_reply()) {
    const wire::PushReply& reply = message.header.push_reply();
    for (const wire::PushAnswer& answer : reply.answer()) {
      stats_.relocations += answer.refusal().moved().has_to();
      const auto twin = twins_.find(answer.shard());
      if (twin == twins_.end() || answer.accepted_seq() == 0) continue;
      const auto participant = twin->second.participants.find(life);
      const uint64_t taken = participant == twin->second.participants.end()
                                 ? 0
                                 : participant->second.next_seq - 1;
      if (answer.accepted_seq() > taken) {
        Report(twin->second.failovers > 0 ? Invariant::kCopies
                                          : Invariant::kLostPush,
               absl::StrCat(Name(rank, incarnation), " was told that its push ",
                            answer.accepted_seq(), " to ", twin->second.name,
                            " is accepted; the shard has ", taken));
      }
    }
  }
  if (!message.header.has_pull_reply()) return;
  size_t next_payload = 0;
  for (const wire::PullAnswer& answer : message.header.pull_reply().answer()) {
    stats_.relocations += answer.refusal().moved().has_to();
    if (answer.has_state()) {
      // States are looked at as a whole, when they are there.
      next_payload += 1 + static_cast<size_t>(answer.state().slots());
    }
    if (!answer.has_values()) continue;
    const auto intent = pulls_.find({life, answer.pull()});
    const auto found = twins_.find(answer.shard());
    if (found == twins_.end() || next_payload >= message.payloads.size()) {
      return Report(Invariant::kValue,
                    absl::StrCat("an answer to ", Name(rank, incarnation),
                                 " has a shard or payload too many"));
    }
    const Twin& twin = found->second;
    const Version version = answer.values().version();
    const Payload& payload = message.payloads[next_payload++];
    const wire::Encoding::Kind kind = answer.values().kind();
    if (intent == pulls_.end() ||
        intent->second.answered[answer.shard()].count(version) == 0) {
      return Report(
          twin.failovers > 0 ? Invariant::kCopies : Invariant::kVersionOrder,
          absl::StrCat(Name(rank, incarnation), " was given version ", version,
                       " of ", twin.name,
                       ", which the shard did not answer to its pull ",
                       answer.pull()));
    }
    if (!intent->second.join && answer.values().shard_clock() > twin.complete) {
      Report(Invariant::kStaleness,
             absl::StrCat(Name(rank, incarnation), " was told that ", twin.name,
                          " is at clock ", answer.values().shard_clock(),
                          "; it is at clock ", twin.complete));
    }
    if (intent->second.join &&
        twin.participants.at(life).joined_at != answer.values().shard_clock()) {
      Report(
          Invariant::kStaleness,
          absl::StrCat(Name(rank, incarnation), " was told to start at clock ",
                       answer.values().shard_clock(), " of ", twin.name,
                       "; it takes part from clock ",
                       twin.participants.at(life).joined_at));
    }
    ++stats_.answers;
    // An answer of before a split is of the whole shard.
    const auto whole =
        std::find_if(twin.before_split.begin(), twin.before_split.end(),
                     [&](const auto& split) {
                       return message.header.view_number() < split.first;
                     });
    const Versions& versions =
        whole == twin.before_split.end() ? twin.versions : whole->second;
    if (kind != (intent->second.exact ? wire::Encoding::FLOAT32
                                      : scenario_.PulledAs(twin.range.table))) {
      return Report(
          Invariant::kValue,
          absl::StrCat(Name(rank, incarnation), " was given ", twin.name,
                       " as ", wire::Encoding::Kind_Name(kind)));
    }
    if (kind != wire::Encoding::FLOAT32) {
      if (version < versions.size() &&
          IsRounded(kind, payload, versions[version])) {
        continue;
      }
      return Report(
          Invariant::kValue,
          absl::StrCat(Name(rank, incarnation), ": ", twin.name, " of version ",
                       version, " was rounded to something else"));
    }
    const std::vector<float> actual = FloatsOf(payload);
    if (version >= versions.size() || !SameBits(actual, versions[version])) {
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
    // Given delays may name an older one than before.
    if (result.shards[shard].version < last && !scenario_.mode.has_delays()) {
      Report(Invariant::kVersionOrder,
             absl::StrCat(Name(rank, incarnation), " pulled version ",
                          result.shards[shard].version, " of shard ", id,
                          " after version ", last));
    }
    last = result.shards[shard].version;
  }
}

void Checker::OnFinalPull(const ClientCore::PullResult& result) {
  final_model_.clear();
  for (const int64_t elements : scenario_.table_elements)
    final_model_.emplace_back(static_cast<size_t>(elements));
  for (auto& [id, twin] : twins_) {
    int32_t pulled_as = id;  // It may have been cut off since.
    while (static_cast<size_t>(pulled_as) >= result.shards.size())
      pulled_as = twins_.at(pulled_as).origin;
    const Version version =
        result.shards[static_cast<size_t>(pulled_as)].version;
    const Tensor& values = twin.versions[version];
    if (const auto& pulled = result.shards[static_cast<size_t>(pulled_as)];
        pulled_as == id && pulled.values.size() == twin.range.bytes() &&
        !SameBits(FloatsOf(pulled.values), values)) {
      Report(Invariant::kValue,
             absl::StrCat("the final model has other bits of ", twin.name,
                          " than its version ", version));
    }
    std::copy(values.begin(), values.end(),
              final_model_[static_cast<size_t>(twin.range.table)].begin() +
                  twin.range.begin);
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
      for (Clock clock = start->second; clock < EndOf(latest_view_); ++clock) {
        if (scenario_.elastic.has_value() &&
            examples_.count({.life = life, .clock = clock}) == 0) {
          continue;  // It has left this one out.
        }
        const sync::Mode& mode = PhaseOf(clock).mode();
        // A worker that is done does not wait for a shard to hear that its last
        // steps had no gradient: nobody waits for its clock any more.
        if (scenario_.Skips(clock, twin.range.table)) {
          contained.insert({life, clock});
          continue;
        }
        if (contained.count({life, clock}) > 0 ||
            twin.without_effect.count({life, clock}) > 0 ||
            mode.has_allreduce() || mode.has_backup()) {
          continue;
        }
        Report(Invariant::kLostPush,
               absl::StrCat("the final model lacks the push of clock ", clock,
                            " by ", Name(life.first, life.second), " to ",
                            twin.name));
      }
    }
    AddWithoutEffect(twin, &contained);
    CheckExamples(contained, twin.name);
  }
}

void Checker::AddWithoutEffect(const Twin& twin,
                               std::set<Contribution>* contained) const {
  contained->insert(twin.without_effect.begin(), twin.without_effect.end());
  // Of these nobody owes the shard the news, neither who is done nor who dies.
  for (const auto& [step, examples] : examples_) {
    if (scenario_.Skips(step.clock, twin.range.table)) contained->insert(step);
  }
}

void Checker::CheckExamples(const std::set<Contribution>& contained,
                            const std::string& where) {
  if (!scenario_.elastic.has_value() || violation_.has_value()) return;
  const wire::Elastic& elastic = *scenario_.elastic;
  // By position: how often by those who live, and by those who do not.
  std::vector<std::pair<int, int>> times(static_cast<size_t>(elastic.total()));
  for (const auto& [step, examples] : examples_) {
    if (contained.count(step) == 0 && !PhaseOf(step.clock).mode().has_backup())
      continue;
    const int64_t epoch = examples.epoch * elastic.examples();
    for (int64_t at = epoch + examples.begin; at < epoch + examples.end; ++at) {
      if (at < 0 || at >= elastic.total()) {
        return Report(Invariant::kExamples,
                      absl::StrCat("example ", at, " of ", elastic.total()));
      }
      auto& [living, dead] = times[static_cast<size_t>(at)];
      ++(Live(step.life) ? living : dead);
    }
  }
  for (size_t at = 0; at < times.size(); ++at) {
    const auto [living, dead] = times[at];
    ++stats_.examples;
    stats_.examples_again += living > 0 && dead > 0;
    const bool left_out = living + dead == 0 && stats_.ended_early == 0;
    if (living > 1 || left_out) {
      return Report(
          Invariant::kExamples,
          absl::StrCat(where, " has example ", at, " of ", times.size(), " ",
                       living, " times by workers that live, ", dead,
                       " times by others"));
    }
  }
}

void Checker::CheckExamplesDone(int64_t done) {
  if (!scenario_.elastic.has_value()) return;
  int64_t begun = 0;
  for (const auto& [step, examples] : examples_) {
    if (!Live(step.life)) return;
    begun += examples.end - examples.begin;
  }
  ++stats_.examples_counted;
  if (begun == done || (stats_.ended_early > 0 && begun > done)) return;
  Report(Invariant::kExamples,
         absl::StrCat("the workers have trained on ", begun,
                      " examples, and the coordinator has counted ", done));
}

void Checker::OnStart(Rank rank, Incarnation incarnation, Clock clock) {
  pushed_from_[{rank, incarnation}] = clock;
}

// ---- The shard's end ------------------------------------------------------

std::vector<float> Checker::GradientOf(const Twin& twin,
                                       const Contribution& contribution,
                                       bool by_all_reduce) const {
  if (by_all_reduce) {
    return scenario_.Gradient(contribution.life.first, contribution.life.second,
                              contribution.clock, twin.range.table,
                              twin.range.begin, twin.range.end);
  }
  return scenario_.Pushed(contribution.life.first, contribution.life.second,
                          contribution.clock, twin.range.table,
                          twin.range.begin, twin.range.end);
}

Checker::Tensor Checker::SumOf(const Twin& twin, const Update& update) const {
  std::vector<float> sum =
      GradientOf(twin, update.contributions.front(), update.by_all_reduce);
  for (size_t i = 1; i < update.contributions.size(); ++i) {
    const std::vector<float> gradient =
        GradientOf(twin, update.contributions[i], update.by_all_reduce);
    for (size_t e = 0; e < sum.size(); ++e) sum[e] += gradient[e];
  }
  if (update.gradient_factor != 1) {
    for (float& element : sum) element *= update.gradient_factor;
  }
  return sum;
}

double Checker::SizeOf(const Twin& twin,
                       const Contribution& contribution) const {
  if (!scenario_.gradient_bound.has_value()) return 0;
  const std::vector<float> floats =
      GradientOf(twin, contribution, /*by_all_reduce=*/false);
  const std::optional<double> rms = scenario_.MakeGradientBound().Measure(
      reinterpret_cast<const std::byte*>(floats.data()), floats.size());
  SL_CHECK(rms.has_value(), "a gradient of the simulation is not finite");
  return *rms;
}

// The rate is that of the table's optimizer times what the schedule, the first
// of the gradients and the rule for stale ones make of it. Of SGD and momentum:
// values - n / divisor * rate * step, where step is the mean of the n
// gradients, and with momentum the sum of that and what the slot has. The
// arithmetic of the other rules is the product's; other tests compare it with
// LibTorch's.
Checker::Tensor Checker::Apply(const Twin& twin, Version from,
                               const Tensor& values, Versions* slots,
                               const Update& update) const {
  const Tensor sum = SumOf(twin, update);
  const auto count = static_cast<double>(update.contributions.size());
  const float scale = 1.0f / static_cast<float>(count);
  const Optimizer& optimizer = OptimizerOf(twin.range.table);
  const Rank whose =
      update.by_all_reduce ? Rank{0} : update.contributions.front().life.first;
  const StepOptions options =
      scenario_.GradientOptions(whose, update.clock, twin.range.table);
  const double factor = options.rate_factor * update.rate_factor;
  const double whole_rate =
      optimizer.learning_rate() * scenario_.RateFactorAt(update.clock) * factor;
  const float rate = static_cast<float>(whole_rate * count / update.divisor);
  const config::Optimizer& config = scenario_.OptimizerOf(twin.range.table);
  std::vector<float> next = values;
  if (!config.has_momentum() &&
      (!config.has_sgd() || config.sgd().weight_decay() != 0)) {
    const auto* const gradient = reinterpret_cast<const std::byte*>(sum.data());
    Optimizer::ApplyArgs args;
    args.in = args.out = next.data();
    for (size_t slot = 0; slot < slots->size(); ++slot)
      args.slots[slot] = (*slots)[slot].data();
    args.gradients = absl::MakeConstSpan(&gradient, 1);
    args.elements = next.size();
    args.gradient_scale = scale;
    args.numbers = {.learning_rate = rate, .momentum = options.momentum};
    args.update_count = static_cast<int64_t>(from) + 1;
    optimizer.Apply(args);
    return next;
  }
  const float momentum = static_cast<float>(
      options.momentum.value_or(config.momentum().momentum()));
  for (size_t e = 0; e < next.size(); ++e) {
    float step = sum[e] * scale;
    if (config.has_momentum()) {
      const float decayed = momentum * slots->front()[e];
      step = decayed + step;
      slots->front()[e] = step;
    }
    next[e] -= rate * step;
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
  twin.complete = std::max(twin.complete, twin.min_clock);
}

void Checker::CreateTwins(Owner owner, const View& view) {
  for (int32_t id = 0; id < view.shard_count(); ++id) {
    if (view.OwnerOf(ShardId{id}) != owner) continue;
    if (twins_.count(id) == 0) {
      CreateTwin(id, view);
      twins_.at(id).promoted_in = view.number();
    } else if (scenario_.replicas == 0) {
      Report(Invariant::kOwnership,
             absl::StrCat("shard ", id, " is made a second time"));
    }
  }
}

void Checker::CreateTwin(int32_t id, const View& view) {
  Twin& twin = twins_[id];
  twin.range = view.shard(ShardId{id});
  twin.name = view.ShardName(ShardId{id});
  twin.origin = static_cast<int32_t>(view.OriginOf(ShardId{id}));
  std::vector<float> initial(static_cast<size_t>(twin.range.elements()));
  InitializeElements(view.table(twin.range.table), scenario_.seed,
                     twin.range.begin, absl::MakeSpan(initial));
  twin.slots.push_back(Versions(OptimizerOf(twin.range.table).slot_count(),
                                Tensor(initial.size(), 0.0f)));
  twin.versions.push_back(std::move(initial));
  if (scenario_.resume != nullptr) Resume(twin);
  for (const wire::WorkerMember& worker : view.workers()) {
    if (!worker.founder()) continue;
    Participant& founder =
        twin.participants[{Rank{worker.rank()}, worker.incarnation()}];
    founder.joined_at = founder.clock = BeginsAt(worker.rank());
  }
  // Where none of them is left.
  twin.min_clock = twin.complete = Beginnings().first;
  UpdateMinClock(twin);
}

void Checker::SplitTwins(Owner owner, const View& view,
                         std::vector<int32_t>* changed) {
  const int32_t first = view.shard_count() - view.proto().split_size();
  for (int i = 0; i < view.proto().split_size(); ++i) {
    const wire::Split& split = view.proto().split(i);
    const int32_t cut = first + i;
    const auto kept = twins_.find(split.shard());
    if (kept == twins_.end() || kept->second.owner != owner ||
        split.at() <= kept->second.range.begin ||
        split.at() >= kept->second.range.end) {
      continue;
    }
    Twin rest = CutTwin(view, split, cut, &kept->second);
    changed->push_back(split.shard());
    // Somebody may serve the rest who has taken it over before.
    if (!twins_.emplace(cut, std::move(rest)).second) continue;
    InheritSeen(split.shard(), cut);
    changed->push_back(cut);
  }
}

Checker::Twin Checker::CutTwin(const View& view, const wire::Split& split,
                               int32_t id, Twin* whole) {
  if (!whole->log.empty())
    whole->earlier.push_back(std::make_shared<const Twin>(*whole));
  Twin rest = *whole;
  rest.leads.clear();
  rest.before_split.clear();
  whole->before_split.push_back({split.since(), whole->versions});
  const int64_t length = split.at() - whole->range.begin;
  const auto keep = [&](Tensor& values) {
    values.resize(static_cast<size_t>(length));
  };
  const auto cut_off = [&](Tensor& values) {
    values.erase(values.begin(), values.begin() + length);
  };
  std::for_each(whole->versions.begin(), whole->versions.end(), keep);
  std::for_each(rest.versions.begin(), rest.versions.end(), cut_off);
  for (Versions& slots : whole->slots)
    std::for_each(slots.begin(), slots.end(), keep);
  for (Versions& slots : rest.slots)
    std::for_each(slots.begin(), slots.end(), cut_off);
  whole->range.end = rest.range.begin = split.at();
  rest.range.shard = ShardId{id};
  rest.origin = split.shard();
  // At those places it was whole.
  for (Twin* const part : {whole, &rest}) {
    for (auto& [index, logged] : part->log) logged.exact = false;
  }
  for (Twin* const part : {whole, &rest}) {
    part->name = absl::StrCat(view.table(part->range.table).name(), "[",
                              part->range.begin, ", ", part->range.end, ")");
  }
  return rest;
}

void Checker::InheritSeen(int32_t from, int32_t to) {
  std::vector<std::pair<Life, Version>> seen;
  for (const auto& [who, version] : seen_) {
    if (who.second == from) seen.push_back({who.first, version});
  }
  for (const auto& [life, version] : seen) {
    Version& last = seen_[{life, to}];
    last = std::max(last, version);
  }
}

void Checker::FollowParticipants(Twin& twin, const View& view,
                                 const ShardMachine& machine) {
  for (auto& [life, participant] : twin.participants) {
    if (!participant.present) continue;
    const bool kept = std::any_of(
        machine.participants().begin(), machine.participants().end(),
        [&, who = life](const slackline::Participant& p) {
          return p.rank == who.first && p.incarnation == who.second;
        });
    const bool member = view.FindWorker(life.first, life.second) != nullptr;
    if (!kept && Live(life)) {
      Report(Invariant::kBoundedState,
             absl::StrCat(twin.name, " has forgotten ",
                          Name(life.first, life.second), ", which lives"));
    }
    if (kept && !member && view.number() >= twin.newest_view) {
      Report(Invariant::kBoundedState,
             absl::StrCat(twin.name, " has view ", view.number(),
                          " and keeps the state of ",
                          Name(life.first, life.second), ", which is gone"));
    }
    participant.present = kept;
  }
  UpdateMinClock(twin);
}

std::optional<Violation> Checker::Difference(
    const Twin& twin, const TwinState& state, Version version,
    const ShardMachine& machine) const {
  const auto differs = [](Invariant invariant, const std::string& what) {
    return Violation{.invariant = invariant, .what = what};
  };
  if (machine.shard().version() != version) {
    return differs(machine.shard().version() < version
                       ? Invariant::kLostPush
                       : Invariant::kExactlyOnce,
                   absl::StrCat("has version ", machine.shard().version(),
                                ", not ", version));
  }
  std::vector<float> values = FloatsOf(machine.shard().values());
  if (!SameBits(values, twin.versions[version]))
    return Explain(twin, version, values);
  const Versions& slots = twin.slots[version];
  if (machine.shard().slots().size() != slots.size()) {
    return differs(Invariant::kValue,
                   absl::StrCat("has ", machine.shard().slots().size(),
                                " slots, not ", slots.size()));
  }
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    if (!SameBits(FloatsOf(machine.shard().slots()[slot]), slots[slot])) {
      return differs(Invariant::kValue,
                     absl::StrCat("has another state in slot ", slot));
    }
  }
  if (machine.running_rms() != state.running_rms) {
    return differs(
        Invariant::kValue,
        absl::StrCat("has the running size ", machine.running_rms().mean(),
                     " of ", machine.running_rms().count(), ", not ",
                     state.running_rms.mean(), " of ",
                     state.running_rms.count()));
  }
  size_t held = 0;
  for (const Contribution& contribution : state.held) {
    const auto found = std::find_if(
        machine.held().begin(), machine.held().end(), [&](const auto& entry) {
          return Life{entry.who.rank, entry.who.incarnation} ==
                 contribution.life;
        });
    const std::string what =
        absl::StrCat("the gradient of clock ", contribution.clock, " of ",
                     Name(contribution.life.first, contribution.life.second));
    if (found == machine.held().end()) {
      return differs(Invariant::kLostPush,
                     absl::StrCat("does not hold ", what));
    }
    if (!SameBits(FloatsOf(found->gradient),
                  GradientOf(twin, contribution,
                             /*by_all_reduce=*/false))) {
      return differs(Invariant::kSyncSum,
                     absl::StrCat("holds something else as ", what));
    }
    const StepOptions options = scenario_.GradientOptions(
        contribution.life.first, contribution.clock, twin.range.table);
    const auto size = state.held_sizes.find(contribution);
    if (found->rms != (size == state.held_sizes.end() ? 0 : size->second)) {
      return differs(
          Invariant::kSyncSum,
          absl::StrCat("holds ", what, " with the size ", found->rms));
    }
    if (found->options != options) {
      return differs(
          Invariant::kSyncSum,
          absl::StrCat("holds ", what, " with the options { ",
                       ToWire(found->options).ShortDebugString(), " }, not { ",
                       ToWire(options).ShortDebugString(), " }"));
    }
    ++held;
  }
  if (machine.held().size() != held) {
    return differs(Invariant::kExactlyOnce,
                   absl::StrCat("holds ", machine.held().size(),
                                " gradients, not ", held));
  }
  size_t present = 0;
  for (const auto& [life, participant] : state.participants) {
    if (!participant.present) continue;
    ++present;
    const std::string who = Name(life.first, life.second);
    const auto found = std::find_if(
        machine.participants().begin(), machine.participants().end(),
        [&, of = life](const slackline::Participant& p) {
          return p.rank == of.first && p.incarnation == of.second;
        });
    if (found == machine.participants().end()) {
      return differs(Invariant::kExactlyOnce,
                     absl::StrCat("does not know ", who, " any more"));
    }
    if (found->next_seq != participant.next_seq) {
      return differs(found->next_seq < participant.next_seq
                         ? Invariant::kExactlyOnce
                         : Invariant::kLostPush,
                     absl::StrCat("expects push ", found->next_seq, " of ", who,
                                  ", not ", participant.next_seq));
    }
    if (found->clock != participant.clock ||
        found->joined_at != participant.joined_at) {
      return differs(
          Invariant::kStaleness,
          absl::StrCat("has ", who, " at clock ", found->clock, " from clock ",
                       found->joined_at, "; it is at clock ", participant.clock,
                       " from clock ", participant.joined_at));
    }
  }
  if (machine.participants().size() != present) {
    return differs(Invariant::kBoundedState,
                   absl::StrCat("has ", machine.participants().size(),
                                " participants, not ", present));
  }
  if (machine.participants().MinClock() != state.min_clock) {
    return differs(Invariant::kStaleness,
                   absl::StrCat("has a smallest clock of ",
                                machine.participants().MinClock(), ", not ",
                                state.min_clock));
  }
  if (machine.complete_clock() != state.complete) {
    return differs(Invariant::kStaleness,
                   absl::StrCat("is at clock ", machine.complete_clock(),
                                ", not ", state.complete));
  }
  return std::nullopt;
}

void Checker::CompareState(const Twin& twin, const ShardMachine& machine,
                           const std::string& when) {
  if (const std::optional<Violation> found = Difference(twin, machine)) {
    Report(found->invariant,
           absl::StrCat(twin.name, ", ", when, ": ", found->what));
  }
}

void Checker::OnShardEvent(Owner owner, const std::shared_ptr<const View>& view,
                           const ShardCore& core,
                           const ShardCore::Effects& effects) {
  const std::string here =
      absl::StrCat("server ", owner.server, " thread ", owner.thread);
  ShardThread& thread = shard_threads_[owner];
  // The last view changes nothing in a shard.
  const bool newer =
      view != nullptr && view->proto().state() == wire::RUNNING &&
      (thread.view == nullptr || view->number() > thread.view->number());
  if (newer) thread.view = view;
  if (thread.view == nullptr) return;
  bool created = false;
  std::vector<int32_t> cut;
  std::vector<int32_t> gained;
  std::set<int32_t> promoted;  // Of these.
  std::set<int32_t> served;    // Before or after the event.
  std::set<int32_t> deposed;   // And does not know it.
  if (newer && view->proto().state() == wire::RUNNING) {
    if (!thread.created) {
      thread.created = created = true;
      thread.first_view = view->number();
      CreateTwins(owner, *view);
      for (auto& [id, twin] : twins_) {
        if (!twin.owner.has_value() && !twin.last_owner.has_value())
          twin.owner = twin.last_owner = owner;
      }
    } else {
      SplitTwins(owner, *view, &cut);
    }
    for (int32_t id = 0; id < view->shard_count(); ++id) {
      if (scenario_.replicas == 0 || view->OwnerOf(ShardId{id}) != owner ||
          !core.Owns(ShardId{id}) || IsDeposed(id, owner)) {
        continue;
      }
      const auto twin = twins_.find(id);
      if (twin != twins_.end() && twin->second.owner == owner) continue;
      OnPromoted(owner, id, *view, *core.MachineOf(ShardId{id}));
      promoted.insert(id);
      gained.push_back(id);
    }
  }
  for (auto& [id, twin] : twins_) {
    const bool owns = core.Owns(ShardId{id});
    const bool owned = twin.owner == owner;
    if (owns && !owned && IsDeposed(id, owner)) {
      deposed.insert(id);
      thread.was_deposed = true;
      continue;
    }
    if (owns || owned) served.insert(id);
    if (owned) {
      twin.newest_view = std::max(twin.newest_view, thread.view->number());
      if (!owns) twin.owner.reset();
    }
    if (!owns || owned) continue;
    if (twin.owner.has_value()) {
      Report(Invariant::kOwnership,
             absl::StrCat(twin.name, " is served by ", here, " and by server ",
                          twin.owner->server, " thread ", twin.owner->thread));
    }
    // What it was told may be newer than what the last owner had then.
    const ShardThread& before = shard_threads_[*twin.last_owner];
    if (before.view != nullptr)
      twin.newest_view = std::max(twin.newest_view, before.view->number());
    twin.owner = twin.last_owner = owner;
    twin.leads.clear();
    gained.push_back(id);
  }
  for (const int32_t id : served) {
    Twin& twin = twins_.at(id);
    const ShardMachine* const machine = core.MachineOf(ShardId{id});
    if (machine == nullptr) continue;
    const bool changed =
        newer || std::find(gained.begin(), gained.end(), id) != gained.end();
    if (changed) FollowParticipants(twin, *thread.view, *machine);
    BeginLogging(twin, *thread.view, machine->position());
  }
  stats_.deposed += !deposed.empty();
  OnTrace(effects, served, deposed, owner, core);
  for (const int32_t id : served) {
    if (const ShardMachine* const machine = core.MachineOf(ShardId{id}))
      EndLogging(twins_.at(id), machine->position());
  }
  for (const int32_t id : served) {
    if (core.Owns(ShardId{id}))
      CheckWaiting(twins_.at(id), *core.GateOf(ShardId{id}), owner);
  }
  if (scenario_.mode.has_delays()) {
    for (const ShardTraceRecord& record : effects.trace) {
      if (const GivenDelays* const kept = core.DelaysOf(record.shard))
        CheckKept(twins_.at(static_cast<int32_t>(record.shard)), *kept);
    }
  }
  if (created && scenario_.resume != nullptr) {
    for (const int32_t id : served) CheckResumed(twins_.at(id), core);
  }
  for (const int32_t id : served) FollowCopy(twins_.at(id), core);
  if (effects.cut.has_value()) OnCut(owner, *effects.cut);
  for (const int32_t id : cut) {
    if (const ShardMachine* const machine = core.MachineOf(ShardId{id})) {
      ++stats_.parts_compared;
      CompareState(twins_.at(id), *machine, "after it was cut off");
    }
  }
  for (const int32_t id : gained) {
    const Twin& twin = twins_.at(id);
    ++stats_.arrivals;
    stats_.arrivals_held += !twin.held.empty();
    const std::string when = absl::StrCat("as ", here, " has taken it over");
    if (promoted.count(id) == 0) {
      CompareState(twin, *core.MachineOf(ShardId{id}), when);
    } else if (const std::optional<Violation> found =
                   Difference(twin, *core.MachineOf(ShardId{id}))) {
      Report(Invariant::kCopies,
             absl::StrCat(twin.name, ", ", when,
                          " from its copy of it: ", found->what));
    }
  }
  FollowCopies(owner, core);
  for (const ShardTraceRecord& record : effects.trace) {
    const ShardMachine* const machine = core.MachineOf(record.shard);
    if (record.kind == ShardTraceRecord::Kind::kInstalled &&
        machine != nullptr &&
        deposed.count(static_cast<int32_t>(record.shard)) == 0) {
      CompareState(twins_.at(static_cast<int32_t>(record.shard)), *machine,
                   "as it was installed");
    }
  }
  // What is on its way is bounded by what was ordered, and what waits for it
  // by the bound of each.
  size_t ordered = 0;
  for (const wire::Move& move : thread.view->proto().move()) {
    const Owner source = thread.view->OwnerOf(ShardId{move.shard()});
    ordered += source == owner;
    ordered += Owner{move.server(), move.thread()} == owner;
  }
  const bool failing = !given_up_.empty();  // Perhaps what is lost is kept.
  if (core.moves_count() > ordered && !failing) {
    Report(Invariant::kBoundedState,
           absl::StrCat(here, " has ", core.moves_count(),
                        " shards on their way; its view orders ", ordered));
  }
  const size_t waiting = core.waiting_count();
  if (waiting > core.moves_count() * scenario_.placement.waiting_max) {
    Report(Invariant::kBoundedState,
           absl::StrCat(here, " lets ", waiting, " requests wait for ",
                        core.moves_count(), " shards on their way"));
  }
  if (waiting > thread.waiting)
    stats_.waiting += static_cast<int64_t>(waiting - thread.waiting);
  thread.waiting = waiting;
}

void Checker::OnTrace(const ShardCore::Effects& effects,
                      const std::set<int32_t>& served,
                      const std::set<int32_t>& deposed, Owner owner,
                      const ShardCore& core) {
  for (ShardTraceRecord record : effects.trace) {
    const int32_t id = static_cast<int32_t>(record.shard);
    const auto twin = twins_.find(id);
    if (deposed.count(id) > 0) {
      if (record.kind == ShardTraceRecord::Kind::kPushDiscarded)
        oversized_.insert(record.rank);
      OnTraceOfDeposed(record, core);
      continue;
    }
    if (twin == twins_.end() || served.count(id) == 0) {
      Report(Invariant::kOwnership,
             absl::StrCat("server ", owner.server, " thread ", owner.thread,
                          " is at work on shard ", id, ", which it has not"));
      continue;
    }
    switch (record.kind) {
      case ShardTraceRecord::Kind::kPushAccepted:
      case ShardTraceRecord::Kind::kPushDiscarded:
        OnPushAccepted(twin->second, record, owner);
        break;
      case ShardTraceRecord::Kind::kAdvanced:
        OnAdvanced(twin->second, record, owner);
        break;
      case ShardTraceRecord::Kind::kUpdated:
        OnUpdated(twin->second, record, owner);
        break;
      case ShardTraceRecord::Kind::kPullAnswered:
        OnPullAnswered(twin->second, record, owner);
        break;
      case ShardTraceRecord::Kind::kInstalled:
        OnInstalled(twin->second, record, *shard_threads_.at(owner).view);
        break;
    }
    if (scenario_.replicas > 0) LogState(twin->second, record.index, true);
  }
}

void Checker::OnAdvanced(Twin& twin, const ShardTraceRecord& record,
                         Owner owner) {
  const auto found = twin.participants.find({record.rank, record.incarnation});
  if (found == twin.participants.end() || !found->second.present ||
      record.clock < found->second.clock) {
    return Report(
        Invariant::kOrder,
        absl::StrCat(twin.name, " lets ", Name(record.rank, record.incarnation),
                     " advance to clock ", record.clock));
  }
  ++(record.clock == twin.installed_at ? stats_.installs_again
                                       : stats_.advances);
  const Contribution skipped{.life = found->first,
                             .clock = found->second.clock};
  if (record.clock == skipped.clock + 1 &&
      scenario_.Skips(skipped.clock, twin.range.table)) {
    ++stats_.skipped;
    twin.without_effect.insert(skipped);
    if (scenario_.mode.has_delays() &&
        HasTurn(twin, record.rank, skipped.clock)) {
      twin.waiting.insert({skipped.clock, record.rank});
    }
  }
  ++found->second.next_seq;
  found->second.clock = record.clock;
  UpdateMinClock(twin);
  if (scenario_.mode.has_delays()) PassTurnsWithoutEffect(twin, owner);
}

int Checker::PresentCount(const Twin& twin) const {
  int count = 0;
  for (const auto& [life, participant] : twin.participants)
    count += participant.present;
  return count;
}

bool Checker::JudgeStale(Twin& twin, int64_t missed_updates, int workers) {
  twin.gradient_factor = 1;
  twin.rate_factor = 1;
  const config::StaleGradients& rule = scenario_.stale;
  const double delay =
      static_cast<double>(missed_updates) / static_cast<double>(workers);
  if (rule.has_scale()) {
    twin.gradient_factor = static_cast<float>(1 / (1 + delay));
  } else if (rule.has_staleness_aware_rate()) {
    twin.rate_factor =
        static_cast<double>(workers) /
        static_cast<double>(std::max<int64_t>(1, missed_updates));
  }
  stats_.weakened += twin.gradient_factor != 1 || twin.rate_factor != 1;
  return !rule.has_drop() || delay <= rule.drop().beyond_clocks();
}

void Checker::OnPushAccepted(Twin& twin, const ShardTraceRecord& record,
                             Owner owner) {
  ++stats_.pushes;
  const std::string who =
      absl::StrCat(twin.name, " accepted clock ", record.clock, " of ",
                   Name(record.rank, record.incarnation));
  const sync::Mode& mode =
      PhaseAt(ViewFor({record.rank, record.incarnation}, owner), record.clock)
          .mode();
  if (mode.has_allreduce()) {
    return Report(Invariant::kMode,
                  absl::StrCat(who, ", whose step is by all-reduce"));
  }
  const auto found = twin.participants.find({record.rank, record.incarnation});
  if (found == twin.participants.end() || !found->second.present) {
    return Report(Invariant::kBoundedState,
                  absl::StrCat(who, ", which takes no part"));
  }
  if (scenario_.Skips(record.clock, twin.range.table)) {
    return Report(Invariant::kExactlyOnce,
                  absl::StrCat(who, ", whose step has no gradient of it"));
  }
  Participant& participant = found->second;
  const auto base = computed_from_.find({found->first, record.clock});
  if (base != computed_from_.end()) {
    ++stats_.bases;
    const std::map<int32_t, Version>& versions = base->second;
    int32_t id = static_cast<int32_t>(twin.range.shard);
    while (versions.count(id) == 0 && twins_.at(id).origin != id)
      id = twins_.at(id).origin;  // It was cut off since.
    const auto expected = versions.find(id);
    if (expected == versions.end()) {
      Report(Invariant::kVersionOrder,
             absl::StrCat(who, ", before its parameters had come"));
    } else if (record.version != expected->second) {
      Report(Invariant::kVersionOrder,
             absl::StrCat(who, ", computed from version ", record.version,
                          "; the step has version ", expected->second));
    }
  }
  if (mode.has_delays())
    return OnGivenPush(twin, found->first, participant, record, who, owner);
  const Version newest = twin.versions.size() - 1;
  const int64_t missed = record.version < newest
                             ? static_cast<int64_t>(newest - record.version)
                             : 0;
  stats_.bases_missed += missed > 0;
  if (record.clock != participant.clock) {
    return Report(record.clock < participant.clock ? Invariant::kExactlyOnce
                                                   : Invariant::kOrder,
                  absl::StrCat(who, ", its next one is ", participant.clock));
  }
  const bool holds = mode.has_bsp() || mode.has_backup();
  const bool discarded = record.kind == ShardTraceRecord::Kind::kPushDiscarded;
  const Contribution contribution{.life = found->first, .clock = record.clock};
  const auto excess = scenario_.MakeGradientBound().Judge(
      SizeOf(twin, contribution), twin.running_rms);
  if (!discarded && (!holds || record.clock >= twin.complete)) {
    CountMissed(missed, holds ? 1 : PresentCount(twin),
                &shard_threads_[owner].staleness);
  }
  const bool too_stale = !excess.has_value() && !holds &&
                         !JudgeStale(twin, missed, PresentCount(twin));
  if ((too_stale || excess.has_value()) != discarded) {
    return Report(
        Invariant::kExactlyOnce,
        absl::StrCat(who, discarded   ? ", and discarded it"
                          : too_stale ? ", which is too stale to be applied"
                                      : ", which is above the bound"));
  }
  ++participant.clock;
  ++participant.next_seq;
  if (discarded) {
    // As if the worker had only said that it has done this clock.
    stats_.too_stale += too_stale;
    if (excess.has_value()) {
      ++stats_.oversized;
      stats_.over_running += excess->running.has_value();
      oversized_.insert(record.rank);
    }
    twin.without_effect.insert(contribution);
    return UpdateMinClock(twin);
  }
  if (mode.has_backup()) {
    if (record.clock < twin.complete) {  // Late: of no effect.
      ++stats_.dropped;
      return UpdateMinClock(twin);
    }
    if (record.clock > twin.complete) {
      Report(Invariant::kOrder,
             absl::StrCat(who, " while it is at clock ", twin.complete));
    }
  }
  stats_.broken_taken += scenario_.IsBroken(record.rank, record.clock);
  if (scenario_.gradient_bound.has_value())
    twin.held_sizes[contribution] = SizeOf(twin, contribution);
  CheckCutFence(twin, contribution, who, owner);
  twin.held.insert(
      std::upper_bound(twin.held.begin(), twin.held.end(), contribution),
      contribution);
  UpdateMinClock(twin);
}

void Checker::OnUpdated(Twin& twin, const ShardTraceRecord& record,
                        Owner owner) {
  ++stats_.updates;
  if (record.version != twin.versions.size()) {
    return Report(
        Invariant::kVersionOrder,
        absl::StrCat(twin.name, " went from version ", twin.versions.size() - 1,
                     " to version ", record.version));
  }
  if (scenario_.mode.has_delays()) return OnGivenUpdate(twin, record, owner);
  Update update;
  if (twin.held.empty()) {
    return Report(Invariant::kExactlyOnce,
                  absl::StrCat(twin.name, " was updated to version ",
                               record.version, " without a push"));
  }
  const wire::View& view = ViewForHeld(twin, owner);
  const bool enough = HasEnough(twin, view);
  update.contributions = std::move(twin.held);
  update.clock = record.clock;
  twin.held.clear();
  const int present = PresentCount(twin);
  const sync::Mode& mode = PhaseAt(view, record.clock).mode();
  update.held = mode.has_bsp() || mode.has_backup();
  if (update.held) {
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
    if (mode.has_backup()) {
      if (!enough) {
        Report(Invariant::kSyncSum,
               absl::StrCat(twin.name, " applied clock ", record.clock,
                            " with ", update.divisor, " gradients of ", present,
                            " workers"));
      }
      twin.complete = std::max(twin.complete, record.clock + 1);
    }
    for (const auto& [life, participant] : twin.participants) {
      const bool waits = participant.present && Live(life) &&
                         participant.clock <= record.clock;
      if (waits && mode.has_backup()) {
        ++stats_.without_some;
      } else if (waits) {
        Report(Invariant::kSyncSum,
               absl::StrCat(twin.name, " applied clock ", record.clock,
                            " without ", Name(life.first, life.second),
                            ", whose clock is ", participant.clock));
      }
    }
    if (update.divisor < scenario_.workers) ++stats_.partial_sums;
  } else {
    update.divisor = present;
    for (const auto& [life, participant] : twin.participants) {
      if (participant.present) update.present.push_back(life);
    }
    update.gradient_factor = twin.gradient_factor;
    update.rate_factor = twin.rate_factor;
  }
  AddUpdate(twin, std::move(update));
}

void Checker::AddUpdate(Twin& twin, Update update) {
  // Those of a clock in the order of their ranks, once it is complete.
  for (const Contribution& contribution : update.contributions) {
    const auto size = twin.held_sizes.find(contribution);
    if (size == twin.held_sizes.end()) continue;
    twin.running_rms.Add(size->second);
    update.sizes.push_back(size->second);
    twin.held_sizes.erase(size);
  }
  Versions slots = twin.slots.back();
  twin.versions.push_back(Apply(twin, twin.versions.size() - 1,
                                twin.versions.back(), &slots, update));
  twin.slots.push_back(std::move(slots));
  twin.updates.push_back(std::move(update));
}

// ---- Given delays -----------------------------------------------------------

const DelayTrace::Shard& Checker::DelaysOf(const Twin& twin) const {
  const DelayTrace& delays = scenario_.delays;
  return delays
      .shards[delays.any_model ? 0 : static_cast<size_t>(twin.range.shard)];
}

size_t Checker::TurnsBefore(const Twin& twin, Rank rank, Clock clock) const {
  const DelayTrace::Shard& delays = DelaysOf(twin);
  for (const DelayTrace::Read& read : delays.reads) {
    if (Rank{read.rank} == rank && read.clock == clock)
      return static_cast<size_t>(read.version);
  }
  return delays.updates.size();  // After the last step.
}

Clock Checker::CompleteAfter(const Twin& twin, size_t turns) const {
  const auto& updates = DelaysOf(twin).updates;
  for (Clock clock = scenario_.delays.first;; ++clock) {
    bool over = true;
    bool last = true;
    for (size_t turn = 0; turn < updates.size(); ++turn) {
      over = over && (turn < turns || updates[turn].clock != clock);
      last = last && updates[turn].clock < clock;
    }
    if (last || !over) return clock;
  }
}

const DelayTrace::Update* Checker::ReadyTurn(const Twin& twin) const {
  const auto& updates = DelaysOf(twin).updates;
  const size_t turn = twin.after_turns.size() - 1;
  if (turn == updates.size()) return nullptr;
  for (const int32_t rank : updates[turn].ranks) {
    if (twin.waiting.count({updates[turn].clock, Rank{rank}}) == 0)
      return nullptr;
  }
  return &updates[turn];
}

bool Checker::HasTurn(const Twin& twin, Rank rank, Clock clock) const {
  return absl::c_any_of(DelaysOf(twin).updates, [&](const auto& update) {
    return update.clock == clock &&
           absl::c_linear_search(update.ranks, static_cast<int32_t>(rank));
  });
}

void Checker::OnGivenPush(Twin& twin, const Life& life,
                          Participant& participant,
                          const ShardTraceRecord& record,
                          const std::string& who, Owner owner) {
  if (record.clock != participant.clock) {
    return Report(record.clock < participant.clock ? Invariant::kExactlyOnce
                                                   : Invariant::kOrder,
                  absl::StrCat(who, ", its next one is ", participant.clock));
  }
  const size_t turns = TurnsBefore(twin, record.rank, record.clock);
  if (turns >= twin.after_turns.size() ||
      twin.after_turns[turns] != record.version) {
    return Report(Invariant::kVersionOrder,
                  absl::StrCat(who, ", computed from version ", record.version,
                               ", not from that after ", turns, " turns"));
  }
  const int64_t newest = static_cast<int64_t>(twin.versions.size()) - 1;
  stats_.bases_missed += static_cast<int64_t>(record.version) < newest;
  ++participant.clock;
  ++participant.next_seq;
  if (HasTurn(twin, record.rank, record.clock)) {
    twin.waiting.insert({record.clock, record.rank});
  } else {
    ++stats_.dropped;
    twin.without_effect.insert({.life = life, .clock = record.clock});
  }
  UpdateMinClock(twin);
  PassTurnsWithoutEffect(twin, owner);
}

bool Checker::JudgeTurn(Twin& twin, const DelayTrace::Update& turn,
                        Owner owner) {
  ShardThread& thread = shard_threads_[owner];
  const auto newest = static_cast<int64_t>(twin.versions.size()) - 1;
  twin.gradient_factor = 1;
  twin.rate_factor = 1;
  bool applied = true;
  for (const int32_t rank : turn.ranks) {
    const size_t turns = TurnsBefore(twin, Rank{rank}, turn.clock);
    const int64_t missed =
        newest - static_cast<int64_t>(twin.after_turns[turns]);
    const bool mean = scenario_.delays.IsMean(turn);
    applied = mean || JudgeStale(twin, missed, turn.workers);
    if (applied)
      CountMissed(missed, mean ? 1 : turn.workers, &thread.staleness);
  }
  return applied;
}

void Checker::PassTurnsWithoutEffect(Twin& twin, Owner owner) {
  while (const DelayTrace::Update* const turn = ReadyTurn(twin)) {
    if (scenario_.Skips(turn->clock, twin.range.table)) {
      for (const int32_t rank : turn->ranks)
        twin.waiting.erase({turn->clock, Rank{rank}});
      twin.after_turns.push_back(twin.after_turns.back());
      continue;
    }
    // Only by this rule; what it takes is counted with the update.
    if (!scenario_.stale.has_drop()) return;
    const Rank rank{turn->ranks.front()};
    const auto missed = static_cast<int64_t>(
        twin.versions.size() - 1 -
        twin.after_turns[TurnsBefore(twin, rank, turn->clock)]);
    if (scenario_.delays.IsMean(*turn) ||
        JudgeStale(twin, missed, turn->workers)) {
      return;
    }
    JudgeTurn(twin, *turn, owner);
    ++stats_.too_stale;
    for (const auto& [life, participant] : twin.participants) {
      if (life.first == rank)
        twin.without_effect.insert({.life = life, .clock = turn->clock});
    }
    twin.waiting.erase({turn->clock, rank});
    twin.after_turns.push_back(twin.after_turns.back());
  }
}

void Checker::OnGivenUpdate(Twin& twin, const ShardTraceRecord& record,
                            Owner owner) {
  ++stats_.given_updates;
  const DelayTrace::Update* const turn = ReadyTurn(twin);
  const std::vector<int32_t> ranks =
      turn == nullptr
          ? std::vector<int32_t>()
          : std::vector<int32_t>(turn->ranks.begin(), turn->ranks.end());
  std::vector<int32_t> actual;
  for (const Rank rank : record.ranks)
    actual.push_back(static_cast<int32_t>(rank));
  if (turn == nullptr || turn->clock != record.clock || ranks != actual) {
    return Report(
        Invariant::kOrder,
        absl::StrCat(twin.name, " applied clock ", record.clock, " of rank ",
                     actual.empty() ? -1 : actual.front(), " as turn ",
                     twin.after_turns.size() - 1,
                     turn == nullptr ? ", of which not all is there"
                                     : absl::StrCat(", which is that of clock ",
                                                    turn->clock, " of rank ",
                                                    turn->ranks.front())));
  }
  if (!JudgeTurn(twin, *turn, owner)) {
    return Report(Invariant::kExactlyOnce,
                  absl::StrCat(twin.name, " applied clock ", record.clock,
                               ", which is too stale"));
  }
  Update update;
  update.clock = turn->clock;
  update.held = scenario_.delays.IsMean(*turn);
  update.divisor =
      update.held ? static_cast<int>(turn->ranks.size()) : turn->workers;
  update.gradient_factor = twin.gradient_factor;
  update.rate_factor = twin.rate_factor;
  for (const int32_t rank : turn->ranks) {
    twin.waiting.erase({turn->clock, Rank{rank}});
    for (const auto& [life, participant] : twin.participants) {
      if (life.first == Rank{rank})
        update.contributions.push_back({.life = life, .clock = turn->clock});
    }
  }
  AddUpdate(twin, std::move(update));
  twin.after_turns.push_back(twin.versions.size() - 1);
  PassTurnsWithoutEffect(twin, owner);
}

void Checker::CheckKept(const Twin& twin, const GivenDelays& kept) {
  const size_t turns = twin.after_turns.size() - 1;
  std::set<size_t> needed;
  for (const auto& [life, participant] : twin.participants) {
    for (Clock clock = participant.clock; clock < scenario_.steps; ++clock) {
      const size_t before = TurnsBefore(twin, life.first, clock);
      if (before < turns) needed.insert(before);
    }
  }
  const auto waiting =
      static_cast<size_t>(absl::c_count_if(twin.waiting, [&](const auto& of) {
        return !scenario_.Skips(of.first, twin.range.table);
      }));
  if (kept.kept_versions() != needed.size() || kept.waiting() != waiting) {
    Report(Invariant::kBoundedState,
           absl::StrCat(twin.name, " keeps ", kept.kept_versions(),
                        " versions and ", kept.waiting(),
                        " gradients for their turn; ", needed.size(), " and ",
                        waiting, " are needed"));
  }
}

void Checker::OnPullAnswered(Twin& twin, const ShardTraceRecord& record,
                             Owner owner) {
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
  const bool given = scenario_.mode.has_delays();
  ShardThread& thread = shard_threads_[owner];
  const auto counted = twin.leads.find(record.rank);
  const bool again = counted != twin.leads.end() &&
                     counted->second.first == record.incarnation &&
                     counted->second.second >= pull.clock;
  if (!again && pull.clock < EndOf(thread.view->proto())) {
    twin.leads[record.rank] = {record.incarnation, pull.clock};
    CountLead(
        pull.clock,
        given ? CompleteAfter(twin, TurnsBefore(twin, record.rank, pull.clock))
              : twin.complete,
        &thread.staleness);
  }
  auto puller = twin.participants.find(life);
  if (puller == twin.participants.end()) {
    if (!pull.join)
      return Report(Invariant::kStaleness,
                    absl::StrCat(who(), ", which takes no part"));
    puller = twin.participants.emplace(life, Participant()).first;
    puller->second.joined_at = puller->second.clock = twin.complete;
    ++stats_.joins;
    UpdateMinClock(twin);
  }
  pull.answered[static_cast<int32_t>(twin.range.shard)].emplace(record.version,
                                                                record.index);
  if (given) {
    const size_t turns = TurnsBefore(twin, record.rank, pull.clock);
    if (turns >= twin.after_turns.size() ||
        twin.min_clock < scenario_.delays.first ||
        twin.after_turns[turns] != record.version) {
      return Report(
          Invariant::kVersionOrder,
          absl::StrCat(who(), " at clock ", pull.clock, " with version ",
                       record.version, ", not with that after ", turns,
                       " turns; ", twin.after_turns.size() - 1, " are over"));
    }
    stats_.given_answers += record.version + 1 != twin.versions.size();
  } else if (record.version + 1 != twin.versions.size()) {
    return Report(Invariant::kVersionOrder,
                  absl::StrCat(who(), " with version ", record.version,
                               " while at ", twin.versions.size() - 1));
  }
  if (puller->second.clock < pull.own_clock) {
    Report(Invariant::kStaleness,
           absl::StrCat(who(), " for its clock ", pull.own_clock,
                        ", but has only ", puller->second.clock, " of it"));
  }
  if (given) return;
  const wire::View& view = ViewFor(life, owner);
  const Clock complete = pull.join ? 0 : NeededComplete(view, pull.clock);
  if (twin.complete < complete) {
    Report(Invariant::kStaleness,
           absl::StrCat(who(), " at clock ", pull.clock,
                        ", where clocks before ", complete,
                        " must be complete; it is at clock ", twin.complete));
  }
  const Clock needed = pull.join ? 0 : NeededClock(view, pull.clock);
  if (needed <= 0 && complete <= 0) return;
  ++stats_.gated;
  stats_.beyond_low +=
      twin.min_clock < NeededClock(view, pull.clock, /*largest_bound=*/false);
  for (const auto& [other, participant] : twin.participants) {
    if (!Live(other)) continue;
    if (participant.clock < needed) {
      Report(Invariant::kStaleness,
             absl::StrCat(who(), " at clock ", pull.clock, ", which needs ",
                          needed, " clocks, but has only ", participant.clock,
                          " of ", Name(other.first, other.second)));
    }
  }
  for (const Contribution& contribution : twin.held) {
    if (contribution.clock < std::max(needed, complete) &&
        Live(contribution.life)) {
      Report(
          Invariant::kStaleness,
          absl::StrCat(who(), " at clock ", pull.clock, " without clock ",
                       contribution.clock, " of ",
                       Name(contribution.life.first, contribution.life.second),
                       ", which it holds and has not applied"));
    }
  }
}

void Checker::CheckWaiting(const Twin& twin, const StalenessGate& gate,
                           Owner owner) {
  if (scenario_.mode.has_delays() && ReadyTurn(twin) != nullptr) {
    Report(
        Invariant::kLostPush,
        absl::StrCat(twin.name, " has all gradients of turn ",
                     twin.after_turns.size() - 1, " and has not applied them"));
  }
  const auto backup_has_enough = [&] {
    const wire::View& view = ViewForHeld(twin, owner);
    return PhaseAt(view, twin.held.front().clock).mode().has_backup() &&
           HasEnough(twin, view);
  };
  if (!twin.held.empty() && backup_has_enough()) {
    Report(Invariant::kSyncSum,
           absl::StrCat(twin.name, " holds ", twin.held.size(),
                        " gradients of clock ", twin.held.front().clock,
                        ", which are enough"));
  }
  for (const StalenessGate::Pull& pull : gate.Parked()) {
    ++stats_.parked;
    const auto puller = twin.participants.find({pull.rank, pull.incarnation});
    if (puller == twin.participants.end() ||
        puller->second.clock < pull.own_clock) {
      continue;
    }
    const wire::View& view = ViewFor(puller->first, owner);
    const bool may_go =
        scenario_.mode.has_delays()
            ? twin.min_clock >= scenario_.delays.first &&
                  TurnsBefore(twin, pull.rank, pull.clock) <
                      twin.after_turns.size()
        : pull.state ? twin.min_clock >= pull.clock
                     : twin.min_clock >= NeededClock(view, pull.clock,
                                                     /*largest_bound=*/false) &&
                           twin.complete >= NeededComplete(view, pull.clock);
    if (!may_go) continue;
    Report(Invariant::kStaleness,
           absl::StrCat(twin.name, " parks pull ", pull.request_id, " of ",
                        Name(pull.rank, pull.incarnation), " at clock ",
                        pull.clock, ", which may go: it is at clock ",
                        twin.complete, " and all workers at ", twin.min_clock));
  }
}

// ---- By all-reduce ----------------------------------------------------------

void Checker::OnStepBegun(Rank rank, Incarnation incarnation, Clock clock,
                          bool by_all_reduce,
                          const std::optional<ExampleRange>& examples) {
  const Life life{rank, incarnation};
  if (examples.has_value()) {
    examples_[{.life = life, .clock = clock}] = *examples;
  } else if (scenario_.elastic.has_value()) {
    Report(Invariant::kExamples,
           absl::StrCat(Name(rank, incarnation), " begins step ", clock,
                        " without examples"));
  }
  Clock& reached = reached_[life];
  reached = std::max(reached, clock);
  if (!Live(life)) return;
  if (clock >= EndOf(latest_view_)) {
    Report(Invariant::kMode,
           absl::StrCat(Name(rank, incarnation), " begins step ", clock,
                        "; the job ends at ", EndOf(latest_view_)));
  }
  const sync::Mode& mode = PhaseOf(clock).mode();
  if (mode.has_allreduce() == by_all_reduce) return;
  Report(Invariant::kMode,
         absl::StrCat(Name(rank, incarnation), " begins step ", clock,
                      by_all_reduce ? " by all-reduce" : " over servers",
                      "; it is of mode ", ModeText(mode)));
}

void Checker::OnParameters(Rank rank, Incarnation incarnation, Clock clock,
                           const ClientCore::TableValues& values) {
  std::map<int32_t, Version>& versions =
      computed_from_[{{rank, incarnation}, clock}];
  for (const ClientCore::TableValues::Piece& piece : values.pieces) {
    const auto shard = static_cast<int32_t>(piece.shard);
    if (versions.emplace(shard, piece.version).second) continue;
    Report(Invariant::kVersionOrder,
           absl::StrCat(Name(rank, incarnation), " has shard ", shard,
                        " twice for step ", clock));
  }
}

Checker::ModelPtr Checker::ModelOf(const Life& life, const std::string& what) {
  const auto found = replicas_.find(life);
  if (found != replicas_.end()) return found->second;
  Report(Invariant::kReplica, absl::StrCat(Name(life.first, life.second), " ",
                                           what, " and has no state"));
  return nullptr;
}

void Checker::CompareReplica(const Life& life, const Model& model,
                             const SimReplica& state, const std::string& when) {
  if (model.state.SameBits(state)) return;
  Report(Invariant::kReplica,
         absl::StrCat(Name(life.first, life.second), " has another state ",
                      when, " at clock ", model.clock));
}

void Checker::OnInitial(Rank rank, Incarnation incarnation,
                        const SimReplica& state) {
  if (scenario_.resume != nullptr) {
    return Report(
        Invariant::kCheckpoint,
        absl::StrCat(Name(rank, incarnation), " begins anew; the job goes on"));
  }
  // One for all, unless each worker has values of its own.
  ModelPtr& initial = initial_[scenario_.BeginsWithWorker() ? rank : Rank{0}];
  if (initial == nullptr) {
    Model model;
    model.state = SimReplica::Initial(scenario_, rank, state.view);
    initial = std::make_shared<const Model>(std::move(model));
  }
  CompareReplica({rank, incarnation}, *initial, state, "to begin with");
  replicas_[{rank, incarnation}] = initial;
}

void Checker::OnTookState(Rank rank, Incarnation incarnation, Clock clock,
                          const SimReplica& state) {
  const Life life{rank, incarnation};
  const std::string who =
      absl::StrCat(Name(rank, incarnation), " took the state of clock ", clock);
  ModelPtr& taken = taken_[clock];
  if (taken != nullptr) {
    replicas_[life] = taken;
    if (Live(life)) CompareReplica(life, *taken, state, "from the servers");
    return;
  }
  Model model;
  model.clock = clock;
  model.state = state;
  const auto made = std::make_shared<const Model>(std::move(model));
  replicas_[life] = made;
  if (!Live(life)) return;  // It goes nowhere with it.
  taken = made;
  ++stats_.states_taken;
  for (const auto& [id, twin] : twins_) {
    if (!twin.held.empty()) {
      Report(Invariant::kLostPush, absl::StrCat(who, "; ", twin.name,
                                                " holds gradients that it has "
                                                "not applied"));
    }
    for (const auto& [other, participant] : twin.participants) {
      if (participant.present && Live(other) && participant.clock != clock) {
        Report(Invariant::kLostPush,
               absl::StrCat(who, "; ", twin.name, " has ", participant.clock,
                            " clocks of ", Name(other.first, other.second)));
      }
    }
    const size_t table = static_cast<size_t>(twin.range.table);
    const auto part = [&, &twin = twin](const Tensor& tensor) {
      return Tensor(tensor.begin() + twin.range.begin,
                    tensor.begin() + twin.range.end);
    };
    int32_t pulled_as = static_cast<int32_t>(twin.range.shard);
    while (static_cast<size_t>(pulled_as) >= state.versions.size())
      pulled_as = twins_.at(pulled_as).origin;  // It was cut off since.
    bool same = SameBits(part(state.values[table]), twin.versions.back()) &&
                state.versions[static_cast<size_t>(pulled_as)] + 1 ==
                    twin.versions.size();
    for (size_t i = 0; i < twin.slots.back().size(); ++i) {
      same =
          same && SameBits(part(state.slots[table][i]), twin.slots.back()[i]);
    }
    if (!same) {
      Report(Invariant::kReplica,
             absl::StrCat(who, "; that of ", twin.name, " at version ",
                          twin.versions.size() - 1, " is another"));
    }
  }
}

void Checker::OnShared(Rank rank, Incarnation incarnation, uint64_t group) {
  const auto found = replicas_.find({rank, incarnation});
  if (found != replicas_.end())
    shared_[{group, {rank, incarnation}}] = found->second;
}

void Checker::OnExchange(uint64_t group,
                         const std::vector<SimGroup::Share>& shares) {
  if (bases_.count(group) > 0) return;
  Clock most = -1;
  bool agreed = false;  // On whose values count, before the first step.
  for (const SimGroup::Share& share : shares) {
    most = std::max(most, share.standing.clock);
    agreed =
        agreed || (share.standing.clock >= 0 && !share.standing.own_values);
  }
  if (most < 0) return;
  ModelPtr base;
  ModelPtr of_the_dead;
  for (const SimGroup::Share& share : shares) {
    if (share.standing.clock != most) continue;
    const ModelPtr model = shared_[{group, {share.rank, share.incarnation}}];
    if (share.standing.own_values) {
      if (agreed) continue;
      base = model;  // The first one's count.
      break;
    }
    // Who has been removed, and has not heard of it, took a state of its own.
    if (model != nullptr && !Live({share.rank, share.incarnation})) {
      of_the_dead = model;
      continue;
    }
    if (base == nullptr) base = model;
    if (model == nullptr || base != model || base->clock != most) {
      return Report(Invariant::kReplica,
                    absl::StrCat(Name(share.rank, share.incarnation),
                                 " is at clock ", most,
                                 " with another history than the others of "
                                 "group ",
                                 group));
    }
  }
  if (base == nullptr) base = of_the_dead;  // It goes nowhere.
  ++stats_.groups;
  bool apart = false;
  for (const SimGroup::Share& share : shares) {
    apart = apart || share.standing.clock != most;
    if (share.standing.clock == most || share.standing.clock < 0) continue;
    const ModelPtr behind = shared_[{group, {share.rank, share.incarnation}}];
    // Steps of groups that knew nothing of it yet are no business of its.
    int64_t missed = 0;
    ModelPtr ancestor = base;
    while (ancestor != nullptr && ancestor != behind) {
      missed +=
          ancestor->group_number >= joined_in_[{share.rank, share.incarnation}];
      ancestor = ancestor->before;
    }
    if (ancestor == nullptr) {
      Report(Invariant::kLostPush,
             absl::StrCat("group ", group, " goes on from clock ", most,
                          " without steps of ",
                          Name(share.rank, share.incarnation)));
    }
    if (missed > 1) {
      Report(Invariant::kReplica,
             absl::StrCat(Name(share.rank, share.incarnation), " is at clock ",
                          share.standing.clock, ", its group at ", most));
    }
  }
  stats_.groups_apart += apart;
  bases_[group] = base;
}

void Checker::OnCaughtUp(Rank rank, Incarnation incarnation, uint64_t group,
                         Clock clock, const SimReplica& state) {
  const ModelPtr base = bases_[group];
  if (base == nullptr) return;  // It was reported.
  const Life life{rank, incarnation};
  CompareReplica(life, *base, state, "than its group");
  if (clock != base->clock) {
    Report(Invariant::kReplica,
           absl::StrCat(Name(rank, incarnation), " goes on from clock ", clock,
                        ", its group from clock ", base->clock));
  }
  replicas_[life] = base;
}

void Checker::OnReduced(Rank rank, Incarnation incarnation, uint64_t group,
                        const std::vector<SimGroup::Share>& shares, Clock clock,
                        const SimReplica& state) {
  const Life life{rank, incarnation};
  const ModelPtr before = ModelOf(life, "did a step by all-reduce");
  if (before == nullptr) return;
  for (const SimGroup::Share& share : shares) {
    if (share.standing.clock + 1 == clock && before->clock + 1 == clock)
      continue;
    return Report(
        Invariant::kReplica,
        absl::StrCat(Name(rank, incarnation), " of clock ", before->clock,
                     " sums a gradient of clock ", share.standing.clock, " by ",
                     Name(share.rank, share.incarnation)));
  }
  ModelPtr& after = reduced_[{group, clock}];
  if (after == nullptr) {
    for (const auto& [other, model] : reduced_) {
      stats_.steps_repeated += other.second == clock && other.first != group;
    }
    ++stats_.steps_reduced;
    Model model;
    model.clock = clock;
    model.before = before;
    model.group_number = group;
    model.state = before->state;
    Update update;
    for (const SimGroup::Share& share : shares) {
      model.group.push_back({share.rank, share.incarnation});
      if (!share.counts) continue;
      update.contributions.push_back(
          {.life = model.group.back(), .clock = clock - 1});
    }
    const bool nobody = update.contributions.empty();
    stats_.steps_of_nobody += nobody;
    update.divisor = static_cast<int>(update.contributions.size());
    update.by_all_reduce = true;
    update.clock = clock - 1;
    const View& view = *model.state.view;
    for (int32_t id = 0; id < view.shard_count() && !nobody; ++id) {
      Twin part;  // Of which only the range counts.
      part.range = view.shard(ShardId{id});
      const size_t table = static_cast<size_t>(part.range.table);
      const auto cut = [&](const Tensor& tensor) {
        return Tensor(tensor.begin() + part.range.begin,
                      tensor.begin() + part.range.end);
      };
      const auto put = [&](const Tensor& from, Tensor* tensor) {
        std::copy(from.begin(), from.end(), tensor->begin() + part.range.begin);
      };
      Versions slots;
      for (const Tensor& slot : model.state.slots[table])
        slots.push_back(cut(slot));
      Version& version = model.state.versions[static_cast<size_t>(id)];
      put(Apply(part, version, cut(model.state.values[table]), &slots, update),
          &model.state.values[table]);
      for (size_t i = 0; i < slots.size(); ++i)
        put(slots[i], &model.state.slots[table][i]);
      ++version;
    }
    after = std::make_shared<const Model>(std::move(model));
  }
  if (after->before != before) {
    return Report(
        Invariant::kReplica,
        absl::StrCat(Name(rank, incarnation), " did step ", clock - 1,
                     " from another state than the others of group ", group));
  }
  CompareReplica(life, *after, state, "after a step");
  replicas_[life] = after;
}

void Checker::OnInstalled(Twin& twin, const ShardTraceRecord& record,
                          const View& view) {
  const Life life{record.rank, record.incarnation};
  const std::string what =
      absl::StrCat(twin.name, " was installed at clock ", record.clock, " by ",
                   Name(record.rank, record.incarnation));
  if (twin.installed_at >= record.clock) {
    return Report(Invariant::kExactlyOnce, absl::StrCat(what, " once more"));
  }
  twin.installed_at = record.clock;
  twin.running_rms = {};
  twin.after_turns = {record.version};  // Turns begin here.
  ++stats_.installs;
  const ModelPtr model = ModelOf(life, "installs shards");
  if (model == nullptr) return;
  if (model->clock != record.clock) {
    return Report(Invariant::kReplica,
                  absl::StrCat(what, ", which is at clock ", model->clock));
  }
  ModelPtr& installed = installed_[record.clock];
  if (installed == nullptr) {
    installed = model;
    CheckHistory(model);
  }
  if (installed != model) {
    return Report(Invariant::kReplica,
                  absl::StrCat(what,
                               ", which has another history than who "
                               "installed others"));
  }
  // What happened to the shard meanwhile.
  std::vector<const Model*> steps;
  for (const Model* at = model.get(); at->before != nullptr;
       at = at->before.get()) {
    steps.insert(steps.begin(), at);
  }
  const Model& first = steps.empty() ? *model : *steps.front()->before;
  const auto version_in = [&](const Model& of) {
    return of.state.VersionOf(view, twin.range.shard);
  };
  if (scenario_.BeginsWithWorker() && first.clock == 0) {
    // The first worker's optimizer has a past that the shard knows nothing of.
    while (twin.updates.empty() || twin.updates.back().contributions.empty()) {
      if (twin.versions.size() > version_in(first)) break;
      twin.versions.push_back(twin.versions.back());
      twin.slots.push_back(twin.slots.back());
      twin.updates.emplace_back();
    }
  }
  if (version_in(first) + 1 != twin.versions.size()) {
    return Report(Invariant::kLostPush,
                  absl::StrCat(what, " from version ", version_in(first),
                               "; it has version ", twin.versions.size() - 1));
  }
  const size_t table = static_cast<size_t>(twin.range.table);
  const auto part = [&](const Tensor& tensor) {
    return Tensor(tensor.begin() + twin.range.begin,
                  tensor.begin() + twin.range.end);
  };
  for (const Model* const step : steps) {
    Update update;
    for (const Life& who : step->group) {
      const Contribution part{.life = who, .clock = step->clock - 1};
      if (!scenario_.elastic.has_value() || examples_.count(part) > 0)
        update.contributions.push_back(part);
    }
    if (update.contributions.empty()) continue;  // It changed nothing.
    update.divisor = static_cast<int>(update.contributions.size());
    update.by_all_reduce = true;
    update.clock = step->clock - 1;
    Versions slots;
    for (const Tensor& slot : step->state.slots[table])
      slots.push_back(part(slot));
    twin.versions.push_back(part(step->state.values[table]));
    twin.slots.push_back(std::move(slots));
    twin.updates.push_back(std::move(update));
  }
  if (record.version + 1 != twin.versions.size()) {
    Report(Invariant::kVersionOrder,
           absl::StrCat(what, " with version ", record.version, ", not ",
                        twin.versions.size() - 1));
  }
  // All are at this clock now.
  for (const wire::WorkerMember& worker : view.workers()) {
    const Clock joined_at = std::max(record.clock, twin.min_clock);
    Participant& participant =
        twin.participants
            .try_emplace({Rank{worker.rank()}, worker.incarnation()},
                         Participant{.joined_at = joined_at})
            .first->second;
    participant.clock = std::max(participant.clock, joined_at);
  }
  for (auto& [who, participant] : twin.participants) {
    if (participant.present)
      participant.clock = std::max(participant.clock, record.clock);
  }
  ++twin.participants[life].next_seq;
  UpdateMinClock(twin);
}

void Checker::CheckHistory(const ModelPtr& last) {
  for (const Model* at = last.get(); at->before != nullptr;
       at = at->before.get()) {
    for (const wire::WorkerMember& worker : latest_view_.worker()) {
      const Life life{Rank{worker.rank()}, worker.incarnation()};
      const auto start = pushed_from_.find(life);
      if (start == pushed_from_.end() || start->second >= at->clock ||
          at->group_number < joined_in_[life]) {
        continue;
      }
      if (std::find(at->group.begin(), at->group.end(), life) !=
          at->group.end()) {
        continue;
      }
      Report(Invariant::kLostPush,
             absl::StrCat("the job's model lacks step ", at->clock - 1, " of ",
                          Name(life.first, life.second)));
    }
  }
}

void Checker::OnFinalReplica(Rank rank, Incarnation incarnation,
                             const SimReplica& state) {
  const Life life{rank, incarnation};
  const ModelPtr model = ModelOf(life, "reports the final model");
  if (model == nullptr) return;
  CompareReplica(life, *model, state, "as it reports it");
  final_model_ = state.values;
  CheckHistory(model);
  std::set<Contribution> contained;
  const Model* first = model.get();
  for (; first->before != nullptr; first = first->before.get()) {
    for (const Life& who : first->group)
      contained.insert({.life = who, .clock = first->clock - 1});
  }
  // And what had led to the state that the workers took.
  if (const auto found = twins_.find(0); found != twins_.end()) {
    const Twin& twin = found->second;
    const Version taken = first->state.versions.front();
    for (Version v = 0; v < taken && v < twin.updates.size(); ++v) {
      contained.insert(twin.updates[v].contributions.begin(),
                       twin.updates[v].contributions.end());
    }
    AddWithoutEffect(twin, &contained);
  }
  CheckExamples(contained, "the workers' model");
  for (const wire::WorkerMember& worker : latest_view_.worker()) {
    const Life other{Rank{worker.rank()}, worker.incarnation()};
    if (ModelOf(other, "is done") == model &&
        model->clock == EndOf(latest_view_))
      continue;
    Report(Invariant::kReplica,
           absl::StrCat(Name(other.first, other.second), " is done at clock ",
                        model->clock, " with another model than the chief"));
  }
}

void Checker::OnShardStats(Owner owner, const run::ServerStats& stats) {
  const ShardThread& thread = shard_threads_[owner];
  // It has counted what its shards have never become.
  if (thread.was_deposed) return;
  ++stats_.histograms;
  const auto compare = [&](const char* name, const run::Histogram& actual,
                           const run::Histogram& expected) {
    if (actual.SerializeAsString() == expected.SerializeAsString()) return;
    Report(Invariant::kStaleness,
           absl::StrCat("server ", owner.server, " thread ", owner.thread,
                        " counts staleness in ", name, " as ",
                        actual.ShortDebugString(), ", not ",
                        expected.ShortDebugString()));
  };
  const run::ServerStats& expected = thread.staleness;
  compare("updates", stats.missed_updates(), expected.missed_updates());
  compare("clocks", stats.missed_clocks(), expected.missed_clocks());
  compare("clocks of lead", stats.lead(), expected.lead());
}

void Checker::OnCoordinator(const CoordinatorCore::Sizes& sizes) {
  // One place for each worker of the config, and for each server that there
  // ever was; a life that is over leaves one token. A worker waits in one
  // gather, and for a few keys of the group that it belongs to; users and
  // servers wait for nothing. Of users, the last calls are kept. A phase
  // without an end has to be entered before the next one can be asked for.
  constexpr size_t kUserCallsMax = 64;
  constexpr size_t kGroupsKept = 2;
  ++stats_.sizes;
  const auto workers = static_cast<size_t>(scenario_.workers);
  const size_t members = workers + server_indices_.size();
  const auto check = [&](const char* what, size_t actual, size_t bound) {
    if (actual <= bound) return;
    Report(Invariant::kBoundedState,
           absl::StrCat("the coordinator keeps ", actual, " ", what, "; ",
                        bound, " is its bound"));
  };
  check("members", sizes.members, members);
  check("past tokens", sizes.past_tokens, joined_count_);
  check("keys", sizes.store_keys, workers * kGroupsKept);
  check("gathers", sizes.gathers, workers);
  check("parked calls", sizes.parked_calls, workers * (workers + 1));
  check("calls of users", sizes.user_calls, kUserCallsMax);
}

void Checker::OnClient(Rank rank, Incarnation incarnation,
                       const ClientCore& client, const MemberCore& member,
                       const View& view) {
  // A worker has one pull under way, and one that runs ahead; each is one
  // message for each shard at most. The answer to a pull acknowledges all
  // pushes of earlier clocks, so that at most two clocks are there, and an
  // advance or an installation. For each phase it tells the coordinator a few
  // things.
  constexpr size_t kPullsMax = 2;
  constexpr size_t kClocksMax = 3;
  ++stats_.sizes;
  const ClientCore::Sizes sizes = client.sizes();
  const auto shards = static_cast<size_t>(view.shard_count());
  const auto check = [&](const char* what, size_t actual, size_t bound) {
    if (actual <= bound) return;
    Report(Invariant::kBoundedState,
           absl::StrCat("the client of ", Name(rank, incarnation), " keeps ",
                        actual, " ", what, "; ", bound, " is its bound"));
  };
  check("links", sizes.links,
        server_indices_.size() * static_cast<size_t>(scenario_.threads));
  check("pulls", sizes.pulls, kPullsMax);
  check("messages of pulls", sizes.pull_messages, kPullsMax * shards);
  check("messages of pushes", sizes.push_messages, kClocksMax * shards);
  check("calls", member.calls_count(),
        16 + 4 * static_cast<size_t>(view.proto().phase_size()));
  check("records", member.records_count(), 4096);
}

void Checker::OnShardFlush(Owner owner, const ShardCore& core) {
  int64_t participants = 0;
  for (const auto& [id, twin] : twins_) {
    if (twin.owner != owner) {
      if (core.Owns(ShardId{id})) return;  // It is deposed.
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
    if (!twin.waiting.empty()) {
      Report(Invariant::kLostPush,
             absl::StrCat(twin.name, " has ", twin.waiting.size(),
                          " gradients whose turn never came"));
    }
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
  if (version > 0 && version < twin.versions.size() &&
      twin.updates[version - 1].held) {
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
    Versions slots = twin.slots[changed];
    Version at = changed;
    if (update != nullptr) values = Apply(twin, at++, values, &slots, *update);
    for (Version v = changed + 1; v < version; ++v)
      values = Apply(twin, at++, values, &slots, twin.updates[v]);
    return SameBits(values, actual);
  };
  // The latest ones first: earlier updates were seen right by somebody.
  for (Version changed = version; changed-- > 0;) {
    const Update& update = twin.updates[changed];
    // Gradients that were held and got lost are not in the mean either.
    const unsigned subsets =
        update.held ? (1u << update.contributions.size()) - 1 : 0;
    for (unsigned lost = 1; lost < subsets; ++lost) {
      Update other;
      other.clock = update.clock;
      for (size_t i = 0; i < update.contributions.size(); ++i) {
        if ((lost >> i & 1) == 0)
          other.contributions.push_back(update.contributions[i]);
      }
      other.divisor = static_cast<int>(other.contributions.size());
      if (!becomes_actual(changed, &other)) continue;
      return Violation{Invariant::kLostPush,
                       absl::StrCat(" lacks ", update.divisor - other.divisor,
                                    " pushes that were held")};
    }
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
      for (Clock clock = 0; clock < scenario_.StepsMax(); ++clock) {
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
