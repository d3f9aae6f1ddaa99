#include "common/process/member_program.h"

#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/config/shell_line.h"
#include "common/host_port.h"
#include "common/io/atomic_file.h"
#include "common/membership/end_status.h"
#include "common/process/await_name.h"
#include "common/process/engine_index.h"
#include "common/process/exit_code.h"
#include "common/process/file_limit.h"
#include "common/process/freed_memory.h"
#include "common/process/interrupted_by.h"
#include "common/process/logging.h"
#include "common/process/member_environment.h"
#include "common/process/stop_signal.h"
#include "common/process/usage_error.h"
#include "common/process/user_key_file.h"
#include "common/status.h"
#include "common/utf8.h"
#include "common/version.h"
#include "google/protobuf/stubs/logging.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

// Those that were given, as one would type them.
std::string FlagsText(const MemberFlags& flags) {
  std::vector<std::string> words;
  const auto add = [&](absl::string_view name, const std::string& value) {
    if (!value.empty()) words.push_back(absl::StrCat("--", name, "=", value));
  };
  add("cluster", flags.cluster);
  add("index", absl::StrCat(flags.index));
  add("data-dir", flags.data_dir);
  add("out", flags.out);
  add("key", flags.key.given);
  add("mode", flags.overrides.mode);
  add("delays", flags.overrides.delays);
  for (const std::string& set : flags.overrides.sets) add("set", set);
  if (flags.health_port.has_value())
    add("health-port", absl::StrCat(*flags.health_port));
  if (flags.add) words.push_back("--add");
  add("host", flags.host);
  if (flags.threads > 0) add("threads", absl::StrCat(flags.threads));
  add("resume", flags.resume);
  if (flags.restore) words.push_back("--restore");
  if (flags.new_run) words.push_back("--new-run");
  if (flags.recover) words.push_back("--recover");
  return ShellLine(words);
}

// Those without which this process cannot begin. That one of its own stays
// unknown is for `run` to say, which tells the coordinator, too.
absl::Status AwaitNames(const MemberProgram& program, const MemberFlags& flags,
                        const config::ClusterConfig& config) {
  const NameWaiter waiter = NameWaiterHere();
  const absl::Duration wait_max =
      absl::Milliseconds(config.limits().start_timeout_ms());
  const std::string who = absl::StrCat(program.role, " ", flags.index);
  if (program.own_names != nullptr) {
    for (const std::string& name : program.own_names(flags, config)) {
      const absl::Status own = AwaitName(who, {name}, wait_max, waiter);
      if (absl::IsAborted(own)) return own;
      if (own.ok()) continue;
      spdlog::warn("{}", std::string(own.message()));
      break;
    }
  }
  // Server 0 listens there itself, perhaps at another address.
  if (program.role == "server" && flags.index == 0) return absl::OkStatus();
  std::vector<std::string> hosts;
  for (const std::string& endpoint : CoordinatorEndpoints(config)) {
    hosts.push_back(SplitHostPort(endpoint).first);
  }
  return AwaitName("coordinator.host", hosts, wait_max, waiter);
}

}  // namespace

// A job that cannot keep its config runs all the same.
void KeepConfig(const MemberFlags& flags, const config::ClusterConfig& config) {
  const std::string kept = (fs::path(flags.out) / "cluster.textproto").string();
  const ConfigOverrides& changes = flags.overrides;
  const bool changed =
      !changes.mode.empty() || !changes.delays.empty() || !changes.sets.empty();
  std::error_code error;
  const bool is_given = fs::equivalent(kept, flags.cluster, error);
  if (is_given && !changed) return;
  constexpr char kOurs[] = "# Written by ";
  std::string first(sizeof(kOurs) - 1, '\0');
  std::ifstream before(kept);
  before.read(first.data(), static_cast<std::streamsize>(first.size()));
  first.resize(static_cast<size_t>(before.gcount()));
  const bool of_somebody = !first.empty() && first != kOurs;
  // What was given, or is not ours, stays as it is.
  if (is_given || of_somebody || flags.out.empty()) {
    spdlog::info("the config with its defaults:\n{}", ToText(config));
    return;
  }
  fs::create_directories(flags.out, error);
  const absl::Status written = WriteFileAtomically(
      kept, {absl::StrCat(kOurs, "server 0 from ", flags.cluster,
                          " and its flags: what was left out is filled in.\n"),
             ToText(config)});
  if (!written.ok()) {
    spdlog::warn("the config is not kept: {}", std::string(written.message()));
  }
}

absl::StatusOr<config::ClusterConfig> LoadMemberConfig(
    const MemberProgram& program, const MemberFlags& flags) {
  SL_ASSIGN_OR_RETURN(
      config::ClusterConfig config,
      LoadClusterConfig(flags.cluster, program.config_parts, flags.overrides));
  SL_RETURN_IF_ERROR(CheckPathText("--out", flags.out));
  SL_RETURN_IF_ERROR(CheckPathText("--resume", flags.resume));
  const int count = program.count(config);
  if (!flags.add && (!flags.host.empty() || flags.threads != 0)) {
    return absl::InvalidArgumentError(
        "--host and --threads are for --add; the config says them for its own "
        "servers");
  }
  if (flags.add && (!flags.resume.empty() || flags.restore)) {
    return absl::InvalidArgumentError(absl::StrCat(
        flags.restore ? "--restore" : "--resume",
        ": a server that is added to a running job gets its shards from the "
        "others; leave it out"));
  }
  if (flags.restore && !flags.resume.empty()) {
    return absl::InvalidArgumentError(
        "--restore and --resume: the one finds the checkpoint that the other "
        "names; leave one out");
  }
  if (flags.recover &&
      (flags.add || (flags.index != 0 && !AnyServerTakesOver(config)))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--recover: ", program.role, " ", flags.index,
        " never has the coordinator",
        flags.add ? ", which servers of the config have"
                  : ", which server 0 has; any server may with coordinator { "
                    "etcd } and replicas",
        "; it joins a running job again without the flag"));
  }
  if (flags.recover && flags.new_run) {
    return absl::InvalidArgumentError(
        "--recover and --new-run: the one goes on with the job that the other "
        "replaces; leave one out");
  }
  if (flags.new_run && (flags.add || flags.index != 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--new-run: ", program.role, " ", flags.index,
        " joins whatever run server 0 begins; give the flag to server 0"));
  }
  if (flags.recover && flags.out.empty() && !config.coordinator().has_etcd()) {
    return absl::InvalidArgumentError(
        "--recover: the state of the coordinator is in the folder of --out, "
        "which is missing; give the one that the job has had");
  }
  if (flags.add && flags.index < count) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--index: ", flags.index, " belongs to the config, which has ", count,
        " servers; a server that is added takes a larger one ('slackline "
        "servers add' finds it)"));
  }
  if (!flags.add && (flags.index < 0 || flags.index >= count)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--index: ", flags.index, " is outside [0, ", count,
                     "); the config has ", count, " ", program.role, "s"));
  }
  if (config.coordinator().port() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        flags.cluster,
        ": coordinator.port: value is 0, which only 'slackline run' replaces; "
        "choose a port that all processes know"));
  }
  return config;
}

void BeginMember(const std::string& name, const std::string& role,
                 const MemberFlags& flags, const config::ClusterConfig& config,
                 const TimeSource& time) {
  KeepFreedMemory();
  // Whoever sends garbage would write to our stderr; what is wrong with a
  // message is said in the answer to it.
  google::protobuf::SetLogHandler(nullptr);
  const absl::Status files = RaiseFileLimit();
  SetUpLogging(absl::StrCat(role, " ", flags.index), time);
  spdlog::info("{} {} ({}), config {}: {}", name, VersionNumber(),
               BuildCommit(), ConfigHash(config), FlagsText(flags));
  if (!flags.index_from.empty()) {
    spdlog::info("--index=auto: this is {} {}, by {}", role, flags.index,
                 flags.index_from);
  }
  if (!files.ok()) spdlog::warn("{}", std::string(files.message()));
  if (config.insecure()) {
    spdlog::warn(
        "insecure: true: nothing on the wire is encrypted, and whoever reaches "
        "the ports of this job can read, change and stop it");
  }
}

namespace {

// The flags of a program that may be added to a job, or resume one.
void AddServerFlags(const MemberProgram& program, CLI::App* app,
                    MemberFlags* flags) {
  if (program.may_be_added) {
    app->add_flag("--add", flags->add,
                  "Joins a running job as one more server than its config has; "
                  "--index is then one that no other server has. A server of "
                  "the config that has died joins again without it: start it "
                  "as the first time");
    app->add_option("--host", flags->host,
                    "With --add: address that others connect to; default: that "
                    "of the config's last server");
    app->add_option("--threads", flags->threads,
                    "With --add: shard threads; default: as the config's last "
                    "server")
        ->check(CLI::Range(1, 1024));
  }
  if (program.may_resume) {
    app->add_option("--resume", flags->resume,
                    "The job goes on from this checkpoint, a folder such as "
                    "RUN/checkpoints/step-00001200, or the newest whole one of "
                    "a run's folder or a folder of checkpoints; the same for "
                    "all servers of the config, each of which reads it");
    app->add_flag(
        "--restore", flags->restore,
        "The job goes on from the newest whole checkpoint in its own "
        "folder (checkpoint { folder } of the config, or checkpoints "
        "in --out), and begins anew if there has never been one; if "
        "none of those that are there can be used, it ends; for a job "
        "that is started again as a whole with the same commands");
    app->add_flag("--new-run", flags->new_run,
                  "Server 0 begins a new run, with --resume or --restore from "
                  "that checkpoint, whatever an earlier one has left in --out "
                  "(or in etcd). Without it server 0 goes on with a run that "
                  "has not ended (coordinator.state in --out, of a job with "
                  "replicas), and ends if that run has ended: so the command "
                  "that started it is always the right one to start it again. "
                  "What the new run does not go on from is moved into "
                  "OUT/replaced-N");
    app->add_flag(
        "--recover", flags->recover,
        "With coordinator { etcd } in the config, for other servers "
        "than server 0, which does so anyway: goes on as the "
        "coordinator of the job in etcd also before it has joined, if "
        "nobody else does. docs/manual/coordinator.md");
  }
}

// From the flags to the exit code.
int RunMember(const std::string& name, const MemberProgram& program,
              const MemberFlags& flags, const config::ClusterConfig& config,
              const TimeSource& time) {
  BeginMember(name, program.role, flags, config, time);
  const absl::Status known = AwaitNames(program, flags, config);
  const absl::Status status =
      known.ok() ? program.run(flags, config, time) : known;
  if (IsSuspended(status)) {
    spdlog::warn("the job is suspended: {}", std::string(status.message()));
    return kExitSuspended;
  }
  if (!status.ok()) {
    spdlog::error("{}", std::string(status.message()));
    return IsGivenUp(status) ? kExitGivenUp : kExitFailed;
  }
  spdlog::info("done");
  return 0;
}

}  // namespace

int RunMemberProgram(const MemberProgram& program, int argc, char** argv) {
  StopSignal::Block();
  // Workers may be programs of their own.
  const std::string name =
      argc > 0 ? std::filesystem::path(argv[0]).filename().string()
               : absl::StrCat("slackline_", program.role);
  CLI::App app(absl::StrCat(program.description,
                            "\nExit code: 0 the job has finished, 1 it failed "
                            "(the last line says why), 2 wrong usage, 69 the "
                            "coordinator has given this process up and the "
                            "job may go on: start it again, 75 the job "
                            "was suspended: it can go on from its last "
                            "checkpoint.\nSIGTERM, or SIGHUP, suspends a job "
                            "whose config has a checkpoint block; a second "
                            "SIGTERM ends this process at once.",
                            program.environment
                                ? "\n'slackline run' sets the environment "
                                  "variables (Env:) below; a flag that is "
                                  "given counts more."
                                : ""),
               name);
  app.set_version_flag("--version", VersionText(name));
  MemberFlags flags;
  const auto default_from = [&](CLI::Option* option, const char* variable) {
    if (program.environment) option->envname(variable);
  };
  CLI::Option* const cluster = app.add_option(
      "--cluster", flags.cluster, "Cluster config, a text-format file");
  default_from(cluster->required(), kClusterVariable);
  CLI::Option* const index = app.add_option(
      "--index", flags.index,
      absl::StrCat(
          "Which ", program.role,
          " of the config this is, from 0; or auto: the number that the engine "
          "gives, as SLURM_PROCID, JOB_COMPLETION_INDEX, OMPI_COMM_WORLD_RANK "
          "or PMI_RANK, or the ordinal of a StatefulSet in the host's name; "
          "auto+4: that and 4, of a group of the config before which are 4 "
          "others"));
  index->transform(
      [&flags](const std::string& given) -> std::string {
        flags.index_from.clear();
        const std::optional<int> from = AutoIndexFrom(given);
        if (!from.has_value()) return given;
        const absl::StatusOr<EngineIndex> engine =
            IndexOfEngine(EngineFactsHere(), *from);
        if (!engine.ok())
          throw CLI::ValidationError(std::string(engine.status().message()));
        flags.index_from = engine->from;
        return absl::StrCat(engine->index);
      },
      "", "engine's number");
  default_from(index->required(), kIndexVariable);
  if (!program.data_dir_help.empty()) {
    default_from(
        app.add_option("--data-dir", flags.data_dir, program.data_dir_help),
        kDataDirVariable);
  }
  default_from(app.add_option("--out", flags.out, program.out_help),
               kOutVariable);
  std::string key;
  const bool is_worker = program.role == "worker";
  default_from(
      app.add_option(
          "--key", key,
          absl::StrCat("The file with the job's key",
                       is_worker ? ", or with what a worker holds of it" : "",
                       " (slackline keys --help); default: "
                       "~/.config/slackline/key, which is made if there is "
                       "none and all of the job is on this host")),
      kKeyVariable);
  AddServerFlags(program, &app, &flags);
  app.add_option("--mode", flags.overrides.mode,
                 "bsp, ssp:S, dssp:MIN:MAX, asp, backup:B or allreduce; the "
                 "same for all processes");
  app.add_option("--delays", flags.overrides.delays,
                 "In place of a mode: as for 'slackline run'; the same for all "
                 "processes. Servers read the folder of recorded ones, each on "
                 "its host");
  app.add_option("--set", flags.overrides.sets,
                 "Change a field of the config: path=value; the same for all "
                 "processes")
      ->allow_extra_args(false);
  app.add_option("--health-port", flags.health_port,
                 "GET /healthz and /readyz are answered at this port, also "
                 "without a health block in the config; 0: at any free one, "
                 "which the log names")
      ->check(CLI::Range(0, 65535));
  std::string wall_clock_step;
  app.add_option("--wall-clock-step", wall_clock_step,
                 "For tests, as SECONDS@AFTER_SECONDS: the time of day that "
                 "this process sees jumps by so much so long after its start. "
                 "Nothing but printed times changes");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return ExitOnParseError(app, error,
                            {argv + std::min(argc, 1), argv + argc});
  }
  flags.key = {.given = key, .own = UserKeyFileHere()};
  const absl::StatusOr<config::ClusterConfig> config =
      LoadMemberConfig(program, flags);
  if (!config.ok()) {
    std::fprintf(stderr, "%s\n",
                 std::string(config.status().message()).c_str());
    return kExitUsage;
  }
  TimeSource time;
  if (!wall_clock_step.empty()) {
    const auto step = ParseWallClockStep(wall_clock_step);
    if (!step.ok()) {
      std::fprintf(stderr, "--wall-clock-step: %s\n",
                   std::string(step.status().message()).c_str());
      return kExitUsage;
    }
    time = TimeSource(*step);
  }
  return RunMember(name, program, flags, *config, time);
}

absl::StatusOr<TimeSource::WallClockStep> ParseWallClockStep(
    const std::string& text) {
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(text, absl::MaxSplits('@', 1));
  double by = 0;
  double after = 0;
  if (!absl::SimpleAtod(parts.first, &by) ||
      !absl::SimpleAtod(parts.second, &after) || !std::isfinite(by) ||
      !(after >= 0 && std::isfinite(after))) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text,
                     "' is not of the form SECONDS@AFTER_SECONDS, such as "
                     "-3600@5"));
  }
  return TimeSource::WallClockStep{.by = absl::Seconds(by),
                                   .after = absl::Seconds(after)};
}

std::string InterruptedBy(const std::string& role, int index, int signal) {
  return absl::StrCat(role, " ", index, kInterruptedBy,
                      signal == SIGINT   ? "SIGINT"
                      : signal == SIGHUP ? "SIGHUP"
                                         : "SIGTERM");
}

}  // namespace slackline
