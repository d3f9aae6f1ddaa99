#include "common/net/shm/shm_transport.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "common/net/host_id.h"
#include "common/net/shm/shm_channel.h"
#include "common/net/shm/shm_connection.h"
#include "common/net/shm/shm_listener.h"
#include "common/status.h"

namespace slackline {
namespace {

// A process that may not have all addresses that it likes has little to give
// away.
bool AddressesAreBounded() {
  rlimit limit{};
  return getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

}  // namespace

ShmTransport::ShmTransport(Transport& others, const Options& options)
    : others_(others), options_(options) {}

ShmTransport::~ShmTransport() = default;

absl::StatusOr<std::shared_ptr<ShmArena>> ShmTransport::Arena() {
  const MutexLock lock(mutex_);
  if (arena_ == nullptr) {
    const size_t bytes =
        AddressesAreBounded()
            ? std::min(options_.arena_bytes, 2 * options_.copies_bytes_max)
            : options_.arena_bytes;
    SL_ASSIGN_OR_RETURN(arena_,
                        ShmArena::Create(bytes, options_.copies_bytes_max));
  }
  return arena_;
}

std::shared_ptr<PayloadMemory> ShmTransport::memory() {
  absl::StatusOr<std::shared_ptr<ShmArena>> arena = Arena();
  if (arena.ok()) return *std::move(arena);
  return others_.memory();
}

void ShmTransport::Bury(std::unique_ptr<ShmConnection> connection) {
  const MutexLock lock(mutex_);
  buried_.push_back(std::move(connection));
  std::erase_if(buried_, [](const std::unique_ptr<ShmConnection>& buried) {
    return buried->writer.ReclaimAll() || buried->link->Gone();
  });
}

absl::StatusOr<std::unique_ptr<Listener>> ShmTransport::Listen(
    const ChannelOptions& options) {
  SL_ASSIGN_OR_RETURN(std::unique_ptr<Listener> others,
                      others_.Listen(options));
  return std::make_unique<ShmListener>(*this, std::move(others), options);
}

absl::StatusOr<std::unique_ptr<Channel>> ShmTransport::Connect(
    const PeerId& self, const std::string& endpoint,
    const ChannelOptions& options) {
  if (!IsShmEndpoint(endpoint)) return others_.Connect(self, endpoint, options);
  SL_RETURN_IF_ERROR(CheckChannelOptions(options));
  SL_ASSIGN_OR_RETURN(std::shared_ptr<ShmArena> arena, Arena());
  return std::make_unique<ShmChannel>(*this, std::move(arena), self, endpoint,
                                      options);
}

std::vector<std::string> ShmTransport::EndpointsAt(const Place& place) {
  std::vector<std::string> endpoints = others_.EndpointsAt(place);
  endpoints.push_back(UniqueShmEndpoint());
  return endpoints;
}

}  // namespace slackline
