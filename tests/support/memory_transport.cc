#include "tests/support/memory_transport.h"

#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/net/poller.h"
#include "common/status.h"

namespace slackline {

class MemoryTransport::Inbox {
 public:
  struct Item {
    PeerId from;
    std::shared_ptr<Inbox> answers;  // Where `from` receives.
    Message message;
  };

  void Put(Item item) {
    const MutexLock lock(mutex_);
    items_.push_back(std::move(item));
    waker_.Wake();
  }
  std::optional<Item> Take() {
    const MutexLock lock(mutex_);
    waker_.Drain();
    if (items_.empty()) return std::nullopt;
    Item item = std::move(items_.front());
    items_.pop_front();
    return item;
  }
  std::vector<int> Descriptors() const { return waker_.Descriptors(); }
  absl::Duration WaitMax() {
    const MutexLock lock(mutex_);
    return items_.empty() ? absl::InfiniteDuration() : absl::ZeroDuration();
  }

 private:
  Mutex mutex_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mutex_);
  Waker waker_;
};

namespace {

using Inbox = MemoryTransport::Inbox;

class MemoryListener : public Listener {
 public:
  explicit MemoryListener(MemoryTransport* transport)
      : transport_(transport), inbox_(std::make_shared<Inbox>()) {}

  absl::StatusOr<std::string> Bind(const std::string& endpoint) override {
    return transport_->Bind(endpoint, inbox_);
  }
  absl::StatusOr<std::optional<Incoming>> Receive() override {
    std::optional<Inbox::Item> item = inbox_->Take();
    if (!item.has_value()) return std::nullopt;
    peers_[item->from] = std::move(item->answers);
    return Incoming{.from = item->from, .message = std::move(item->message)};
  }
  absl::Status Send(const PeerId& to, const Message& message) override {
    const auto peer = peers_.find(to);
    if (peer == peers_.end()) {
      return absl::NotFoundError(
          absl::StrCat("send to ", to.ToString(), ": not heard of yet"));
    }
    peer->second->Put({.from = {}, .answers = nullptr, .message = message});
    return absl::OkStatus();
  }
  ChannelCounts counts() const override { return {}; }
  std::vector<int> Descriptors() const override {
    return inbox_->Descriptors();
  }
  absl::StatusOr<absl::Duration> WaitMax() override {
    return inbox_->WaitMax();
  }

 private:
  MemoryTransport* const transport_;
  const std::shared_ptr<Inbox> inbox_;
  std::map<PeerId, std::shared_ptr<Inbox>> peers_;
};

class MemoryChannel : public Channel {
 public:
  MemoryChannel(MemoryTransport* transport, const PeerId& self,
                std::string endpoint)
      : transport_(transport),
        self_(self),
        endpoint_(std::move(endpoint)),
        inbox_(std::make_shared<Inbox>()) {}

  absl::StatusOr<std::optional<Message>> Receive() override {
    std::optional<Inbox::Item> item = inbox_->Take();
    if (!item.has_value()) return std::nullopt;
    return std::move(item->message);
  }
  absl::Status Send(const Message& message) override {
    transport_->InboxAt(endpoint_)->Put(
        {.from = self_, .answers = inbox_, .message = message});
    return absl::OkStatus();
  }
  absl::StatusOr<std::optional<LinkState>> ReceiveLinkState() override {
    return std::nullopt;
  }
  ChannelCounts counts() const override { return {}; }
  std::vector<int> Descriptors() const override {
    return inbox_->Descriptors();
  }
  absl::StatusOr<absl::Duration> WaitMax() override {
    return inbox_->WaitMax();
  }

 private:
  MemoryTransport* const transport_;
  const PeerId self_;
  const std::string endpoint_;
  const std::shared_ptr<Inbox> inbox_;
};

}  // namespace

std::string MemoryTransport::Bind(const std::string& endpoint,
                                  std::shared_ptr<Inbox> inbox) {
  const MutexLock lock(mutex_);
  std::string bound = endpoint;
  if (absl::EndsWith(endpoint, ":0")) absl::StrAppend(&bound, ++ports_);
  std::shared_ptr<Inbox>& present = inboxes_[bound];
  while (present != nullptr) {
    std::optional<Inbox::Item> item = present->Take();
    if (!item.has_value()) break;
    inbox->Put(*std::move(item));
  }
  present = std::move(inbox);
  return bound;
}

std::shared_ptr<Inbox> MemoryTransport::InboxAt(const std::string& endpoint) {
  const MutexLock lock(mutex_);
  std::shared_ptr<Inbox>& inbox = inboxes_[endpoint];
  if (inbox == nullptr) inbox = std::make_shared<Inbox>();
  return inbox;
}

absl::StatusOr<std::unique_ptr<Listener>> MemoryTransport::Listen(
    const ChannelOptions& options) {
  SL_RETURN_IF_ERROR(CheckChannelOptions(options));
  return std::make_unique<MemoryListener>(this);
}

absl::StatusOr<std::unique_ptr<Channel>> MemoryTransport::Connect(
    const PeerId& self, const std::string& endpoint,
    const ChannelOptions& options) {
  SL_RETURN_IF_ERROR(CheckChannelOptions(options));
  return std::make_unique<MemoryChannel>(this, self, endpoint);
}

}  // namespace slackline
