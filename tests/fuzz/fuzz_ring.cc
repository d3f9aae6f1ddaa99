// What is said to a rank of an all-reduce over tcp: greetings, points and
// proofs, and the records that follow. Both ends are ours, with somebody in the
// middle, whom the input plays. He cannot make a record, so whatever he does,
// an end with a key takes nothing but what the other has said, in its order.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"
#include "tests/fuzz/input.h"
#include "worker/collective/handshake.h"
#include "worker/collective/records.h"

namespace slackline {
namespace {

using State = Handshake::State;

constexpr size_t kTextBytesMax = 40;

// Bytes on their way to one end.
class Way {
 public:
  void Say(const std::string& bytes) {
    said_ += bytes;
    coming_ += bytes;
  }
  // Takes what is to happen to the bytes from the input; returns how many of
  // them are to arrive.
  size_t Meddle(uint8_t what, fuzz::Input& input) {
    switch (what & 3) {
      case 1: {
        const size_t at = input.Byte();
        if (at < coming_.size()) {
          coming_[at] = static_cast<char>(coming_[at] ^ (1 << (what >> 5)));
        }
        return 0;
      }
      case 2: {
        const auto chunk = input.Chunk();
        coming_.insert(coming_.begin(), chunk.begin(), chunk.end());
        return 0;
      }
      case 3:
        coming_.erase(0, input.Byte());
        return 0;
      default:
        return std::min<size_t>(input.Byte(), coming_.size());
    }
  }
  // The first bytes arrive, as many as there is room for.
  size_t Arrive(size_t bytes, absl::Span<std::byte> room) {
    bytes = std::min(bytes, room.size());
    if (bytes == 0) return 0;
    std::memcpy(room.data(), coming_.data(), bytes);
    heard_ += coming_.substr(0, bytes);
    coming_.erase(0, bytes);
    return bytes;
  }
  bool IsGenuine() const { return said_.starts_with(heard_); }

 private:
  std::string said_;
  std::string coming_;
  std::string heard_;
};

HandshakeSelf SelfOf(int rank, bool keyed) {
  HandshakeSelf self = {.rank = rank,
                        .numbers = {0x1111, 0x2222, 0x3333},
                        .group = "group",
                        .key = std::nullopt,
                        .awaits = [](int other, Purpose purpose) {
                          return other == 1 && purpose == Purpose::kRing;
                        }};
  if (keyed) self.key = Secret({1, 2, 3});
  return self;
}

void Records(fuzz::Input& input, RecordSealer& sealer, RecordOpener opener) {
  RecordReader reader(std::move(opener), kTextBytesMax);
  Way way;
  std::string sealed;
  std::string taken;
  while (!input.empty()) {
    const uint8_t what = input.Byte();
    if ((what & 4) != 0) {
      const std::string text(1 + (what >> 3), static_cast<char>(sealed.size()));
      std::string record(text.size() + kRecordOverheadBytes, '\0');
      sealer.Seal(
          {reinterpret_cast<const std::byte*>(text.data()), text.size()},
          reinterpret_cast<std::byte*>(record.data()));
      sealed += text;
      way.Say(record);
      continue;
    }
    size_t bytes = way.Meddle(what, input);
    std::vector<std::byte> place(1 + (what >> 3));
    for (;;) {
      const auto some = reader.Take(absl::MakeSpan(place));
      if (!some.has_value()) {
        SL_CHECK(!way.IsGenuine(), "a genuine record is refused");
        return;
      }
      taken.append(reinterpret_cast<const char*>(place.data()), *some);
      SL_CHECK(sealed.starts_with(taken), "a forged record is taken");
      if (*some > 0) continue;
      SL_CHECK(!reader.Room().empty(), "no room, and nothing to take");
      const size_t arrived = way.Arrive(bytes, reader.Room());
      if (arrived == 0) break;
      reader.Add(arrived);
      bytes -= arrived;
    }
  }
}

}  // namespace
}  // namespace slackline

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace slackline;
  fuzz::Input input(data, size);
  const uint8_t keyed = input.Byte();
  const HandshakeSelf selves[2] = {SelfOf(0, (keyed & 1) == 0),
                                   SelfOf(1, (keyed & 2) == 0)};
  std::array<Handshake, 2> ends = {
      Handshake::Accept(selves[0]),
      Handshake::Connect(selves[1], 0, Purpose::kRing)};
  std::array<Way, 2> ways;  // To that end.
  ways[0].Say(ends[1].TakeSaid());
  const auto goes_on = [&](size_t end) {
    return ends[end].state() == State::kGoesOn;
  };
  while (!input.empty() && (goes_on(0) || goes_on(1))) {
    const uint8_t what = input.Byte();
    const size_t to = (what >> 2) & 1;
    size_t bytes = ways[to].Meddle(what, input);
    while (goes_on(to)) {
      SL_CHECK(!ends[to].Room().empty(), "it goes on, and hears nothing");
      const size_t arrived = ways[to].Arrive(bytes, ends[to].Room());
      if (arrived == 0) break;
      bytes -= arrived;
      ends[to].OnHeard(arrived);
      const std::string said = ends[to].TakeSaid();
      SL_CHECK(said.size() <= Handshake::kSaidBytesMax, "it says too much");
      ways[1 - to].Say(said);
    }
  }
  for (const size_t end : {0, 1}) {
    if (ends[end].state() != State::kDone) continue;
    SL_CHECK(ends[end].rank() == static_cast<int>(1 - end),
             "another rank than the one that is awaited");
    SL_CHECK(!ends[end].sealer().has_value() || ways[end].IsGenuine(),
             "a handshake that was changed is done");
  }
  if (ends[0].state() != State::kDone || ends[1].state() != State::kDone ||
      !ends[0].sealer().has_value()) {
    return 0;
  }
  const size_t to = input.Byte() & 1;
  Records(input, *ends[1 - to].sealer(), *std::move(ends[to].opener()));
  return 0;
}
