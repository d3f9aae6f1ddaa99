// The health page of a process: config, board and HTTP server as one.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/health/health_board.h"
#include "common/http/http_server.h"
#include "common/time/time_source.h"
#include "proto/cluster.pb.h"

namespace slackline {

class HealthPage {
 public:
  struct Options {
    bool is_server = false;
    int index = 0;
    std::optional<int> port_given;  // --health-port.
    TimeSource time;
  };
  // nullptr: neither config nor flag asks for one. The log says where it is.
  // Errors name the field or flag, the address and what to do.
  static absl::StatusOr<std::unique_ptr<HealthPage>> Start(
      const config::ClusterConfig& config, const Options& options);

  HealthBoard* board() { return &board_; }
  const HttpServer& server() const { return *server_; }
  HttpServer& server() { return *server_; }

 private:
  explicit HealthPage(const Options& options);

  HealthBoard board_;
  std::unique_ptr<HttpServer> server_;  // Reads board_.
};

}  // namespace slackline
