#include "common/compress/compression_config.h"

#include "absl/strings/str_cat.h"

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
      problems.Add("",
                   "has no method; one of none, bfloat16, float16, int8, sign, "
                   "top_k, random_k is required");
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

}  // namespace slackline
