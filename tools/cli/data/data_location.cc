#include "tools/cli/data/data_location.h"

#include <pwd.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/status.h"
#include "tools/cli/data/data_fetch.h"
#include "worker/data/data_files.h"
#include "worker/data/stand_in.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

constexpr char kStandInDir[] = "mnist-stand-in";

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::string MissingText(const std::vector<std::string>& missing) {
  return absl::StrCat(absl::StrJoin(missing, ", "),
                      missing.size() == 1 ? " is" : " are", " not there");
}

std::string StandInNotice(const std::string& folder, const std::string& why) {
  return absl::StrCat(
      "**********************************************************************\n"
      "* NOT MNIST: training on a generated stand-in for it.\n"
      "* ",
      why,
      "\n"
      "* The stand-in has MNIST's files and sizes, but other pictures: loss\n"
      "* and accuracy do not compare with those of MNIST.\n"
      "* It is in ",
      folder,
      "\n"
      "* For the real data run `slackline data fetch mnist` where there is a\n"
      "* network, or give the folder that holds mnist/ with --data-dir.\n"
      "**********************************************************************");
}

absl::StatusOr<std::string> LocateMnist(const config::Data& data,
                                        const DataLocationOptions& options) {
  const fs::path cache(options.cache_dir);
  const fs::path stand_in = cache / kStandInDir;
  // Who has once gone without a network does not wait for it again.
  if (MissingDataFiles(data, stand_in.string()).empty()) {
    options.say(StandInNotice(stand_in.string(),
                              "An earlier run could not download MNIST."));
    return stand_in.string();
  }
  const absl::Status fetched =
      options.fetch_mnist((cache / kMnistFolder).string());
  if (fetched.ok()) return cache.string();
  SL_RETURN_IF_ERROR(
      Annotate(options.write_stand_in((stand_in / kMnistFolder).string()),
               "writing a stand-in for MNIST, which could not be downloaded"));
  options.say(StandInNotice(stand_in.string(),
                            absl::StrCat("MNIST could not be downloaded: ",
                                         std::string(fetched.message()))));
  return stand_in.string();
}

}  // namespace

absl::StatusOr<std::string> CacheDataDir() {
  // Not $HOME: no environment variable has a meaning here.
  const passwd* const user = getpwuid(getuid());
  if (user == nullptr || user->pw_dir == nullptr || *user->pw_dir == '\0') {
    return absl::NotFoundError(
        absl::StrCat("user ", getuid(),
                     " has no home folder to keep data in; give a folder with "
                     "--data-dir"));
  }
  return absl::StrCat(user->pw_dir, "/.cache/slackline/data");
}

std::vector<std::string> MissingDataFiles(const config::Data& data,
                                          const std::string& data_dir) {
  std::vector<std::string> missing;
  for (const DataFile& file : DataFilesOf(data)) {
    if (FindDataFile(file, data_dir).ok()) continue;
    // Of names that differ in how they end, the one that is downloaded.
    const std::string& name =
        file.names.size() > 1 ? file.names[1] : file.names[0];
    missing.push_back(fs::path(data_dir) / name);
  }
  return missing;
}

absl::StatusOr<std::string> LocateData(const config::Data& data,
                                       const DataLocationOptions& options) {
  const std::string& data_dir =
      options.data_dir.empty() ? options.cache_dir : options.data_dir;
  const std::vector<std::string> missing = MissingDataFiles(data, data_dir);
  if (missing.empty()) return data_dir;
  const bool mnist = data.has_idx() && data.idx().folder() == kMnistFolder;
  const std::string what = absl::StrCat("data: ", MissingText(missing));
  if (mnist && options.data_dir.empty()) return LocateMnist(data, options);
  if (mnist) {
    return absl::NotFoundError(absl::StrCat(
        what, "; run `slackline data fetch mnist --data-dir ", data_dir,
        "`, or `slackline data stand-in --data-dir ", data_dir,
        "` for generated pictures where there is no network"));
  }
  if (data.has_libsvm() && absl::StrContains(data.libsvm().train(), "a9a")) {
    return absl::NotFoundError(absl::StrCat(what, "; ", A9aHelp(data_dir)));
  }
  return absl::NotFoundError(absl::StrCat(
      what,
      "; give the folder that holds what the config's data block names "
      "with --data-dir"));
}

absl::Status FetchMnist(const std::string& folder,
                        const std::function<void(const std::string&)>& say) {
  FetchOptions options = MnistFetchOptions(folder);
  options.say = say;
  const fs::path base(folder);
  if (Exists(base / kStandInMarker)) {
    return absl::AlreadyExistsError(absl::StrCat(
        folder,
        " holds a generated stand-in, which would be read in place of "
        "MNIST; remove the folder, or choose another --data-dir"));
  }
  for (const FetchOptions::File& file : options.files) {
    const fs::path plain =
        base / std::string(absl::StripSuffix(file.name, ".gz"));
    if (!Exists(plain)) continue;
    return absl::AlreadyExistsError(absl::StrCat(
        plain.string(), " is there, and would be read in place of ", file.name,
        "; remove it, or choose another --data-dir"));
  }
  return FetchFiles(options);
}

std::string A9aHelp(absl::string_view data_dir) {
  return absl::StrCat(
      "a9a comes from "
      "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/"
      "binary.html#a9a; "
      "download a9a and a9a.t from there to ",
      data_dir,
      "/a9a/, and write their names into the config's data { libsvm {...} } as "
      "\"a9a/a9a\" and \"a9a/a9a.t\", or pack them with gzip first");
}

}  // namespace slackline
