#include "worker/collective/records.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "common/status.h"

namespace slackline {
namespace {

constexpr size_t kLengthBytes = 4;
constexpr size_t kProofBytes = 16;
constexpr size_t kNonceBytes = 12;
static_assert(kLengthBytes + kProofBytes == kRecordOverheadBytes);

using Nonce = std::array<unsigned char, kNonceBytes>;

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

// What fails here fails for want of memory or of the cipher.
void Must(int result) {
  SL_CHECK(result == 1, "OpenSSL cannot encrypt with ChaCha20-Poly1305");
}

CipherContext NewCipher(const Secret& key, bool seals) {
  CipherContext cipher(EVP_CIPHER_CTX_new());
  SL_CHECK(cipher != nullptr, "out of memory");
  static_assert(Secret::kBytes == 32);  // As of EVP_chacha20_poly1305().
  Must(EVP_CipherInit_ex(cipher.get(), EVP_chacha20_poly1305(), nullptr,
                         key.bytes().data(), nullptr, seals ? 1 : 0));
  return cipher;
}

// Begins a record, and takes its length as a part of the proof; then seals or
// opens the text.
void Run(EVP_CIPHER_CTX* cipher, uint64_t number, const std::byte* length,
         const std::byte* in, size_t bytes, std::byte* out) {
  int done = 0;
  Must(EVP_CipherInit_ex(cipher, nullptr, nullptr, nullptr,
                         NonceOf(number).data(), /*enc=*/-1));
  Must(EVP_CipherUpdate(cipher, nullptr, &done, Raw(length), kLengthBytes));
  if (bytes == 0) return;
  Must(EVP_CipherUpdate(cipher, Raw(out), &done, Raw(in),
                        static_cast<int>(bytes)));
}

}  // namespace

void FreeCipher::operator()(evp_cipher_ctx_st* context) const {
  EVP_CIPHER_CTX_free(context);
}

RecordSealer::RecordSealer(const Secret& key)
    : cipher_(NewCipher(key, /*seals=*/true)) {}

void RecordSealer::Seal(absl::Span<const std::byte> text, std::byte* record) {
  for (size_t i = 0; i < kLengthBytes; ++i) {
    record[i] = static_cast<std::byte>(text.size() >> 8 * i);
  }
  std::byte* const sealed = record + kLengthBytes;
  std::byte* const proof = sealed + text.size();
  Run(cipher_.get(), number_++, record, text.data(), text.size(), sealed);
  int done = 0;
  Must(EVP_CipherFinal_ex(cipher_.get(), Raw(proof), &done));
  Must(EVP_CIPHER_CTX_ctrl(cipher_.get(), EVP_CTRL_AEAD_GET_TAG, kProofBytes,
                           proof));
}

RecordOpener::RecordOpener(const Secret& key)
    : cipher_(NewCipher(key, /*seals=*/false)) {}

uint32_t RecordOpener::TextBytes(const std::byte* record) {
  uint32_t bytes = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    bytes |= std::to_integer<uint32_t>(record[i]) << 8 * i;
  }
  return bytes;
}

bool RecordOpener::Open(const std::byte* record, std::byte* text) {
  if (failed_) return false;
  const size_t bytes = TextBytes(record);
  const std::byte* const sealed = record + kLengthBytes;
  // OpenSSL wants a copy that it might change.
  std::array<std::byte, kProofBytes> proof;
  std::memcpy(proof.data(), sealed + bytes, proof.size());
  Run(cipher_.get(), number_++, record, sealed, bytes, text);
  Must(EVP_CIPHER_CTX_ctrl(cipher_.get(), EVP_CTRL_AEAD_SET_TAG, kProofBytes,
                           proof.data()));
  int done = 0;
  std::byte none;
  failed_ = EVP_CipherFinal_ex(cipher_.get(), Raw(&none), &done) != 1;
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
