#include "tools/cli/run/given_config.h"

#include <fstream>
#include <iterator>
#include <optional>

#include "absl/strings/match.h"
#include "common/config/block/field_origins.h"
#include "common/config/overrides.h"
#include "common/config/parse_text.h"
#include "common/io/regular_file.h"

namespace slackline {

bool PortIsGiven(const RunOptions& options) {
  std::ifstream file(options.config_path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)),
                         std::istreambuf_iterator<char>());
  config::ClusterConfig config;
  FieldOrigins origins(options.config_path);
  if (!ParseConfigText(text, options.config_path, &config, &origins).ok())
    return false;
  if (absl::StrContains(text, kAnyPort))
    config.mutable_coordinator()->clear_port();
  return ApplyOverrides(options.overrides, &config, &origins).ok() &&
         config.coordinator().port() != 0 && config.coordinator().has_port();
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
