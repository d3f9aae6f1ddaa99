#include "server/coordinator/stall_watch.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/endpoint.h"
#include "common/shortened.h"
#include "common/sync/phases.h"
#include "server/coordinator/job_end.h"

namespace slackline {
namespace {

using Progress = run::WorkerProgress;

constexpr size_t kProgressBytesShown = 200;
constexpr size_t kPlaceBytesShown = 300;

std::string SecondsText(absl::Duration duration) {
  return absl::StrFormat("%.0f s", absl::ToDoubleSeconds(duration));
}

std::string RanksText(const std::vector<int32_t>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "worker " : "workers ",
                      absl::StrJoin(ranks, ", "));
}

std::string DoingText(const Progress& progress) {
  if (!progress.what().empty())
    return progress.what().substr(0, kProgressBytesShown);
  switch (progress.activity()) {
    case Progress::WAITING_FOR_SERVER:
      return progress.has_server()
                 ? absl::StrCat("waiting for server ", progress.server())
                 : "waiting for a server";
    case Progress::WAITING_FOR_COORDINATOR:
      return "waiting for the coordinator";
    default:
      return "at its own work";
  }
}

// Other servers to which it hands shards over, each with the first of these. A
// shard lets requests wait where its target is far behind.
std::map<int32_t, int32_t> ShardsByTarget(const wire::View& view,
                                          int32_t server) {
  std::map<int32_t, int32_t> shards;
  for (const wire::Move& move : view.move()) {
    if (view.owner_server(move.shard()) == server && move.server() != server)
      shards.try_emplace(move.server(), move.shard());
  }
  return shards;
}

// Those whose copies the server waits for before it answers.
std::set<int32_t> ServersWithCopies(const wire::View& view, int32_t server) {
  std::set<int32_t> servers;
  for (const wire::Follower& follower : view.follower()) {
    if (follower.in_sync() && view.owner_server(follower.shard()) == server)
      servers.insert(follower.server());
  }
  return servers;
}

bool AllDone(const wire::View& view) {
  return std::all_of(
      view.worker().begin(), view.worker().end(),
      [](const wire::WorkerMember& worker) { return worker.done(); });
}

}  // namespace

void StallWatch::OnTime(absl::Time now) {
  if (last_ == absl::InfinitePast() || now - last_ > options_.lease / 2) {
    counted_from_ = now;
  }
  last_ = std::max(last_, now);
}

void StallWatch::OnReport(Incarnation worker, const Progress& progress,
                          bool trained, absl::Time now) {
  reports_[worker] = {.progress = progress, .trained = trained, .at = now};
}

void StallWatch::OnGone(Incarnation worker) {
  reports_.erase(worker);
  done_since_.erase(worker);
}

void StallWatch::OnPlace(Incarnation worker, const std::string& where) {
  for (auto& [key, said] : said_) {
    if (key.first == worker) said.place = Shortened(where, kPlaceBytesShown);
  }
}

std::string StallWatch::PlaceText(const Worker& culprit) const {
  const auto said = said_.find({culprit.incarnation, culprit.clock});
  if (said == said_.end() || said->second.place.empty()) return "";
  return absl::StrCat(", in ", said->second.place);
}

void StallWatch::NoticeMoves(const wire::View& view, absl::Time now) {
  std::map<uint64_t, int32_t> moves;
  for (const wire::Move& move : view.move())
    moves[move.id()] = view.owner_server(move.shard());
  for (const auto& [id, source] : moves_) {
    if (moves.count(id) == 0) moved_[source] = now;
  }
  moves_ = std::move(moves);
}

absl::Duration StallWatch::StillOf(const Report& report, absl::Time now) const {
  // Who has not been heard of lately may have got on since.
  if (now - report.at > options_.lease / 2 || report.at < judged_from_) {
    return absl::ZeroDuration();
  }
  // What it waits for may have been with a shard on its way, and has arrived.
  if (report.progress.has_server()) {
    const auto moved = moved_.find(report.progress.server());
    if (moved != moved_.end() &&
        report.at < moved->second + options_.lease / 2) {
      return absl::ZeroDuration();
    }
  }
  return std::min(absl::Milliseconds(report.progress.for_ms()),
                  report.at - counted_from_);
}

std::vector<StallWatch::Worker> StallWatch::WorkersOf(const wire::View& view,
                                                      absl::Time now) {
  const bool all_done = AllDone(view);
  bool all_trained = true;
  std::vector<Worker> workers;
  for (const wire::WorkerMember& member : view.worker()) {
    Worker worker;
    worker.rank = member.rank();
    worker.incarnation = member.incarnation();
    worker.clock = EndOf(view);
    worker.limit = options_.timeout;
    // The chief is the first in the view.
    const bool finishing = all_done && workers.empty();
    const auto report = reports_.find(member.incarnation());
    if (member.done()) {
      const absl::Time since =
          done_since_.try_emplace(member.incarnation(), now).first->second;
      worker.waits = !finishing;
      worker.still =
          std::max(now - std::max(since, counted_from_), absl::ZeroDuration());
    }
    if (report != reports_.end() && (!member.done() || finishing)) {
      const Progress& progress = report->second.progress;
      worker.clock = std::clamp<Clock>(progress.clock(), 0, EndOf(view));
      worker.waits = progress.activity() == Progress::WAITING_FOR_WORKERS;
      worker.at_server = progress.activity() == Progress::WAITING_FOR_SERVER;
      worker.blocks = worker.at_server ||
                      progress.activity() == Progress::WORKING ||
                      progress.activity() == Progress::WAITING_FOR_COORDINATOR;
      if (worker.at_server && progress.has_server())
        worker.server = progress.server();
      worker.still = StillOf(report->second, now);
      worker.doing = DoingText(progress);
      worker.trained = report->second.trained;
      if (worker.trained && progress.activity() == Progress::WORKING) {
        worker.limit = options_.finish_timeout;
        worker.delays_end = true;
      }
    }
    // Who has just joined says no clock yet; nobody is behind the phase that
    // all have entered.
    const Clock clock =
        std::max<Clock>(worker.clock, view.phase(view.entered()).from());
    worker.needs_all =
        IsDoneTogether(StepAt(view, clock)) || NeedsAt(view, clock).turn;
    all_trained = all_trained && (member.done() || worker.trained);
    workers.push_back(std::move(worker));
  }
  for (Worker& worker : workers) worker.delays_end &= all_trained;
  return workers;
}

bool StallWatch::Blocks(const Worker& culprit, const Worker& waiter) {
  return waiter.waits && culprit.blocks &&
         ((waiter.needs_all && !culprit.trained) ||
          culprit.clock <= waiter.clock);
}

std::optional<wire::JobEnd> StallWatch::EndIfAllWaitForServers(
    const wire::View& view, const std::vector<Worker>& workers) const {
  std::map<int32_t, std::vector<int32_t>> ranks;  // By server.
  std::map<int32_t, absl::Duration> still;
  for (const Worker& worker : workers) {
    if (!worker.at_server || !worker.Over()) return std::nullopt;
    ranks[worker.server].push_back(worker.rank);
    still[worker.server] = std::max(still[worker.server], worker.still);
  }
  std::vector<std::string> parts;
  std::set<int32_t> silent;
  for (const auto& [server, waiting] : ranks) {
    std::vector<std::string> threads;
    for (const wire::ServerMember& member : view.server()) {
      if (member.index() != server) continue;
      for (const wire::Endpoints& thread : member.thread())
        threads.push_back(NetworkEndpoint(thread));
    }
    parts.push_back(absl::StrCat(
        server < 0 ? "a server" : absl::StrCat("server ", server),
        threads.empty() ? ""
                        : absl::StrCat(" (shard threads at ",
                                       absl::StrJoin(threads, ", "), ")"),
        " has not answered ", RanksText(waiting), " for ",
        SecondsText(still[server])));
    for (const auto& [target, shard] : ShardsByTarget(view, server)) {
      absl::StrAppend(&parts.back(), ", and hands shard ", shard,
                      " over to server ", target);
      silent.insert(target);
    }
    if (const std::set<int32_t> copies = ServersWithCopies(view, server);
        !copies.empty()) {
      absl::StrAppend(
          &parts.back(),
          ", and answers when the copies of its shards have it, on ",
          copies.size() == 1 ? "server " : "servers ",
          absl::StrJoin(copies, ", "));
    }
    if (server >= 0) silent.insert(server);
  }
  wire::JobEnd end = JobEndOf(
      wire::JobEnd::SERVERS_SILENT,
      absl::StrCat(absl::StrJoin(parts, "; "),
                   ", and no other worker is left that goes on; look at the "
                   "logs of these servers and at the network between"));
  for (const int32_t server : silent) end.add_server(server);
  return end;
}

void StallWatch::Say(const std::vector<Worker>& workers, Findings* findings) {
  const absl::Duration worth_saying =
      std::min(options_.lease, options_.timeout / 2);
  std::map<std::pair<Incarnation, Clock>, Said> all_said;
  for (const Worker& culprit : workers) {
    if (culprit.still < worth_saying) continue;
    std::vector<int32_t> waiting;
    for (const Worker& waiter : workers) {
      if (Blocks(culprit, waiter) && waiter.still >= worth_saying)
        waiting.push_back(waiter.rank);
    }
    // Many a program takes a while there, and nobody waits for it.
    const bool delays_end =
        culprit.delays_end && culprit.still >= options_.timeout;
    if (waiting.empty() && !culprit.at_server && !delays_end) continue;
    const std::string who = absl::StrCat("worker ", culprit.rank);
    const std::string state =
        absl::StrCat(" is ", culprit.doing, ", at clock ", culprit.clock,
                     ", without progress for ", SecondsText(culprit.still),
                     PlaceText(culprit));
    const std::string removed_after =
        absl::StrCat("; it is removed after ", SecondsText(culprit.limit));
    if (!waiting.empty()) {
      findings->held_up.push_back(absl::StrCat(
          who, " holds up ", RanksText(waiting), ": it", state, removed_after));
      findings->holding_up.push_back(culprit.incarnation);
    } else {
      findings->held_up.push_back(
          absl::StrCat(who, state, delays_end ? removed_after : ""));
      if (delays_end) findings->holding_up.push_back(culprit.incarnation);
    }
    const std::pair key{culprit.incarnation, culprit.clock};
    const bool is_new = said_.count(key) == 0;
    Said& said = all_said[key];
    if (!is_new) said = std::move(said_[key]);
    if (is_new || (!said.place.empty() && !said.with_place))
      findings->news.push_back(findings->held_up.back());
    said.with_place = !said.place.empty();
  }
  said_ = std::move(all_said);
}

StallWatch::Findings StallWatch::Look(const wire::View& view, absl::Time now) {
  Findings findings;
  NoticeMoves(view, now);
  const std::vector<Worker> workers = WorkersOf(view, now);
  Say(workers, &findings);
  if (workers.empty()) return findings;
  findings.end = EndIfAllWaitForServers(view, workers);
  if (findings.end.has_value()) return findings;
  bool needs_all = false;
  std::vector<std::pair<const Worker*, std::vector<int32_t>>> blocking;
  Clock smallest = EndOf(view);
  for (const Worker& culprit : workers) {
    if (!culprit.Over()) continue;
    std::vector<int32_t> waiting;
    for (const Worker& waiter : workers) {
      if (!Blocks(culprit, waiter) || waiter.still < options_.timeout) continue;
      waiting.push_back(waiter.rank);
      needs_all |= waiter.needs_all;
    }
    if (waiting.empty() && !culprit.delays_end) continue;
    smallest = std::min(smallest, culprit.clock);
    blocking.emplace_back(&culprit, std::move(waiting));
  }
  for (const auto& [culprit, waiting] : blocking) {
    if (!needs_all && culprit->clock > smallest) continue;
    findings.remove.push_back(
        {.rank = culprit->rank,
         .incarnation = culprit->incarnation,
         .why_removed = absl::StrCat(
             "was removed, and may join again, because it held up ",
             waiting.empty() ? "the end of the job" : RanksText(waiting),
             ": without progress for ", SecondsText(culprit->still), ", it is ",
             culprit->doing, PlaceText(*culprit))});
  }
  // Those who waited for them need a moment to go on.
  if (!findings.remove.empty()) judged_from_ = now + options_.lease / 2;
  return findings;
}

}  // namespace slackline
