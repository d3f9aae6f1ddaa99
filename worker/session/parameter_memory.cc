#include "worker/session/parameter_memory.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/optim/optimizer.h"
#include "common/status.h"
#include "common/view/shard_map.h"

namespace slackline {

absl::StatusOr<HostParameters> HostParameters::Create(
    const std::vector<Parameter>& parameters) {
  if (parameters.empty())
    return absl::InvalidArgumentError("a model without parameters");
  HostParameters created;
  std::set<std::string> names;
  for (const Parameter& parameter : parameters) {
    const TableSpec& spec = parameter.table;
    const auto wrong = [&](const std::string& what) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter '", spec.name, "': ", what));
    };
    if (spec.name.empty()) return wrong("it has no name");
    if (!names.insert(spec.name).second)
      return wrong("another parameter has this name, too");
    if (std::any_of(spec.shape.begin(), spec.shape.end(),
                    [](int64_t size) { return size < 1; })) {
      return wrong(absl::StrCat("shape is [", absl::StrJoin(spec.shape, ", "),
                                "]; each size must be at least 1"));
    }
    if (parameter.values == nullptr) return wrong("it has no memory");
    if (spec.optimizer.has_value()) {
      const absl::Status made = Optimizer::Create(*spec.optimizer).status();
      if (!made.ok()) return wrong(std::string(made.message()));
    }
    wire::Table& table = created.tables_.emplace_back();
    table.set_name(spec.name);
    for (const int64_t size : spec.shape) table.add_shape(size);
    *table.mutable_initializer() = spec.initializer;
    if (spec.optimizer.has_value())
      *table.mutable_optimizer() = *spec.optimizer;
    created.values_.push_back(parameter.values);
  }
  return created;
}

absl::Span<float> HostParameters::parameter(int table) {
  const auto index = static_cast<size_t>(table);
  return {values_.at(index),
          static_cast<size_t>(TableElements(tables_.at(index)))};
}

void HostParameters::Load(int table, int64_t first_element,
                          const Payload& values) {
  const absl::Span<float> all = parameter(table);
  SL_CHECK(values.size() % sizeof(float) == 0 &&
               static_cast<size_t>(first_element) <= all.size() &&
               values.size() / sizeof(float) <=
                   all.size() - static_cast<size_t>(first_element),
           "values outside of a table");
  std::memcpy(all.data() + first_element, values.data(), values.size());
}

absl::Status HostParameters::Read(int table, absl::Span<float> out) {
  const absl::Span<const float> all = parameter(table);
  SL_CHECK(out.size() == all.size(), "a buffer of another size than the table");
  std::copy(all.begin(), all.end(), out.begin());
  return absl::OkStatus();
}

}  // namespace slackline
