# Precompiled headers: what nearly every file of a kind includes is read once. No
# source relies on them: -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON builds without, and
# headers_test shows that each header of ours compiles alone.

# The headers that targets use which are made while this is set; one value holds
# for a folder and those below.
set(slackline_precompiled "")

# What inline functions of these headers use is instantiated in every file, called
# or not. <nlohmann/json.hpp> costs half a second so: those that use it include it.
set(SLACKLINE_COMMON_HEADERS
  <algorithm> <array> <cmath> <cstdint> <cstdio> <cstring> <deque> <filesystem> <fstream>
  <functional> <map> <memory> <optional> <set> <string> <utility> <variant> <vector>
  <absl/container/flat_hash_map.h> <absl/status/status.h> <absl/status/statusor.h>
  <absl/strings/str_cat.h> <absl/strings/str_format.h> <absl/strings/str_join.h>
  <absl/strings/str_split.h> <absl/time/clock.h> <absl/time/time.h> <absl/types/span.h>
  <proto/cluster.pb.h> <proto/control.pb.h> <proto/data.pb.h> <proto/run.pb.h>
  <proto/shard.pb.h> <proto/view.pb.h> <proto/wire.pb.h>)

# slackline_precompiled_headers(<name> HEADERS ... [DEPS ...]). Their users need the
# same options, or compilers say that they cannot be used.
function(slackline_precompiled_headers name)
  cmake_parse_arguments(ARG "" "" "HEADERS;DEPS" ${ARGN})
  # CMake wants a source beside them.
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${name}.cc)
  file(CONFIGURE OUTPUT ${source} CONTENT "")
  add_library(${name} OBJECT ${source})
  set(slackline_precompiled "")
  slackline_options(${name})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS})
  target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
  # Clang also notes in them when and where they were made. Without the time they stay
  # the same. For the place, ccache looks at a sum beside them (pch_external_checksum):
  # whoever uses them has the same options, and depends on the same headers.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    target_compile_options(${name} PRIVATE "SHELL:-Xclang -fno-pch-timestamp")
    string(SHA1 sum "${ARG_HEADERS}")
    file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/${name}.dir/cmake_pch.hxx.pch.sum CONTENT "${sum}")
  endif()
endfunction()

# Clang finds the compiled header beside the one that is included, and ccache knows
# this option, unlike those of CMake, as one with a path.
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  set(CMAKE_CXX_COMPILE_OPTIONS_USE_PCH -include <PCH_HEADER>)
endif()

function(slackline_use_precompiled target)
  if(slackline_precompiled)
    target_precompile_headers(${target} REUSE_FROM ${slackline_precompiled})
  endif()
endfunction()

# For a target with other options.
function(slackline_without_precompiled target)
  set_target_properties(${target} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
endfunction()
