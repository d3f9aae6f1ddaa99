#include "tools/cli/agent/agent_link.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "tools/cli/members/logs.h"
#include "tools/cli/members/program_output.h"

namespace slackline {
namespace {

constexpr absl::Duration kSayAliveEvery = absl::Seconds(5);
// Longer than the agent's, so that it is the first to know.
constexpr absl::Duration kAgentSilenceMax = absl::Seconds(70);
// The agent kills its processes, and ends.
constexpr absl::Duration kAgentEndMax = absl::Seconds(8);
// A command that has closed its streams ends at once.
constexpr absl::Duration kCommandEndMax = absl::Seconds(2);
// Of a misbehaving agent; the queues are emptied many times a second.
constexpr size_t kQueueMax = 100'000;
constexpr size_t kErrorOutputBytesMax = 4 << 10;
// A file that could not be written is asked for again after so long.
constexpr absl::Duration kSendAgainAfter = absl::Seconds(1);

void DoNotBlock(const Descriptor& end) {
  fcntl(end.get(), F_SETFL, fcntl(end.get(), F_GETFL) | O_NONBLOCK);
}

}  // namespace

absl::StatusOr<std::unique_ptr<AgentLink>> AgentLink::Start(
    const std::string& host, std::vector<std::string> command) {
  signal(SIGPIPE, SIG_IGN);  // A closed pipe shows in write().
  SL_ASSIGN_OR_RETURN(command[0], FindProgram(command[0]));
  SL_ASSIGN_OR_RETURN(Pipe to, OpenPipe());
  SL_ASSIGN_OR_RETURN(Pipe from, OpenPipe());
  DoNotBlock(to.write);
  DoNotBlock(from.read);
  SL_ASSIGN_OR_RETURN(Descriptor errors, FileInMemory());
  Descriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) {
    return absl::UnavailableError(
        absl::StrCat("eventfd: ", std::strerror(errno)));
  }
  fcntl(errors.get(), F_SETFL, O_APPEND);
  SL_ASSIGN_OR_RETURN(ChildProcess child,
                      ChildProcess::Start({.command = std::move(command),
                                           .log_path = {},
                                           .standard_input = to.read.get(),
                                           .standard_output = from.write.get(),
                                           .standard_error = errors.get()}));
  return std::unique_ptr<AgentLink>(
      new AgentLink(host, std::move(to.write), std::move(from.read),
                    std::move(errors), std::move(wake), std::move(child)));
}

AgentLink::AgentLink(std::string host, Descriptor to, Descriptor from,
                     Descriptor errors, Descriptor wake, ChildProcess child)
    : host_(std::move(host)),
      from_(std::move(from)),
      errors_(std::move(errors)),
      wake_(std::move(wake)),
      child_(std::move(child)),
      to_(std::move(to)),
      heard_(TimeSource().Now()),
      thread_([this] { Loop(); }) {}

AgentLink::~AgentLink() {
  Close();
  // A command that has not found the agent yet does not look at its stdin.
  if (!hello().has_value()) child_.Signal(SIGKILL);
  const TimeSource time;
  const absl::Time end = time.Now() + kAgentEndMax;
  // The stream ends with the agent.
  while (time.Now() < end) {
    MutexLock lock(mutex_);
    if (over_) break;
    lock.WaitUntil(changed_, SteadyDeadline(end - time.Now()));
  }
  // The command may stay for a moment longer.
  Lost().IgnoreError();
  child_.Signal(SIGKILL);  // Closes the stream, if it still was there.
  thread_.join();
}

void AgentLink::Close() {
  MutexLock lock(mutex_);
  closing_ = true;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written =
      write(wake_.get(), &one, sizeof(one));
}

void AgentLink::WriteFilesTo(SentFiles* files) {
  MutexLock lock(mutex_);
  files_ = files;
}

uint32_t AgentLink::Send(agent::ToAgent message) {
  MutexLock lock(mutex_);
  message.set_request(++requests_);
  if (!over_) waiting_ += AgentFrame(message);
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written =
      write(wake_.get(), &one, sizeof(one));
  return requests_;
}

std::optional<agent::Hello> AgentLink::hello() {
  MutexLock lock(mutex_);
  return hello_;
}

std::optional<agent::Answer> AgentLink::TakeAnswer(uint32_t request) {
  MutexLock lock(mutex_);
  const auto found = answers_.find(request);
  if (found == answers_.end()) return std::nullopt;
  agent::Answer answer = std::move(found->second);
  answers_.erase(found);
  return answer;
}

void AgentLink::Wait(absl::Duration wait_max) {
  MutexLock lock(mutex_);
  if (!over_) lock.WaitUntil(changed_, SteadyDeadline(wait_max));
}

absl::Duration AgentLink::SilentFor() {
  MutexLock lock(mutex_);
  return TimeSource().Now() - heard_;
}

void AgentLink::GiveUp() {
  {
    MutexLock lock(mutex_);
    if (over_) return;
    why_over_ =
        absl::StrCat("nothing was heard for ",
                     absl::FormatDuration(absl::Trunc(
                         TimeSource().Now() - heard_, absl::Seconds(1))));
  }
  child_.Signal(SIGKILL);  // Closes the stream.
}

std::vector<agent::Exit> AgentLink::TakeExits() {
  MutexLock lock(mutex_);
  return std::exchange(exits_, {});
}

std::vector<std::string> AgentLink::TakeNotes() {
  MutexLock lock(mutex_);
  return std::exchange(notes_, {});
}

std::string AgentLink::ErrorText() {
  std::string text = TailOf(errors_, kErrorOutputBytesMax);
  MutexLock lock(mutex_);
  if (!hello_.has_value()) {
    const absl::string_view said = reader_.BeforeGreeting();
    absl::StrAppend(
        &text, "\n",
        said.substr(said.size() - std::min(said.size(), kErrorOutputBytesMax)));
  }
  return text;
}

std::string AgentLink::ErrorOutput() {
  return absl::StrJoin(LastLines(ErrorText(), 6), "; ");
}

absl::Status AgentLink::Lost() {
  if (!lost_.ok()) return lost_;
  std::string why;
  {
    MutexLock lock(mutex_);
    if (!over_) return absl::OkStatus();
    why = why_over_;
  }
  const TimeSource time;
  const absl::Time end = time.Now() + kCommandEndMax;
  while (child_.running() && !exit_.has_value() && time.Now() < end) {
    exit_ = child_.Poll();
    if (!exit_.has_value()) poll(nullptr, 0, 5);
  }
  if (exit_.has_value() && why.empty()) {
    why = absl::StrCat("its command ", exit_->ToString());
  } else if (why.empty()) {
    why = "its stream was closed";
  }
  const std::string output = ErrorOutput();
  lost_ = absl::UnavailableError(
      absl::StrCat(why, output.empty() ? "" : ": ", output));
  return lost_;
}

void AgentLink::Loop() {
  const TimeSource time;
  absl::Time said = time.Now();
  MutexLock lock(mutex_);
  while (true) {
    if (closing_ && waiting_.empty()) to_ = Descriptor();
    std::array<pollfd, 3> files = {
        pollfd{.fd = from_.get(), .events = POLLIN, .revents = 0},
        pollfd{.fd = wake_.get(), .events = POLLIN, .revents = 0},
        pollfd{.fd = waiting_.empty() ? -1 : to_.get(),
               .events = POLLOUT,
               .revents = 0}};
    lock.Unlock();
    poll(files.data(), files.size(), 1000);
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t received =
        read(wake_.get(), &count, sizeof(count));
    lock.Lock();
    if (time.Now() - said > kSayAliveEvery && waiting_.empty()) {
      agent::ToAgent alive;
      alive.mutable_alive();
      waiting_ += AgentFrame(alive);
      said = time.Now();
    }
    AskAgain(time.Now());
    if (files[0].revents != 0) {
      heard_ = time.Now();
      if (!ReadSome()) break;
      changed_.notify_all();
    } else if (time.Now() - heard_ > kAgentSilenceMax) {
      why_over_ = absl::StrCat("nothing was heard for ",
                               absl::FormatDuration(kAgentSilenceMax));
      break;
    }
    if (!WriteSome()) waiting_.clear();  // Then from_ ends, too.
  }
  over_ = true;
  to_ = Descriptor();
  changed_.notify_all();
}

void AgentLink::AskAgain(absl::Time now) {
  for (auto file = again_.begin(); file != again_.end();) {
    if (now < file->second) {
      ++file;
      continue;
    }
    agent::ToAgent message;
    message.set_send_again(file->first);
    waiting_ += AgentFrame(message);
    file = again_.erase(file);
  }
}

bool AgentLink::ReadSome() {
  std::array<char, 64 << 10> bytes;
  const ssize_t received = read(from_.get(), bytes.data(), bytes.size());
  if (received < 0) return errno == EINTR || errno == EAGAIN;
  if (received == 0) return false;
  reader_.Append({bytes.data(), static_cast<size_t>(received)});
  while (true) {
    agent::FromAgent message;
    const absl::StatusOr<bool> whole = reader_.Next(&message);
    if (!whole.ok()) {
      why_over_ = std::string(whole.status().message());
      return false;
    }
    if (!*whole) return true;
    if (exits_.size() + notes_.size() + answers_.size() > kQueueMax) {
      why_over_ = "it says more than any agent does";
      return false;
    }
    OnMessage(std::move(message));
  }
}

void AgentLink::OnMessage(agent::FromAgent message) {
  switch (message.what_case()) {
    case agent::FromAgent::kHello:
      hello_ = std::move(*message.mutable_hello());
      break;
    case agent::FromAgent::kAnswer:
      answers_[message.answer().request()] =
          std::move(*message.mutable_answer());
      break;
    case agent::FromAgent::kExit:
      exits_.push_back(std::move(*message.mutable_exit()));
      break;
    case agent::FromAgent::kFilePart: {
      SentFiles* const files = files_;
      if (files == nullptr) break;
      absl::Status taken;
      {
        // A slow disk keeps nobody from what has come.
        const MutexRelease release(mutex_);
        taken = files->Add(host_, message.file_part());
      }
      if (taken.ok()) break;
      if (absl::IsUnavailable(taken)) {
        again_.try_emplace(message.file_part().name(),
                           TimeSource().Now() + kSendAgainAfter);
      }
      if (said_unwritten_) break;
      said_unwritten_ = true;
      notes_.push_back(absl::StrCat("warning: a file of host ", host_,
                                    " is not complete here: ", taken.message(),
                                    "; it is asked for until it is"));
      break;
    }
    case agent::FromAgent::kNote:
      notes_.push_back(message.note());
      break;
    case agent::FromAgent::kAlive:
    case agent::FromAgent::WHAT_NOT_SET:
      break;
  }
}

bool AgentLink::WriteSome() {
  while (!waiting_.empty() && to_.get() >= 0) {
    const ssize_t written = write(to_.get(), waiting_.data(), waiting_.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno == EAGAIN;
    waiting_.erase(0, static_cast<size_t>(written));
  }
  return true;
}

}  // namespace slackline
