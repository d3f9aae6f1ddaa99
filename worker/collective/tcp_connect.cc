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
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/io/descriptor.h"
#include "common/status.h"
#include "worker/collective/handshake.h"
#include "worker/collective/peer_watch.h"
#include "worker/collective/rendezvous.h"
#include "worker/collective/sealed_stream.h"

namespace slackline {
namespace {

// Who have connected and are not yet of the group, of those who have greeted
// and of those who have not; for one more of a kind the longest wait goes. So
// no flood of either kind puts out a rank before its handshake is through,
// unless so many come during it.
constexpr size_t kCandidatesMax = 64;

// Bytes of text in one record: of the ring, by measurement
// (docs/results/encryption.md); and of a stream that carries a goodbye only.
constexpr size_t kRingRecordBytes = size_t{32} << 10;
constexpr size_t kWatchRecordBytes = PeerWatch::kGoodbyeBytes;

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
  Handshake handshake;
  bool connecting = false;
};

enum class Progress { kNone, kMoved, kGone };

// Sends what the handshake says. False: the reason is in errno.
bool Answer(Candidate& candidate) {
  const std::string said = candidate.handshake.TakeSaid();
  // There is room: nothing but the handshake was sent.
  return said.empty() ||
         send(candidate.socket.get(), said.data(), said.size(),
              MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(said.size());
}

// Hears what has come, and answers; kGone has the reason in errno, 0: the other
// has closed.
Progress Hear(Candidate& candidate) {
  const absl::Span<std::byte> room = candidate.handshake.Room();
  const ssize_t count =
      recv(candidate.socket.get(), room.data(), room.size(), MSG_DONTWAIT);
  if (count < 0) {
    return errno == EAGAIN || errno == EINTR ? Progress::kNone
                                             : Progress::kGone;
  }
  errno = 0;
  if (count == 0) return Progress::kGone;
  candidate.handshake.OnHeard(static_cast<size_t>(count));
  return Answer(candidate) ? Progress::kMoved : Progress::kGone;
}

const char* RefusalText(Handshake::State state) {
  using State = Handshake::State;
  switch (state) {
    case State::kHasNoKey:
      return "it has no key, and this rank has one: give all the same";
    case State::kHasKey:
      return "it has a key, and this rank has none: give all the same";
    case State::kHasOtherKey:
      return "it has another key than this rank: give all the same";
    case State::kStranger:
    case State::kGoesOn:
    case State::kDone:
      break;
  }
  return "another process has its port";
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
  // One to which this rank connects, when poll() has something of it.
  absl::Status GoOn(Candidate& candidate);
  // One that has come; it is moved away or closed when it is done with.
  void Identify(Candidate& candidate);
  // The connection of a handshake that is done has its place.
  void Keep(Candidate& candidate, std::unique_ptr<Stream>* slot);
  absl::Status Accept();
  void BoundCandidates();
  absl::Status NoConnection(const std::vector<int>& ranks,
                            const std::string& reason) const;
  // " (rank 2: it has ...)", or empty.
  std::string RefusedText(const std::vector<int>& ranks) const;

  const GroupOptions& options_;
  const int rank_;
  const int world_size_;
  const Rendezvous rendezvous_;
  Descriptor listener_;
  std::vector<Entry> entries_;  // By rank.
  HandshakeSelf self_;
  TcpConnections connections_;
  std::vector<Candidate> outgoing_;
  std::vector<Candidate> incoming_;
  // Why ranks that have come were refused. Anybody who has read what they say
  // can say it, so it is no more than an explanation.
  std::map<int, Handshake::State> refused_;
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

std::string Connector::RefusedText(const std::vector<int>& ranks) const {
  std::string text;
  for (const int rank : ranks) {
    const auto refused = refused_.find(rank);
    if (refused == refused_.end()) continue;
    absl::StrAppend(&text, " (rank ", rank, ": ", RefusalText(refused->second),
                    ")");
  }
  return text;
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
                      .handshake = Handshake::Connect(self_, rank, purpose),
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

absl::Status Connector::GoOn(Candidate& candidate) {
  const int rank = candidate.handshake.rank();
  const auto failed = [&](const std::string& reason) {
    return NoConnection({rank}, absl::StrCat("(", reason, ")"));
  };
  if (candidate.connecting) {
    int error = 0;
    socklen_t error_bytes = sizeof(error);
    getsockopt(candidate.socket.get(), SOL_SOCKET, SO_ERROR, &error,
               &error_bytes);
    if (error != 0) return failed(std::strerror(error));
    candidate.connecting = false;
    SendAtOnce(candidate.socket);
    return Answer(candidate) ? absl::OkStatus() : failed(std::strerror(errno));
  }
  if (Hear(candidate) == Progress::kGone) {
    return failed(errno == 0 ? "it has ended, or given up"
                             : std::strerror(errno));
  }
  const Handshake::State state = candidate.handshake.state();
  if (state == Handshake::State::kGoesOn) return absl::OkStatus();
  if (state != Handshake::State::kDone) return failed(RefusalText(state));
  Keep(candidate,
       SlotOf(rank, candidate.handshake.purpose(), /*outgoing=*/true));
  return absl::OkStatus();
}

void Connector::Identify(Candidate& candidate) {
  using State = Handshake::State;
  const Progress progress = Hear(candidate);
  const Handshake& handshake = candidate.handshake;
  const State state = handshake.state();
  if (progress != Progress::kGone && state == State::kGoesOn) return;
  if (handshake.greeted() && state != State::kGoesOn && state != State::kDone) {
    refused_[handshake.rank()] = state;
  }
  if (progress == Progress::kMoved && state == State::kDone) {
    std::unique_ptr<Stream>* const slot =
        SlotOf(handshake.rank(), handshake.purpose(), /*outgoing=*/false);
    // Another one may have been faster.
    if (*slot == nullptr) return Keep(candidate, slot);
  }
  candidate.socket = Descriptor();
}

void Connector::Keep(Candidate& candidate, std::unique_ptr<Stream>* slot) {
  Descriptor socket = std::exchange(candidate.socket, Descriptor());
  Handshake& handshake = candidate.handshake;
  if (!handshake.sealer().has_value()) {
    *slot = std::make_unique<PlainStream>(std::move(socket));
    return;
  }
  *slot = std::make_unique<SealedStream>(
      std::move(socket), *std::move(handshake.sealer()),
      *std::move(handshake.opener()),
      handshake.purpose() == Purpose::kRing ? kRingRecordBytes
                                            : kWatchRecordBytes);
}

void Connector::BoundCandidates() {
  for (const bool greeted : {false, true}) {
    const auto is_one = [&](const Candidate& candidate) {
      return candidate.handshake.greeted() == greeted;
    };
    auto excess = std::count_if(incoming_.begin(), incoming_.end(), is_one) -
                  static_cast<ptrdiff_t>(kCandidatesMax);
    std::erase_if(incoming_, [&](const Candidate& candidate) {
      return is_one(candidate) && excess-- > 0;
    });
  }
}

absl::Status Connector::Accept() {
  Candidate candidate{
      .socket = Descriptor(accept4(listener_.get(), nullptr, nullptr,
                                   SOCK_NONBLOCK | SOCK_CLOEXEC)),
      .handshake = Handshake::Accept(self_)};
  if (!candidate.socket.valid()) {
    // Without room for it the next look would find it again at once.
    const bool no_room = errno == EMFILE || errno == ENFILE ||
                         errno == ENOBUFS || errno == ENOMEM;
    return no_room ? NoConnection(Missing(),
                                  absl::StrCat("(", std::strerror(errno), ")"))
                   : absl::OkStatus();
  }
  SendAtOnce(candidate.socket);
  incoming_.push_back(std::move(candidate));
  return absl::OkStatus();
}

absl::StatusOr<TcpConnections> Connector::Connect() {
  SL_RETURN_IF_ERROR(Listen());
  SL_ASSIGN_OR_RETURN(std::string own, OwnEntry());
  SL_ASSIGN_OR_RETURN(const std::vector<std::string> found,
                      rendezvous_.Exchange(std::move(own)));
  SL_RETURN_IF_ERROR(ReadEntries(found));
  self_ = {.rank = rank_,
           .numbers = {},
           .group = options_.group,
           .key = options_.key,
           .awaits = [this](int rank, Purpose purpose) {
             const std::unique_ptr<Stream>* const slot =
                 SlotOf(rank, purpose, /*outgoing=*/false);
             return slot != nullptr && *slot == nullptr;
           }};
  for (const Entry& entry : entries_) self_.numbers.push_back(entry.number);
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
                       " ms", RefusedText(missing)));
    }
    SL_RETURN_IF_ERROR(
        Annotate(rendezvous_.Ask(),
                 absl::StrCat(rendezvous_.Self(), " waited for ",
                              RanksText(missing), RefusedText(missing))));
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
      if (files[file++].revents != 0) SL_RETURN_IF_ERROR(GoOn(candidate));
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
    BoundCandidates();
  }
  return std::move(connections_);
}

}  // namespace

absl::StatusOr<TcpConnections> ConnectTcp(const GroupOptions& options) {
  return Connector(options).Connect();
}

}  // namespace slackline
