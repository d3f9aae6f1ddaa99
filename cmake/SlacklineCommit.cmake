# The commit at configure time, for what results say about their program.
execute_process(
  COMMAND git describe --tags --always --dirty
  WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
  OUTPUT_VARIABLE SLACKLINE_COMMIT
  OUTPUT_STRIP_TRAILING_WHITESPACE
  ERROR_QUIET)
if(NOT SLACKLINE_COMMIT)
  set(SLACKLINE_COMMIT unknown)
endif()
