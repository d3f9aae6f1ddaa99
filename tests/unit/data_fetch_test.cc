#include "tools/cli/data/data_fetch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/io/sha256.h"
#include "tools/cli/data/data_location.h"

namespace slackline::data_fetch_test {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string ReadFile(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void WriteFile(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::string Message(const absl::Status& status) {
  return std::string(status.message());
}

fs::path TestFolder() {
  const auto* const test =
      ::testing::UnitTest::GetInstance()->current_test_info();
  const fs::path folder = fs::path(::testing::TempDir()) /
                          (std::string("slackline-data-") + test->name());
  fs::remove_all(folder);
  return folder;
}

// A mirror on this machine: /good/ has the file, /bad/ another one, /short/
// breaks off, /moved/ sends on to /good/, the rest is 404.
class DataFetchTest : public ::testing::Test {
 protected:
  DataFetchTest() : content_(300000, 'x'), folder_(TestFolder()) {
    for (size_t i = 0; i < content_.size(); i += 7) content_[i] = char(i);
    server_.Get("/good/file.gz",
                [this](const httplib::Request&, httplib::Response& response) {
                  ++requests_;
                  response.set_content(content_, "application/gzip");
                });
    server_.Get("/bad/file.gz",
                [this](const httplib::Request&, httplib::Response& response) {
                  response.set_content(content_ + "!", "application/gzip");
                });
    server_.Get("/short/file.gz",
                [this](const httplib::Request&, httplib::Response& response) {
                  response.set_content_provider(
                      content_.size(), "application/gzip",
                      [this](size_t offset, size_t, httplib::DataSink& sink) {
                        if (offset > 0) return false;
                        return sink.write(content_.data(), 1000);
                      });
                });
    server_.Get("/moved/file.gz",
                [](const httplib::Request&, httplib::Response& response) {
                  response.set_redirect("/good/file.gz");
                });
    const int port = server_.bind_to_any_port("127.0.0.1");
    base_ = absl::StrCat("http://127.0.0.1:", port);
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    // stop() would not end a server that has yet to start.
    while (!server_.is_running()) std::this_thread::yield();
  }
  ~DataFetchTest() override {
    server_.stop();
    thread_.join();
    fs::remove_all(folder_);
  }
  absl::Status Fetch(const std::vector<std::string>& mirrors) {
    FetchOptions options;
    for (const std::string& mirror : mirrors) {
      options.mirrors.push_back(base_ + mirror);
    }
    options.files = {{.name = "file.gz", .sha256 = Sha256Hex(content_)}};
    options.folder = folder_.string();
    return FetchFiles(options);
  }
  // What the folder holds: nothing half done may stay.
  std::vector<std::string> FolderContent() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  std::string content_;
  const fs::path folder_;
  httplib::Server server_;
  std::atomic<int> requests_{0};
  std::string base_;
  std::thread thread_;
};

TEST_F(DataFetchTest, WritesTheFileIntoANewFolder) {
  EXPECT_EQ(Fetch({"/good/"}), absl::OkStatus());
  EXPECT_THAT(FolderContent(), ElementsAre("file.gz"));
  EXPECT_EQ(ReadFile(folder_ / "file.gz"), content_);
}

TEST_F(DataFetchTest, FollowsRedirects) {
  EXPECT_EQ(Fetch({"/moved/"}), absl::OkStatus());
  EXPECT_EQ(ReadFile(folder_ / "file.gz"), content_);
}

TEST_F(DataFetchTest, AFileWithAnotherChecksumIsNotWritten) {
  const absl::Status fetched = Fetch({"/bad/"});
  EXPECT_TRUE(absl::IsUnavailable(fetched));
  EXPECT_THAT(Message(fetched), HasSubstr(base_ + "/bad/file.gz: the SHA-256"));
  EXPECT_THAT(Message(fetched), HasSubstr(Sha256Hex(content_)));
  EXPECT_THAT(FolderContent(), IsEmpty());
}

TEST_F(DataFetchTest, AMissingFileIsNamedWithItsStatus) {
  const absl::Status fetched = Fetch({"/none/"});
  EXPECT_TRUE(absl::IsUnavailable(fetched));
  EXPECT_THAT(Message(fetched), HasSubstr("/none/file.gz"));
  EXPECT_THAT(Message(fetched), HasSubstr("404"));
  EXPECT_THAT(FolderContent(), IsEmpty());
}

TEST_F(DataFetchTest, ATruncatedFileIsNotWritten) {
  const absl::Status fetched = Fetch({"/short/"});
  EXPECT_TRUE(absl::IsUnavailable(fetched));
  EXPECT_THAT(Message(fetched), HasSubstr("/short/file.gz"));
  EXPECT_THAT(FolderContent(), IsEmpty());
}

TEST_F(DataFetchTest, TheNextMirrorHelpsOut) {
  EXPECT_EQ(Fetch({"/none/", "/short/", "/bad/", "/good/"}), absl::OkStatus());
  EXPECT_EQ(ReadFile(folder_ / "file.gz"), content_);
}

TEST_F(DataFetchTest, AllMirrorsThatFailedAreNamed) {
  const absl::Status fetched = Fetch({"/none/", "/bad/"});
  EXPECT_THAT(Message(fetched), HasSubstr("/none/file.gz"));
  EXPECT_THAT(Message(fetched), HasSubstr("/bad/file.gz"));
}

TEST_F(DataFetchTest, AMirrorThatDoesNotListenIsNamed) {
  const std::string address = base_;
  base_ = "http://127.0.0.1:1";  // Needs a privilege to listen at; nobody does.
  const absl::Status fetched = Fetch({"/good/"});
  base_ = address;
  EXPECT_TRUE(absl::IsUnavailable(fetched));
  EXPECT_THAT(Message(fetched), HasSubstr("http://127.0.0.1:1/good/file.gz"));
}

// A mirror with a certificate that nobody on this machine trusts.
TEST_F(DataFetchTest, HttpsTrustsTheCertificatesThatItIsGiven) {
  fs::create_directories(folder_);
  const std::string key = folder_ / "key.pem",
                    certificate = folder_ / "own.pem";
  ASSERT_EQ(std::system(absl::StrCat(
                            "openssl req -x509 -newkey rsa:2048 -nodes -days 2 "
                            "-subj /CN=127.0.0.1 -addext "
                            "subjectAltName=IP:127.0.0.1 -keyout ",
                            key, " -out ", certificate, " 2>/dev/null")
                            .c_str()),
            0);
  httplib::SSLServer server(certificate.c_str(), key.c_str());
  server.Get("/file.gz",
             [this](const httplib::Request&, httplib::Response& response) {
               response.set_content(content_, "application/gzip");
             });
  const int port = server.bind_to_any_port("127.0.0.1");
  std::thread thread([&] { server.listen_after_bind(); });
  while (!server.is_running()) std::this_thread::yield();
  FetchOptions options;
  options.mirrors = {absl::StrCat("https://127.0.0.1:", port, "/")};
  options.files = {{.name = "file.gz", .sha256 = Sha256Hex(content_)}};
  options.folder = (folder_ / "data").string();
  EXPECT_THAT(Message(FetchFiles(options)),
              HasSubstr("file.gz: its certificate is not trusted here"));
  options.certificates = {folder_ / "of another distribution", certificate};
  EXPECT_EQ(FetchFiles(options), absl::OkStatus());
  EXPECT_EQ(ReadFile(folder_ / "data/file.gz"), content_);
  server.stop();
  thread.join();
}

TEST_F(DataFetchTest, AFileThatIsThereIsKeptWithoutADownload) {
  EXPECT_EQ(Fetch({"/good/"}), absl::OkStatus());
  EXPECT_EQ(Fetch({"/good/"}), absl::OkStatus());
  EXPECT_EQ(requests_, 1);
}

TEST_F(DataFetchTest, AnotherFileOfTheNameIsNotOverwritten) {
  WriteFile(folder_ / "file.gz", "mine");
  const absl::Status fetched = Fetch({"/good/"});
  EXPECT_TRUE(absl::IsAlreadyExists(fetched));
  EXPECT_THAT(Message(fetched), HasSubstr((folder_ / "file.gz").string()));
  EXPECT_EQ(ReadFile(folder_ / "file.gz"), "mine");
}

TEST(FetchMnistTest, FilesThatWouldHideItAreInTheWay) {
  const fs::path folder = TestFolder();
  WriteFile(folder / "t10k-labels-idx1-ubyte", "mine");
  const absl::Status plain = FetchMnist(folder.string(), nullptr);
  EXPECT_TRUE(absl::IsAlreadyExists(plain));
  EXPECT_THAT(Message(plain), HasSubstr("t10k-labels-idx1-ubyte"));
  WriteFile(folder / "STAND-IN.txt", "generated");
  const absl::Status stand_in = FetchMnist(folder.string(), nullptr);
  EXPECT_TRUE(absl::IsAlreadyExists(stand_in));
  EXPECT_THAT(Message(stand_in), HasSubstr("stand-in"));
}

// Data of configs, looked for with downloads that are only played.
class DataLocationTest : public ::testing::Test {
 protected:
  DataLocationTest() : folder_(TestFolder()) {
    mnist_.mutable_idx()->set_folder("mnist");
    options_.cache_dir = (folder_ / "cache").string();
    options_.fetch_mnist = [this](const std::string& to) {
      ++fetches_;
      if (network_) WriteMnist(to);
      return network_ ? absl::OkStatus() : absl::UnavailableError("no network");
    };
    options_.write_stand_in = [](const std::string& to) {
      WriteMnist(to);
      return absl::OkStatus();
    };
    options_.say = [this](const std::string& text) { said_ += text; };
  }
  ~DataLocationTest() override { fs::remove_all(folder_); }

  static void WriteMnist(const fs::path& folder) {
    for (const char* const name :
         {"train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz",
          "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}) {
      WriteFile(folder / name, "data");
    }
  }
  absl::StatusOr<std::string> Locate(const config::Data& data) {
    return LocateData(data, options_);
  }

  const fs::path folder_;
  config::Data mnist_;
  DataLocationOptions options_;
  bool network_ = true;
  int fetches_ = 0;
  std::string said_;
};

TEST_F(DataLocationTest, TheUsersFolderIsTakenIfTheFilesAreThere) {
  WriteMnist(folder_ / "mine" / "mnist");
  options_.data_dir = (folder_ / "mine").string();
  EXPECT_EQ(*Locate(mnist_), options_.data_dir);
  EXPECT_EQ(fetches_, 0);
}

TEST_F(DataLocationTest, TheUsersFolderWithoutTheFilesIsAnError) {
  WriteMnist(folder_ / "mine" / "mnist");
  fs::remove(folder_ / "mine" / "mnist" / "t10k-images-idx3-ubyte");
  options_.data_dir = (folder_ / "mine").string();
  const absl::Status status = Locate(mnist_).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(Message(status),
              HasSubstr("mine/mnist/t10k-images-idx3-ubyte.gz is not there"));
  EXPECT_THAT(Message(status), HasSubstr("slackline data fetch mnist"));
  EXPECT_EQ(fetches_, 0);
}

TEST_F(DataLocationTest, TheCacheIsFilledOnce) {
  EXPECT_EQ(*Locate(mnist_), options_.cache_dir);
  EXPECT_EQ(*Locate(mnist_), options_.cache_dir);
  EXPECT_EQ(fetches_, 1);
  EXPECT_EQ(said_, "");
}

TEST_F(DataLocationTest, WithoutANetworkThereIsAStandInThatSaysSo) {
  network_ = false;
  const std::string stand_in = (folder_ / "cache" / "mnist-stand-in").string();
  EXPECT_EQ(*Locate(mnist_), stand_in);
  EXPECT_TRUE(MissingDataFiles(mnist_, stand_in).empty());
  EXPECT_THAT(said_, HasSubstr("NOT MNIST"));
  EXPECT_THAT(said_, HasSubstr("no network"));
  said_.clear();
  EXPECT_EQ(*Locate(mnist_), stand_in);
  EXPECT_THAT(said_, HasSubstr("NOT MNIST")) << "every time";
  EXPECT_EQ(fetches_, 1) << "who has waited once does not wait again";
}

TEST_F(DataLocationTest, OnlyMnistHasAStandIn) {
  network_ = false;
  config::Data own;
  own.mutable_idx()->set_folder("my-digits");
  EXPECT_TRUE(absl::IsNotFound(Locate(own).status()));
  EXPECT_EQ(fetches_, 0);
}

TEST_F(DataLocationTest, MissingLibsvmFilesAreNamedWithTheirSource) {
  config::Data data;
  data.mutable_libsvm()->set_train("a9a/a9a.gz");
  data.mutable_libsvm()->set_test("a9a/a9a.t.gz");
  WriteFile(folder_ / "cache" / "a9a" / "a9a.gz", "data");
  const absl::Status status = Locate(data).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(Message(status), HasSubstr("a9a/a9a.t.gz is not there"));
  EXPECT_THAT(Message(status), HasSubstr("libsvmtools"));
  WriteFile(folder_ / "cache" / "a9a" / "a9a.t.gz", "data");
  EXPECT_EQ(*Locate(data), options_.cache_dir);
}

}  // namespace slackline::data_fetch_test
