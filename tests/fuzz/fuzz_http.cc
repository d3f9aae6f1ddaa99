// What anybody may send to the pages of a process: health, metrics. No key
// protects them, so this is read before anybody has proved anything.
#include <string>

#include "absl/strings/string_view.h"
#include "common/http/http_request.h"
#include "common/status.h"

namespace slackline {
namespace {

bool IsSame(const HttpRequest& a, const HttpRequest& b) {
  return a.refused == b.refused && a.path == b.path && a.head == b.head;
}

}  // namespace
}  // namespace slackline

// The first byte says where the bytes are cut: they arrive in two pieces.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace slackline;
  if (size == 0) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data + 1),
                                size - 1);
  const std::optional<HttpRequest> whole = ReadRequest(bytes);
  if (!whole.has_value()) {
    SL_CHECK(bytes.size() <= kRequestBytesMax, "a head without end is awaited");
    return 0;
  }
  SL_CHECK(whole->refused == 0 || whole->refused == 400 ||
               whole->refused == 405 || whole->refused == 413 ||
               whole->refused == 431,
           "a status that no page says");
  if (whole->refused == 0) {
    SL_CHECK(whole->path.starts_with('/') &&
                 whole->path.size() < kRequestBytesMax &&
                 whole->path.find_first_of("? \r\n") == std::string::npos,
             "what is looked up is no path");
  }
  // Who reads the first piece waits, or knows already what the whole is. A head
  // that is too long is known by where its bytes are cut.
  const std::optional<HttpRequest> piece =
      ReadRequest(bytes.substr(0, bytes.size() * data[0] / 255));
  SL_CHECK(!piece.has_value() || IsSame(*piece, *whole),
           "a request is another one when it arrives in pieces");
  return 0;
}
