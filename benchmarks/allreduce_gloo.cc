#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "benchmarks/allreduce.h"
#include "common/status.h"
#include "gloo/allreduce.h"
#include "gloo/math.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/store.h"
#include "gloo/transport/tcp/attr.h"
#include "gloo/transport/tcp/device.h"
#include "worker/collective/shm_collective.h"
#include "worker/collective/tcp_collective.h"

namespace slackline::bench {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(5);

// Our store, as Gloo wants it.
class StoreForGloo final : public gloo::rendezvous::Store {
 public:
  explicit StoreForGloo(RendezvousStore* store) : store_(store) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    const absl::Status status = store_->Put(
        absl::StrCat("raw/", key), std::string(data.begin(), data.end()));
    SL_CHECK(status.ok(), std::string(status.message()));
  }
  std::vector<char> get(const std::string& key) override {
    const auto value = store_->Get(absl::StrCat("raw/", key), kTimeout);
    SL_CHECK(value.ok(), std::string(value.status().message()));
    return std::vector<char>(value->begin(), value->end());
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds&) override {
    wait(keys);
  }

 private:
  RendezvousStore* const store_;
};

class HostRank final : public AllReduceRank {
 public:
  HostRank(std::unique_ptr<Collective> collective,
           std::shared_ptr<gloo::rendezvous::Context> raw)
      : collective_(std::move(collective)), raw_(std::move(raw)) {}

  absl::Status Fill(const std::vector<float>& values) override {
    buffer_ = values;
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<float>> Read() override { return buffer_; }

  absl::Status Slackline(size_t size) override {
    return collective_->Wait(
        collective_->AllReduceAsync(absl::MakeSpan(buffer_.data(), size)));
  }

  absl::Status Raw(size_t size) override {
    try {
      gloo::AllreduceOptions options(raw_);
      options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
      options.setOutput(buffer_.data(), size);
      options.setReduceFunction(
          [](void* sum, const void* a, const void* b, size_t count) {
            gloo::sum<float>(sum, a, b, count);
          });
      options.setTag(tag_++);
      gloo::allreduce(options);
      return absl::OkStatus();
    } catch (const std::exception& exception) {
      return absl::UnavailableError(exception.what());
    }
  }

 private:
  const std::unique_ptr<Collective> collective_;
  const std::shared_ptr<gloo::rendezvous::Context> raw_;
  std::vector<float> buffer_;
  uint32_t tag_ = 0;
};

using CreateOurs = absl::StatusOr<std::unique_ptr<Collective>> (*)(
    const GroupOptions& options);

absl::StatusOr<std::unique_ptr<AllReduceRank>> CreateHostRank(
    const AllReduceWorld& world, CreateOurs create_ours) {
  SL_ASSIGN_OR_RETURN(std::unique_ptr<Collective> collective,
                      create_ours({.rank = Rank{world.rank},
                                   .world_size = world.world_size,
                                   .host = "127.0.0.1",
                                   .group = "ours",
                                   .connect_timeout = kTimeout,
                                   .timeout = kTimeout,
                                   .store = world.store}));
  auto raw =
      std::make_shared<gloo::rendezvous::Context>(world.rank, world.world_size);
  try {
    StoreForGloo store(world.store);
    auto device = gloo::transport::tcp::CreateDevice(
        gloo::transport::tcp::attr("127.0.0.1"));
    raw->setTimeout(absl::ToChronoMilliseconds(kTimeout));
    raw->connectFullMesh(store, device);
  } catch (const std::exception& exception) {
    return absl::UnavailableError(exception.what());
  }
  return std::make_unique<HostRank>(std::move(collective), std::move(raw));
}

}  // namespace

absl::StatusOr<std::unique_ptr<AllReduceRank>> CreateTcpRank(
    const AllReduceWorld& world) {
  return CreateHostRank(world, CreateTcpCollective);
}

absl::StatusOr<std::unique_ptr<AllReduceRank>> CreateShmRank(
    const AllReduceWorld& world) {
  return CreateHostRank(world, CreateShmCollective);
}

}  // namespace slackline::bench
