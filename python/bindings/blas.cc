#include "python/bindings/blas.h"

#include <dlfcn.h>
#include <link.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"

namespace slackline::python {
namespace {

std::vector<std::string> LoadedLibraries() {
  std::vector<std::string> files;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* to) {
        static_cast<std::vector<std::string>*>(to)->emplace_back(
            info->dlpi_name);
        return 0;
      },
      &files);
  return files;
}

}  // namespace

void SetOpenBlasThreads(int threads) {
  for (const std::string& file : LoadedLibraries()) {
    if (!absl::StrContains(file, "blas")) continue;
    void* const library = dlopen(file.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) continue;
    // Wheels give the functions a prefix or a suffix of their own.
    for (const char* name :
         {"openblas_set_num_threads", "openblas_set_num_threads64_",
          "scipy_openblas_set_num_threads",
          "scipy_openblas_set_num_threads64_"}) {
      if (const auto set =
              reinterpret_cast<void (*)(int)>(dlsym(library, name));
          set != nullptr) {
        set(threads);
        break;
      }
    }
    dlclose(library);
  }
}

}  // namespace slackline::python
