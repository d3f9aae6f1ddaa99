// What a sealed stream consists of: records that only an owner of the key can
// read, or make. Thread-compatible, without I/O.
//
// A record is 4 bytes of length (of its text, low byte first), the encrypted
// text, and 16 bytes that prove the length, the text and the place of the
// record in the stream: ChaCha20-Poly1305 (RFC 8439), whose nonce is the number
// of the record, from 0. Each direction of each connection has its own fresh
// key, so a key never meets a nonce twice, and a record that is changed, left
// out, repeated or from elsewhere does not open.
//
// Why this cipher and this library: GB/s of one core of an AMD EPYC with AES
// and AVX-512, sealed in records of 64 KiB (opened: within 2 %, but 1.67 for
// AES-256-GCM of libsodium),
//                          OpenSSL 3.0   libsodium 1.0.18
//   ChaCha20-Poly1305         3.74           1.54
//   AES-256-GCM               4.57           1.86
//   secretstream                 -           1.53
// AES-GCM gains too little for what it needs: a processor that has it, or a
// second cipher and an agreement on it that nobody in the middle can sway.
// secretstream is ChaCha20-Poly1305 with a ratchet that keys of one connection
// do not need.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/keys/secret.h"

struct evp_cipher_ctx_st;  // EVP_CIPHER_CTX

namespace slackline {

// What a record has beside its text.
constexpr size_t kRecordOverheadBytes = 4 + 16;

// Frees a context of OpenSSL, which erases its key.
struct FreeCipher {
  void operator()(evp_cipher_ctx_st* context) const;
};
using CipherContext = std::unique_ptr<evp_cipher_ctx_st, FreeCipher>;

class RecordSealer {
 public:
  explicit RecordSealer(const Secret& key);

  // The next record of the stream: text.size() + kRecordOverheadBytes at
  // `record`, which does not overlap with `text`. Less than 2 GiB.
  void Seal(absl::Span<const std::byte> text, std::byte* record);

 private:
  CipherContext cipher_;
  uint64_t number_ = 0;
};

class RecordOpener {
 public:
  explicit RecordOpener(const Secret& key);

  // Bytes of the text of the record that begins so, as yet without proof.
  static uint32_t TextBytes(const std::byte* record);
  // Opens the next record of the stream: TextBytes() at `text`, which may be
  // its place in the record. Less than 2 GiB. False, and for ever: this is not
  // that record; what is at `text` is nobody's.
  bool Open(const std::byte* record, std::byte* text);

 private:
  CipherContext cipher_;
  uint64_t number_ = 0;
  bool failed_ = false;
};

// Finds the records in bytes that arrive in pieces of any size.
class RecordReader {
 public:
  // A record has [1, text_bytes_max] bytes of text; one with another length is
  // refused before it is read. Allocates one record.
  RecordReader(RecordOpener opener, size_t text_bytes_max);

  // For bytes that arrive. Not empty after a Take() that returned 0; it is
  // valid until the next call.
  absl::Span<std::byte> Room();
  // So many have arrived there.
  void Add(size_t bytes);
  // Moves at most so much of the text to `place`, which is not empty, and says
  // how much; 0: more bytes have to arrive first. Nullopt, and for ever: what
  // has arrived is not what was sealed.
  std::optional<size_t> Take(absl::Span<std::byte> place);

 private:
  RecordOpener opener_;
  size_t text_bytes_max_;
  std::vector<std::byte> bytes_;
  // Arrived and not yet opened: [begin_, end_) of bytes_.
  size_t begin_ = 0;
  size_t end_ = 0;
  // Opened and not yet taken: [text_begin_, text_end_), before begin_.
  size_t text_begin_ = 0;
  size_t text_end_ = 0;
  bool failed_ = false;
};

}  // namespace slackline
