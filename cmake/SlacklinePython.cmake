# Python and nanobind, optional: for the module of the Python package. They are
# those of build/venv, which tools/setup.sh makes of the distribution's Python, or
# of the interpreter that Python_EXECUTABLE names; never of whichever python3 is
# first in the PATH. Sets SLACKLINE_HAS_PYTHON, and SLACKLINE_NO_PYTHON_TESTS: why
# the package's tests cannot run, empty if they can.

set(SLACKLINE_PYTHON AUTO CACHE STRING
  "Build the Python package: ON, OFF, or AUTO for where Python and nanobind are installed")
set_property(CACHE SLACKLINE_PYTHON PROPERTY STRINGS AUTO ON OFF)
if(NOT SLACKLINE_PYTHON MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "SLACKLINE_PYTHON is '${SLACKLINE_PYTHON}', it must be AUTO, ON or OFF")
endif()

set(SLACKLINE_HAS_PYTHON FALSE)
set(SLACKLINE_NO_PYTHON_TESTS "the Python package is not built")
# What the package and its tests import, and where nanobind's CMake package is.
set(python_probe [[
import importlib.util
missing = [m for m in ("torch", "pytest", "scikit_build_core", "build") if not importlib.util.find_spec(m)]
print(" ".join(missing))
import nanobind
print(nanobind.cmake_dir())
print(nanobind.__version__)
]])

macro(slackline_without_python reason)
  if(SLACKLINE_PYTHON STREQUAL "ON")
    message(FATAL_ERROR "SLACKLINE_PYTHON is ON, but the Python package cannot be built: ${reason}")
  endif()
  message(STATUS "Python package: not built; ${reason}")
endmacro()

if(SLACKLINE_PYTHON STREQUAL "OFF")
  message(STATUS "Python package: off (SLACKLINE_PYTHON=OFF)")
  return()
endif()
if(SLACKLINE_SANITIZER)
  slackline_without_python("an interpreter does not load modules with a sanitizer in them")
  return()
endif()
if(NOT DEFINED Python_EXECUTABLE)
  set(Python_EXECUTABLE ${CMAKE_SOURCE_DIR}/build/venv/bin/python)
  if(NOT EXISTS ${Python_EXECUTABLE})
    slackline_without_python("build/venv is missing, tools/setup.sh makes it")
    return()
  endif()
endif()
find_package(Python 3.10 QUIET COMPONENTS Interpreter Development.Module
  OPTIONAL_COMPONENTS Development.SABIModule)
if(NOT Python_Interpreter_FOUND OR Python_VERSION VERSION_LESS 3.10)
  slackline_without_python("${Python_EXECUTABLE} is not a Python 3.10 or newer")
  return()
endif()
if(NOT Python_Development.Module_FOUND)
  slackline_without_python("the headers of Python ${Python_VERSION} were not found, apt-get install python3-dev brings them")
  return()
endif()
execute_process(COMMAND ${Python_EXECUTABLE} -c "${python_probe}"
  OUTPUT_VARIABLE python_facts OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
string(REPLACE "\n" ";" python_facts "${python_facts};;")
list(GET python_facts 0 python_missing)
list(GET python_facts 1 nanobind_dir)
list(GET python_facts 2 nanobind_version)
if(nanobind_dir)
  find_package(nanobind CONFIG QUIET PATHS ${nanobind_dir} NO_DEFAULT_PATH)
endif()
if(NOT nanobind_FOUND)
  slackline_without_python("${Python_EXECUTABLE} has no nanobind, tools/setup.sh installs it")
  return()
endif()

set(SLACKLINE_HAS_PYTHON TRUE)
set(SLACKLINE_NO_PYTHON_TESTS "")
message(STATUS "Python ${Python_VERSION} with nanobind ${nanobind_version}: the Python package is built (${Python_EXECUTABLE})")
if(python_missing)
  set(SLACKLINE_NO_PYTHON_TESTS "${Python_EXECUTABLE} has no ${python_missing}")
  message(STATUS "Python package: its tests are skipped; ${SLACKLINE_NO_PYTHON_TESTS}")
endif()
