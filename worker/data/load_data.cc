#include "worker/data/load_data.h"

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "worker/data/csv.h"
#include "worker/data/data_config.h"
#include "worker/data/data_files.h"
#include "worker/data/idx.h"
#include "worker/data/libsvm.h"
#include "worker/data/npy.h"
#include "worker/data/stand_in.h"
#include "worker/data/teacher_student.h"
#include "worker/model/model_config.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

struct RawSplit {
  RawData train;
  RawData test;
  std::string from;  // For people.
};

using Paths = std::vector<std::string>;  // In the order of DataFilesOf().

absl::StatusOr<RawSplit> ReadIdxSplit(const config::IdxData& config,
                                      const std::string& data_dir,
                                      const Paths& paths) {
  RawSplit split;
  SL_ASSIGN_OR_RETURN(split.train,
                      ReadIdx({.images = paths[0], .labels = paths[1]}));
  SL_ASSIGN_OR_RETURN(split.test,
                      ReadIdx({.images = paths[2], .labels = paths[3]}));
  const fs::path folder = fs::path(data_dir) / config.folder();
  split.from = absl::StrCat("IDX images from ", folder.string());
  std::error_code error;
  if (fs::exists(folder / kStandInMarker, error))
    absl::StrAppend(&split.from, " (generated stand-in, not MNIST)");
  return split;
}

absl::StatusOr<RawSplit> ReadLibsvmSplit(const config::LibsvmData& config,
                                         const Paths& paths) {
  RawSplit split;
  SL_ASSIGN_OR_RETURN(split.train, ReadLibsvm(paths[0], config.features()));
  SL_ASSIGN_OR_RETURN(split.test, ReadLibsvm(paths[1], config.features()));
  split.from =
      absl::StrCat("LIBSVM data from ", config.train(), " and ", config.test());
  return split;
}

absl::StatusOr<RawSplit> ReadCsvSplit(const config::CsvData& config,
                                      const Paths& paths) {
  SL_ASSIGN_OR_RETURN(CsvTable train, ReadCsv(paths[0], config.label()));
  SL_ASSIGN_OR_RETURN(CsvTable test, ReadCsv(paths[1], config.label()));
  SL_RETURN_IF_ERROR(CheckSameColumns(train, test));
  return RawSplit{.train = std::move(train.data),
                  .test = std::move(test.data),
                  .from = absl::StrCat("CSV data from ", config.train(),
                                       " and ", config.test())};
}

absl::StatusOr<RawSplit> ReadNpySplit(const config::NpyData& config,
                                      const Paths& paths) {
  RawSplit split;
  SL_ASSIGN_OR_RETURN(split.train,
                      ReadNpy({.inputs = paths[0], .labels = paths[1]}));
  SL_ASSIGN_OR_RETURN(split.test,
                      ReadNpy({.inputs = paths[2], .labels = paths[3]}));
  split.from = absl::StrCat("arrays from ", config.train_inputs(), " and ",
                            config.test_inputs());
  return split;
}

absl::StatusOr<RawSplit> Generate(const config::TeacherStudentData& config) {
  SL_ASSIGN_OR_RETURN(TeacherStudentSplit split,
                      GenerateTeacherStudent(config));
  return RawSplit{
      .train = std::move(split.train),
      .test = std::move(split.test),
      .from = absl::StrCat("teacher-student data generated from seed ",
                           config.seed())};
}

absl::StatusOr<RawSplit> Read(const config::Data& data,
                              const std::string& data_dir) {
  Paths paths;
  for (const DataFile& file : DataFilesOf(data)) {
    SL_ASSIGN_OR_RETURN(std::string path, FindDataFile(file, data_dir));
    paths.push_back(std::move(path));
  }
  switch (data.source_case()) {
    case config::Data::kIdx:
      return ReadIdxSplit(data.idx(), data_dir, paths);
    case config::Data::kLibsvm:
      return ReadLibsvmSplit(data.libsvm(), paths);
    case config::Data::kTeacherStudent:
      return Generate(data.teacher_student());
    case config::Data::kCsv:
      return ReadCsvSplit(data.csv(), paths);
    case config::Data::kNpy:
      return ReadNpySplit(data.npy(), paths);
    case config::Data::SOURCE_NOT_SET:
      break;
  }
  SL_CHECK(false, "the config has been checked");
}

LabelRule LabelRuleOf(const config::Data& data, const config::Model& model) {
  if (model.has_linear()) return {.kind = LabelRule::Kind::kRealNumbers};
  if (data.has_teacher_student())
    return {.classes = data.teacher_student().classes()};
  if (data.has_idx()) return {};
  return {.kind = LabelRule::Kind::kDistinct};
}

// What is done to inputs if the config does not say.
config::Normalisation DefaultNormalisation(const config::Data& data,
                                           const RawData& train) {
  config::Normalisation normalisation;
  if (!data.has_teacher_student() &&
      std::holds_alternative<CodedRows>(train.inputs)) {
    normalisation.mutable_over_all();
  } else {
    normalisation.mutable_none();
  }
  return normalisation;
}

}  // namespace

absl::StatusOr<DataSplit> LoadData(const config::Data& data,
                                   const config::Model& model,
                                   const std::string& data_dir) {
  const ConfigProblems problems;
  CheckData(data, problems.In("data"));
  CheckModelFitsData(model, data, problems);
  SL_RETURN_IF_ERROR(problems.ToStatus());
  SL_ASSIGN_OR_RETURN(RawSplit raw, Read(data, data_dir));
  const std::string source = raw.train.source;
  const config::Normalisation normalisation =
      data.has_normalisation() ? data.normalisation()
                               : DefaultNormalisation(data, raw.train);
  SL_ASSIGN_OR_RETURN(DataSplit split,
                      MakeSplit(std::move(raw.train), std::move(raw.test),
                                LabelRuleOf(data, model), normalisation));
  SL_RETURN_IF_ERROR(CheckModelTakes(model, split.train->shape(), source));
  split.description = absl::StrCat(raw.from, ": ", split.description);
  return split;
}

}  // namespace slackline
