# The commit at configure time, for what results say about their program.
set(SLACKLINE_COMMIT_WITHOUT_GIT unknown CACHE STRING "The commit, where the sources have come without their repository")
execute_process(
  COMMAND git describe --tags --always --dirty
  WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
  OUTPUT_VARIABLE SLACKLINE_COMMIT
  OUTPUT_STRIP_TRAILING_WHITESPACE
  ERROR_QUIET)
if(NOT SLACKLINE_COMMIT)
  set(SLACKLINE_COMMIT ${SLACKLINE_COMMIT_WITHOUT_GIT})
endif()
