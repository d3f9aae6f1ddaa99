#include "server/coordinator/table_terms.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/block/bounds.h"
#include "common/block/scalar_defaults.h"
#include "common/optim/optimizer.h"
#include "common/view/shard_map.h"

namespace slackline {
namespace {

// Owners that a view of some MiB can list.
constexpr int64_t kShardsMax = 1 << 20;

// "weight[128, 10]".
std::string TableText(const wire::Table& table) {
  return absl::StrCat(table.name(), "[", absl::StrJoin(table.shape(), ", "),
                      "]");
}

// "sgd { learning_rate: 0.1 weight_decay: 0 }".
std::string OptimizerText(const wire::Table& table) {
  return table.optimizer().ShortDebugString();
}

// Empty, or completes "worker 2" of a worker with this table.
std::string WhyUnfit(const wire::Table& table) {
  int64_t elements = 1;
  for (const int64_t extent : table.shape()) {
    if (extent < 1 || extent > kTableElementsMax / elements) {
      return absl::StrCat(" has table ", TableText(table),
                          "; extents of at least 1 and at most ",
                          kTableElementsMax, " elements are required");
    }
    elements *= extent;
  }
  if (table.initializer().kind() == wire::Initializer::OF_CHECKPOINT) {
    return absl::StrCat(" has table ", TableText(table),
                        ", which begins with a checkpoint: only the "
                        "coordinator says so");
  }
  if (table.pulled_as() != wire::Encoding::FLOAT32 &&
      table.pulled_as() != wire::Encoding::BFLOAT16 &&
      table.pulled_as() != wire::Encoding::FLOAT16) {
    return absl::StrCat(" has table ", TableText(table),
                        ", whose parameters are pulled as ", table.pulled_as(),
                        "; 32 or 16 bits for each are required");
  }
  if (table.shard_elements() < 0) {
    return absl::StrCat(" has table ", TableText(table), " in shards of ",
                        table.shard_elements(), " elements");
  }
  return "";
}

// Why the table cannot be trained by its optimizer; empty: it can.
std::string WhyOptimizerUnfit(const wire::Table& table) {
  if (table.optimizer().kind_case() == config::Optimizer::KIND_NOT_SET) {
    return absl::StrCat(
        " has table ", TableText(table),
        " without an optimizer, and the config has none; give the table one, "
        "or write one in the config, as in optimizer { sgd { learning_rate: "
        "0.05 } }");
  }
  const absl::Status made = Optimizer::Create(table.optimizer()).status();
  if (made.ok()) return "";
  return absl::StrCat(" has table ", TableText(table), " with a wrong ",
                      made.message());
}

}  // namespace

void CompleteTables(const JobTermsOptions& job, wire::JoinRequest* join) {
  for (wire::Table& table : *join->mutable_table()) {
    config::Optimizer& optimizer = *table.mutable_optimizer();
    if (optimizer.kind_case() == config::Optimizer::KIND_NOT_SET)
      optimizer = job.config.optimizer();
    WriteScalarDefaults(&optimizer);
  }
}

std::string WhyTablesUnfit(const wire::JoinRequest& join,
                           const JobTermsOptions& job) {
  if (join.table_size() == 0) return " has a model without tables";
  int64_t shards = 0;
  for (const wire::Table& table : join.table()) {
    if (std::string unfit = WhyUnfit(table); !unfit.empty()) return unfit;
    const int64_t size = table.shard_elements() == 0 ? job.shard_elements
                                                     : table.shard_elements();
    shards += (RegionOf(table).size() - 1) / size + 1;
    if (shards > kShardsMax) {
      return absl::StrCat(" has tables of more than ", kShardsMax,
                          " shards; raise limits { shard_kib: ... }");
    }
  }
  for (const wire::Table& table : join.table()) {
    if (std::string unfit = WhyOptimizerUnfit(table); !unfit.empty())
      return unfit;
  }
  return "";
}

std::string WhyOtherTables(const std::string& who,
                           const wire::JoinRequest& join,
                           const std::string& other,
                           const wire::JoinRequest& of_other) {
  for (int i = 0; i < std::max(join.table_size(), of_other.table_size()); ++i) {
    const std::string ours =
        i < join.table_size() ? TableText(join.table(i)) : "no table";
    const std::string theirs =
        i < of_other.table_size() ? TableText(of_other.table(i)) : "no table";
    if (ours != theirs) {
      return absl::StrCat(
          who, " has ", ours, " where ", other, " has ", theirs,
          "; all workers must train the same model on the same data");
    }
    if (join.table(i).optimizer().SerializeAsString() !=
        of_other.table(i).optimizer().SerializeAsString()) {
      return absl::StrCat(who, " has ", ours, " with the optimizer ",
                          OptimizerText(join.table(i)), " where ", other,
                          " has it with ", OptimizerText(of_other.table(i)),
                          "; all workers must give a table the same optimizer");
    }
  }
  return "";
}

}  // namespace slackline
