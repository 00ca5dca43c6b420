# cmake -D FILE=<file> -D MOST=<bytes> -P CheckCompressedSize.cmake
#
# Fails if the file exceeds MOST bytes when compressed with gzip, as a server sends it.
get_filename_component(name "${FILE}" NAME)
get_filename_component(folder "${FILE}" DIRECTORY)
execute_process(COMMAND ${CMAKE_COMMAND} -E tar czf ${name}.tar.gz ${name} WORKING_DIRECTORY ${folder} RESULT_VARIABLE code)
if(NOT code STREQUAL 0)
  message(FATAL_ERROR "${FILE} cannot be compressed")
endif()
file(SIZE "${FILE}.tar.gz" bytes)
file(REMOVE "${FILE}.tar.gz")
if(bytes GREATER MOST)
  message(FATAL_ERROR "${name} has ${bytes} bytes when compressed, more than ${MOST}")
endif()
message(STATUS "${name} has ${bytes} bytes when compressed; ${MOST} are allowed")
