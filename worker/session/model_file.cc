#include "worker/session/model_file.h"

#include <vector>

#include "common/io/safetensors.h"
#include "common/status.h"

namespace slackline {

absl::StatusOr<std::string> WriteModelFile(
    ParameterMemory& parameters, const std::string& path,
    const std::map<std::string, std::string>& metadata) {
  std::vector<TensorView> tensors;
  std::vector<std::vector<float>> values(parameters.tables().size());
  for (size_t t = 0; t < values.size(); ++t) {
    const wire::Table& table = parameters.tables()[t];
    values[t].resize(parameters.parameter(static_cast<int>(t)).size());
    SL_RETURN_IF_ERROR(
        parameters.Read(static_cast<int>(t), absl::MakeSpan(values[t])));
    tensors.push_back({.name = table.name(),
                       .shape = {table.shape().begin(), table.shape().end()},
                       .values = values[t]});
  }
  if (!path.empty())
    SL_RETURN_IF_ERROR(
        WriteSafetensors(path, tensors, metadata, parameters.companions()));
  return TensorsSha256(tensors);
}

}  // namespace slackline
