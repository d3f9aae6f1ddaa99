// Why nobody answers at an address: with real sockets, as far as one machine
// has such addresses.
#include "tools/cli/job/reach.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/cli/job/at_once.h"

namespace slackline::reach_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kWait = absl::Seconds(5);

// A socket at some port; nobody listens until Listen().
class Port {
 public:
  Port() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&at), size), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &size), 0);
    endpoint_ = absl::StrCat("tcp://127.0.0.1:", ntohs(at.sin_port));
  }
  ~Port() { close(fd_); }
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;
  void Listen() const { EXPECT_EQ(listen(fd_, 1), 0); }
  const std::string& endpoint() const { return endpoint_; }

 private:
  const int fd_;
  std::string endpoint_;
};

TEST(ReachTest, WhoRefusesWhoIsSilentAndWhoHasNoName) {
  std::string detail;
  const Port port;
  EXPECT_EQ(TryToReach(port.endpoint(), kWait, &detail), Reach::kRefused);
  EXPECT_THAT(detail, HasSubstr("refused"));
  port.Listen();
  EXPECT_EQ(TryToReach(port.endpoint(), kWait, &detail), Reach::kSilent);
  EXPECT_EQ(detail, "");
  EXPECT_EQ(TryToReach("tcp://no-such-host.invalid:7700", kWait, &detail),
            Reach::kUnresolved);
  EXPECT_NE(detail, "");
}

// Each waits until all have begun.
TEST(AtOnceTest, NobodyWaitsForOthersToBeDone) {
  constexpr size_t kCount = 20;
  absl::Mutex mutex;
  std::set<size_t> begun;
  const auto all_have_begun = [&] { return begun.size() == kCount; };
  size_t met = 0;
  ForEachAtOnce(kCount, [&](size_t i) {
    const absl::MutexLock lock(&mutex);
    begun.insert(i);
    met += mutex.AwaitWithTimeout(absl::Condition(&all_have_begun), kWait);
  });
  EXPECT_EQ(met, kCount);
}

TEST(AtOnceTest, EachOfManyIsDoneOnce) {
  std::vector<int> times(1000, 0);
  ForEachAtOnce(times.size(), [&](size_t i) { ++times[i]; });
  EXPECT_EQ(times, std::vector<int>(1000, 1));
  ForEachAtOnce(0, [](size_t) { FAIL() << "there is none"; });
}

TEST(ReachTest, EachHasASentenceOfItsOwn) {
  std::set<std::string> texts;
  for (const Reach reach :
       {Reach::kUnresolved, Reach::kUnreachable, Reach::kTimedOut,
        Reach::kRefused, Reach::kSilent}) {
    const std::string text = ReachText(reach, "tcp://head:7700", "why");
    EXPECT_THAT(text, AllOf(HasSubstr("tcp://head:7700"), HasSubstr("job")));
    texts.insert(text);
  }
  EXPECT_EQ(texts.size(), 5u);
}

}  // namespace slackline::reach_test
