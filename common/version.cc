#include "common/version.h"

#include <elf.h>
#include <link.h>

#include <cstdint>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace slackline {
namespace {

// In every program, as text that can be found there.
[[gnu::used]] constexpr char kStamp[] =
    "slackline version stamp: " SLACKLINE_VERSION " (" SLACKLINE_COMMIT ")";
constexpr size_t kStampNameBytes = sizeof("slackline version stamp: ") - 1;
constexpr size_t kVersionBytesMax = 200;

struct Search {
  ElfW(Addr) code = 0;  // Somewhere in the binary that is asked for.
  std::string build_id;
};

constexpr size_t Aligned(size_t bytes) { return (bytes + 3) / 4 * 4; }

// The description of the note of this type, or nothing.
std::string NoteIn(const char* notes, size_t bytes) {
  ElfW(Nhdr) header;
  while (bytes >= sizeof(header)) {
    std::memcpy(&header, notes, sizeof(header));
    const size_t name = Aligned(header.n_namesz);
    const size_t description = Aligned(header.n_descsz);
    if (bytes - sizeof(header) < name + description) return "";
    const char* const text = notes + sizeof(header);
    if (header.n_type == NT_GNU_BUILD_ID &&
        absl::string_view(text, header.n_namesz) ==
            absl::string_view("GNU", sizeof("GNU"))) {
      return absl::BytesToHexString(
          absl::string_view(text + name, header.n_descsz));
    }
    notes += sizeof(header) + name + description;
    bytes -= sizeof(header) + name + description;
  }
  return "";
}

int LookInto(dl_phdr_info* binary, size_t, void* search_data) {
  Search& search = *static_cast<Search*>(search_data);
  bool has_code = false;
  std::string build_id;
  for (int i = 0; i < binary->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = binary->dlpi_phdr[i];
    const ElfW(Addr) begin = binary->dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_LOAD && search.code >= begin &&
        search.code - begin < part.p_memsz) {
      has_code = true;
    }
    if (part.p_type == PT_NOTE && build_id.empty())
      build_id = NoteIn(reinterpret_cast<const char*>(begin), part.p_memsz);
  }
  if (has_code) search.build_id = build_id;
  return has_code ? 1 : 0;
}

}  // namespace

std::string VersionNumber() { return SLACKLINE_VERSION; }

std::string BuildCommit() { return SLACKLINE_COMMIT; }

std::string BuildId() {
  Search search{.code = reinterpret_cast<ElfW(Addr)>(&LookInto),
                .build_id = {}};
  dl_iterate_phdr(&LookInto, &search);
  return search.build_id;
}

std::string VersionText(absl::string_view program) {
  return absl::StrCat(program, " ", kStamp + kStampNameBytes);
}

std::string VersionInFile(absl::string_view file) {
  // No text of its own, which would be found in this program.
  const absl::string_view name(kStamp, kStampNameBytes);
  const size_t at = file.find(name);
  if (at == absl::string_view::npos) return "";
  const absl::string_view version =
      file.substr(at + name.size(), kVersionBytesMax);
  const size_t end = version.find(')');
  if (end == absl::string_view::npos) return "";
  return std::string(version.substr(0, end + 1));
}

}  // namespace slackline
