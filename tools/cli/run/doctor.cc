#include "tools/cli/run/doctor.h"

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
#include "common/process/job_key.h"
#include "common/process/join_request.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "common/version.h"
#include "job/job_config.h"
#include "tools/cli/command_output.h"
#include "tools/cli/data/data_location.h"
#include "tools/cli/doctor/copy_lines.h"
#include "tools/cli/doctor/diagnosis.h"
#include "tools/cli/doctor/examination.h"
#include "tools/cli/doctor/host_examiner.h"
#include "tools/cli/doctor/job_needs.h"
#include "tools/cli/doctor/key_facts.h"
#include "tools/cli/doctor/replies.h"
#include "tools/cli/doctor/report_text.h"
#include "tools/cli/json.h"
#include "tools/cli/launch/ray_bridge.h"
#include "tools/cli/launch/remote_cluster.h"
#include "tools/cli/launch/remote_hosts.h"
#include "tools/cli/launch/remote_shell.h"
#include "tools/cli/members/local_hosts.h"
#include "tools/cli/members/member_launch.h"
#include "tools/cli/run/given_config.h"
#include "tools/cli/run/hosts_of_run.h"
#include "tools/cli/signals.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

constexpr char kHereEngine[] = "here";
// To read the data, and to ask programs for their versions.
constexpr absl::Duration kHostLookMax = absl::Minutes(2);
constexpr absl::Duration kMarksMax = absl::Seconds(20);

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

class JobExaminer {
 public:
  JobExaminer(const RunOptions& options, config::ClusterConfig config,
              RemoteShell shell, SignalWatch* signals)
      : options_(options),
        config_(std::move(config)),
        shell_(std::move(shell)),
        signals_(signals),
        mark_(absl::StrCat(".slackline-", absl::Hex(RandomToken()))) {
    if (shell_.name.empty()) shell_ = HereShell();
  }

  // IsInterruption(): a signal has come. Other errors: nothing could be looked
  // at.
  absl::StatusOr<doctor::Report> Run() {
    doctor::Job job;
    SL_RETURN_IF_ERROR(FindPlaces(&job));
    Examination examination(
        std::move(job),
        [this](std::vector<HostQuestion> questions, absl::Duration wait_max) {
          return remote_->AskDoctors(std::move(questions), wait_max, signals_);
        });
    SL_RETURN_IF_ERROR(Connect(&examination));
    LookHere(&examination);
    SL_RETURN_IF_ERROR(
        examination.AskAll(kHostLookMax, [&](const doctor::HostNeed& need) {
          doctor::Question question;
          *question.mutable_look() = LookOf(examination.job(), need);
          return question;
        }));
    SL_RETURN_IF_ERROR(examination.OpenDoors());
    if (SharesFolders(examination.job())) {
      SL_RETURN_IF_ERROR(
          examination.AskAll(kMarksMax, [this](const doctor::HostNeed&) {
            doctor::Question question;
            question.mutable_see_marks()->set_mark(mark_);
            AddFolders(paths_.run_folder,
                       question.mutable_see_marks()->mutable_folder());
            return question;
          }));
    }
    SL_RETURN_IF_ERROR(examination.MeasurePairs(/*from_here=*/!IsHere()));
    examination.facts().mutable_found()->Assign(found_.begin(), found_.end());
    return Diagnose(examination.facts());
  }

 private:
  static bool SharesFolders(const doctor::Job& job) {
    return job.shares_checkpoints() || job.shares_run_folder();
  }
  bool IsHere() const { return shell_.name == kHereEngine; }

  void Say(doctor::Level level, const std::string& host,
           const std::string& check, const std::string& value,
           const std::string& bound, const std::string& fix) {
    doctor::Finding& finding = found_.emplace_back();
    finding.set_level(level);
    finding.set_host(host);
    finding.set_check(check);
    finding.set_value(value);
    finding.set_bound(bound);
    finding.set_fix(fix);
  }

  // The hosts, the folders, and what can be said without going there.
  absl::Status FindPlaces(doctor::Job* job) {
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
    *job = JobNeeds(config_, {.hosts = std::move(hosts),
                              .coordinator_port = port,
                              .engine = shell_.name,
                              .data_dir = data_here_,
                              .bin_here = AbsolutePath(options_.bin_dir),
                              .bin_there = paths_.bin_dir});
    job->set_version(VersionText("slackline"));
    job->set_data_here(data_here_);
    job->set_data_there(paths_.data_dir);
    if (!fetches) return absl::OkStatus();
    for (doctor::HostNeed& need : *job->mutable_host()) need.set_data(false);
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

  absl::Status Connect(Examination* examination) {
    for (const doctor::HostNeed& need : examination->job().host())
      hosts_.push_back(need.name());
    std::map<std::string, std::string> unreached;
    SL_ASSIGN_OR_RETURN(
        remote_,
        RemoteHosts::Connect({.shell = shell_,
                              .bin_dir = paths_.bin_dir,
                              .hosts = hosts_,
                              .install =
                                  [job = examination->job()](
                                      const std::string& host, bool is_there) {
                                    return InstallText(job, host, is_there);
                                  }},
                             signals_, &unreached));
    for (const auto& [host, why] : unreached) {
      // The host stands before the finding already.
      const std::string prefix = absl::StrCat("host ", host, ": ");
      examination->SetUnreached(host, absl::StartsWith(why, prefix)
                                          ? why.substr(prefix.size())
                                          : why);
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

  void LookHere(Examination* examination) {
    doctor::Look look;
    if (!IsHere()) {
      for (const std::string& endpoint : CoordinatorEndpoints(config_)) {
        const std::string host = SplitHostPort(endpoint).first;
        if (!absl::c_linear_search(look.name(), host)) look.add_name(host);
      }
    }
    *examination->facts().mutable_key() = LookAtKey(config_, options_.key);
    look.set_mark(mark_);
    look.set_keep_marks(true);
    if (SharesFolders(examination->job()))
      AddFolders(AbsolutePath(out_dir_), look.mutable_folder());
    doctor::Question question;
    *question.mutable_look() = std::move(look);
    doctor::Host here;
    AddReply(examiner_.Answer(question).value(), &here);
    doctor::HostFacts& facts = *examination->facts().mutable_here();
    facts = std::move(*here.mutable_facts());
    const bool any_reads =
        absl::c_any_of(examination->job().host(),
                       [](const auto& need) { return need.data(); });
    if (IsHere() || !any_reads || data_here_.empty()) return;
    // Its absence here is none of the job's problems.
    if (!MissingDataFiles(config_.data(), data_here_).empty()) return;
    for (doctor::DataFile& file : LookAtData(config_.data(), data_here_))
      *facts.add_data_file() = std::move(file);
  }

  doctor::Look LookOf(const doctor::Job& job,
                      const doctor::HostNeed& need) const {
    doctor::Look look;
    const std::vector<std::string> members = HostsOfMembers(config_);
    std::set<std::string> names = {members.begin(), members.end()};
    names.insert(config_.coordinator().host());
    look.mutable_name()->Assign(names.begin(), names.end());
    look.set_mark(mark_ + "-there");
    look.set_config(ToText(config_));
    AddFolders(paths_.run_folder, look.mutable_folder());
    if (need.data()) look.set_data_folder(paths_.data_dir);
    *look.mutable_environment() = job.environment();
    *look.mutable_program() = need.program();
    std::set<std::string> own;
    for (const WorkerProcess& worker : WorkerProcesses(config_)) {
      if (worker.host != need.name() || worker.command.empty()) continue;
      const auto words = SplitShellLine(worker.command);
      if (!words.ok() || words->empty()) continue;
      const std::string& program = words->front();
      own.insert(absl::StrContains(program, '/') ? AbsolutePath(program)
                                                 : program);
    }
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

  const RunOptions& options_;
  const config::ClusterConfig config_;
  RemoteShell shell_;
  SignalWatch* const signals_;
  const std::string mark_;
  std::string out_dir_;
  std::string data_here_;
  RemotePaths paths_;
  std::vector<std::string> hosts_;
  std::vector<doctor::Finding> found_;  // What needs no facts.
  HostExaminer examiner_;               // Of this machine.
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
  if (const absl::Status hosts = SetKnownHosts(&options.run); !hosts.ok()) {
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
  std::unique_ptr<RayBridge> bridge;
  const absl::StatusOr<doctor::Report> report =
      [&]() -> absl::StatusOr<doctor::Report> {
    RemoteShell shell = ShellOf(config->launch());
    if (config->launch().has_ray()) {
      SL_ASSIGN_OR_RETURN(
          bridge, RayBridge::Start(
                      {.config = *config,
                       .on_these_hosts = !HasStandIns(*config),
                       .say = [](const std::string& text) { Say(text); }}));
      SL_ASSIGN_OR_RETURN(*config, bridge->AwaitNodes(signals->get()));
      shell = bridge->Shell();
    }
    return JobExaminer(options.run, *std::move(config), std::move(shell),
                       signals->get())
        .Run();
  }();
  if (IsInterruption(report.status())) {
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
