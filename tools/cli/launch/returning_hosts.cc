#include "tools/cli/launch/returning_hosts.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"

namespace slackline {
namespace {

constexpr absl::Duration kFirstPause = absl::Seconds(1);
constexpr absl::Duration kPauseMax = absl::Seconds(15);
constexpr absl::Duration kHelloMax = absl::Seconds(40);
// To look for programs and data, or to start a process.
constexpr absl::Duration kAnswerMax = absl::Minutes(1);

}  // namespace

void ReturningHosts::Add(const std::string& host, const JobProcess& member,
                         absl::Time now) {
  const auto [found, is_new] = hosts_.try_emplace(host);
  if (is_new) {
    found->second.give_up_at = now + kHostReturnMax;
    found->second.next_try = now;
  }
  found->second.members.push_back(member);
}

bool ReturningHosts::Drop(const JobProcess& member) {
  for (auto& [name, host] : hosts_) {
    const auto found =
        std::find(host.members.begin(), host.members.end(), member);
    if (found == host.members.end()) continue;
    host.members.erase(found);
    return true;
  }
  return false;
}

ReturningHosts::Progress ReturningHosts::Poll(absl::Time now) {
  Progress progress;
  for (auto entry = hosts_.begin(); entry != hosts_.end();) {
    const std::string& name = entry->first;
    Host& host = entry->second;
    switch (host.state) {
      case State::kWaits:
        if (now >= host.next_try && !host.members.empty()) {
          Try(name, now, &host);
        }
        break;
      case State::kConnects:
        PollHello(name, now, &host, &progress);
        break;
      case State::kBegins:
        PollBegin(name, now, &host, &progress);
        break;
      case State::kStarts:
        PollStarts(name, now, &host, &progress);
        break;
    }
    const bool over =
        host.members.empty() && host.starts.empty() &&
        (host.state == State::kWaits || host.state == State::kStarts);
    entry = over ? hosts_.erase(entry) : std::next(entry);
  }
  return progress;
}

void ReturningHosts::Try(const std::string& name, absl::Time now, Host* host) {
  ++host->tries;
  const absl::Status begun = remote_->BeginReconnect(name);
  host->state = State::kConnects;
  // A program that is missing here is found missing in the next look, too.
  host->state_until = begun.ok() ? now + kHelloMax : now;
}

void ReturningHosts::OnTryFailed(const std::string& name,
                                 const std::string& why, absl::Time now,
                                 Host* host, Progress* progress) {
  host->state = State::kWaits;
  host->needs.reset();
  for (const auto& [request, member] : host->starts)
    host->members.push_back(member);
  host->starts.clear();
  if (now >= host->give_up_at) {
    for (const JobProcess& member : host->members)
      progress->failed.push_back({name, member, why});
    host->members.clear();
    return;
  }
  host->next_try = now + std::min(kPauseMax, kFirstPause * host->tries);
  if (host->tries > 1) return;
  progress->notes.push_back(
      absl::StrCat(why, "; it is tried again for ",
                   absl::FormatDuration(host->give_up_at - now), " at most"));
}

void ReturningHosts::PollHello(const std::string& name, absl::Time now,
                               Host* host, Progress* progress) {
  const absl::StatusOr<bool> answers =
      remote_->HasReconnected(name, now > host->state_until);
  if (!answers.ok()) {
    OnTryFailed(name, std::string(answers.status().message()), now, host,
                progress);
    return;
  }
  if (!*answers) return;
  absl::StatusOr<BeginRequest> request = options_.begin(name);
  if (!request.ok()) {
    OnTryFailed(name, std::string(request.status().message()), now, host,
                progress);
    return;
  }
  host->needs = std::move(request->needs);
  host->begin = remote_->On(name).Send(std::move(request->message));
  host->state = State::kBegins;
  host->state_until = now + kAnswerMax;
}

void ReturningHosts::PollBegin(const std::string& name, absl::Time now,
                               Host* host, Progress* progress) {
  const absl::StatusOr<std::optional<agent::Answer>> answer =
      remote_->AnswerTo(name, host->begin, now > host->state_until);
  absl::Status done = answer.status();
  if (done.ok() && !answer->has_value()) return;
  if (done.ok()) done = options_.check(name, **answer);
  if (!done.ok()) {
    OnTryFailed(name, std::string(done.message()), now, host, progress);
    return;
  }
  host->needs.reset();
  host->state = State::kStarts;
  host->state_until = now + kAnswerMax;
}

void ReturningHosts::PollStarts(const std::string& name, absl::Time now,
                                Host* host, Progress* progress) {
  for (const JobProcess& member : host->members)
    host->starts[remote_->On(name).Send(options_.start(member))] = member;
  host->members.clear();
  while (!host->starts.empty()) {
    const auto& [request, member] = *host->starts.begin();
    const absl::StatusOr<std::optional<agent::Answer>> answer =
        remote_->AnswerTo(name, request, now > host->state_until);
    if (!answer.ok()) {
      OnTryFailed(name, std::string(answer.status().message()), now, host,
                  progress);
      return;
    }
    if (!answer->has_value()) return;
    progress->started.push_back({member, (*answer)->pid()});
    host->starts.erase(host->starts.begin());
  }
}

}  // namespace slackline
