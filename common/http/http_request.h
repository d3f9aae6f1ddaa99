// The head of an HTTP request, as a probe or a browser sends it: what is read
// of it, and what is refused. A pure function; the bytes come from anybody.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace slackline {

// Of the request line and all header fields together.
inline constexpr size_t kRequestBytesMax = 8 << 10;

struct HttpRequest {
  // Why it is not answered as asked, as an HTTP status; 0: it is.
  int refused = 0;
  std::string path = {};  // Of GET or HEAD, without what follows '?'.
  bool head = false;      // No body is wanted.
};

// What the bytes that have arrived so far are; nullopt: the head has not ended
// yet. 400: they are no HTTP/1.x. 405: another method than GET and HEAD. 413:
// there is a body. 431: the head is longer than kRequestBytesMax.
std::optional<HttpRequest> ReadRequest(absl::string_view bytes);

// "200 OK"; of a status that nobody here uses: the number alone.
std::string StatusLine(int status);

}  // namespace slackline
