#include "worker/gpu/gradient_copier.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/cuda/cuda_status.h"
#include "common/floats/half_cuda.h"
#include "common/status.h"
#include "common/time/time_source.h"

namespace slackline {
namespace {

PinnedPool::Allocator CudaAllocator() {
  return {.allocate = [](size_t bytes) -> void* {
            void* memory = nullptr;
            if (cudaHostAlloc(&memory, bytes, cudaHostAllocPortable) ==
                cudaSuccess) {
              return memory;
            }
            (void)cudaGetLastError();  // The pool has another way.
            return nullptr;
          },
          .release = [](void* memory) { (void)cudaFreeHost(memory); }};
}

std::optional<HalfType> RoundingOf(config::Sync::PushType type) {
  if (type == config::Sync::BFLOAT16) return HalfType::kBfloat16;
  if (type == config::Sync::FLOAT16) return HalfType::kFloat16;
  return std::nullopt;
}

}  // namespace

GradientCopier::Options GradientCopier::OptionsFor(
    absl::Span<const int64_t> table_elements, config::Sync::PushType push_type,
    absl::Duration timeout) {
  Options options{.round_to = RoundingOf(push_type), .timeout = timeout};
  for (const int64_t elements : table_elements) {
    options.elements_max = std::max(options.elements_max, elements);
    // Of this step, of the last one, and on the way between.
    options.pinned_bytes_max +=
        3 * PinnedPool::SizeFor(static_cast<size_t>(elements) * sizeof(float));
  }
  return options;
}

absl::StatusOr<std::unique_ptr<GradientCopier>> GradientCopier::Create(
    const Options& options) {
  SL_ASSIGN_OR_RETURN(CudaStream stream, CreateCudaStream());
  SL_ASSIGN_OR_RETURN(CudaEvent order, CreateCudaEvent());
  SL_ASSIGN_OR_RETURN(
      DeviceMemory rounded,
      AllocateOnDevice(options.round_to.has_value()
                           ? options.elements_max * sizeof(uint16_t)
                           : 0));
  return std::unique_ptr<GradientCopier>(new GradientCopier(
      options, std::move(stream), std::move(order), std::move(rounded)));
}

GradientCopier::GradientCopier(const Options& options, CudaStream stream,
                               CudaEvent order, DeviceMemory rounded)
    : options_(options),
      pool_(CudaAllocator(), options.pinned_bytes_max),
      stream_(std::move(stream)),
      order_(std::move(order)),
      rounded_(std::move(rounded)) {}

GradientCopier::~GradientCopier() { Drop(); }

absl::StatusOr<CudaEvent> GradientCopier::TakeEvent() {
  if (free_events_.empty()) return CreateCudaEvent();
  CudaEvent event = std::move(free_events_.back());
  free_events_.pop_back();
  return event;
}

absl::Status GradientCopier::StartAfter(cudaStream_t producer, Source source) {
  const bool rounded = options_.round_to.has_value() && !source.exact;
  SL_CHECK(source.elements >= 1 && source.elements <= options_.elements_max,
           absl::StrCat("copy of ", source.elements, " elements, at most ",
                        options_.elements_max, " were announced"));
  SL_ASSIGN_OR_RETURN(CudaEvent begun, TakeEvent());
  SL_ASSIGN_OR_RETURN(CudaEvent done, TakeEvent());
  const size_t bytes = static_cast<size_t>(source.elements) *
                       (rounded ? sizeof(uint16_t) : sizeof(float));
  // From here on the copy is in flight, whatever fails: Drop() waits for it.
  const InFlight& copy =
      copies_.emplace_back(InFlight{.source = std::move(source),
                                    .rounded = rounded,
                                    .buffer = pool_.Take(bytes),
                                    .begun = std::move(begun),
                                    .done = std::move(done)});
  SL_RETURN_IF_ERROR(MakeFollow(producer, stream_.get(), order_.get()));
  SL_RETURN_IF_ERROR(CudaStatus(
      cudaEventRecord(copy.begun.get(), stream_.get()), "record of an event"));
  const void* from = copy.source.device;
  if (rounded) {
    auto* const halves = static_cast<uint16_t*>(rounded_.get());
    SL_RETURN_IF_ERROR(RoundToHalfAsync(
        *options_.round_to, copy.source.device, halves,
        static_cast<size_t>(copy.source.elements), stream_.get()));
    from = halves;
  }
  SL_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(copy.buffer.data(), from, bytes,
                                 cudaMemcpyDeviceToHost, stream_.get()),
                 absl::StrCat("copy of ", bytes, " bytes to the host")));
  return CudaStatus(cudaEventRecord(copy.done.get(), stream_.get()),
                    "record of an event");
}

bool GradientCopier::NextIsThere() const {
  if (copies_.empty()) return false;
  if (cudaEventQuery(copies_.front().done.get()) != cudaErrorNotReady)
    return true;
  (void)cudaGetLastError();  // "Not ready" counts as one.
  return false;
}

absl::StatusOr<GradientCopier::Copy> GradientCopier::Next() {
  SL_CHECK(!copies_.empty(), "no copy was started");
  SL_RETURN_IF_ERROR(WaitForEvent(copies_.front().begun.get(), options_.timeout,
                                  copies_.front().source.name));
  const absl::Time begun = TimeSource().Now();
  SL_RETURN_IF_ERROR(WaitForEvent(copies_.front().done.get(), options_.timeout,
                                  copies_.front().source.name));
  const absl::Duration waited = TimeSource().Now() - begun;
  InFlight copy = std::move(copies_.front());
  copies_.pop_front();
  free_events_.push_back(std::move(copy.begun));
  free_events_.push_back(std::move(copy.done));
  const size_t elements = static_cast<size_t>(copy.source.elements);
  const size_t bytes = elements * sizeof(float);
  if (!copy.rounded) {
    return Copy{.id = copy.source.id,
                .values = std::move(copy.buffer).ToPayload(bytes),
                .waited = waited};
  }
  Payload values = Payload::Allocate(bytes);
  float* const floats = reinterpret_cast<float*>(values.MutableData());
  ExpandHalf(*options_.round_to, copy.buffer.data(), elements, floats);
  // bfloat16 has float32's range: what is not finite there was not so before.
  if (options_.round_to == HalfType::kFloat16 &&
      !std::all_of(floats, floats + elements,
                   [](float value) { return std::isfinite(value); })) {
    return absl::InvalidArgumentError(absl::StrCat(
        copy.source.name,
        ": a number is beyond float16's largest, 65504, or is none; use "
        "push_type: BFLOAT16, which has float32's range"));
  }
  return Copy{
      .id = copy.source.id, .values = std::move(values), .waited = waited};
}

void GradientCopier::Drop() {
  if (copies_.empty()) return;
  (void)cudaStreamSynchronize(stream_.get());
  copies_.clear();
}

}  // namespace slackline
