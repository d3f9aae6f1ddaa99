#include "python/bindings/parameters.h"

#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/text_format.h"
#include "python/bindings/errors.h"

namespace slackline::python {
namespace {

HostParameters MemoryOf(const std::vector<Table>& tables) {
  const std::vector<TableSpec> specs = SpecsOf(tables);
  std::vector<HostParameters::Parameter> parameters;
  for (size_t i = 0; i < tables.size(); ++i) {
    if (tables[i].values.device_type() != nanobind::device::cpu::value) {
      ThrowIfBad(absl::InvalidArgumentError(absl::StrCat(
          "parameter '", tables[i].name, "': it is not on the host")));
    }
    parameters.push_back(
        {.table = specs[i], .values = tables[i].values.data()});
  }
  return ValueOrThrow(HostParameters::Create(parameters));
}

class OnHost final : public Parameters {
 public:
  explicit OnHost(std::vector<Table> tables)
      : tables_(std::move(tables)), memory_(MemoryOf(tables_)) {}

  ParameterMemory& memory() override { return memory_; }
  void SetCompanions(std::vector<TypedTensor> companions) override {
    memory_.SetCompanions(std::move(companions));
  }

 private:
  std::vector<Table> tables_;
  HostParameters memory_;
};

}  // namespace

config::Optimizer ParseOptimizer(const std::string& text) {
  config::Optimizer config;
  if (!google::protobuf::TextFormat::ParseFromString(text, &config)) {
    ThrowIfBad(absl::InvalidArgumentError(
        absl::StrCat("optimizer: '", text, "' is none")));
  }
  return config;
}

RuleFields FieldsOf(const config::Optimizer& optimizer) {
  const auto* const block = optimizer.GetReflection()->GetOneofFieldDescriptor(
      optimizer, optimizer.GetDescriptor()->FindOneofByName("kind"));
  SL_CHECK(block != nullptr, "an optimizer without a rule was not checked");
  const google::protobuf::Message& rule =
      optimizer.GetReflection()->GetMessage(optimizer, block);
  RuleFields fields;
  fields.first = std::string(block->name());
  for (int i = 0; i < rule.GetDescriptor()->field_count(); ++i) {
    const auto* const field = rule.GetDescriptor()->field(i);
    auto& value = fields.second[std::string(field->name())];
    if (field->type() == google::protobuf::FieldDescriptor::TYPE_BOOL) {
      value = rule.GetReflection()->GetBool(rule, field);
    } else {
      value = rule.GetReflection()->GetDouble(rule, field);
    }
  }
  fields.second["maximize"] = optimizer.maximize();
  return fields;
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

std::vector<TableSpec> SpecsOf(const std::vector<Table>& tables) {
  std::vector<TableSpec> specs;
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
    TableSpec& spec = specs.emplace_back();
    spec.name = table.name;
    spec.shape = table.shape;
    spec.initializer.set_kind(wire::Initializer::OF_WORKER);
    spec.optimizer = table.optimizer;
  }
  return specs;
}

std::shared_ptr<Parameters> MakeHostParameters(std::vector<Table> tables) {
  return std::make_shared<OnHost>(std::move(tables));
}

}  // namespace slackline::python
