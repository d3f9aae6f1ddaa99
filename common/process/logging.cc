#include "common/process/logging.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace slackline {

void SetUpLogging(const std::string& process) {
  auto logger = spdlog::stderr_logger_mt(process);
  logger->set_pattern("%H:%M:%S.%e %n %l: %v");
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(logger);
}

}  // namespace slackline
