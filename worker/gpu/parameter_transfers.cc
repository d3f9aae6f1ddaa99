#include "worker/gpu/parameter_transfers.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/cuda/cuda_status.h"
#include "common/status.h"

namespace slackline {
namespace {

size_t RoundUp(size_t bytes) {
  constexpr size_t kAlignment = 64;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ParameterTransfers>> ParameterTransfers::Create(
    std::vector<absl::Span<float>> parameters, const Options& options) {
  SL_RETURN_IF_ERROR(UseGpu(options.gpu));
  std::vector<Table> tables;
  size_t staging_bytes = 0;
  for (const absl::Span<float> parameter : parameters) {
    Table& table = tables.emplace_back();
    table.parameter = parameter;
    table.staging_offset = staging_bytes;
    SL_ASSIGN_OR_RETURN(table.loaded, CreateCudaEvent());
    staging_bytes += RoundUp(parameter.size() * sizeof(float));
  }
  SL_ASSIGN_OR_RETURN(CudaStream stream, CreateCudaStream());
  SL_ASSIGN_OR_RETURN(CudaEvent order, CreateCudaEvent());
  SL_ASSIGN_OR_RETURN(CudaEvent read, CreateCudaEvent());
  SL_ASSIGN_OR_RETURN(PinnedMemory staging, AllocatePinned(staging_bytes));
  return std::unique_ptr<ParameterTransfers>(new ParameterTransfers(
      options, std::move(tables), std::move(stream), std::move(order),
      std::move(read), std::move(staging)));
}

// What is freed after this is no longer in use.
ParameterTransfers::~ParameterTransfers() {
  (void)cudaStreamSynchronize(stream_.get());
}

std::byte* ParameterTransfers::Staging(const Table& table,
                                       int64_t element) const {
  return static_cast<std::byte*>(staging_.get()) + table.staging_offset +
         static_cast<size_t>(element) * sizeof(float);
}

void ParameterTransfers::Load(int table, int64_t first_element,
                              const Payload& values) {
  const size_t size = parameter(table).size();
  SL_CHECK(values.size() % sizeof(float) == 0 && first_element >= 0 &&
               static_cast<size_t>(first_element) <= size &&
               values.size() / sizeof(float) <=
                   size - static_cast<size_t>(first_element),
           absl::StrCat("load of ", values.size(), " bytes at element ",
                        first_element, " of table ", table, ", which has ",
                        size, " elements"));
  if (values.empty() || !failure_.ok()) return;
  failure_ =
      StartLoad(tables_[static_cast<size_t>(table)], first_element, values);
}

absl::Status ParameterTransfers::StartLoad(Table& table, int64_t first_element,
                                           const Payload& values) {
  SL_RETURN_IF_ERROR(UseGpu(options_.gpu));
  const int64_t count = static_cast<int64_t>(values.size() / sizeof(float));
  if (first_element < table.staged_end) {
    SL_RETURN_IF_ERROR(WaitForEvent(table.loaded.get(), options_.timeout,
                                    "copy of parameters to the GPU"));
    table.staged_end = 0;
  }
  table.staged_end = std::max(table.staged_end, first_element + count);
  std::byte* const staged = Staging(table, first_element);
  std::memcpy(staged, values.data(), values.size());
  SL_RETURN_IF_ERROR(MakeFollow(options_.compute, stream_.get(), order_.get()));
  SL_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(table.parameter.data() + first_element, staged,
                      values.size(), cudaMemcpyHostToDevice, stream_.get()),
      "copy of parameters to the GPU"));
  SL_RETURN_IF_ERROR(
      CudaStatus(cudaEventRecord(table.loaded.get(), stream_.get()),
                 "record of an event"));
  table.load_pending = true;
  return absl::OkStatus();
}

void ParameterTransfers::UseLoaded(int table_index) {
  Table& table = tables_[static_cast<size_t>(table_index)];
  if (!table.load_pending) return;
  table.load_pending = false;
  failure_.Update(
      CudaStatus(cudaStreamWaitEvent(options_.compute, table.loaded.get(), 0),
                 "wait for loaded parameters"));
}

absl::Status ParameterTransfers::Read(int table_index, absl::Span<float> out) {
  const Table& table = tables_[static_cast<size_t>(table_index)];
  SL_CHECK(out.size() == table.parameter.size(),
           absl::StrCat("read of ", out.size(), " elements of ",
                        table.parameter.size()));
  SL_RETURN_IF_ERROR(failure_);
  SL_RETURN_IF_ERROR(UseGpu(options_.gpu));
  // Behind the loads, and in their memory: they are done with it by then.
  const size_t bytes = out.size() * sizeof(float);
  std::byte* const staged = Staging(table, 0);
  SL_RETURN_IF_ERROR(MakeFollow(options_.compute, stream_.get(), order_.get()));
  SL_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(staged, table.parameter.data(), bytes,
                                 cudaMemcpyDeviceToHost, stream_.get()),
                 "copy of parameters to the host"));
  SL_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(read_.get(), stream_.get()),
                                "record of an event"));
  SL_RETURN_IF_ERROR(WaitForEvent(read_.get(), options_.timeout,
                                  "copy of parameters to the host"));
  std::memcpy(out.data(), staged, bytes);
  return absl::OkStatus();
}

}  // namespace slackline
