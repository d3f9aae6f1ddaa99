// Records, and a stream of them over a pair of sockets of this process.
#include "worker/collective/sealed_stream.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/io/descriptor.h"
#include "common/rng.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::sealed_stream_test {

using Result = Stream::Result;

const Secret kForth({1});
const Secret kBack({2});

absl::Span<const std::byte> BytesOf(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::string Sealed(RecordSealer& sealer, const std::string& text) {
  std::string record(text.size() + kRecordOverheadBytes, '\0');
  sealer.Seal(BytesOf(text), reinterpret_cast<std::byte*>(record.data()));
  return record;
}

// What a reader makes of these bytes; nullopt: it refuses them.
std::optional<std::string> Read(const std::string& bytes, size_t piece,
                                size_t place_bytes, size_t text_bytes_max) {
  RecordReader reader{RecordOpener(kForth), text_bytes_max};
  std::string text;
  std::vector<std::byte> place(place_bytes);
  for (size_t at = 0;;) {
    const std::optional<size_t> taken = reader.Take(absl::MakeSpan(place));
    if (!taken.has_value()) return std::nullopt;
    if (*taken > 0) {
      text.append(reinterpret_cast<const char*>(place.data()), *taken);
      continue;
    }
    if (at == bytes.size()) return text;
    const absl::Span<std::byte> room = reader.Room();
    SL_CHECK(!room.empty(), "no room, and nothing to take");
    const size_t count = std::min({piece, room.size(), bytes.size() - at});
    std::memcpy(room.data(), bytes.data() + at, count);
    reader.Add(count);
    at += count;
  }
}

TEST(Records, AreReadFromPiecesOfAnySizeToPlacesOfAnySize) {
  RecordSealer sealer(kForth);
  const std::vector<std::string> texts = {"a", std::string(100, 'b'),
                                          std::string(99, 'c'), "defg"};
  std::string bytes;
  std::string all;
  for (const std::string& text : texts) {
    bytes += Sealed(sealer, text);
    all += text;
  }
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    for (const size_t place : {1, 3, 50, 100, 1000}) {
      EXPECT_EQ(Read(bytes, piece, place, 100), all)
          << "piece " << piece << ", place " << place;
    }
  }
}

TEST(Records, DoNotOpenAnywhereElse) {
  RecordSealer sealer(kForth);
  const std::string first = Sealed(sealer, "first");
  const std::string second = Sealed(sealer, "other");
  const auto read = [](const std::string& bytes) {
    return Read(bytes, bytes.size(), 100, 100);
  };
  EXPECT_EQ(read(first + second), "firstother");
  EXPECT_EQ(read(second + first), std::nullopt);           // Swapped.
  EXPECT_EQ(read(first + first), std::nullopt);            // Repeated.
  EXPECT_EQ(read(second), std::nullopt);                   // Left out.
  EXPECT_EQ(read(first + second.substr(0, 24)), "first");  // Cut off.
  RecordSealer back(kBack);
  EXPECT_EQ(read(Sealed(back, "first")), std::nullopt);  // Other direction.
  for (size_t bit = 0; bit < 8 * first.size(); ++bit) {
    std::string flipped = first;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    // One that seems to be longer is not read before more has come.
    EXPECT_THAT(read(flipped + second),
                ::testing::AnyOf(std::nullopt, std::string()))
        << "bit " << bit;
    EXPECT_EQ(read(flipped + second + std::string(200, 'x')), std::nullopt)
        << "bit " << bit;
  }
}

TEST(Records, OfNoOrTooMuchTextAreRefusedBeforeTheyAreRead) {
  RecordSealer sealer(kForth);
  EXPECT_EQ(Read(Sealed(sealer, "").substr(0, 4), 4, 10, 100), std::nullopt);
  EXPECT_EQ(
      Read(Sealed(sealer, std::string(101, 'a')).substr(0, 4), 4, 10, 100),
      std::nullopt);
  EXPECT_EQ(Read("\xff\xff\xff\xff", 4, 10, 100), std::nullopt);
}

struct Ends {
  std::unique_ptr<Stream> sender;
  std::unique_ptr<Stream> receiver;
};

Ends Connected(size_t text_bytes_max, int buffer_bytes) {
  int sockets[2];
  SL_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets) == 0,
           "socketpair");
  setsockopt(sockets[0], SOL_SOCKET, SO_SNDBUF, &buffer_bytes,
             sizeof(buffer_bytes));
  return {std::make_unique<SealedStream>(Descriptor(sockets[0]),
                                         RecordSealer(kForth),
                                         RecordOpener(kBack), text_bytes_max),
          std::make_unique<SealedStream>(Descriptor(sockets[1]),
                                         RecordSealer(kBack),
                                         RecordOpener(kForth), text_bytes_max)};
}

bool Ready(const Stream& stream, short events) {
  pollfd file = {.fd = stream.socket().get(), .events = events, .revents = 0};
  return poll(&file, 1, 0) == 1;
}

// The two ends as the ring uses them: poll() is asked only after kBlocked, and
// all that was sent arrives.
TEST(SealedStream, CarriesWhatItTakesThroughSmallBuffers) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const Ends ends = Connected(1 + rng.Below(20000), /*buffer_bytes=*/4096);
    std::vector<std::byte> sent(200000);
    for (std::byte& byte : sent) byte = static_cast<std::byte>(rng.Below(256));
    std::vector<std::byte> received(sent.size());
    size_t out = 0;
    size_t in = 0;
    while (in < sent.size()) {
      Result sending = Result::kBlocked;
      if (out < sent.size() || ends.sender->has_unsent()) {
        const size_t most = std::min<size_t>(sent.size() - out, 50000);
        // Its own copy, gone when the call returns.
        std::vector<std::byte> piece(
            sent.begin() + out,
            sent.begin() + out + (most == 0 ? 0 : 1 + rng.Below(most)));
        const Stream::Outcome outcome = ends.sender->Send(piece);
        std::fill(piece.begin(), piece.end(), std::byte{0});
        out += outcome.bytes;
        sending = outcome.result;
      }
      ASSERT_NE(sending, Result::kFailed);
      const size_t most = std::min<size_t>(received.size() - in, 30000);
      const Stream::Outcome outcome = ends.receiver->Receive(
          absl::MakeSpan(received).subspan(in, 1 + rng.Below(most)));
      in += outcome.bytes;
      ASSERT_THAT(outcome.result,
                  ::testing::AnyOf(Result::kMoved, Result::kBlocked));
      if (outcome.result == Result::kMoved || sending == Result::kMoved) {
        continue;
      }
      // It would hang here if something waited of which poll() does not tell.
      ASSERT_TRUE(Ready(*ends.receiver, POLLIN) ||
                  ((out < sent.size() || ends.sender->has_unsent()) &&
                   Ready(*ends.sender, POLLOUT)));
    }
    EXPECT_EQ(out, sent.size());
    EXPECT_FALSE(ends.sender->has_unsent());
    EXPECT_TRUE(received == sent);
  }
}

TEST(SealedStream, KeepsWhatItsSocketDoesNotTakeAndSaysSo) {
  const Ends ends = Connected(60000, /*buffer_bytes=*/4096);
  const std::vector<std::byte> data(60000, std::byte{7});
  EXPECT_EQ(ends.sender->Send(data).bytes, data.size());
  ASSERT_TRUE(ends.sender->has_unsent());
  EXPECT_EQ(ends.sender->Send(data).result, Result::kBlocked);
  std::vector<std::byte> place(data.size());
  Stream::Outcome received;
  while (received.bytes == 0) {
    received = ends.receiver->Receive(absl::MakeSpan(place));
    if (received.result == Result::kBlocked) {
      const Stream::Outcome sent = ends.sender->Send({});
      ASSERT_EQ(sent.result, Result::kMoved);
      EXPECT_EQ(sent.bytes, 0u);
    }
  }
  EXPECT_FALSE(ends.sender->has_unsent());
  EXPECT_EQ(received.bytes, data.size());
  EXPECT_EQ(ends.sender->Send({}).result, Result::kBlocked);
}

TEST(SealedStream, EndsAmidARecordOrAfterOneAndIsForgedByOtherBytes) {
  std::array<std::byte, 100> place;
  const std::array<std::byte, 10> data = {};
  {
    Ends ends = Connected(100, 1 << 16);
    ends.sender->Send(data);
    ends.sender.reset();
    EXPECT_EQ(ends.receiver->Receive(absl::MakeSpan(place)).bytes, data.size());
    EXPECT_EQ(ends.receiver->Receive(absl::MakeSpan(place)).result,
              Result::kEnded);
  }
  {
    Ends ends = Connected(100, 1 << 16);
    const char half[] = {50, 0, 0, 0, 1};
    send(ends.sender->socket().get(), half, sizeof(half), 0);
    ends.sender.reset();
    EXPECT_EQ(ends.receiver->Receive(absl::MakeSpan(place)).result,
              Result::kMoved);
    EXPECT_EQ(ends.receiver->Receive(absl::MakeSpan(place)).result,
              Result::kEnded);
  }
  const Ends ends = Connected(100, 1 << 16);
  send(ends.sender->socket().get(), "GET / HTTP/1.1", 14, 0);
  const Stream::Outcome forged = ends.receiver->Receive(absl::MakeSpan(place));
  EXPECT_EQ(forged.result, Result::kForged);
  EXPECT_THAT(forged.reason, ::testing::HasSubstr("changed under way"));
}

}  // namespace slackline::sealed_stream_test
