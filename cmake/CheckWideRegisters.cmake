# cmake -D SOFTWARE=<object>... -D HARDWARE=<object>... [-D OBJDUMP=<path>] -P CheckWideRegisters.cmake
#
# Fails unless the objects in HARDWARE use AVX-512's registers (64-byte vectors, vectors 16 to 31, masks), and those in
# SOFTWARE do not.
if(NOT OBJDUMP)
  set(OBJDUMP objdump)
endif()
foreach(which IN ITEMS SOFTWARE HARDWARE)
  execute_process(COMMAND ${OBJDUMP} -d --no-show-raw-insn ${${which}}
                  COMMAND grep -cE "%(zmm|[xy]mm(1[6-9]|[23][0-9])|k[0-7])"
                  OUTPUT_VARIABLE ${which}_LINES RESULTS_VARIABLE codes OUTPUT_STRIP_TRAILING_WHITESPACE)
  list(GET codes 0 code)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "disassembling ${${which}}: exit code ${code}")
  endif()
endforeach()
if(NOT SOFTWARE_LINES EQUAL 0 OR NOT HARDWARE_LINES GREATER 0)
  message(FATAL_ERROR "AVX-512's registers are used in ${SOFTWARE_LINES} instructions in software, and in "
                      "${HARDWARE_LINES} with the hardware's")
endif()
message(STATUS "In software: none of the ${HARDWARE_LINES} instructions that use AVX-512's registers")
