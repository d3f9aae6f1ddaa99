#include "common/http/http_request.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace slackline {
namespace {

bool IsVersion(absl::string_view text) {
  return text == "HTTP/1.1" || text == "HTTP/1.0";
}

bool IsPath(absl::string_view text) {
  if (text.empty() || text.front() != '/') return false;
  for (const unsigned char c : text) {
    if (!absl::ascii_isgraph(c)) return false;
  }
  return true;
}

// A field that says that a body follows, which nothing here takes.
bool AnnouncesBody(absl::string_view field) {
  const std::vector<absl::string_view> halves =
      absl::StrSplit(field, absl::MaxSplits(':', 1));
  if (halves.size() != 2) return false;
  if (absl::EqualsIgnoreCase(halves[0], "transfer-encoding")) return true;
  return absl::EqualsIgnoreCase(halves[0], "content-length") &&
         absl::StripAsciiWhitespace(halves[1]) != "0";
}

}  // namespace

std::optional<HttpRequest> ReadRequest(absl::string_view bytes) {
  const size_t end = bytes.find("\r\n\r\n");
  if (end == absl::string_view::npos && bytes.size() <= kRequestBytesMax)
    return std::nullopt;
  if (end == absl::string_view::npos || end + 4 > kRequestBytesMax)
    return HttpRequest{.refused = 431};
  const std::vector<absl::string_view> lines =
      absl::StrSplit(bytes.substr(0, end), "\r\n");
  const std::vector<absl::string_view> words = absl::StrSplit(lines[0], ' ');
  if (words.size() != 3 || words[0].empty() || !IsPath(words[1]) ||
      !IsVersion(words[2])) {
    return HttpRequest{.refused = 400};
  }
  for (size_t i = 1; i < lines.size(); ++i) {
    if (AnnouncesBody(lines[i])) return HttpRequest{.refused = 413};
  }
  HttpRequest request = {
      .path = std::string(words[1].substr(0, words[1].find('?'))),
      .head = words[0] == "HEAD"};
  if (words[0] != "GET" && !request.head) request.refused = 405;
  return request;
}

std::string StatusLine(int status) {
  const char* const text = status == 200   ? " OK"
                           : status == 400 ? " Bad Request"
                           : status == 404 ? " Not Found"
                           : status == 405 ? " Method Not Allowed"
                           : status == 413 ? " Content Too Large"
                           : status == 431 ? " Request Header Fields Too Large"
                           : status == 503 ? " Service Unavailable"
                                           : "";
  return absl::StrCat(status, text);
}

}  // namespace slackline
