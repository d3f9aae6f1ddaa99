# Precompiled headers: what nearly every file of a kind includes is read once. No
# source relies on them: -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON builds without. The
# product uses them only in builds with a sanitizer, because its files show in the
# others that each header compiles alone (SlacklineHeaders.cmake).

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
  # For ccache: without the time at which they were made they stay the same.
  target_compile_options(${name} PRIVATE
    "$<$<COMPILE_LANG_AND_ID:CXX,Clang>:SHELL:-Xclang -fno-pch-timestamp>")
endfunction()

function(slackline_use_precompiled target)
  if(slackline_precompiled)
    target_precompile_headers(${target} REUSE_FROM ${slackline_precompiled})
  endif()
endfunction()

# For a target with other options.
function(slackline_without_precompiled target)
  set_target_properties(${target} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
endfunction()
