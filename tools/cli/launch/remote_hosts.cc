#include "tools/cli/launch/remote_hosts.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "common/version.h"

namespace slackline {
namespace {

// Longer than what a remote shell itself waits for a connection.
constexpr absl::Duration kConnectMax = absl::Seconds(40);
constexpr absl::Duration kSlice = absl::Milliseconds(10);
constexpr absl::Duration kReconnectPause = absl::Seconds(3);

std::string NoAnswerText(const std::string& host, const std::string& output) {
  return absl::StrCat("host ", host, ": no agent has answered within ",
                      absl::FormatDuration(kConnectMax),
                      output.empty() ? "" : absl::StrCat(" (", output, ")"));
}

}  // namespace

absl::Status CheckSignals(SignalWatch* signals, absl::Duration wait_max) {
  if (signals == nullptr) return absl::OkStatus();
  const SignalWatch::Requests requests = signals->Wait(wait_max);
  if (requests.interrupts + requests.quits > 0) {
    return absl::CancelledError(
        "interrupted by the user before the job was started");
  }
  if (requests.all() == 0) return absl::OkStatus();
  return absl::AbortedError(
      "told to end (SIGTERM or SIGHUP) before the job was started");
}

absl::StatusOr<std::unique_ptr<RemoteHosts>> RemoteHosts::Connect(
    Options options, SignalWatch* signals,
    std::map<std::string, std::string>* unreached) {
  // No make_unique: the constructor is private.
  std::unique_ptr<RemoteHosts> hosts(new RemoteHosts(std::move(options)));
  for (const std::string& host : hosts->hosts())
    SL_RETURN_IF_ERROR(hosts->StartAgent(host));
  SL_RETURN_IF_ERROR(hosts->AwaitHellos(hosts->hosts(), signals, unreached));
  return hosts;
}

RemoteHosts::~RemoteHosts() {
  for (const auto& [host, link] : links_) link->Close();
}

std::string RemoteHosts::AgentProgram() const {
  return absl::StrCat(options_.bin_dir, "/slackline");
}

absl::Status RemoteHosts::StartAgent(const std::string& host) {
  absl::StatusOr<std::unique_ptr<AgentLink>> link = AgentLink::Start(
      host, options_.shell.line(host, {AgentProgram(), "agent"}));
  if (!link.ok())
    return Annotate(link.status(), absl::StrCat("--on ", engine()));
  links_[host] = *std::move(link);
  if (files_ != nullptr) links_[host]->WriteFilesTo(files_.get());
  return absl::OkStatus();
}

std::string RemoteHosts::WhyNone(const std::string& host,
                                 const absl::Status& lost) {
  const std::string output = links_.at(host)->ErrorText();
  std::string advice = options_.shell.advice(host, output);
  const std::optional<ExitStatus>& exit = links_.at(host)->exit();
  const int code = exit.has_value() && exit->signal == 0 ? exit->code : 0;
  if (advice.empty() && absl::StrContains(output, "shared libraries")) {
    advice = absl::StrCat(AgentProgram(),
                          " lacks a library there; install what it needs, or "
                          "the same packages as here");
  } else if (advice.empty() &&
             (code == 127 || absl::StrContains(output, "No such file"))) {
    advice = absl::StrCat(AgentProgram(), " is not there: ",
                          options_.install(host, /*is_there=*/false));
  } else if (advice.empty() && code == 126) {
    advice = absl::StrCat(AgentProgram(), " cannot be executed there");
  } else if (advice.empty() && code == 2) {
    advice = absl::StrCat(AgentProgram(),
                          " there is of a version without agents, and this "
                          "is ",
                          VersionNumber(), ": ",
                          options_.install(host, /*is_there=*/true));
  }
  return absl::StrCat("host ", host, ": no agent was started by ", engine(),
                      advice.empty() ? "" : ": ", advice, " (", lost.message(),
                      ")");
}

absl::Status RemoteHosts::AwaitHellos(
    const std::vector<std::string>& hosts, SignalWatch* signals,
    std::map<std::string, std::string>* unreached) {
  const TimeSource time;
  const absl::Time end = time.Now() + kConnectMax;
  std::map<std::string, std::string> problems;
  size_t answered = 0;
  while (answered + problems.size() < hosts.size()) {
    SL_RETURN_IF_ERROR(CheckSignals(signals, kSlice));
    answered = 0;
    for (const std::string& host : hosts) {
      if (problems.count(host) > 0) continue;
      AgentLink& link = *links_.at(host);
      // In this order: it may say something and end.
      const absl::Status lost = link.Lost();
      const std::optional<agent::Hello> hello = link.hello();
      if (!hello.has_value()) {
        if (!lost.ok()) {
          problems[host] = WhyNone(host, lost);
        } else if (time.Now() > end) {
          problems[host] = NoAnswerText(host, link.ErrorOutput());
        } else if (signals == nullptr) {
          link.Wait(kSlice);
        }
        continue;
      }
      if (std::string other = OtherVersion(host, *hello); !other.empty()) {
        problems[host] = std::move(other);
        continue;
      }
      hellos_[host] = *hello;
      ++answered;
    }
  }
  if (unreached != nullptr) *unreached = std::exchange(problems, {});
  if (problems.empty()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrJoin(problems, "\n", [](std::string* text, const auto& problem) {
        absl::StrAppend(text, problem.second);
      }));
}

absl::Status RemoteHosts::Reconnect(const std::vector<std::string>& hosts,
                                    absl::Duration wait_max,
                                    SignalWatch* signals) {
  const TimeSource time;
  const absl::Time end = time.Now() + wait_max;
  bool said = false;
  std::vector<std::string> left = hosts;
  while (true) {
    for (const std::string& host : left) SL_RETURN_IF_ERROR(StartAgent(host));
    const absl::Status there = AwaitHellos(left, signals);
    if (!absl::IsUnavailable(there) || time.Now() > end) return there;
    if (!said && options_.say) {
      options_.say(absl::StrCat(there.message(), "; tried again for ",
                                absl::FormatDuration(wait_max), " at most"));
    }
    said = true;
    std::vector<std::string> lost;
    for (const std::string& host : left) {
      if (!On(host).Lost().ok() || !On(host).hello().has_value())
        lost.push_back(host);
    }
    if (lost.empty()) return there;  // One of another version.
    left = std::move(lost);
    const absl::Time next = time.Now() + kReconnectPause;
    while (time.Now() < next) {
      SL_RETURN_IF_ERROR(CheckSignals(signals, kSlice));
      if (signals == nullptr) On(left.front()).Wait(kSlice);
    }
  }
}

absl::Status RemoteHosts::BeginReconnect(const std::string& host) {
  return StartAgent(host);
}

absl::StatusOr<bool> RemoteHosts::HasReconnected(const std::string& host,
                                                 bool too_late) {
  AgentLink& link = *links_.at(host);
  const absl::Status lost = link.Lost();
  const std::optional<agent::Hello> hello = link.hello();
  if (!hello.has_value()) {
    if (!lost.ok()) return absl::UnavailableError(WhyNone(host, lost));
    if (!too_late) return false;
    return absl::UnavailableError(NoAnswerText(host, link.ErrorOutput()));
  }
  if (const std::string other = OtherVersion(host, *hello); !other.empty())
    return absl::FailedPreconditionError(other);
  hellos_[host] = *hello;
  return true;
}

absl::StatusOr<std::optional<agent::Answer>> RemoteHosts::AnswerTo(
    const std::string& host, uint32_t request, bool too_late) {
  AgentLink& link = On(host);
  const std::string name = absl::StrCat("host ", host);
  const absl::Status lost = link.Lost();
  std::optional<agent::Answer> answer = link.TakeAnswer(request);
  if (answer.has_value() && answer->code() != 0) {
    return absl::Status(static_cast<absl::StatusCode>(answer->code()),
                        absl::StrCat(name, ": ", answer->text()));
  }
  if (answer.has_value()) return answer;
  if (!lost.ok())
    return Annotate(lost, absl::StrCat(name, ": its agent is lost"));
  if (!too_late) return std::optional<agent::Answer>();
  return absl::DeadlineExceededError(
      absl::StrCat(name, ": its agent has not answered"));
}

std::string RemoteHosts::OtherVersion(const std::string& host,
                                      const agent::Hello& hello) const {
  if (hello.version() == VersionNumber() && hello.protocol() == kProtocol)
    return "";
  return absl::StrCat("host ", host, ": ", AgentProgram(), " is of version ",
                      hello.version(), " (protocol ", hello.protocol(),
                      "), and this is ", VersionNumber(), " (protocol ",
                      kProtocol, "); ",
                      options_.install(host, /*is_there=*/true));
}

absl::StatusOr<std::vector<absl::StatusOr<agent::Answer>>> RemoteHosts::AskEach(
    std::vector<Request> requests, absl::Duration wait_max,
    SignalWatch* signals) {
  const TimeSource time;
  const absl::Time end = time.Now() + wait_max;
  std::vector<uint32_t> numbers;
  for (Request& request : requests)
    numbers.push_back(On(request.host).Send(std::move(request.message)));
  std::vector<absl::StatusOr<agent::Answer>> answers;
  while (answers.size() < requests.size()) {
    const size_t next = answers.size();
    const std::string& host = requests[next].host;
    absl::StatusOr<std::optional<agent::Answer>> answer =
        AnswerTo(host, numbers[next], time.Now() > end);
    if (!answer.ok()) {
      answers.emplace_back(answer.status());
    } else if (answer->has_value()) {
      answers.emplace_back(**std::move(answer));
    } else {
      On(host).Wait(kSlice);
      SL_RETURN_IF_ERROR(CheckSignals(signals, absl::ZeroDuration()));
    }
  }
  return answers;
}

absl::StatusOr<std::vector<agent::Answer>> RemoteHosts::Ask(
    std::vector<Request> requests, absl::Duration wait_max,
    SignalWatch* signals) {
  SL_ASSIGN_OR_RETURN(std::vector<absl::StatusOr<agent::Answer>> each,
                      AskEach(std::move(requests), wait_max, signals));
  std::vector<agent::Answer> answers;
  absl::StatusCode code = absl::StatusCode::kOk;
  std::vector<std::string> problems;
  for (absl::StatusOr<agent::Answer>& answer : each) {
    if (answer.ok()) {
      answers.push_back(*std::move(answer));
      continue;
    }
    if (code == absl::StatusCode::kOk) code = answer.status().code();
    // Two requests to one host may have one answer.
    const std::string text(answer.status().message());
    if (!absl::c_linear_search(problems, text)) problems.push_back(text);
  }
  if (code != absl::StatusCode::kOk)
    return absl::Status(code, absl::StrJoin(problems, "\n"));
  return answers;
}

std::vector<absl::StatusOr<doctor::Reply>> RemoteHosts::AskDoctors(
    std::vector<HostQuestion> questions, absl::Duration wait_max,
    SignalWatch* signals) {
  std::vector<Request> requests;
  for (HostQuestion& question : questions) {
    Request& request = requests.emplace_back();
    request.host = std::move(question.host);
    *request.message.mutable_question() = std::move(question.question);
  }
  absl::StatusOr<std::vector<absl::StatusOr<agent::Answer>>> answers =
      AskEach(std::move(requests), wait_max, signals);
  std::vector<absl::StatusOr<doctor::Reply>> replies;
  if (!answers.ok()) {
    replies.resize(questions.size(), answers.status());
    return replies;
  }
  for (absl::StatusOr<agent::Answer>& answer : *answers) {
    if (answer.ok()) {
      replies.emplace_back(std::move(*answer->mutable_reply()));
    } else {
      replies.emplace_back(answer.status());
    }
  }
  return replies;
}

bool RemoteHosts::WriteFilesTo(const std::string& folder) {
  if (files_ != nullptr) return false;
  files_ = std::make_unique<SentFiles>(folder);
  for (const auto& [host, link] : links_) link->WriteFilesTo(files_.get());
  return true;
}

std::vector<SentFiles::Missing> RemoteHosts::MissingFiles() const {
  if (files_ == nullptr) return {};
  return files_->missing();
}

}  // namespace slackline
