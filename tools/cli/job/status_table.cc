#include "tools/cli/job/status_table.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/metrics/histogram.h"
#include "common/status.h"
#include "google/protobuf/util/json_util.h"
#include "tools/cli/job/load_tables.h"
#include "tools/cli/job/mode_text.h"
#include "tools/cli/job/plan_tables.h"
#include "tools/cli/job/progress.h"
#include "tools/cli/text.h"

namespace slackline {
namespace {

std::string HeardText(int64_t heard_ms_ago) {
  return absl::StrCat(heard_ms_ago, " ms ago");
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

std::string WorkersText(const wire::StatusReply& status) {
  std::vector<run::WorkerStats> workers(status.worker().begin(),
                                        status.worker().end());
  std::sort(workers.begin(), workers.end(),
            [](const run::WorkerStats& a, const run::WorkerStats& b) {
              return a.rank() < b.rank();
            });
  std::vector<std::vector<std::string>> rows;
  for (const run::WorkerStats& worker : workers) {
    const double seconds = worker.compute_seconds() + worker.wait_seconds();
    const double examples = static_cast<double>(worker.examples());
    rows.push_back(
        {absl::StrCat(worker.rank()), absl::StrCat(worker.pid()),
         !worker.alive() ? "lost"
         : worker.done() ? "done"
                         : "alive",
         HeardText(worker.heard_ms_ago()), absl::StrCat(worker.clock()),
         absl::StrFormat("%.4f", worker.train_loss()),
         seconds > 0 ? CountText(examples / seconds) : "-",
         seconds > 0 ? PercentText(worker.wait_seconds() / seconds, 0) : "-",
         BytesText(static_cast<double>(worker.bytes_pushed())),
         BytesText(static_cast<double>(worker.bytes_pulled())),
         absl::StrCat(worker.retries()), DoingText(worker)});
  }
  return TableText({{"worker"},
                    {"pid"},
                    {"state", /*left=*/true},
                    {"heard"},
                    {"clock"},
                    {"loss"},
                    {"examples/s"},
                    {"waiting"},
                    {"pushed"},
                    {"pulled"},
                    {"retries"},
                    {"doing", /*left=*/true}},
                   rows);
}

bool IsDraining(const wire::View& view, int server) {
  return std::any_of(view.server().begin(), view.server().end(),
                     [server](const wire::ServerMember& member) {
                       return member.index() == server && member.draining();
                     });
}

std::string ServersText(const wire::StatusReply& status) {
  std::vector<run::ServerStats> servers(status.server().begin(),
                                        status.server().end());
  std::sort(servers.begin(), servers.end(),
            [](const run::ServerStats& a, const run::ServerStats& b) {
              return a.index() < b.index();
            });
  std::vector<std::vector<std::string>> rows;
  for (const run::ServerStats& server : servers) {
    const run::Histogram& staleness = server.missed_clocks();
    const ServerLoad load = LoadOf(status, server);
    rows.push_back(
        {absl::StrCat(server.index()), absl::StrCat(server.pid()),
         !server.alive()                             ? "lost"
         : IsDraining(status.view(), server.index()) ? "draining"
                                                     : "alive",
         HeardText(server.heard_ms_ago()), absl::StrCat(server.shards()),
         load.known ? PercentText(load.busiest, 0) : "-",
         load.known ? PercentText(load.share, 0) : "-",
         load.known ? absl::StrFormat("%.2f ms", load.queue_ms) : "-",
         CountText(static_cast<double>(server.pushes())),
         CountText(static_cast<double>(server.pulls())),
         absl::StrCat(server.pulls_parked()),
         absl::StrCat(HistogramPercentile(staleness, 0.5), "/",
                      HistogramPercentile(staleness, 0.99), "/",
                      staleness.max()),
         BytesText(static_cast<double>(server.bytes_in())),
         BytesText(static_cast<double>(server.bytes_out())),
         absl::StrCat(server.malformed())});
  }
  return TableText({{"server"},
                    {"pid"},
                    {"state", /*left=*/true},
                    {"heard"},
                    {"shards"},
                    {"busy"},
                    {"load"},
                    {"queue"},
                    {"pushes"},
                    {"pulls"},
                    {"parked"},
                    {"staleness"},
                    {"in"},
                    {"out"},
                    {"malformed"}},
                   rows);
}

// The last `max` moves that are done.
std::string LastMovesText(const wire::StatusReply& status, int max) {
  const int count = std::min(max, status.moved_size());
  return MovesTable({status.moved().end() - count, status.moved().end()});
}

}  // namespace

std::string StatusTable(const wire::StatusReply& status,
                        const StatusTableOptions& options) {
  const wire::View& view = status.view();
  Progress progress;
  progress.Update(status, absl::UnixEpoch());
  std::string text =
      absl::StrCat("job ", view.job(), " is ", StateName(view.state()),
                   " (view ", view.number(), "): ", progress.Headline(), "\n");
  if (!view.end().reason().empty()) {
    absl::StrAppend(&text, "reason: ", view.end().reason(), "\n");
  }
  if (status.missing_size() > 0) {
    absl::StrAppend(&text, "missing: ", absl::StrJoin(status.missing(), ", "),
                    "\n");
  }
  for (const std::string& sentence : status.held_up()) {
    absl::StrAppend(&text, "held up: ", sentence, "\n");
  }
  if (!status.mode_policy().empty()) {
    absl::StrAppend(&text, "mode policy: ", status.mode_policy(), "\n");
  }
  for (const std::string& evaluation : progress.TakeEvaluations()) {
    absl::StrAppend(&text, "last evaluation: ", evaluation, "\n");
  }
  absl::StrAppend(&text, "\n", WorkersText(status), "\n", ServersText(status),
                  "busy: the server's busiest thread; load: the server's "
                  "share of all work; queue: the longest mean wait at a "
                  "thread\n");
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

std::string StatusJson(const wire::StatusReply& status) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto printed =
      google::protobuf::util::MessageToJsonString(status, &text, options);
  SL_CHECK(printed.ok(), "a message in memory prints");
  return text;
}

}  // namespace slackline
