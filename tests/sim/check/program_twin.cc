#include "tests/sim/check/program_twin.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/sync/phases.h"
#include "tests/sim/check/bits.h"

namespace slackline::sim {

void ProgramTwin::OnProgramBegins(Rank rank, Incarnation incarnation,
                                  bool founder, const std::string& state) {
  std::string expected;
  if (founder && scenario_.resume != nullptr &&
      scenario_.checkpoints.programs.count(static_cast<int32_t>(rank)) > 0) {
    const auto& programs = scenario_.resume->programs;
    const auto found = programs.find(static_cast<int32_t>(rank));
    if (found != programs.end()) expected = found->second;
  }
  findings_.stats().programs_begun += !expected.empty();
  program_began_[{rank, incarnation}] = expected;
  if (state == expected) return;
  findings_.Report(
      Invariant::kCheckpoint,
      absl::StrCat("the program of ", Name(rank, incarnation), " begins with '",
                   state, "', not with '", expected, "'"));
}

void ProgramTwin::OnProgramStep(Rank rank, Incarnation incarnation,
                                Clock clock) {
  program_steps_[{rank, incarnation}].insert(clock);
}

void ProgramTwin::CheckPrograms(const TwinCut& cut,
                                const SimCheckpoint& checkpoint) {
  std::set<int32_t> ranks;
  for (const auto& [life, until] : cut.programs) {
    const auto rank = static_cast<int32_t>(life.first);
    ranks.insert(rank);
    const std::string who =
        absl::StrCat("in the checkpoint of cut ", cut.proto.number(),
                     ", the program of ", Name(life.first, life.second));
    const auto kept = checkpoint.programs.find(rank);
    if (kept == checkpoint.programs.end()) {
      // After its last step a program may take its time, so nobody waits for
      // it.
      if (views_.Live(life) && until < EndOf(views_.latest()))
        findings_.Report(Invariant::kCheckpoint,
                         absl::StrCat(who, " is missing"));
      continue;
    }
    ++findings_.stats().programs_kept;
    std::string expected = program_began_[life];
    const std::set<Clock>& steps = program_steps_[life];
    if (const auto next = steps.lower_bound(until); next != steps.begin())
      expected = ProgramAfter(rank, *std::prev(next));
    if (kept->second == expected) continue;
    findings_.Report(
        Invariant::kCheckpoint,
        absl::StrCat(who, " is '", kept->second, "', not '", expected,
                     "', as it is before clock ", until));
  }
  for (const auto& [rank, state] : checkpoint.programs) {
    if (ranks.count(rank) > 0) continue;
    findings_.Report(
        Invariant::kCheckpoint,
        absl::StrCat("the checkpoint of cut ", cut.proto.number(), " has '",
                     state, "', which nobody was asked for"));
  }
}

}  // namespace slackline::sim
