// Runs the simulated cluster seed after seed, until one breaks an invariant.
//
//   slackline_sim                     without end, from seed 1, on all cores
//   slackline_sim --first=7 --seeds=1000 --jobs=1
//   slackline_sim --seed=42           one seed, with its whole event trace
//   slackline_sim --modes             with changes of the mode
//   slackline_sim --resume            jobs that go on from a checkpoint of
//   another slackline_sim --with=all          with everything that reality has,
//   or
//                                     --with=clocks,garbage; else as usual
//   slackline_sim --go-on             lists all failing seeds, without traces
//   slackline_sim --state=FILE        goes on where FILE says, and keeps it
//   slackline_sim --json=FILE         writes the counts there, too
//
// Ctrl-C ends it after the seeds that are under way, and keeps the state.
// Exit 0: all held. 1: a seed failed; its trace is on stdout. 2: wrong usage.
#include <atomic>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <mutex>
#include <sstream>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/io/atomic_file.h"
#include "common/process/stop_signal.h"
#include "common/version.h"
#include "tests/sim/long_run.h"
#include "tests/sim/sim_world.h"

namespace slackline::sim {
namespace {

// From so many runs on, more than half of the jobs finish.
constexpr int64_t kRunsThatTell = 100;
constexpr int64_t kRunsBetweenReports = 1000;

struct Options {
  uint64_t first = 1;
  uint64_t seeds = 0;
  std::optional<uint64_t> seed;
  bool modes = false;
  bool resume = false;
  bool go_on = false;
  int jobs = 1;
  std::string with;
  std::string state;
  std::string json;
  Reality reality = Reality::Usual();
};

RunReport Run(uint64_t seed, const Options& options, bool keep_log) {
  return options.resume  ? RunResumeSeed(seed, keep_log, options.reality)
         : options.modes ? RunModesSeed(seed, keep_log, options.reality)
                         : RunSeed(seed, keep_log, options.reality);
}

void PrintRun(uint64_t seed, const Options& options) {
  const RunReport report = Run(seed, options, /*keep_log=*/true);
  for (const std::string& line : report.log) std::cout << line << "\n";
  std::cout << report.outcome << "\n";
  if (report.violation.has_value()) {
    std::cout << "seed " << seed << " breaks '"
              << InvariantName(report.violation->invariant)
              << "': " << report.violation->what << "\n";
  }
}

// "all", "none", or names of Reality's members with commas between them.
absl::Status ParseReality(const std::string& text, Reality* reality) {
  if (text.empty()) return absl::OkStatus();
  *reality = text == "all" ? Reality::All() : Reality();
  if (text == "all" || text == "none") return absl::OkStatus();
  for (const absl::string_view name : absl::StrSplit(text, ',')) {
    bool* const part = reality->Find(std::string(name));
    if (part == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("--with: '", name, "' is none of all, none, ",
                       absl::StrJoin(Reality::Names(), ", ")));
    }
    *part = true;
  }
  return absl::OkStatus();
}

absl::Status Write(const std::string& path, const std::string& text) {
  if (path.empty()) return absl::OkStatus();
  const absl::string_view part = text;
  return WriteFileAtomically(path, absl::MakeConstSpan(&part, 1));
}

// Each world is single-threaded; several of them run side by side.
int RunMany(const Options& options) {
  LongRun run({.first = options.first,
               .seeds = options.seeds,
               .chunk = 50,
               .what = absl::StrCat(options.resume  ? "resume"
                                    : options.modes ? "modes"
                                                    : "one mode",
                                    " with ", options.with)});
  if (std::ifstream file(options.state); !options.state.empty() && file) {
    std::stringstream text;
    text << file.rdbuf();
    if (!run.Resume(text.str())) {
      std::cerr << "--state: " << options.state
                << " is no state of a run with these options; remove it to "
                   "begin anew\n";
      return 2;
    }
    std::cerr << "goes on from seed " << run.done_up_to() << "\n";
  }
  std::mutex mutex;  // Of `run`, `failed` and `reported`.
  std::optional<uint64_t> failed;
  absl::Status written;
  int64_t reported = run.counts().runs;
  std::atomic<bool> stopping = false;
  const StopSignal stop_signal([&](int) { stopping.store(true); });

  const auto keep = [&] {  // With the mutex held.
    absl::Status status = Write(options.state, run.State());
    if (status.ok()) status = Write(options.json, run.counts().ToJson() + "\n");
    if (status.ok()) return;
    written = status;
    stopping.store(true);
  };
  const auto work = [&] {
    while (true) {
      std::unique_lock<std::mutex> lock(mutex);
      if (stopping.load()) return;
      const std::optional<LongRun::Chunk> chunk = run.Next();
      if (!chunk.has_value()) return;
      lock.unlock();
      RunCounts counts;
      for (uint64_t i = 0; i < chunk->seeds; ++i) {
        const uint64_t seed = chunk->first + i;
        const RunReport report = Run(seed, options, /*keep_log=*/false);
        counts.Add(report.counts);
        if (!report.violation.has_value()) continue;
        lock.lock();
        failed = std::min(failed.value_or(seed), seed);
        if (options.go_on) {
          std::cout << "seed " << seed << " breaks '"
                    << InvariantName(report.violation->invariant)
                    << "': " << report.violation->what << std::endl;
          lock.unlock();
          continue;
        }
        stopping.store(true);
        return;
      }
      lock.lock();
      run.Done(*chunk, counts);
      if (run.counts().runs - reported < kRunsBetweenReports) continue;
      reported = run.counts().runs;
      std::cerr << run.counts().ToString() << "\n";
      keep();
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < options.jobs; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();

  keep();
  if (failed.has_value()) {
    if (!options.go_on) PrintRun(*failed, options);
    std::cout << "replay with: slackline_sim --seed=" << *failed
              << (options.modes ? " --modes" : "")
              << (options.resume ? " --resume" : "")
              << (options.with.empty() ? "" : " --with=" + options.with)
              << "\n";
    return 1;
  }
  if (!written.ok()) {
    std::cerr << std::string(written.message()) << "\n";
    return 1;
  }
  const RunCounts& counts = run.counts();
  if (counts.runs >= kRunsThatTell && counts.finished * 2 < counts.runs) {
    std::cout
        << counts.ToString() << "\n"
        << "only " << counts.finished << " of " << counts.runs
        << " jobs have finished, so the others prove nothing: look at the "
           "outcome of a single seed (--seed)\n";
    return 1;
  }
  std::cout << counts.ToString() << "\n"
            << "all seeds from " << options.first << " to "
            << run.done_up_to() - 1 << " hold\n";
  return 0;
}

int Main(int argc, char** argv) {
  StopSignal::Block();
  CLI::App app(
      "Runs the simulated cluster seed after seed, until one breaks an "
      "invariant.");
  app.set_version_flag("--version", VersionText("slackline_sim"));
  Options options;
  options.jobs =
      std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  uint64_t seed = 0;
  app.add_option("--first", options.first, "first seed")->capture_default_str();
  app.add_option("--seeds", options.seeds, "number of seeds; 0: without end")
      ->capture_default_str();
  CLI::Option* const one =
      app.add_option("--seed", seed, "one seed, with its event trace");
  app.add_flag("--modes", options.modes, "with changes of the mode");
  app.add_flag("--resume", options.resume,
               "jobs that go on from a checkpoint that another job has left")
      ->excludes("--modes");
  app.add_flag("--go-on", options.go_on,
               "lists all seeds that break an invariant, without traces");
  app.add_option("--jobs", options.jobs, "seeds that run at the same time")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--with", options.with,
                 "what reality has beyond losses, cuts and crashes: all, none, "
                 "or some of " +
                     absl::StrJoin(Reality::Names(), ",") +
                     "; else what the tests have");
  app.add_option("--state", options.state,
                 "a file that says how far it has come, to go on from there");
  app.add_option("--json", options.json, "a file for the counts");
  one->excludes("--first")->excludes("--seeds")->excludes("--state");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (const absl::Status parsed = ParseReality(options.with, &options.reality);
      !parsed.ok()) {
    std::cerr << std::string(parsed.message()) << "\n";
    return 2;
  }
  if (one->count() == 0) return RunMany(options);
  PrintRun(seed, options);
  return Run(seed, options, /*keep_log=*/false).violation.has_value() ? 1 : 0;
}

}  // namespace
}  // namespace slackline::sim

int main(int argc, char** argv) { return slackline::sim::Main(argc, argv); }
