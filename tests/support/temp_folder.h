// Files for tests: an empty folder for each test, and short ways to fill it.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "gtest/gtest.h"

namespace slackline {

// Made empty for the running test, removed with everything in it at the end. A
// second one of a test has a prefix of its own.
class TempFolder {
 public:
  explicit TempFolder(const std::string& prefix = "") {
    const testing::TestInfo& test =
        *testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::path(testing::TempDir()) /
            (prefix + test.test_suite_name() + "." + test.name() + "." +
             std::to_string(getpid()));
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string path() const { return path_.string(); }
  std::string File(const std::string& name) const {
    return (path_ / name).string();
  }
  // Returns the file's path.
  std::string Write(const std::string& name, const std::string& content) const {
    std::ofstream file(path_ / name, std::ios::binary);
    file << content;
    EXPECT_TRUE(file.flush().good()) << name;
    return File(name);
  }

 private:
  std::filesystem::path path_;
};

inline std::string ReadWholeFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file),
          std::istreambuf_iterator<char>()};
}

}  // namespace slackline
