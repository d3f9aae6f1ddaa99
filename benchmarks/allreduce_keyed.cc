#include <utility>

#include "absl/types/span.h"
#include "benchmarks/allreduce.h"
#include "common/status.h"
#include "worker/collective/tcp_collective.h"

namespace slackline::bench {
namespace {

class KeyedRank final : public AllReduceRank {
 public:
  KeyedRank(std::unique_ptr<Collective> keyed,
            std::unique_ptr<Collective> plain)
      : keyed_(std::move(keyed)), plain_(std::move(plain)) {}

  absl::Status Fill(const std::vector<float>& values) override {
    buffer_ = values;
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<float>> Read() override { return buffer_; }
  absl::Status Slackline(size_t size) override { return Sum(*keyed_, size); }
  absl::Status Raw(size_t size) override { return Sum(*plain_, size); }

 private:
  absl::Status Sum(Collective& collective, size_t size) {
    return collective.Wait(
        collective.AllReduceAsync(absl::MakeSpan(buffer_.data(), size)));
  }

  const std::unique_ptr<Collective> keyed_;
  const std::unique_ptr<Collective> plain_;
  std::vector<float> buffer_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<AllReduceRank>> CreateKeyedRank(
    const AllReduceWorld& world) {
  constexpr absl::Duration kTimeout = absl::Minutes(5);
  GroupOptions options = {.rank = Rank{world.rank},
                          .world_size = world.world_size,
                          .host = "127.0.0.1",
                          .group = "plain",
                          .connect_timeout = kTimeout,
                          .timeout = kTimeout,
                          .store = world.store};
  SL_ASSIGN_OR_RETURN(std::unique_ptr<Collective> plain,
                      CreateTcpCollective(options));
  options.group = "keyed";
  options.key = Secret({1});  // Takes as long as any other.
  SL_ASSIGN_OR_RETURN(std::unique_ptr<Collective> keyed,
                      CreateTcpCollective(options));
  return std::make_unique<KeyedRank>(std::move(keyed), std::move(plain));
}

}  // namespace slackline::bench
