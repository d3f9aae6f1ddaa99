#include "worker/gpu/cuda_parameters.h"

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/view/shard_map.h"
#include "worker/gpu/cuda_handles.h"
#include "worker/memory/make_tables.h"

namespace slackline {
namespace {

// What is wrong with the address; empty: nothing.
std::string CheckAddress(const float* values, int gpu) {
  if (values == nullptr) return "it has no memory";
  cudaPointerAttributes attributes = {};
  const cudaError_t error = cudaPointerGetAttributes(&attributes, values);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();  // Else a later call would report it as its own.
    return absl::StrCat("its memory is unknown to CUDA: ",
                        cudaGetErrorString(error));
  }
  if (attributes.type != cudaMemoryTypeDevice &&
      attributes.type != cudaMemoryTypeManaged) {
    return absl::StrCat("its memory is the host's, that of gpu ", gpu,
                        " is required");
  }
  if (attributes.device != gpu) {
    return absl::StrCat("its memory is that of gpu ", attributes.device,
                        ", that of gpu ", gpu, " is required");
  }
  return "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaParameters>> CudaParameters::Create(
    const std::vector<Parameter>& parameters,
    const ParameterTransfers::Options& options) {
  std::vector<TableSpec> specs;
  for (const Parameter& parameter : parameters)
    specs.push_back(parameter.table);
  SL_ASSIGN_OR_RETURN(std::vector<wire::Table> tables, MakeTables(specs));
  SL_RETURN_IF_ERROR(CheckGpu(options.gpu));
  std::vector<absl::Span<float>> memory;
  for (const Parameter& parameter : parameters) {
    const std::string wrong = CheckAddress(parameter.values, options.gpu);
    if (!wrong.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter '", parameter.table.name, "': ", wrong));
    }
    memory.emplace_back(
        parameter.values,
        static_cast<size_t>(TableElements(tables[memory.size()])));
  }
  SL_ASSIGN_OR_RETURN(std::unique_ptr<ParameterTransfers> transfers,
                      ParameterTransfers::Create(std::move(memory), options));
  return std::unique_ptr<CudaParameters>(
      new CudaParameters(options, std::move(tables), std::move(transfers)));
}

absl::Span<float> CudaParameters::parameter(int table) {
  transfers_->UseLoaded(table);
  return transfers_->parameter(table);
}

absl::Status CudaParameters::UseLoaded() {
  for (size_t table = 0; table < tables_.size(); ++table)
    transfers_->UseLoaded(static_cast<int>(table));
  return transfers_->status();
}

}  // namespace slackline
