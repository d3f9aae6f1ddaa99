#include "tools/cli/doctor/doctor.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/config/cluster_config.h"
#include "common/config/shell_line.h"
#include "common/host_port.h"
#include "common/process/exit_code.h"
#include "common/process/join_request.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "common/version.h"
#include "job/job_config.h"
#include "tools/cli/command_output.h"
#include "tools/cli/data/data_location.h"
#include "tools/cli/doctor/diagnosis.h"
#include "tools/cli/doctor/host_examiner.h"
#include "tools/cli/doctor/job_needs.h"
#include "tools/cli/json.h"
#include "tools/cli/launch/remote_cluster.h"
#include "tools/cli/launch/remote_hosts.h"
#include "tools/cli/launch/remote_shell.h"
#include "tools/cli/run/local_hosts.h"
#include "tools/cli/run/member_launch.h"
#include "tools/cli/signals.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

constexpr char kHereEngine[] = "here";
// To read the data, and to ask programs for their versions.
constexpr absl::Duration kLookMax = absl::Minutes(2);
constexpr absl::Duration kAnswerMax = absl::Seconds(20);
// Of one round, in which each host tries the doors of one other.
constexpr absl::Duration kRoundMax = absl::Minutes(1);
// Of all rounds: a large job is not held up for long.
constexpr absl::Duration kRoundsMax = absl::Minutes(1);

std::string AbsolutePath(const std::string& path) {
  std::error_code ignored;
  return path.empty() ? path
                      : fs::absolute(path, ignored).lexically_normal().string();
}

// An agent on this machine is a child of this program.
RemoteShell HereShell() {
  return {
      .name = kHereEngine,
      .line = [](const std::string& /*host*/,
                 const std::vector<std::string>& command) { return command; },
      .advice = [](const std::string& /*host*/,
                   absl::string_view /*output*/) { return ""; }};
}

class Examination {
 public:
  Examination(const RunOptions& options, config::ClusterConfig config,
              SignalWatch* signals)
      : options_(options),
        config_(std::move(config)),
        shell_(ShellOf(config_.launch())),
        signals_(signals),
        mark_(absl::StrCat(".slackline-", absl::Hex(RandomToken()))) {
    if (shell_.name.empty()) shell_ = HereShell();
  }

  // Aborted: a signal has come. Other errors: nothing could be looked at.
  absl::StatusOr<doctor::Report> Run() {
    SL_RETURN_IF_ERROR(FindPlaces());
    SL_RETURN_IF_ERROR(Connect());
    LookHere();
    SL_RETURN_IF_ERROR(AskAll(kLookMax, [this](const doctor::HostNeed& need) {
      doctor::Question question;
      *question.mutable_look() = LookOf(need);
      return question;
    }));
    SL_RETURN_IF_ERROR(AskAll(kAnswerMax, [](const doctor::HostNeed& need) {
      doctor::Question question;
      *question.mutable_open()->mutable_door() = need.door();
      return question;
    }));
    if (job().shares_checkpoints() || job().shares_run_folder()) {
      SL_RETURN_IF_ERROR(AskAll(kAnswerMax, [this](const doctor::HostNeed&) {
        doctor::Question question;
        question.mutable_see_marks()->set_mark(mark_);
        AddFolders(paths_.run_folder,
                   question.mutable_see_marks()->mutable_folder());
        return question;
      }));
    }
    SL_RETURN_IF_ERROR(TryPairs());
    doctor::Report report = Diagnose(facts_);
    for (doctor::Finding& finding : before_) {
      if (finding.level() == doctor::ERROR)
        report.set_errors(report.errors() + 1);
      *report.add_finding() = std::move(finding);
    }
    std::stable_sort(
        report.mutable_finding()->begin(), report.mutable_finding()->end(),
        [](const auto& a, const auto& b) { return a.level() > b.level(); });
    return report;
  }

 private:
  const doctor::Job& job() const { return facts_.job(); }
  bool IsHere() const { return shell_.name == kHereEngine; }

  void Say(doctor::Level level, const std::string& host,
           const std::string& check, const std::string& value,
           const std::string& bound, const std::string& fix) {
    doctor::Finding& finding = before_.emplace_back();
    finding.set_level(level);
    finding.set_host(host);
    finding.set_check(check);
    finding.set_value(value);
    finding.set_bound(bound);
    finding.set_fix(fix);
  }

  // The hosts, the folders, and what can be said without going there.
  absl::Status FindPlaces() {
    std::vector<std::string> hosts = HostsOfMembers(config_);
    if (IsHere()) {
      for (const std::string& host : HostsElsewhere(config_)) {
        hosts.erase(std::remove(hosts.begin(), hosts.end(), host), hosts.end());
        Say(doctor::NOTE, host, "start", "it is not looked at",
            "it is not this machine", "--on ssh looks there");
      }
    }
    for (const absl::Status& checked :
         {CheckWorkersHavePrograms(config_),
          IsHere() ? absl::OkStatus()
                   : CheckRemoteConfig(config_, shell_.name)}) {
      if (!checked.ok())
        Say(doctor::ERROR, "this machine", "config",
            std::string(checked.message()), "", "");
    }
    out_dir_ = options_.out_dir.empty() ? absl::StrCat("runs/", config_.job())
                                        : options_.out_dir;
    bool fetches = false;
    SL_RETURN_IF_ERROR(FindDataHere(&fetches));
    paths_ = RemotePathsOf(IsHere() ? config::Launch() : config_.launch(),
                           options_.bin_dir, out_dir_, data_here_);
    const int port = PortIsGiven(options_) ? config_.coordinator().port() : 0;
    *facts_.mutable_job() = JobNeeds(config_, {.hosts = std::move(hosts),
                                               .coordinator_port = port,
                                               .engine = shell_.name,
                                               .data_dir = data_here_});
    doctor::Job& job = *facts_.mutable_job();
    job.set_version(VersionText("slackline"));
    job.set_data_here(data_here_);
    job.set_data_there(paths_.data_dir);
    job.set_bin_here(AbsolutePath(options_.bin_dir));
    job.set_bin_there(paths_.bin_dir);
    if (!fetches) return absl::OkStatus();
    for (doctor::HostNeed& need : *job.mutable_host()) need.set_data(false);
    return absl::OkStatus();
  }

  // Where `slackline run` would look. `*fetches`: it would download MNIST.
  absl::Status FindDataHere(bool* fetches) {
    data_here_ = AbsolutePath(options_.data_dir);
    if (!data_here_.empty() || !config_.has_data() ||
        config_.data().has_teacher_student() ||
        (!IsHere() && config_.launch().has_data_dir())) {
      return absl::OkStatus();
    }
    SL_ASSIGN_OR_RETURN(data_here_, CacheDataDir());
    const bool is_mnist = config_.data().has_idx() &&
                          config_.data().idx().folder() == kMnistFolder;
    if (!IsHere() || !is_mnist ||
        MissingDataFiles(config_.data(), data_here_).empty()) {
      return absl::OkStatus();
    }
    *fetches = true;
    Say(doctor::NOTE, "this machine", "data",
        absl::StrCat("MNIST is not in ", data_here_),
        "slackline run downloads it, or makes a stand-in",
        "slackline data fetch mnist");
    return absl::OkStatus();
  }

  absl::Status Connect() {
    for (const doctor::HostNeed& need : job().host()) {
      hosts_.push_back(need.name());
      facts_.add_host()->set_name(need.name());
    }
    std::map<std::string, std::string> unreached;
    SL_ASSIGN_OR_RETURN(
        remote_,
        RemoteHosts::Connect(
            {.shell = shell_, .bin_dir = paths_.bin_dir, .hosts = hosts_},
            signals_, &unreached));
    for (doctor::Host& host : *facts_.mutable_host()) {
      const auto found = unreached.find(host.name());
      if (found == unreached.end()) continue;
      // The host stands before the finding already.
      std::string why = found->second;
      const std::string prefix = absl::StrCat("host ", host.name(), ": ");
      if (absl::StartsWith(why, prefix)) why = why.substr(prefix.size());
      host.set_unreached(why);
    }
    return absl::OkStatus();
  }

  void AddFolders(
      const std::string& run_folder,
      google::protobuf::RepeatedPtrField<doctor::Folder>* folders) const {
    doctor::Folder& run = *folders->Add();
    run.set_use(doctor::Folder::RUN);
    run.set_path(run_folder);
    if (!config_.has_checkpoint()) return;
    doctor::Folder& checkpoints = *folders->Add();
    checkpoints.set_use(doctor::Folder::CHECKPOINTS);
    checkpoints.set_path(AbsolutePath(CheckpointRoot(config_, run_folder)));
  }

  void LookHere() {
    doctor::Look look;
    if (!IsHere()) {
      for (const std::string& endpoint : CoordinatorEndpoints(config_)) {
        const std::string host = SplitHostPort(endpoint).first;
        if (!absl::c_linear_search(look.name(), host)) look.add_name(host);
      }
    }
    look.set_mark(mark_);
    look.set_keep_marks(true);
    if (job().shares_checkpoints() || job().shares_run_folder())
      AddFolders(AbsolutePath(out_dir_), look.mutable_folder());
    doctor::Question question;
    *question.mutable_look() = std::move(look);
    doctor::Host here;
    TakeReply(examiner_.Answer(question).value(), &here);
    *facts_.mutable_here() = std::move(*here.mutable_facts());
    const bool any_reads = absl::c_any_of(
        job().host(), [](const auto& need) { return need.data(); });
    if (IsHere() || !any_reads || data_here_.empty()) return;
    // Its absence here is none of the job's problems.
    if (!MissingDataFiles(config_.data(), data_here_).empty()) return;
    for (doctor::DataFile& file : LookAtData(config_.data(), data_here_))
      *facts_.mutable_here()->add_data_file() = std::move(file);
  }

  doctor::Look LookOf(const doctor::HostNeed& need) const {
    doctor::Look look;
    look.set_own_name(need.name());
    std::set<std::string> names = {hosts_.begin(), hosts_.end()};
    names.insert(config_.coordinator().host());
    look.mutable_name()->Assign(names.begin(), names.end());
    look.set_mark(mark_ + "-there");
    look.set_config(ToText(config_));
    AddFolders(paths_.run_folder, look.mutable_folder());
    if (need.data()) look.set_data_folder(paths_.data_dir);
    for (const std::string& variable : config_.launch().environment()) {
      const size_t equals = variable.find('=');
      if (equals == std::string::npos) continue;
      (*look.mutable_environment())[variable.substr(0, equals)] =
          variable.substr(equals + 1);
    }
    if (need.servers() > 0)
      look.add_program(absl::StrCat(paths_.bin_dir, "/slackline_server"));
    std::set<std::string> own;
    bool built_in = false;
    for (const WorkerProcess& worker : WorkerProcesses(config_)) {
      if (worker.host != need.name()) continue;
      if (worker.command.empty()) {
        built_in = config_.has_model();
        continue;
      }
      const auto words = SplitShellLine(worker.command);
      if (!words.ok() || words->empty()) continue;
      const std::string& program = words->front();
      own.insert(absl::StrContains(program, '/') ? AbsolutePath(program)
                                                 : program);
    }
    if (built_in)
      look.add_program(absl::StrCat(paths_.bin_dir, "/slackline_worker"));
    for (const std::string& program : own) {
      look.add_user_program(program);
      // One is asked: others are alike.
      if (absl::StartsWith(fs::path(program).filename().string(), "python"))
        look.set_python(program);
    }
    if (!own.empty() && !IsHere()) {
      doctor::Folder& working = *look.add_folder();
      working.set_use(doctor::Folder::WORKING);
      std::error_code ignored;
      working.set_path(fs::current_path(ignored).string());
    }
    return look;
  }

  doctor::Host* HostOf(const std::string& name) {
    for (doctor::Host& host : *facts_.mutable_host()) {
      if (host.name() == name) return &host;
    }
    return nullptr;
  }

  // Those that can be asked.
  std::vector<std::string> Reached() {
    std::vector<std::string> reached;
    for (const doctor::Host& host : facts_.host()) {
      if (host.unreached().empty()) reached.push_back(host.name());
    }
    return reached;
  }

  // Its reply, or what keeps it from one, is in facts_ then.
  absl::StatusOr<doctor::Reply> Take(const std::string& host,
                                     absl::StatusOr<agent::Answer> answer) {
    if (absl::IsAborted(answer.status())) return answer.status();
    absl::Status fit = answer.status();
    if (fit.ok()) fit = CheckReply(answer->reply());
    if (fit.ok()) return std::move(*answer->mutable_reply());
    HostOf(host)->set_unreached(std::string(fit.message()));
    return absl::UnavailableError(fit.message());
  }

  absl::Status AskAll(
      absl::Duration wait_max,
      const std::function<doctor::Question(const doctor::HostNeed&)>&
          question) {
    std::vector<RemoteHosts::Request> requests;
    const std::vector<std::string> reached = Reached();
    for (const doctor::HostNeed& need : job().host()) {
      if (!absl::c_linear_search(reached, need.name())) continue;
      agent::ToAgent message;
      *message.mutable_question() = question(need);
      requests.push_back({.host = need.name(), .message = std::move(message)});
    }
    const TimeSource time;
    const absl::Time asked = time.WallNow();
    std::vector<absl::StatusOr<agent::Answer>> answers =
        remote_->AskEach(std::move(requests), wait_max, signals_);
    const absl::Duration took = time.WallNow() - asked;
    for (size_t i = 0; i < answers.size(); ++i) {
      absl::StatusOr<doctor::Reply> reply =
          Take(reached[i], std::move(answers[i]));
      if (absl::IsAborted(reply.status())) return reply.status();
      if (!reply.ok()) continue;
      doctor::Host& host = *HostOf(reached[i]);
      // The host has looked at its clock at some time in between; the quickest
      // answers tell it best.
      const int64_t error = absl::ToInt64Microseconds(took / 2);
      if (host.clock_error_us() == 0 || error < host.clock_error_us()) {
        host.set_clock_error_us(error);
        host.set_clock_ahead_us(absl::ToInt64Microseconds(
            absl::FromUnixNanos(reply->wall_ns()) - (asked + took / 2)));
      }
      TakeReply(*std::move(reply), &host);
    }
    return absl::OkStatus();
  }

  const doctor::HostNeed* NeedOf(const std::string& name) const {
    for (const doctor::HostNeed& need : job().host()) {
      if (need.name() == name) return &need;
    }
    return nullptr;
  }

  // The doors of `to` that are open, and at which processes of host `from` will
  // connect; empty: this machine, which follows the job at its coordinator.
  doctor::Try TargetsAt(const std::string& from, const doctor::Host& to,
                        bool transfer) const {
    const doctor::HostNeed* const source = NeedOf(from);
    const doctor::HostNeed& need = *NeedOf(to.name());
    const bool from_worker = source != nullptr && source->workers() > 0;
    const bool to_servers =
        source != nullptr &&
        (from_worker || from == to.name() || job().servers_need_each_other());
    doctor::Try targets;
    for (int i = 0; i < std::min(need.door_size(), to.opened().door_size());
         ++i) {
      const doctor::Door& door = need.door(i);
      const doctor::Opened::State& state = to.opened().door(i);
      const bool needed = door.coordinator() ||
                          (door.servers() && to_servers) ||
                          (door.workers() && from_worker);
      if (!state.error().empty() || !needed) continue;
      doctor::Try::Target& target = *targets.add_target();
      target.set_host(door.host());
      target.set_port(state.port());
      target.set_label(door.label());
      target.set_transfer(transfer && targets.target_size() == 1);
    }
    return targets;
  }

  // In each round every host tries one other, so no two measure at one host.
  absl::Status TryPairs() {
    const TimeSource time;
    const absl::Time end = time.Now() + kRoundsMax;
    if (!IsHere() && !hosts_.empty()) {
      const doctor::Host& first = facts_.host(0);
      const doctor::Try targets = TargetsAt("", first, /*transfer=*/true);
      doctor::Pair& pair = *facts_.add_pair();
      pair.set_to(first.name());
      *pair.mutable_connection() =
          std::move(*TryDoors(targets).mutable_connection());
    }
    const int count = static_cast<int>(Reached().size());
    for (int round = 0; round < count; ++round) {
      const std::vector<std::string> reached = Reached();
      std::vector<RemoteHosts::Request> requests;
      std::vector<doctor::Pair> pairs;
      for (size_t i = 0; i < reached.size(); ++i) {
        doctor::Pair pair;
        pair.set_from(reached[i]);
        pair.set_to(reached[(i + static_cast<size_t>(round)) % reached.size()]);
        agent::ToAgent message;
        *message.mutable_question()->mutable_try_() =
            TargetsAt(pair.from(), *HostOf(pair.to()), /*transfer=*/round > 0);
        pairs.push_back(std::move(pair));
        requests.push_back({.host = reached[i], .message = std::move(message)});
      }
      if (time.Now() > end) {
        for (doctor::Pair& pair : pairs) {
          pair.set_error("it was not tried, since the others took too long");
          *facts_.add_pair() = std::move(pair);
        }
        continue;
      }
      std::vector<absl::StatusOr<agent::Answer>> answers =
          remote_->AskEach(std::move(requests), kRoundMax, signals_);
      for (size_t i = 0; i < answers.size(); ++i) {
        absl::StatusOr<doctor::Reply> reply =
            Take(reached[i], std::move(answers[i]));
        if (absl::IsAborted(reply.status())) return reply.status();
        if (!reply.ok()) continue;
        *pairs[i].mutable_connection() =
            std::move(*reply->mutable_tried()->mutable_connection());
        *facts_.add_pair() = std::move(pairs[i]);
      }
    }
    return absl::OkStatus();
  }

  const RunOptions& options_;
  const config::ClusterConfig config_;
  RemoteShell shell_;
  SignalWatch* const signals_;
  const std::string mark_;
  std::string out_dir_;
  std::string data_here_;
  RemotePaths paths_;
  std::vector<std::string> hosts_;
  std::vector<doctor::Finding> before_;  // What needs no facts.
  doctor::Facts facts_;
  HostExaminer examiner_;  // Of this machine.
  std::unique_ptr<RemoteHosts> remote_;
};

}  // namespace

int ExamineJob(const DoctorOptions& given) {
  DoctorOptions options = given;
  std::error_code ignored;
  if (fs::is_directory(options.run.config_path, ignored)) {
    if (options.run.out_dir.empty())
      options.run.out_dir = options.run.config_path;
    options.run.config_path += "/cluster.textproto";
  }
  if (const absl::Status hosts = TakeHosts(&options.run); !hosts.ok()) {
    Fail("doctor", hosts);
    return kExitUsage;
  }
  absl::StatusOr<config::ClusterConfig> config =
      LoadJobConfig(options.run.config_path, options.run.overrides);
  if (!config.ok()) {
    Fail("doctor", config.status());
    return kExitUsage;
  }
  const absl::StatusOr<std::unique_ptr<SignalWatch>> signals =
      SignalWatch::Create();
  if (!signals.ok()) return Fail("doctor", signals.status());
  const absl::StatusOr<doctor::Report> report =
      Examination(options.run, *std::move(config), signals->get()).Run();
  if (absl::IsAborted(report.status())) {
    Say("slackline doctor: interrupted");
    return kExitInterrupted;
  }
  if (!report.ok()) return Fail("doctor", report.status());
  if (options.json) {
    PrintJson(ToJson(*report));
  } else {
    PrintResult(ReportText(*report, options.all));
  }
  return report->errors() == 0 ? kExitDone : kExitFailed;
}

}  // namespace slackline
