#include "common/process/logging.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <string>

#include "absl/time/time.h"

namespace slackline {
namespace {

class WallTime : public spdlog::custom_flag_formatter {
 public:
  explicit WallTime(const TimeSource& time) : time_(time) {}
  void format(const spdlog::details::log_msg& /*message*/,
              const std::tm& /*local*/, spdlog::memory_buf_t& line) override {
    const std::string text = absl::FormatTime(
        "%Y-%m-%d %H:%M:%E3S", time_.WallNow(), absl::LocalTimeZone());
    line.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<WallTime>(time_);
  }

 private:
  const TimeSource time_;
};

}  // namespace

void SetUpLogging(const std::string& process, const TimeSource& time) {
  auto logger = spdlog::stderr_logger_mt(process);
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<WallTime>('*', time).set_pattern("%* %n %l: %v");
  logger->set_formatter(std::move(formatter));
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(logger);
}

std::function<void(bool warns, const std::string& text)> LogOfKeys() {
  return [](bool warns, const std::string& text) {
    spdlog::log(warns ? spdlog::level::warn : spdlog::level::info, "{}", text);
  };
}

}  // namespace slackline
