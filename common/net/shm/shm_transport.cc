#include "common/net/shm/shm_transport.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/net/shm/shm_socket.h"
#include "common/net/shm/shm_stream.h"
#include "common/status.h"

namespace slackline {
namespace {

constexpr char kScheme[] = "shm://@";
constexpr size_t kSchemeLength = sizeof(kScheme) - 1;

// A message in a row of this many malformed ones is left for the next call.
constexpr int kMalformedPerCall = 64;
constexpr int kEventsPerCall = 64;
// Of those who have connected and said nothing yet.
constexpr size_t kGreetingMax = 1024;
// Of wakes that are taken in one go: there is one at a time, of a peer that
// keeps to the rules.
constexpr int kPacketsPerCall = 64;
// Of a peer. Memory that is only mapped costs nothing.
constexpr uint64_t kPeerArenaMax = uint64_t{1} << 40;
constexpr absl::Duration kRetryMin = absl::Milliseconds(20);
constexpr absl::Duration kRetryMax = absl::Seconds(1);

// What a channel and then a listener say first.
constexpr uint64_t kVersion = 0x736c6b73686d3031;  // "slkshm01"
struct Hello {
  uint64_t version;
  uint64_t arena_bytes;
  std::array<char, 64> peer;  // Text of a PeerId, ended by a zero.
};
struct Welcome {
  uint64_t version;
  uint64_t arena_bytes;
};
// Or the listener says this, and ends the connection.
constexpr uint64_t kRefusal = 0x736c6b72656675;  // "slkrefu"
struct Refusal {
  uint64_t version;
  std::array<char, 240> why;  // Ended by a zero.
};
// Who ends so many connections in a row without a word will end the next one.
constexpr int kUnwelcomeMax = 3;

// Of one connection, made by the channel.
struct Control {
  ShmStream to_listener;
  ShmStream to_channel;
};

absl::Time MonotonicNow() {
  return absl::UnixEpoch() +
         absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

template <typename T>
absl::Span<const std::byte> BytesOf(const T& value) {
  return {reinterpret_cast<const std::byte*>(&value), sizeof(value)};
}

// The other end of a connection. Its socket is open as long as somebody has
// bytes of its arena: that the socket is closed tells the other end that nobody
// has.
class Link : public ShmPeer {
 public:
  Link(Descriptor socket, SharedMemory control)
      : socket_(std::move(socket)), control_(std::move(control)) {}

  // Before the first payload is received.
  void SetArena(SharedMemory arena) { arena_ = std::move(arena); }

  absl::Span<const std::byte> arena() const override {
    return {arena_.data(), arena_.size()};
  }
  Control* control() const {
    return reinterpret_cast<Control*>(control_.data());
  }
  const Descriptor& socket() const { return socket_; }

  void Wake() const {
    const std::byte wake{1};
    // If it takes none, it has some, or is gone.
    static_cast<void>(SendPacket(socket_, {&wake, 1}, {}));
  }
  // Takes the wakes that have come. False: the other end is gone.
  bool TakeWakes() const {
    std::array<std::byte, 8> bytes;
    for (int i = 0; i < kPacketsPerCall; ++i) {
      const Packet packet = ReceivePacket(socket_, absl::MakeSpan(bytes));
      if (packet.kind != PacketKind::kPacket)
        return packet.kind != PacketKind::kGone;
    }
    return true;
  }
  bool Gone() const {
    pollfd entry = {.fd = socket_.get(), .events = 0, .revents = 0};
    return poll(&entry, 1, 0) > 0 && (entry.revents & (POLLHUP | POLLERR)) != 0;
  }

 private:
  const Descriptor socket_;
  const SharedMemory control_;
  SharedMemory arena_;
};

// Which descriptors have news: one descriptor for all of them.
class EventQueue {
 public:
  EventQueue() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    SL_CHECK(epoll_.valid(),
             absl::StrCat("epoll_create1: ", std::strerror(errno)));
  }
  int descriptor() const { return epoll_.get(); }

  // Unavailable: there are too many.
  absl::Status Add(const Descriptor& descriptor, uint64_t key) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLRDHUP;
    event.data.u64 = key;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor.get(), &event) == 0)
      return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("epoll_ctl: ", std::strerror(errno)));
  }
  void Remove(const Descriptor& descriptor) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, descriptor.get(), nullptr);
  }
  // Of whom there are news. Does not wait. There may be more.
  std::vector<uint64_t> Take() {
    std::array<epoll_event, kEventsPerCall> events;
    const int count =
        epoll_wait(epoll_.get(), events.data(), kEventsPerCall, 0);
    std::vector<uint64_t> keys;
    for (int i = 0; i < count; ++i) {
      const uint64_t key = events[i].data.u64;  // It may not be aligned.
      keys.push_back(key);
    }
    return keys;
  }

 private:
  const Descriptor epoll_;
};

// A process that may not have all addresses that it likes has little to give
// away.
bool AddressesAreBounded() {
  rlimit limit{};
  return getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

bool IsShmEndpoint(const std::string& endpoint) {
  return absl::StartsWith(endpoint, kScheme);
}

}  // namespace

// ---- Connection -------------------------------------------------------------

struct ShmTransport::Connection {
  Connection(std::shared_ptr<Link> with, ShmStream* out, ShmStream* in,
             std::shared_ptr<ShmArena> arena, const ChannelOptions& options)
      : link(std::move(with)),
        writer(out, std::move(arena), options),
        reader(in, link, options) {}

  // False: the queue is full.
  bool Send(const Message& message) {
    const bool sent = writer.Send(message);
    if (writer.TakeWake()) link->Wake();
    return sent;
  }
  // Writes what waits.
  void Flush() {
    if (!writer.flushed()) writer.Flush().IgnoreError();
    if (writer.TakeWake()) link->Wake();
  }
  // The next message, or nullopt. `*over`: there will be none any more.
  std::optional<ShmReader::Incoming> Receive(int64_t* malformed, bool* over) {
    absl::StatusOr<std::optional<ShmReader::Incoming>> incoming =
        reader.Receive();
    if (reader.TakeWake()) link->Wake();
    if (!incoming.ok() || writer.broken()) {
      ++*malformed;
      *over = true;
      return std::nullopt;
    }
    *over = !incoming->has_value() && !reader.HasInput() &&
            (reader.ended() || gone);
    return *std::move(incoming);
  }
  // Receive() has something to say.
  bool HasNews() const {
    return reader.HasInput() || reader.ended() || gone || writer.broken();
  }
  // Before the thread sleeps. False: there is something to do.
  bool Sleep() {
    writer.Reclaim();
    Flush();
    const bool written = writer.flushed() || writer.Sleep();
    return reader.Sleep() && written && !HasNews();
  }
  void End() {
    writer.End();
    link->Wake();
  }

  const std::shared_ptr<Link> link;
  ShmWriter writer;
  ShmReader reader;
  bool gone = false;  // The other end; what it has sent is still there.
};

namespace {

using Connection = ShmTransport::Connection;

// ---- Listener ---------------------------------------------------------------

class ShmListener : public Listener {
 public:
  ShmListener(ShmTransport& transport, std::unique_ptr<Listener> others,
              const ChannelOptions& options)
      : transport_(transport), others_(std::move(others)), options_(options) {
    reading_ = options_;
    reading_.message_bytes_max =
        std::min(options.message_bytes_max, options.unread_bytes_max);
  }
  ~ShmListener() override {
    for (auto& [key, peer] : peers_) End(peer.get());
  }

  absl::StatusOr<std::string> Bind(const std::string& endpoint) override;
  absl::StatusOr<std::optional<Incoming>> Receive() override;
  absl::Status Send(const PeerId& to, const Message& message) override;
  ChannelCounts counts() const override;
  std::vector<int> Descriptors() const override;
  absl::StatusOr<absl::Duration> WaitMax() override;

 private:
  struct Peer {
    PeerId id;
    uint64_t key = 0;
    std::unique_ptr<Connection> connection;
    // It is in one of the lists below.
    bool listed = false;
  };

  std::optional<Incoming> ReceiveShared();
  std::optional<Incoming> ReceiveFrom(Peer* peer, bool* over);
  void TakeEvents();
  void Accept();
  // False: whoever it is, it has not said who in the right way.
  bool Greet(Descriptor* socket, uint64_t key);
  void End(Peer* peer);

  ShmTransport& transport_;
  const std::unique_ptr<Listener> others_;
  const ChannelOptions options_;
  ChannelOptions reading_;
  EventQueue events_;
  Descriptor listening_;
  // Nobody is accepted before; InfiniteFuture: whoever comes is.
  absl::Time accept_again_ = absl::InfiniteFuture();
  uint64_t next_key_ = 1;  // 0: listening_.
  std::map<uint64_t, Descriptor> greeting_;
  std::map<uint64_t, std::unique_ptr<Peer>> peers_;
  std::map<PeerId, Peer*> routes_;
  // Who may have sent something; then who has nothing more at the moment, and
  // has not been told to wake this thread.
  std::vector<Peer*> busy_;
  std::vector<Peer*> quiet_;
  size_t turn_ = 0;  // In busy_.
  bool others_turn_ = false;
  ChannelCounts counts_;
  TurnedAway turned_away_;
};

absl::StatusOr<std::string> ShmListener::Bind(const std::string& endpoint) {
  if (!IsShmEndpoint(endpoint)) return others_->Bind(endpoint);
  if (listening_.valid()) {
    return absl::InvalidArgumentError(
        absl::StrCat("bind to ", endpoint, ": has an shm endpoint already"));
  }
  SL_RETURN_IF_ERROR(transport_.Arena().status());
  SL_ASSIGN_OR_RETURN(listening_, ListenShm(endpoint.substr(kSchemeLength)));
  SL_RETURN_IF_ERROR(events_.Add(listening_, 0));
  return endpoint;
}

ChannelCounts ShmListener::counts() const {
  ChannelCounts counts = others_->counts();
  counts.malformed += counts_.malformed;
  counts.dropped += counts_.dropped;
  if (turned_away_.count == 0) return counts;
  // Of two last ones, that of another user is told: it is on this host.
  counts.refused.set_other_user(counts.refused.other_user() +
                                turned_away_.count);
  counts.last_refused =
      absl::StrCat("a process of user ", turned_away_.last_uid,
                   " of this host: memory is shared with processes of user ",
                   geteuid(), " only");
  return counts;
}

std::vector<int> ShmListener::Descriptors() const {
  std::vector<int> descriptors = others_->Descriptors();
  descriptors.push_back(events_.descriptor());
  return descriptors;
}

absl::StatusOr<absl::Duration> ShmListener::WaitMax() {
  SL_ASSIGN_OR_RETURN(const absl::Duration may_wait, others_->WaitMax());
  for (Peer* const peer : quiet_) {
    peer->listed = !peer->connection->Sleep();
    if (peer->listed) busy_.push_back(peer);
  }
  quiet_.clear();
  if (!busy_.empty()) return absl::ZeroDuration();
  if (accept_again_ == absl::InfiniteFuture()) return may_wait;
  return std::min(
      may_wait, std::max(accept_again_ - MonotonicNow(), absl::ZeroDuration()));
}

absl::StatusOr<std::optional<Listener::Incoming>> ShmListener::Receive() {
  // Both kinds take turns.
  for (int kind = 0; kind < 2; ++kind) {
    others_turn_ = !others_turn_;
    if (!others_turn_) {
      std::optional<Incoming> incoming = ReceiveShared();
      if (incoming.has_value()) return incoming;
      continue;
    }
    SL_ASSIGN_OR_RETURN(std::optional<Incoming> incoming, others_->Receive());
    if (!incoming.has_value()) continue;
    if (!routes_.empty()) routes_.erase(incoming->from);
    return incoming;
  }
  return std::nullopt;
}

std::optional<Listener::Incoming> ShmListener::ReceiveShared() {
  for (bool looked = false;;) {
    if (busy_.empty() && !std::exchange(looked, true)) {
      TakeEvents();
      std::erase_if(quiet_, [&](Peer* peer) {
        if (!peer->connection->HasNews()) return false;
        busy_.push_back(peer);
        return true;
      });
    }
    if (busy_.empty()) return std::nullopt;
    turn_ = turn_ < busy_.size() ? turn_ : 0;
    Peer* const peer = busy_[turn_];
    bool over = false;
    std::optional<Incoming> incoming = ReceiveFrom(peer, &over);
    if (incoming.has_value()) {
      ++turn_;
      return incoming;
    }
    busy_.erase(busy_.begin() + static_cast<ptrdiff_t>(turn_));
    if (over) {
      End(peer);
      peers_.erase(peer->key);
    } else {
      quiet_.push_back(peer);
    }
  }
}

std::optional<Listener::Incoming> ShmListener::ReceiveFrom(Peer* peer,
                                                           bool* over) {
  for (int i = 0; i < kMalformedPerCall; ++i) {
    std::optional<ShmReader::Incoming> incoming =
        peer->connection->Receive(&counts_.malformed, over);
    if (!incoming.has_value()) return std::nullopt;
    if (incoming->fault.empty()) {
      routes_[peer->id] = peer;
      return Incoming{peer->id, std::move(incoming->message)};
    }
    ++counts_.malformed;
    Message reply;
    reply.header.mutable_error_reply()->set_error(
        absl::StrCat("malformed message: ", incoming->fault));
    // Whoever does not read misses it.
    static_cast<void>(peer->connection->Send(reply));
  }
  return std::nullopt;
}

void ShmListener::TakeEvents() {
  if (accept_again_ != absl::InfiniteFuture() &&
      accept_again_ <= MonotonicNow() && events_.Add(listening_, 0).ok()) {
    accept_again_ = absl::InfiniteFuture();
  }
  for (const uint64_t key : events_.Take()) {
    if (key == 0) {
      Accept();
      continue;
    }
    const auto greeting = greeting_.find(key);
    if (greeting != greeting_.end()) {
      Descriptor socket = std::move(greeting->second);
      const bool waits = Greet(&socket, key);
      if (waits) {
        greeting->second = std::move(socket);
      } else {
        greeting_.erase(greeting);
      }
      continue;
    }
    const auto peer = peers_.find(key);
    if (peer == peers_.end()) continue;
    Connection& connection = *peer->second->connection;
    if (!connection.link->TakeWakes()) {
      connection.gone = true;
      // It would be news for ever.
      events_.Remove(connection.link->socket());
    }
    connection.Flush();
    if (!std::exchange(peer->second->listed, true))
      busy_.push_back(peer->second.get());
  }
}

void ShmListener::Accept() {
  for (int i = 0; i < kEventsPerCall; ++i) {
    absl::StatusOr<Descriptor> socket = AcceptShm(listening_, &turned_away_);
    if (!socket.ok()) {
      // Who waits would be news for ever.
      events_.Remove(listening_);
      accept_again_ = MonotonicNow() + kRetryMax;
      return;
    }
    if (!socket->valid()) return;
    const uint64_t key = next_key_++;
    if (!events_.Add(*socket, key).ok()) continue;
    if (greeting_.size() >= kGreetingMax) greeting_.erase(greeting_.begin());
    greeting_.emplace(key, *std::move(socket));
  }
}

bool ShmListener::Greet(Descriptor* socket, uint64_t key) {
  Hello hello{};
  Packet packet = ReceivePacket(
      *socket, {reinterpret_cast<std::byte*>(&hello), sizeof(hello)});
  if (packet.kind == PacketKind::kNone) return true;
  if (packet.kind == PacketKind::kGone) return false;
  ++counts_.malformed;  // Until it is found to be none.
  PeerId id;
  if (packet.bytes != sizeof(hello) || packet.descriptors.size() != 2 ||
      hello.version != kVersion || hello.arena_bytes > kPeerArenaMax ||
      hello.peer.back() != 0 || !PeerId::FromString(hello.peer.data(), &id) ||
      id.ToString() != hello.peer.data() ||
      peers_.size() >= static_cast<size_t>(options_.peers_max)) {
    return false;
  }
  absl::StatusOr<SharedMemory> control =
      SharedMemory::Map(std::move(packet.descriptors[0]), sizeof(Control),
                        SharedMemory::Peers::kWrite);
  absl::StatusOr<SharedMemory> arena =
      SharedMemory::Map(std::move(packet.descriptors[1]), hello.arena_bytes,
                        SharedMemory::Peers::kRead);
  const absl::StatusOr<std::shared_ptr<ShmArena>> own = transport_.Arena();
  for (const absl::Status& status :
       {control.status(), arena.status(), own.status()}) {
    if (status.ok()) continue;
    // What it has sent is wrong, or there is no room for what is right.
    if (!absl::IsUnavailable(status)) return false;
    --counts_.malformed;
    Refusal refusal = {.version = kRefusal, .why = {}};
    const std::string why(status.message());
    why.copy(refusal.why.data(), refusal.why.size() - 1);
    static_cast<void>(SendPacket(*socket, BytesOf(refusal), {}));
    return false;
  }
  const Welcome welcome = {.version = kVersion,
                           .arena_bytes = (*own)->memory().size()};
  const int descriptor = (*own)->memory().descriptor();
  if (!SendPacket(*socket, BytesOf(welcome), {&descriptor, 1})) return false;
  --counts_.malformed;
  auto link = std::make_shared<Link>(std::move(*socket), *std::move(control));
  link->SetArena(*std::move(arena));
  auto peer = std::make_unique<Peer>();
  peer->id = id;
  peer->key = key;
  peer->connection = std::make_unique<Connection>(
      link, &link->control()->to_channel, &link->control()->to_listener, *own,
      reading_);
  peer->listed = true;
  busy_.push_back(peer.get());
  peers_.emplace(key, std::move(peer));
  return false;
}

void ShmListener::End(Peer* peer) {
  const auto route = routes_.find(peer->id);
  if (route != routes_.end() && route->second == peer) routes_.erase(route);
  if (!peer->connection->gone) events_.Remove(peer->connection->link->socket());
  peer->connection->End();
  transport_.Bury(std::move(peer->connection));
}

absl::Status ShmListener::Send(const PeerId& to, const Message& message) {
  const auto route = routes_.find(to);
  if (route == routes_.end()) return others_->Send(to, message);
  SL_RETURN_IF_ERROR(CheckBounds(message, options_));
  Peer* const peer = route->second;
  Connection& connection = *peer->connection;
  if (connection.gone) {
    ++counts_.dropped;
    return absl::NotFoundError(absl::StrCat("send to ", to.ToString(),
                                            ": it has ended; message dropped"));
  }
  const bool sent = connection.Send(message);
  // Before this thread sleeps the peer is told to wake it when there is room.
  if (!connection.writer.flushed() && !std::exchange(peer->listed, true))
    quiet_.push_back(peer);
  if (sent) return absl::OkStatus();
  ++counts_.dropped;
  return absl::ResourceExhaustedError(absl::StrCat(
      "send to ", to.ToString(), ": its queue is full (",
      options_.send_queue_max,
      " messages), it reads too slowly or not at all; message dropped"));
}

// ---- Channel ----------------------------------------------------------------

class ShmChannel : public Channel {
 public:
  ShmChannel(ShmTransport& transport, std::shared_ptr<ShmArena> arena,
             const PeerId& self, const std::string& endpoint,
             const ChannelOptions& options)
      : transport_(transport),
        arena_(std::move(arena)),
        self_(self.ToString()),
        endpoint_(endpoint),
        options_(options) {
    Connect(MonotonicNow());
  }
  ~ShmChannel() override;

  absl::StatusOr<std::optional<Message>> Receive() override;
  absl::Status Send(const Message& message) override;
  absl::StatusOr<std::optional<LinkState>> ReceiveLinkState() override {
    return std::exchange(link_state_, std::nullopt);
  }
  ChannelCounts counts() const override { return counts_; }
  std::vector<int> Descriptors() const override {
    return {events_.descriptor()};
  }
  absl::StatusOr<absl::Duration> WaitMax() override;

 private:
  void Connect(absl::Time now);
  absl::Status TryToConnect();
  // Takes in what the socket has to say.
  void TakeEvents();
  bool TakeWelcome();
  void Refuse(absl::string_view why);
  std::optional<Message> ReceiveMessage();
  void Disconnect();

  ShmTransport& transport_;
  const std::shared_ptr<ShmArena> arena_;
  const std::string self_;
  const std::string endpoint_;
  const ChannelOptions options_;
  EventQueue events_;
  std::unique_ptr<Connection> connection_;
  bool welcome_ = false;  // The other end has answered.
  int unwelcome_ = 0;     // Connections in a row that ended without an answer.
  absl::Status refused_;  // For good.
  std::deque<Message> waiting_;  // While there is no connection.
  absl::Time next_try_ = absl::InfinitePast();
  absl::Duration retry_ = kRetryMin;
  std::optional<LinkState> link_state_;
  ChannelCounts counts_;
};

ShmChannel::~ShmChannel() {
  if (connection_ == nullptr) return;
  // What is in the ring is read whoever has ended.
  const absl::Time until = MonotonicNow() + options_.linger;
  while (!connection_->writer.flushed() && !connection_->gone &&
         connection_->writer.Sleep() && MonotonicNow() < until) {
    pollfd entry = {.fd = connection_->link->socket().get(),
                    .events = POLLIN,
                    .revents = 0};
    const int wait_ms =
        static_cast<int>(absl::ToInt64Milliseconds(until - MonotonicNow()) + 1);
    poll(&entry, 1, wait_ms);
    connection_->gone = !connection_->link->TakeWakes();
    connection_->Flush();
  }
  Disconnect();
}

void ShmChannel::Refuse(absl::string_view why) {
  refused_ = absl::FailedPreconditionError(
      absl::StrCat("no shared memory with ", endpoint_, ": ", why));
}

void ShmChannel::Connect(absl::Time now) {
  if (connection_ != nullptr || now < next_try_ || !refused_.ok()) return;
  const absl::Status tried = TryToConnect();
  if (tried.ok()) return;
  if (absl::IsNotFound(tried)) link_state_ = LinkState::kGone;
  next_try_ = now + retry_;
  retry_ = std::min(retry_ * 2, kRetryMax);
}

absl::Status ShmChannel::TryToConnect() {
  SL_ASSIGN_OR_RETURN(Descriptor socket,
                      ConnectShm(endpoint_.substr(kSchemeLength)));
  SL_ASSIGN_OR_RETURN(
      SharedMemory control,
      SharedMemory::Create(sizeof(Control), SharedMemory::Peers::kWrite));
  SL_RETURN_IF_ERROR(events_.Add(socket, 0));
  Hello hello = {
      .version = kVersion, .arena_bytes = arena_->memory().size(), .peer = {}};
  SL_CHECK(self_.size() < hello.peer.size(), "the text of a peer id is short");
  std::copy(self_.begin(), self_.end(), hello.peer.begin());
  const std::array<int, 2> descriptors = {control.descriptor(),
                                          arena_->memory().descriptor()};
  if (!SendPacket(socket, BytesOf(hello), descriptors))
    return absl::UnavailableError("the other end is gone");
  auto link = std::make_shared<Link>(std::move(socket), std::move(control));
  connection_ = std::make_unique<Connection>(
      link, &link->control()->to_listener, &link->control()->to_channel, arena_,
      options_);
  welcome_ = false;
  for (const Message& message : std::exchange(waiting_, {}))
    static_cast<void>(connection_->Send(message));
  return absl::OkStatus();
}

void ShmChannel::TakeEvents() {
  if (!welcome_ && !TakeWelcome()) return;
  connection_->gone = connection_->gone || !connection_->link->TakeWakes();
  connection_->Flush();
}

bool ShmChannel::TakeWelcome() {
  Refusal refusal{};
  Packet packet =
      ReceivePacket(connection_->link->socket(),
                    {reinterpret_cast<std::byte*>(&refusal), sizeof(refusal)});
  if (packet.kind == PacketKind::kNone) return false;
  Welcome welcome{};
  std::memcpy(&welcome, &refusal, sizeof(welcome));
  // It does not know who this is.
  connection_->gone = packet.kind == PacketKind::kGone;
  if (connection_->gone && ++unwelcome_ == kUnwelcomeMax) {
    Refuse(
        "its process ends every connection at once; it may be of another user, "
        "or in another user namespace");
  }
  if (packet.bytes == sizeof(refusal) && refusal.version == kRefusal) {
    refusal.why.back() = 0;
    Refuse(absl::StrCat("its process says: ", refusal.why.data()));
    Disconnect();
    return false;
  }
  if (packet.kind != PacketKind::kPacket || packet.bytes != sizeof(welcome) ||
      packet.descriptors.size() != 1 || welcome.version != kVersion ||
      welcome.arena_bytes > kPeerArenaMax) {
    counts_.malformed += packet.kind == PacketKind::kPacket;
    Disconnect();
    return false;
  }
  absl::StatusOr<SharedMemory> arena =
      SharedMemory::Map(std::move(packet.descriptors[0]), welcome.arena_bytes,
                        SharedMemory::Peers::kRead);
  if (!arena.ok()) {
    Refuse(arena.status().message());
    Disconnect();
    return false;
  }
  connection_->link->SetArena(*std::move(arena));
  welcome_ = true;
  unwelcome_ = 0;
  retry_ = kRetryMin;
  link_state_ = LinkState::kUp;
  return true;
}

void ShmChannel::Disconnect() {
  events_.Remove(connection_->link->socket());
  waiting_ = connection_->writer.TakeWaiting();
  connection_->End();
  transport_.Bury(std::move(connection_));
  next_try_ = MonotonicNow() + retry_;
  retry_ = std::min(retry_ * 2, kRetryMax);
}

absl::StatusOr<std::optional<Message>> ShmChannel::Receive() {
  if (connection_ == nullptr) Connect(MonotonicNow());
  if (!refused_.ok()) return refused_;
  if (connection_ == nullptr) return std::nullopt;
  std::optional<Message> message = ReceiveMessage();
  if (message.has_value() || connection_ == nullptr) return message;
  TakeEvents();
  if (!refused_.ok()) return refused_;
  return connection_ == nullptr ? std::nullopt : ReceiveMessage();
}

std::optional<Message> ShmChannel::ReceiveMessage() {
  if (!welcome_) return std::nullopt;
  for (int i = 0; i < kMalformedPerCall; ++i) {
    bool over = false;
    std::optional<ShmReader::Incoming> incoming =
        connection_->Receive(&counts_.malformed, &over);
    if (over) Disconnect();
    if (!incoming.has_value()) return std::nullopt;
    if (incoming->fault.empty()) return std::move(incoming->message);
    ++counts_.malformed;
  }
  return std::nullopt;
}

absl::Status ShmChannel::Send(const Message& message) {
  SL_RETURN_IF_ERROR(CheckBounds(message, options_));
  SL_RETURN_IF_ERROR(refused_);
  if (connection_ != nullptr && connection_->Send(message))
    return absl::OkStatus();
  if (connection_ == nullptr &&
      waiting_.size() < static_cast<size_t>(options_.send_queue_max)) {
    waiting_.push_back(message);
    return absl::OkStatus();
  }
  ++counts_.dropped;
  return absl::ResourceExhaustedError(absl::StrCat(
      "send to ", endpoint_, ": the queue is full (", options_.send_queue_max,
      " messages), nobody reads at the other end; message dropped"));
}

absl::StatusOr<absl::Duration> ShmChannel::WaitMax() {
  // Receive() says so.
  if (!refused_.ok()) return absl::ZeroDuration();
  if (connection_ == nullptr)
    return std::max(next_try_ - MonotonicNow(), absl::ZeroDuration());
  if (!welcome_) return absl::InfiniteDuration();
  return connection_->Sleep() ? absl::InfiniteDuration() : absl::ZeroDuration();
}

}  // namespace

// ---- Transport --------------------------------------------------------------

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

void ShmTransport::Bury(std::unique_ptr<Connection> connection) {
  const MutexLock lock(mutex_);
  buried_.push_back(std::move(connection));
  std::erase_if(buried_, [](const std::unique_ptr<Connection>& buried) {
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

}  // namespace slackline
