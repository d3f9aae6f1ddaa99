#include "server/coordinator/server_pace.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace slackline {
namespace {

std::string SpeedText(double bytes_per_second) {
  return absl::StrFormat("%.0f MB", bytes_per_second / 1e6);
}

}  // namespace

void ServerPace::OnReport(Incarnation server, const run::ServerStats& stats) {
  double sum = 0;
  double busy = 0;
  int threads = 0;
  for (const run::ThreadLoad& thread : stats.thread()) {
    busy = std::max(busy, thread.utilisation());
    if (thread.bytes_per_busy_second() <= 0) continue;
    sum += thread.bytes_per_busy_second();
    ++threads;
  }
  Server& known = servers_[server];
  known.index = stats.index();
  known.now = threads > 0 ? sum / threads : 0;
  known.busy = busy;
  if (known.now <= 0 || suspects_) return;
  known.reports = std::min(known.reports + 1, options_.past_reports);
  known.past += (known.now - known.past) / known.reports;
}

void ServerPace::Prune(const wire::View& view) {
  std::map<Incarnation, Server> kept;
  for (const wire::ServerMember& member : view.server()) {
    const auto known = servers_.find(member.incarnation());
    if (known == servers_.end()) continue;
    kept.insert(*known);
    kept[member.incarnation()].index = member.index();
  }
  servers_ = std::move(kept);
}

double ServerPace::MedianOfOthers(const Server& server,
                                  double Server::*figure) const {
  std::vector<double> others;
  for (const auto& [incarnation, other] : servers_) {
    if (&other != &server && other.now > 0) others.push_back(other.*figure);
  }
  std::sort(others.begin(), others.end());
  return others.empty() ? 0 : others[others.size() / 2];
}

std::optional<ServerPace::Slow> ServerPace::SlowBeside(const Server& server,
                                                       double measure,
                                                       bool before) const {
  if (server.now <= 0) return std::nullopt;
  const double times = measure / server.now;
  if (times <= options_.slow_above) return std::nullopt;
  Slow slow;
  slow.server = server.index;
  slow.times = times;
  slow.threads =
      absl::StrCat("in a second of working its shard threads do ",
                   SpeedText(server.now), ", ", before ? "" : "theirs ",
                   SpeedText(measure), before ? " before" : "");
  slow.sentence = absl::StrFormat(
      "server %d is %.1f times slower than %s: %s", server.index, times,
      before ? "before" : "the others", slow.threads);
  return slow;
}

std::optional<ServerPace::Slow> ServerPace::SlowOf(const Server& server) const {
  const bool has_past = server.reports >= options_.reports_min;
  return SlowBeside(
      server, has_past ? server.past : MedianOfOthers(server, &Server::now),
      has_past);
}

std::optional<ServerPace::Slow> ServerPace::SlowOf(int32_t server) const {
  for (const auto& [incarnation, known] : servers_) {
    if (known.index == server) return SlowOf(known);
  }
  return std::nullopt;
}

std::optional<ServerPace::Slow> ServerPace::Slowest() const {
  std::optional<Slow> slowest;
  for (const auto& [incarnation, server] : servers_) {
    std::optional<Slow> slow = SlowOf(server);
    if (slow.has_value() &&
        (!slowest.has_value() || slow->times > slowest->times)) {
      slowest = std::move(slow);
    }
  }
  return slowest;
}

std::optional<ServerPace::Slow> ServerPace::Bottleneck() const {
  std::optional<Slow> slowest;
  for (const auto& [incarnation, server] : servers_) {
    if (server.busy < options_.busy_min ||
        server.busy <
            options_.slow_above * MedianOfOthers(server, &Server::busy)) {
      continue;
    }
    std::optional<Slow> slow = SlowBeside(
        server, MedianOfOthers(server, &Server::now), /*before=*/false);
    if (slow.has_value() &&
        (!slowest.has_value() || slow->times > slowest->times)) {
      slowest = std::move(slow);
    }
  }
  return slowest;
}

}  // namespace slackline
