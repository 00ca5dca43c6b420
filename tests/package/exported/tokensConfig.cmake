include(CMakeFindDependencyMacro)
find_dependency(attn 0.1 CONFIG)
include(${CMAKE_CURRENT_LIST_DIR}/tokensTargets.cmake)
