# Install rules: headers, a CMake package and a pkg-config file. All paths are relative to the files themselves, so that
# an installed tree can be moved.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# Nothing here depends on the architecture, hence share/ instead of lib/.
set(attn_package_dir ${CMAKE_INSTALL_DATADIR}/cmake/attn)
set(attn_pkgconfig_dir ${CMAKE_INSTALL_DATADIR}/pkgconfig)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/attn DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
# Generated during installation, so that it is never older than the headers.
list(JOIN attn_single_header "\" \"" attn_command)
install(CODE "execute_process(COMMAND \"${attn_command}\" COMMAND_ERROR_IS_FATAL ANY)")
install(FILES ${PROJECT_BINARY_DIR}/attn.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS attn EXPORT attnTargets INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT attnTargets NAMESPACE attn:: DESTINATION ${attn_package_dir})

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/attnConfig.cmake.in ${PROJECT_BINARY_DIR}/attnConfig.cmake
                              INSTALL_DESTINATION ${attn_package_dir})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/attnConfigVersion.cmake COMPATIBILITY SameMinorVersion
                                 ARCH_INDEPENDENT)
install(FILES ${PROJECT_BINARY_DIR}/attnConfig.cmake ${PROJECT_BINARY_DIR}/attnConfigVersion.cmake
              ${CMAKE_CURRENT_LIST_DIR}/attnCompiled.cmake ${CMAKE_CURRENT_LIST_DIR}/attnMpi.cmake
        DESTINATION ${attn_package_dir})

file(RELATIVE_PATH attn_pc_to_prefix ${CMAKE_INSTALL_FULL_DATADIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
cmake_path(ABSOLUTE_PATH CMAKE_INSTALL_INCLUDEDIR BASE_DIRECTORY "\${prefix}" OUTPUT_VARIABLE attn_pc_includedir)
configure_file(${CMAKE_CURRENT_LIST_DIR}/attn.pc.in ${PROJECT_BINARY_DIR}/attn.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/attn.pc DESTINATION ${attn_pkgconfig_dir})

# cpack builds a .deb and a .tar.gz of the installed files.
if(PROJECT_IS_TOP_LEVEL)
  set(CPACK_GENERATOR "DEB;TGZ")
  set(CPACK_PACKAGE_NAME libattn-dev)
  set(CPACK_PACKAGE_VENDOR "The attn authors")
  set(CPACK_PACKAGE_CONTACT "The attn authors <attn@localhost>")
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
  set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE all)
  set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
  set(CPACK_DEBIAN_PACKAGE_DEPENDS "libeigen3-dev (>= ${ATTN_EIGEN_MINIMUM})")
  set(CPACK_DEBIAN_PACKAGE_SUGGESTS "cmake, pkg-config")
  include(CPack)
endif()
