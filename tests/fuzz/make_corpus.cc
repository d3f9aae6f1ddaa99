// Writes the corpora of the fuzzers into the folder that is given: small
// inputs, made by what the project writes itself. Run it again when messages
// get other fields.
#include <sys/stat.h>
#include <zlib.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/part_file.h"
#include "common/config/cluster_config.h"
#include "common/io/safetensors.h"
#include "common/net/payload_frames.h"
#include "common/rng.h"
#include "common/status.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "job/job_config.h"
#include "proto/agent.pb.h"
#include "proto/doctor.pb.h"
#include "proto/timeline.pb.h"
#include "proto/wire.pb.h"
#include "server/coordinator/state/file_state_store.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/small_job.h"
#include "tools/cli/agent/agent_frames.h"

namespace slackline::fuzz {
namespace {

class Corpus {
 public:
  explicit Corpus(std::string folder) : folder_(std::move(folder)) {}

  // In the corpus of that fuzzer.
  std::string PathOf(const std::string& fuzzer, const std::string& name) {
    const std::string folder = absl::StrCat(folder_, "/", fuzzer);
    mkdir(folder.c_str(), 0777);
    return absl::StrCat(folder, "/", name);
  }
  void Add(const std::string& fuzzer, const std::string& name,
           const std::string& bytes) {
    std::ofstream file(PathOf(fuzzer, name), std::ios::binary);
    file << bytes;
    SL_CHECK(file.good(), name);
  }

 private:
  const std::string folder_;
};

// Small numbers, and twice each repeated field.
void Fill(Rng& rng, int depth, google::protobuf::Message* message) {
  using Field = google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  const google::protobuf::Descriptor& type = *message->GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const Field* const field = type.field(i);
    const auto* const choice = field->real_containing_oneof();
    if (choice != nullptr && reflection.HasOneof(*message, choice)) continue;
    if (choice != nullptr && i + 1 < type.field_count() && rng.Chance(0.6) &&
        type.field(i + 1)->real_containing_oneof() == choice) {
      continue;
    }
    const int64_t number = static_cast<int64_t>(rng.Below(4));
    const int times = field->is_repeated() ? 2 : 1;
    for (int k = 0; k < times; ++k) {
      switch (field->cpp_type()) {
#define SL_SET(kind, type, value)                                       \
  case Field::CPPTYPE_##kind:                                           \
    field->is_repeated() ? reflection.Add##type(message, field, value)  \
                         : reflection.Set##type(message, field, value); \
    break
        SL_SET(INT32, Int32, static_cast<int32_t>(number));
        SL_SET(INT64, Int64, number);
        SL_SET(UINT32, UInt32, static_cast<uint32_t>(number));
        SL_SET(UINT64, UInt64, static_cast<uint64_t>(number));
        SL_SET(DOUBLE, Double, static_cast<double>(number));
        SL_SET(FLOAT, Float, static_cast<float>(number));
        SL_SET(BOOL, Bool, number % 2 == 0);
        SL_SET(ENUM, EnumValue, static_cast<int>(number));
        SL_SET(STRING, String, absl::StrCat("s", number));
#undef SL_SET
        case Field::CPPTYPE_MESSAGE:
          if (depth == 0) break;
          Fill(rng, depth - 1,
               field->is_repeated()
                   ? reflection.AddMessage(message, field)
                   : reflection.MutableMessage(message, field));
          break;
      }
    }
  }
}

// One message of each kind, with payloads of one shard.
std::vector<Message> Messages(Rng& rng) {
  std::vector<Message> messages;
  const auto* const body = wire::Header::descriptor()->FindOneofByName("body");
  const Payload payload = Payload::Copy(std::string(16, '\0').data(), 16);
  for (int i = 0; i < body->field_count(); ++i) {
    Message message;
    message.header.set_view_number(2);
    message.header.set_run(kRun);
    Fill(rng, 4,
         message.header.GetReflection()->MutableMessage(&message.header,
                                                        body->field(i)));
    message.payloads.assign(i % 3, payload);
    messages.push_back(std::move(message));
  }
  return messages;
}

// What the owner of the last shard sends a follower: records behind a position
// that the copy has, or behind a snapshot; and the follower of the first one
// confirms.
void AddFeeds(Corpus* corpus) {
  const std::shared_ptr<const View> view = FollowedView();
  const ShardRange& range = view->shard(ShardId{view->shard_count() - 1});
  const Payload tensor = Payload::Copy(std::string(16, '\0').data(), 16);
  const auto entry = [&](wire::HandOver* feed) { return feed->add_record(); };
  const auto begin = [&](uint64_t term) {
    Message message;
    message.header.set_view_number(view->number());
    wire::HandOver& feed = *message.header.mutable_hand_over();
    feed.set_shard(static_cast<int32_t>(range.shard));
    feed.mutable_feed()->set_follower(kFollowedSince);
    feed.mutable_feed()->set_term(term);
    feed.set_position(1);
    return message;
  };
  const auto gradient = [&](Message* message) {
    wire::ShardRecord::Gradient& record =
        *entry(message->header.mutable_hand_over())
             ->mutable_record()
             ->mutable_gradient();
    const wire::WorkerMember& worker = *view->FindWorker(Rank{0});
    record.mutable_who()->set_incarnation(worker.incarnation());
    record.set_held(true);
    record.mutable_options()->set_momentum(0.5);
    message->payloads.push_back(tensor);
  };
  Message resumed = begin(4);
  entry(resumed.header.mutable_hand_over())->mutable_resume();
  gradient(&resumed);
  Message summed = begin(4);
  entry(summed.header.mutable_hand_over())->mutable_resume();
  wire::ShardRecord::Sum& sum = *entry(summed.header.mutable_hand_over())
                                     ->mutable_record()
                                     ->mutable_sum();
  sum.mutable_options()->set_momentum(0.5);
  for (const wire::WorkerMember& worker : view->workers()) {
    wire::ShardParticipant::Id& who = *sum.add_who();
    who.set_rank(worker.rank());
    who.set_incarnation(worker.incarnation());
  }
  summed.payloads.push_back(tensor);
  Message copied = begin(6);
  wire::HandOver& feed = *copied.header.mutable_hand_over();
  wire::ShardSnapshot& snapshot = *entry(&feed)->mutable_snapshot();
  snapshot.set_begin(range.region.begin());
  snapshot.set_end(range.region.end());
  for (const wire::WorkerMember& worker : view->workers()) {
    wire::ShardParticipant& who = *snapshot.add_participant();
    who.mutable_id()->set_rank(worker.rank());
    who.mutable_id()->set_incarnation(worker.incarnation());
    who.set_next_seq(1);
  }
  for (int part = 0; part < 2; ++part) {  // Values and momentum.
    entry(&feed)->mutable_part()->set_tensor(part);
    copied.payloads.push_back(tensor);
  }
  gradient(&copied);
  entry(&feed)->mutable_record()->mutable_split()->set_at(range.region.begin() +
                                                          1);
  feed.mutable_record()->rbegin()->mutable_record()->mutable_split()->set_part(
      view->shard_count());
  Message lacking = begin(8);
  entry(lacking.header.mutable_hand_over())->mutable_resume()->set_index(9);
  Message confirmed;
  confirmed.header.set_view_number(view->number());
  wire::HandOverReply& reply = *confirmed.header.mutable_hand_over_reply();
  reply.mutable_feed()->set_follower(kFollowedSince);
  reply.mutable_feed()->set_term(2 * view->number());
  reply.set_have(1);
  Message lacks = confirmed;
  lacks.header.mutable_hand_over_reply()->set_lacks(true);
  const std::string from_thread(1, '\x0a');  // And then a flush.
  const auto put = [&](const char* name, std::vector<Message> messages) {
    std::string all;
    for (const Message& message : messages)
      absl::StrAppend(&all, from_thread, BytesOf(message));
    corpus->Add("shard", name, all);
  };
  put("feed-resumed", {resumed, confirmed});
  put("feed-summed", {summed, confirmed});
  put("feed-copied", {lacking, copied, lacks, confirmed});
  feed.add_record()->mutable_go()->set_move(3);
  put("feed-go", {resumed, copied});
}

// Two ranks that send their parts of two pieces, and one that does so again.
void AddSums(Corpus* corpus) {
  const std::shared_ptr<const View> view = RunningView();
  std::string all;
  for (const int turn : {0, 1, 2, 3, 4}) {
    Message message;
    wire::SumRequest& request = *message.header.mutable_sum_request();
    request.set_group(view->proto().group());
    request.set_rank(turn % 2);
    request.set_ranks(kWorkers);
    request.set_operation(1);
    request.set_piece(turn / 2 % 2);
    const std::string zeros(16, '\0');
    message.payloads.push_back(Payload::Copy(zeros.data(), zeros.size()));
    absl::StrAppend(&all, std::string(1, static_cast<char>(turn % 2)),
                    BytesOf(message));
  }
  corpus->Add("sums", "two-ranks", all);
}

// A header frame with the sizes of three payloads, and what they share.
void AddFrames(Corpus* corpus) {
  std::vector<Payload> payloads;
  for (const size_t bytes : {3, 0, 5})
    payloads.push_back(Payload::Allocate(bytes));
  std::string header(PayloadSizesBytes(payloads.size()), '\0');
  WritePayloadSizes(payloads, reinterpret_cast<std::byte*>(header.data()));
  header += "header";
  const std::string chunk =
      std::string{static_cast<char>(header.size()), '\0'} + header;
  corpus->Add("frames", "one", chunk + std::string{8, 1});
  corpus->Add("frames", "two", chunk + std::string{3, 1, 5, 1});
  corpus->Add("frames", "three", chunk + std::string{3, 1, 0, 0, 5, 1});
  corpus->Add("frames", "without", std::string{1, 0, 8, 7, 7, 0, 0, 127, 127});
}

void AddMessages(Corpus* corpus) {
  Rng rng(1);
  for (int round = 0; round < 3; ++round) {
    std::string all;
    int kind = 0;
    for (const Message& message : Messages(rng)) {
      const std::string name = absl::StrCat("kind", kind++, "-", round);
      corpus->Add("header", name, message.header.SerializeAsString());
      all += absl::StrCat(std::string(1, static_cast<char>(kind % 4)),
                          BytesOf(message));
    }
    for (const char* const fuzzer :
         {"coordinator", "shard", "sums", "worker", "server"})
      corpus->Add(fuzzer, absl::StrCat("all-", round), all);
  }
  AddFeeds(corpus);
  AddSums(corpus);
  AddFrames(corpus);
  // What a server and a worker begin with.
  Message join;
  *join.header.mutable_join_request() = WorkerJoin(0);
  Message lease;
  lease.header.set_run(kRun);
  wire::Call& call = *lease.header.mutable_call();
  call.set_call_id(1);
  call.set_incarnation(2);
  call.mutable_next_examples();
  corpus->Add("coordinator", "lease",
              absl::StrCat(std::string(1, '\x41'), BytesOf(lease)));
  corpus->Add("coordinator", "join",
              absl::StrCat(std::string(1, '\x81'), BytesOf(join)));
}

std::string Idx(const std::vector<uint8_t>& header_and_data) {
  return {header_and_data.begin(), header_and_data.end()};
}

std::string Npy(const std::string& type, const std::string& shape,
                const std::vector<uint8_t>& numbers) {
  const std::string header =
      absl::StrCat("{'descr': '", type,
                   "', 'fortran_order': False, 'shape': ", shape, ", }\n");
  return absl::StrCat("\x93NUMPY\1", std::string(1, '\0'),
                      std::string(1, static_cast<char>(header.size())),
                      std::string(1, '\0'), header,
                      std::string(numbers.begin(), numbers.end()));
}

std::string Gzip(const std::string& bytes) {
  const MemoryFile memory;
  gzFile file = gzopen(memory.path().c_str(), "wb9");
  SL_CHECK(file != nullptr &&
               gzwrite(file, bytes.data(),
                       static_cast<unsigned>(bytes.size())) > 0 &&
               gzclose(file) == Z_OK,
           "compress into memory");
  std::ifstream in(memory.path(), std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string Chunk(const std::string& bytes) {
  return absl::StrCat(std::string(1, static_cast<char>(bytes.size() & 255)),
                      std::string(1, static_cast<char>(bytes.size() >> 8)),
                      bytes);
}

// A manifest and its part: a table without a state, and one with two slots.
// With `turns` it is of a job with given delays.
void AddCheckpoint(const std::string& name, bool turns, Corpus* corpus) {
  std::string folder = "/tmp/slackline-corpus-XXXXXX";
  SL_CHECK(mkdtemp(folder.data()) != nullptr, folder);
  const std::vector<float> values = {1, 2, 3};
  const Payload floats = Payload::Copy(values.data(), 12);
  std::vector<ShardState> shards = {
      {.table = "a", .region = {0, 3}, .values = floats},
      {.table = "b.weight[0, 1)",
       .region = {3, 6},
       .version = 7,
       .values = floats,
       .slots = {floats, floats}}};
  if (turns) {
    shards[0].turns.emplace();
    StoredTurns& waits = shards[1].turns.emplace();
    waits.turns.set_over(6);
    waits.turns.add_waiting()->set_clock(5);
    waits.turns.mutable_waiting(0)->set_base(4);
    waits.turns.add_kept()->set_turns(4);
    waits.turns.mutable_kept(0)->set_version(4);
    waits.turns.set_remembers(true);
    waits.tensors = {floats, floats, floats};
  }
  const auto part = WritePart(folder, "part", shards);
  SL_CHECK(part.ok(), part.status().ToString());
  checkpoint::Manifest manifest;
  manifest.set_format(kCheckpointFormat);
  manifest.set_job("digits");
  manifest.set_workers(2);
  manifest.set_steps_per_epoch(10);
  manifest.set_clock(4);
  manifest.add_worker()->set_clock(5);
  manifest.add_table()->set_name("a");
  manifest.mutable_table(0)->add_shape(3);
  manifest.add_table()->set_name("b.weight[0, 1)");
  manifest.mutable_table(1)
      ->mutable_optimizer()
      ->mutable_adam()
      ->set_learning_rate(0.001);
  for (const int64_t extent : {2, 3})
    manifest.mutable_table(1)->add_shape(extent);
  *manifest.add_part() = *part;
  manifest.add_kept()->set_rank(1);
  manifest.mutable_kept(0)->set_file("worker-1.state");
  manifest.mutable_kept(0)->set_bytes(5);
  if (turns) {
    manifest.mutable_delays()->set_given("uniform:2");
    manifest.mutable_delays()->add_stale("gap_aware { }");
  }
  const absl::Status written = WriteManifest(folder, manifest);
  SL_CHECK(written.ok(), written.ToString());
  std::string input(1, '\1');  // Two shards.
  for (const char* const name : {kManifestFile, "part"}) {
    std::ifstream file(absl::StrCat(folder, "/", name), std::ios::binary);
    input += Chunk({std::istreambuf_iterator<char>(file), {}});
  }
  corpus->Add("checkpoint", name, input);
  std::filesystem::remove_all(folder);
}

// The state of a coordinator: written anew, and changed.
void AddStateFile(Corpus* corpus) {
  std::string folder = "/tmp/slackline-corpus-XXXXXX";
  SL_CHECK(mkdtemp(folder.data()) != nullptr, folder);
  const std::string path = absl::StrCat(folder, "/state");
  SL_CHECK(FileStateStore::Create(path).ok(), path);
  for (const std::vector<StateChange>& changes :
       {std::vector<StateChange>{{"view", "1"}, {"member/1", "a"}},
        {{"view", "2"}, {"member/1", std::nullopt}}}) {
    const auto store = FileStateStore::Open(path);
    SL_CHECK(store.ok(), store.status().ToString());
    const absl::Status status = (*store)->Commit(changes);
    SL_CHECK(status.ok(), status.ToString());
  }
  std::ifstream file(path, std::ios::binary);
  corpus->Add("state_file", "two", {std::istreambuf_iterator<char>(file), {}});
  std::filesystem::remove_all(folder);
}

void AddFiles(Corpus* corpus) {
  const std::string images = Idx(
      {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2, 0, 1, 2, 3, 4, 5, 6, 7});
  const std::string labels = Idx({0, 0, 8, 1, 0, 0, 0, 2, 3, 9});
  corpus->Add("idx", "plain", Chunk(images) + Chunk(labels));
  corpus->Add("idx", "gzip", Chunk(Gzip(images)) + Chunk(Gzip(labels)));
  const std::string colours =
      Idx({0, 0, 8, 4, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0,  1,
           0, 0, 0, 3, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  const std::string integers =
      Idx({0, 0, 12, 1, 0, 0, 0, 2, 0, 0, 1, 0, 0, 0, 0, 0});
  corpus->Add("idx", "channels", Chunk(colours) + Chunk(integers));
  const std::string bytes = Npy("|u1", "(2, 2, 2)", {0, 1, 2, 3, 4, 5, 6, 7});
  const std::string floats =
      Npy("<f4", "(2, 1)", {0, 0, 128, 63, 0, 0, 0, 192});
  const std::string classes = Npy("<i2", "(2,)", {3, 0, 255, 255});
  corpus->Add("npy", "images", Chunk(bytes) + Chunk(classes));
  corpus->Add("npy", "floats", Chunk(floats) + Chunk(Gzip(classes)));
  const std::string csv = "\"a \"\"b\"\"\", y,c\r\n1,2,3\n -1.5e3 ,\"0\",4\n";
  corpus->Add("csv", "plain", Chunk(csv) + Chunk(csv));
  corpus->Add("csv", "gzip", Chunk(Gzip(csv)) + Chunk("a,y\n1,0\n"));
  const std::string svm = "+1 1:1 3:0.5\n-1 2:1e-3 123:4\n\n+1\n";
  corpus->Add("libsvm", "plain", svm);
  corpus->Add("libsvm", "gzip", Gzip(svm));
  corpus->Add("gzip", "plain", svm);
  corpus->Add("gzip", "packed", Gzip(svm));
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const absl::Status written = WriteSafetensors(
      corpus->PathOf("safetensors", "two"),
      {{.name = "a.weight", .shape = {2, 2}, .values = {values.data(), 4}},
       {.name = "b", .shape = {}, .values = {values.data(), 1}}},
      {{"job", "mnist"}});
  SL_CHECK(written.ok(), written.ToString());
  AddCheckpoint("two", /*turns=*/false, corpus);
  AddCheckpoint("turns", /*turns=*/true, corpus);
  AddStateFile(corpus);
  corpus->Add("delay_trace", "bsp",
              "{\"ns\":1,\"event\":\"pull\",\"shard\":0,\"rank\":0,\"clock\":0,"
              "\"min_clock\":0,\"version\":0}\n"
              "{\"ns\":2,\"event\":\"push\",\"shard\":0,\"rank\":0,\"clock\":0,"
              "\"min_clock\":0,\"version\":0}\n"
              "{\"ns\":3,\"event\":\"update\",\"shard\":0,\"rank\":0,\"clock\":"
              "0,\"min_clock\":1,\"version\":1,\"ranks\":[0],\"workers\":1}\n");
  corpus->Add("delay_trace", "name", "uniform:4");
  timeline::Part part;
  part.add_name("step");
  part.set_from_nanos(1000);
  part.set_until_nanos(2000);
  timeline::Thread& thread = *part.add_thread();
  thread.set_name("trainer");
  for (const int64_t number : {0, 1}) {
    thread.add_name_index(0);
    thread.add_begun_nanos(10);
    thread.add_took_nanos(5);
    thread.add_flow(7);
    thread.add_number(number);
  }
  corpus->Add("timeline", "steps", part.SerializeAsString());
  const auto config = ParseJobConfig(
      "job: \"a\" server { host: \"127.0.0.1\" } worker { host: \"127.0.0.1\" "
      "count: 2 } model { softmax {} } data { libsvm { train: \"a\" test: "
      "\"b\" features: 3 "
      "} "
      "batch_size: 2 } optimizer { momentum { learning_rate: 0.1 momentum: 0.9 "
      "} } sync { ssp { staleness: 2 } } train { epochs: 1 }",
      "corpus");
  if (!config.ok())
    std::fprintf(stderr, "%s\n", config.status().ToString().c_str());
  if (config.ok()) corpus->Add("config", "all-defaults", ToText(*config));
  corpus->Add("experiment", "compare",
              "name: \"compare\"\nbase: \"mnist.textproto\"\nseed: 1\nseed: 2\n"
              "variant { name: \"bsp\" mode: \"bsp\" }\n"
              "variant { name: \"ssp\" mode: \"ssp:3\" set: "
              "\"train.epochs=2\" }\n");
}

// What agents and `slackline run` say to each other.
void AddAgents(Corpus* corpus) {
  agent::FromAgent hello;
  hello.mutable_hello()->set_version("0.1.0");
  hello.mutable_hello()->set_cores(2);
  agent::FromAgent answer;
  answer.mutable_answer()->set_request(1);
  answer.mutable_answer()->set_text("folder /a cannot be made");
  agent::FromAgent exit;
  exit.mutable_exit()->mutable_member()->set_index(1);
  exit.mutable_exit()->set_signal(9);
  agent::FromAgent part;
  part.mutable_file_part()->set_name("logs/worker-1.log");
  part.mutable_file_part()->set_data("line");
  corpus->Add(
      "agent", "said",
      absl::StrCat("motd", kAgentGreeting, AgentFrame(hello),
                   AgentFrame(answer), AgentFrame(exit), AgentFrame(part)));
  agent::ToAgent begin;
  begin.mutable_begin()->set_run_folder("/runs/a");
  begin.mutable_begin()->add_program("/bin/worker");
  agent::ToAgent start;
  start.mutable_start()->add_command("/bin/worker");
  (*start.mutable_start()->mutable_environment())["A"] = "b";
  agent::ToAgent port;
  port.mutable_reserve_port()->set_host("h1");
  corpus->Add(
      "agent", "asked",
      absl::StrCat(AgentFrame(begin), AgentFrame(start), AgentFrame(port)));
  agent::ToAgent question;
  doctor::Question& asked = *question.mutable_question();
  asked.mutable_look()->add_name("n1");
  asked.mutable_look()->add_folder()->set_path("/runs/a");
  agent::FromAgent reply;
  reply.mutable_answer()->mutable_reply()->mutable_facts()->set_version("a");
  corpus->Add("agent", "doctor", AgentFrame(question));
  corpus->Add("agent", "doctor-answer", AgentFrame(reply));
  corpus->Add("agent", "name", "logs/worker-1.log");
}

// What hosts say to `slackline doctor`, with two of each list.
void AddDoctor(Corpus* corpus) {
  doctor::Facts facts;
  Rng rng(1);
  Fill(rng, 5, &facts);
  facts.clear_job();
  corpus->Add("doctor", "filled", facts.SerializeAsString());
  doctor::Facts small;
  small.mutable_here()->set_version("slackline 0.1.0 (abc)");
  doctor::HostFacts& host = *small.add_host()->mutable_facts();
  host.set_version("slackline 0.1.0 (abc)");
  host.set_machine_id("a");
  doctor::Name& name = *host.add_name();
  name.set_name("n1");
  name.set_address("127.0.1.1");
  small.add_host()->mutable_facts()->set_machine_id("b");
  doctor::Pair& pair = *small.add_pair();
  pair.set_from("n1");
  pair.set_to("n2");
  pair.add_connection()->set_state(doctor::Connection::NO_ANSWER);
  corpus->Add("doctor", "names-and-network", small.SerializeAsString());
}

// What somebody between two ranks does, see fuzz_ring.cc: nothing, but for a
// bit, a greeting that is not theirs, and records that he repeats or cuts.
void AddRing(Corpus* corpus) {
  // To the accepting end (0) or the connecting one (4): so much arrives.
  const std::string handshake("\0\xff\4\xff\0\xff", 6);
  const std::string seal("\x84\x0c", 2);  // A text of 17 bytes, one of 2.
  const std::string arrive("\0\xff", 2);
  for (const char keys : {'\0', '\1', '\2', '\3'}) {
    corpus->Add("ring", absl::StrCat("keys-", static_cast<int>(keys)),
                absl::StrCat(std::string(1, keys), handshake));
  }
  const std::string begin(1, '\0');
  const std::string to_accepting(1, '\0');
  const std::string both = absl::StrCat(begin, handshake, to_accepting);
  corpus->Add("ring", "records",
              absl::StrCat(both, seal, arrive, seal, arrive));
  corpus->Add("ring", "record-flipped",
              absl::StrCat(both, seal, "\x21\x05", arrive));
  corpus->Add("ring", "record-left-out",
              absl::StrCat(both, seal, "\x03\x25", arrive));
  corpus->Add(
      "ring", "record-in-pieces",
      absl::StrCat(both, seal, std::string("\0\3\0\3\0\x20", 6), arrive));
  corpus->Add("ring", "greeting-flipped",
              absl::StrCat(begin, "\x41\x28", handshake));
  corpus->Add("ring", "stranger",
              absl::StrCat(begin, std::string("\2\x28\0", 3),
                           std::string(40, 'G'), handshake));
}

}  // namespace
}  // namespace slackline::fuzz

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_corpus FOLDER\n");
    return 2;
  }
  slackline::fuzz::Corpus corpus(argv[1]);
  slackline::fuzz::AddMessages(&corpus);
  slackline::fuzz::AddFiles(&corpus);
  slackline::fuzz::AddAgents(&corpus);
  slackline::fuzz::AddDoctor(&corpus);
  slackline::fuzz::AddRing(&corpus);
  return 0;
}
