// Goal: whatever is wrong with a host or the network of a job, `slackline
// doctor` names it in one line, with what mends it; and nothing else. Method:
// real agents on two hosts that are namespaces of this machine: each has a
// network, names and mounts of its own, and tun_link is the network between
// them. A program in place of ssh leads there. Skipped, aloud, where the
// machine allows no namespaces or has no TUN devices.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"
#include "tools/cli/members/local_hosts.h"

namespace slackline::doctor_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

namespace fs = std::filesystem;

constexpr char kGeneratedData[] =
    "teacher_student { features: 16 classes: 4 train_examples: 8000 "
    "test_examples: 1000 }";
constexpr char kGoodNames[] =
    "127.0.0.1 localhost\n10.77.0.1 n1\n10.77.0.2 n2\n";

class DoctorTest : public JobTest {
 protected:
  struct HostSetUp {
    std::string names = kGoodNames;  // Its /etc/hosts.
    // What is done in its namespaces before a program starts there.
    std::string script = {};
  };

  // False: it is not possible here.
  bool StartLink(const std::string& latency_ms,
                 const std::vector<std::string>& flags) {
    std::vector<std::string> command = {
        SLACKLINE_TUN_LINK, "--loss=0", "--bandwidth-mbit=2000",
        absl::StrCat("--latency-ms=", latency_ms)};
    command.insert(command.end(), flags.begin(), flags.end());
    link_ = std::make_unique<Process>(command, Path("tun_link.log"));
    EXPECT_TRUE(WaitUntil(kJobMax, [&] {
      return !link_->running() || absl::StrContains(link_->Output(), "\n");
    }));
    const nlohmann::json ready = nlohmann::json::parse(
        link_->Output().substr(0, link_->Output().find('\n')), nullptr, false);
    if (!ready.is_object()) {
      EXPECT_EQ(link_->WaitText(kJobMax), "exited with code 77");
      return false;
    }
    networks_ = {ready.at("a"), ready.at("b")};
    return true;
  }

  std::string Program(const std::string& name, const std::string& script) {
    const std::string path =
        Write(name, absl::StrCat("#!/bin/sh\n", script, "\n"));
    fs::permissions(path, fs::perms::owner_all);
    return path;
  }

  // Programs start there by `on HOST COMMAND`.
  void SetUpHosts(const HostSetUp& first, const HostSetUp& second) {
    int number = 0;
    for (const HostSetUp& host : {first, second}) {
      const std::string name = absl::StrCat("n", ++number);
      const std::string names = Write(absl::StrCat(name, ".names"), host.names);
      Write(absl::StrCat(name, ".sh"),
            absl::StrCat("mount --bind ", names, " /etc/hosts\n", host.script,
                         "\neval \"exec $1\"\n"));
    }
    Program("on",
            absl::StrCat("case $1 in n1) net=", networks_[0],
                         ";; n2) net=", networks_[1],
                         ";; esac\nexec nsenter --net=$net unshare --mount sh "
                         "-e ",
                         Path("$1.sh"), " \"$2\""));
  }

  // Programs of both hosts, as a line of the launch block. Those of members
  // only say their version: to load LibTorch takes its time.
  std::string BinDir() {
    fs::create_directory(Path("bin"));
    fs::create_symlink(absl::StrCat(SLACKLINE_BIN_DIR, "/slackline"),
                       Path("bin/slackline"));
    for (const char* const name : {"slackline_server", "slackline_worker"}) {
      Program(absl::StrCat("bin/", name),
              absl::StrCat("exec ", SLACKLINE_BIN_DIR, "/slackline --version"));
    }
    return absl::StrCat("bin_dir: \"", Path("bin"), "\"");
  }

  // The job's hosts are n1, where `slackline doctor` is called, and n2.
  std::string Config(const std::string& launch = "",
                     const std::string& more = "",
                     const std::string& data = kGeneratedData) {
    // It leaves the mounts of n1.
    const std::string ssh =
        Program("ssh", absl::StrCat("while [ \"$1\" != -- ]; do shift; done\n"
                                    "exec nsenter --mount=/proc/",
                                    getpid(), "/ns/mnt ", Path("on"),
                                    " \"$2\" \"$3\""));
    return Write(
        "job.textproto",
        absl::StrCat(R"(
job: "two-hosts"
coordinator { host: "n1" port: 7700 }
server { host: "n1" port: 7801 threads: 1 }
server { host: "n2" port: 7802 threads: 1 }
worker { host: "n1" }
worker { host: "n2" }
model { mlp { hidden: 8 } }
optimizer { sgd { learning_rate: 0.1 } }
train { epochs: 1 seed: 1 }
data { batch_size: 2 )",
                     data, " }\nlaunch { runs_dir: \"", Path("there"), "\" ",
                     launch, " ssh { program: \"", ssh, "\" } }\n", more));
  }

  // Calls it on n1. The findings that are not fine, in order.
  std::vector<std::string> Problems(const std::string& config,
                                    const std::string& exit,
                                    const std::string& flags = "") {
    fs::remove(Path("doctor.log"));  // It would be appended to.
    Process doctor({Path("on"), "n1",
                    absl::StrCat(SLACKLINE_BIN_DIR, "/slackline doctor ",
                                 config, " --out ", Path("run"), " ", flags)},
                   Path("doctor.log"));
    EXPECT_EQ(doctor.WaitText(kJobMax), exit) << doctor.Output();
    output_ = doctor.Output();
    std::vector<std::string> problems;
    for (const absl::string_view line :
         absl::StrSplit(output_, '\n', absl::SkipEmpty())) {
      // Builds differ while one works on them, and a busy machine is slow.
      if (absl::StartsWith(line, "job ") || absl::StartsWith(line, "ok: ") ||
          absl::StrContains(line, "is of another build") ||
          (!is_slow_ && absl::StrContains(line, "is usual"))) {
        continue;
      }
      problems.emplace_back(line);
    }
    return problems;
  }

  std::unique_ptr<Process> link_;
  bool is_slow_ = false;  // The link: that is to be found.
  std::vector<std::string> networks_;
  std::string output_;
};

#define REQUIRE_LINK(latency_ms, ...)                                    \
  if (!StartLink(latency_ms, {__VA_ARGS__})) {                           \
    GTEST_SKIP() << "no slow link on this machine: " << link_->Output(); \
  }

TEST_F(DoctorTest, FindsNothingWhereAllIsWell) {
  REQUIRE_LINK("0");
  SetUpHosts({}, {});
  EXPECT_THAT(Problems(Config(), kEndedWell, "--verbose"), ElementsAre());
  EXPECT_THAT(
      output_,
      AllOf(
          HasSubstr("ok: n1: names: n2 is 10.77.0.2, by tun0 (MTU 1500)"),
          HasSubstr("ok: n2: ports: 7802 (server 1) is free at 10.77.0.2"),
          HasSubstr("ok: n2: key: ZeroMQ can encrypt, and the key of the job "
                    "comes there by the agent (ssh)"),
          HasSubstr("ok: this machine: key: "),
          HasSubstr("ok: n2: network: to n1 at 10.77.0.1:7700 (coordinator): "),
          HasSubstr("job two-hosts: 0 errors, ")));
  for (const auto& entry : fs::recursive_directory_iterator(Path("")))
    EXPECT_FALSE(absl::StrContains(entry.path().string(), ".slackline-"));
  EXPECT_FALSE(fs::exists(Path("there")));
}

// All that hosts have of their own, at once.
TEST_F(DoctorTest, NamesFoldersDataVersionsAndPorts) {
  REQUIRE_LINK("0");
  for (const char* const folder : {"there", "data", "other-data", "shared"})
    fs::create_directory(Path(folder));
  for (const char* const file :
       {"data/train.csv", "data/test.csv", "other-data/test.csv"}) {
    Write(file, "1,0\n2,1\n");
  }
  Write("other-data/train.csv", "1,0\n2,2\n");
  const std::string bin_dir = BinDir();
  Program("other_server", "echo 'slackline_server 0.0.1 (x)'");
  SetUpHosts(
      {.script =
           absl::StrCat("mount -t tmpfs -o size=64k none ", Path("there"),
                        "\nhead -c 64k /dev/zero > ", Path("there/full"))},
      {.names = "127.0.0.1 localhost\n127.0.1.1 n2\n10.77.0.1 n1\n",
       .script = absl::StrCat(
           "mount --bind ", Path("other-data"), " ", Path("data"),
           "\nmount --bind ", Path("shared"), " ", Path("shared"),
           "\nmount -o remount,bind,ro ", Path("shared"), "\nmount --bind ",
           Path("other_server"), " ", Path("bin/slackline_server"))});
  Process listener({Path("on"), "n1",
                    "python3 -c 'import socket, time; s = socket.socket(); "
                    "s.bind((\"10.77.0.1\", 7700)); s.listen(); "
                    "print(1, flush=True); time.sleep(300)'"},
                   Path("listener.log"));
  ASSERT_TRUE(WaitUntil(kJobMax, [&] { return !listener.Output().empty(); }));
  const std::string config =
      Config(bin_dir,
             absl::StrCat("checkpoint { every_steps: 10 folder: \"",
                          Path("shared"), "\" }\n"),
             "csv { train: \"train.csv\" test: \"test.csv\" }");
  // As the job reaches its hosts.
  const std::string by_ssh = absl::StrCat(" -e ", Path("ssh"), " ");
  EXPECT_THAT(
      Problems(config, kFailed, absl::StrCat("--data-dir ", Path("data"))),
      ElementsAre(
          "error: n1: ports: 7700 (coordinator) is taken at 10.77.0.1 (it has "
          "to be free); on n1: ss -ltnp 'sport = :7700' says by whom; or --set "
          "coordinator.port=PORT",
          AllOf(StartsWith(absl::StrCat("error: n1: run folder: ",
                                        Path("there/run-"))),
                EndsWith(absl::StrCat(
                    " (to be made in ", Path("there"),
                    "): No space left on device (it has to be written to); on "
                    "n1: df -h ",
                    Path("there"),
                    ", and make room, or another by --out, or --set "
                    "launch.runs_dir=DIR"))),
          AllOf(StartsWith(absl::StrCat(
                    "error: n2: version: ", Path("bin/slackline_server"),
                    " is 0.0.1 (slackline here is ")),
                HasSubstr(absl::StrCat("; rsync -a", by_ssh, SLACKLINE_BIN_DIR,
                                       "/ n2:", Path("bin"), "/, or "))),
          "error: n2: names: n2 is 127.0.1.1 there, which only n2 itself "
          "reaches (others have to reach it); on n2: sudo sed -i "
          "'s/^127.0.1.1\\(.*n2\\)/10.77.0.2\\1/' /etc/hosts",
          absl::StrCat("error: n2: checkpoint folder: ", Path("shared"),
                       ": Read-only file system (it has to be written to); on "
                       "n2: sudo mount -o remount,rw $(findmnt -no TARGET -T ",
                       Path("shared"),
                       "), or another by --set checkpoint.folder=DIR"),
          AllOf(StartsWith("error: n2: data: train.csv has other bytes (hash "),
                HasSubstr(" (this machine has "),
                HasSubstr(absl::StrCat("; rsync -a --checksum", by_ssh,
                                       Path("data"), "/ n2:", Path("data"),
                                       "/, or ")))));
  // What mends the name does so.
  const std::string mends = "sudo sed -i ";
  const size_t at = output_.find(mends) + mends.size();
  const std::string edit =
      output_.substr(at, output_.find(" /etc/hosts", at) - at);
  Process mended(
      {"/bin/sh", "-c", absl::StrCat("sed -i ", edit, " ", Path("n2.names"))},
      Path("mended.log"));
  EXPECT_EQ(mended.WaitText(kJobMax), kEndedWell) << mended.Output();
  EXPECT_EQ(ReadText(Path("n2.names")),
            "127.0.0.1 localhost\n10.77.0.2 n2\n10.77.0.1 n1\n");
  // The page shows them, with paths of its own.
  std::vector<std::string> shown;
  for (const absl::string_view line : absl::StrSplit(output_, '\n')) {
    if (!absl::StartsWith(line, "error: ")) continue;
    const std::string named =
        absl::StrReplaceAll(line, {{by_ssh, " "},
                                   {Path("there"), "/scratch"},
                                   {Path("shared"), "/shared"},
                                   {Path("data"), "/data"},
                                   {Path("bin"), "/opt/slackline/bin"},
                                   {SLACKLINE_BIN_DIR, "/opt/slackline/bin"},
                                   {VersionNumber(), "0.1.0"}});
    // The end of the folder's name is of where the run is called.
    shown.push_back(std::regex_replace(named, std::regex("run-[0-9a-f]{8}"),
                                       "run-06ccabd3"));
  }
  EXPECT_THAT(
      ReadText(absl::StrCat(SLACKLINE_SOURCE_DIR, "/docs/manual/doctor.md")),
      HasSubstr(absl::StrJoin(shown, "\n")))
      << absl::StrJoin(shown, "\n");
}

// A run says so, too, before anything starts.
TEST_F(DoctorTest, AFilterInOneDirection) {
  REQUIRE_LINK("0", "--refuse-to-b");
  const std::string bin_dir = BinDir();
  SetUpHosts({}, {});
  const std::string config = Config(bin_dir);
  const std::string line =
      "error: n1: network: it does not reach n2 at 10.77.0.2:7802 (server 1): "
      "no answer within 1.5s, so packets are dropped on the way, though n2 "
      "reaches n1: a filter lets one direction through only (the job's "
      "processes connect so); on n2: sudo ufw allow 7802/tcp (or the like for "
      "its firewall)";
  EXPECT_THAT(Problems(config, kFailed), ElementsAre(line));
  Process run({Path("on"), "n1",
               absl::StrCat(SLACKLINE_BIN_DIR, "/slackline run ", config,
                            " --out ", Path("run"))},
              Path("run.log"));
  EXPECT_EQ(run.WaitText(kJobMax), kFailed);
  EXPECT_EQ(run.Output(),
            absl::StrCat("slackline run: the job would not start:\n", line,
                         "\n`slackline doctor`, with the same flags, looks "
                         "closer\n"));
  EXPECT_FALSE(fs::exists(Path("there")));
}

TEST_F(DoctorTest, ARunNamesACoordinatorWhoseNameIsNotKnown) {
  REQUIRE_LINK("0");
  SetUpHosts({}, {});
  const std::string config = Write(
      "nameless.textproto",
      absl::StrReplaceAll(
          ReadText(Config(BinDir())),
          {{"coordinator { host: \"n1\"", "coordinator { host: \"n9\""}}));
  Process run({Path("on"), "n1",
               absl::StrCat(SLACKLINE_BIN_DIR, "/slackline run ", config,
                            " --out ", Path("run"))},
              Path("run.log"));
  EXPECT_EQ(run.WaitText(kJobMax), kFailed);
  EXPECT_THAT(run.Output(), StartsWith("slackline run: coordinator.host: host "
                                       "n1: host n9: "));
}

TEST_F(DoctorTest, ARunHereNamesAPortThatIsTaken) {
  absl::StatusOr<PortReservation> port = PortReservation::AnyFree("127.0.0.1");
  ASSERT_TRUE(port.ok());
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<uint16_t>(port->port()));
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&at), sizeof(at)), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  const std::string config = Write("job.textproto", SmallJob());
  const struct {
    const char* label;
    std::vector<std::string> flags;
    const char* other;
  } cases[] = {
      {"server 1",
       {"--set", absl::StrCat("server[0].port=", port->port() - 1), "--set",
        "server[0].threads=1"},
       ""},
      {"health page of server 0",
       {"--set", absl::StrCat("health.port=", port->port())},
       "; or --set health.port=PORT"},
  };
  for (const auto& tested : cases) {
    const std::unique_ptr<Process> run = StartRun("run", config, tested.flags);
    EXPECT_EQ(run->WaitText(kJobMax), kFailed);
    EXPECT_THAT(
        run->Output(),
        HasSubstr(absl::StrCat(
            "error: 127.0.0.1: ports: ", port->port(), " (", tested.label,
            ") is taken at 127.0.0.1 (it has to be free); on 127.0.0.1: ss "
            "-ltnp 'sport = :",
            port->port(), "' says by whom", tested.other, "\n")));
  }
  close(listener);
}

TEST_F(DoctorTest, TheKeyOfAJobOnThisMachine) {
  const std::string config = Write("job.textproto", SmallJob());
  const std::string key = Path("user.key");
  const auto says = [&](const std::string& name, const std::string& how,
                        const std::vector<std::string>& more) {
    std::vector<std::string> words = {"doctor", config, "--verbose"};
    words.insert(words.end(), more.begin(), more.end());
    const std::unique_ptr<Process> doctor = StartTool(name, words);
    EXPECT_EQ(doctor->WaitText(kJobMax), how) << doctor->Output();
    return doctor->Output();
  };
  const std::string absent =
      absl::StrCat("error: this machine: key: --key ", key,
                   " is not there (the job takes its key from it); slackline "
                   "keys init --key ",
                   key, "\n");
  EXPECT_THAT(says("absent", kFailed, {"--key", key}), HasSubstr(absent));
  // What it says to do.
  const std::unique_ptr<Process> init =
      StartTool("init", {"keys", "init", "--key", key});
  EXPECT_EQ(init->WaitText(kJobMax), kEndedWell) << init->Output();
  EXPECT_THAT(says("there", kEndedWell, {"--key", key}),
              AllOf(HasSubstr(absl::StrCat("ok: this machine: key: ", key,
                                           ", named by --key, mode 600\n")),
                    HasSubstr("ok: 127.0.0.1: key: ZeroMQ can encrypt\n")));
  fs::permissions(key, fs::perms::group_read, fs::perm_options::add);
  EXPECT_THAT(
      says("open", kFailed, {"--key", key}),
      HasSubstr(absl::StrCat(
          "error: this machine: key: key file ", key,
          ": others can read or change it (its mode is 640, 600 is required), "
          "so it protects nothing; chmod 600 ",
          key, ", and make a new one")));
  EXPECT_THAT(says("insecure", kEndedWell, {"--set", "insecure=true"}),
              HasSubstr("warning: this machine: key: insecure: true: "));
}

// n1 still reaches n2, whose address it is told.
TEST_F(DoctorTest, ANameThatIsNotKnownALongWayAndSmallPackets) {
  REQUIRE_LINK("50", "--mtu=576");
  is_slow_ = true;
  const std::string bin_dir = BinDir();
  SetUpHosts({}, {.names = "127.0.0.1 localhost\n10.77.0.2 n2\n"});
  EXPECT_THAT(
      Problems(Config(bin_dir), kFailed),
      ElementsAre(
          AllOf(StartsWith("error: n2: names: n1 is not known there: "),
                HasSubstr(" (the job connects by it); on n2: echo '10.77.0.1 "
                          "n1' | sudo tee -a /etc/hosts")),
          "warning: n1: mtu: tun0, by which n2 is reached, has packets of 576 "
          "bytes (1500 are usual); on n1: sudo ip link set dev tun0 mtu 1500, "
          "if all of the network takes that",
          "warning: n2: mtu: tun0, by which n2 is reached, has packets of 576 "
          "bytes (1500 are usual); on n2: sudo ip link set dev tun0 mtu 1500, "
          "if all of the network takes that",
          AllOf(StartsWith("warning: n1: network: to n2 at 10.77.0.2:7802 "
                           "(server 1): 1"),
                HasSubstr(" ms round trip (below 20 ms is usual; each step "
                          "waits that long); --mode ssp:3, or put the hosts "
                          "nearer"))));
}

// n2 has two interfaces, and its name leads to the address of the one that n1
// is not behind. Whether n1 knows the other address changes nothing: what
// listens on n2 does so where n2's own name leads.
TEST_F(DoctorTest, ANameThatLeadsToTheWrongOfTwoInterfaces) {
  REQUIRE_LINK("0");
  const std::string bin_dir = BinDir();
  const std::string second_interface =
      "ip link show dev other > /dev/null 2>&1 || { ip tuntap add dev other "
      "mode tun; ip address add 10.88.0.2/24 dev other; ip link set dev other "
      "up; }";
  const std::string names = "127.0.0.1 localhost\n10.77.0.1 n1\n10.88.0.2 n2\n";
  const std::string fix =
      "on n2: sudo sed -i 's/^10.88.0.2\\(.*n2\\)/10.77.0.2\\1/' /etc/hosts";
  const std::string line = absl::StrCat(
      "error: n2: names: n2 is 10.88.0.2 there, of other, which no other host "
      "reaches (others have to reach it, as at 10.77.0.2 of tun0); ",
      fix, ", or 10.77.0.2 in place of n2 in the config or --hosts");
  const std::string config = Config(bin_dir);
  for (const std::string& names_of_n1 : {std::string(kGoodNames), names}) {
    SCOPED_TRACE(names_of_n1);
    SetUpHosts({.names = names_of_n1},
               {.names = names, .script = second_interface});
    EXPECT_THAT(Problems(config, kFailed), ElementsAre(line));
  }
  SetUpHosts({}, {.names = names, .script = second_interface});
  const auto run = [&](const char* exit) {
    Process process({Path("on"), "n1",
                     absl::StrCat(SLACKLINE_BIN_DIR, "/slackline run ", config,
                                  " --out ", Path("run"))},
                    Path("run.log"));
    EXPECT_EQ(process.WaitText(kJobMax), exit) << process.Output();
    return process.Output();
  };
  EXPECT_EQ(run(kFailed),
            absl::StrCat("slackline run: the job would not start:\n", line,
                         "\n`slackline doctor`, with the same flags, looks "
                         "closer\n"));
  // What mends it does so.
  const size_t at = fix.find("sed -i ");
  Process mended(
      {"/bin/sh", "-c",
       absl::StrReplaceAll(fix.substr(at), {{"/etc/hosts", Path("n2.names")}})},
      Path("mended.log"));
  EXPECT_EQ(mended.WaitText(kJobMax), kEndedWell) << mended.Output();
  EXPECT_EQ(ReadText(Path("n2.names")),
            "127.0.0.1 localhost\n10.77.0.1 n1\n10.77.0.2 n2\n");
  EXPECT_THAT(Problems(config, kEndedWell), ElementsAre());
}

TEST_F(DoctorTest, LargePacketsVanish) {
  REQUIRE_LINK("0", "--packet-bytes-max=1000");
  const std::string bin_dir = BinDir();
  SetUpHosts({}, {});
  const auto vanish = [](const std::string& from, const std::string& to) {
    return AllOf(
        StartsWith(absl::StrCat("error: ", from, ": network: to ", to, " at ")),
        HasSubstr(" small messages pass and large ones vanish: of "),
        HasSubstr(absl::StrCat("; on ", from, ": ping -M do -s 1472 ", to,
                               " finds the size; sudo ip link set dev tun0 mtu "
                               "SMALLER, or let ICMP pass")));
  };
  EXPECT_THAT(Problems(Config(bin_dir), kFailed),
              ElementsAre(vanish("n1", "n2"), vanish("n2", "n1")));
}

}  // namespace slackline::doctor_test
