#include "worker/memory/parameter_memory.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/view/shard_map.h"

namespace slackline {

absl::StatusOr<HostParameters> HostParameters::Create(
    const std::vector<Parameter>& parameters) {
  std::vector<TableSpec> specs;
  for (const Parameter& parameter : parameters)
    specs.push_back(parameter.table);
  HostParameters created;
  SL_ASSIGN_OR_RETURN(created.tables_, MakeTables(specs));
  for (const Parameter& parameter : parameters) {
    if (parameter.values == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "parameter '", parameter.table.name, "': it has no memory"));
    }
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
