# cmake -D A=<program> -D B=<program> [-D OBJDUMP=<path>] -P CheckFusedCounts.cmake
#
# Fails unless every function of attn::detail that both programs have contains the same number of fused multiply-adds in
# both. One is compiled with -ffp-contract=off, the other with =fast: a function with more of them in the second has a
# product and a sum that the compiler may fuse or not. Unlike a comparison of results, this also covers instruction sets
# that the processor lacks. Loops over mods are skipped, because they inline the caller's lambdas, in which the compiler
# may fuse as it likes.
if(NOT OBJDUMP)
  set(OBJDUMP objdump)
endif()
# Prints "<number of fused operations> <function>" for each function.
set(count [[
  /^[0-9a-f]+ <.*>:$/ { sub(/^[0-9a-f]+ </, ""); sub(/>:$/, ""); name = $0; if (!(name in counts)) counts[name] = 0 }
  /\tvfn?m(add|sub|addsub|subadd)[0-9]*[ps][sd][ \t]/ { ++counts[name] }
  END { for (name in counts) if (name ~ /attn::detail::/ && name !~ /call_flattened/) print counts[name] " " name }
]])
cmake_policy(SET CMP0007 NEW)
foreach(which IN ITEMS A B)
  execute_process(
    COMMAND ${OBJDUMP} -dC --no-show-raw-insn ${${which}}
    COMMAND awk "${count}"
    COMMAND sort -k 2
    OUTPUT_VARIABLE out RESULTS_VARIABLE codes)
  if(NOT codes STREQUAL "0;0;0")
    message(FATAL_ERROR "disassembling ${${which}}: exit codes ${codes}")
  endif()
  string(REGEX REPLACE "[[;]|\\]" "_" out "${out}") # characters that lists treat specially
  string(REPLACE "\n" ";" lines_${which} "${out}")
endforeach()
set(functions 0)
set(fused 0)
foreach(line IN LISTS lines_A)
  string(REGEX MATCH "^([0-9]+) (.*)$" matched "${line}")
  if(matched)
    string(MD5 key "${CMAKE_MATCH_2}")
    set(in_a_${key} ${CMAKE_MATCH_1})
  endif()
endforeach()
set(differ)
foreach(line IN LISTS lines_B)
  string(REGEX MATCH "^([0-9]+) (.*)$" matched "${line}")
  if(matched)
    set(count_b ${CMAKE_MATCH_1})
    set(name "${CMAKE_MATCH_2}")
    string(MD5 key "${name}")
    if(DEFINED in_a_${key})
      math(EXPR functions "${functions} + 1")
      math(EXPR fused "${fused} + ${count_b}")
      if(NOT in_a_${key} EQUAL count_b)
        string(APPEND differ "\n  ${in_a_${key}}, ${count_b}: ${name}")
      endif()
    endif()
  endif()
endforeach()
if(functions LESS 300 OR fused LESS 1000) # 785 and 5768 with g++ 12
  message(FATAL_ERROR "only ${fused} fused operations in ${functions} functions: the disassembly was not understood")
endif()
if(differ)
  message(FATAL_ERROR "fused operations of -ffp-contract=off and =fast differ in:${differ}")
endif()
message(STATUS "${functions} functions have the same ${fused} fused operations")
