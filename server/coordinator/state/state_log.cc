#include "server/coordinator/state/state_log.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/io/state_hash.h"
#include "server/coordinator/state/state_batch.h"

namespace slackline {
namespace {

struct Header {
  std::array<char, 8> magic = {'s', 'l', 's', 't', 'a', 't', 'e', '\n'};
  uint64_t format = 1;
  uint64_t whole_bytes = 0;  // Of a file with this header: never fewer.
  uint64_t hash = 0;         // Of all before.
};
uint64_t HashOf(const Header& header) {
  return BytesHash(&header, offsetof(Header, hash));
}

}  // namespace

std::string StateLogHeader(size_t batch_bytes) {
  Header header = {.whole_bytes = sizeof(Header) + batch_bytes};
  header.hash = HashOf(header);
  return {reinterpret_cast<const char*>(&header), sizeof(header)};
}

absl::StatusOr<CoordinatorState> ReadStateLog(const std::string& name,
                                              absl::string_view log) {
  size_t offset = 0;
  const auto broken = [&](const auto&... what) {
    return absl::DataLossError(absl::StrCat(
        name, ": offset ", offset, ": ", what...,
        "; the file is damaged or no state of a coordinator: remove it and go "
        "on from a checkpoint"));
  };
  const Header expected;
  Header header;
  if (log.size() >= sizeof(header))
    std::memcpy(&header, log.data(), sizeof(header));
  if (log.size() < sizeof(header) || header.magic != expected.magic)
    return broken("does not begin as the state of a coordinator does");
  if (header.format != expected.format) {
    return broken("the format is ", header.format, ", and this program reads ",
                  expected.format);
  }
  if (header.hash != HashOf(header))
    return broken("the header has not the hash that it says");
  CoordinatorState state;
  offset = sizeof(header);
  // What a crash leaves has no whole batch at its end, or zeros.
  while (log.find_first_not_of('\0', offset) != absl::string_view::npos) {
    const absl::StatusOr<size_t> bytes = ApplyBatch(log.substr(offset), &state);
    if (!bytes.ok()) return broken(bytes.status().message());
    if (*bytes == 0) break;
    offset += *bytes;
  }
  if (offset < header.whole_bytes) {
    return broken("the file has whole batches up to here, and had ",
                  header.whole_bytes, " bytes of them when it was written");
  }
  return state;
}

}  // namespace slackline
