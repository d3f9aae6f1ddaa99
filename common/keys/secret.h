// 32 bytes that nobody else is to know: what keys are made of.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace slackline {

class Secret {
 public:
  static constexpr size_t kBytes = 32;
  using Bytes = std::array<uint8_t, kBytes>;

  explicit Secret(const Bytes& bytes) : bytes_(bytes) {}
  // Overwrites the bytes, so that a core file does not have them.
  ~Secret();
  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;

  // From the kernel's random numbers.
  static Secret Random();
  // False if it is not 64 hexadecimal digits; `*secret` is unchanged then.
  static bool FromHex(absl::string_view hex, Secret* secret);
  std::string ToHex() const;

  // Another secret that `purpose` makes of this one: keyed BLAKE2b-256 (RFC
  // 7693). Nobody gets from it to this one, or to that of another purpose.
  Secret Derive(absl::string_view purpose) const;

  const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

}  // namespace slackline
