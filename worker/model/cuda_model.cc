#include "worker/model/cuda_model.h"

#include <ATen/Context.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/cuda/cuda_status.h"
#include "common/status.h"
#include "worker/gpu/cuda_handles.h"
#include "worker/gpu/gradient_copier.h"
#include "worker/gpu/parameter_transfers.h"
#include "worker/model/network.h"

namespace slackline {
namespace {

using at::Tensor;

constexpr int kLoss = -1;  // As the id of a copy; tables are from 0 on.
constexpr size_t kAlignment = 64;

size_t RoundUp(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// The same sums on every run and in every mode, in float32 throughout: products
// are not rounded to TF32, and cuDNN takes no algorithm whose sums depend on
// the order in which threads come. LibTorch keeps this for the whole process.
void ComputeReproducibly() {
  at::globalContext().setAllowTF32CuBLAS(false);
  at::globalContext().setAllowTF32CuDNN(false);
  at::globalContext().setBenchmarkCuDNN(false);
  at::globalContext().setDeterministicCuDNN(true);
}

class TorchCudaModel final : public CudaModel {
 public:
  // With the GPU current.
  static absl::StatusOr<std::unique_ptr<Model>> Create(
      std::unique_ptr<Network> network, const ModelOptions& options,
      const c10::cuda::CUDAStream& compute) {
    std::vector<absl::Span<float>> parameters;
    std::vector<int64_t> elements;
    std::vector<std::string> gradient_names;
    for (const Tensor& tensor : network->tensors()) {
      gradient_names.push_back(absl::StrCat(
          "gradient of ", network->tables()[elements.size()].name()));
      elements.push_back(tensor.numel());
      parameters.emplace_back(tensor.data_ptr<float>(),
                              static_cast<size_t>(tensor.numel()));
    }
    GradientCopier::Options copier_options = GradientCopier::OptionsFor(
        elements, options.push_type, options.gpu_timeout);
    // And for the loss.
    copier_options.pinned_bytes_max += PinnedPool::SizeFor(sizeof(float));
    auto model = std::unique_ptr<TorchCudaModel>(
        new TorchCudaModel(std::move(network), options, compute));
    model->gradient_names_ = std::move(gradient_names);
    SL_ASSIGN_OR_RETURN(model->copier_, GradientCopier::Create(copier_options));
    SL_ASSIGN_OR_RETURN(
        model->transfers_,
        ParameterTransfers::Create(std::move(parameters),
                                   {.gpu = options.gpu,
                                    .compute = compute.stream(),
                                    .timeout = options.gpu_timeout}));
    SL_ASSIGN_OR_RETURN(model->batch_loaded_, CreateCudaEvent());
    return std::unique_ptr<Model>(std::move(model));
  }

  ~TorchCudaModel() override {
    // What is freed after this is no longer in use.
    (void)cudaStreamSynchronize(compute_stream());
  }

  std::optional<Gpu> gpu() const override {
    return Gpu{.index = options_.gpu, .stream = compute_stream()};
  }
  CUstream_st* compute_stream() const override { return compute_.stream(); }

  absl::Span<const wire::Table> tables() const override {
    return network_->tables();
  }

  absl::Span<float> parameter(int table) override {
    transfers_->UseLoaded(table);
    return transfers_->parameter(table);
  }

  void Load(int table, int64_t first_element, const Payload& values) override {
    transfers_->Load(table, first_element, values);
  }

  absl::Status Read(int table, absl::Span<float> out) override {
    return transfers_->Read(table, out);
  }

  absl::StatusOr<double> ForwardBackward(const Batch& batch,
                                         const GradientReady& ready) override {
    const Parameters::GradientSink sink = [&](int table, Tensor gradient) {
      failure_.Update(StartCopy(
          table, gradient_names_[static_cast<size_t>(table)], gradient));
    };
    return Pass(batch, sink, ready);
  }

  absl::StatusOr<double> ForwardBackwardOnDevice(
      const Batch& batch, const GradientOnDevice& ready) override {
    const Parameters::GradientSink sink = [&](int table, Tensor gradient) {
      gradients_[static_cast<size_t>(table)] = gradient;
      ready(table, gradient.data_ptr<float>());
    };
    return Pass(batch, sink, [](int, const Payload&) {});
  }

  absl::Duration copies_waited() const override { return copies_waited_; }

  absl::StatusOr<Evaluation> Evaluate(const Batch& batch) override {
    SL_RETURN_IF_ERROR(network_->Check(batch));
    try {
      const c10::cuda::CUDAStreamGuard on_compute(compute_);
      const at::NoGradGuard no_gradients;
      SL_ASSIGN_OR_RETURN(const BatchOnDevice on_device, LoadBatch(batch));
      Parameters parameters(network_->tensors(), {.before_use = &before_use_});
      const Tensor scores = network_->Scores(on_device.inputs, parameters);
      const Tensor& labels = on_device.labels;
      const Evaluation evaluation = {
          .loss_sum = network_->LossSum(scores, labels).item<double>(),
          .correct = network_->Correct(scores, labels),
          .examples = batch.examples};
      SL_RETURN_IF_ERROR(transfers_->status());
      return evaluation;
    } catch (const std::exception& error) {
      return LibTorchError("evaluation", error);
    }
  }

  absl::StatusOr<double> Regularizer() override {
    std::vector<float> values(static_cast<size_t>(network_->tensor(0).numel()));
    SL_RETURN_IF_ERROR(Read(0, absl::MakeSpan(values)));
    return network_->Penalty(values);
  }

 private:
  struct BatchOnDevice {
    Tensor inputs;
    Tensor labels;
  };

  TorchCudaModel(std::unique_ptr<Network> network, const ModelOptions& options,
                 const c10::cuda::CUDAStream& compute)
      : options_(options),
        compute_(compute),
        before_use_([this](int table) { transfers_->UseLoaded(table); }),
        network_(std::move(network)) {}

  c10::DeviceIndex gpu_index() const {
    return static_cast<c10::DeviceIndex>(options_.gpu);
  }

  // With compute_ current.
  absl::StatusOr<BatchOnDevice> LoadBatch(const Batch& batch) {
    const size_t input_bytes =
        static_cast<size_t>(batch.examples * network_->features()) *
        sizeof(float);
    const Network::Labels labels = network_->LabelsOf(batch);
    const size_t label_bytes =
        static_cast<size_t>(batch.examples) * c10::elementSize(labels.type);
    const size_t bytes = RoundUp(input_bytes) + label_bytes;
    // The last batch has been read: the loss that was waited for needs it. Only
    // after a failure is there something to wait for.
    SL_RETURN_IF_ERROR(WaitForEvent(batch_loaded_.get(), options_.gpu_timeout,
                                    "copy of the last batch to the GPU"));
    if (bytes > batch_staging_bytes_) {
      SL_ASSIGN_OR_RETURN(batch_staging_, AllocatePinned(bytes));
      batch_staging_bytes_ = bytes;
    }
    auto* const staged = static_cast<std::byte*>(batch_staging_.get());
    std::memcpy(staged, batch.inputs, input_bytes);
    std::memcpy(staged + RoundUp(input_bytes), labels.values, label_bytes);
    const at::Device device(at::kCUDA, gpu_index());
    const BatchOnDevice on_device = {
        .inputs = at::empty({batch.examples, network_->features()},
                            at::TensorOptions(at::kFloat).device(device)),
        .labels = at::empty({batch.examples},
                            at::TensorOptions(labels.type).device(device))};
    SL_RETURN_IF_ERROR(CudaStatus(
        cudaMemcpyAsync(on_device.inputs.data_ptr(), staged, input_bytes,
                        cudaMemcpyHostToDevice, compute_stream()),
        "copy of a batch to the GPU"));
    SL_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(on_device.labels.data_ptr(),
                                   staged + RoundUp(input_bytes), label_bytes,
                                   cudaMemcpyHostToDevice, compute_stream()),
                   "copy of a batch to the GPU"));
    SL_RETURN_IF_ERROR(
        CudaStatus(cudaEventRecord(batch_loaded_.get(), compute_stream()),
                   "record of an event"));
    return on_device;
  }

  absl::Status StartCopy(int id, absl::string_view name, const Tensor& tensor) {
    return copier_->StartAfter(compute_stream(),
                               {.id = id,
                                .name = name,
                                .device = tensor.data_ptr<float>(),
                                .elements = tensor.numel(),
                                .owner = std::make_shared<const Tensor>(tensor),
                                .exact = id == kLoss});
  }

  // The loss first, then what `sink` starts. Everything is put on the streams
  // before this thread waits for any of it; LibTorch's thread, which puts the
  // backward pass there, is faster at that than the GPU, except for small
  // models.
  absl::StatusOr<double> Pass(const Batch& batch,
                              const Parameters::GradientSink& sink,
                              const GradientReady& ready) {
    SL_RETURN_IF_ERROR(network_->Check(batch));
    copies_waited_ = absl::ZeroDuration();
    gradients_.assign(gradient_names_.size(), Tensor());
    SL_RETURN_IF_ERROR(failure_);
    SL_RETURN_IF_ERROR(transfers_->status());
    try {
      const c10::cuda::CUDAStreamGuard on_compute(compute_);
      absl::StatusOr<double> loss = ForwardThenBackward(batch, sink, ready);
      copier_->Drop();  // After an error.
      return loss;
    } catch (const std::exception& error) {
      copier_->Drop();
      return LibTorchError("forward and backward", error);
    }
  }

  absl::StatusOr<double> ForwardThenBackward(
      const Batch& batch, const Parameters::GradientSink& sink,
      const GradientReady& ready) {
    SL_ASSIGN_OR_RETURN(const BatchOnDevice on_device, LoadBatch(batch));
    Parameters parameters(network_->tensors(),
                          {.sink = &sink, .before_use = &before_use_});
    const Tensor scores = network_->Scores(on_device.inputs, parameters);
    const Tensor objective =
        network_->Objective(scores, on_device.labels, parameters);
    SL_RETURN_IF_ERROR(StartCopy(kLoss, "loss", objective.detach()));
    objective.backward();
    SL_RETURN_IF_ERROR(failure_);
    SL_RETURN_IF_ERROR(transfers_->status());
    double loss = 0;
    while (!copier_->empty()) {
      SL_ASSIGN_OR_RETURN(GradientCopier::Copy copy, copier_->Next());
      copies_waited_ += copy.waited;
      if (copy.id == kLoss) {
        float value = 0;
        std::memcpy(&value, copy.values.data(), sizeof(value));
        loss = value;
      } else {
        ready(copy.id, std::move(copy.values));
      }
    }
    return loss;
  }

  const ModelOptions options_;
  const c10::cuda::CUDAStream compute_;
  const std::function<void(int table)> before_use_;
  const std::unique_ptr<Network> network_;
  std::vector<std::string> gradient_names_;  // By table, for errors.
  std::unique_ptr<ParameterTransfers> transfers_;
  std::unique_ptr<GradientCopier> copier_;
  absl::Duration copies_waited_;   // In the present pass.
  std::vector<Tensor> gradients_;  // Of ForwardBackwardOnDevice().

  PinnedMemory batch_staging_;
  size_t batch_staging_bytes_ = 0;
  CudaEvent batch_loaded_;

  // The first one of copies of gradients. A GPU rarely works again after one.
  absl::Status failure_;
};

}  // namespace

absl::Status CheckCudaModelDevice(int gpu) { return CheckGpu(gpu); }

absl::StatusOr<std::unique_ptr<Model>> CreateCudaModel(
    const config::Model& config, int64_t features, int64_t classes,
    const ModelOptions& options) {
  try {
    ComputeReproducibly();
    const auto index = static_cast<c10::DeviceIndex>(options.gpu);
    const c10::cuda::CUDAStream compute =
        c10::cuda::getStreamFromPool(/*isHighPriority=*/false, index);
    const c10::cuda::CUDAStreamGuard on_compute(compute);
    SL_ASSIGN_OR_RETURN(
        std::unique_ptr<Network> network,
        CreateNetwork(config, features, classes, at::Device(at::kCUDA, index)));
    return TorchCudaModel::Create(std::move(network), options, compute);
  } catch (const std::exception& error) {
    return LibTorchError(absl::StrCat("model on gpu ", options.gpu), error);
  }
}

}  // namespace slackline
