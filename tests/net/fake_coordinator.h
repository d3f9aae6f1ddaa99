// A coordinator that follows a test's script.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/net/poller.h"
#include "common/net/zmq/zmq_transport.h"
#include "proto/control.pb.h"

namespace slackline {

// Answers calls in a thread of its own; with CODE_UNSPECIFIED: not this one.
class FakeCoordinator {
 public:
  using Answer = std::function<wire::CallReply(const wire::Call&)>;

  explicit FakeCoordinator(Answer answer,
                           const std::string& at = "tcp://127.0.0.1:0")
      : answer_(std::move(answer)) {
    auto listener = transport_.Listen({});
    EXPECT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
    const auto endpoint = listener_->Bind(at);
    EXPECT_TRUE(endpoint.ok()) << endpoint.status();
    endpoint_ = *endpoint;
    const std::vector<std::string> parts = absl::StrSplit(endpoint_, ':');
    EXPECT_TRUE(absl::SimpleAtoi(parts.back(), &port_));
    thread_ = std::thread([this] { Serve(); });
  }
  ~FakeCoordinator() { Stop(); }
  void Stop() {
    if (!thread_.joinable()) return;
    stop_ = true;
    waker_.Wake();
    thread_.join();
  }
  const std::string& endpoint() const { return endpoint_; }
  int port() const { return port_; }

 private:
  void Serve() {
    Poller poller;
    poller.Add(*listener_);
    poller.Add(waker_);
    while (!stop_) {
      EXPECT_TRUE(poller.Wait(absl::InfiniteDuration()).ok());
      waker_.Drain();
      while (true) {
        auto incoming = listener_->Receive();
        ASSERT_TRUE(incoming.ok()) << incoming.status();
        if (!incoming->has_value()) break;
        const wire::Call& call = (*incoming)->message.header.call();
        Message reply;
        *reply.header.mutable_call_reply() = answer_(call);
        if (reply.header.call_reply().code() == wire::CODE_UNSPECIFIED)
          continue;
        reply.header.mutable_call_reply()->set_call_id(call.call_id());
        const absl::Status sent = listener_->Send((*incoming)->from, reply);
        // Whoever asked may have gone on to another coordinator.
        EXPECT_TRUE(sent.ok() || absl::IsNotFound(sent)) << sent;
      }
    }
    poller.Remove(*listener_);
  }

  const Answer answer_;
  ZmqTransport transport_;
  std::unique_ptr<Listener> listener_;
  Waker waker_;
  std::atomic<bool> stop_ = false;
  std::string endpoint_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace slackline
