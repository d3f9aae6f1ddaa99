# nanobind, for the Python package: of the environment in build/venv that
# tools/setup.sh makes, or of the python3 that Python_EXECUTABLE names.
if(NOT DEFINED Python_EXECUTABLE AND EXISTS ${CMAKE_SOURCE_DIR}/build/venv/bin/python)
  set(Python_EXECUTABLE ${CMAKE_SOURCE_DIR}/build/venv/bin/python)
endif()
find_package(Python 3.9 QUIET COMPONENTS Interpreter Development.Module OPTIONAL_COMPONENTS Development.SABIModule)
set(SLACKLINE_HAS_PYTHON OFF)
if(Python_Development.Module_FOUND)
  execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
    OUTPUT_VARIABLE nanobind_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  find_package(nanobind CONFIG QUIET HINTS ${nanobind_dir})
  if(nanobind_FOUND)
    set(SLACKLINE_HAS_PYTHON ON)
  endif()
endif()
