#include "benchmarks/raw_gloo.h"

#include <chrono>
#include <exception>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gloo/allreduce.h"
#include "gloo/math.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/file_store.h"
#include "gloo/transport/tcp/attr.h"
#include "gloo/transport/tcp/device.h"

namespace slackline::bench {
namespace {

class GlooFileStore final : public RendezvousStore {
 public:
  explicit GlooFileStore(const std::string& folder) : files_(folder) {}

  absl::Status Put(const std::string& key, std::string value) override {
    try {
      files_.set(key, std::vector<char>(value.begin(), value.end()));
      return absl::OkStatus();
    } catch (const std::exception& error) {
      return absl::InternalError(absl::StrCat("put ", key, ": ", error.what()));
    }
  }
  absl::StatusOr<std::string> Get(const std::string& key,
                                  absl::Duration wait_max) override {
    try {
      // Gloo takes zero for endless.
      files_.wait({key},
                  absl::ToChronoMilliseconds(wait_max + absl::Milliseconds(1)));
      const std::vector<char> value = files_.get(key);
      return std::string(value.begin(), value.end());
    } catch (const std::exception& error) {
      return absl::DeadlineExceededError(
          absl::StrCat("get ", key, ": ", error.what()));
    }
  }

 private:
  gloo::rendezvous::FileStore files_;
};

}  // namespace

std::unique_ptr<RendezvousStore> FileStore(const std::string& folder) {
  return std::make_unique<GlooFileStore>(folder);
}

class RawGloo::Context : public gloo::rendezvous::Context {
 public:
  using gloo::rendezvous::Context::Context;
  uint32_t operations = 0;
};

RawGloo::RawGloo(int rank, int world_size, const std::string& folder)
    : context_(std::make_unique<Context>(rank, world_size)) {
  gloo::rendezvous::FileStore store(folder);
  auto device = gloo::transport::tcp::CreateDevice(
      gloo::transport::tcp::attr("127.0.0.1"));
  context_->connectFullMesh(store, device);
}
RawGloo::~RawGloo() = default;

void RawGloo::AllReduce(absl::Span<float> data) {
  // Gloo wants to share the ownership; `context_` lives longer than the call.
  gloo::AllreduceOptions options(
      std::shared_ptr<gloo::Context>(context_.get(), [](gloo::Context*) {}));
  options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
  options.setOutput(data.data(), data.size());
  options.setReduceFunction(
      [](void* sum, const void* a, const void* b, size_t count) {
        gloo::sum<float>(sum, a, b, count);
      });
  options.setTag(context_->operations++);
  gloo::allreduce(options);
}

}  // namespace slackline::bench
