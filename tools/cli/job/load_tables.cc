#include "tools/cli/job/load_tables.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/metrics/server_stats.h"
#include "common/view/shard_map.h"
#include "tools/cli/job/copies.h"
#include "tools/cli/text.h"

namespace slackline {
namespace {

std::string RateText(double per_second) {
  // What decays never quite reaches zero.
  return per_second < 0.005 ? "0" : CountText(per_second);
}

std::string MegabytesText(double bytes_per_second) {
  return absl::StrFormat("%.2f", bytes_per_second / 1e6);
}

// By shard id. While a shard moves, both its threads report it.
std::vector<run::ShardLoad> LoadsByShard(const wire::StatusReply& status,
                                         int shards) {
  std::vector<run::ShardLoad> loads(shards);
  for (const run::ServerStats& server : status.server()) {
    const double factor = IoFactor(server);
    for (const run::ThreadLoad& thread : server.thread()) {
      for (const run::ShardLoad& load : thread.shard()) {
        // A server may know of a split before this reply's view does.
        if (load.shard() < 0 || load.shard() >= shards) continue;
        run::ShardLoad& sum = loads[load.shard()];
        sum.set_pushes(sum.pushes() + load.pushes());
        sum.set_pulls(sum.pulls() + load.pulls());
        sum.set_bytes_in(sum.bytes_in() + load.bytes_in());
        sum.set_bytes_out(sum.bytes_out() + load.bytes_out());
        sum.set_busy(static_cast<float>(sum.busy() + factor * load.busy()));
      }
    }
  }
  for (int i = 0; i < shards; ++i) loads[i].set_shard(i);
  return loads;
}

// The `top` shards that keep their threads busiest, the busiest first.
std::vector<run::ShardLoad> BusiestShards(const wire::StatusReply& status,
                                          const View& view, int top) {
  std::vector<run::ShardLoad> loads = LoadsByShard(status, view.shard_count());
  std::stable_sort(loads.begin(), loads.end(),
                   [](const run::ShardLoad& a, const run::ShardLoad& b) {
                     return a.busy() > b.busy();
                   });
  loads.resize(std::min<size_t>(loads.size(), top));
  return loads;
}

}  // namespace

ServerLoad LoadOf(const wire::StatusReply& status,
                  const run::ServerStats& server) {
  double all = 0;
  for (const run::ServerStats& other : status.server())
    all += IoFactor(other) * ThreadsBusy(other);
  const double factor = IoFactor(server);
  ServerLoad load;
  load.known = server.thread_size() > 0;
  for (const run::ThreadLoad& thread : server.thread()) {
    load.busiest = std::max(load.busiest, factor * thread.utilisation());
    load.queue_ms = std::max(load.queue_ms, thread.queue_ms());
  }
  // What decays never quite reaches zero.
  if (all >= 0.005) load.share = factor * ThreadsBusy(server) / all;
  return load;
}

std::string ShardsTable(const wire::StatusReply& status, int top) {
  const absl::StatusOr<std::shared_ptr<const View>> created =
      View::Create(status.view());
  if (!created.ok()) {
    return absl::StrCat("the coordinator's view cannot be read: ",
                        std::string(created.status().message()), "\n");
  }
  const View& view = **created;
  if (view.shard_count() == 0) return "";
  const std::vector<run::ShardLoad> loads = BusiestShards(status, view, top);
  const int shown = static_cast<int>(loads.size());
  const bool with_copies = status.view().follower_size() > 0;
  std::vector<std::vector<std::string>> rows;
  for (const run::ShardLoad& load : loads) {
    const ShardId shard{load.shard()};
    const Owner owner = view.OwnerOf(shard);
    rows.push_back(
        {absl::StrCat(load.shard()), view.ShardName(shard),
         absl::StrCat(owner.server, ".", owner.thread),
         BytesText(static_cast<double>(view.shard(shard).region.DenseBytes())),
         RateText(load.pushes()), RateText(load.pulls()),
         MegabytesText(load.bytes_in()), MegabytesText(load.bytes_out()),
         PercentText(load.busy(), 1)});
    if (with_copies)
      rows.back().push_back(FollowersText(status.view(), load.shard()));
  }
  std::vector<Column> columns = {{"shard"},    {"name", /*left=*/true},
                                 {"at"},       {"values"},
                                 {"pushes/s"}, {"pulls/s"},
                                 {"MB/s in"},  {"MB/s out"},
                                 {"busy"}};
  if (with_copies) columns.push_back({"copies at", /*left=*/true});
  std::string text = TableText(columns, rows);
  if (shown < view.shard_count()) {
    absl::StrAppend(&text, "and ", view.shard_count() - shown,
                    " shards that are less busy; --top shows more\n");
  }
  absl::StrAppend(&text, "busy: part of the time of the shard's thread\n");
  if (with_copies)
    text += "copies at: server.thread; in parentheses while it is copied\n";
  return text;
}

nlohmann::ordered_json ShardsJson(const wire::StatusReply& status, int top) {
  nlohmann::ordered_json shards = nlohmann::ordered_json::array();
  const absl::StatusOr<std::shared_ptr<const View>> view =
      View::Create(status.view());
  if (!view.ok()) return shards;
  for (const run::ShardLoad& load : BusiestShards(status, **view, top)) {
    const ShardId shard{load.shard()};
    const Owner owner = (*view)->OwnerOf(shard);
    shards.push_back({{"shard", load.shard()},
                      {"name", (*view)->ShardName(shard)},
                      {"at", absl::StrCat(owner.server, ".", owner.thread)},
                      {"bytes", (*view)->shard(shard).region.DenseBytes()},
                      {"pushes", load.pushes()},
                      {"pulls", load.pulls()},
                      {"busy", load.busy()}});
  }
  return shards;
}

}  // namespace slackline
