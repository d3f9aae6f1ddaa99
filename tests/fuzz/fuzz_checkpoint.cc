// Checkpoints: a manifest, as it is and with the hash that it should have, and
// the header and the tensors of its first part. What makes sense can be
// written, and is read again as it was.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/part_file.h"
#include "common/io/safetensors.h"
#include "common/io/state_hash.h"
#include "common/status.h"
#include "google/protobuf/util/json_util.h"
#include "tests/fuzz/input.h"

namespace slackline::fuzz {
namespace {

// A folder with a manifest and a part, both files in memory.
class Folder {
 public:
  Folder() {
    SL_CHECK(mkdtemp(path_.data()) != nullptr, path_);
    Link(manifest_, kManifestFile);
    Link(part_, "part");
  }
  ~Folder() {
    for (const char* const name : {kManifestFile, "part"})
      unlink(absl::StrCat(path_, "/", name).c_str());
    rmdir(path_.c_str());
  }
  const std::string& path() const { return path_; }
  MemoryFile& manifest() { return manifest_; }
  MemoryFile& part() { return part_; }

 private:
  void Link(const MemoryFile& file, const char* name) {
    const std::string link = absl::StrCat(path_, "/", name);
    SL_CHECK(symlink(file.path().c_str(), link.c_str()) == 0, link);
  }
  std::string path_ = "/tmp/slackline-fuzz-XXXXXX";
  MemoryFile manifest_;
  MemoryFile part_;
};

void ReadParts(Folder& folder, absl::Span<const uint8_t> bytes, int shards) {
  folder.part().Write(bytes.data(), bytes.size());
  checkpoint::Part part;
  part.set_file("part");
  part.set_bytes(static_cast<int64_t>(bytes.size()));
  part.set_shards(shards);
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), std::min(bytes.size(), sizeof(header)));
  if (header <= bytes.size() && bytes.size() - header >= sizeof(header))
    part.set_header_hash(BytesHash(bytes.data(), sizeof(header) + header));
  const auto file = PartFile::Open(folder.path(), part);
  if (!file.ok()) return;
  SL_CHECK((*file)->pieces().size() == static_cast<size_t>(shards), "shards");
  for (const PartFile::Piece& piece : (*file)->pieces()) {
    const auto read = (*file)->Read(piece);
    SL_CHECK(read.ok() == (*file)->Check(piece).ok(), read.status().ToString());
    if (!read.ok()) continue;
    std::vector<Payload> others = read->slots;
    if (read->turns.has_value()) {
      SL_CHECK(read->turns->tensors.size() == TensorCount(read->turns->turns),
               piece.table);
      others.insert(others.end(), read->turns->tensors.begin(),
                    read->turns->tensors.end());
    }
    SL_CHECK(StateHash(read->version, read->values, others) == piece.hash,
             piece.table);
  }
}

void Run(const uint8_t* data, size_t size) {
  static Folder folder;
  Input input(data, size);
  const int shards = input.Byte() % 4 + 1;
  const absl::Span<const uint8_t> text = input.Chunk();
  const absl::Span<const uint8_t> bytes = input.Chunk();
  folder.manifest().Write(text.data(), text.size());
  const auto read = ReadManifest(folder.path());
  SL_CHECK(!read.ok() || WhyNoManifest(*read).empty(), "bounds");

  // Nobody guesses a SHA-256.
  checkpoint::Manifest manifest;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  const auto parsed = google::protobuf::util::JsonStringToMessage(
      std::string(text.begin(), text.end()), &manifest, options);
  if (parsed.ok() && WhyNoManifest(manifest).empty()) {
    for (const int64_t elements : TableElements(manifest))
      SL_CHECK(elements >= 1, "elements");
  }
  ReadParts(folder, bytes, shards);
}

}  // namespace
}  // namespace slackline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  slackline::fuzz::Run(data, size);
  return 0;
}
