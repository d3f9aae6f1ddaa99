// The state of a coordinator in a file: as it is, and with the hashes that it
// should have.
#include <cstring>
#include <string>

#include "common/io/state_hash.h"
#include "common/status.h"
#include "server/coordinator/state/file_state_store.h"
#include "tests/fuzz/input.h"

namespace slackline::fuzz {
namespace {

constexpr size_t kNumber = sizeof(uint64_t);

// The number behind these bytes becomes their hash, which nobody guesses.
void SetHash(size_t begin, size_t bytes, std::string* file) {
  if (file->size() < begin + bytes + kNumber) return;
  const uint64_t hash = BytesHash(file->data() + begin, bytes);
  std::memcpy(file->data() + begin + bytes, &hash, kNumber);
}

std::string WithHashes(std::string file) {
  SetHash(0, 3 * kNumber, &file);
  size_t at = 4 * kNumber;
  while (file.size() >= at + 3 * kNumber) {
    uint64_t bytes = 0;
    std::memcpy(&bytes, file.data() + at, kNumber);
    const size_t content = at + 3 * kNumber;
    const bool whole = bytes <= file.size() - content;
    if (whole) {
      const uint64_t hash = BytesHash(file.data() + content, bytes);
      std::memcpy(file.data() + at + kNumber, &hash, kNumber);
    }
    SetHash(at, 2 * kNumber, &file);
    if (!whole) break;
    at = content + bytes;
  }
  return file;
}

absl::StatusOr<CoordinatorState> Read(const std::string& bytes) {
  static MemoryFile file;
  file.Write(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  absl::StatusOr<CoordinatorState> state = ReadStateFile(file.path());
  SL_CHECK(state.ok() || absl::IsDataLoss(state.status()),
           state.status().ToString());
  return state;
}

void Run(const std::string& bytes) {
  (void)Read(bytes);
  const std::string whole = WithHashes(bytes);
  const auto state = Read(whole);
  if (!state.ok()) return;
  const auto with_zeros = Read(whole + std::string(100, '\0'));
  SL_CHECK(!with_zeros.ok() || *with_zeros == *state, "zeros");
  // Zeros in place of the rest are as good as no rest, wherever that begins. A
  // batch that no store writes may end with zeros itself.
  const size_t half = whole.size() / 2;
  const auto cut = Read(whole.substr(0, half));
  const auto zeroed =
      Read(whole.substr(0, half) + std::string(whole.size() - half, '\0'));
  SL_CHECK(!cut.ok() || !zeroed.ok() || *zeroed == *cut || *zeroed == *state,
           "zeros make another state");
}

}  // namespace
}  // namespace slackline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  slackline::fuzz::Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
