// Two ends of a handshake in memory, with what may go wrong between them.
#include "worker/collective/handshake.h"

#include <sodium.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::handshake_test {

using State = Handshake::State;

const Secret kKey({1, 2, 3});
const Secret kOtherKey({1, 2, 4});

HandshakeSelf SelfOf(int rank, std::optional<Secret> key) {
  return {.rank = rank,
          .numbers = {100, 101, 102},
          .group = "view 7",
          .key = std::move(key),
          .awaits = [rank](int other, Purpose purpose) {
            return other > rank && purpose == Purpose::kToAll;
          }};
}

// As much of `said` as the end wants to hear; what is left stays.
void Hear(Handshake& end, std::string* said) {
  while (!said->empty() && end.state() == State::kGoesOn) {
    const absl::Span<std::byte> room = end.Room();
    const size_t bytes = std::min(room.size(), said->size());
    std::memcpy(room.data(), said->data(), bytes);
    said->erase(0, bytes);
    end.OnHeard(bytes);
  }
}

// What was said, by the end that connects and by the other.
struct Transcript {
  std::string connecting;
  std::string accepting;
  std::string unheard;  // By the end that accepts.
};

Transcript Talk(Handshake& connecting, Handshake& accepting) {
  Transcript all;
  std::string to_accepting;
  std::string to_connecting;
  for (;;) {
    const std::string first = connecting.TakeSaid();
    const std::string second = accepting.TakeSaid();
    if (first.empty() && second.empty()) break;
    all.connecting += first;
    all.accepting += second;
    to_accepting += first;
    to_connecting += second;
    Hear(accepting, &to_accepting);
    Hear(connecting, &to_connecting);
  }
  all.unheard = to_accepting;
  return all;
}

struct Both {
  State connecting;
  State accepting;
  friend bool operator==(const Both&, const Both&) = default;
};

Both Meet(const HandshakeSelf& first, const HandshakeSelf& second) {
  Handshake connecting = Handshake::Connect(first, 0, Purpose::kToAll);
  Handshake accepting = Handshake::Accept(second);
  Talk(connecting, accepting);
  return {connecting.state(), accepting.state()};
}

TEST(Handshake, BothEndsFindOutWhatTheOthersKeyIs) {
  const auto meet = [](std::optional<Secret> first,
                       std::optional<Secret> second) {
    return Meet(SelfOf(1, std::move(first)), SelfOf(0, std::move(second)));
  };
  EXPECT_EQ(meet(kKey, kKey), (Both{State::kDone, State::kDone}));
  EXPECT_EQ(meet(std::nullopt, std::nullopt),
            (Both{State::kDone, State::kDone}));
  EXPECT_EQ(meet(kKey, kOtherKey),
            (Both{State::kHasOtherKey, State::kHasOtherKey}));
  EXPECT_EQ(meet(kKey, std::nullopt), (Both{State::kHasNoKey, State::kHasKey}));
  EXPECT_EQ(meet(std::nullopt, kKey), (Both{State::kHasKey, State::kHasNoKey}));
}

TEST(Handshake, TheKeysAreThoseOfThisConnectionAndDirection) {
  const HandshakeSelf first = SelfOf(1, kKey);
  const HandshakeSelf second = SelfOf(0, kKey);
  std::string records;
  for (int round = 0; round < 2; ++round) {
    Handshake connecting = Handshake::Connect(first, 0, Purpose::kToAll);
    Handshake accepting = Handshake::Accept(second);
    Talk(connecting, accepting);
    ASSERT_EQ(accepting.state(), State::kDone);
    EXPECT_EQ(accepting.rank(), 1);
    const std::array<std::byte, 8> text = {};
    for (Handshake* const end : {&connecting, &accepting}) {
      std::array<std::byte, text.size() + kRecordOverheadBytes> record;
      end->sealer()->Seal(text, record.data());
      std::array<std::byte, text.size()> opened;
      RecordOpener& other =
          end == &connecting ? *accepting.opener() : *connecting.opener();
      EXPECT_TRUE(other.Open(record.data(), opened.data()));
      const std::string bytes(reinterpret_cast<const char*>(record.data()),
                              record.size());
      EXPECT_EQ(records.find(bytes.substr(4)), std::string::npos);
      records += bytes;
    }
  }
}

// The connecting end, written anew from what handshake.h says.
TEST(Handshake, TheKeysAreMadeAsDescribed) {
  const HandshakeSelf self = SelfOf(0, kKey);
  Handshake accepting = Handshake::Accept(self);
  const Greeting greeting = {.kind = Greeting::kKeyed,
                             .rank = 1,
                             .purpose = Purpose::kToAll,
                             .from = 101,
                             .to = 100};
  const Secret scalar({5, 6, 7});
  std::string point(32, '\0');
  crypto_scalarmult_base(reinterpret_cast<unsigned char*>(point.data()),
                         scalar.bytes().data());
  const std::string said =
      std::string(reinterpret_cast<const char*>(&greeting), 32) + point;
  std::string unheard = said;
  Hear(accepting, &unheard);
  const std::string answer = accepting.TakeSaid();
  ASSERT_EQ(answer.size(), 32 + 32 + 20);
  std::string common(32, '\0');
  ASSERT_EQ(crypto_scalarmult(
                reinterpret_cast<unsigned char*>(common.data()),
                scalar.bytes().data(),
                reinterpret_cast<const unsigned char*>(answer.data() + 32)),
            0);
  const auto key_of = [&](const std::string& end) {
    return kKey.Derive("slackline ranks 1" + end + said + answer.substr(0, 64) +
                       common + "view 7");
  };
  std::byte none;
  EXPECT_TRUE(
      RecordOpener(key_of("a"))
          .Open(reinterpret_cast<const std::byte*>(answer.data() + 64), &none));
  std::string proof(20, '\0');
  RecordSealer(key_of("c"))
      .Seal({}, reinterpret_cast<std::byte*>(proof.data()));
  Hear(accepting, &proof);
  EXPECT_EQ(accepting.state(), State::kDone);
}

TEST(Handshake, ARecordedHandshakeIsWorthless) {
  const HandshakeSelf first = SelfOf(1, kKey);
  const HandshakeSelf second = SelfOf(0, kKey);
  Handshake connecting = Handshake::Connect(first, 0, Purpose::kToAll);
  Handshake accepting = Handshake::Accept(second);
  Transcript recorded = Talk(connecting, accepting);
  ASSERT_EQ(connecting.state(), State::kDone);

  Handshake again = Handshake::Accept(second);
  Hear(again, &recorded.connecting);
  EXPECT_EQ(again.state(), State::kHasOtherKey);
  Handshake other = Handshake::Connect(first, 0, Purpose::kToAll);
  Hear(other, &recorded.accepting);
  EXPECT_EQ(other.state(), State::kHasOtherKey);
}

TEST(Handshake, WhatComesBackToItsSpeakerIsAStrangers) {
  for (const auto& key :
       {std::optional<Secret>(kKey), std::optional<Secret>()}) {
    HandshakeSelf self = SelfOf(1, key);
    self.awaits = [](int, Purpose) { return true; };
    Handshake connecting = Handshake::Connect(self, 0, Purpose::kToAll);
    std::string said = connecting.TakeSaid();
    Handshake accepting = Handshake::Accept(self);
    std::string copy = said;
    Hear(accepting, &copy);
    EXPECT_EQ(accepting.state(), State::kStranger);
    EXPECT_FALSE(accepting.greeted());
    Hear(connecting, &said);
    EXPECT_EQ(connecting.state(), State::kStranger);
  }
}

TEST(Handshake, EachBitOfIt) {
  const HandshakeSelf first = SelfOf(1, kKey);
  const HandshakeSelf second = SelfOf(0, kKey);
  // Of the end that connects, which says its proof later than its point.
  for (size_t bit = 0; bit < 8 * Handshake::kSaidBytesMax; ++bit) {
    Handshake connecting = Handshake::Connect(first, 0, Purpose::kToAll);
    Handshake accepting = Handshake::Accept(second);
    const auto flip = [&](std::string* said, size_t begin) {
      const size_t byte = bit / 8 - begin;
      if (bit / 8 < begin || byte >= said->size()) return;
      (*said)[byte] = static_cast<char>((*said)[byte] ^ (1 << bit % 8));
    };
    std::string said = connecting.TakeSaid();
    const size_t first_bytes = said.size();
    flip(&said, 0);
    Hear(accepting, &said);
    said = accepting.TakeSaid();
    Hear(connecting, &said);
    said = connecting.TakeSaid();
    flip(&said, first_bytes);
    Hear(accepting, &said);
    // X25519 ignores the last bit of a point; the keys are derived from it.
    EXPECT_NE(accepting.state(), State::kDone) << "bit " << bit;
  }
  // Of the other.
  for (size_t bit = 0; bit < 8 * Handshake::kSaidBytesMax; ++bit) {
    Handshake connecting = Handshake::Connect(first, 0, Purpose::kToAll);
    Handshake accepting = Handshake::Accept(second);
    std::string said = connecting.TakeSaid();
    Hear(accepting, &said);
    said = accepting.TakeSaid();
    ASSERT_EQ(said.size(), Handshake::kSaidBytesMax);
    said[bit / 8] = static_cast<char>(said[bit / 8] ^ (1 << bit % 8));
    Hear(connecting, &said);
    EXPECT_NE(connecting.state(), State::kDone) << "bit " << bit;
  }
}

TEST(Handshake, AnotherRankNumberGroupOrPurposeIsRefused) {
  const HandshakeSelf second = SelfOf(0, kKey);
  HandshakeSelf first = SelfOf(1, kKey);
  first.numbers[0] = 7;
  EXPECT_EQ(Meet(first, second), (Both{State::kStranger, State::kStranger}));
  first = SelfOf(1, kKey);
  first.numbers[1] = 7;
  EXPECT_EQ(Meet(first, second), (Both{State::kStranger, State::kStranger}));
  first = SelfOf(1, kKey);
  first.group = "view 8";
  EXPECT_EQ(Meet(first, second),
            (Both{State::kHasOtherKey, State::kHasOtherKey}));
  first = SelfOf(1, kKey);
  Handshake connecting = Handshake::Connect(first, 0, Purpose::kRing);
  Handshake accepting = Handshake::Accept(second);
  Talk(connecting, accepting);
  EXPECT_EQ(accepting.state(), State::kStranger);
  EXPECT_EQ(connecting.state(), State::kStranger);
}

TEST(Handshake, APointThatLeavesNoSecretIsAStrangers) {
  const HandshakeSelf first = SelfOf(1, kKey);
  const HandshakeSelf second = SelfOf(0, kKey);
  Handshake connecting = Handshake::Connect(first, 0, Purpose::kToAll);
  std::string said = connecting.TakeSaid();
  std::fill(said.begin() + sizeof(Greeting), said.end(), '\0');
  Handshake accepting = Handshake::Accept(second);
  Hear(accepting, &said);
  EXPECT_EQ(accepting.state(), State::kStranger);
}

TEST(Handshake, NothingOfWhatFollowsIsHeard) {
  const HandshakeSelf first = SelfOf(1, kKey);
  const HandshakeSelf second = SelfOf(0, kKey);
  Handshake connecting = Handshake::Connect(first, 0, Purpose::kToAll);
  Handshake accepting = Handshake::Accept(second);
  std::string said = connecting.TakeSaid();
  Hear(accepting, &said);
  said = accepting.TakeSaid() + "more";
  Hear(connecting, &said);
  EXPECT_EQ(said, "more");
  said = connecting.TakeSaid() + "more";
  Hear(accepting, &said);
  EXPECT_EQ(said, "more");
  EXPECT_EQ(accepting.state(), State::kDone);
}

}  // namespace slackline::handshake_test
