# The functions that make targets: libraries and programs with the project's
# warnings, and tests with their kind as CTest label.

# Below the prefix: headers keep their paths, "worker/session/worker_loop.h".
set(SLACKLINE_INSTALL_HEADERS include/slackline)

option(SLACKLINE_WERROR "Warnings are errors, those of comparisons of signed with unsigned numbers included" OFF)
set(slackline_strictness -Wno-sign-compare)
if(SLACKLINE_WERROR)
  # g++ 12 sees overlapping copies in the concatenation of strings (GCC's bug 105329).
  set(slackline_strictness -Werror $<$<CXX_COMPILER_ID:GNU>:-Wno-error=restrict>)
endif()

# slackline_sanitizer is the kind of tests that a build with a sanitizer is for:
# asan or tsan. slackline_sanitized builds them.
set(SLACKLINE_SANITIZER "" CACHE STRING "Value for -fsanitize=, empty for none")
set(slackline_sanitizer "")
if(SLACKLINE_SANITIZER)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${SLACKLINE_SANITIZER};-fno-omit-frame-pointer>")
  add_link_options(-fsanitize=${SLACKLINE_SANITIZER})
  add_custom_target(slackline_sanitized)
  if(SLACKLINE_SANITIZER MATCHES "thread")
    set(slackline_sanitizer tsan)
  else()
    set(slackline_sanitizer asan)
  endif()
endif()

# What a source is compiled for is mostly its headers, and the same templates again:
# a dozen sources in one go take a quarter of the time. So a name in an anonymous
# namespace is defined once in a library. With OFF a change compiles one file anew.
option(SLACKLINE_UNITY "Compile up to 12 sources of a library as one" ON)

# Sets `result` to what `target` is compiled of: its sources, or files that include up to
# twelve of them. CMake's own have the path of the checkout in them, so that ccache has
# nothing of another one. A source of which SKIP_UNITY_BUILD_INCLUSION is set before
# stays by itself.
function(slackline_units result target)
  set(units)
  set(together)
  foreach(source ${ARGN})
    get_source_file_property(alone ${source} SKIP_UNITY_BUILD_INCLUSION)
    if(SLACKLINE_UNITY AND source MATCHES "\\.cc$" AND NOT IS_ABSOLUTE ${source} AND NOT alone)
      list(APPEND together ${source})
    else()
      list(APPEND units ${source})
    endif()
  endforeach()
  list(LENGTH together count)
  if(count LESS 2)
    set(${result} ${ARGN} PARENT_SCOPE)
    return()
  endif()
  math(EXPR last "(${count} - 1) / 12")
  foreach(number RANGE ${last})
    math(EXPR begin "12 * ${number}")
    list(SUBLIST together ${begin} 12 sources)
    set(text "")
    foreach(source ${sources})
      cmake_path(ABSOLUTE_PATH source NORMALIZE)
      cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${CMAKE_SOURCE_DIR})
      string(APPEND text "#include \"${source}\"\n")
    endforeach()
    set(unit ${CMAKE_CURRENT_BINARY_DIR}/${target}_${number}.cc)
    file(CONFIGURE OUTPUT ${unit} CONTENT "${text}" @ONLY)
    list(APPEND units ${unit})
  endforeach()
  set(${result} ${units} PARENT_SCOPE)
endfunction()

# For code that no step waits for: flags, files, what is printed, the coordinator. It
# runs for moments, and libraries for these (CLI11, nlohmann-json) are compiled for long.
set(slackline_cold_options $<$<CONFIG:Release>:-O1>)

function(slackline_options target)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror=return-type;${slackline_strictness}>"
    # g++ takes the sources that are compiled as one for headers, whose classes should
    # not be made of what is in an anonymous namespace.
    "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>"
    # What clang checks of ABSL_GUARDED_BY; g++ does not.
    "$<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wthread-safety>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>")
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}> $<INSTALL_INTERFACE:${SLACKLINE_INSTALL_HEADERS}>)
  slackline_use_precompiled(${target})
endfunction()

# slackline_library(<name> [COLD] SOURCES ... [DEPS ...])
function(slackline_library name)
  cmake_parse_arguments(ARG "COLD" "" "SOURCES;DEPS" ${ARGN})
  slackline_units(units ${name} ${ARG_SOURCES})
  add_library(${name} STATIC ${units})
  set_target_properties(${name} PROPERTIES SLACKLINE_SOURCES "${ARG_SOURCES}")  # For SlacklineInstall.cmake.
  slackline_options(${name})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS})
  if(ARG_COLD)
    target_compile_options(${name} PRIVATE ${slackline_cold_options})
  endif()
endfunction()

# slackline_binary(<name> [COLD] SOURCES ... [DEPS ...])
function(slackline_binary name)
  cmake_parse_arguments(ARG "COLD" "" "SOURCES;DEPS" ${ARGN})
  set(units ${ARG_SOURCES})
  if(ARG_COLD)
    slackline_units(units ${name} ${ARG_SOURCES})
  endif()
  add_executable(${name} ${units})
  slackline_options(${name})
  if(ARG_COLD)
    target_compile_options(${name} PRIVATE ${slackline_cold_options})
  endif()
  # As libraries are: the precompiled headers are those of both.
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fPIC>)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
endfunction()

# Whole jobs wait for half of the time, so that one for each core is not too
# much. They are long, and begin first; then the simulation, which is long, too,
# so that no core is without a test at the end. Peers with deadlines in milliseconds
# do not share two cores well, nor do tests a GPU.
function(slackline_order_test test kind alone)
  if(kind MATCHES "^(e2e|cluster)$")
    set_tests_properties(${test} PROPERTIES COST 100)
  elseif(kind STREQUAL "sim")
    set_tests_properties(${test} PROPERTIES COST 50)
  endif()
  if(alone OR kind MATCHES "^(net|gpu)$")
    set_tests_properties(${test} PROPERTIES RUN_SERIAL TRUE)
  endif()
endfunction()

# Seconds after which CTest takes a test for one that hangs. None is to be fast: the
# longest takes half of this on a slow machine, beside others.
set(SLACKLINE_TEST_TIMEOUT 1500)

option(SLACKLINE_UNIT_TESTS_ELSEWHERE
  "Leave out tests of kind unit that the preset asan builds and runs: who does both has them once" OFF)
# Their names: tools/test.sh looks whether the preset asan has them.
set(SLACKLINE_TESTS_ELSEWHERE ${CMAKE_BINARY_DIR}/tests-elsewhere.txt)
file(WRITE ${SLACKLINE_TESTS_ELSEWHERE} "")

# Sets `result` to the test suites of these sources. That no case is in none of them, and
# so in no test, is what tests/every_case_test.py looks at.
function(slackline_suites result)
  set(suites)
  foreach(source ${ARGN})
    file(STRINGS ${source} lines REGEX "^(TYPED_)?TEST(_F|_P)?\\(")
    foreach(line ${lines})
      string(REGEX REPLACE "^[A-Z_]+\\(([A-Za-z0-9_]+).*" "\\1" suite "${line}")
      list(APPEND suites ${suite})
    endforeach()
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
  endforeach()
  list(REMOVE_DUPLICATES suites)
  set(${result} "${suites}" PARENT_SCOPE)
endfunction()

# So many tests at most share a program: it is one source for the compiler, which then
# takes a third of the time, since nearly all of it goes into the templates that they
# have in common.
set(slackline_tests_per_program 8)

# Sets `result` to the program for a test with these suites: the first one of this kind
# in this folder that has room, and no suite of one of these names.
function(slackline_shared_program result kind)
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  set(number 0)
  while(TRUE)
    set(program ${folder}_tests_${kind}_${number})
    get_property(tests GLOBAL PROPERTY ${program}_tests)
    get_property(taken GLOBAL PROPERTY ${program}_suites)
    foreach(suite ${ARGN})
      if(suite IN_LIST taken)
        set(tests full)
        break()
      endif()
    endforeach()
    list(LENGTH tests count)
    if(count LESS slackline_tests_per_program AND NOT tests STREQUAL "full")
      break()
    endif()
    math(EXPR number "${number} + 1")
  endwhile()
  set(${result} ${program} PARENT_SCOPE)
endfunction()

# At the end of a folder with tests: makes the programs that several of them share.
function(slackline_test_programs)
  get_property(programs DIRECTORY PROPERTY slackline_test_programs)
  foreach(program ${programs})
    foreach(list sources deps defines needs)
      get_property(${list} GLOBAL PROPERTY ${program}_${list})
      list(REMOVE_DUPLICATES ${list})
    endforeach()
    get_property(sanitized GLOBAL PROPERTY ${program}_sanitized)
    slackline_units(units ${program} ${sources})
    slackline_test_program(${program} "${sanitized}" SOURCES ${units} DEPS ${deps} DEFINES ${defines} NEEDS ${needs})
    target_include_directories(${program} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  endforeach()
endfunction()

# slackline_test_program(<name> <sanitized: TRUE|FALSE> SOURCES ... [DEPS ...] [DEFINES ...] [NEEDS ...])
function(slackline_test_program name sanitized)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;DEFINES;NEEDS" ${ARGN})
  slackline_binary(${name} SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS} GTest::gtest_main GTest::gmock)
  target_compile_definitions(${name} PRIVATE ${ARG_DEFINES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(ARG_NEEDS)
    add_dependencies(${name} ${ARG_NEEDS})
  endif()
  if(sanitized)
    add_dependencies(slackline_sanitized ${name})
  endif()
endfunction()

# slackline_add_test(<name> KIND unit|sim|net|gpu|e2e|cluster SOURCES ... [DEPS ...]
#                    [DEFINES ...] [NEEDS target...] [ARGS ...]
#                    [SANITIZERS asan|tsan|none...] [PARTS count] [ALONE] [APART])
# SANITIZERS: in which builds with a sanitizer it runs as well, and is of their
# kind; asan unless something else is said, for a test of kind unit or sim.
# PARTS: it is that many tests of CTest, each of which runs its part of the cases.
# ALONE: nothing runs beside it, as nothing does beside a test of kind net or gpu.
# NEEDS: what has to be built before it can run.
# Tests of kind unit, net and e2e share programs, unless one is APART or has ARGS: it
# has a program of its name then. So what a source defines is in a namespace of its
# own: slackline::<name of the file>. slackline_test_programs() ends the folder.
function(slackline_add_test name)
  cmake_parse_arguments(ARG "ALONE;APART" "KIND;PARTS" "SOURCES;DEPS;DEFINES;NEEDS;ARGS;SANITIZERS" ${ARGN})
  if(NOT ARG_KIND MATCHES "^(unit|sim|net|gpu|e2e|cluster)$")
    message(FATAL_ERROR "slackline_add_test(${name}): KIND is '${ARG_KIND}', it must be unit, sim, net, gpu, e2e or cluster")
  endif()
  if(NOT ARG_SANITIZERS AND ARG_KIND MATCHES "^(unit|sim)$")
    set(ARG_SANITIZERS asan)
  endif()
  if(SLACKLINE_UNIT_TESTS_ELSEWHERE AND ARG_KIND STREQUAL "unit" AND "asan" IN_LIST ARG_SANITIZERS)
    file(APPEND ${SLACKLINE_TESTS_ELSEWHERE} "${name}\n")
    return()
  endif()
  set(label ${ARG_KIND})
  set(sanitized FALSE)
  if(slackline_sanitizer IN_LIST ARG_SANITIZERS)
    set(label ${slackline_sanitizer})
    set(sanitized TRUE)
  endif()
  if(ARG_APART OR ARG_ARGS OR ARG_KIND MATCHES "^(sim|gpu|cluster)$")
    set(program ${name})
    set(arguments ${ARG_ARGS})
    slackline_test_program(${name} ${sanitized} SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS}
      DEFINES ${ARG_DEFINES} NEEDS ${ARG_NEEDS})
  else()
    slackline_suites(suites ${ARG_SOURCES})
    list(JOIN ARG_SANITIZERS "_" kind)
    string(JOIN "_" kind ${ARG_KIND} ${kind})
    slackline_shared_program(program ${kind} ${suites})
    get_property(first GLOBAL PROPERTY ${program}_tests)
    if(NOT first)
      set_property(DIRECTORY APPEND PROPERTY slackline_test_programs ${program})
      set_property(GLOBAL PROPERTY ${program}_sanitized ${sanitized})
    endif()
    set_property(GLOBAL APPEND PROPERTY ${program}_tests ${name})
    set_property(GLOBAL APPEND PROPERTY ${program}_suites ${suites})
    set_property(GLOBAL APPEND PROPERTY ${program}_sources ${ARG_SOURCES})
    set_property(GLOBAL APPEND PROPERTY ${program}_deps ${ARG_DEPS})
    set_property(GLOBAL APPEND PROPERTY ${program}_defines ${ARG_DEFINES})
    set_property(GLOBAL APPEND PROPERTY ${program}_needs ${ARG_NEEDS})
    # A suite of values has their name before its own, and the value behind.
    list(TRANSFORM suites REPLACE "(.+)" "\\1.*:*/\\1.*:\\1/*:*/\\1/*")
    list(JOIN suites ":" suites)
    set(arguments --gtest_filter=${suites})
  endif()
  if(ARG_KIND STREQUAL "gpu")
    if(NOT TARGET slackline_gpu_tests)
      add_custom_target(slackline_gpu_tests)  # All of them, for tools/gpu_check.sh.
    endif()
    add_dependencies(slackline_gpu_tests ${name})
  endif()

  if(ARG_PARTS)
    math(EXPR last "${ARG_PARTS} - 1")
    foreach(part RANGE ${last})
      list(APPEND tests ${name}.${part})
    endforeach()
  else()
    set(tests ${name})
  endif()
  foreach(test ${tests})
    add_test(NAME ${test} COMMAND ${program} ${arguments})
    # gtest is content with a filter that nothing fits.
    set_tests_properties(${test} PROPERTIES LABELS ${label} TIMEOUT ${SLACKLINE_TEST_TIMEOUT}
      FAIL_REGULAR_EXPRESSION "\\] Running 0 tests")
    if(ARG_PARTS)
      string(REGEX REPLACE ".*\\." "" part ${test})
      set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT
        GTEST_TOTAL_SHARDS=${ARG_PARTS} GTEST_SHARD_INDEX=${part})
    endif()
    if(slackline_sanitizer STREQUAL "tsan")
      set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT
        "TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/cmake/tsan.supp")
    endif()
    # What every test of such a program then says (tests/support/gpu.h).
    if(ARG_KIND STREQUAL "gpu")
      set_tests_properties(${test} PROPERTIES SKIP_REGULAR_EXPRESSION "no GPU to run on")
    endif()
    slackline_order_test(${test} ${ARG_KIND} "${ARG_ALONE}")
  endforeach()
endfunction()

# slackline_add_script_test(<name> <kind> [modules of Python])
# Runs <name>.py with the system's Python, without the package, and gives it the folder
# of the programs. Where one of the modules is missing, it says that it is skipped.
function(slackline_add_script_test name kind)
  find_program(SLACKLINE_TEST_PYTHON python3 HINTS /usr/bin)
  if(NOT SLACKLINE_TEST_PYTHON)
    return()
  endif()
  add_test(NAME ${name} COMMAND ${SLACKLINE_TEST_PYTHON} -B ${CMAKE_CURRENT_SOURCE_DIR}/${name}.py
    ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
  set_tests_properties(${name} PROPERTIES LABELS ${kind} TIMEOUT ${SLACKLINE_TEST_TIMEOUT})
  if(ARGN)
    list(JOIN ARGN ", " modules)
    execute_process(COMMAND ${SLACKLINE_TEST_PYTHON} -c "import ${modules}"
      RESULT_VARIABLE missing OUTPUT_QUIET ERROR_QUIET)
    if(NOT missing EQUAL 0)
      set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "${name}: skipped")
    endif()
  endif()
endfunction()

# slackline_add_python_test(<name> KIND unit|e2e SOURCE file.py [ALONE])
# Runs the file with pytest: with the package of this build, and with the folder of
# the programs in SLACKLINE_BIN_DIR. Where the package is missing, CTest counts the
# test as skipped.
function(slackline_add_python_test name)
  cmake_parse_arguments(ARG "ALONE" "KIND;SOURCE" "" ${ARGN})
  if(NOT ARG_KIND MATCHES "^(unit|e2e)$")
    message(FATAL_ERROR "slackline_add_python_test(${name}): KIND is '${ARG_KIND}', it must be unit or e2e")
  endif()
  if(SLACKLINE_NO_PYTHON_TESTS)
    add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "${name}: skipped, ${SLACKLINE_NO_PYTHON_TESTS}")
    set_tests_properties(${name} PROPERTIES LABELS ${ARG_KIND} SKIP_REGULAR_EXPRESSION "^${name}: skipped")
    return()
  endif()
  add_test(NAME ${name} COMMAND ${Python_EXECUTABLE} -m pytest -q -p no:cacheprovider
    ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_SOURCE})
  set_tests_properties(${name} PROPERTIES LABELS ${ARG_KIND} TIMEOUT ${SLACKLINE_TEST_TIMEOUT} ENVIRONMENT
    "PYTHONPATH=${CMAKE_BINARY_DIR}/python;SLACKLINE_BIN_DIR=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};SLACKLINE_TEST_DATA_DIR=${SLACKLINE_TEST_DATA_DIR}")
  slackline_order_test(${name} ${ARG_KIND} "${ARG_ALONE}")
endfunction()
