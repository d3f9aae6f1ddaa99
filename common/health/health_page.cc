#include "common/health/health_page.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/config/cluster_config.h"
#include "common/health/metrics_text.h"
#include "common/health/process_figures.h"
#include "common/metrics/exposition.h"
#include "common/status.h"

namespace slackline {
namespace {

HttpPage PageOf(const HealthReport& report) {
  return {.status = report.ok ? 200 : 503,
          .type = "application/json",
          .body = report.json};
}

// How many of the processes before this one share its machine.
template <typename Process>
int OnMachine(const std::vector<Process>& processes, int count,
              const std::string& machine) {
  int found = 0;
  for (int i = 0; i < count; ++i)
    found += MachineOf(processes[static_cast<size_t>(i)].host) == machine;
  return found;
}

}  // namespace

std::optional<HealthPlace> HealthPlaceOf(const config::ClusterConfig& config,
                                         bool is_server, int index,
                                         std::optional<int> port_given) {
  if (!config.has_health() && !port_given.has_value()) return std::nullopt;
  HealthPlace place = {.host = config.health().host(),
                       .port = port_given.value_or(config.health().port())};
  if (port_given.has_value() || place.port == 0) return place;
  const std::vector<ServerProcess> servers = ServerProcesses(config);
  const std::vector<WorkerProcess> workers = WorkerProcesses(config);
  const int server_count = static_cast<int>(servers.size());
  // A server that was added to the job has no place in the config.
  if (is_server && index >= server_count) {
    place.port = 0;
    return place;
  }
  const std::string machine =
      MachineOf(is_server ? servers[static_cast<size_t>(index)].host
                          : workers[static_cast<size_t>(index)].host);
  place.port += OnMachine(servers, is_server ? index : server_count, machine) +
                (is_server ? 0 : OnMachine(workers, index, machine));
  return place;
}

HealthPage::HealthPage(const Options& options)
    : board_(options.is_server ? "server" : "worker", options.index,
             options.time.Now()) {}

absl::StatusOr<std::unique_ptr<HealthPage>> HealthPage::Start(
    const config::ClusterConfig& config, const Options& options) {
  const std::optional<HealthPlace> place = HealthPlaceOf(
      config, options.is_server, options.index, options.port_given);
  if (!place.has_value()) return nullptr;
  std::unique_ptr<HealthPage> page(new HealthPage(options));
  const HealthBounds bounds = {
      .stall = absl::Milliseconds(config.limits().stall_timeout_ms())};
  const auto report = [board = &page->board_, bounds,
                       time = options.time](const auto& of) {
    return PageOf(of(board->Read(), bounds, time.Now()));
  };
  absl::StatusOr<std::unique_ptr<HttpServer>> server = HttpServer::Start(
      {.host = place->host, .port = place->port, .time = options.time},
      {{"/healthz", [report] { return report(Healthz); }},
       {"/readyz", [report] { return report(Readyz); }},
       {"/metrics", [board = &page->board_] {
          return HttpPage{
              .status = 200,
              .type = Exposition::kType,
              .body = MetricsText(board->Read(), board->ReadFigures(),
                                  ReadProcessFigures())};
        }}});
  if (!server.ok()) {
    return Annotate(
        server.status(),
        absl::StrCat(
            options.port_given.has_value() ? "--health-port" : "health.port",
            " (choose another, or 0 for any free one)"));
  }
  page->server_ = *std::move(server);
  spdlog::info("health: {}/healthz and /readyz, figures: /metrics",
               page->server_->url());
  return page;
}

}  // namespace slackline
