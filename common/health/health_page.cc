#include "common/health/health_page.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/health/health_place.h"
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

}  // namespace

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
