#include "common/blas/open_blas.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace slackline {
namespace {

// Those that OpenBLAS may take on a processor that it does not know.
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

std::string ChooseOpenBlasKernels() {
  std::string changed;
  if (!HasAvx2AndFma()) return changed;
  ForEachBlas([&changed](void* library) {
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
    setenv("OPENBLAS_CORETYPE", "Haswell", /*overwrite=*/0);
    forget();
    choose();
    const std::string after = name_of();
    if (after != before) changed = absl::StrCat(before, " to ", after);
  });
  return changed;
}

}  // namespace slackline
