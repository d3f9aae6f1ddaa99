// Runs the simulated cluster seed after seed, until one breaks an invariant.
//
//   slackline_sim                     without end, from seed 1
//   slackline_sim --first=7 --seeds=1000
//   slackline_sim --seed=42           one seed, with its whole event trace
//   slackline_sim --modes             with changes of the mode
//
// Exit 0: all held. 1: a seed failed; its trace is on stdout. 2: wrong usage.
#include <cstdint>
#include <iostream>

#include "CLI/CLI.hpp"
#include "tests/sim/sim_world.h"

namespace slackline::sim {
namespace {

RunReport Run(uint64_t seed, bool modes, bool keep_log) {
  return modes ? RunModesSeed(seed, keep_log) : RunSeed(seed, keep_log);
}

void PrintRun(uint64_t seed, bool modes) {
  const RunReport report = Run(seed, modes, /*keep_log=*/true);
  for (const std::string& line : report.log) std::cout << line << "\n";
  std::cout << report.outcome << "\n";
  if (report.violation.has_value()) {
    std::cout << "seed " << seed << " breaks '"
              << InvariantName(report.violation->invariant)
              << "': " << report.violation->what << "\n";
  }
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Runs the simulated cluster seed after seed, until one breaks an "
      "invariant.");
  uint64_t first = 1;
  uint64_t seeds = 0;
  uint64_t seed = 0;
  bool modes = false;
  app.add_option("--first", first, "first seed")->capture_default_str();
  app.add_option("--seeds", seeds, "number of seeds; 0: without end")
      ->capture_default_str();
  CLI::Option* const one =
      app.add_option("--seed", seed, "one seed, with its event trace");
  app.add_flag("--modes", modes, "with changes of the mode");
  one->excludes("--first")->excludes("--seeds");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (one->count() > 0) {
    PrintRun(seed, modes);
    return Run(seed, modes, /*keep_log=*/false).violation.has_value() ? 1 : 0;
  }
  RunCounts counts;
  for (uint64_t next = first; seeds == 0 || next < first + seeds; ++next) {
    const RunReport report = Run(next, modes, /*keep_log=*/false);
    counts.Add(report.counts);
    if (report.violation.has_value()) {
      PrintRun(next, modes);
      std::cout << "replay with: slackline_sim --seed=" << next
                << (modes ? " --modes" : "") << "\n";
      return 1;
    }
    if (counts.runs % 1000 == 0) std::cerr << counts.ToString() << "\n";
  }
  std::cout << counts.ToString() << "\n";
  return 0;
}

}  // namespace
}  // namespace slackline::sim

int main(int argc, char** argv) { return slackline::sim::Main(argc, argv); }
