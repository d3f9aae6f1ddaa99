#include "common/keys/secret.h"

#include <sodium.h>

#include "common/status.h"

namespace slackline {

static_assert(crypto_generichash_BYTES == Secret::kBytes &&
              crypto_generichash_KEYBYTES == Secret::kBytes);

Secret::~Secret() { sodium_memzero(bytes_.data(), bytes_.size()); }

Secret Secret::Random() {
  // Any thread, any number of times.
  SL_CHECK(sodium_init() >= 0, "libsodium finds no random numbers");
  Bytes bytes;
  randombytes_buf(bytes.data(), bytes.size());
  return Secret(bytes);
}

bool Secret::FromHex(absl::string_view hex, Secret* secret) {
  Bytes bytes;
  size_t count = 0;
  const char* end = nullptr;
  if (hex.size() != 2 * kBytes ||
      sodium_hex2bin(bytes.data(), bytes.size(), hex.data(), hex.size(),
                     nullptr, &count, &end) != 0 ||
      count != kBytes || end != hex.data() + hex.size()) {
    return false;
  }
  *secret = Secret(bytes);
  return true;
}

std::string Secret::ToHex() const {
  std::string hex(2 * kBytes + 1, '\0');
  sodium_bin2hex(hex.data(), hex.size(), bytes_.data(), bytes_.size());
  hex.pop_back();
  return hex;
}

Secret Secret::Derive(absl::string_view purpose) const {
  Bytes bytes;
  crypto_generichash(bytes.data(), bytes.size(),
                     reinterpret_cast<const unsigned char*>(purpose.data()),
                     purpose.size(), bytes_.data(), bytes_.size());
  return Secret(bytes);
}

}  // namespace slackline
