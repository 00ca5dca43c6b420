# cmake -D "COMMAND=<mpirun and the program>" -P killed.cmake: it must fail, and soon.
execute_process(COMMAND ${COMMAND} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE errors TIMEOUT 60)
if(result EQUAL 0 OR output MATCHES "ranks finished")
  message(FATAL_ERROR "a rank was killed, but mpirun reported success: ${result}\n${output}")
elseif(result MATCHES "timeout")
  message(FATAL_ERROR "a rank was killed, and the others were still waiting after a minute\n${output}\n${errors}")
endif()
message("mpirun ended with ${result}")
