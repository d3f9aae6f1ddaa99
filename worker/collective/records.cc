#include "worker/collective/records.h"

#include <sodium.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace slackline {
namespace {

constexpr size_t kLengthBytes = 4;
constexpr size_t kProofBytes = crypto_aead_chacha20poly1305_ietf_ABYTES;
static_assert(kLengthBytes + kProofBytes == kRecordOverheadBytes);
static_assert(crypto_aead_chacha20poly1305_ietf_KEYBYTES == Secret::kBytes);

using Nonce =
    std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES>;

Nonce NonceOf(uint64_t number) {
  Nonce nonce = {};
  for (size_t i = 0; i < sizeof(number); ++i) {
    nonce[nonce.size() - sizeof(number) + i] =
        static_cast<unsigned char>(number >> 8 * i);
  }
  return nonce;
}

unsigned char* Raw(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}
const unsigned char* Raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

}  // namespace

void RecordSealer::Seal(absl::Span<const std::byte> text, std::byte* record) {
  for (size_t i = 0; i < kLengthBytes; ++i) {
    record[i] = static_cast<std::byte>(text.size() >> 8 * i);
  }
  crypto_aead_chacha20poly1305_ietf_encrypt(
      Raw(record + kLengthBytes), nullptr, Raw(text.data()), text.size(),
      Raw(record), kLengthBytes, nullptr, NonceOf(number_++).data(),
      key_.bytes().data());
}

uint32_t RecordOpener::TextBytes(const std::byte* record) {
  uint32_t bytes = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    bytes |= std::to_integer<uint32_t>(record[i]) << 8 * i;
  }
  return bytes;
}

bool RecordOpener::Open(const std::byte* record, std::byte* text) {
  failed_ =
      failed_ || crypto_aead_chacha20poly1305_ietf_decrypt(
                     Raw(text), nullptr, nullptr, Raw(record + kLengthBytes),
                     TextBytes(record) + kProofBytes, Raw(record), kLengthBytes,
                     NonceOf(number_++).data(), key_.bytes().data()) != 0;
  return !failed_;
}

RecordReader::RecordReader(RecordOpener opener, size_t text_bytes_max)
    : opener_(std::move(opener)),
      text_bytes_max_(text_bytes_max),
      bytes_(text_bytes_max + kRecordOverheadBytes) {}

absl::Span<std::byte> RecordReader::Room() {
  return absl::MakeSpan(bytes_).subspan(end_);
}

void RecordReader::Add(size_t bytes) { end_ += bytes; }

std::optional<size_t> RecordReader::Take(absl::Span<std::byte> place) {
  if (failed_) return std::nullopt;
  if (text_begin_ == text_end_) {
    const size_t arrived = end_ - begin_;
    const std::byte* const record = bytes_.data() + begin_;
    const size_t text_bytes =
        arrived < kLengthBytes ? 0 : RecordOpener::TextBytes(record);
    failed_ = arrived >= kLengthBytes &&
              (text_bytes == 0 || text_bytes > text_bytes_max_);
    if (failed_) return std::nullopt;
    if (arrived < kLengthBytes || arrived < text_bytes + kRecordOverheadBytes) {
      // The rest of the record has room behind its front.
      if (begin_ > 0 && arrived > 0) {
        std::memmove(bytes_.data(), record, arrived);
      }
      begin_ = 0;
      end_ = arrived;
      return 0;
    }
    // What does not fit in its place waits where it has arrived.
    const bool fits = text_bytes <= place.size();
    std::byte* const kept = bytes_.data() + begin_ + kLengthBytes;
    failed_ = !opener_.Open(record, fits ? place.data() : kept);
    if (failed_) return std::nullopt;
    text_begin_ = begin_ + kLengthBytes;
    text_end_ = text_begin_ + text_bytes;
    begin_ += text_bytes + kRecordOverheadBytes;
    if (fits) {
      text_begin_ = text_end_;
      return text_bytes;
    }
  }
  const size_t bytes = std::min(place.size(), text_end_ - text_begin_);
  std::memcpy(place.data(), bytes_.data() + text_begin_, bytes);
  text_begin_ += bytes;
  return bytes;
}

}  // namespace slackline
