#include "worker/collective/gloo_collective.h"

#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "common/status.h"
#include "gloo/allreduce.h"
#include "gloo/common/error.h"
#include "gloo/context.h"
#include "gloo/math.h"
#include "gloo/transport/context.h"
#include "gloo/transport/tcp/attr.h"
#include "gloo/transport/tcp/device.h"
#include "gloo/transport/unbound_buffer.h"
#include "gloo/types.h"
#include "worker/collective/rendezvous.h"

namespace slackline {
namespace {

using Milliseconds = std::chrono::milliseconds;

// Gloo writes to sockets without MSG_NOSIGNAL, so a peer that is gone would end
// this process by SIGPIPE. A write raises the signal in the thread that writes:
// it is blocked in the threads that do, and threads inherit it.
class BlockedSigpipe {
 public:
  BlockedSigpipe() {
    sigset_t sigpipe;
    sigemptyset(&sigpipe);
    sigaddset(&sigpipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &sigpipe, &before_);
  }
  ~BlockedSigpipe() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSigpipe(const BlockedSigpipe&) = delete;
  BlockedSigpipe& operator=(const BlockedSigpipe&) = delete;

 private:
  sigset_t before_;
};

// Slots of Gloo messages. Those of Gloo's own operations are far above: they
// have the kind of the operation in the upper bits.
constexpr uint64_t kUnusedSlot = 0;
constexpr uint64_t kGreetingSlot = 1;
constexpr uint64_t kGoodbyeSlot = 2;

constexpr Milliseconds kEndless = std::chrono::hours(24 * 365 * 10);

// The text of a Gloo exception, without the place in Gloo's source.
std::string Reason(const std::exception& exception) {
  const std::string text = exception.what();
  const size_t end = text.find("] ");
  return text.starts_with("[") && end != std::string::npos
             ? text.substr(end + 2)
             : text;
}

// Gloo's TCP transport with a way to stop Gloo's algorithms, which have none:
// the transport knows all buffers on which they wait. Connects and runs
// algorithms on one thread; Interrupt() from any.
class StoppableTransport final : public gloo::transport::Context {
 public:
  // What an operation waited for when it failed.
  struct Failure {
    bool timed_out = false;
    bool receiving = false;
    int awaited = 0;
    std::vector<int> lost = {};  // Ranks whose connection had failed by itself.
  };

  explicit StoppableTransport(std::shared_ptr<gloo::transport::Context> tcp)
      : Context(tcp->rank, tcp->size), tcp_(std::move(tcp)) {}

  std::unique_ptr<gloo::transport::Pair>& getPair(int rank) override {
    return tcp_->getPair(rank);
  }
  std::unique_ptr<gloo::transport::Pair>& createPair(int rank) override {
    return tcp_->createPair(rank);
  }
  std::unique_ptr<gloo::transport::UnboundBuffer> createUnboundBuffer(
      void* ptr, size_t size) override;

  // From now on every wait on a buffer throws.
  void Interrupt() {
    const MutexLock lock(mutex_);
    raised_ = true;
    for (gloo::transport::UnboundBuffer* const buffer : buffers_) Stop(buffer);
  }

  // Notes the first failure and resets all connections, which tells the others
  // that this rank has given up. (The destructor closes connections such that
  // everything sent still arrives.) A buffer calls this before it can be
  // destroyed: Gloo's event loop ends the process when data arrives for one
  // that is gone.
  void GiveUp(Failure failure) {
    if (given_up_) return;
    given_up_ = true;
    failure_ = std::move(failure);
    if (!failure_.timed_out) failure_.lost = LostRanks();
    // The others are about to notice that they have lost the same ranks. They
    // get the time to do so, for otherwise they would see, and name, this one.
    constexpr Milliseconds kNoticeTime(200);
    if (!failure_.lost.empty()) std::this_thread::sleep_for(kNoticeTime);
    for (int i = 0; i < size; ++i) {
      if (i != rank) getPair(i)->close();
    }
  }
  const Failure& failure() const { return failure_; }

  // The ranks whose connection has failed. Any thread.
  std::vector<int> LostRanks() {
    char nothing = 0;
    const auto buffer = tcp_->createUnboundBuffer(&nothing, 1);
    std::vector<int> lost;
    for (int i = 0; i < size; ++i) {
      if (i == rank) continue;
      try {
        // A pair that has failed throws when it is used again.
        buffer->recv(i, kUnusedSlot, 0, 0);
      } catch (const std::exception&) {
        lost.push_back(i);
      }
    }
    return lost;
  }

 private:
  class Buffer;

  // Also stops a wait that begins later.
  static void Stop(gloo::transport::UnboundBuffer* buffer) {
    buffer->abortWaitRecv();
    buffer->abortWaitSend();
  }

  void Add(gloo::transport::UnboundBuffer* buffer) {
    const MutexLock lock(mutex_);
    buffers_.push_back(buffer);
    if (raised_) Stop(buffer);
  }
  void Remove(gloo::transport::UnboundBuffer* buffer) {
    const MutexLock lock(mutex_);
    buffers_.erase(std::find(buffers_.begin(), buffers_.end(), buffer));
  }

  const std::shared_ptr<gloo::transport::Context> tcp_;
  bool given_up_ = false;
  Failure failure_;
  Mutex mutex_;
  bool raised_ ABSL_GUARDED_BY(mutex_) = false;
  // A handful.
  std::vector<gloo::transport::UnboundBuffer*> buffers_ ABSL_GUARDED_BY(mutex_);
};

// A buffer of the TCP transport that tells its StoppableTransport about
// failures.
class StoppableTransport::Buffer final : public gloo::transport::UnboundBuffer {
 public:
  Buffer(std::unique_ptr<gloo::transport::UnboundBuffer> tcp,
         StoppableTransport* transport)
      : UnboundBuffer(tcp->ptr, tcp->size),
        tcp_(std::move(tcp)),
        transport_(transport) {
    transport_->Add(tcp_.get());
  }
  ~Buffer() override { transport_->Remove(tcp_.get()); }

  // Gloo's algorithms ignore that a wait was stopped and would go on with what
  // is in the buffer, so that becomes an exception.
  bool waitRecv(int* rank, Milliseconds timeout) override {
    OrGiveUp(source_, true, Clock::now() + timeout, [&] {
      if (!tcp_->waitRecv(rank, timeout)) throw gloo::IoException("stopped");
    });
    return true;
  }
  bool waitSend(int* rank, Milliseconds timeout) override {
    OrGiveUp(destination_, false, Clock::now() + timeout, [&] {
      if (!tcp_->waitSend(rank, timeout)) throw gloo::IoException("stopped");
    });
    return true;
  }
  void abortWaitRecv() override { tcp_->abortWaitRecv(); }
  void abortWaitSend() override { tcp_->abortWaitSend(); }
  void send(int rank, uint64_t slot, size_t offset, size_t bytes) override {
    destination_ = rank;
    OrGiveUp(rank, false, Clock::time_point::max(),
             [&] { tcp_->send(rank, slot, offset, bytes); });
  }
  void recv(int rank, uint64_t slot, size_t offset, size_t bytes) override {
    source_ = rank;
    OrGiveUp(rank, true, Clock::time_point::max(),
             [&] { tcp_->recv(rank, slot, offset, bytes); });
  }
  void recv(std::vector<int> ranks, uint64_t slot, size_t offset,
            size_t bytes) override {
    source_ = ranks.front();
    OrGiveUp(source_, true, Clock::time_point::max(),
             [&] { tcp_->recv(std::move(ranks), slot, offset, bytes); });
  }

 private:
  using Clock = std::chrono::steady_clock;

  // Gloo has one exception for a timeout and for a lost connection; the time
  // tells which it was.
  template <typename Call>
  void OrGiveUp(int rank, bool receiving, Clock::time_point deadline,
                Call call) {
    try {
      call();
    } catch (const std::exception&) {
      transport_->GiveUp({.timed_out = Clock::now() >= deadline,
                          .receiving = receiving,
                          .awaited = rank});
      throw;
    }
  }

  const std::unique_ptr<gloo::transport::UnboundBuffer> tcp_;
  StoppableTransport* const transport_;
  int source_ = 0;
  int destination_ = 0;
};

std::unique_ptr<gloo::transport::UnboundBuffer>
StoppableTransport::createUnboundBuffer(void* ptr, size_t size) {
  return std::make_unique<Buffer>(tcp_->createUnboundBuffer(ptr, size), this);
}

class GlooContext final : public gloo::Context {
 public:
  GlooContext(std::shared_ptr<gloo::transport::Device> device,
              std::shared_ptr<gloo::transport::Context> transport)
      : Context(transport->rank, transport->size) {
    device_ = std::move(device);
    transportContext_ = std::move(transport);
  }
};

// True if this machine can listen on `address`. Else errno says why.
bool CanListen(const addrinfo& address) {
  const int fd =
      socket(address.ai_family, address.ai_socktype, address.ai_protocol);
  if (fd < 0) return false;
  const bool can = bind(fd, address.ai_addr, address.ai_addrlen) == 0;
  const int error = errno;
  close(fd);
  errno = error;
  return can;
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

// Gloo would go on with what getaddrinfo() did not return, and leaks memory if
// it cannot listen.
absl::Status CheckHost(const std::string& host) {
  if (host.empty()) {
    return absl::InvalidArgumentError(
        "host: it is empty, the name or address by which the other ranks reach "
        "this machine is required");
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
      error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("host: \"", host, "\" is no known name or address (",
                     gai_strerror(error), ")"));
  }
  bool wildcard = false;
  bool can_listen = false;
  for (const addrinfo* i = found; i != nullptr; i = i->ai_next) {
    wildcard = wildcard || IsWildcard(*i);
    can_listen = can_listen || CanListen(*i);
  }
  const int error = errno;
  freeaddrinfo(found);
  if (wildcard) {
    return absl::InvalidArgumentError(absl::StrCat(
        "host: the other ranks cannot connect to the wildcard \"", host,
        "\", the name or address of one interface is required"));
  }
  if (!can_listen) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on \"", host, "\" (", std::strerror(error),
                     "); check that it is an address of this machine"));
  }
  return absl::OkStatus();
}

class GlooMesh final : public Mesh {
 public:
  explicit GlooMesh(const GroupOptions& options)
      : rank_(static_cast<int>(options.rank)),
        world_size_(options.world_size),
        timeout_(absl::ToChronoMilliseconds(options.timeout)) {}

  absl::Status Join(const GroupOptions& options) override;

  absl::Status BeginWatch() override;
  // After a failure all connections are reset.
  absl::Status Run(const Operation& operation, int64_t number) override;
  void SayGoodbye() override;
  void GiveUp() override { transport_->GiveUp({}); }
  absl::Status AwaitLoss() override;
  void EndWatch() override { watch_->abortWaitRecv(); }
  void Interrupt() override { transport_->Interrupt(); }

 private:
  // What rank i has stored is stored[i], on `address_bytes` for each other
  // rank.
  absl::Status Connect(const std::vector<std::string>& stored,
                       size_t address_bytes, absl::Duration timeout,
                       const Rendezvous& rendezvous);
  void AllReduce(absl::Span<float> data, int64_t number);
  void Broadcast(absl::Span<float> data, int root, int64_t number);
  std::string Self() const {
    return absl::StrCat("rank ", rank_, " of ", world_size_);
  }
  absl::Status FailureOf(const Operation& operation, int64_t number,
                         const std::exception& exception);

  const int rank_;
  const int world_size_;
  const Milliseconds timeout_;
  std::shared_ptr<gloo::transport::Context> tcp_;
  std::shared_ptr<StoppableTransport> transport_;  // Around tcp_.
  std::shared_ptr<GlooContext> context_;           // Around transport_.
  // Gloo tells of a lost connection only to buffers that wait for the peer to
  // be ready, not to those whose transfer has begun. This one always waits, for
  // the goodbye of each rank.
  std::unique_ptr<gloo::transport::UnboundBuffer> watch_;
};

absl::Status GlooMesh::Join(const GroupOptions& options) {
  SL_RETURN_IF_ERROR(CheckHost(options.host));
  const Rendezvous rendezvous({.rank = options.rank,
                               .world_size = options.world_size,
                               .group = options.group,
                               .time_max = options.connect_timeout,
                               .keep_trying = options.keep_trying,
                               .store = options.store});
  // The addresses on which this rank awaits each other rank, all of one size,
  // in the order of the ranks without this one.
  std::string addresses;
  std::shared_ptr<gloo::transport::Device> device;
  try {
    device = gloo::transport::tcp::CreateDevice(
        gloo::transport::tcp::attr(options.host.c_str()));
    tcp_ = device->createContext(rank_, world_size_);
    // Longer than Connect() lets Gloo wait, and not zero, which would mean no
    // timeout.
    tcp_->setTimeout(absl::ToChronoMilliseconds(options.connect_timeout) +
                     Milliseconds(1));
    for (int i = 0; i < world_size_; ++i) {
      if (i == rank_) continue;
      const std::vector<char> address = tcp_->createPair(i)->address().bytes();
      addresses.append(address.begin(), address.end());
    }
  } catch (const std::exception& exception) {
    return absl::UnavailableError(absl::StrCat(Self(), " cannot listen on \"",
                                               options.host, "\" (",
                                               Reason(exception), ")"));
  }

  const size_t addresses_bytes = addresses.size();
  const size_t address_bytes = addresses_bytes / (world_size_ - 1);
  SL_ASSIGN_OR_RETURN(std::vector<std::string> found,
                      rendezvous.Exchange(addresses));
  found[rank_] = std::move(addresses);
  for (int i = 0; i < world_size_; ++i) {
    if (found[i].size() != addresses_bytes) {
      return absl::UnavailableError(absl::StrCat(
          "rank ", i, " of ", world_size_, " stored ", found[i].size(),
          " bytes of addresses, ", Self(), " expects ", addresses_bytes,
          "; run the same build with the same world size everywhere"));
    }
  }
  SL_RETURN_IF_ERROR(
      Connect(found, address_bytes, options.connect_timeout, rendezvous));
  transport_ = std::make_shared<StoppableTransport>(tcp_);
  context_ = std::make_shared<GlooContext>(std::move(device), transport_);
  watch_ = tcp_->createUnboundBuffer(nullptr, 0);
  return absl::OkStatus();
}

// What rank `from` says to rank `to` first. No other group stores the same.
uint64_t GreetingOf(int from, int to, const std::vector<std::string>& stored) {
  const std::string text =
      absl::StrCat(from, " greets ", to, ": ", stored[from], stored[to]);
  return XXH3_64bits(text.data(), text.size());
}

// Gloo's connect blocks, and depends on the other rank, so each runs on a
// thread of its own: then the ranks that are missing are those that do not
// answer, and not those that wait for them. Closing a pair ends its connect.
//
// It also resets the connection, as GiveUp() does. A rank whose event loop has
// not yet seen a connection that is reset would end by an exception there. So
// the two sides greet each other once they are connected: who has been greeted
// has been seen. And who greets otherwise than expected is another process, to
// which the system has given the port of a rank that is gone.
absl::Status GlooMesh::Connect(const std::vector<std::string>& stored,
                               size_t address_bytes, absl::Duration timeout,
                               const Rendezvous& rendezvous) {
  struct State {
    Mutex mutex;
    std::condition_variable changed;
    std::vector<int> waiting ABSL_GUARDED_BY(mutex);
    std::vector<int> failed ABSL_GUARDED_BY(mutex);
    std::string failure ABSL_GUARDED_BY(mutex);
  };
  State state;
  std::vector<int> others;
  for (int i = 0; i < world_size_; ++i) {
    if (i != rank_) others.push_back(i);
  }

  struct Greeting {
    std::array<uint64_t, 2> words = {};  // The one sent, the one received.
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;  // Of both words.
  };
  std::vector<Greeting> greetings(world_size_);
  for (const int i : others) {
    std::array<uint64_t, 2>& words = greetings[i].words;
    words[0] = GreetingOf(rank_, i, stored);
    greetings[i].buffer =
        tcp_->createUnboundBuffer(words.data(), sizeof(words));
  }
  const auto greet = [&](int i) -> std::string {
    const Greeting& greeting = greetings[i];
    greeting.buffer->recv(i, kGreetingSlot, sizeof(uint64_t), sizeof(uint64_t));
    greeting.buffer->send(i, kGreetingSlot, 0, sizeof(uint64_t));
    if (!greeting.buffer->waitRecv(nullptr, kEndless) ||
        !greeting.buffer->waitSend(nullptr, kEndless)) {
      return "stopped";
    }
    return greeting.words[1] == GreetingOf(i, rank_, stored)
               ? ""
               : "another process has its port";
  };

  const auto connect = [&](int i) {
    std::string error;
    try {
      const size_t own = (rank_ < i ? rank_ : rank_ - 1) * address_bytes;
      const char* const address = stored[i].data() + own;
      tcp_->getPair(i)->connect({address, address + address_bytes});
      error = greet(i);
    } catch (const std::exception& exception) {
      error = Reason(exception);
    }
    const MutexLock lock(state.mutex);
    state.waiting.erase(
        std::find(state.waiting.begin(), state.waiting.end(), i));
    if (!error.empty()) {
      state.failed.push_back(i);
      state.failure = std::move(error);
    }
    state.changed.notify_one();
  };
  absl::Status status;
  std::vector<std::thread> threads;
  MutexLock lock(state.mutex);
  state.waiting = others;
  for (const int i : others) threads.emplace_back(connect, i);
  for (;;) {
    const auto slice_end = SteadyDeadline(rendezvous.Slice());
    while (!state.waiting.empty() && state.failed.empty() &&
           lock.WaitUntil(state.changed, slice_end)) {
    }
    const bool over = rendezvous.Over();
    if (!state.failed.empty() || (over && !state.waiting.empty())) {
      status = absl::UnavailableError(absl::StrCat(
          Self(), " has no connection to ",
          RanksText(state.failed.empty() ? state.waiting : state.failed), " ",
          state.failed.empty()
              ? absl::StrCat("after ", absl::ToInt64Milliseconds(timeout),
                             " ms")
              : absl::StrCat("(", state.failure, ")"),
          "; check that all ranks still run, and that all ports are open "
          "between the machines"));
    } else if (!state.waiting.empty()) {
      lock.Unlock();
      status = rendezvous.Ask();
      lock.Lock();
    }
    if (!status.ok() || state.waiting.empty()) break;
  }
  // What connects at this moment may come to its end, which is a matter of the
  // event loops here and there.
  constexpr absl::Duration kSettleTime = absl::Milliseconds(100);
  for (const int i : others) {
    greetings[i].buffer->abortWaitRecv();
    greetings[i].buffer->abortWaitSend();
  }
  auto settled = SteadyDeadline(kSettleTime);
  for (size_t before = state.waiting.size(); before > 0;) {
    const bool told = lock.WaitUntil(state.changed, settled);
    if (state.waiting.size() < before) {
      before = state.waiting.size();
      settled = SteadyDeadline(kSettleTime);
    } else if (!told) {
      break;
    }
  }
  // Again and again, for one whose connect begins only now opens its pair.
  while (!state.waiting.empty()) {
    const std::vector<int> waiting = state.waiting;
    lock.Unlock();
    for (const int i : waiting) tcp_->getPair(i)->close();
    lock.Lock();
    const auto next = SteadyDeadline(absl::Milliseconds(10));
    while (!state.waiting.empty() && lock.WaitUntil(state.changed, next)) {
    }
  }
  lock.Unlock();
  for (std::thread& thread : threads) thread.join();
  if (!status.ok()) {
    // Without a reset, and before the greetings, which may still arrive.
    for (const int i : others) tcp_->getPair(i).reset();
  }
  return status;
}

absl::Status GlooMesh::Run(const Operation& operation, int64_t number) {
  if (operation.data.empty()) return absl::OkStatus();
  try {
    if (operation.root.has_value()) {
      Broadcast(operation.data, static_cast<int>(*operation.root), number);
    } else {
      AllReduce(operation.data, number);
    }
    return absl::OkStatus();
  } catch (const std::exception& exception) {
    return FailureOf(operation, number, exception);
  }
}

void GlooMesh::AllReduce(absl::Span<float> data, int64_t number) {
  gloo::AllreduceOptions options(context_);
  options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
  options.setOutput(data.data(), data.size());
  options.setReduceFunction(
      [](void* sum, const void* a, const void* b, size_t count) {
        gloo::sum<float>(sum, a, b, count);
      });
  // Distinguishes the operation from those just before and after it.
  options.setTag(static_cast<uint32_t>(number));
  options.setTimeout(timeout_);
  gloo::allreduce(options);
}

// Gloo's own broadcast sends the buffer as one message, so that the timeout
// would be one for all its bytes.
void GlooMesh::Broadcast(absl::Span<float> data, int root, int64_t number) {
  constexpr size_t kPieceBytes = 1 << 20;
  constexpr size_t kAhead = 2;  // Pieces that are announced beforehand.
  const int next = (rank_ + 1) % world_size_;
  const int previous = (rank_ + world_size_ - 1) % world_size_;
  const bool receives = rank_ != root;
  const bool sends = next != root;
  const size_t bytes = data.size() * sizeof(float);
  const size_t pieces = (bytes + kPieceBytes - 1) / kPieceBytes;
  const uint64_t slot = gloo::Slot::build(gloo::kBroadcastSlotPrefix,
                                          static_cast<uint32_t>(number));
  const auto buffer = transport_->createUnboundBuffer(data.data(), bytes);
  const auto receive = [&](size_t piece) {
    const size_t offset = piece * kPieceBytes;
    buffer->recv(previous, slot, offset, std::min(kPieceBytes, bytes - offset));
  };
  if (receives) {
    for (size_t i = 0; i < std::min(kAhead, pieces); ++i) receive(i);
  }
  for (size_t i = 0; i < pieces; ++i) {
    if (receives) {
      buffer->waitRecv(nullptr, timeout_);
      if (i + kAhead < pieces) receive(i + kAhead);
    }
    if (sends) {
      if (i >= kAhead) buffer->waitSend(nullptr, timeout_);
      const size_t offset = i * kPieceBytes;
      buffer->send(next, slot, offset, std::min(kPieceBytes, bytes - offset));
    }
  }
  if (sends) {
    for (size_t i = 0; i < std::min(kAhead, pieces); ++i) {
      buffer->waitSend(nullptr, timeout_);
    }
  }
}

absl::Status GlooMesh::FailureOf(const Operation& operation, int64_t number,
                                 const std::exception& exception) {
  const std::string prefix =
      OperationText(operation, number, rank_, world_size_);
  const StoppableTransport::Failure& failure = transport_->failure();
  if (failure.timed_out) {
    return absl::DeadlineExceededError(absl::StrCat(
        prefix, "rank ", failure.awaited,
        failure.receiving ? " sent nothing" : " took nothing", " for ",
        timeout_.count(),
        " ms; it or a rank for which it waits is stuck, or slower than the "
        "timeout allows; the group must be rebuilt"));
  }
  return ConnectionsLost(prefix, failure.lost, Reason(exception));
}

absl::Status GlooMesh::BeginWatch() {
  try {
    for (int i = 0; i < world_size_; ++i) {
      if (i != rank_) watch_->recv(i, kGoodbyeSlot, 0, 0);
    }
    return absl::OkStatus();
  } catch (const std::exception& exception) {
    return ConnectionsLost(absl::StrCat(Self(), ": "), transport_->LostRanks(),
                           Reason(exception));
  }
}

absl::Status GlooMesh::AwaitLoss() {
  try {
    while (watch_->waitRecv(kEndless)) continue;
    return absl::OkStatus();
  } catch (const std::exception& exception) {
    return ConnectionsLost(absl::StrCat(Self(), ": "), transport_->LostRanks(),
                           Reason(exception));
  }
}

void GlooMesh::SayGoodbye() {
  // A rank that has joined an operation is ready for goodbyes, so this waits
  // only for one that has just been created and might not be.
  constexpr Milliseconds kWaitMax(1000);
  std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> goodbyes;
  for (int i = 0; i < world_size_; ++i) {
    if (i == rank_) continue;
    auto goodbye = tcp_->createUnboundBuffer(nullptr, 0);
    try {
      goodbye->send(i, kGoodbyeSlot, 0, 0);
      goodbyes.push_back(std::move(goodbye));
    } catch (const std::exception&) {
      // That rank has left.
    }
  }
  for (const auto& goodbye : goodbyes) {
    try {
      goodbye->waitSend(kWaitMax);
    } catch (const std::exception&) {
      // It has left meanwhile, or will see a lost connection.
    }
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Collective>> CreateGlooCollective(
    const GroupOptions& options) {
  const BlockedSigpipe blocked;  // For the threads that start here.
  return FormGroup(options, std::make_unique<GlooMesh>(options));
}

}  // namespace slackline
