#include "worker/data/teacher_student.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "common/status.h"
#include "worker/data/data_config.h"

namespace slackline {
namespace {

constexpr int kHidden = 32;

// The value below which a standard normal number falls with this probability,
// by bisection: 256 calls per job do not need a better method.
double NormalQuantile(double probability) {
  double low = -10;
  double high = 10;
  for (int i = 0; i < 80; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::sqrt(2.0)) / 2 < probability ? low : high) =
        middle;
  }
  return low;
}

std::array<float, 256> NormalValues() {
  std::array<float, 256> values{};
  for (size_t code = 0; code < values.size(); ++code) {
    values[code] = static_cast<float>(
        NormalQuantile((static_cast<double>(code) + 0.5) / 256));
  }
  return values;
}

class Teacher {
 public:
  Teacher(int64_t features, int32_t classes, Rng rng)
      : features_(features), classes_(classes) {
    // Hidden sums have deviation 1: tanh bends, but does not saturate.
    const double scale = 1 / std::sqrt(static_cast<double>(features));
    first_.resize(static_cast<size_t>(features * kHidden));
    for (float& weight : first_)
      weight = static_cast<float>(scale * rng.Normal());
    second_.resize(static_cast<size_t>(classes));
    for (auto& row : second_) {
      double squares = 0;
      for (float& weight : row) {
        weight = static_cast<float>(rng.Normal());
        squares += static_cast<double>(weight) * weight;
      }
      for (float& weight : row)
        weight = static_cast<float>(weight / std::sqrt(squares));
    }
  }

  int32_t Label(const uint8_t* codes,
                const std::array<float, 256>& value) const {
    std::array<float, kHidden> hidden{};
    for (int64_t i = 0; i < features_; ++i) {
      const float input = value[codes[i]];
      const float* const weights = first_.data() + i * kHidden;
      for (int j = 0; j < kHidden; ++j) hidden[j] += input * weights[j];
    }
    for (float& sum : hidden) sum = std::tanh(sum);
    int32_t best = 0;
    float best_score = -INFINITY;
    for (int32_t c = 0; c < classes_; ++c) {
      float score = 0;
      for (int j = 0; j < kHidden; ++j) score += hidden[j] * second_[c][j];
      if (score > best_score) {
        best = c;
        best_score = score;
      }
    }
    return best;
  }

 private:
  const int64_t features_;
  const int32_t classes_;
  std::vector<float> first_;                        // [features, kHidden]
  std::vector<std::array<float, kHidden>> second_;  // [classes, kHidden]
};

RawData Generate(const config::TeacherStudentData& config,
                 const Teacher& teacher, std::string_view part,
                 int64_t examples) {
  const int64_t features = config.features();
  CodedRows rows{
      .codes = std::vector<uint8_t>(static_cast<size_t>(examples * features)),
      .values = {NormalValues()}};
  Rng rng = Rng(static_cast<uint64_t>(config.seed())).Fork(part);
  for (size_t i = 0; i < rows.codes.size(); i += sizeof(uint64_t)) {
    uint64_t random = rng.Next();
    const size_t end = std::min(i + sizeof(uint64_t), rows.codes.size());
    for (size_t j = i; j < end; ++j, random >>= 8)
      rows.codes[j] = static_cast<uint8_t>(random);
  }
  std::vector<double> labels(static_cast<size_t>(examples));
  for (int64_t i = 0; i < examples; ++i) {
    labels[static_cast<size_t>(i)] =
        teacher.Label(rows.codes.data() + i * features, rows.values[0]);
  }
  return RawData{
      .inputs = std::move(rows),
      .features = features,
      .image = {},
      .labels = std::move(labels),
      .label_place =
          [](int64_t row) { return absl::StrCat("generated example ", row); },
      .source = "generated data",
      .description =
          absl::StrCat(examples, " generated teacher-student examples (seed ",
                       config.seed(), ")")};
}

}  // namespace

absl::StatusOr<TeacherStudentSplit> GenerateTeacherStudent(
    const config::TeacherStudentData& config) {
  const ConfigProblems problems;
  CheckTeacherStudent(config, problems.In("data.teacher_student"));
  SL_RETURN_IF_ERROR(problems.ToStatus());
  const Teacher teacher(
      config.features(), config.classes(),
      Rng(static_cast<uint64_t>(config.seed())).Fork("teacher"));
  return TeacherStudentSplit{
      Generate(config, teacher, "train", config.train_examples()),
      Generate(config, teacher, "test", config.test_examples())};
}

}  // namespace slackline
