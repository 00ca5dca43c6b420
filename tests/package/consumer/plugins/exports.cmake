# Checks that each of PLUGINS exports plugin_attention and no symbol with attn in its name, and that HOST exports such
# symbols.
cmake_minimum_required(VERSION 3.22)

# exports(<variable> <file>): names of the symbols that the file exports.
function(exports variable file)
  execute_process(COMMAND ${NM} -D --defined-only ${file} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  set(${variable} "${symbols}" PARENT_SCOPE)
endfunction()

foreach(plugin IN LISTS PLUGINS)
  exports(symbols ${plugin})
  if(NOT symbols MATCHES " T plugin_attention\n")
    message(FATAL_ERROR "${plugin} does not export plugin_attention:\n${symbols}")
  endif()
  string(REGEX MATCHALL "[^\n]*4attn[^\n]*" ours "${symbols}")
  list(LENGTH ours count)
  if(count GREATER 0)
    list(JOIN ours "\n" ours)
    message(FATAL_ERROR "${plugin} exports ${count} symbols of attn:\n${ours}")
  endif()
endforeach()

exports(symbols ${HOST})
if(NOT symbols MATCHES "4attn")
  message(FATAL_ERROR "${HOST} exports no symbols of attn, so the plug-ins were not tested next to an exported copy")
endif()
