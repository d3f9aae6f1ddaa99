#include "python/bindings/gpu_parameters.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "python/bindings/errors.h"
#include "worker/gpu/cuda_handles.h"
#include "worker/gpu/cuda_parameters.h"
#include "worker/gpu/gradient_copier.h"

namespace slackline::python {
namespace {

class OnGpu final : public GpuParameters {
 public:
  static absl::StatusOr<std::shared_ptr<Parameters>> Create(
      std::vector<Table> tables, const GpuOptions& options) {
    const std::vector<TableSpec> specs = SpecsOf(tables);
    std::vector<CudaParameters::Parameter> parameters;
    std::vector<int64_t> elements;
    for (size_t i = 0; i < tables.size(); ++i) {
      parameters.push_back(
          {.table = specs[i], .values = tables[i].values.data()});
      elements.push_back(static_cast<int64_t>(tables[i].values.size()));
    }
    SL_ASSIGN_OR_RETURN(
        std::unique_ptr<CudaParameters> memory,
        CudaParameters::Create(parameters, {.gpu = options.gpu,
                                            .compute = options.stream,
                                            .timeout = options.timeout}));
    SL_ASSIGN_OR_RETURN(std::unique_ptr<GradientCopier> copier,
                        GradientCopier::Create(GradientCopier::OptionsFor(
                            elements, options.push_type, options.timeout)));
    SL_ASSIGN_OR_RETURN(CudaEvent order, CreateCudaEvent());
    return std::shared_ptr<Parameters>(
        new OnGpu(std::move(tables), options.stream, std::move(memory),
                  std::move(copier), std::move(order)));
  }

  ParameterMemory& memory() override { return *memory_; }
  void SetCompanions(std::vector<TypedTensor> companions) override {
    memory_->SetCompanions(std::move(companions));
  }
  absl::Status UseLoaded() override { return memory_->UseLoaded(); }

  absl::Status StartCopy(Gradient gradient) override {
    const auto index = static_cast<size_t>(gradient.table);
    if (index >= tables_.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "table ", gradient.table, " is outside [0, ", tables_.size(), ")"));
    }
    const size_t elements = tables_[index].values.size();
    if (gradient.elements != elements) {
      return absl::InvalidArgumentError(
          absl::StrCat(names_[index], " has ", gradient.elements, " elements; ",
                       elements, " are required"));
    }
    return copier_->StartAfter(gradient.stream,
                               {.id = gradient.table,
                                .name = names_[index],
                                .device = gradient.values,
                                .elements = static_cast<int64_t>(elements),
                                .owner = std::move(gradient.owner)});
  }

  absl::StatusOr<std::optional<Copied>> NextCopied(bool wait) override {
    if (copier_->empty() || (!wait && !copier_->NextIsThere()))
      return std::nullopt;
    SL_ASSIGN_OR_RETURN(GradientCopier::Copy copy, copier_->Next());
    return Copied{.table = copy.id,
                  .values = std::move(copy.values),
                  .waited = copy.waited};
  }
  void Drop() override { copier_->Drop(); }

  absl::Status Follow(CUstream_st* stream) override {
    if (stream == stream_) return absl::OkStatus();
    return MakeFollow(stream, stream_, order_.get());
  }

 private:
  OnGpu(std::vector<Table> tables, CUstream_st* stream,
        std::unique_ptr<CudaParameters> memory,
        std::unique_ptr<GradientCopier> copier, CudaEvent order)
      : tables_(std::move(tables)),
        stream_(stream),
        memory_(std::move(memory)),
        copier_(std::move(copier)),
        order_(std::move(order)) {
    for (const Table& table : tables_)
      names_.push_back(absl::StrCat("the gradient of '", table.name, "'"));
  }

  const std::vector<Table> tables_;
  CUstream_st* const stream_;
  std::vector<std::string> names_;  // Of gradients, for errors.
  const std::unique_ptr<CudaParameters> memory_;
  const std::unique_ptr<GradientCopier> copier_;
  const CudaEvent order_;  // Free again after each use.
};

}  // namespace

bool HasGpuCode() { return true; }

absl::Status CheckGpuIsThere(int gpu) { return CheckGpu(gpu); }

std::shared_ptr<Parameters> MakeGpuParameters(std::vector<Table> tables,
                                              const GpuOptions& options) {
  return ValueOrThrow(OnGpu::Create(std::move(tables), options));
}

}  // namespace slackline::python
