# pkg-config and a compiler command, without CMake: first as in examples/building.md, then with warnings. For the latter
# Eigen is a system include folder, as with CMake; attn is not.
include(${CMAKE_CURRENT_LIST_DIR}/steps.cmake)
if(NOT PKG_CONFIG)
  message(FATAL_ERROR "pkg-config is missing")
endif()
set(ENV{PKG_CONFIG_PATH} ${prefix}/share/pkgconfig:$ENV{PKG_CONFIG_PATH})

run(${PKG_CONFIG} --modversion attn)
string(STRIP "${output}" found_version)
if(NOT found_version STREQUAL VERSION)
  message(FATAL_ERROR "attn.pc has version ${found_version}, the header ${VERSION}")
endif()

run(${PKG_CONFIG} --cflags --libs attn)
separate_arguments(flags UNIX_COMMAND "${output}")
run(${PKG_CONFIG} --cflags-only-I eigen3)
separate_arguments(eigen UNIX_COMMAND "${output}")
list(TRANSFORM eigen REPLACE "^-I" "-isystem")

set(program ${WORK_DIR}/pkg_config_consumer)
set(source ${CMAKE_CURRENT_LIST_DIR}/consumer/main.cpp)
run(${COMPILER} -std=c++20 -O2 ${source} -o ${program} ${flags})
run(${program} ${VERSION})
separate_arguments(WARNINGS UNIX_COMMAND "${WARNINGS}")
run(${COMPILER} -std=c++20 -O2 ${eigen} ${WARNINGS} -Werror -fsyntax-only ${source} ${flags})
