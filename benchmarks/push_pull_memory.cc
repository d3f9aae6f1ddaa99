#include <unistd.h>

#include <cstring>
#include <vector>

#include "benchmarks/push_pull.h"
#include "benchmarks/push_pull_bytes.h"
#include "benchmarks/report.h"

namespace slackline::bench {
namespace {

class MemoryWorker : public PushPullWorker {
 public:
  MemoryWorker(const PushPullSetup& setup, int worker)
      : part_bytes_(static_cast<size_t>(setup.bytes / setup.servers)),
        gradient_(GradientOf(setup, worker)),
        pulled_(static_cast<size_t>(setup.bytes)) {
    for (int server = 0; server < setup.servers; ++server) {
      parameters_.push_back(ParametersOf(setup, server));
      pushed_.emplace_back(part_bytes_);
    }
  }

  absl::Status Step(bool /*verify*/) override {
    for (size_t server = 0; server < parameters_.size(); ++server) {
      std::memcpy(pushed_[server].data(), gradient_.data(), part_bytes_);
      std::memcpy(pulled_.data() + server * part_bytes_,
                  parameters_[server].data(), part_bytes_);
    }
    return absl::OkStatus();
  }

  std::string Checksum() const override {
    return bench::Checksum(pulled_.data(), pulled_.size());
  }

 private:
  const size_t part_bytes_;
  const std::vector<uint64_t> gradient_;  // The same for every server.
  std::vector<std::vector<uint64_t>> parameters_;
  std::vector<std::vector<std::byte>> pushed_;
  std::vector<std::byte> pulled_;
};

class MemoryPushPull : public PushPullSystem {
 public:
  std::string name() const override { return "memory"; }

  absl::Status Serve(
      const PushPullSetup&, int,
      const std::function<void(const std::string&)>& ready) override {
    ready("nowhere");
    for (;;) pause();
  }

  absl::StatusOr<std::unique_ptr<PushPullWorker>> Connect(
      const PushPullSetup& setup, int worker,
      const std::vector<std::string>&) override {
    return std::make_unique<MemoryWorker>(setup, worker);
  }
};

}  // namespace

std::unique_ptr<PushPullSystem> MakeMemoryPushPull() {
  return std::make_unique<MemoryPushPull>();
}

}  // namespace slackline::bench
