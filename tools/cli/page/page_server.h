// Serves the page of a job to browsers: at an address with a secret word in it,
// so that other users of the host can neither watch nor order.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace slackline {

// page.html, which is carried in the binary.
extern const char kPageHtml[];

class PageServer {
 public:
  struct Options {
    std::string host = "127.0.0.1";
    int port = 0;  // 0: any free one.
  };
  // Called by threads of the server, several at a time.
  struct Handlers {
    std::function<std::string()> now;      // PageState::Now(), as text.
    std::function<std::string()> history;  // PageState::History(), as text.
    // The body of an order; returns what is said to who gave it.
    std::function<absl::StatusOr<std::string>(absl::string_view)> order;
  };
  // It answers from then on. Unavailable names the address and what to do.
  static absl::StatusOr<std::unique_ptr<PageServer>> Start(
      const Options& options, Handlers handlers);
  virtual ~PageServer() = default;  // Waits for calls that are under way.

  virtual int port() const = 0;
  // "http://127.0.0.1:9200/6f1c.../".
  virtual std::string url() const = 0;
};

}  // namespace slackline
