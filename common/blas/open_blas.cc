#include "common/blas/open_blas.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace slackline {
namespace {

// OpenBLAS may take these on a processor that it does not know.
constexpr std::array<const char*, 6> kWithoutAvx = {
    "Prescott", "Core2", "Penryn", "Dunnington", "Nehalem", "Katmai"};

bool HasAvx2AndFma() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") != 0 &&
         __builtin_cpu_supports("fma") != 0;
#else
  return false;
#endif
}

// Calls `use` for the handle of each library of that name that is loaded.
template <typename Use>
void ForEachBlas(const Use& use) {
  std::vector<std::string> files;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* to) {
        static_cast<std::vector<std::string>*>(to)->emplace_back(
            info->dlpi_name);
        return 0;
      },
      &files);
  for (const std::string& file : files) {
    if (!absl::StrContains(file, "blas")) continue;
    void* const library = dlopen(file.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) continue;
    use(library);
    dlclose(library);
  }
}

// Whether a thread of this process but the caller's is at work.
bool OthersRun() {
  std::error_code error;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/self/task", error)) {
    if (task.path().filename() == absl::StrCat(gettid())) continue;
    std::ifstream file(task.path() / "stat");
    std::string stat;
    std::getline(file, stat);
    // Behind the name, which may have any characters.
    const size_t name_end = stat.rfind(") ");
    if (name_end != std::string::npos && stat[name_end + 2] != 'S') return true;
  }
  return false;
}

// False: somebody else works all the time. The threads of OpenBLAS and OpenMP
// themselves spin for a moment when their work is done.
bool AwaitQuiet() {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + std::chrono::milliseconds(500);
  while (OthersRun()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

template <typename Function>
Function FunctionOf(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

void SetOpenBlasThreads(int threads) {
  ForEachBlas([threads](void* library) {
    // Wheels give the functions a prefix or a suffix of their own.
    for (const char* const name :
         {"openblas_set_num_threads", "openblas_set_num_threads64_",
          "scipy_openblas_set_num_threads",
          "scipy_openblas_set_num_threads64_"}) {
      if (const auto set = FunctionOf<void (*)(int)>(library, name);
          set != nullptr) {
        set(threads);
        break;
      }
    }
  });
}

OpenBlasKernels ChooseOpenBlasKernels() {
  OpenBlasKernels kernels;
  if (!HasAvx2AndFma()) return kernels;
  ForEachBlas([&kernels](void* library) {
    if (!kernels.changed && !kernels.sentence.empty()) return;  // Others run.
    const auto name_of =
        FunctionOf<const char* (*)()>(library, "openblas_get_corename");
    const auto forget =
        FunctionOf<void (*)()>(library, "gotoblas_dynamic_quit");
    const auto choose =
        FunctionOf<void (*)()>(library, "gotoblas_dynamic_init");
    // One that was built for one processor has no choice.
    if (name_of == nullptr || forget == nullptr || choose == nullptr) return;
    const std::string before = name_of();
    if (std::none_of(kWithoutAvx.begin(), kWithoutAvx.end(),
                     [&before](const char* name) {
                       return absl::EqualsIgnoreCase(before, name);
                     })) {
      return;
    }
    if (!AwaitQuiet()) {
      kernels.sentence = absl::StrCat(
          "OpenBLAS does not know this processor and computes with its kernels "
          "for ",
          before,
          ", which are slower than those for Haswell; other threads "
          "run already, so it is left at that: start with "
          "OPENBLAS_CORETYPE=Haswell in the environment");
      return;
    }
    setenv("OPENBLAS_CORETYPE", "Haswell", /*overwrite=*/0);
    forget();
    choose();
    const std::string after = name_of();
    if (after == before) return;
    kernels.changed = true;
    kernels.sentence =
        absl::StrCat("OpenBLAS does not know this processor: kernels for ",
                     after, " in place of ", before);
  });
  return kernels;
}

}  // namespace slackline
