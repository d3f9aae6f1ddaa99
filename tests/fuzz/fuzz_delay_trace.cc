// What a run has recorded of its gradients, and the name of made-up delays.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/delays/delay_plan.h"
#include "common/delays/delay_trace.h"
#include "common/status.h"
#include "tests/fuzz/input.h"

namespace {

// The folder of a run, whose only trace is a file in memory.
class RunFolder {
 public:
  explicit RunFolder(const std::string& trace) {
    SL_CHECK(mkdtemp(path_.data()) != nullptr, path_);
    link_ = absl::StrCat(path_, "/trace-server-0.jsonl");
    SL_CHECK(symlink(trace.c_str(), link_.c_str()) == 0, link_);
  }
  ~RunFolder() {
    unlink(link_.c_str());
    rmdir(path_.c_str());
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/slackline-fuzz-XXXXXX";
  std::string link_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static slackline::fuzz::MemoryFile file;
  static const RunFolder folder(file.path());
  file.Write(data, size);
  auto trace = slackline::ReadRecordedTrace(folder.path());
  if (trace.ok()) {
    slackline::Clock steps = 0;
    for (const slackline::DelayTrace::Shard& shard : trace->shards) {
      for (const slackline::DelayTrace::Read& read : shard.reads)
        steps = std::max(steps, read.clock + 1);
    }
    const int workers = trace->workers;
    const slackline::Clock first = trace->first;
    const auto plan =
        slackline::DelayPlan::Create(*std::move(trace), workers, first, steps);
    if (plan.ok()) (void)(*plan)->kept_versions_max();
  }
  (void)slackline::ParseSyntheticDelays(
      {reinterpret_cast<const char*>(data), size});
  return 0;
}
