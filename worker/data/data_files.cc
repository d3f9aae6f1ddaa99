#include "worker/data/data_files.h"

#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

// Plain before packed.
DataFile IdxFile(const std::string& folder, const std::string& part,
                 const std::vector<std::string>& kinds) {
  DataFile file{.field = "data.idx", .names = {}};
  for (const std::string& kind : kinds) {
    for (const char* const ending : {"", ".gz"})
      file.names.push_back(fs::path(folder) / absl::StrCat(part, kind, ending));
  }
  return file;
}

}  // namespace

std::vector<DataFile> DataFilesOf(const config::Data& data) {
  std::vector<DataFile> files;
  switch (data.source_case()) {
    case config::Data::kIdx:
      for (const char* const part : {"train", "t10k"}) {
        files.push_back(IdxFile(data.idx().folder(), part,
                                {"-images-idx3-ubyte", "-images-idx4-ubyte"}));
        files.push_back(IdxFile(data.idx().folder(), part,
                                {"-labels-idx1-ubyte", "-labels-idx1-int"}));
      }
      break;
    case config::Data::kLibsvm:
      files = {{"data.libsvm.train", {data.libsvm().train()}},
               {"data.libsvm.test", {data.libsvm().test()}}};
      break;
    case config::Data::kCsv:
      files = {{"data.csv.train", {data.csv().train()}},
               {"data.csv.test", {data.csv().test()}}};
      break;
    case config::Data::kNpy:
      files = {{"data.npy.train_inputs", {data.npy().train_inputs()}},
               {"data.npy.train_labels", {data.npy().train_labels()}},
               {"data.npy.test_inputs", {data.npy().test_inputs()}},
               {"data.npy.test_labels", {data.npy().test_labels()}}};
      break;
    case config::Data::kTeacherStudent:
    case config::Data::SOURCE_NOT_SET:
      break;
  }
  return files;
}

absl::StatusOr<std::string> FindDataFile(const DataFile& file,
                                         const std::string& data_dir) {
  std::vector<std::string> paths;
  for (const std::string& name : file.names) {
    paths.push_back(fs::path(data_dir) / name);
    std::error_code error;
    if (fs::exists(paths.back(), error)) return paths.back();
  }
  if (paths.size() == 1) {
    return absl::NotFoundError(
        absl::StrCat(file.field, ": ", paths[0],
                     " is not there; name the folder that holds ",
                     file.names[0], " with --data-dir"));
  }
  return absl::NotFoundError(absl::StrCat(
      file.field, ": none of ", absl::StrJoin(paths, ", "),
      " is there; run `slackline data fetch mnist`, or name the folder that "
      "holds '",
      fs::path(file.names[0]).parent_path().string(), "' with --data-dir"));
}

}  // namespace slackline
