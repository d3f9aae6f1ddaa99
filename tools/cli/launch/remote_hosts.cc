#include "tools/cli/launch/remote_hosts.h"

#include <algorithm>
#include <optional>
#include <utility>

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
constexpr char kInterruptedEarly[] =
    "interrupted by the user before the job was started";

}  // namespace

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
  const std::string output = links_.at(host)->ErrorOutput();
  std::string advice = options_.shell.advice(host, output);
  const std::optional<ExitStatus>& exit = links_.at(host)->exit();
  const int code = exit.has_value() && exit->signal == 0 ? exit->code : 0;
  if (advice.empty() &&
      (code == 127 || absl::StrContains(output, "No such file"))) {
    advice =
        absl::StrCat(AgentProgram(),
                     " is not there: install Slackline there at the same "
                     "path, or name its folder by launch { bin_dir: ... }");
  } else if (advice.empty() && code == 126) {
    advice = absl::StrCat(AgentProgram(), " cannot be executed there");
  } else if (advice.empty() && code == 2) {
    advice = absl::StrCat(AgentProgram(),
                          " there is of a version without agents; install ",
                          VersionNumber());
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
    if (signals != nullptr && signals->Wait(kSlice).all() > 0)
      return absl::AbortedError(kInterruptedEarly);
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
          problems[host] = absl::StrCat(
              "host ", host, ": no agent has answered within ",
              absl::FormatDuration(kConnectMax), " (", link.ErrorOutput(), ")");
        } else if (signals == nullptr) {
          link.Wait(kSlice);
        }
        continue;
      }
      if (hello->version() != VersionNumber() ||
          hello->protocol() != kProtocol) {
        problems[host] =
            absl::StrCat("host ", host, ": ", AgentProgram(), " is of version ",
                         hello->version(), " (protocol ", hello->protocol(),
                         "), and this is ", VersionNumber(), " (protocol ",
                         kProtocol, "); install the same on all hosts");
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

absl::Status RemoteHosts::Reconnect(const std::string& host) {
  SL_RETURN_IF_ERROR(StartAgent(host));
  return AwaitHellos({host}, nullptr, nullptr);
}

std::vector<uint32_t> RemoteHosts::SendAll(std::vector<Request>* requests) {
  std::vector<uint32_t> numbers;
  for (Request& request : *requests)
    numbers.push_back(On(request.host).Send(std::move(request.message)));
  return numbers;
}

absl::StatusOr<agent::Answer> RemoteHosts::AwaitAnswer(const std::string& host,
                                                       uint32_t number,
                                                       absl::Time end,
                                                       absl::Duration wait_max,
                                                       SignalWatch* signals) {
  const TimeSource time;
  AgentLink& link = On(host);
  const std::string name = absl::StrCat("host ", host);
  while (true) {
    // In this order: it may say something and end.
    const absl::Status lost = link.Lost();
    std::optional<agent::Answer> answer = link.TakeAnswer(number);
    if (answer.has_value()) {
      if (answer->code() == 0) return *std::move(answer);
      return absl::Status(static_cast<absl::StatusCode>(answer->code()),
                          absl::StrCat(name, ": ", answer->text()));
    }
    if (!lost.ok()) {
      return Annotate(lost, absl::StrCat(name, ": its agent is lost"));
    }
    if (time.Now() > end) {
      return absl::DeadlineExceededError(
          absl::StrCat(name, ": its agent has not answered within ",
                       absl::FormatDuration(wait_max)));
    }
    link.Wait(kSlice);
    if (signals != nullptr && signals->Wait(absl::ZeroDuration()).all() > 0)
      return absl::AbortedError(kInterruptedEarly);
  }
}

absl::StatusOr<std::vector<agent::Answer>> RemoteHosts::Ask(
    std::vector<Request> requests, absl::Duration wait_max,
    SignalWatch* signals) {
  const absl::Time end = TimeSource().Now() + wait_max;
  const std::vector<uint32_t> numbers = SendAll(&requests);
  std::vector<agent::Answer> answers;
  for (size_t i = 0; i < requests.size(); ++i) {
    SL_ASSIGN_OR_RETURN(
        agent::Answer answer,
        AwaitAnswer(requests[i].host, numbers[i], end, wait_max, signals));
    answers.push_back(std::move(answer));
  }
  return answers;
}

std::vector<absl::StatusOr<agent::Answer>> RemoteHosts::AskEach(
    std::vector<Request> requests, absl::Duration wait_max,
    SignalWatch* signals) {
  const absl::Time end = TimeSource().Now() + wait_max;
  const std::vector<uint32_t> numbers = SendAll(&requests);
  std::vector<absl::StatusOr<agent::Answer>> answers;
  for (size_t i = 0; i < requests.size(); ++i) {
    answers.push_back(
        AwaitAnswer(requests[i].host, numbers[i], end, wait_max, signals));
  }
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
  std::vector<absl::StatusOr<doctor::Reply>> replies;
  for (absl::StatusOr<agent::Answer>& answer :
       AskEach(std::move(requests), wait_max, signals)) {
    if (answer.ok()) {
      replies.emplace_back(std::move(*answer->mutable_reply()));
    } else {
      replies.emplace_back(answer.status());
    }
  }
  return replies;
}

void RemoteHosts::WriteFilesTo(const std::string& folder) {
  if (files_ != nullptr) return;
  files_ = std::make_unique<SentFiles>(folder);
  for (const auto& [host, link] : links_) link->WriteFilesTo(files_.get());
}

}  // namespace slackline
