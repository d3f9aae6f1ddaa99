#include "tools/cli/data/data_fetch.h"

#include <httplib.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <system_error>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/io/atomic_file.h"
#include "common/io/sha256.h"
#include "common/status.h"
#include "tools/cli/text.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

// Files are held in memory until they are checked; the largest has 10 MB.
constexpr size_t kFileBytesMax = 256 << 20;

struct Url {
  std::string origin;  // "https://host:port"
  std::string host;
  std::string path;  // "/folder/"
};

Url ParseUrl(const std::string& text) {
  const size_t scheme_end = text.find("://");
  SL_CHECK(scheme_end != std::string::npos, text);
  const size_t host_begin = scheme_end + 3;
  const size_t path_begin = std::min(text.find('/', host_begin), text.size());
  Url url;
  url.origin = text.substr(0, path_begin);
  url.host = text.substr(host_begin, path_begin - host_begin);
  url.host = url.host.substr(0, url.host.find(':'));
  url.path = path_begin == text.size() ? "/" : text.substr(path_begin);
  return url;
}

// The system's name lookup has no deadline that we could set, and without a
// network it may take half a minute. It goes on by itself after ours.
bool HostIsKnown(const std::string& host, absl::Duration wait_max) {
  auto known = std::make_shared<std::promise<bool>>();
  std::future<bool> answer = known->get_future();
  std::thread([host, known] {
    sigset_t all;  // Signals are for the thread that waits for them.
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    addrinfo* found = nullptr;
    const bool ok = getaddrinfo(host.c_str(), "443", nullptr, &found) == 0;
    if (ok) freeaddrinfo(found);
    known->set_value(ok);
  }).detach();
  return answer.wait_for(absl::ToChronoMilliseconds(wait_max)) ==
             std::future_status::ready &&
         answer.get();
}

absl::StatusOr<std::string> Download(const std::string& mirror,
                                     const FetchOptions::File& file,
                                     const FetchOptions& options) {
  const std::string address = absl::StrCat(mirror, file.name);
  const Url url = ParseUrl(address);
  if (!HostIsKnown(url.host, options.connect_max)) {
    return absl::UnavailableError(
        absl::StrCat(address, ": the name ", url.host, " cannot be looked up"));
  }
  httplib::Client client(url.origin);
  client.set_follow_location(true);
  if (SSL_CTX* const trust = client.ssl_context(); trust != nullptr) {
    for (const std::string& file : options.certificates)
      (void)SSL_CTX_load_verify_locations(trust, file.c_str(), nullptr);
    ERR_clear_error();
  }
  client.set_connection_timeout(std::chrono::milliseconds(
      absl::ToInt64Milliseconds(options.connect_max)));
  client.set_read_timeout(std::chrono::milliseconds(
      absl::ToInt64Milliseconds(options.silence_max)));
  std::string content;
  bool too_large = false;
  const httplib::Result result =
      client.Get(url.path, [&](const char* data, size_t size) {
        too_large = content.size() + size > kFileBytesMax;
        if (!too_large) content.append(data, size);
        return !too_large;
      });
  if (too_large) {
    return absl::UnavailableError(
        absl::StrCat(address, ": has more than ", kFileBytesMax, " bytes"));
  }
  if (result.error() == httplib::Error::SSLServerVerification) {
    return absl::UnavailableError(absl::StrCat(
        address,
        ": its certificate is not trusted here; the environment variable "
        "SSL_CERT_FILE may name a file of certificates that are"));
  }
  if (!result) {
    return absl::UnavailableError(
        absl::StrCat(address, ": ", httplib::to_string(result.error())));
  }
  if (result->status != 200) {
    return absl::UnavailableError(absl::StrCat(
        address, ": the server answered with HTTP status ", result->status));
  }
  const std::string sha256 = Sha256Hex(content);
  if (sha256 != file.sha256) {
    return absl::UnavailableError(absl::StrCat(address, ": the SHA-256 of its ",
                                               content.size(), " bytes is ",
                                               sha256, ", not ", file.sha256));
  }
  return content;
}

absl::Status FetchFile(const FetchOptions::File& file,
                       const FetchOptions& options) {
  const fs::path path = fs::path(options.folder) / file.name;
  std::error_code error;
  if (fs::exists(path, error)) {
    SL_ASSIGN_OR_RETURN(const std::string sha256, Sha256File(path.string()));
    if (sha256 != file.sha256) {
      return absl::AlreadyExistsError(absl::StrCat(
          path.string(), " is there, but is not the published file (SHA-256 ",
          sha256, "); move it away, or choose another --data-dir"));
    }
    if (options.say) options.say(absl::StrCat(path.string(), " is there"));
    return absl::OkStatus();
  }
  std::vector<std::string> failures;
  for (const std::string& mirror : options.mirrors) {
    if (options.say) {
      options.say(absl::StrCat("fetching ", mirror, file.name));
    }
    const absl::StatusOr<std::string> content = Download(mirror, file, options);
    if (!content.ok()) {
      failures.emplace_back(content.status().message());
      continue;
    }
    SL_RETURN_IF_ERROR(WriteFileAtomically(path.string(), {*content}));
    if (options.say) {
      options.say(absl::StrCat("wrote ", path.string(), ", ",
                               BytesText(static_cast<double>(content->size())),
                               ", checksum right"));
    }
    return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrCat(
      file.name, " could not be fetched: ", absl::StrJoin(failures, "; ")));
}

}  // namespace

std::vector<std::string> SystemCertificates() {
  return {"/etc/ssl/certs/ca-certificates.crt",  // Debian, Ubuntu, Arch
          "/etc/pki/tls/certs/ca-bundle.crt",    // Fedora, Red Hat
          "/etc/ssl/ca-bundle.pem",              // openSUSE
          "/etc/ssl/cert.pem"};                  // Alpine
}

FetchOptions MnistFetchOptions(const std::string& folder) {
  FetchOptions options;
  options.folder = folder;
  options.mirrors = {"https://ossci-datasets.s3.amazonaws.com/mnist/",
                     "https://storage.googleapis.com/cvdf-datasets/mnist/"};
  options.files = {
      {"train-images-idx3-ubyte.gz",
       "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"},
      {"train-labels-idx1-ubyte.gz",
       "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"},
      {"t10k-images-idx3-ubyte.gz",
       "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"},
      {"t10k-labels-idx1-ubyte.gz",
       "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"}};
  return options;
}

absl::Status FetchFiles(const FetchOptions& options) {
  std::error_code error;
  fs::create_directories(options.folder, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat(
        "folder ", options.folder, " cannot be made: ", error.message()));
  }
  for (const FetchOptions::File& file : options.files) {
    SL_RETURN_IF_ERROR(FetchFile(file, options));
  }
  return absl::OkStatus();
}

}  // namespace slackline
