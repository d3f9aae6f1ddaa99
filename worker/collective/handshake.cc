#include "worker/collective/handshake.h"

#include <sodium.h>

#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace slackline {
namespace {

static_assert(crypto_scalarmult_BYTES == Secret::kBytes &&
              crypto_scalarmult_SCALARBYTES == Secret::kBytes);

template <typename Value>
absl::string_view BytesOf(const Value& value) {
  static_assert(std::is_trivially_copyable_v<Value>);
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

}  // namespace

Handshake::Handshake(const HandshakeSelf& self, bool connects)
    : self_(&self), connects_(connects) {
  static_assert(sizeof(heard_) >= sizeof(Greeting));
}

Handshake Handshake::Connect(const HandshakeSelf& self, int rank,
                             Purpose purpose) {
  Handshake handshake(self, /*connects=*/true);
  handshake.rank_ = rank;
  handshake.purpose_ = purpose;
  handshake.SayGreeting(self.numbers[static_cast<size_t>(rank)]);
  if (self.key.has_value()) handshake.SayPoint();
  return handshake;
}

Handshake Handshake::Accept(const HandshakeSelf& self) {
  return Handshake(self, /*connects=*/false);
}

size_t Handshake::AwaitedBytes() const {
  switch (awaits_) {
    case Awaits::kGreeting:
      return sizeof(Greeting);
    case Awaits::kPoint:
      return sizeof(Point);
    case Awaits::kPointAndProof:
      return sizeof(Point) + kRecordOverheadBytes;
    case Awaits::kProof:
      return kRecordOverheadBytes;
  }
  return 0;
}

absl::Span<std::byte> Handshake::Room() {
  return absl::MakeSpan(heard_).subspan(heard_bytes_,
                                        AwaitedBytes() - heard_bytes_);
}

Handshake::State Handshake::OnHeard(size_t bytes) {
  heard_bytes_ += bytes;
  if (state_ != State::kGoesOn || heard_bytes_ < AwaitedBytes()) return state_;
  heard_bytes_ = 0;
  const std::byte* const heard = heard_.data();
  switch (awaits_) {
    case Awaits::kGreeting:
      std::memcpy(&greeting_, heard, sizeof(greeting_));
      state_ = OnGreeting();
      break;
    case Awaits::kPoint:
      std::memcpy(point_.data(), heard, sizeof(point_));
      SayGreeting(greeting_.from);
      SayPoint();
      if (OnPoint()) {
        SayProof();
        awaits_ = Awaits::kProof;
      } else {
        state_ = State::kStranger;
      }
      break;
    case Awaits::kPointAndProof:
      std::memcpy(point_.data(), heard, sizeof(point_));
      if (OnPoint()) {
        // The other is to find out as well if the keys differ.
        SayProof();
        state_ = OnProof(heard + sizeof(point_));
      } else {
        state_ = State::kStranger;
      }
      break;
    case Awaits::kProof:
      state_ = OnProof(heard);
      break;
  }
  return state_;
}

void Handshake::SayGreeting(uint64_t to) {
  own_greeting_ = {
      .kind = self_->key.has_value() ? Greeting::kKeyed : Greeting::kPlain,
      .rank = self_->rank,
      .purpose = purpose_,
      .from = self_->numbers[static_cast<size_t>(self_->rank)],
      .to = to};
  absl::StrAppend(&said_, BytesOf(own_greeting_));
}

void Handshake::SayPoint() {
  own_scalar_ = Secret::Random();
  crypto_scalarmult_base(own_point_.data(), own_scalar_->bytes().data());
  absl::StrAppend(&said_, BytesOf(own_point_));
}

Handshake::State Handshake::OnGreeting() {
  const auto number = [&](int rank) {
    return self_->numbers[static_cast<size_t>(rank)];
  };
  const Greeting& greeting = greeting_;
  const int world_size = static_cast<int>(self_->numbers.size());
  const bool known_kind =
      greeting.kind == Greeting::kPlain || greeting.kind == Greeting::kKeyed;
  greeted_ = known_kind && greeting.rank >= 0 && greeting.rank < world_size &&
             greeting.rank != self_->rank && greeting.zero == 0 &&
             greeting.from == number(greeting.rank) &&
             greeting.to == number(self_->rank) &&
             (connects_ ? greeting.rank == rank_ && greeting.purpose == purpose_
                        : self_->awaits(greeting.rank, greeting.purpose));
  if (!connects_ && known_kind) purpose_ = greeting.purpose;
  if (!greeted_) {
    // One that looks for another group sees from the answer that this is not
    // it: these numbers are of no rank that it looks for.
    if (!connects_ && known_kind) SayGreeting(number(self_->rank));
    return State::kStranger;
  }
  rank_ = greeting.rank;
  const bool keyed = self_->key.has_value();
  if ((greeting.kind == Greeting::kKeyed) != keyed) {
    // The other finds out from the kind of the answer.
    if (!connects_) SayGreeting(greeting.from);
    return keyed ? State::kHasNoKey : State::kHasKey;
  }
  if (keyed) {
    awaits_ = connects_ ? Awaits::kPointAndProof : Awaits::kPoint;
    return State::kGoesOn;
  }
  if (!connects_) SayGreeting(greeting.from);
  return State::kDone;
}

bool Handshake::OnPoint() {
  Secret::Bytes common;
  if (crypto_scalarmult(common.data(), own_scalar_->bytes().data(),
                        point_.data()) != 0) {
    return false;
  }
  // All but the last have a fixed length, so no two of these texts are equal.
  const auto said_by = [&](bool connecting_end) {
    return connecting_end == connects_
               ? absl::StrCat(BytesOf(own_greeting_), BytesOf(own_point_))
               : absl::StrCat(BytesOf(greeting_), BytesOf(point_));
  };
  const auto key_of = [&](bool sent_by_connecting_end) {
    std::string purpose = absl::StrCat(
        "slackline ranks 1", sent_by_connecting_end ? "c" : "a", said_by(true),
        said_by(false), BytesOf(common), self_->group);
    const Secret key = self_->key->Derive(purpose);
    sodium_memzero(purpose.data(), purpose.size());
    return key;
  };
  sealer_.emplace(key_of(connects_));
  opener_.emplace(key_of(!connects_));
  sodium_memzero(common.data(), common.size());
  own_scalar_.reset();
  return true;
}

void Handshake::SayProof() {
  std::array<std::byte, kRecordOverheadBytes> proof;
  sealer_->Seal({}, proof.data());
  absl::StrAppend(&said_, BytesOf(proof));
}

Handshake::State Handshake::OnProof(const std::byte* proof) {
  std::byte none;
  return RecordOpener::TextBytes(proof) == 0 && opener_->Open(proof, &none)
             ? State::kDone
             : State::kHasOtherKey;
}

}  // namespace slackline
