#include "worker/memory/make_tables.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/optim/optimizer.h"

namespace slackline {

absl::StatusOr<std::vector<wire::Table>> MakeTables(
    const std::vector<TableSpec>& parameters) {
  if (parameters.empty())
    return absl::InvalidArgumentError("a model without parameters");
  std::vector<wire::Table> tables;
  std::set<std::string> names;
  for (const TableSpec& spec : parameters) {
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
    if (spec.optimizer.has_value()) {
      const absl::Status made = Optimizer::Create(*spec.optimizer).status();
      if (!made.ok()) return wrong(std::string(made.message()));
    }
    wire::Table& table = tables.emplace_back();
    table.set_name(spec.name);
    for (const int64_t size : spec.shape) table.add_shape(size);
    *table.mutable_initializer() = spec.initializer;
    if (spec.optimizer.has_value())
      *table.mutable_optimizer() = *spec.optimizer;
  }
  return tables;
}

}  // namespace slackline
