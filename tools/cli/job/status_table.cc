#include "tools/cli/job/status_table.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/config/cluster_config.h"
#include "common/endpoint.h"
#include "common/host_port.h"
#include "common/metrics/histogram.h"
#include "common/metrics/metric_table.h"
#include "common/metrics/refusals.h"
#include "common/metrics/step_phases.h"
#include "common/some_names.h"
#include "tools/cli/job/copies.h"
#include "tools/cli/job/load_tables.h"
#include "tools/cli/job/mode_text.h"
#include "tools/cli/job/plan_tables.h"
#include "tools/cli/job/progress.h"
#include "tools/cli/job/summary_table.h"
#include "tools/cli/json.h"
#include "tools/cli/text.h"

namespace slackline {
namespace {

// A line of a table: of a member that is there, or has been.
template <typename Stats>
struct Line {
  int index = 0;
  std::string host;
  const Stats* stats = nullptr;  // nullptr: it is not there.
};
using WorkerLine = Line<run::WorkerStats>;
using ServerLine = Line<run::ServerStats>;

// By index; `hosts` and `stats` have them in any order.
template <typename Stats>
std::vector<Line<Stats>> LinesOf(const std::map<int, std::string>& hosts,
                                 const std::map<int, const Stats*>& stats) {
  std::map<int, Line<Stats>> lines;
  for (const auto& [index, host] : hosts)
    lines[index] = {.index = index, .host = host};
  for (const auto& [index, of_member] : stats) {
    lines[index].index = index;
    lines[index].stats = of_member;
  }
  std::vector<Line<Stats>> sorted;
  for (const auto& [index, line] : lines) sorted.push_back(line);
  return sorted;
}

std::map<int, std::string> HostsOf(const std::vector<std::string>& configured) {
  std::map<int, std::string> hosts;
  for (const std::string& host : configured)
    hosts[static_cast<int>(hosts.size())] = host;
  return hosts;
}

// "10.0.0.7" of "tcp://10.0.0.7:4711"; empty if it is of another form.
std::string HostOf(const std::string& endpoint) {
  const auto [host, port] = SplitHostPort(endpoint);
  return port.empty() ? "" : host;
}

std::vector<WorkerLine> WorkersOf(const wire::StatusReply& status,
                                  const Configured& configured) {
  std::map<int, std::string> hosts = HostsOf(configured.workers);
  for (const wire::WorkerMember& worker : status.view().worker()) {
    if (!worker.host().empty()) hosts[worker.rank()] = worker.host();
  }
  std::map<int, const run::WorkerStats*> stats;
  for (const run::WorkerStats& worker : status.worker())
    stats[worker.rank()] = &worker;
  return LinesOf(hosts, stats);
}

std::vector<ServerLine> ServersOf(const wire::StatusReply& status,
                                  const Configured& configured) {
  std::map<int, std::string> hosts = HostsOf(configured.servers);
  for (const wire::ServerMember& server : status.view().server()) {
    const std::string host = server.thread_size() > 0
                                 ? HostOf(NetworkEndpoint(server.thread(0)))
                                 : "";
    // One that was added is not in the config.
    if (!host.empty() && hosts.count(server.index()) == 0)
      hosts[server.index()] = host;
  }
  std::map<int, const run::ServerStats*> stats;
  for (const run::ServerStats& server : status.server())
    stats[server.index()] = &server;
  return LinesOf(hosts, stats);
}

// Who does not need to be told where it is.
bool AllHere(const std::vector<WorkerLine>& workers,
             const std::vector<ServerLine>& servers) {
  const auto here = [](const auto& line) {
    return line.host.empty() || IsLoopback(line.host);
  };
  return std::all_of(workers.begin(), workers.end(), here) &&
         std::all_of(servers.begin(), servers.end(), here);
}

// Why a member of the config is not there.
std::string AbsenceText(const wire::View& view) {
  return view.state() == wire::FORMING ? "missing" : "gone";
}

template <typename Stats>
std::vector<std::string> AbsentNames(const std::string& role,
                                     const std::vector<Line<Stats>>& lines) {
  std::vector<std::string> names;
  for (const Line<Stats>& line : lines) {
    if (line.stats == nullptr)
      names.push_back(absl::StrCat(role, " ", line.index));
  }
  return names;
}

// "2 servers", "1 of 2 servers (server 1: gone)"
template <typename Stats>
std::string PresenceText(const wire::View& view, const std::string& role,
                         const std::vector<Line<Stats>>& lines) {
  const std::vector<std::string> absent = AbsentNames(role, lines);
  const size_t there = lines.size() - absent.size();
  const std::string roles = absl::StrCat(role, lines.size() == 1 ? "" : "s");
  if (absent.empty()) return absl::StrCat(there, " ", roles);
  return absl::StrCat(there, " of ", lines.size(), " ", roles, " (",
                      SomeNames(absent), ": ", AbsenceText(view), ")");
}

std::string HeardText(int64_t heard_ms_ago) {
  return absl::StrFormat("%.1f s ago",
                         static_cast<double>(heard_ms_ago) / 1000);
}

// "computing step 17", and since when if that is long.
std::string DoingText(const run::WorkerStats& worker) {
  constexpr int64_t kWorthSayingMs = 1000;
  const run::WorkerProgress& progress = worker.progress();
  if (progress.what().empty()) return "";
  return progress.for_ms() < kWorthSayingMs
             ? progress.what()
             : absl::StrCat(progress.what(), " for ", progress.for_ms() / 1000,
                            " s");
}

std::string PercentilesText(const run::Histogram& histogram) {
  return absl::StrCat(HistogramPercentile(histogram, 0.5), "/",
                      HistogramPercentile(histogram, 0.99), "/",
                      histogram.max());
}

// The metrics that have a column.
std::vector<Metric> WithColumns(absl::Span<const Metric> metrics,
                                bool with_copies = false) {
  std::vector<Metric> shown;
  for (const Metric& metric : metrics) {
    if (metric.column.title[0] == '\0') continue;
    if (with_copies || !metric.column.of_copies) shown.push_back(metric);
  }
  return shown;
}

void AddColumns(const std::vector<Metric>& metrics,
                std::vector<Column>* columns) {
  for (const Metric& metric : metrics)
    columns->push_back({metric.column.title});
}

std::string CellText(const google::protobuf::Message& stats,
                     const Metric& metric) {
  switch (metric.column.form) {
    case StatusColumn::Form::kNumber:
      return absl::StrCat(static_cast<int64_t>(MetricValue(stats, metric)));
    case StatusColumn::Form::kCount:
      return CountText(MetricValue(stats, metric));
    case StatusColumn::Form::kBytes:
      return BytesText(MetricValue(stats, metric));
    case StatusColumn::Form::kPercentiles:
      return PercentilesText(MetricHistogram(stats, metric));
  }
  return "";
}

void AddCells(const google::protobuf::Message& stats,
              const std::vector<Metric>& metrics,
              std::vector<std::string>* row) {
  for (const Metric& metric : metrics) row->push_back(CellText(stats, metric));
}

// Without the lines of absent members where these are many: the headline says
// how many they are.
template <typename Stats>
std::vector<Line<Stats>> LinesShown(const std::string& role,
                                    std::vector<Line<Stats>> lines) {
  constexpr size_t kAbsentMax = 20;
  if (AbsentNames(role, lines).size() > kAbsentMax)
    std::erase_if(lines, [](const auto& line) { return !line.stats; });
  return lines;
}

// A line for each member: who and where it is, and what `cells` says of one
// that is there, under `columns`.
template <typename Stats>
std::string MembersTable(
    const std::string& role, const wire::View& view,
    const std::vector<Line<Stats>>& lines, bool with_hosts,
    const std::vector<Column>& columns,
    absl::FunctionRef<std::vector<std::string>(const Line<Stats>&)> cells) {
  std::vector<Column> all = {{role}};
  if (with_hosts) all.push_back({"host", /*left=*/true});
  all.insert(all.end(), columns.begin(), columns.end());
  std::vector<std::vector<std::string>> rows;
  for (const Line<Stats>& line : LinesShown(role, lines)) {
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(absl::StrCat(line.index));
    if (with_hosts) row.push_back(line.host);
    const std::vector<std::string> rest =
        line.stats == nullptr ? std::vector<std::string>{"", AbsenceText(view)}
                              // No pid.
                              : cells(line);
    row.insert(row.end(), rest.begin(), rest.end());
    row.resize(all.size());
  }
  return TableText(all, rows);
}

std::string WorkersText(const wire::StatusReply& status,
                        const std::vector<WorkerLine>& lines, bool with_hosts) {
  const std::vector<Metric> metrics = WithColumns(WorkerMetrics());
  const auto cells = [&](const WorkerLine& line) {
    const run::WorkerStats& worker = *line.stats;
    const double seconds = worker.compute_seconds() + worker.wait_seconds();
    const double examples = static_cast<double>(worker.examples());
    std::vector<std::string> row = {
        absl::StrCat(worker.pid()),
        worker.done() ? "done" : "alive",
        HeardText(worker.heard_ms_ago()),
        absl::StrCat(worker.clock()),
        absl::StrFormat("%.4f", worker.train_loss()),
        seconds > 0 ? CountText(examples / seconds) : "-",
        seconds > 0 ? PercentText(worker.wait_seconds() / seconds, 0) : "-"};
    AddCells(worker, metrics, &row);
    row.push_back(DoingText(worker));
    return row;
  };
  std::vector<Column> columns = {
      {"pid"},  {"state", /*left=*/true}, {"heard"},  {"clock"},
      {"loss"}, {"examples/s"},           {"waiting"}};
  AddColumns(metrics, &columns);
  columns.push_back({"doing", /*left=*/true});
  return MembersTable<run::WorkerStats>("worker", status.view(), lines,
                                        with_hosts, columns, cells);
}

// Where the time of each worker goes; empty: no steps are known yet.
std::string StepTimesText(const std::vector<WorkerLine>& lines) {
  std::vector<Column> columns = {{"worker"}, {"step"}};
  for (const auto& [phase, seconds] : PhasesOf(run::StepPhases()))
    columns.push_back({phase});
  std::vector<std::vector<std::string>> rows;
  for (const WorkerLine& line : lines) {
    if (line.stats == nullptr || line.stats->recent().count() == 0) continue;
    const auto phases = PhasesOf(line.stats->recent().mean());
    double step = 0;
    for (const auto& [phase, seconds] : phases) step += seconds;
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(absl::StrCat(line.index));
    row.push_back(absl::StrFormat("%.2f ms", 1000 * step));
    for (const auto& [phase, seconds] : phases)
      row.push_back(seconds > 0 ? PercentText(seconds / step, 0) : "-");
  }
  if (rows.empty()) return "";
  return absl::StrCat("\n", TableText(columns, rows),
                      "step: mean of the worker's last 20 at most, without the "
                      "longest two, and where that time goes\n");
}

bool IsDraining(const wire::View& view, int server) {
  return std::any_of(view.server().begin(), view.server().end(),
                     [server](const wire::ServerMember& member) {
                       return member.index() == server && member.draining();
                     });
}

std::string ServersText(const wire::StatusReply& status,
                        const std::vector<ServerLine>& lines, bool with_hosts,
                        bool with_copies) {
  const std::vector<Metric> metrics = WithColumns(ServerMetrics(), with_copies);
  const auto cells = [&](const ServerLine& line) {
    const run::ServerStats& server = *line.stats;
    const ServerLoad load = LoadOf(status, server);
    std::vector<std::string> row = {
        absl::StrCat(server.pid()),
        IsDraining(status.view(), line.index) ? "draining" : "alive",
        HeardText(server.heard_ms_ago()),
        absl::StrCat(server.shards()),
        load.known ? PercentText(load.busiest, 0) : "-",
        load.known ? PercentText(load.share, 0) : "-",
        load.known ? absl::StrFormat("%.2f ms", load.queue_ms) : "-"};
    AddCells(server, metrics, &row);
    return row;
  };
  std::vector<Column> columns = {{"pid"},   {"state", /*left=*/true},
                                 {"heard"}, {"shards"},
                                 {"busy"},  {"share"},
                                 {"queue"}};
  AddColumns(metrics, &columns);
  return MembersTable<run::ServerStats>("server", status.view(), lines,
                                        with_hosts, columns, cells);
}

// How far apart the workers are. Their clocks are those of their last
// heartbeats, of different moments: the difference of two of them says little.
// What the servers have measured when they answered does.
std::string ClocksText(const wire::StatusReply& status) {
  std::string text =
      "clock: as of when the worker was heard, so two clocks are not of one "
      "moment\n";
  run::Histogram lead;
  for (const run::ServerStats& server : status.server())
    MergeHistogram(server.lead(), &lead);
  if (lead.bin_size() > 0) {
    absl::StrAppend(&text,
                    "lead over the slowest when servers answered: p50/p99/max ",
                    PercentilesText(lead), " clocks\n");
  }
  return text;
}

// The last `max` moves that are done.
std::string LastMovesText(const wire::StatusReply& status, int max) {
  const int count = std::min(max, status.moved_size());
  return MovesTable({status.moved().end() - count, status.moved().end()});
}

}  // namespace

Configured ConfiguredBy(const config::ClusterConfig& config) {
  Configured members;
  for (const ServerProcess& server : ServerProcesses(config))
    members.servers.push_back(server.host);
  for (const WorkerProcess& worker : WorkerProcesses(config))
    members.workers.push_back(worker.host);
  members.replicas = config.replicas();
  members.any_server_takes_over = AnyServerTakesOver(config);
  return members;
}

std::string MembersText(const wire::StatusReply& status,
                        const Configured& configured) {
  return absl::StrCat(
      PresenceText(status.view(), "server", ServersOf(status, configured)),
      ", ",
      PresenceText(status.view(), "worker", WorkersOf(status, configured)),
      configured.any_server_takes_over
          ? absl::StrCat("; coordinator: server ", status.coordinator_server())
          : "");
}

std::string CopiesLine(const wire::StatusReply& status,
                       const Configured& configured) {
  if (configured.replicas == 0 || status.view().owner_server_size() == 0)
    return "";
  return CopiesText(CopiesOf(status, configured.replicas));
}

std::string CheckpointText(const wire::StatusReply& status) {
  std::string text = status.checkpoint();
  if (text.empty()) text = status.checkpoint_failed();
  if (!status.has_last_checkpoint()) return text;
  const run::CheckpointRecord& last = status.last_checkpoint();
  return absl::StrCat(text, text.empty() ? "" : "; the last one: ", "step ",
                      last.clock(), " is in ", last.folder(), " (",
                      BytesText(static_cast<double>(last.bytes())), ")");
}

std::string StatusTable(const wire::StatusReply& status,
                        const Configured& configured,
                        const StatusTableOptions& options) {
  const wire::View& view = status.view();
  const std::vector<WorkerLine> workers = WorkersOf(status, configured);
  const std::vector<ServerLine> servers = ServersOf(status, configured);
  const bool with_hosts = !AllHere(workers, servers);
  Progress progress;
  progress.Update(status, absl::UnixEpoch());
  std::string text =
      absl::StrCat("job ", view.job(), " is ", StateName(view.state()),
                   " (view ", view.number(), "): ", progress.Headline(), "\n");
  if (!view.end().reason().empty()) {
    absl::StrAppend(&text, "reason: ", view.end().reason(), "\n");
  }
  absl::StrAppend(&text, "members: ", MembersText(status, configured), "\n");
  for (const std::string& sentence : status.held_up()) {
    absl::StrAppend(&text, "held up: ", sentence, "\n");
  }
  for (const run::Straggler& slow : status.straggler()) {
    absl::StrAppend(&text, "slow: ", slow.sentence(),
                    slow.advice().empty() ? "" : "; ", slow.advice(), "\n");
  }
  if (const std::string copies = CopiesLine(status, configured);
      !copies.empty()) {
    absl::StrAppend(&text, "copies: ", copies, "\n");
  }
  if (!status.mode_policy().empty()) {
    absl::StrAppend(&text, "mode policy: ", status.mode_policy(), "\n");
  }
  if (!status.copies().empty()) {
    absl::StrAppend(&text, "copies to come: ", status.copies(), "\n");
  }
  if (const std::string checkpoint = CheckpointText(status);
      !checkpoint.empty()) {
    absl::StrAppend(&text, "checkpoint: ", checkpoint, "\n");
  }
  if (status.has_best_checkpoint()) {
    absl::StrAppend(&text, "best checkpoint: ",
                    BestCheckpointText(status.best_checkpoint()), "\n");
  }
  if (const std::string refused = RefusalsText(status.refused());
      !refused.empty()) {
    absl::StrAppend(&text, "refused: ", refused, "\n");
  }
  for (const std::string& evaluation : progress.TakeEvaluations()) {
    absl::StrAppend(&text, "last evaluation: ", evaluation, "\n");
  }
  absl::StrAppend(
      &text, "\n", WorkersText(status, workers, with_hosts), ClocksText(status),
      StepTimesText(workers), "\n",
      ServersText(status, servers, with_hosts, configured.replicas > 0),
      "busy: part of the time, of the server's busiest shard "
      "thread; share: of the busy time of all servers\n"
      "queue: the longest mean wait at a thread; staleness: "
      "p50/p99/max of the clocks that a gradient missed\n");
  const std::string pending = PendingMovesText(status.plan(), options.top);
  if (!pending.empty()) absl::StrAppend(&text, "\nmoves to come:\n", pending);
  if (status.moved_size() > 0) {
    absl::StrAppend(&text, "\nlast moves:\n",
                    LastMovesText(status, options.top));
  }
  if (status.mode_changed_size() > 0) {
    absl::StrAppend(&text, "\nlast changes of the mode:\n",
                    ModeChangesTable(status, options.top));
  }
  if (options.shards) {
    const std::string shards = ShardsTable(status, options.top);
    absl::StrAppend(&text, "\n", shards.empty() ? "no shards\n" : shards);
  }
  return text;
}

namespace {

// Members come in the order in which they joined.
wire::StatusReply ByIndex(wire::StatusReply status) {
  const auto by_index = [](const auto& a, const auto& b) {
    return a.index() < b.index();
  };
  const auto by_rank = [](const auto& a, const auto& b) {
    return a.rank() < b.rank();
  };
  const auto sort = [](auto* members, const auto& before) {
    std::stable_sort(members->begin(), members->end(), before);
  };
  sort(status.mutable_server(), by_index);
  sort(status.mutable_worker(), by_rank);
  sort(status.mutable_view()->mutable_server(), by_index);
  sort(status.mutable_view()->mutable_worker(), by_rank);
  return status;
}

}  // namespace

nlohmann::ordered_json StatusJson(const wire::StatusReply& status,
                                  const Configured& configured) {
  nlohmann::ordered_json json = ToJson(ByIndex(status));
  std::vector<std::string> gone =
      AbsentNames("server", ServersOf(status, configured));
  const std::vector<std::string> workers =
      AbsentNames("worker", WorkersOf(status, configured));
  gone.insert(gone.end(), workers.begin(), workers.end());
  json["gone"] = gone;
  if (configured.replicas == 0) {
    json["redundancy"] = nullptr;
    return json;
  }
  const CopiesState copies = CopiesOf(status, configured.replicas);
  json["redundancy"] = {
      {"replicas", copies.replicas}, {"shards", copies.shards},
      {"complete", copies.complete}, {"alone", copies.alone},
      {"copying", copies.copying},   {"copying_bytes", copies.copying_bytes}};
  return json;
}

}  // namespace slackline
