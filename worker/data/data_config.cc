#include "worker/data/data_config.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"

namespace slackline {
namespace {

constexpr int kBatchMax = 1 << 20;
constexpr int kLibsvmFeaturesMax = 1 << 26;
constexpr int kChannelsMax = 4;
constexpr int kTeacherFeaturesMax = 1 << 20;
constexpr int kTeacherClassesMax = 1 << 16;
constexpr int kTeacherExamplesMax = 1 << 28;
// Of generated inputs, which every worker holds.
constexpr int64_t kTeacherBytesMax = int64_t{4} << 30;

// A file or folder below the data folder.
void CheckDataPath(absl::string_view field, bool given,
                   const std::string& value, absl::string_view example,
                   const ConfigProblems& problems) {
  if (!given || value.empty()) {
    return problems.Add(
        field, absl::StrCat("is missing; write its place below the data "
                            "folder, as in ",
                            example));
  }
  const std::vector<std::string> parts = absl::StrSplit(value, '/');
  if (value[0] == '/' ||
      std::find(parts.begin(), parts.end(), "..") != parts.end()) {
    return problems.Add(
        field, absl::StrCat("value is ", Printable(value),
                            " and leaves the data folder; write it relative to "
                            "the folder that --data-dir names"));
  }
  if (std::any_of(value.begin(), value.end(), absl::ascii_iscntrl)) {
    problems.Add(field, absl::StrCat("value is ", Printable(value),
                                     "; remove the control character"));
  }
}

void CheckLibsvm(const config::LibsvmData& libsvm,
                 const ConfigProblems& problems) {
  CheckDataPath("train", libsvm.has_train(), libsvm.train(), "a9a/a9a.gz",
                problems);
  CheckDataPath("test", libsvm.has_test(), libsvm.test(), "a9a/a9a.t.gz",
                problems);
  if (libsvm.has_features()) {
    problems.Range("features", libsvm.features(), 1, kLibsvmFeaturesMax);
  } else {
    problems.Add("features",
                 "is missing; the largest feature index is required, as in "
                 "features: 123");
  }
}

void CheckCsv(const config::CsvData& csv, const ConfigProblems& problems) {
  CheckDataPath("train", csv.has_train(), csv.train(), "wine/train.csv",
                problems);
  CheckDataPath("test", csv.has_test(), csv.test(), "wine/test.csv", problems);
  if (csv.has_label() && csv.label().empty()) {
    problems.Add("label",
                 "value is ''; name a column, or leave it out for the last "
                 "one");
  }
}

void CheckNpy(const config::NpyData& npy, const ConfigProblems& problems) {
  CheckDataPath("train_inputs", npy.has_train_inputs(), npy.train_inputs(),
                "faces/x_train.npy", problems);
  CheckDataPath("train_labels", npy.has_train_labels(), npy.train_labels(),
                "faces/y_train.npy", problems);
  CheckDataPath("test_inputs", npy.has_test_inputs(), npy.test_inputs(),
                "faces/x_test.npy", problems);
  CheckDataPath("test_labels", npy.has_test_labels(), npy.test_labels(),
                "faces/y_test.npy", problems);
}

void CheckGiven(const config::Normalisation::Given& given,
                const ConfigProblems& problems) {
  if (given.mean_size() == 0 || given.mean_size() != given.deviation_size()) {
    return problems.Add(
        "", absl::StrCat("there are ", given.mean_size(), " means and ",
                         given.deviation_size(),
                         " deviations; one of each is required, or one for "
                         "each channel, as in given { mean: 0.1307 deviation: "
                         "0.3081 }"));
  }
  for (int i = 0; i < std::min(given.mean_size(), kChannelsMax + 1); ++i) {
    problems.Require(std::isfinite(static_cast<float>(given.mean(i))),
                     absl::StrCat("mean[", i, "]"), given.mean(i),
                     "a 32-bit float");
    problems.FloatAboveZero(absl::StrCat("deviation[", i, "]"),
                            given.deviation(i));
  }
}

void CheckNormalisation(const config::Data& data,
                        const ConfigProblems& problems) {
  const config::Normalisation& normalisation = data.normalisation();
  if (normalisation.kind_case() == config::Normalisation::KIND_NOT_SET) {
    problems.Add("",
                 "is empty; one of none {}, over_all {}, per_channel {}, "
                 "per_feature {} and given is required");
  }
  if (normalisation.has_given())
    CheckGiven(normalisation.given(), problems.In("given"));
  const bool images = data.has_idx() || data.has_npy();
  if (images || data.source_case() == config::Data::SOURCE_NOT_SET) return;
  if (normalisation.has_per_channel()) {
    problems.Add("per_channel",
                 "only images have channels, in data.idx and data.npy; use "
                 "over_all {} or per_feature {}");
  }
  if (normalisation.given().mean_size() > 1) {
    problems.Add("given",
                 absl::StrCat("there are ", normalisation.given().mean_size(),
                              " means, and only images have channels, in "
                              "data.idx and data.npy; write one mean"));
  }
}

}  // namespace

void CheckTeacherStudent(const config::TeacherStudentData& teacher,
                         const ConfigProblems& problems) {
  bool sizes_ok =
      problems.Range("features", teacher.features(), 1, kTeacherFeaturesMax);
  problems.Range("classes", teacher.classes(), 2, kTeacherClassesMax);
  sizes_ok &= problems.Range("train_examples", teacher.train_examples(), 1,
                             kTeacherExamplesMax);
  sizes_ok &= problems.Range("test_examples", teacher.test_examples(), 1,
                             kTeacherExamplesMax);
  problems.Require(teacher.seed() >= 0, "seed", teacher.seed(), "at least 0");
  const int64_t bytes =
      (int64_t{teacher.train_examples()} + teacher.test_examples()) *
      teacher.features();
  if (sizes_ok && bytes > kTeacherBytesMax) {
    problems.Add("", absl::StrCat(bytes,
                                  " bytes of inputs in each worker are above "
                                  "the bound of ",
                                  kTeacherBytesMax,
                                  "; ask for fewer examples or features"));
  }
}

void CheckData(const config::Data& data, const ConfigProblems& problems) {
  switch (data.source_case()) {
    case config::Data::kIdx:
      CheckDataPath("idx.folder", true, data.idx().folder(), "mnist", problems);
      break;
    case config::Data::kLibsvm:
      CheckLibsvm(data.libsvm(), problems.In("libsvm"));
      break;
    case config::Data::kTeacherStudent:
      CheckTeacherStudent(data.teacher_student(),
                          problems.In("teacher_student"));
      break;
    case config::Data::kCsv:
      CheckCsv(data.csv(), problems.In("csv"));
      break;
    case config::Data::kNpy:
      CheckNpy(data.npy(), problems.In("npy"));
      break;
    case config::Data::SOURCE_NOT_SET:
      problems.Add("",
                   "is missing; one of idx, libsvm, csv, npy and "
                   "teacher_student is required, as in data { idx { folder: "
                   "\"mnist\" } }");
  }
  if (data.has_normalisation())
    CheckNormalisation(data, problems.In("normalisation"));
  problems.Range("batch_size", data.batch_size(), 1, kBatchMax);
}

}  // namespace slackline
