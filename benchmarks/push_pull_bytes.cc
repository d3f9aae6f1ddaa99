#include "benchmarks/push_pull_bytes.h"

#include "absl/strings/str_cat.h"
#include "common/rng.h"

namespace slackline::bench {
namespace {

std::vector<uint64_t> RandomWords(const PushPullSetup& setup, int owner) {
  Rng rng = Rng(setup.seed).Fork(absl::StrCat("owner ", owner));
  std::vector<uint64_t> words(
      static_cast<size_t>((setup.bytes / setup.servers + 7) / 8));
  for (uint64_t& word : words) word = rng.Next();
  return words;
}

}  // namespace

std::vector<uint64_t> GradientOf(const PushPullSetup& setup, int worker) {
  return RandomWords(setup, worker);
}

std::vector<uint64_t> ParametersOf(const PushPullSetup& setup, int server) {
  return RandomWords(setup, -1 - server);
}

namespace {

class KeyedPushPull : public PushPullSystem {
 public:
  explicit KeyedPushPull(std::unique_ptr<PushPullSystem> system)
      : system_(std::move(system)) {}

  std::string name() const override { return system_->name() + "+keys"; }
  absl::Status Serve(
      const PushPullSetup& setup, int server,
      const std::function<void(const std::string&)>& ready) override {
    return system_->Serve(Keyed(setup), server, ready);
  }
  absl::StatusOr<std::unique_ptr<PushPullWorker>> Connect(
      const PushPullSetup& setup, int worker,
      const std::vector<std::string>& endpoints) override {
    return system_->Connect(Keyed(setup), worker, endpoints);
  }

 private:
  static PushPullSetup Keyed(PushPullSetup setup) {
    setup.keys = true;
    return setup;
  }
  const std::unique_ptr<PushPullSystem> system_;
};

}  // namespace

std::unique_ptr<PushPullSystem> WithKeys(
    std::unique_ptr<PushPullSystem> system) {
  return std::make_unique<KeyedPushPull>(std::move(system));
}

}  // namespace slackline::bench
