#include "common/ids.h"

#include <array>
#include <charconv>

namespace slackline {
namespace {
constexpr std::array<const char*, 6> kKindNames = {
    "worker", "server", "observer", "coordinator", "shard", "sum"};
}  // namespace

std::string PeerId::ToString() const {
  return std::string(kKindNames[static_cast<int>(kind)]) + "." +
         std::to_string(index) + "." + std::to_string(instance);
}

bool PeerId::FromString(const std::string& text, PeerId* peer) {
  const size_t first = text.find('.');
  const size_t second =
      first == std::string::npos ? first : text.find('.', first + 1);
  if (second == std::string::npos) return false;
  PeerId parsed;
  bool known = false;
  for (size_t i = 0; i < kKindNames.size(); ++i) {
    if (text.compare(0, first, kKindNames[i]) == 0) {
      parsed.kind = static_cast<Kind>(i);
      known = true;
    }
  }
  const char* const end = text.data() + text.size();
  const auto index = std::from_chars(text.data() + first + 1,
                                     text.data() + second, parsed.index);
  const auto instance =
      std::from_chars(text.data() + second + 1, end, parsed.instance);
  if (!known || index.ec != std::errc() || index.ptr != text.data() + second ||
      instance.ec != std::errc() || instance.ptr != end) {
    return false;
  }
  *peer = parsed;
  return true;
}

}  // namespace slackline
