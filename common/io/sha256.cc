#include "common/io/sha256.h"

#include <openssl/evp.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace slackline {

struct Sha256::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(evp); }
};

// OpenSSL fails here only for want of memory or without the algorithm.
Sha256::Sha256() : context_(std::make_unique<Context>()) {
  SL_CHECK(context_->evp != nullptr &&
               EVP_DigestInit_ex(context_->evp, EVP_sha256(), nullptr) == 1,
           "OpenSSL cannot start SHA-256");
}
Sha256::~Sha256() = default;

void Sha256::Update(absl::string_view bytes) {
  SL_CHECK(EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size()) == 1,
           "OpenSSL cannot continue SHA-256");
}

std::string Sha256::Finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  SL_CHECK(EVP_DigestFinal_ex(context_->evp, digest.data(), &size) == 1,
           "OpenSSL cannot end SHA-256");
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), size));
}

std::string Sha256Hex(absl::string_view bytes) {
  Sha256 hash;
  hash.Update(bytes);
  return hash.Finish();
}

absl::StatusOr<std::string> Sha256File(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_other(path, ignored)) {
    return absl::UnavailableError(
        absl::StrCat("sha256: ", path, " is a pipe or a device and no file"));
  }
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      std::fopen(path.c_str(), "rb"), &std::fclose);
  if (file == nullptr) {
    const int error_number = errno;
    const std::string message =
        absl::StrCat("sha256: open ", path, ": ",
                     std::generic_category().message(error_number));
    return error_number == ENOENT ? absl::NotFoundError(message)
                                  : absl::UnavailableError(message);
  }
  Sha256 hash;
  std::vector<char> buffer(1 << 20);
  while (const size_t bytes =
             std::fread(buffer.data(), 1, buffer.size(), file.get())) {
    hash.Update(absl::string_view(buffer.data(), bytes));
  }
  if (std::ferror(file.get()) != 0) {
    return absl::UnavailableError(absl::StrCat(
        "sha256: read ", path, ": ", std::generic_category().message(errno)));
  }
  return hash.Finish();
}

}  // namespace slackline
