#include "tools/cli/run/given_config.h"

#include <optional>

#include "absl/strings/match.h"
#include "common/block/field_origins.h"
#include "common/config/overrides.h"
#include "common/config/parse_text.h"
#include "common/io/regular_file.h"

namespace slackline {

bool PortIsGiven(const RunOptions& options) {
  const std::optional<config::ClusterConfig> config = WhatIsGiven(options);
  return config.has_value() && config->coordinator().has_port() &&
         config->coordinator().port() != 0;
}

std::optional<config::ClusterConfig> WhatIsGiven(const RunOptions& options) {
  const absl::StatusOr<std::string> text =
      ReadRegularFile(options.config_path, kConfigFileBytesMax);
  if (!text.ok()) return std::nullopt;
  config::ClusterConfig config;
  FieldOrigins origins(options.config_path);
  if (!ParseConfigText(*text, options.config_path, &config, &origins).ok())
    return std::nullopt;
  if (absl::StrContains(*text, kAnyHosts)) ForgetHosts(&config);
  if (absl::StrContains(*text, kAnyPort))
    config.mutable_coordinator()->clear_port();
  if (!ApplyOverrides(options.overrides, &config, &origins).ok())
    return std::nullopt;
  return config;
}

void ForgetHosts(config::ClusterConfig* config) {
  config->mutable_coordinator()->clear_host();
  for (config::ServerGroup& group : *config->mutable_server())
    group.clear_host();
  for (config::WorkerGroup& group : *config->mutable_worker())
    group.clear_host();
}

}  // namespace slackline
