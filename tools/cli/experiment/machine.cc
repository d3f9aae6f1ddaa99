#include "tools/cli/experiment/machine.h"

#include <unistd.h>

#include <fstream>
#include <thread>

namespace slackline {
namespace {

std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown";
}

}  // namespace

Machine ThisMachine() {
  const double pages = static_cast<double>(sysconf(_SC_PHYS_PAGES));
  return {.cpus = static_cast<int>(std::thread::hardware_concurrency()),
          .cpu_model = CpuModel(),
          .memory_gib =
              pages * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 30)};
}

}  // namespace slackline
