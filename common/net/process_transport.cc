#include "common/net/process_transport.h"

namespace slackline {
namespace {

ZmqTransport::Options NetworkOptions(
    const std::optional<Credentials>& credentials) {
  ZmqTransport::Options options;
  options.credentials = credentials;
  return options;
}

}  // namespace

ProcessTransport::ProcessTransport(
    const std::optional<Credentials>& credentials)
    : network_(NetworkOptions(credentials)), all_(network_) {}

}  // namespace slackline
