#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/config/cluster_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/cli/doctor/diagnosis.h"
#include "tools/cli/doctor/replies.h"
#include "tools/cli/doctor/report_text.h"

namespace slackline::doctor_diagnosis_test {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr char kVersion[] = "slackline 0.1.0 (abc)";
constexpr int64_t kGiB = int64_t{1} << 30;

// n1 has the coordinator and a server, n2 a server, and all three a worker. All
// is well.
class Cluster {
 public:
  Cluster() {
    doctor::Job& job = *facts_.mutable_job();
    job.set_job("j");
    job.set_engine("ssh");
    job.set_version(kVersion);
    job.set_model_bytes(100'000'000);
    job.set_data_here("/d");
    job.set_data_there("/t");
    job.set_bin_here("/b");
    job.set_bin_there("/c");
    job.add_by_name("n1");
    job.set_has_key(true);
    facts_.mutable_here()->set_machine_id("here");
    facts_.mutable_key()->set_file("/h/key");
    facts_.mutable_key()->set_mode("600");
    for (int i = 1; i <= 3; ++i) AddHost(i);
    for (int from = 1; from <= 3; ++from) {
      for (int to = 1; to <= 3; ++to) AddPair(Name(from), Name(to));
    }
    AddPair("", "n1");
  }

  static std::string Name(int number) { return absl::StrCat("n", number); }
  doctor::Facts& facts() { return facts_; }
  doctor::HostNeed& need(int number) {
    return *facts_.mutable_job()->mutable_host(number - 1);
  }
  doctor::KeyFacts& key() { return *facts_.mutable_key(); }
  doctor::Job& job() { return *facts_.mutable_job(); }
  doctor::Host& host(int number) { return *facts_.mutable_host(number - 1); }
  doctor::HostFacts& at(int number) { return *host(number).mutable_facts(); }
  // What host `from` knows of the name of `to`.
  doctor::Name& name(int from, int to) {
    return *at(from).mutable_name(to - 1);
  }
  doctor::Pair& pair(const std::string& from, const std::string& to) {
    for (doctor::Pair& pair : *facts_.mutable_pair()) {
      if (pair.from() == from && pair.to() == to) return pair;
    }
    ADD_FAILURE() << from << " to " << to;
    return *facts_.mutable_pair(0);
  }
  void Cut(int from, int to) {
    doctor::Connection& connection =
        *pair(Name(from), Name(to)).mutable_connection(0);
    connection.set_state(doctor::Connection::NO_ANSWER);
    connection.set_detail("silence");
  }

  doctor::Report Diagnosis() const { return Diagnose(facts_); }
  // Lines of what is not fine.
  std::vector<std::string> Problems() const {
    std::vector<std::string> lines;
    const doctor::Report report = Diagnosis();
    for (const doctor::Finding& finding : report.finding()) {
      if (finding.level() != doctor::OK) lines.push_back(FindingLine(finding));
    }
    return lines;
  }

 private:
  void AddHost(int number) {
    doctor::HostNeed& need = *facts_.mutable_job()->add_host();
    need.set_name(Name(number));
    need.set_servers(number < 3 ? 1 : 0);
    need.set_workers(1);
    need.set_threads(2);
    need.set_server_bytes(kGiB);
    need.set_worker_bytes(kGiB);
    need.set_open_files(200);
    need.set_data(true);
    need.set_writes_checkpoints(number < 3);
    doctor::Host& host = *facts_.add_host();
    host.set_name(Name(number));
    host.set_clock_error_us(2000);
    doctor::HostFacts& there = *host.mutable_facts();
    there.set_version(kVersion);
    there.set_machine_id(Name(number));
    for (int other = 1; other <= 3; ++other) {
      doctor::Name& name = *there.add_name();
      name.set_name(Name(other));
      name.set_address(absl::StrCat("10.0.0.", other));
      name.set_interface("eth0");
      name.set_source(absl::StrCat("10.0.0.", number));
      name.set_mtu(1500);
      name.set_own(other == number);
    }
    there.mutable_limits()->set_open_files(1 << 20);
    there.mutable_limits()->set_address_bytes(-1);
    there.mutable_limits()->set_processes(-1);
    there.set_memory_bytes(8 * kGiB);
    there.set_shm_free_bytes(kGiB);
    for (const auto use : {doctor::Folder::RUN, doctor::Folder::CHECKPOINTS}) {
      doctor::FolderFacts& folder = *there.add_folder();
      folder.mutable_folder()->set_use(use);
      folder.mutable_folder()->set_path(use == doctor::Folder::RUN ? "/r/run"
                                                                   : "/s/c");
      folder.set_existing(use == doctor::Folder::RUN ? "/r" : "/s/c");
      folder.set_free_bytes(100 * kGiB);
    }
    doctor::DataFile& file = *there.add_data_file();
    file.set_name("train.csv");
    file.set_bytes(1000);
    file.set_hash(7);
    if (number == 1) *facts_.mutable_here()->add_data_file() = file;
    doctor::Opened::State& door = *host.mutable_opened()->add_door();
    door.set_label(number == 1 ? "coordinator" : "any port");
    door.set_port(7700);
    door.set_address(absl::StrCat("10.0.0.", number));
  }
  void AddPair(const std::string& from, const std::string& to) {
    doctor::Pair& pair = *facts_.add_pair();
    pair.set_from(from);
    pair.set_to(to);
    doctor::Connection& connection = *pair.add_connection();
    connection.set_state(doctor::Connection::OPEN);
    connection.set_label(to == "n1" ? "coordinator" : "any port");
    connection.set_endpoint(absl::StrCat("10.0.0.", to.substr(1), ":7700"));
    connection.set_round_trip_us(200);
    connection.set_bytes(8 << 20);
    connection.set_micros(10'000);
  }

  doctor::Facts facts_;
};

TEST(DoctorDiagnosis, FindsNothingWhereAllIsWell) {
  Cluster cluster;
  EXPECT_THAT(cluster.Problems(), IsEmpty());
  const doctor::Report report = cluster.Diagnosis();
  EXPECT_EQ(report.errors(), 0);
  EXPECT_THAT(ReportText(report, false),
              AllOf(HasSubstr("job j: 0 errors, 0 warnings; "),
                    HasSubstr(" checks are fine (version, names, ports, ")));
  EXPECT_EQ(ReportText(report, false).find('\n'),
            ReportText(report, false).size() - 1);
  EXPECT_THAT(ReportText(report, true),
              HasSubstr("ok: n2: network: to n1 at 10.0.0.1:7700 "
                        "(coordinator): 0.20 ms round trip, 839 MB/s\n"));
}

TEST(DoctorDiagnosis, SaysWhichKeyTheJobHasAndHowItTravels) {
  Cluster cluster;
  const auto text = [&] { return ReportText(cluster.Diagnosis(), true); };
  EXPECT_THAT(text(),
              AllOf(HasSubstr("\nok: this machine: key: /h/key, the user's, "
                              "mode 600\n"),
                    HasSubstr("\nok: n2: key: ZeroMQ can encrypt, and the key "
                              "of the job comes there by the agent (ssh)\n")));
  // For processes that are started by hand.
  const char* const kAnother =
      "note: n2: key: the user's key there is another than here";
  cluster.key().set_fingerprint("12ab");
  EXPECT_THAT(text(), Not(HasSubstr(kAnother))) << "n2 has none";
  cluster.at(2).set_key_fingerprint("12ab");
  EXPECT_THAT(text(), Not(HasSubstr(kAnother)));
  cluster.at(2).set_key_fingerprint("34cd");
  EXPECT_THAT(text(), AllOf(HasSubstr(kAnother),
                            HasSubstr("scp -p /h/key "
                                      "n2:.config/slackline/key")));
  cluster.key().set_given(true);
  EXPECT_THAT(text(), Not(HasSubstr(kAnother)));
  EXPECT_THAT(text(), HasSubstr("/h/key, named by --key, mode 600\n"));
  cluster.key().set_given(false);
  cluster.key().clear_mode();
  cluster.key().set_can_be_made(true);
  EXPECT_THAT(text(), HasSubstr("ok: this machine: key: /h/key is made when "
                                "the job starts\n"));
  cluster.job().set_engine("here");
  EXPECT_THAT(text(), HasSubstr("ok: n2: key: ZeroMQ can encrypt\n"));
  // As `slackline run` looks, which has the key in hand.
  cluster.facts().clear_key();
  EXPECT_THAT(text(), Not(HasSubstr("this machine: key")));
}

// What is changed, and the one line that comes of it.
struct Case {
  std::string name;
  std::function<void(Cluster&)> change;
  std::string line;
};

class DoctorFinds : public ::testing::TestWithParam<Case> {};

TEST_P(DoctorFinds, OneLine) {
  Cluster cluster;
  GetParam().change(cluster);
  EXPECT_THAT(cluster.Problems(), ElementsAre(GetParam().line));
  const bool error = absl::StartsWith(GetParam().line, "error: ");
  EXPECT_EQ(cluster.Diagnosis().errors(), error ? 1 : 0);
}

std::vector<Case> Cases() {
  const std::string all = " (the job's processes connect so); ";
  return {
      {"Agent", [](Cluster& c) { c.host(3).set_unreached("nobody answers"); },
       "error: n3: start: nobody answers"},
      {"WrongInterface",
       [](Cluster& c) {
         c.name(2, 2).set_address("10.9.0.2");
         c.name(2, 2).set_interface("eth1");
         c.Cut(1, 2);
         c.Cut(3, 2);
       },
       "error: n2: names: n2 is 10.9.0.2 there, of eth1, which no other host "
       "reaches (others have to reach it, as at 10.0.0.2 of eth0); on n2: sudo "
       "sed -i 's/^10.9.0.2\\(.*n2\\)/10.0.0.2\\1/' /etc/hosts, or 10.0.0.2 in "
       "place of n2 in the config or --hosts"},
      {"Version",
       [](Cluster& c) { c.at(2).set_version("slackline 0.0.9 (a)"); },
       "error: n2: version: slackline is 0.0.9 (slackline here is 0.1.0); "
       "rsync -a /b/ n2:/c/, or name the folder of the same version there by "
       "--set launch.bin_dir=DIR"},
      {"VersionBehindAnotherPort",
       [](Cluster& c) {
         c.job().set_ssh("ssh -p 2222");
         c.job().set_ssh_user("ann@");
         c.job().set_bin_here("/my bin");
         c.at(2).set_version("slackline 0.0.9 (a)");
       },
       "error: n2: version: slackline is 0.0.9 (slackline here is 0.1.0); "
       "rsync -a -e 'ssh -p 2222' '/my bin/' ann@n2:/c/, or name the folder of "
       "the same version there by --set launch.bin_dir=DIR"},
      {"Build", [](Cluster& c) { c.at(2).set_version("slackline 0.1.0 (a)"); },
       "warning: n2: version: slackline is of another build, (a) (slackline "
       "here is of (abc)); rsync -a /b/ n2:/c/, or name the folder of the same "
       "version there by --set launch.bin_dir=DIR"},
      {"Program",
       [](Cluster& c) {
         auto& program = *c.at(2).add_program();
         program.set_path("/c/slackline_worker");
         program.set_error("it is not there");
       },
       "error: n2: programs: /c/slackline_worker: it is not there (it has to "
       "start); rsync -a /b/ n2:/c/, or name the folder of the same version "
       "there by --set launch.bin_dir=DIR"},
      {"ProgramOfTheUser",
       [](Cluster& c) {
         auto& program = *c.at(2).add_program();
         program.set_of_user(true);
         program.set_path("train");
         program.set_error("it is not there");
       },
       "error: n2: programs: train: it is not there (it has to start); install "
       "it on n2, or name its path in worker { command }"},
      {"NameOfTheCoordinatorUnknown",
       [](Cluster& c) {
         c.name(2, 1).set_address("");
         c.name(2, 1).set_error("unknown");
       },
       "error: n2: names: n1 is not known there: unknown (the job connects by "
       "it); on n2: echo '10.0.0.1 n1' | sudo tee -a /etc/hosts"},
      {"NameUnknown",
       [](Cluster& c) {
         c.name(1, 2).set_address("");
         c.name(1, 2).set_error("unknown");
       },
       "warning: n1: names: n2 is not known there: unknown (the job does "
       "without); on n1: echo '10.0.0.2 n2' | sudo tee -a /etc/hosts"},
      {"NameUnknownHere",
       [](Cluster& c) {
         auto& name = *c.facts().mutable_here()->add_name();
         name.set_name("n1");
         name.set_error("unknown");
       },
       "error: this machine: names: n1 is not known here: unknown (slackline "
       "run follows the job there); echo '10.0.0.1 n1' | sudo tee -a "
       "/etc/hosts"},
      {"OwnNameIsLoopback",
       [](Cluster& c) {
         c.name(2, 2).set_address("127.0.1.1");
         c.Cut(1, 2);  // What follows from it is no finding of its own.
         c.Cut(3, 2);
       },
       "error: n2: names: n2 is 127.0.1.1 there, which only n2 itself reaches "
       "(others have to reach it); on n2: sudo sed -i "
       "'s/^127.0.1.1\\(.*n2\\)/10.0.0.2\\1/' /etc/hosts"},
      {"NameOfAnotherIsLoopback",
       [](Cluster& c) { c.name(3, 1).set_address("127.0.1.1"); },
       "error: n3: names: n1 is 127.0.1.1 there, which only n3 itself reaches "
       "(others have to reach it); on n3: sudo sed -i "
       "'s/^127.0.1.1\\(.*n1\\)/10.0.0.1\\1/' /etc/hosts"},
      {"NumericLoopback",
       [](Cluster& c) {
         c.facts().mutable_job()->add_by_name("127.0.0.1");
         c.name(1, 2).set_name("127.0.0.1");
         c.name(1, 2).set_address("127.0.0.1");
       },
       "error: n1: names: 127.0.0.1 is 127.0.0.1 there, which only n1 itself "
       "reaches (others have to reach it); write the host's address in its "
       "network into the config"},
      {"OwnNameIsElsewhere", [](Cluster& c) { c.name(3, 3).set_own(false); },
       "error: n3: names: n3 is 10.0.0.3 there, which is no address of this "
       "host (its processes listen at the address of its name); correct the "
       "name, or have it listen at all: --set server[N].listen=0.0.0.0"},
      {"TwoAddresses",
       [](Cluster& c) { c.name(3, 2).set_address("192.168.0.2"); },
       "warning: n3: names: n2 is 192.168.0.2 there, and 10.0.0.2 elsewhere "
       "(one address is expected); getent hosts n2 on both; write the right "
       "address into the config"},
      {"Mtu",
       [](Cluster& c) {
         for (int to = 1; to <= 3; ++to) c.name(1, to).set_mtu(576);
       },
       "warning: n1: mtu: eth0, by which n2 is reached, has packets of 576 "
       "bytes (1500 are usual); on n1: sudo ip link set dev eth0 mtu 1500, if "
       "all of the network takes that"},
      {"PortTaken",
       [](Cluster& c) {
         auto& door = *c.host(1).mutable_opened()->mutable_door(0);
         door.set_error("in use");
         door.set_taken(true);
       },
       "error: n1: ports: 7700 (coordinator) is taken at 10.0.0.1 (it has to "
       "be free); on n1: ss -ltnp 'sport = :7700' says by whom; or --set "
       "coordinator.port=PORT"},
      {"HealthPortTaken",
       [](Cluster& c) {
         auto& door = *c.host(1).mutable_opened()->add_door();
         door.set_label("health page of worker 0");
         door.set_port(8081);
         door.set_address("127.0.0.1");
         door.set_error("in use");
         door.set_taken(true);
       },
       "error: n1: ports: 8081 (health page of worker 0) is taken at 127.0.0.1 "
       "(it has to be free); on n1: ss -ltnp 'sport = :8081' says by whom; or "
       "--set health.port=PORT"},
      {"Clock", [](Cluster& c) { c.host(2).set_clock_ahead_us(-3'000'000); },
       "note: n2: clock: 3.000 s behind this machine's (to 0.002 s) (times in "
       "logs differ by that, and exchanges of keys need clocks that agree to "
       "much less than limits.lease_ms); on n2: sudo chronyc makestep"},
      {"OpenFiles",
       [](Cluster& c) { c.at(2).mutable_limits()->set_open_files(64); },
       "error: n2: open files: at most 64 for a process (at least 200 are "
       "needed); on n2: echo '* hard nofile 65536' | sudo tee -a "
       "/etc/security/limits.conf, and log in anew"},
      {"Addresses",
       [](Cluster& c) { c.at(2).mutable_limits()->set_address_bytes(kGiB); },
       "error: n2: addresses: at most 1.1 GB for a process (ulimit -v) (at "
       "least 1.5 GB are needed); on n2: ulimit -v unlimited before the agent "
       "starts, or ask the batch system for more memory"},
      {"AddressesForSharing",
       [](Cluster& c) {
         c.at(2).mutable_limits()->set_address_bytes(2 * kGiB);
       },
       "warning: n2: addresses: at most 2.1 GB for a process (ulimit -v) "
       "(shared memory takes 2.6 GB); on n2: ulimit -v unlimited before the "
       "agent starts, or ask the batch system for more memory"},
      {"Processes",
       [](Cluster& c) { c.at(3).mutable_limits()->set_processes(8); },
       "error: n3: processes: at most 8 processes and threads of the user (the "
       "job has about 10); on n3: echo '* hard nproc 4096' | sudo tee -a "
       "/etc/security/limits.conf, and log in anew"},
      {"Memory", [](Cluster& c) { c.at(1).set_memory_bytes(kGiB); },
       "error: n1: memory: 1.1 GB are free (about 2.1 GB are needed by 1 "
       "server and 1 worker); place fewer workers there, by --hosts "
       "HOST:WORKERS,..."},
      {"SharedMemory", [](Cluster& c) { c.at(1).set_shm_error("mmap: no"); },
       "warning: n1: shared memory: it cannot be mapped: mmap: no (processes "
       "of one host use it); --set limits.transport=TCP, or raise ulimit -v "
       "there"},
      {"DevShm",
       [](Cluster& c) {
         c.need(1).set_own_programs(true);
         c.at(1).set_shm_free_bytes(1'000'000);
       },
       "warning: n1: /dev/shm: 1 MB are free (PyTorch's DataLoader and NCCL "
       "take some 64 MB); on n1: sudo mount -o remount,size=1G /dev/shm (of a "
       "container: --shm-size=1g)"},
      {"DiskIsFull",
       [](Cluster& c) {
         c.at(2).mutable_folder(0)->set_error("No space left on device");
       },
       "error: n2: run folder: /r/run (to be made in /r): No space left on "
       "device (it has to be written to); on n2: df -h /r, and make room, or "
       "another by --out, or --set launch.runs_dir=DIR"},
      {"OneFolderForAll",
       [](Cluster& c) {
         for (auto& folder : *c.at(2).mutable_folder()) {
           folder.set_existing("/r");
           folder.set_error("Permission denied");
         }
       },
       "error: n2: run folder: /r/run (to be made in /r): Permission denied "
       "(it "
       "has to be written to); on n2: sudo chown $(id -un) /r, or another by "
       "--out, or --set launch.runs_dir=DIR"},
      {"DiskIsSmall",
       [](Cluster& c) {
         c.at(2).mutable_folder(0)->set_free_bytes(50'000'000);
       },
       "error: n2: run folder: /r/run (to be made in /r) has 50 MB free (at "
       "least 101 MB are needed); on n2: df -h /r, and make room, or another "
       "by --out, or --set launch.runs_dir=DIR"},
      {"CheckpointsMayNotFit",
       [](Cluster& c) {
         c.facts().mutable_job()->set_checkpoint_keep(3);
         c.at(2).mutable_folder(1)->set_free_bytes(1'000'000'000);
       },
       "warning: n2: checkpoint folder: /s/c has 1.0 GB free (1.2 GB would do "
       "for long); on n2: df -h /s/c, and make room, or another by --set "
       "checkpoint.folder=DIR"},
      {"CheckpointsAreNotShared",
       [](Cluster& c) {
         c.facts().mutable_job()->set_shares_checkpoints(true);
         auto& here = *c.facts().mutable_here()->add_folder();
         here.mutable_folder()->set_use(doctor::Folder::CHECKPOINTS);
         here.mutable_folder()->set_path("/s/c");
         c.host(1).mutable_marks_seen()->add_use(doctor::Folder::CHECKPOINTS);
       },
       "error: n2: checkpoint folder: /s/c there is not /s/c of this machine "
       "(all hosts that write there share one folder); name a folder that all "
       "of them mount by --set checkpoint.folder=DIR"},
      {"WorkingFolder",
       [](Cluster& c) {
         auto& folder = *c.at(3).add_folder();
         folder.mutable_folder()->set_use(doctor::Folder::WORKING);
         folder.mutable_folder()->set_path("/home/me/x");
         folder.set_existing("/home");
       },
       "error: n3: working folder: /home/me/x is not there (programs of "
       "workers run where slackline is called); on n3: mkdir -p /home/me/x"},
      {"DataMissing",
       [](Cluster& c) {
         c.at(2).mutable_data_file(0)->set_error("train.csv is not in /t");
       },
       "error: n2: data: train.csv is not in /t (its workers read it); rsync "
       "-a --checksum /d/ n2:/t/, or name its folder there by --set "
       "launch.data_dir=DIR"},
      {"DataOfAnotherSize",
       [](Cluster& c) { c.at(2).mutable_data_file(0)->set_bytes(999); },
       "error: n2: data: train.csv has 999 bytes (this machine has 1000); "
       "rsync -a --checksum /d/ n2:/t/, or name its folder there by --set "
       "launch.data_dir=DIR"},
      {"DataAreOnTheHostsAlone",
       [](Cluster& c) {
         c.facts().mutable_here()->clear_data_file();
         c.at(3).mutable_data_file(0)->set_hash(8);
       },
       "error: n3: data: train.csv has other bytes (hash 0000000000000008) (n1 "
       "has 0000000000000007); on n1: rsync -a --checksum /t/ n3:/t/, or name "
       "its folder there by --set launch.data_dir=DIR"},
      {"Python",
       [](Cluster& c) {
         c.at(2).mutable_python()->set_error("python3 is not there");
       },
       "error: n2: python: python3 is not there (workers start with it); "
       "install it on n2, or name another in worker { command }"},
      {"PythonPackage",
       [](Cluster& c) {
         c.at(2).mutable_python()->set_slackline_error("no module");
       },
       "warning: n2: python: import slackline: no module (scripts that join "
       "need it); --set launch.environment=PYTHONPATH=DIR, or install the "
       "wheel there"},
      {"Gpu", [](Cluster& c) { c.need(2).set_gpus(2); },
       "error: n2: gpu: 0 devices, no driver (2 are needed); on n2: nvidia-smi "
       "-L; or --set worker[N].device=CPU"},
      {"NobodyReachesAHost",
       [](Cluster& c) {
         c.Cut(1, 2);
         c.Cut(3, 2);
       },
       "error: n2: network: no other host reaches it, as 10.0.0.2:7700 (any "
       "port): silence" +
           all +
           "on n2: sudo ufw allow from n1 (or the like for its firewall), or "
           "fix ports by --set 'server[N].port=PORT' and open those"},
      {"AHostReachesNobody",
       [](Cluster& c) {
         c.Cut(3, 1);
         c.Cut(3, 2);
       },
       "error: n3: network: it reaches no other host, as 10.0.0.1:7700 "
       "(coordinator): silence" +
           all +
           "on n3: sudo nft list ruleset (or iptables -S OUTPUT) and ip route "
           "show what its packets meet"},
      {"AHostIsCutOff",
       [](Cluster& c) {
         c.Cut(1, 2);
         c.Cut(3, 2);
         c.Cut(2, 1);
         c.Cut(2, 3);
       },
       "error: n2: network: no other host reaches it, and it reaches none, as "
       "10.0.0.2:7700 (any port): silence" +
           all + "on n2: ip address; ip route"},
      {"OneDirection", [](Cluster& c) { c.Cut(2, 1); },
       "error: n2: network: it does not reach n1 at 10.0.0.1:7700 "
       "(coordinator): silence, though n1 reaches n2: a filter lets one "
       "direction through only" +
           all +
           "on n1: sudo ufw allow 7700/tcp (or the like for its firewall)"},
      {"OnlyFromHere",
       [](Cluster& c) {
         auto& connection = *c.pair("", "n1").mutable_connection(0);
         connection.set_state(doctor::Connection::REFUSED);
         connection.set_detail("Connection refused");
       },
       "error: this machine: network: it does not reach n1 at 10.0.0.1:7700 "
       "(coordinator): Connection refused" +
           all +
           "on n1: sudo ufw allow 7700/tcp (or the like for its firewall)"},
      {"NoRoute",
       [](Cluster& c) {
         auto& connection = *c.pair("n2", "n3").mutable_connection(0);
         connection.set_state(doctor::Connection::NO_ROUTE);
         connection.set_detail("No route to host");
       },
       "error: n2: network: it does not reach n3 at 10.0.0.3:7700 (any port): "
       "No route to host, though n3 reaches n2: a filter lets one direction "
       "through only" +
           all + "on n2: ip route get n3"},
      {"LargePacketsVanish",
       [](Cluster& c) {
         auto& connection = *c.pair("n2", "n3").mutable_connection(0);
         connection.set_state(doctor::Connection::STALLED);
         connection.set_detail("none of 9 bytes");
       },
       "error: n2: network: to n3 at 10.0.0.3:7700 (any port) small messages "
       "pass and large ones vanish: none of 9 bytes (packets of the "
       "interface's MTU have to pass); on n2: ping -M do -s 1472 n3 finds the "
       "size; sudo ip link set dev eth0 mtu SMALLER, or let ICMP pass"},
      {"Stranger",
       [](Cluster& c) {
         c.pair("n2", "n3")
             .mutable_connection(0)
             ->set_state(doctor::Connection::STRANGER);
       },
       "error: n2: network: at n3 at 10.0.0.3:7700 (any port) another program "
       "answers (the agent there has to); getent hosts n3 there, and correct "
       "the address"},
      {"LongWay",
       [](Cluster& c) {
         c.pair("n2", "n3").mutable_connection(0)->set_round_trip_us(100'000);
       },
       "warning: n2: network: to n3 at 10.0.0.3:7700 (any port): 100 ms round "
       "trip (below 20 ms is usual; each step waits that long); --mode ssp:3, "
       "or put the hosts nearer"},
      {"SlowLink",
       [](Cluster& c) {
         c.pair("n2", "n3").mutable_connection(0)->set_micros(8'000'000);
       },
       "warning: n2: network: to n3 at 10.0.0.3:7700 (any port): 0.20 ms round "
       "trip, 1 MB/s (more than 12 MB/s is usual); --set "
       "'sync.compression[0]={int8{} parameters:BFLOAT16}'"},
      {"Insecure",
       [](Cluster& c) {
         c.job().set_has_key(false);
         c.key().set_insecure(true);
         c.at(2).set_curve_error("libzmq is old");  // Nobody needs it then.
       },
       "warning: this machine: key: insecure: true: nothing on the wire is "
       "encrypted, and whoever reaches a port can read, change and stop the "
       "job (a key protects a job); take insecure out of the config"},
      {"InsecureWithAKey",
       [](Cluster& c) {
         c.job().set_has_key(false);
         c.key().set_insecure(true);
         c.key().set_given(true);
       },
       "error: this machine: key: --key /h/key, and insecure: true (with that "
       "a job has no key); leave out one of the two"},
      {"KeyThatOthersRead",
       [](Cluster& c) {
         c.key().set_mode("644");
         c.key().set_error(
             "key file /h/key: others can read it; chmod 600 K; "
             "and more");
       },
       "error: this machine: key: key file /h/key: others can read it; chmod "
       "600 K; and more"},
      {"GivenKeyThatIsNotThere",
       [](Cluster& c) {
         c.key().set_given(true);
         c.key().clear_mode();
       },
       "error: this machine: key: --key /h/key is not there (the job takes its "
       "key from it); slackline keys init --key /h/key"},
      {"KeyThatCannotBeMade", [](Cluster& c) { c.key().clear_mode(); },
       "note: this machine: key: /h/key cannot be made (each run gets a key of "
       "its own, and commands reach it by its folder; one on Kubernetes needs "
       "the file of a key); slackline keys init --key FILE, and --key FILE"},
      {"NoHome",
       [](Cluster& c) {
         c.key().clear_mode();
         c.key().clear_file();
       },
       "note: this machine: key: this user has no home, where a key could be "
       "kept (each run gets a key of its own, and commands reach it by its "
       "folder; one on Kubernetes needs the file of a key); slackline keys "
       "init "
       "--key FILE, and --key FILE"},
      {"ZeroMqThatCannotEncrypt",
       [](Cluster& c) {
         c.at(2).set_curve_error("libzmq 4.2 cannot encrypt; insecure: true");
       },
       "error: n2: key: libzmq 4.2 cannot encrypt (the job encrypts what it "
       "sends); install libzmq5 of the distribution on n2"},
      {"NotTried",
       [](Cluster& c) {
         c.pair("n2", "n3").clear_connection();
         c.pair("n2", "n3").set_error("too late");
       },
       "note: n2: network: to n3: too late"},
  };
}

INSTANTIATE_TEST_SUITE_P(Cases, DoctorFinds, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

TEST(DoctorDiagnosis, WhatItTellsToSetIsInTheConfig) {
  int count = 0;
  for (const Case& with : Cases()) {
    const std::vector<std::string> pieces = absl::StrSplit(with.line, "--set ");
    for (size_t i = 1; i < pieces.size(); ++i) {
      std::string set = pieces[i];
      const bool quoted = set[0] == '\'';
      if (quoted) set.erase(0, 1);
      set = set.substr(0, set.find_first_of(quoted ? "'" : " ,)"));
      config::ClusterConfig config;
      config.add_server();
      config.add_worker();
      const absl::Status fits =
          SetField(absl::StrReplaceAll(
                       set, {{"[N]", "[0]"}, {"DIR", "/d"}, {"PORT", "7701"}}),
                   &config);
      EXPECT_TRUE(fits.ok()) << set << ": " << fits;
      ++count;
    }
  }
  EXPECT_GE(count, 10);
}

TEST(DoctorDiagnosis, WhatIsFineOnOneMachineIsNotSaidOfIt) {
  Cluster cluster;
  for (int i = 1; i <= 3; ++i) {
    cluster.at(i).set_machine_id("here");
    for (int to = 1; to <= 3; ++to) {
      cluster.name(i, to).set_address(absl::StrCat("127.0.0.", to));
      cluster.name(i, to).set_own(true);
    }
  }
  EXPECT_THAT(cluster.Problems(), IsEmpty());
}

TEST(DoctorDiagnosis, ErrorsComeFirstThenWarningsAndNotes) {
  Cluster cluster;
  cluster.host(1).set_clock_ahead_us(9'000'000);
  cluster.at(2).set_shm_error("no");
  cluster.at(3).set_memory_bytes(1);
  const std::vector<std::string> problems = cluster.Problems();
  ASSERT_THAT(problems, SizeIs(3));
  EXPECT_THAT(problems[0], HasSubstr("error: n3: memory"));
  EXPECT_THAT(problems[1], HasSubstr("warning: n2: shared memory"));
  EXPECT_THAT(problems[2], HasSubstr("note: n1: clock"));
}

TEST(DoctorDiagnosis, AFindingIsOneLineWhateverAHostSays) {
  Cluster cluster;
  cluster.at(2).set_version("x\ny \033[2J");
  cluster.host(3).set_unreached(std::string(5000, 'u') + "\n");
  EXPECT_THAT(cluster.Problems(), Each(Not(HasSubstr("\n"))));
  EXPECT_THAT(cluster.Problems(), Each(Not(HasSubstr("\033"))));
  for (const std::string& line : cluster.Problems())
    EXPECT_LT(line.size(), 4000u);
}

TEST(DoctorDiagnosis, RefusesAnswersThatNoAgentSends) {
  doctor::Reply reply;
  reply.mutable_facts()->set_version("slackline 0.1.0 (abc)");
  EXPECT_TRUE(CheckReply(reply).ok());
  doctor::Reply long_text = reply;
  long_text.mutable_facts()->set_version(std::string(kDoctorTextMax + 1, 'v'));
  EXPECT_TRUE(absl::IsInvalidArgument(CheckReply(long_text)));
  doctor::Reply long_list = reply;
  for (int i = 0; i <= kDoctorListMax; ++i)
    long_list.mutable_facts()->add_name();
  EXPECT_TRUE(absl::IsInvalidArgument(CheckReply(long_list)));
  doctor::Reply number = reply;
  number.mutable_facts()->set_memory_bytes(-2);
  EXPECT_TRUE(absl::IsInvalidArgument(CheckReply(number)));
}

}  // namespace slackline::doctor_diagnosis_test
