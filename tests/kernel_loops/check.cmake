# cmake -D OBJECT=<file> -D TABLE=<file> [-D WRITE=ON] [-D OBJDUMP=<path>] -P check.cmake
#
# Counts instructions, loads and products of the kernels in an object file (see loops.awk) and compares them with a
# stored table. Fails if a kernel, or its innermost loops, grow by more than 5 %, or if kernels are added or removed.
# WRITE stores the new table instead: commit it, and say in the commit why kernels have grown.
if(NOT OBJDUMP)
  set(OBJDUMP objdump)
endif()
execute_process(
  COMMAND ${OBJDUMP} -dC -M intel --no-show-raw-insn ${OBJECT}
  COMMAND awk -f ${CMAKE_CURRENT_LIST_DIR}/loops.awk
  COMMAND ${CMAKE_COMMAND} -E env LC_ALL=C sort
  OUTPUT_VARIABLE counts RESULTS_VARIABLE codes)
if(NOT codes STREQUAL "0;0;0")
  message(FATAL_ERROR "counting the instructions of ${OBJECT}: exit codes ${codes}")
endif()
string(CONCAT table "# Kernels of floats compiled by g++ 12 -O2, written by the target kernel_loops_table; see loops.awk.\n"
       "# set kernel instructions loops instructions_in_loops loads_in_loops products_in_loops\n" "${counts}")
if(WRITE)
  file(WRITE ${TABLE} "${table}")
  return()
endif()
set(compare [[
  /^#/ { next }
  NR == FNR { for (i = 3; i <= 7; ++i) before[$1 " " $2, i] = $i; known[$1 " " $2] = 1; next }
  {
    name = $1 " " $2
    ++compared
    if (!(name in known)) { print "  " name " is not in the table"; next }
    delete known[name]
    split("instructions|loops|instructions in loops|loads in loops", what, "|")
    for (i = 3; i <= 6; ++i)
      if (i != 4 && $i > before[name, i] * 1.05) print "  " name ": " $i " " what[i - 2] ", " before[name, i] " before"
  }
  END {
    for (name in known) print "  " name " is in the table, but not in the object"
    if (compared < 90) print "  only " compared + 0 " kernels: the disassembly was not understood"
  }
]])
get_filename_component(name ${OBJECT} NAME)
set(new ${CMAKE_CURRENT_BINARY_DIR}/${name}.loops.txt)
file(WRITE ${new} "${table}")
execute_process(COMMAND awk "${compare}" ${TABLE} ${new} OUTPUT_VARIABLE faults RESULT_VARIABLE code)
file(REMOVE ${new})
if(faults OR code)
  message(FATAL_ERROR "kernels differ from ${TABLE}; if they should, build the target kernel_loops_table:\n${faults}")
endif()
