// Random numbers whose sequence is ours to fix: the same on every machine,
// compiler and standard library. Not for cryptography.
#pragma once

#include <cstdint>
#include <string_view>

namespace slackline {

// SplitMix64's output function (Steele, Lea, Flood, "Fast splittable
// pseudorandom number generators", 2014): a bijection that scrambles 64 bits.
constexpr uint64_t Mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// SplitMix64. Copyable; a copy continues with the same numbers.
class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(Mix64(seed)) {}

  uint64_t Next() {
    const uint64_t value = Mix64(state_);
    state_ += 0x9e3779b97f4a7c15ULL;
    return value;
  }
  // Uniform in [0, bound), without bias worth mentioning (2^-64). bound >= 1.
  uint64_t Below(uint64_t bound) {
    return static_cast<uint64_t>(
        (static_cast<unsigned __int128>(Next()) * bound) >> 64);
  }
  int64_t Between(int64_t low, int64_t high) {  // Both inclusive.
    return low +
           static_cast<int64_t>(Below(static_cast<uint64_t>(high - low) + 1));
  }
  double Uniform() {
    return static_cast<double>(Next() >> 11) * 0x1p-53;
  }  // [0, 1)
  bool Chance(double probability) { return Uniform() < probability; }
  double Normal();  // Mean 0, standard deviation 1 (Box-Muller).

  // An independent generator that depends on this one's seed and on `name`,
  // not on how many numbers were drawn elsewhere.
  Rng Fork(std::string_view name) const {
    uint64_t hash = state_;
    for (const char c : name)
      hash = Mix64(hash ^ static_cast<unsigned char>(c));
    return Rng(hash);
  }

 private:
  uint64_t state_;
};

}  // namespace slackline
