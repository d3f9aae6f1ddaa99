#include "tools/cli/run/live_progress.h"

#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/config/cluster_config.h"
#include "job/job_config.h"
#include "tools/cli/job/job_connection.h"

namespace slackline {
namespace {

constexpr absl::Duration kAskEvery = absl::Milliseconds(500);
constexpr absl::Duration kHeardMax = absl::Seconds(5);

}  // namespace

void LiveProgress::Connect() {
  const std::string path = absl::StrCat(out_dir_, "/cluster.textproto");
  std::error_code error;
  const std::filesystem::file_time_type time =
      std::filesystem::last_write_time(path, error);
  if (error || time == config_time_) return;
  config_time_ = time;
  client_.reset();
  progress_ = Progress();
  heard_ = absl::InfinitePast();
  const absl::StatusOr<config::ClusterConfig> config = LoadJobConfig(path);
  if (!config.ok()) return;
  const absl::StatusOr<std::optional<KeySource>> keys =
      KeyOfJob({}, out_dir_, *config);
  if (!keys.ok()) return;
  absl::StatusOr<std::unique_ptr<CoordinatorClient>> client =
      CoordinatorClient::Connect(CoordinatorEndpoints(*config), config->job(),
                                 *keys);
  if (client.ok()) client_ = *std::move(client);
}

void LiveProgress::Poll(absl::Time now) {
  if (now >= next_ask_) {
    next_ask_ = now + kAskEvery;
    Connect();
    // What cannot be sent is asked again.
    if (client_ != nullptr) client_->AskStatus().IgnoreError();
  }
  while (client_ != nullptr) {
    const absl::StatusOr<std::optional<wire::StatusReply>> status =
        client_->Receive();
    if (!status.ok() || !status->has_value()) return;
    progress_.Update(**status, now);
    heard_ = now;
  }
}

bool LiveProgress::IsHeard(absl::Time now) const {
  return now - heard_ <= kHeardMax;
}

std::vector<std::string> LiveProgress::Block(int width, absl::Time now) const {
  return IsHeard(now) ? progress_.Block(width) : std::vector<std::string>();
}

}  // namespace slackline
