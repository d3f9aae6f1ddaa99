#include "worker/collective/tcp_connect.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/net/descriptor.h"
#include "common/status.h"
#include "worker/collective/rendezvous.h"

namespace slackline {
namespace {

// Who have connected and not said who they are; the longest wait goes first.
constexpr size_t kStrangersMax = 64;

enum class Purpose : uint32_t { kToAll = 1, kRing = 2 };

// What both say first when they have connected. The numbers are those of their
// entries in the store.
struct Greeting {
  static constexpr uint32_t kKind = 0x536c7463;
  uint32_t kind = kKind;
  int32_t rank = 0;
  Purpose purpose = Purpose::kToAll;
  uint32_t zero = 0;
  uint64_t from = 0;
  uint64_t to = 0;
};

struct FreeAddresses {
  void operator()(addrinfo* found) const { freeaddrinfo(found); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

// Nullptr: `error` says why.
Addresses Resolve(const std::string& host, const std::string& port, int flags,
                  std::string* error) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(
      host.c_str(), port.empty() ? nullptr : port.c_str(), &hints, &found);
  if (code != 0) *error = gai_strerror(code);
  return Addresses(code == 0 ? found : nullptr);
}

bool IsWildcard(const addrinfo& address) {
  if (address.ai_family == AF_INET) {
    const auto* const ip =
        reinterpret_cast<const sockaddr_in*>(address.ai_addr);
    return ip->sin_addr.s_addr == htonl(INADDR_ANY);
  }
  const auto* const ip = reinterpret_cast<const sockaddr_in6*>(address.ai_addr);
  return address.ai_family == AF_INET6 &&
         IN6_IS_ADDR_UNSPECIFIED(&ip->sin6_addr);
}

Descriptor NewSocket(const addrinfo& address) {
  return Descriptor(socket(address.ai_family,
                           address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC,
                           address.ai_protocol));
}

void SendAtOnce(const Descriptor& socket) {
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

// A connection that is not yet one of the group.
struct Candidate {
  Descriptor socket;
  int rank = -1;  // To which this one connects; -1: the other says who it is.
  Purpose purpose = Purpose::kToAll;
  bool connecting = false;
  Greeting greeting = {};  // Of the other.
  size_t received = 0;     // Bytes of it.
};

enum class Progress { kNone, kComplete, kGone };

// Of the greeting; kGone has the reason in errno, 0: the other has closed.
Progress Receive(Candidate& candidate) {
  auto* const bytes = reinterpret_cast<std::byte*>(&candidate.greeting);
  const ssize_t count =
      recv(candidate.socket.get(), bytes + candidate.received,
           sizeof(Greeting) - candidate.received, MSG_DONTWAIT);
  if (count < 0) {
    return errno == EAGAIN || errno == EINTR ? Progress::kNone
                                             : Progress::kGone;
  }
  errno = 0;
  if (count == 0) return Progress::kGone;
  candidate.received += static_cast<size_t>(count);
  return candidate.received == sizeof(Greeting) ? Progress::kComplete
                                                : Progress::kNone;
}

class Connector {
 public:
  explicit Connector(const GroupOptions& options)
      : options_(options),
        rank_(static_cast<int>(options.rank)),
        world_size_(options.world_size),
        rendezvous_({.rank = options.rank,
                     .world_size = options.world_size,
                     .group = options.group,
                     .time_max = options.connect_timeout,
                     .keep_trying = options.keep_trying,
                     .store = options.store}),
        entries_(static_cast<size_t>(options.world_size)) {
    connections_.to_all.resize(entries_.size());
  }

  absl::StatusOr<TcpConnections> Connect();

 private:
  // What a rank stores for the others.
  struct Entry {
    uint64_t number = 0;
    std::string port;
    std::string address;  // Numeric, or the name of one that listens elsewhere.
  };

  int Next() const { return (rank_ + 1) % world_size_; }
  int Previous() const { return (rank_ + world_size_ - 1) % world_size_; }
  // Where the connection belongs; nullptr if there is none from or to `rank`.
  std::unique_ptr<Stream>* SlotOf(int rank, Purpose purpose, bool outgoing);
  // Ranks to which a connection is missing.
  std::vector<int> Missing() const;

  absl::Status Listen();
  absl::StatusOr<std::string> OwnEntry();
  absl::Status ReadEntries(const std::vector<std::string>& found);
  absl::Status Begin(int rank, Purpose purpose);
  bool Greet(const Descriptor& socket, int rank, Purpose purpose) const;
  bool IsExpected(const Greeting& greeting) const;
  // One to which this rank connects, when poll() has something of it.
  absl::Status Continue(Candidate& candidate);
  // One that has come; it is moved away or closed when it is done with.
  void Identify(Candidate& candidate);
  absl::Status Accept();
  absl::Status NoConnection(const std::vector<int>& ranks,
                            const std::string& reason) const;

  const GroupOptions& options_;
  const int rank_;
  const int world_size_;
  const Rendezvous rendezvous_;
  Descriptor listener_;
  std::vector<Entry> entries_;  // By rank.
  TcpConnections connections_;
  std::vector<Candidate> outgoing_;
  std::vector<Candidate> incoming_;
};

absl::Status Connector::Listen() {
  if (options_.host.empty()) {
    return absl::InvalidArgumentError(
        "host: it is empty, the name or address by which the other ranks reach "
        "this machine is required");
  }
  const bool own = options_.listen.empty();
  const std::string& place = own ? options_.host : options_.listen;
  std::string error;
  const Addresses found =
      Resolve(place, absl::StrCat(options_.port), AI_NUMERICSERV, &error);
  if (found == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(own ? "host" : "listen", ": \"", place,
                     "\" is no known name or address (", error, ")"));
  }
  for (const addrinfo* i = found.get(); own && i != nullptr; i = i->ai_next) {
    if (!IsWildcard(*i)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "host: the other ranks cannot connect to the wildcard \"",
        options_.host, "\", the name or address of one interface is required"));
  }
  for (const addrinfo* i = found.get(); i != nullptr; i = i->ai_next) {
    listener_ = NewSocket(*i);
    // Connections of an earlier group may still fade there.
    const int on = 1;
    if (listener_.valid() && options_.port != 0) {
      setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    }
    if (listener_.valid() &&
        bind(listener_.get(), i->ai_addr, i->ai_addrlen) == 0 &&
        listen(listener_.get(), SOMAXCONN) == 0) {
      return absl::OkStatus();
    }
  }
  const bool taken = errno == EADDRINUSE;
  return absl::UnavailableError(absl::StrCat(
      "cannot listen on \"", place, "\"",
      options_.port == 0 ? "" : absl::StrCat(" at port ", options_.port), " (",
      std::strerror(errno),
      taken ? "); choose another worker { port }, or 0 for any, or end who has "
              "it"
            : "); check that it is an address of this machine"));
}

absl::StatusOr<std::string> Connector::OwnEntry() {
  sockaddr_storage own = {};
  socklen_t own_bytes = sizeof(own);
  char address[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&own),
                  &own_bytes) != 0 ||
      getnameinfo(reinterpret_cast<const sockaddr*>(&own), own_bytes, address,
                  sizeof(address), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return absl::UnavailableError(absl::StrCat("the port on \"", options_.host,
                                               "\" cannot be told (",
                                               std::strerror(errno), ")"));
  }
  std::random_device random;
  Entry& entry = entries_[static_cast<size_t>(rank_)];
  entry.number = uint64_t{random()} << 32 | random();
  return absl::StrCat(entry.number, " ", port, " ",
                      options_.listen.empty() ? address : options_.host);
}

absl::Status Connector::ReadEntries(const std::vector<std::string>& found) {
  for (int i = 0; i < world_size_; ++i) {
    if (i == rank_) continue;
    const auto index = static_cast<size_t>(i);
    const std::vector<std::string> words = absl::StrSplit(found[index], ' ');
    Entry& entry = entries_[index];
    if (words.size() != 3 || !absl::SimpleAtoi(words[0], &entry.number)) {
      return absl::UnavailableError(absl::StrCat(
          "rank ", i, " of ", world_size_, " stored ", found[index].size(),
          " bytes that are no address; run the same build everywhere"));
    }
    entry.port = words[1];
    entry.address = words[2];
  }
  return absl::OkStatus();
}

std::unique_ptr<Stream>* Connector::SlotOf(int rank, Purpose purpose,
                                           bool outgoing) {
  if (rank < 0 || rank >= world_size_ || rank == rank_) return nullptr;
  if (purpose == Purpose::kToAll) {
    // Each rank connects to all before it.
    return outgoing == (rank < rank_)
               ? &connections_.to_all[static_cast<size_t>(rank)]
               : nullptr;
  }
  if (purpose != Purpose::kRing) return nullptr;
  if (outgoing) return rank == Next() ? &connections_.to_next : nullptr;
  return rank == Previous() ? &connections_.from_previous : nullptr;
}

std::vector<int> Connector::Missing() const {
  std::vector<int> missing;
  for (int i = 0; i < world_size_; ++i) {
    if (i == rank_) continue;
    if (connections_.to_all[static_cast<size_t>(i)] == nullptr ||
        (i == Next() && connections_.to_next == nullptr) ||
        (i == Previous() && connections_.from_previous == nullptr)) {
      missing.push_back(i);
    }
  }
  return missing;
}

absl::Status Connector::NoConnection(const std::vector<int>& ranks,
                                     const std::string& reason) const {
  return absl::UnavailableError(absl::StrCat(
      rendezvous_.Self(), " has no connection to ", RanksText(ranks), " ",
      reason,
      "; check that all ranks still run, and that all ports are open between "
      "the machines"));
}

absl::Status Connector::Begin(int rank, Purpose purpose) {
  const Entry& entry = entries_[static_cast<size_t>(rank)];
  std::string error;
  const Addresses found =
      Resolve(entry.address, entry.port, AI_NUMERICSERV, &error);
  if (found == nullptr) {
    return NoConnection({rank}, absl::StrCat("(\"", entry.address, "\" port \"",
                                             entry.port, "\": ", error, ")"));
  }
  Candidate candidate{.socket = NewSocket(*found),
                      .rank = rank,
                      .purpose = purpose,
                      .connecting = true};
  if (!candidate.socket.valid() ||
      (connect(candidate.socket.get(), found->ai_addr, found->ai_addrlen) !=
           0 &&
       errno != EINPROGRESS)) {
    return NoConnection({rank}, absl::StrCat("(", std::strerror(errno), ")"));
  }
  outgoing_.push_back(std::move(candidate));
  return absl::OkStatus();
}

bool Connector::Greet(const Descriptor& socket, int rank,
                      Purpose purpose) const {
  const Greeting greeting{.rank = rank_,
                          .purpose = purpose,
                          .from = entries_[static_cast<size_t>(rank_)].number,
                          .to = entries_[static_cast<size_t>(rank)].number};
  // There is room: it is the first that is sent.
  return send(socket.get(), &greeting, sizeof(greeting),
              MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof(greeting);
}

bool Connector::IsExpected(const Greeting& greeting) const {
  return greeting.kind == Greeting::kKind && greeting.rank >= 0 &&
         greeting.rank < world_size_ && greeting.rank != rank_ &&
         greeting.from == entries_[static_cast<size_t>(greeting.rank)].number &&
         greeting.to == entries_[static_cast<size_t>(rank_)].number;
}

absl::Status Connector::Continue(Candidate& candidate) {
  const auto failed = [&](const std::string& reason) {
    return NoConnection({candidate.rank}, absl::StrCat("(", reason, ")"));
  };
  if (candidate.connecting) {
    int error = 0;
    socklen_t error_bytes = sizeof(error);
    getsockopt(candidate.socket.get(), SOL_SOCKET, SO_ERROR, &error,
               &error_bytes);
    if (error != 0) return failed(std::strerror(error));
    candidate.connecting = false;
    SendAtOnce(candidate.socket);
    return Greet(candidate.socket, candidate.rank, candidate.purpose)
               ? absl::OkStatus()
               : failed(std::strerror(errno));
  }
  const Progress progress = Receive(candidate);
  if (progress == Progress::kNone) return absl::OkStatus();
  if (progress == Progress::kGone) {
    return failed(errno == 0 ? "it has ended, or given up"
                             : std::strerror(errno));
  }
  if (!IsExpected(candidate.greeting) ||
      candidate.greeting.rank != candidate.rank) {
    return failed("another process has its port");
  }
  *SlotOf(candidate.rank, candidate.purpose, /*outgoing=*/true) =
      std::make_unique<PlainStream>(
          std::exchange(candidate.socket, Descriptor()));
  return absl::OkStatus();
}

void Connector::Identify(Candidate& candidate) {
  const Progress progress = Receive(candidate);
  if (progress == Progress::kNone) return;
  Descriptor socket = std::exchange(candidate.socket, Descriptor());
  const Greeting& greeting = candidate.greeting;
  if (progress == Progress::kGone || greeting.kind != Greeting::kKind) return;
  std::unique_ptr<Stream>* const slot =
      SlotOf(greeting.rank, greeting.purpose, /*outgoing=*/false);
  const bool expected =
      slot != nullptr && *slot == nullptr && IsExpected(greeting);
  // One that looks for another group sees from the answer that this is not it.
  const bool greeted =
      Greet(socket, expected ? greeting.rank : rank_, greeting.purpose);
  if (expected && greeted) {
    *slot = std::make_unique<PlainStream>(std::move(socket));
  }
}

absl::Status Connector::Accept() {
  Candidate candidate{.socket =
                          Descriptor(accept4(listener_.get(), nullptr, nullptr,
                                             SOCK_NONBLOCK | SOCK_CLOEXEC))};
  if (!candidate.socket.valid()) {
    // Without room for it the next look would find it again at once.
    const bool no_room = errno == EMFILE || errno == ENFILE ||
                         errno == ENOBUFS || errno == ENOMEM;
    return no_room ? NoConnection(Missing(),
                                  absl::StrCat("(", std::strerror(errno), ")"))
                   : absl::OkStatus();
  }
  SendAtOnce(candidate.socket);
  if (incoming_.size() == kStrangersMax) incoming_.erase(incoming_.begin());
  incoming_.push_back(std::move(candidate));
  return absl::OkStatus();
}

absl::StatusOr<TcpConnections> Connector::Connect() {
  SL_RETURN_IF_ERROR(Listen());
  SL_ASSIGN_OR_RETURN(std::string own, OwnEntry());
  SL_ASSIGN_OR_RETURN(const std::vector<std::string> found,
                      rendezvous_.Exchange(std::move(own)));
  SL_RETURN_IF_ERROR(ReadEntries(found));
  for (int i = 0; i < rank_; ++i) {
    SL_RETURN_IF_ERROR(Begin(i, Purpose::kToAll));
  }
  SL_RETURN_IF_ERROR(Begin(Next(), Purpose::kRing));

  for (std::vector<int> missing = Missing(); !missing.empty();
       missing = Missing()) {
    if (rendezvous_.Over()) {
      return NoConnection(
          missing,
          absl::StrCat("after ",
                       absl::ToInt64Milliseconds(options_.connect_timeout),
                       " ms"));
    }
    SL_RETURN_IF_ERROR(rendezvous_.Ask());
    std::vector<pollfd> files = {
        {.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    const auto poll_for = [&](const Candidate& candidate) {
      const short events = candidate.connecting ? POLLOUT : POLLIN;
      files.push_back(
          {.fd = candidate.socket.get(), .events = events, .revents = 0});
    };
    for (const Candidate& candidate : outgoing_) poll_for(candidate);
    for (const Candidate& candidate : incoming_) poll_for(candidate);
    poll(files.data(), files.size(),
         static_cast<int>(absl::ToInt64Milliseconds(rendezvous_.Slice())) + 1);

    size_t file = 1;
    for (Candidate& candidate : outgoing_) {
      if (files[file++].revents != 0) SL_RETURN_IF_ERROR(Continue(candidate));
    }
    for (Candidate& candidate : incoming_) {
      if (files[file++].revents != 0) Identify(candidate);
    }
    const auto is_done = [](const Candidate& candidate) {
      return !candidate.socket.valid();
    };
    std::erase_if(outgoing_, is_done);
    std::erase_if(incoming_, is_done);
    if (files[0].revents != 0 && !Missing().empty()) {
      SL_RETURN_IF_ERROR(Accept());
    }
  }
  return std::move(connections_);
}

}  // namespace

absl::StatusOr<TcpConnections> ConnectTcp(const GroupOptions& options) {
  return Connector(options).Connect();
}

}  // namespace slackline
