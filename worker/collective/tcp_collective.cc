#include "worker/collective/tcp_collective.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "worker/collective/peer_watch.h"
#include "worker/collective/stream.h"
#include "worker/collective/tcp_connect.h"

namespace slackline {
namespace {

// Sums are made of so much at a time, which stays in the cache; and so much is
// sent or received before the other direction has its turn.
constexpr size_t kTurnBytes = size_t{256} << 10;

// Whether both ends have the same address.
bool OnOneMachine(const Descriptor& socket) {
  sockaddr_storage ends[2] = {};
  socklen_t own_bytes = sizeof(ends[0]);
  socklen_t other_bytes = sizeof(ends[1]);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&ends[0]),
                  &own_bytes) != 0 ||
      getpeername(socket.get(), reinterpret_cast<sockaddr*>(&ends[1]),
                  &other_bytes) != 0 ||
      ends[0].ss_family != ends[1].ss_family) {
    return false;
  }
  if (ends[0].ss_family == AF_INET) {
    const auto address = [&](int end) {
      return reinterpret_cast<const sockaddr_in*>(&ends[end])->sin_addr.s_addr;
    };
    return address(0) == address(1);
  }
  const auto address = [&](int end) {
    return &reinterpret_cast<const sockaddr_in6*>(&ends[end])->sin6_addr;
  };
  return ends[0].ss_family == AF_INET6 &&
         IN6_ARE_ADDR_EQUAL(address(0), address(1));
}

// Between processes of one machine the kernel lets megabytes wait, which fall
// out of the cache before they are read. Of records a few should be whole
// there, while one is sealed or opened at either end.
void KeepFew(const Descriptor& socket, int buffer, bool records) {
  const int bytes = records ? 256 << 10 : 128 << 10;
  setsockopt(socket.get(), SOL_SOCKET, buffer, &bytes, sizeof(bytes));
}

// A part of the buffer that passes a rank.
struct Part {
  float* begin = nullptr;
  size_t bytes = 0;
  bool add = false;  // What is received is added, else it replaces.
};

// A place in a sequence of parts. Each part has bytes.
class Cursor {
 public:
  explicit Cursor(const std::vector<Part>& parts) : parts_(parts) {}

  bool AtEnd() const { return index_ == parts_.size(); }
  const Part& part() const { return parts_[index_]; }
  std::byte* at() const {
    return reinterpret_cast<std::byte*>(part().begin) + offset_;
  }
  size_t left_in_part() const { return part().bytes - offset_; }
  size_t passed() const { return passed_; }
  void Advance(size_t bytes) {
    passed_ += bytes;
    offset_ += bytes;
    if (offset_ == part().bytes) {
      ++index_;
      offset_ = 0;
    }
  }

 private:
  const std::vector<Part>& parts_;
  size_t index_ = 0;
  size_t offset_ = 0;
  size_t passed_ = 0;
};

class TcpMesh final : public Mesh {
 public:
  explicit TcpMesh(const GroupOptions& options)
      : rank_(static_cast<int>(options.rank)),
        world_size_(options.world_size),
        timeout_(options.timeout) {}

  absl::Status Join(const GroupOptions& options) override;

  absl::Status BeginWatch() override { return absl::OkStatus(); }
  absl::Status Run(const Operation& operation, int64_t number) override;
  void SayGoodbye() override { watch_->SayGoodbye(); }
  void GiveUp() override;
  absl::Status AwaitLoss() override { return watch_->AwaitLoss(); }
  void EndWatch() override { watch_->EndWatch(); }
  void Interrupt() override;

 private:
  using Clock = std::chrono::steady_clock;

  // Why an operation cannot go on.
  enum class Obstacle { kNone, kLate, kLost, kInterrupted };
  struct Failure {
    Obstacle obstacle = Obstacle::kNone;
    bool receiving = false;  // Else sending.
    std::string reason = {};
  };
  enum class Step { kMoved, kBlocked, kFailed };
  using Result = Stream::Result;

  int Next() const { return (rank_ + 1) % world_size_; }
  int Previous() const { return (rank_ + world_size_ - 1) % world_size_; }

  bool AllReduce(absl::Span<float> data);
  bool Broadcast(absl::Span<float> data, int root);
  // Receives the parts `in` and sends the parts `out`. Of the latter,
  // `ready_bytes` are there at first, and as much as was received since.
  bool Pass(const std::vector<Part>& in, const std::vector<Part>& out,
            size_t ready_bytes);
  // With `may_take` 0 only what waits in the stream.
  Step Send(Cursor& out, size_t may_take);
  Step Receive(Cursor& in);
  // Until a transfer can go on. False: see failure_.
  bool AwaitTurn(bool sending, bool receiving, Clock::time_point deadline);
  // With failure_ unless it has moved or is blocked.
  Step StepOf(const Stream::Outcome& outcome, bool receiving);

  const int rank_;
  const int32_t world_size_;
  const absl::Duration timeout_;
  std::unique_ptr<Stream> to_next_;
  std::unique_ptr<Stream> from_previous_;
  std::unique_ptr<PeerWatch> watch_;
  std::atomic<bool> interrupted_ = false;
  Descriptor interrupt_;  // Readable from then on.
  Failure failure_;
  // Received and not yet added: the first `kept_` bytes, less than a float
  // between two calls.
  std::vector<float> received_;
  size_t kept_ = 0;
};

absl::Status TcpMesh::Join(const GroupOptions& options) {
  interrupt_ = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!interrupt_.valid()) {
    return absl::UnavailableError(
        absl::StrCat("eventfd: ", std::strerror(errno)));
  }
  SL_ASSIGN_OR_RETURN(TcpConnections connections, ConnectTcp(options));
  to_next_ = std::move(connections.to_next);
  from_previous_ = std::move(connections.from_previous);
  SL_ASSIGN_OR_RETURN(watch_,
                      PeerWatch::Create(rank_, std::move(connections.to_all)));
  const Descriptor& next = to_next_->socket();
  const Descriptor& previous = from_previous_->socket();
  const bool records = options.key.has_value();
  if (OnOneMachine(previous)) KeepFew(previous, SO_RCVBUF, records);
  if (OnOneMachine(next)) KeepFew(next, SO_SNDBUF, records);
  received_.resize(kTurnBytes / sizeof(float));
  return absl::OkStatus();
}

// ---- Operations

// In step s a rank sends part (rank - 1 - s) and receives part (rank - 2 - s),
// which it sends in step s + 1: n - 1 steps for the sums, n - 1 for the
// results.
bool TcpMesh::AllReduce(absl::Span<float> data) {
  const size_t ranks = static_cast<size_t>(world_size_);
  const size_t size = (data.size() + ranks - 1) / ranks;
  const auto part = [&](int step, bool add) {
    const auto index =
        static_cast<size_t>((rank_ + 2 * world_size_ - step) % world_size_);
    const size_t begin = std::min(data.size(), index * size);
    const size_t end = std::min(data.size(), begin + size);
    return Part{.begin = data.data() + begin,
                .bytes = (end - begin) * sizeof(float),
                .add = add};
  };
  std::vector<Part> in;
  std::vector<Part> out;
  const size_t ready_bytes = part(1, false).bytes;
  for (int step = 0; step < 2 * (world_size_ - 1); ++step) {
    const Part sent = part(step + 1, false);
    const Part received = part(step + 2, step < world_size_ - 1);
    if (sent.bytes > 0) out.push_back(sent);
    if (received.bytes > 0) in.push_back(received);
  }
  return Pass(in, out, ready_bytes);
}

bool TcpMesh::Broadcast(absl::Span<float> data, int root) {
  const Part all = {.begin = data.data(), .bytes = data.size() * sizeof(float)};
  std::vector<Part> in;
  std::vector<Part> out;
  if (rank_ != root) in.push_back(all);
  if (Next() != root) out.push_back(all);
  return Pass(in, out, rank_ == root ? all.bytes : 0);
}

bool TcpMesh::Pass(const std::vector<Part>& in_parts,
                   const std::vector<Part>& out_parts, size_t ready_bytes) {
  Cursor in(in_parts);
  Cursor out(out_parts);
  kept_ = 0;
  const auto deadline = [&] { return SteadyDeadline(timeout_); };
  auto late = deadline();
  while (!in.AtEnd() || !out.AtEnd() || to_next_->has_unsent()) {
    const size_t may_take =
        out.AtEnd()
            ? 0
            : std::min({out.left_in_part(),
                        ready_bytes + in.passed() - out.passed(), kTurnBytes});
    const bool sending = may_take > 0 || to_next_->has_unsent();
    const Step sent = sending ? Send(out, may_take) : Step::kBlocked;
    if (sent == Step::kFailed) return false;
    const Step received = in.AtEnd() ? Step::kBlocked : Receive(in);
    if (received == Step::kFailed) return false;
    if (sent == Step::kMoved || received == Step::kMoved) {
      late = deadline();
      if (!interrupted_.load(std::memory_order_relaxed)) continue;
    }
    if (!AwaitTurn(sending, !in.AtEnd(), late)) return false;
  }
  return true;
}

TcpMesh::Step TcpMesh::StepOf(const Stream::Outcome& outcome, bool receiving) {
  if (outcome.result == Result::kMoved) return Step::kMoved;
  if (outcome.result == Result::kBlocked) return Step::kBlocked;
  failure_ = {.obstacle = Obstacle::kLost,
              .receiving = receiving,
              .reason = outcome.result == Result::kEnded
                            ? "it has left the group"
                            : outcome.reason};
  return Step::kFailed;
}

TcpMesh::Step TcpMesh::Send(Cursor& out, size_t may_take) {
  const Stream::Outcome sent =
      to_next_->Send({may_take > 0 ? out.at() : nullptr, may_take});
  if (sent.bytes > 0) out.Advance(sent.bytes);
  return StepOf(sent, /*receiving=*/false);
}

TcpMesh::Step TcpMesh::Receive(Cursor& in) {
  const bool add = in.part().add;
  std::byte* const scratch = reinterpret_cast<std::byte*>(received_.data());
  std::byte* const place = add ? scratch + kept_ : in.at();
  const size_t bytes = std::min(in.left_in_part(), kTurnBytes) - kept_;
  const Stream::Outcome received = from_previous_->Receive({place, bytes});
  if (received.result != Result::kMoved || received.bytes == 0) {
    return StepOf(received, /*receiving=*/true);
  }
  if (!add) {
    in.Advance(received.bytes);
    return Step::kMoved;
  }
  kept_ += received.bytes;
  const size_t floats = kept_ / sizeof(float);
  float* const sum = reinterpret_cast<float*>(in.at());
  for (size_t i = 0; i < floats; ++i) sum[i] += received_[i];
  in.Advance(floats * sizeof(float));
  kept_ %= sizeof(float);
  std::memmove(scratch, scratch + floats * sizeof(float), kept_);
  return Step::kMoved;
}

bool TcpMesh::AwaitTurn(bool sending, bool receiving,
                        Clock::time_point deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  pollfd files[] = {{.fd = interrupt_.get(), .events = POLLIN, .revents = 0},
                    {.fd = sending ? to_next_->socket().get() : -1,
                     .events = POLLOUT,
                     .revents = 0},
                    {.fd = receiving ? from_previous_->socket().get() : -1,
                     .events = POLLIN,
                     .revents = 0}};
  const int ready =
      poll(files, std::size(files),
           static_cast<int>(std::clamp<int64_t>(
               left.count(), 0, std::numeric_limits<int>::max())));
  if (interrupted_.load()) {
    failure_ = {.obstacle = Obstacle::kInterrupted, .receiving = receiving};
    return false;
  }
  if (ready == 0 && Clock::now() >= deadline) {
    failure_ = {.obstacle = Obstacle::kLate, .receiving = receiving};
    return false;
  }
  return true;
}

absl::Status TcpMesh::Run(const Operation& operation, int64_t number) {
  if (operation.data.empty()) return absl::OkStatus();
  const bool done =
      operation.root.has_value()
          ? Broadcast(operation.data, static_cast<int>(*operation.root))
          : AllReduce(operation.data);
  // What it has is complete, but the next operation cannot be.
  if (done && !interrupted_.load()) return absl::OkStatus();
  const std::string prefix =
      OperationText(operation, number, rank_, world_size_);
  const int other = failure_.receiving ? Previous() : Next();
  if (failure_.obstacle == Obstacle::kLate) {
    return absl::DeadlineExceededError(absl::StrCat(
        prefix, "rank ", other,
        failure_.receiving ? " sent nothing" : " took nothing", " for ",
        absl::ToInt64Milliseconds(timeout_),
        " ms; it or a rank for which it waits is stuck, or slower than the "
        "timeout allows; the group must be rebuilt"));
  }
  std::vector<int> lost = watch_->Gone();
  if (failure_.obstacle == Obstacle::kLost && !watch_->Gone(other)) {
    lost.insert(std::lower_bound(lost.begin(), lost.end(), other), other);
  }
  return ConnectionsLost(prefix, lost,
                         failure_.obstacle == Obstacle::kLost
                             ? failure_.reason
                             : watch_->GoneReason());
}

// ---- The end

void TcpMesh::GiveUp() {
  watch_->GiveUp();
  shutdown(to_next_->socket().get(), SHUT_RDWR);
  shutdown(from_previous_->socket().get(), SHUT_RDWR);
}

void TcpMesh::Interrupt() {
  interrupted_.store(true);
  const uint64_t one = 1;
  // Fails only if it was called before.
  (void)!write(interrupt_.get(), &one, sizeof(one));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Collective>> CreateTcpCollective(
    const GroupOptions& options) {
  return FormGroup(options, std::make_unique<TcpMesh>(options));
}

}  // namespace slackline
