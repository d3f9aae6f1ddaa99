#include "tests/support/run_files.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace slackline {

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) ADD_FAILURE() << path << " cannot be read";
  return {std::istreambuf_iterator<char>(file),
          std::istreambuf_iterator<char>()};
}

nlohmann::json ReadJson(const std::string& path) {
  nlohmann::json json = nlohmann::json::parse(ReadText(path), nullptr, false);
  if (!json.is_discarded()) return json;
  ADD_FAILURE() << path << " is not JSON";
  return {};
}

std::vector<nlohmann::json> ReadJsonLines(const std::string& path) {
  const std::string text = ReadText(path);
  std::vector<nlohmann::json> values;
  size_t begin = 0;
  for (size_t end = text.find('\n'); end != std::string::npos;
       end = text.find('\n', begin)) {
    values.push_back(
        nlohmann::json::parse(text.substr(begin, end - begin), nullptr, false));
    if (values.back().is_discarded()) {
      ADD_FAILURE() << path << ": line " << values.size() << " is not JSON";
      return {};
    }
    begin = end + 1;
  }
  return values;
}

std::vector<Tensor> ReadModel(const std::string& run_folder) {
  absl::StatusOr<SafetensorsFile> file =
      ReadSafetensors(absl::StrCat(run_folder, "/model.safetensors"));
  if (file.ok()) return std::move(file->tensors);
  ADD_FAILURE() << file.status();
  return {};
}

double RelativeDifference(const Tensor& tensor, const Tensor& reference) {
  double difference = 0, largest = 0;
  for (size_t i = 0; i < reference.values.size(); ++i) {
    difference = std::max<double>(
        difference, std::abs(double{tensor.values[i]} - reference.values[i]));
    largest = std::max<double>(largest, std::abs(reference.values[i]));
  }
  return difference / largest;
}

void ExpectSameStaleness(const nlohmann::json& job,
                         const nlohmann::json& other) {
  for (const char* const measure :
       {"missed_updates", "missed_clocks", "lead"}) {
    if (std::string(measure) == "lead" &&
        (job["retries"] != 0 || job["dropped"] != 0)) {
      continue;
    }
    const std::string bins = absl::StrCat(measure, "_histogram");
    EXPECT_EQ(job[measure], other[measure]) << measure;
    EXPECT_EQ(job[bins], other[bins]) << bins;
    EXPECT_FALSE(job[bins].empty()) << bins;
  }
}

std::string ModelSha256(const std::vector<Tensor>& tensors) {
  std::vector<TensorView> views;
  for (const Tensor& tensor : tensors) views.push_back(tensor.view());
  return TensorsSha256(views);
}

}  // namespace slackline
