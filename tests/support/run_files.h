// What a run leaves in its folder, read for tests. A file that is missing or
// not of its format is a failure of the test, and the result is empty.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/io/safetensors.h"

namespace slackline {

std::string ReadText(const std::string& path);
nlohmann::json ReadJson(const std::string& path);
// One value for each line. A last line without its end, which is still being
// written, is left out.
std::vector<nlohmann::json> ReadJsonLines(const std::string& path);
std::vector<Tensor> ReadModel(const std::string& run_folder);
// Largest difference of two elements, relative to the reference's largest one.
double RelativeDifference(const Tensor& tensor, const Tensor& reference);
// The summaries of two equal runs, of which the first is a job, have the same
// figures of staleness. Left out is the lead where an answer may have been
// given twice, or to a step that was left out.
void ExpectSameStaleness(const nlohmann::json& job,
                         const nlohmann::json& other);
// As in the summary.
std::string ModelSha256(const std::vector<Tensor>& tensors);

}  // namespace slackline
