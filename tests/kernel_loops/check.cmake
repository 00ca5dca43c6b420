# cmake -D OBJECT=<file> -D TABLE=<file> [-D WRITE=ON] [-D OBJDUMP=<path>] -P check.cmake
#
# Counts instructions, loads and products of the kernels in an object file (see loops.awk) and compares them with a
# stored table. Fails if a kernel, or one of its innermost loops, grows by more than 5 %, or if kernels are added or
# removed. If the compiler makes more or fewer loops of a kernel than before, only their sums are compared.
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
string(CONCAT table "# Kernels compiled by g++ 12 -O2, written by the target kernel_loops_table; see loops.awk.\n"
       "# set kernel instructions instructions/loads/products of each innermost loop\n" "${counts}")
if(WRITE)
  file(WRITE ${TABLE} "${table}")
  return()
endif()
set(compare [[
  function compare(now, before, what) {
    if (now > before * 1.05) print "  " name ": " now " " what ", " before " before"
  }
  /^#/ { next }
  NR == FNR { before[$1 " " $2] = $0; next }
  {
    name = $1 " " $2
    ++compared
    if (!(name in before)) { print "  " name " is not in the table"; next }
    fields = split(before[name], old, " ")
    delete before[name]
    compare($3, old[3], "instructions")
    for (k = 1; k <= 2; ++k) {
      what = k == 1 ? "instructions" : "loads"
      now = then = 0
      for (i = 4; i <= NF || i <= fields; ++i) {
        split($i, a, "/")
        split(old[i], b, "/")
        now += a[k]
        then += b[k]
        if (NF == fields) compare(a[k], b[k], what " in loop " (i - 3))
      }
      if (NF != fields) compare(now, then, what " in " (NF - 3) " loops")
    }
  }
  END {
    for (name in before) print "  " name " is in the table, but not in the object"
    if (compared < 200) print "  only " compared + 0 " kernels: the disassembly was not understood"
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
