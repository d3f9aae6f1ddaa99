#include "tools/cli/launch/remote_cluster.h"

#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/config/cluster_config.h"
#include "common/config/shell_line.h"
#include "common/io/sha256.h"
#include "common/keys/key_file.h"
#include "common/process/join_request.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "common/utf8.h"
#include "tools/cli/agent/changed_files.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

// To look for programs and data, and to load LibTorch.
constexpr absl::Duration kBeginMax = absl::Minutes(1);
constexpr absl::Duration kRestartMax = absl::Seconds(15);
constexpr absl::Duration kEndMax = absl::Seconds(10);
// An agent says something every five seconds.
constexpr absl::Duration kSilentWhenKilledMax = absl::Seconds(8);

constexpr size_t kFolderHashDigits = 8;

// Without a slash at its end.
std::string WholePath(const std::string& path) {
  if (path.empty()) return path;
  std::error_code ignored;
  fs::path whole = fs::absolute(path, ignored).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  return whole.string();
}

// Whether a job that goes on in the folder of its run reads the file there.
bool IsRecord(const std::string& name) {
  return name == "runs.txt" || absl::EndsWith(name, ".jsonl");
}

std::string MarkName() {
  return absl::StrCat(".slackline-", absl::Hex(RandomToken()));
}

// A file in a folder here, while it lives: whoever sees it, sees the folder.
class FolderMark {
 public:
  explicit FolderMark(const std::string& folder)
      : name_(MarkName()), path_(absl::StrCat(folder, "/", name_)) {
    std::ofstream file(path_);
  }
  FolderMark(const FolderMark&) = delete;
  FolderMark& operator=(const FolderMark&) = delete;
  ~FolderMark() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  const std::string& name() const { return name_; }

 private:
  const std::string name_;
  const std::string path_;
};

agent::Member WireMember(const JobProcess& member) {
  agent::Member wire;
  wire.set_worker(member.worker);
  wire.set_index(member.index);
  return wire;
}

}  // namespace

RemotePaths RemotePathsOf(const config::Launch& launch,
                          const std::string& bin_dir,
                          const std::string& out_dir,
                          const std::string& data_dir) {
  RemotePaths paths = {.bin_dir = launch.bin_dir(),
                       .run_folder = WholePath(out_dir),
                       .data_dir = launch.data_dir()};
  if (!launch.has_bin_dir()) paths.bin_dir = WholePath(bin_dir);
  if (!launch.has_data_dir()) paths.data_dir = WholePath(data_dir);
  if (launch.has_runs_dir()) {
    // Folders of one name in several places here have several names there.
    const fs::path here(paths.run_folder);
    paths.run_folder =
        absl::StrCat(launch.runs_dir(), "/", here.filename().string(), "-",
                     Sha256Hex(absl::StrCat(OwnHostName(), ":", here.string()))
                         .substr(0, kFolderHashDigits));
  }
  return paths;
}

std::vector<std::string> HostsOfMembers(const config::ClusterConfig& config) {
  std::vector<std::string> hosts;
  const auto add = [&](const std::string& host) {
    if (std::find(hosts.begin(), hosts.end(), host) == hosts.end())
      hosts.push_back(host);
  };
  for (const ServerProcess& server : ServerProcesses(config)) add(server.host);
  for (const WorkerProcess& worker : WorkerProcesses(config)) add(worker.host);
  return hosts;
}

absl::Status CheckRemoteConfig(const config::ClusterConfig& config,
                               const std::string& engine) {
  if (!IsUtf8(config.launch().runs_dir()))
    return CheckPathText("launch.runs_dir", config.launch().runs_dir());
  const std::string& folder = config.checkpoint().folder();
  if (config.has_checkpoint() && !folder.empty() && folder[0] != '/') {
    return absl::InvalidArgumentError(absl::StrCat(
        "checkpoint.folder: value is ", folder, "; with --on ", engine,
        " an absolute path is required, of a folder that all hosts share"));
  }
  return absl::OkStatus();
}

RemoteCluster::RemoteCluster(Options options, RemoteHosts* hosts)
    : options_(std::move(options)),
      remote_(hosts),
      checkpoints_(
          options_.config.has_checkpoint()
              ? CheckpointRoot(options_.config, options_.launch.out_dir)
              : ""),
      launch_(options_.launch),
      sender_mark_(MarkName()),
      logs_(options_.launch.out_dir),
      returning_(
          {.begin =
               [this](const std::string& host) { return BeginRequestTo(host); },
           .check =
               [this](const std::string& host, const agent::Answer& answer) {
                 return CheckShared(host, answer);
               },
           .start =
               [this](const JobProcess& member) {
                 logs_.Begin(member);
                 return StartOf(member, RelaunchOf(launch_, member));
               }},
          hosts) {
  launch_.bin_dir = options_.paths.bin_dir;
  launch_.data_dir = options_.paths.data_dir;
  launch_.out_dir = options_.paths.run_folder;
  launch_.cluster_file =
      absl::StrCat(options_.paths.run_folder, "/cluster.textproto");
  if (!launch_.key_folder.empty())
    launch_.key_folder = options_.paths.run_folder;
  launch_.resume = WholePath(launch_.resume);
  for (const ServerProcess& server : ServerProcesses(options_.config))
    hosts_of_[{.worker = false, .index = server.index}] = server.host;
  for (const WorkerProcess& worker : WorkerProcesses(options_.config))
    hosts_of_[{.worker = true, .index = worker.rank}] = worker.host;
}

absl::StatusOr<std::unique_ptr<Cluster>> RemoteCluster::Start(
    const Options& options, RemoteHosts* hosts, SignalWatch* signals) {
  // No make_unique: the constructor is private.
  std::unique_ptr<RemoteCluster> cluster(new RemoteCluster(options, hosts));
  std::vector<std::string> lost;
  for (const std::string& host : hosts->hosts()) {
    if (!hosts->On(host).Lost().ok()) lost.push_back(host);
  }
  if (!lost.empty()) {
    SL_RETURN_IF_ERROR(hosts->Reconnect(lost, kHostReturnMax, signals));
  }
  SL_RETURN_IF_ERROR(cluster->logs_.MakeFolder());
  const bool is_first = hosts->WriteFilesTo(options.launch.out_dir);
  SL_RETURN_IF_ERROR(cluster->Begin(hosts->hosts(), signals));
  if (is_first) SL_RETURN_IF_ERROR(cluster->PutRecords());
  const std::vector<JobProcess> members = MembersOf(options.launch);
  std::map<std::string, JobProcess> last_forked;
  for (const JobProcess& member : members) {
    if (IsForked(cluster->launch_, member))
      last_forked[cluster->HostOf(member)] = member;
  }
  std::vector<RemoteHosts::Request> requests;
  for (const JobProcess& member : members) {
    const std::string& host = cluster->HostOf(member);
    cluster->logs_.Begin(member);
    RemoteHosts::Request request = {
        .host = host,
        .message =
            cluster->StartOf(member, LaunchOf(cluster->launch_, member))};
    agent::Start& start = *request.message.mutable_start();
    // What a fork server makes has its environment.
    start.set_forked(IsForked(cluster->launch_, member) &&
                     options.config.launch().environment_size() == 0);
    start.set_last_forked(last_forked.count(host) > 0 &&
                          last_forked[host] == member);
    requests.push_back(std::move(request));
  }
  SL_ASSIGN_OR_RETURN(const std::vector<agent::Answer> answers,
                      hosts->Ask(std::move(requests), kBeginMax, signals));
  for (size_t i = 0; i < members.size(); ++i)
    cluster->running_[members[i]] = answers[i].pid();
  return cluster;
}

RemoteCluster::~RemoteCluster() {
  std::vector<RemoteHosts::Request> requests;
  for (const std::string& host : remote_->hosts()) {
    AgentLink& link = remote_->On(host);
    if (!link.Lost().ok() || !link.hello().has_value()) continue;
    agent::ToAgent message;
    message.mutable_end_processes();
    requests.push_back({.host = host, .message = std::move(message)});
  }
  // An agent that does not answer is ended with its connection.
  remote_->Ask(std::move(requests), kEndMax, nullptr).IgnoreError();
  for (const std::string& host : remote_->hosts())
    remote_->On(host).TakeExits();
}

absl::Status RemoteCluster::PutRecords() {
  std::error_code error;
  std::vector<std::string> names;
  for (const auto& entry :
       fs::directory_iterator(options_.launch.out_dir, error)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file(error) && IsSentName(name) && IsRecord(name))
      names.push_back(name);
  }
  for (const std::string& name : names) {
    std::ifstream file(absl::StrCat(options_.launch.out_dir, "/", name),
                       std::ios::binary);
    std::string data(kFilePartBytesMax, '\0');
    bool anew = true;
    while (file) {
      file.read(data.data(), static_cast<std::streamsize>(data.size()));
      agent::ToAgent message;
      agent::FilePart& part = *message.mutable_put_file();
      part.set_name(name);
      part.set_anew(anew);
      part.set_data(data.data(), static_cast<size_t>(file.gcount()));
      part.set_complete(file.eof());
      anew = false;
      remote_->On(remote_->hosts().front()).Send(std::move(message));
    }
    if (!file.eof()) {
      return absl::UnavailableError(
          absl::StrCat(options_.launch.out_dir, "/", name, " cannot be read"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<agent::Keys> RemoteCluster::KeysOf(
    const std::string& host) const {
  agent::Keys keys;
  for (const auto& [member, where] : hosts_of_) {
    const std::string file = MemberKeyFile(options_.launch, member);
    if (where != host || file.empty()) continue;
    SL_ASSIGN_OR_RETURN(const keys::Key key, ReadKeyFile(file));
    if (member.worker) {
      (*keys.mutable_worker_key())[member.index] = KeyText(key);
    } else {
      keys.set_job_key(KeyText(key));
    }
  }
  return keys;
}

void RemoteCluster::ExchangeKeys() {
  for (const std::string& host : remote_->hosts()) {
    absl::StatusOr<agent::Keys> keys = KeysOf(host);
    if (!keys.ok()) {
      notes_.push_back(
          absl::StrCat("warning: the new keys of the job do not get to host ",
                       host, ": ", keys.status().message()));
      continue;
    }
    agent::ToAgent message;
    *message.mutable_keys() = *std::move(keys);
    remote_->On(host).Send(std::move(message));
  }
}

agent::Begin RemoteCluster::BeginOf(const std::string& host) const {
  agent::Begin begin;
  begin.set_run_folder(launch_.out_dir);
  begin.set_config(options_.config_text);
  std::vector<std::string> programs;
  const auto need = [&](const std::string& program) {
    if (std::find(programs.begin(), programs.end(), program) == programs.end())
      programs.push_back(program);
  };
  for (const auto& [member, where] : hosts_of_) {
    if (where != host) continue;
    const MemberLaunch launch = LaunchOf(launch_, member);
    need(launch.command[0]);
    if (!member.worker) {
      begin.set_resume(launch_.resume);
      continue;
    }
    const bool has_data = options_.config.has_data();
    if (!has_data || !options_.config.data().has_teacher_student())
      begin.set_data_folder(launch_.data_dir);
    std::error_code ignored;
    if (IsForked(launch_, member)) {
      begin.set_fork_program(launch.command[0]);
    } else {
      begin.set_working_folder(fs::current_path(ignored).string());
    }
  }
  begin.mutable_program()->Assign(programs.begin(), programs.end());
  return begin;
}

absl::Status RemoteCluster::Begin(const std::vector<std::string>& hosts,
                                  SignalWatch* signals) {
  std::vector<std::string> others = hosts;
  const auto first =
      std::find(others.begin(), others.end(), remote_->hosts().front());
  if (first != others.end()) {
    const absl::Status begun = BeginTogether({*first}, signals);
    others.erase(first);
    if (absl::IsCancelled(begun) || absl::IsAborted(begun)) return begun;
    // What is missing there may be missing everywhere.
    if (!begun.ok()) {
      const absl::Status too = BeginTogether(others, signals);
      if (too.ok()) return begun;
      return absl::Status(begun.code(),
                          absl::StrCat(begun.message(), "\n", too.message()));
    }
  }
  return BeginTogether(others, signals);
}

absl::Status RemoteCluster::BeginTogether(const std::vector<std::string>& hosts,
                                          SignalWatch* signals) {
  std::vector<RemoteHosts::Request> requests;
  std::vector<std::shared_ptr<void>> needs;  // Until all have answered.
  for (const std::string& host : hosts) {
    SL_ASSIGN_OR_RETURN(ReturningHosts::BeginRequest request,
                        BeginRequestTo(host));
    requests.push_back({.host = host, .message = std::move(request.message)});
    needs.push_back(std::move(request.needs));
  }
  SL_ASSIGN_OR_RETURN(const std::vector<agent::Answer> answers,
                      remote_->Ask(std::move(requests), kBeginMax, signals));
  for (size_t i = 0; i < hosts.size(); ++i)
    SL_RETURN_IF_ERROR(CheckShared(hosts[i], answers[i]));
  return absl::OkStatus();
}

absl::StatusOr<ReturningHosts::BeginRequest> RemoteCluster::BeginRequestTo(
    const std::string& host) const {
  struct Marks {
    explicit Marks(const std::string& folder) : run(folder) {}
    const FolderMark run;
    std::optional<FolderMark> checkpoints;
  };
  const auto marks = std::make_shared<Marks>(options_.launch.out_dir);
  agent::Begin begin = BeginOf(host);
  SL_ASSIGN_OR_RETURN(*begin.mutable_keys(), KeysOf(host));
  begin.set_run_mark(marks->run.name());
  begin.set_sender_mark(sender_mark_);
  begin.set_makes_sender_mark(host == remote_->hosts().front());
  if (!checkpoints_.empty()) {
    std::error_code error;
    fs::create_directories(checkpoints_, error);
    if (error) {
      return absl::UnavailableError(
          absl::StrCat("checkpoint.folder: ", checkpoints_,
                       " cannot be made here: ", error.message()));
    }
    marks->checkpoints.emplace(checkpoints_);
    begin.set_checkpoint_folder(
        CheckpointRoot(options_.config, launch_.out_dir));
    begin.set_checkpoint_mark(marks->checkpoints->name());
  }
  ReturningHosts::BeginRequest request;
  *request.message.mutable_begin() = std::move(begin);
  request.needs = marks;
  return request;
}

absl::Status RemoteCluster::CheckShared(const std::string& host,
                                        const agent::Answer& answer) const {
  // Worker 0 writes checkpoints with all-reduce.
  const bool writes =
      std::any_of(hosts_of_.begin(), hosts_of_.end(), [&](const auto& member) {
        return member.second == host &&
               (!member.first.worker || member.first.index == 0);
      });
  if (!writes) return absl::OkStatus();
  if (!checkpoints_.empty() && !answer.shares_checkpoints()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "host ", host, ": ", CheckpointRoot(options_.config, launch_.out_dir),
        " there is not the folder ", WholePath(checkpoints_),
        " here; the checkpoints of a job are in one folder that this machine "
        "and all hosts of servers share: name such a one by checkpoint { "
        "folder: ... }, or leave checkpoint out"));
  }
  if (!answer.checkpoint_problem().empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "host ", host, ": checkpoint.folder: ", answer.checkpoint_problem()));
  }
  if (launch_.any_server_takes_over && !answer.shares_run_folder()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "host ", host, ": ", launch_.out_dir, " there is not the folder ",
        WholePath(options_.launch.out_dir),
        " here; any server may go on as the coordinator of this job "
        "(coordinator.etcd), so its records are in one folder that this "
        "machine and all hosts of servers share"));
  }
  return absl::OkStatus();
}

agent::ToAgent RemoteCluster::StartOf(const JobProcess& member,
                                      const MemberLaunch& launch) const {
  agent::ToAgent message;
  agent::Start& start = *message.mutable_start();
  *start.mutable_member() = WireMember(member);
  start.mutable_command()->Assign(launch.command.begin(), launch.command.end());
  for (const std::string& variable : options_.config.launch().environment()) {
    const std::pair<std::string, std::string> sides =
        absl::StrSplit(variable, absl::MaxSplits('=', 1));
    (*start.mutable_environment())[sides.first] = sides.second;
  }
  for (const auto& [name, value] : launch.environment)
    (*start.mutable_environment())[name] = value;
  start.set_log(logs_.NameOf(member));
  start.set_log_bytes_max(launch_.log_bytes_max);
  return message;
}

std::vector<MemberExit> RemoteCluster::Reap() {
  std::vector<MemberExit> exits;
  GoOnWithReturning(TimeSource().Now(), &exits);
  for (const std::string& host : remote_->hosts()) {
    AgentLink& link = remote_->On(host);
    // In this order: what was said before the loss counts.
    const absl::Status lost = link.Lost();
    for (const agent::Exit& exit : link.TakeExits()) {
      const JobProcess member = {.worker = exit.member().worker(),
                                 .index = exit.member().index()};
      const auto found = running_.find(member);
      if (found == running_.end() || HostOf(member) != host) continue;
      running_.erase(found);
      exits.push_back(
          {.member = member,
           .pid = exit.pid(),
           .status = {.code = exit.code(),
                      .signal = exit.signal(),
                      .memory_bytes_max = exit.memory_bytes_max(),
                      .maybe_out_of_memory = exit.maybe_out_of_memory()},
           .error_line = ErrorLine(ReadLogTail(LogPath(member))),
           .host = host});
    }
    if (lost.ok()) continue;
    const bool had_any = absl::c_any_of(running_, [&](const auto& member) {
      return HostOf(member.first) == host;
    });
    if (had_any) {
      notes_.push_back(absl::StrCat("the connection to host ", host,
                                    " is lost, and its processes with "
                                    "it, which are killed there: ",
                                    lost.message()));
    }
    for (auto member = running_.begin(); member != running_.end();) {
      if (HostOf(member->first) != host) {
        ++member;
        continue;
      }
      // As if it had been killed: its agent kills it, or the host is gone.
      exits.push_back({.member = member->first,
                       .pid = member->second,
                       .status = {.signal = SIGKILL},
                       .error_line = std::string(lost.message()),
                       .host = host,
                       .lost_with_host = true});
      member = running_.erase(member);
    }
  }
  return exits;
}

absl::StatusOr<bool> RemoteCluster::Restart(const JobProcess& member) {
  const std::string& host = HostOf(member);
  if (returning_.Awaits(host) || !remote_->On(host).Lost().ok()) {
    returning_.Add(host, member, TimeSource().Now());
    return false;
  }
  logs_.Begin(member);
  const absl::StatusOr<std::vector<agent::Answer>> answers = remote_->Ask(
      {{.host = host, .message = StartOf(member, RelaunchOf(launch_, member))}},
      kRestartMax, nullptr);
  if (!answers.ok()) return Annotate(answers.status(), member.ToString());
  running_[member] = answers->front().pid();
  return true;
}

MemberExit RemoteCluster::NotStarted(const JobProcess& member,
                                     const std::string& why) const {
  return {.member = member,
          .pid = 0,
          .status = {.signal = SIGKILL},
          .error_line = why,
          .host = HostOf(member),
          .lost_with_host = true};
}

void RemoteCluster::GoOnWithReturning(absl::Time now,
                                      std::vector<MemberExit>* exits) {
  ReturningHosts::Progress progress = returning_.Poll(now);
  for (const auto& [member, pid] : progress.started) {
    running_[member] = pid;
    notes_.push_back(absl::StrCat("started ", member.ToString(), " again on ",
                                  HostOf(member)));
  }
  for (const ReturningHosts::Failed& failed : progress.failed) {
    notes_.push_back(absl::StrCat(failed.member.ToString(),
                                  " is not started again: ", failed.why));
    exits->push_back(NotStarted(failed.member, failed.why));
  }
  for (std::string& note : progress.notes) notes_.push_back(std::move(note));
  exits->insert(exits->end(), dropped_.begin(), dropped_.end());
  dropped_.clear();
}

void RemoteCluster::Signal(const JobProcess& member, int signal) {
  if (returning_.Drop(member)) {
    dropped_.push_back(NotStarted(member, "it was not started again"));
    return;
  }
  if (running_.count(member) == 0) return;
  AgentLink& link = remote_->On(HostOf(member));
  // A host that says nothing kills nobody; its agent does when it hears
  // nothing.
  if (signal == SIGKILL && link.SilentFor() > kSilentWhenKilledMax)
    link.GiveUp();
  agent::ToAgent message;
  *message.mutable_signal()->mutable_member() = WireMember(member);
  message.mutable_signal()->set_signal(signal);
  link.Send(std::move(message));
}

void RemoteCluster::SignalAllBut(const JobProcess& member, int signal) {
  for (const auto& [other, host] : hosts_of_) {
    if (other != member) Signal(other, signal);
  }
}

std::string RemoteCluster::MissingFiles() {
  std::vector<std::string> names;
  std::string host;
  std::string why;
  for (const SentFiles::Missing& missing : remote_->MissingFiles()) {
    // One of a lost host never comes, and was said to be lost with it.
    if (!remote_->On(missing.host).Lost().ok()) continue;
    names.push_back(missing.name);
    host = missing.host;
    why = missing.why;
  }
  if (names.empty()) return "";
  return absl::StrCat(absl::StrJoin(names, ", "), " of host ", host,
                      names.size() == 1 ? " is" : " are",
                      " not here yet, but in ", launch_.out_dir,
                      " there: ", why);
}

std::vector<std::string> RemoteCluster::TakeNotes() {
  std::vector<std::string> notes = std::exchange(notes_, {});
  for (const std::string& host : remote_->hosts()) {
    for (std::string& note : remote_->On(host).TakeNotes())
      notes.push_back(std::move(note));
  }
  return notes;
}

}  // namespace slackline
