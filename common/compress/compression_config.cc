#include "common/compress/compression_config.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/block/table_pattern.h"
#include "common/view/shard_map.h"

namespace slackline {

void CheckCompression(const config::Compression& compression,
                      const ConfigProblems& problems) {
  const auto check_ratio = [&](const char* method, bool has, double ratio) {
    const ConfigProblems of_method = problems.In(method);
    if (!has) {
      of_method.Add("ratio", "is missing; above 0 and at most 1 is required");
    } else if (!(ratio > 0 && ratio <= 1)) {
      of_method.Add("ratio", absl::StrCat("value is ", ratio,
                                          "; above 0 and at most 1 is "
                                          "required"));
    }
  };
  switch (compression.method_case()) {
    case config::Compression::kTopK:
      check_ratio("top_k", compression.top_k().has_ratio(),
                  compression.top_k().ratio());
      break;
    case config::Compression::kRandomK:
      check_ratio("random_k", compression.random_k().has_ratio(),
                  compression.random_k().ratio());
      break;
    case config::Compression::METHOD_NOT_SET:
      if (compression.has_parameters()) break;
      problems.Add("",
                   "has no method; one of none, bfloat16, float16, int8, sign, "
                   "top_k, random_k, or parameters, is required");
      break;
    default:
      break;
  }
  if (compression.min_elements() < 0) {
    problems.Add("min_elements",
                 absl::StrCat("value is ", compression.min_elements(),
                              "; at least 0 is required"));
  }
}

const config::Compression* CompressionOf(const config::Sync& sync,
                                         const wire::Table& table) {
  const auto found =
      std::find_if(sync.compression().begin(), sync.compression().end(),
                   [&](const config::Compression& compression) {
                     return FitsTablePattern(compression.table(), table.name());
                   });
  if (found == sync.compression().end() ||
      TableElements(table) < found->min_elements()) {
    return nullptr;
  }
  return &*found;
}

wire::Encoding::Kind PulledAs(const config::Sync& sync,
                              const wire::Table& table) {
  const config::Compression* const compression = CompressionOf(sync, table);
  if (compression == nullptr) return wire::Encoding::FLOAT32;
  switch (compression->parameters()) {
    case config::Compression::BFLOAT16:
      return wire::Encoding::BFLOAT16;
    case config::Compression::FLOAT16:
      return wire::Encoding::FLOAT16;
    default:
      return wire::Encoding::FLOAT32;
  }
}

}  // namespace slackline
