#include "tools/cli/agent/agent.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/config/cluster_config.h"
#include "common/io/atomic_file.h"
#include "common/io/descriptor.h"
#include "common/keys/key_file.h"
#include "common/process/exit_code.h"
#include "common/process/job_key.h"
#include "common/process/join_request.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "common/version.h"
#include "job/job_config.h"
#include "proto/agent.pb.h"
#include "tools/cli/agent/agent_frames.h"
#include "tools/cli/agent/changed_files.h"
#include "tools/cli/agent/sent_files.h"
#include "tools/cli/data/data_location.h"
#include "tools/cli/doctor/host_examiner.h"
#include "tools/cli/members/capacity.h"
#include "tools/cli/members/local_hosts.h"
#include "tools/cli/members/logs.h"
#include "tools/cli/members/member_processes.h"
#include "tools/cli/process.h"
#include "tools/cli/signals.h"

namespace slackline {
namespace {

constexpr absl::Duration kLookEvery = absl::Milliseconds(100);
constexpr absl::Duration kPollMax = absl::Milliseconds(20);
constexpr absl::Duration kAliveEvery = absl::Seconds(5);
constexpr absl::Duration kSilenceMax = absl::Minutes(1);
// A failed worker's exit waits so long for what it has written.
constexpr absl::Duration kFailureWaitMax = absl::Seconds(2);
// From SIGTERM to the agent until it tells its processes, too.
constexpr absl::Duration kHangUpAfter = absl::Seconds(1);
// From SIGTERM on, where nobody is there any more to say what is to be done.
constexpr absl::Duration kTerminatedMax = absl::Seconds(30);
// What waits to be sent; then files wait.
constexpr size_t kWaitingBytesMax = 4 << 20;

JobProcess MemberOf(const agent::Member& member) {
  return {.worker = member.worker(), .index = member.index()};
}

absl::Status FolderError(absl::string_view what, const std::string& folder,
                         int error) {
  return absl::UnavailableError(
      absl::StrCat("folder ", folder, " ", what, ": ", std::strerror(error)));
}

absl::Status WithFix(const absl::Status& status, absl::string_view fix) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), "; ", fix));
}

// Makes the folder, and sees that files can be written there.
absl::Status MakeFolder(const std::string& folder) {
  if (folder.empty() || folder[0] != '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("folder '", folder, "' is no absolute path"));
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return FolderError("cannot be made", folder, error.value());
  if (access(folder.c_str(), W_OK | X_OK) != 0)
    return FolderError("cannot be written to", folder, errno);
  return absl::OkStatus();
}

bool IsMarked(const std::string& folder, const std::string& mark) {
  std::error_code ignored;
  return !folder.empty() && !mark.empty() &&
         std::filesystem::exists(absl::StrCat(folder, "/", mark), ignored);
}

// The first program that cannot be started from the working folder.
absl::Status FindPrograms(const agent::Begin& begin) {
  for (const std::string& program : begin.program()) {
    const absl::Status found = FindProgram(program).status();
    SL_RETURN_IF_ERROR(
        absl::StartsWith(program, ".")
            ? WithFix(found, absl::StrCat(
                                 "it is looked for in ", begin.working_folder(),
                                 ", where slackline run was called: put it "
                                 "there on this host, too"))
            : found);
  }
  return absl::OkStatus();
}

absl::Status FindDataFiles(const agent::Begin& begin) {
  if (begin.data_folder().empty()) return absl::OkStatus();
  SL_ASSIGN_OR_RETURN(const config::ClusterConfig config,
                      ParseJobConfig(begin.config(), "cluster.textproto"));
  std::error_code ignored;
  const bool is_folder =
      std::filesystem::is_directory(begin.data_folder(), ignored);
  std::vector<std::string> missing;
  if (config.has_data())
    missing = MissingDataFiles(config.data(), begin.data_folder());
  if (is_folder && missing.empty()) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(
      "the data are not in ", begin.data_folder(),
      is_folder ? absl::StrCat(": ", absl::StrJoin(missing, ", "),
                               missing.size() == 1 ? " is" : " are", " missing")
                : ", which is no folder",
      "; copy them there, or name their folder there by --set "
      "launch.data_dir=DIR"));
}

class Agent {
 public:
  Agent(Descriptor in, Descriptor out, SignalWatch* signals,
        const std::string& user_key)
      : in_(std::move(in)),
        out_(std::move(out)),
        signals_(signals),
        heard_(time_.Now()),
        examiner_(user_key) {}

  int Run() {
    SendHello();
    while (Receive() && GoOnAfterSignals()) {
      HangUpInTime();
      Reap();
      SendFiles();
      if (time_.Now() - said_ > kAliveEvery) {
        agent::FromAgent alive;
        alive.mutable_alive();
        Send(alive);
      }
      if (!Write()) break;
      WaitForSomething();
    }
    if (terminated_) AwaitProcesses();
    EndAll();
    key_files_.clear();
    return kExitDone;
  }

 private:
  // The host is shut down, or a batch system ends what runs here, which sends
  // SIGTERM to all processes. They may have a checkpoint to write, and tell
  // `slackline run`, which ends this agent. Those that have had no signal get
  // SIGHUP, which asks for the same, and for nothing after SIGTERM. False: the
  // end is to be at once.
  bool GoOnAfterSignals() {
    const SignalWatch::Requests requests = signals_->Wait(absl::ZeroDuration());
    if (requests.all() == 0) return true;
    if (requests.all() > requests.terminations || terminated_) return false;
    terminated_ = true;
    hang_up_at_ = time_.Now() + kHangUpAfter;
    agent::FromAgent message;
    message.set_note(absl::StrCat("host ", host_name_,
                                  ": SIGTERM has come there; its processes "
                                  "are told to end"));
    Send(message);
    return true;
  }

  void HangUpInTime() {
    if (time_.Now() < hang_up_at_) return;
    hang_up_at_ = absl::InfiniteFuture();
    processes_.SignalAllBut(std::nullopt, SIGHUP);
  }

  // They end by themselves, or not.
  void AwaitProcesses() {
    const absl::Time end = time_.Now() + kTerminatedMax;
    while (processes_.AnyRuns() && time_.Now() < end &&
           signals_->Wait(kPollMax).all() == 0) {
      HangUpInTime();
      processes_.Reap();
    }
  }

  void Send(const agent::FromAgent& message) {
    waiting_ += AgentFrame(message);
    said_ = time_.Now();
  }

  void SendHello() {
    waiting_ = std::string(kAgentGreeting);
    agent::FromAgent message;
    agent::Hello& hello = *message.mutable_hello();
    hello.set_version(VersionNumber());
    hello.set_protocol(kProtocol);
    hello.set_host_name(host_name_);
    const Capacity here = CapacityHere();
    hello.set_cores(here.cores);
    hello.set_memory_bytes(here.memory_bytes);
    Send(message);
  }

  // False: nobody is there any more.
  bool Receive() {
    std::array<char, 64 << 10> bytes;
    while (true) {
      const ssize_t received = read(in_.get(), bytes.data(), bytes.size());
      if (received < 0 && errno == EINTR) continue;
      if (received < 0 && errno == EAGAIN) break;
      if (received <= 0) return false;
      heard_ = time_.Now();
      reader_.Append({bytes.data(), static_cast<size_t>(received)});
      if (static_cast<size_t>(received) < bytes.size()) break;
    }
    while (true) {
      agent::ToAgent message;
      const absl::StatusOr<bool> whole = reader_.Next(&message);
      if (!whole.ok()) {
        std::fprintf(stderr, "slackline agent: %s\n",
                     std::string(whole.status().message()).c_str());
        return false;
      }
      if (!*whole) break;
      Handle(message);
    }
    if (time_.Now() - heard_ <= kSilenceMax) return true;
    std::fprintf(stderr, "slackline agent: nothing was heard for a minute\n");
    return false;
  }

  void Handle(const agent::ToAgent& message) {
    agent::FromAgent reply;
    agent::Answer& answer = *reply.mutable_answer();
    answer.set_request(message.request());
    absl::Status done;
    switch (message.what_case()) {
      case agent::ToAgent::kBegin:
        done = Begin(message.begin(), &answer);
        break;
      case agent::ToAgent::kStart:
        done = Start(message.start(), &answer);
        break;
      case agent::ToAgent::kReservePort:
        done = ReservePort(message.reserve_port(), &answer);
        break;
      case agent::ToAgent::kEndProcesses:
        processes_ = MemberProcesses();
        exits_.clear();
        break;
      case agent::ToAgent::kQuestion: {
        absl::StatusOr<doctor::Reply> reply_to =
            examiner_.Answer(message.question());
        done = reply_to.status();
        if (done.ok()) *answer.mutable_reply() = *std::move(reply_to);
        break;
      }
      case agent::ToAgent::kSignal:
        processes_.Signal(MemberOf(message.signal().member()),
                          message.signal().signal());
        return;
      case agent::ToAgent::kAlive:
        return;
      case agent::ToAgent::kPutFile:
        PutFile(message.put_file());
        return;
      case agent::ToAgent::kKeys:
        ExchangeKeys(message.keys());
        return;
      case agent::ToAgent::kSendAgain:
        if (files_.has_value()) files_->SendAgain(message.send_again());
        next_look_ = time_.Now();
        return;
      case agent::ToAgent::WHAT_NOT_SET:
        done = absl::InvalidArgumentError("an empty message");
    }
    answer.set_code(static_cast<int>(done.code()));
    answer.set_text(std::string(done.message()));
    Send(reply);
  }

  absl::Status Begin(const agent::Begin& begin, agent::Answer* answer) {
    SL_RETURN_IF_ERROR(
        WithFix(MakeFolder(begin.run_folder()),
                "name another by --set launch.runs_dir=DIR, or --out"));
    const bool shares = IsMarked(begin.run_folder(), begin.run_mark());
    answer->set_shares_run_folder(shares);
    answer->set_shares_checkpoints(
        IsMarked(begin.checkpoint_folder(), begin.checkpoint_mark()));
    if (answer->shares_checkpoints()) {
      answer->set_checkpoint_problem(
          std::string(MakeFolder(begin.checkpoint_folder()).message()));
    }
    SL_RETURN_IF_ERROR(FindDataFiles(begin));
    std::error_code ignored;
    if (!begin.resume().empty() &&
        !std::filesystem::is_directory(begin.resume(), ignored)) {
      return absl::NotFoundError(absl::StrCat(
          "the checkpoint ", begin.resume(),
          " is not there; checkpoints of a job on several hosts are in a "
          "folder that all of them share (checkpoint.folder)"));
    }
    const std::string folder = begin.working_folder().empty()
                                   ? begin.run_folder()
                                   : begin.working_folder();
    if (chdir(folder.c_str()) != 0) {
      return WithFix(
          Annotate(FolderError("cannot be entered", folder, errno),
                   "the programs of workers run where slackline run does"),
          "make it there, or start the run in a folder that all hosts have");
    }
    SL_RETURN_IF_ERROR(FindPrograms(begin));
    run_folder_ = begin.run_folder();
    if (!shares) {
      SL_RETURN_IF_ERROR(MakeFolder(absl::StrCat(begin.run_folder(), "/logs")));
      SL_RETURN_IF_ERROR(WriteFileAtomically(
          absl::StrCat(begin.run_folder(), "/cluster.textproto"),
          {begin.config()}));
      if (const auto config =
              ParseJobConfig(begin.config(), "cluster.textproto");
          config.ok()) {
        // Other agents may have this folder, too: theirs have lower ranks.
        RemoveKeysOfWorkersFrom(
            run_folder_, static_cast<int>(WorkerProcesses(*config).size()));
      }
      SL_RETURN_IF_ERROR(TakeKeys(begin.keys()));
      files_.emplace(begin.run_folder(), MaySend(begin));
      put_.emplace(begin.run_folder());
    } else {
      files_.reset();
      put_.reset();
    }
    if (!begin.fork_program().empty())
      processes_.LoadForkServer(begin.fork_program());
    return absl::OkStatus();
  }

  // They go with this agent: the folder is of this host alone.
  absl::Status TakeKeys(const agent::Keys& keys) {
    // Those before them are replaced, and removed by nobody.
    const auto take = [&](const std::string& name,
                          const std::string& text) -> absl::Status {
      if (text.empty()) return absl::OkStatus();
      SL_ASSIGN_OR_RETURN(const keys::Key key, ParseKey(text, name));
      SL_ASSIGN_OR_RETURN(
          TemporaryKeyFile file,
          TemporaryKeyFile::Write(absl::StrCat(run_folder_, "/", name), key));
      key_files_.push_back(std::move(file));
      return absl::OkStatus();
    };
    SL_RETURN_IF_ERROR(take(kJobKeyName, keys.job_key()));
    for (const auto& [rank, text] : keys.worker_key())
      SL_RETURN_IF_ERROR(take(WorkerKeyName(rank), text));
    return absl::OkStatus();
  }

  void ExchangeKeys(const agent::Keys& keys) {
    if (!put_.has_value()) return;
    const absl::Status taken = TakeKeys(keys);
    if (taken.ok()) return;
    agent::FromAgent message;
    message.set_note(absl::StrCat(
        "warning: host ", host_name_,
        ": the new keys of the job cannot be kept there, so its processes will "
        "be refused when they count: ",
        taken.message()));
    Send(message);
  }

  void PutFile(const agent::FilePart& part) {
    if (!put_.has_value()) return;
    const absl::Status taken = put_->Add(host_name_, part);
    if (taken.ok()) return;
    agent::FromAgent message;
    message.set_note(absl::StrCat("warning: host ", host_name_,
                                  ": the records of the run are not complete "
                                  "there: ",
                                  taken.message()));
    Send(message);
  }

  // Whether files beside logs are sent from here.
  bool MaySend(const agent::Begin& begin) {
    if (!begin.makes_sender_mark())
      return !IsMarked(begin.run_folder(), begin.sender_mark());
    RemoveMark();
    mark_ = absl::StrCat(begin.run_folder(), "/", begin.sender_mark());
    // Without it others send them as well, which costs time.
    WriteFileAtomically(mark_, {}).IgnoreError();
    return true;
  }

  void RemoveMark() {
    std::error_code ignored;
    if (!mark_.empty()) std::filesystem::remove(mark_, ignored);
  }

  absl::Status Start(const agent::Start& start, agent::Answer* answer) {
    if (run_folder_.empty() || start.command().empty() ||
        !IsSentName(start.log())) {
      return absl::InvalidArgumentError(
          "a process without a run, a command or a log");
    }
    // Its name is free where the run was started, so one here is of another
    // run.
    const std::string log = absl::StrCat(run_folder_, "/", start.log());
    std::error_code ignored;
    std::filesystem::remove(log, ignored);
    const absl::Status started = processes_.Start(
        MemberOf(start.member()),
        {.command = {start.command().begin(), start.command().end()},
         .environment = {start.environment().begin(),
                         start.environment().end()}},
        {.path = log, .bytes_max = std::max<int64_t>(start.log_bytes_max(), 0)},
        start.forked());
    if (files_.has_value()) {
      files_->AddLog(start.log());
      files_->AddLog(OldLogOf(start.log()));
    }
    if (start.last_forked()) processes_.EndForks();
    answer->set_pid(processes_.PidOf(MemberOf(start.member())));
    return started;
  }

  absl::Status ReservePort(const agent::ReservePort& take,
                           agent::Answer* answer) {
    if (take.port() != 0) return CheckPortFree(take.host(), take.port());
    SL_ASSIGN_OR_RETURN(PortReservation port,
                        PortReservation::AnyFree(take.host()));
    answer->set_port(port.port());
    ports_.push_back(std::move(port));
    return absl::OkStatus();
  }

  void Reap() {
    processes_.PutLongLogsAside();
    std::vector<MemberExit> ended = processes_.Reap();
    if (ended.empty()) return;
    for (const MemberExit& exit : ended) exits_.emplace_back(exit, time_.Now());
    next_look_ = time_.Now();  // What they have written goes first.
  }

  void SendFiles() {
    if (time_.Now() < next_look_ || waiting_.size() > kWaitingBytesMax) return;
    bool all = true;
    if (files_.has_value()) {
      std::vector<agent::FilePart> parts;
      all = files_->Look(kWaitingBytesMax, &parts);
      for (const std::string& name : files_->TakeUnsent()) {
        agent::FromAgent message;
        message.set_note(absl::StrCat("warning: host ", host_name_,
                                      ": the file '", absl::CHexEscape(name),
                                      "' in ", run_folder_,
                                      " stays there: its name is not UTF-8"));
        Send(message);
      }
      for (agent::FilePart& part : parts) {
        agent::FromAgent message;
        *message.mutable_file_part() = std::move(part);
        Send(message);
      }
    }
    if (!all) {  // The next round goes on.
      SendFailures();
      return;
    }
    next_look_ = time_.Now() + kLookEvery;
    for (const auto& [exit, at] : exits_) SendExit(exit);
    exits_.clear();
  }

  // Somebody may wait to start a worker again, and what it has written may be
  // long.
  void SendFailures() {
    for (auto each = exits_.begin(); each != exits_.end();) {
      const auto& [exit, at] = *each;
      if (exit.member.worker && !exit.status.ok() &&
          time_.Now() - at > kFailureWaitMax) {
        SendExit(exit);
        each = exits_.erase(each);
      } else {
        ++each;
      }
    }
  }

  void SendExit(const MemberExit& ended) {
    agent::FromAgent message;
    agent::Exit& exit = *message.mutable_exit();
    exit.mutable_member()->set_worker(ended.member.worker);
    exit.mutable_member()->set_index(ended.member.index);
    exit.set_pid(ended.pid);
    exit.set_code(ended.status.code);
    exit.set_signal(ended.status.signal);
    exit.set_memory_bytes_max(ended.status.memory_bytes_max);
    exit.set_maybe_out_of_memory(ended.status.maybe_out_of_memory);
    Send(message);
  }

  // False: nobody reads any more.
  bool Write() {
    while (written_ < waiting_.size()) {
      const ssize_t written = write(out_.get(), waiting_.data() + written_,
                                    waiting_.size() - written_);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return errno == EAGAIN;
      written_ += static_cast<size_t>(written);
    }
    waiting_.clear();
    written_ = 0;
    return true;
  }

  void WaitForSomething() const {
    std::array<pollfd, 2> files = {
        pollfd{.fd = in_.get(), .events = POLLIN, .revents = 0},
        pollfd{.fd = waiting_.empty() ? -1 : out_.get(),
               .events = POLLOUT,
               .revents = 0}};
    poll(files.data(), files.size(),
         static_cast<int>(absl::ToInt64Milliseconds(kPollMax)));
  }

  void EndAll() {
    RemoveMark();
    // As when `slackline run` dies on one machine. SIGTERM would have them tell
    // the coordinator that the whole job is to end, while it may go on
    // elsewhere.
    processes_.SignalAllBut(std::nullopt, SIGKILL);
    processes_ = MemberProcesses();
  }

  const TimeSource time_;
  const Descriptor in_;
  const Descriptor out_;
  SignalWatch* const signals_;
  AgentFrameReader reader_{/*after_greeting=*/false};
  std::string waiting_;  // To be written.
  size_t written_ = 0;   // Of these.
  absl::Time heard_;
  absl::Time said_;
  absl::Time next_look_ = absl::InfinitePast();
  bool terminated_ = false;  // By SIGTERM.
  absl::Time hang_up_at_ = absl::InfiniteFuture();
  const std::string host_name_ = OwnHostName();
  std::string run_folder_;
  std::vector<TemporaryKeyFile> key_files_;
  std::string mark_;  // A file of this agent; empty: none.
  // None: the run's folder is shared.
  std::optional<ChangedFiles> files_;
  std::optional<SentFiles> put_;
  MemberProcesses processes_;
  // To be sent after what they have written; when they have ended.
  std::vector<std::pair<MemberExit, absl::Time>> exits_;
  std::vector<PortReservation> ports_;
  HostExaminer examiner_;
};

// What is printed by accident must not stand among the frames: it goes to
// stderr. Children have neither of the two.
absl::StatusOr<std::pair<Descriptor, Descriptor>> TakeStreams() {
  Descriptor in(fcntl(0, F_DUPFD_CLOEXEC, 3));
  Descriptor out(fcntl(1, F_DUPFD_CLOEXEC, 3));
  const Descriptor nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (in.get() < 0 || out.get() < 0 || nothing.get() < 0 ||
      dup2(nothing.get(), 0) < 0 || dup2(2, 1) < 0) {
    return absl::UnavailableError(
        absl::StrCat("stdin and stdout: ", std::strerror(errno)));
  }
  for (const Descriptor* const stream : {&in, &out}) {
    const int flags = fcntl(stream->get(), F_GETFL);
    if (flags < 0 || fcntl(stream->get(), F_SETFL, flags | O_NONBLOCK) < 0) {
      return absl::UnavailableError(
          absl::StrCat("stdin and stdout: ", std::strerror(errno)));
    }
  }
  return std::pair(std::move(in), std::move(out));
}

}  // namespace

int RunAgent(const std::string& user_key) {
  signal(SIGPIPE, SIG_IGN);  // A closed stdout shows in write().
  absl::StatusOr<std::pair<Descriptor, Descriptor>> streams = TakeStreams();
  const absl::StatusOr<std::unique_ptr<SignalWatch>> signals =
      SignalWatch::Create();
  for (const absl::Status& status : {streams.status(), signals.status()}) {
    if (status.ok()) continue;
    std::fprintf(stderr, "slackline agent: %s\n",
                 std::string(status.message()).c_str());
    return kExitFailed;
  }
  return Agent(std::move(streams->first), std::move(streams->second),
               signals->get(), user_key)
      .Run();
}

}  // namespace slackline
