#include "worker/data/load_data.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "worker/data/data_config.h"
#include "worker/data/idx.h"
#include "worker/data/libsvm.h"
#include "worker/data/stand_in.h"
#include "worker/data/teacher_student.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// `name` in `folder`, plain or else with .gz.
absl::StatusOr<std::string> FindIdxFile(const fs::path& folder,
                                        const std::string& name) {
  const fs::path plain = folder / name;
  const fs::path gzip = folder / (name + ".gz");
  if (Exists(plain)) return plain.string();
  if (Exists(gzip)) return gzip.string();
  return absl::NotFoundError(
      absl::StrCat("data.idx: neither ", plain.string(), " nor ", gzip.string(),
                   " is there; run `slackline data fetch mnist`, or name the "
                   "folder that holds '",
                   folder.filename().string(), "' with --data-dir"));
}

absl::StatusOr<std::shared_ptr<const Dataset>> ReadIdxPart(
    const fs::path& folder, const std::string& part) {
  IdxFiles files;
  SL_ASSIGN_OR_RETURN(files.images,
                      FindIdxFile(folder, part + "-images-idx3-ubyte"));
  SL_ASSIGN_OR_RETURN(files.labels,
                      FindIdxFile(folder, part + "-labels-idx1-ubyte"));
  return ReadIdx(files);
}

absl::StatusOr<DataSplit> LoadIdx(const config::IdxData& config,
                                  const std::string& data_dir) {
  const fs::path folder = fs::path(data_dir) / config.folder();
  DataSplit split;
  SL_ASSIGN_OR_RETURN(split.train, ReadIdxPart(folder, "train"));
  SL_ASSIGN_OR_RETURN(split.test, ReadIdxPart(folder, "t10k"));
  split.description = absl::StrCat("IDX images from ", folder.string());
  if (Exists(folder / kStandInMarker)) {
    absl::StrAppend(&split.description, " (generated stand-in, not MNIST)");
  }
  return split;
}

absl::StatusOr<std::shared_ptr<const Dataset>> ReadLibsvmPart(
    const std::string& path, absl::string_view field,
    const config::LibsvmData& config, const std::string& data_dir) {
  const fs::path file = fs::path(data_dir) / path;
  if (!Exists(file)) {
    return absl::NotFoundError(
        absl::StrCat("data.libsvm.", field, ": ", file.string(),
                     " is not there; name the folder that holds ", path,
                     " with --data-dir"));
  }
  return ReadLibsvm(file.string(), config.features());
}

absl::StatusOr<DataSplit> LoadLibsvm(const config::LibsvmData& config,
                                     const std::string& data_dir) {
  DataSplit split;
  SL_ASSIGN_OR_RETURN(
      split.train, ReadLibsvmPart(config.train(), "train", config, data_dir));
  SL_ASSIGN_OR_RETURN(split.test,
                      ReadLibsvmPart(config.test(), "test", config, data_dir));
  split.description =
      absl::StrCat("LIBSVM data from ", config.train(), " and ", config.test());
  return split;
}

absl::StatusOr<DataSplit> LoadTeacherStudent(
    const config::TeacherStudentData& config) {
  SL_ASSIGN_OR_RETURN(TeacherStudentSplit split,
                      GenerateTeacherStudent(config));
  return DataSplit{
      std::move(split.train), std::move(split.test),
      absl::StrCat("teacher-student data generated from seed ", config.seed())};
}

absl::StatusOr<DataSplit> LoadSource(const config::Data& data,
                                     const std::string& data_dir) {
  switch (data.source_case()) {
    case config::Data::kIdx:
      return LoadIdx(data.idx(), data_dir);
    case config::Data::kLibsvm:
      return LoadLibsvm(data.libsvm(), data_dir);
    case config::Data::kTeacherStudent:
      return LoadTeacherStudent(data.teacher_student());
    case config::Data::SOURCE_NOT_SET:
      break;
  }
  SL_CHECK(false, "the config has been checked");
}

}  // namespace

absl::StatusOr<DataSplit> LoadData(const config::Data& data,
                                   const std::string& data_dir) {
  const ConfigProblems problems;
  CheckData(data, problems.In("data"));
  SL_RETURN_IF_ERROR(problems.ToStatus());
  SL_ASSIGN_OR_RETURN(DataSplit split, LoadSource(data, data_dir));
  if (split.train->features() != split.test->features()) {
    return absl::InvalidArgumentError(
        absl::StrCat("data: ", split.train->description(), " have ",
                     split.train->features(), " features each, ",
                     split.test->description(), " ", split.test->features(),
                     "; training and test data must be of one kind"));
  }
  absl::StrAppend(&split.description, ": ", split.train->examples(),
                  " training and ", split.test->examples(), " test examples, ",
                  split.train->features(), " features, ",
                  split.train->classes(), " classes");
  return split;
}

}  // namespace slackline
