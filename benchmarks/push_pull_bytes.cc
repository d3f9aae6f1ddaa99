#include "benchmarks/push_pull_bytes.h"

#include "absl/strings/str_cat.h"
#include "common/rng.h"

namespace slackline::bench {
namespace {

std::vector<uint64_t> RandomWords(const PushPullSetup& setup, int owner) {
  Rng rng = Rng(setup.seed).Fork(absl::StrCat("owner ", owner));
  std::vector<uint64_t> words(
      static_cast<size_t>((setup.bytes / setup.servers + 7) / 8));
  for (uint64_t& word : words) word = rng.Next();
  return words;
}

}  // namespace

std::vector<uint64_t> GradientOf(const PushPullSetup& setup, int worker) {
  return RandomWords(setup, worker);
}

std::vector<uint64_t> ParametersOf(const PushPullSetup& setup, int server) {
  return RandomWords(setup, -1 - server);
}

}  // namespace slackline::bench
