# Finds every library of the project. A missing one ends the configuration with
# the name of its package and the command that installs it.

# slackline_missing(<library> <Debian package> [another way out...])
function(slackline_missing library package)
  message(FATAL_ERROR
    "${library} was not found. Install it with\n"
    "    sudo apt-get install ${package}\n"
    "or install everything that Slackline needs with\n"
    "    tools/setup.sh\n" ${ARGN})
endfunction()

# slackline_require(<find_package name> <Debian package> [find_package arguments...])
macro(slackline_require name package)
  find_package(${name} QUIET ${ARGN})
  if(NOT ${name}_FOUND)
    slackline_missing(${name} ${package})
  endif()
endmacro()

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
slackline_require(Protobuf "libprotobuf-dev protobuf-compiler" MODULE)
slackline_require(absl libabsl-dev CONFIG)
slackline_require(cppzmq "cppzmq-dev libzmq3-dev" CONFIG)
slackline_require(spdlog libspdlog-dev CONFIG)
slackline_require(CLI11 libcli11-dev CONFIG)
slackline_require(nlohmann_json nlohmann-json3-dev CONFIG)
slackline_require(GTest "libgtest-dev libgmock-dev" CONFIG)
slackline_require(ZLIB zlib1g-dev)
slackline_require(OpenSSL libssl-dev)
slackline_require(CURL libcurl4-openssl-dev)

# Highway ships a CMake package on Debian 12 and only pkg-config on older ones.
find_package(PkgConfig QUIET)
if(NOT PKG_CONFIG_FOUND)
  slackline_missing(pkg-config pkg-config)
endif()
pkg_check_modules(HWY QUIET IMPORTED_TARGET libhwy)
if(NOT HWY_FOUND)
  slackline_missing(Highway libhwy-dev)
endif()

pkg_check_modules(XXHASH QUIET IMPORTED_TARGET libxxhash)
if(NOT XXHASH_FOUND)
  slackline_missing(xxHash libxxhash-dev)
endif()

pkg_check_modules(SODIUM QUIET IMPORTED_TARGET libsodium)
if(NOT SODIUM_FOUND)
  slackline_missing(libsodium libsodium-dev)
endif()

find_path(HTTPLIB_INCLUDE_DIR httplib.h)
if(NOT HTTPLIB_INCLUDE_DIR)
  slackline_missing(cpp-httplib libcpp-httplib-dev)
endif()
find_library(HTTPLIB_LIBRARY cpp-httplib)

include(SlacklineCuda)
include(SlacklineTorch)

include(SlacklineNccl)
# NCCL, optional: GPU workers all-reduce through it.
if(NOT SLACKLINE_HAS_CUDA)
  message(STATUS "NCCL: not used without CUDA; all-reduce is among processors")
elseif(NOT TARGET slackline_nccl)
  message(STATUS "NCCL: nccl.h or libnccl was not found, which is fine; GPU workers cannot all-reduce, "
    "they train through servers (install libnccl-dev, or name the files with -DNCCL_INCLUDE_DIR=... -DNCCL_LIBRARY=...)")
else()
  file(STRINGS ${NCCL_INCLUDE_DIR}/nccl.h nccl_version REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) [0-9]+$")
  list(TRANSFORM nccl_version REPLACE "^.* " "")
  list(JOIN nccl_version "." nccl_version)
  message(STATUS "NCCL ${nccl_version}: found, GPU workers all-reduce over it")
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # Other checkouts use what one has compiled: paths are relative to the checkout, and
  # debug information may name another. DEPEND: without a second look by the preprocessor.
  # The rest is for precompiled headers; nothing here reads __TIME__.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
    CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1
    CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_PCH_EXTSUM=1 ${CCACHE_PROGRAM})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
