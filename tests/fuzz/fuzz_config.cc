// The cluster config: what is accepted can be written, and is accepted again.
#include <string>

#include "common/config/cluster_config.h"
#include "common/status.h"
#include "job/job_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto config = slackline::ParseJobConfig(text, "fuzz");
  if (!config.ok()) return 0;
  const auto again =
      slackline::ParseJobConfig(slackline::ToText(*config), "fuzz");
  SL_CHECK(again.ok(), again.status().ToString());
  SL_CHECK(slackline::ConfigHash(*config) == slackline::ConfigHash(*again),
           slackline::ToText(*config));
  return 0;
}
