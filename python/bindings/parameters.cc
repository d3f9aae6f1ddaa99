#include "python/bindings/parameters.h"

#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/text_format.h"
#include "python/bindings/errors.h"

namespace slackline::python {
namespace {

HostParameters MemoryOf(const std::vector<Table>& tables) {
  std::vector<HostParameters::Parameter> parameters;
  for (const Table& table : tables) {
    const int64_t elements =
        std::accumulate(table.shape.begin(), table.shape.end(), int64_t{1},
                        std::multiplies<>());
    if (static_cast<int64_t>(table.values.size()) != elements) {
      ThrowIfBad(absl::InvalidArgumentError(
          absl::StrCat("parameter '", table.name, "': shape [",
                       absl::StrJoin(table.shape, ", "), "] does not make ",
                       table.values.size(), " values")));
    }
    HostParameters::Parameter& parameter = parameters.emplace_back();
    parameter.table.name = table.name;
    parameter.table.shape = table.shape;
    parameter.table.initializer.set_kind(wire::Initializer::OF_WORKER);
    parameter.table.optimizer = table.optimizer;
    parameter.values = table.values.data();
  }
  return ValueOrThrow(HostParameters::Create(parameters));
}

}  // namespace

config::Optimizer ParseOptimizer(const std::string& text) {
  config::Optimizer config;
  if (!google::protobuf::TextFormat::ParseFromString(text, &config)) {
    ThrowIfBad(absl::InvalidArgumentError(
        absl::StrCat("optimizer: '", text, "' is none")));
  }
  return config;
}

TypedTensor MakeTypedTensor(const std::string& name, const std::string& type,
                            const std::vector<int64_t>& shape,
                            const ByteArray& bytes) {
  TypedTensor tensor{.name = name, .type = type, .shape = shape, .bytes = {}};
  tensor.bytes.resize(bytes.size());
  if (bytes.size() > 0)
    std::memcpy(tensor.bytes.data(), bytes.data(), bytes.size());
  return tensor;
}

Parameters::Parameters(std::vector<Table> tables)
    : tables_(std::move(tables)), memory_(MemoryOf(tables_)) {}

}  // namespace slackline::python
