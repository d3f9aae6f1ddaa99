#include "tests/sim/check/view_twin.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/sync/phases.h"

namespace slackline::sim {

std::optional<wire::View> ViewTwin::OnPublished(const wire::View& view) {
  std::string bytes = view.SerializeAsString();
  const auto [at, inserted] = published_.emplace(view.number(), bytes);
  if (!inserted) {
    if (at->second != bytes) {
      findings_.Report(
          Invariant::kView,
          absl::StrCat("two different views have number ", view.number()));
    }
    return std::nullopt;
  }
  if (view.number() < latest_.number()) {
    findings_.Report(Invariant::kView,
                     absl::StrCat("view ", view.number(),
                                  " was made after view ", latest_.number()));
    return std::nullopt;
  }
  wire::View before = std::exchange(latest_, view);
  for (const wire::ServerMember& server : view.server())
    server_indices_.insert(server.index());
  live_.clear();
  for (const wire::WorkerMember& worker : view.worker()) {
    live_.insert({Rank{worker.rank()}, worker.incarnation()});
    joined_in_.try_emplace({Rank{worker.rank()}, worker.incarnation()},
                           view.number());
  }
  return before;
}

void ViewTwin::OnJoined(bool server, int32_t index) {
  ++joined_count_;
  if (server) server_indices_.insert(index);
}

void ViewTwin::CheckPhases(const wire::View& before, const wire::View& view) {
  if (view.state() != wire::RUNNING || before.state() != wire::RUNNING) return;
  findings_.stats().changes_opened += view.has_change() && !before.has_change();
  const bool ends_early = before.change().has_ending() && !view.has_change() &&
                          view.end_clock() > 0 && before.end_clock() == 0;
  findings_.stats().ended_early += ends_early;
  findings_.stats().changes_dropped +=
      before.has_change() && !view.has_change() &&
      view.phase_size() == before.phase_size() &&
      view.cut().number() == before.cut().number() && !ends_early;
  if (before.end_clock() > 0 && view.end_clock() != before.end_clock()) {
    findings_.Report(
        Invariant::kMode,
        absl::StrCat("view ", view.number(), " ends the job at ",
                     view.end_clock(), ", not at ", before.end_clock()));
  }
  // An elastic job may end by itself meanwhile: all wait at its last clock.
  const Clock beyond = view.end_clock() + view.elastic();
  for (const auto& [life, clock] : reached_) {
    if (!ends_early || !Live(life) || clock < beyond) continue;
    findings_.Report(
        Invariant::kMode,
        absl::StrCat("view ", view.number(), " ends the job at clock ",
                     view.end_clock(), "; ", Name(life.first, life.second),
                     " has reached clock ", clock, " already"));
  }
  findings_.stats().phases_entered += view.entered() - before.entered();
  for (int i = 0; i < before.phase_size(); ++i) {
    if (i < view.phase_size() && before.phase(i).SerializeAsString() ==
                                     view.phase(i).SerializeAsString()) {
      continue;
    }
    findings_.Report(
        Invariant::kMode,
        absl::StrCat("view ", view.number(), " takes back a phase that view ",
                     before.number(), " has"));
  }
  for (int i = before.phase_size(); i < view.phase_size(); ++i) {
    const Clock from = view.phase(i).from();
    for (const auto& [life, clock] : reached_) {
      if (!Live(life) || clock < from) continue;
      findings_.Report(
          Invariant::kMode,
          absl::StrCat("view ", view.number(), " begins a phase at clock ",
                       from, "; ", Name(life.first, life.second),
                       " has reached clock ", clock, " already"));
    }
  }
}

const wire::Phase& ViewTwin::PhaseOf(Clock clock) const {
  return PhaseAt(latest_, clock);
}

void ViewTwin::CheckFence(const Life& life, Clock clock, int phases,
                          const std::string& what) {
  if (!Live(life) || latest_.state() != wire::RUNNING) return;
  if (phases >= latest_.phase_size() || latest_.phase(phases).from() > clock) {
    return;
  }
  findings_.Report(Invariant::kMode,
                   absl::StrCat(Name(life.first, life.second), " ", what,
                                " of clock ", clock, " and knows ", phases,
                                " phases; the next one begins at clock ",
                                latest_.phase(phases).from()));
}

std::optional<wire::View> ViewTwin::ViewIn(const wire::Header& header) const {
  if (header.has_view()) return header.view();
  const auto published = published_.find(header.view_change().number());
  if (!header.has_view_change() || published == published_.end())
    return std::nullopt;
  wire::View view;
  SL_CHECK(view.ParseFromString(published->second), "a view that was sent");
  return view;
}

void ViewTwin::OnMemberView(const PeerId& member, const wire::View& view) {
  const auto published = published_.find(view.number());
  if (published == published_.end() ||
      published->second != view.SerializeAsString()) {
    return findings_.Report(
        Invariant::kView,
        absl::StrCat(member.ToString(), " follows a view ", view.number(),
                     " that nobody published"));
  }
  uint64_t& last = member_view_[member];
  if (view.number() <= last) {
    return findings_.Report(Invariant::kView,
                            absl::StrCat(member.ToString(), " follows view ",
                                         view.number(), " after view ", last));
  }
  last = view.number();
}

uint64_t ViewTwin::JoinedIn(const Life& life) const {
  const auto found = joined_in_.find(life);
  return found == joined_in_.end() ? 0 : found->second;
}

void ViewTwin::Reach(const Life& life, Clock clock) {
  Clock& reached = reached_[life];
  reached = std::max(reached, clock);
}

void ViewTwin::CheckStep(const Life& life, Clock clock, bool by_all_reduce) {
  if (!Live(life)) return;
  if (clock >= EndOf(latest_)) {
    findings_.Report(Invariant::kMode,
                     absl::StrCat(Name(life), " begins step ", clock,
                                  "; the job ends at ", EndOf(latest_)));
  }
  const sync::Mode& mode = PhaseOf(clock).mode();
  if (mode.has_allreduce() == by_all_reduce) return;
  findings_.Report(
      Invariant::kMode,
      absl::StrCat(Name(life), " begins step ", clock,
                   by_all_reduce ? " by all-reduce" : " over servers",
                   "; it is of mode ", ModeText(mode)));
}

}  // namespace slackline::sim
