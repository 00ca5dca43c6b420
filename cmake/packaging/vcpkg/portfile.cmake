# An overlay port: vcpkg install attn --overlay-ports=cmake/packaging/vcpkg
# It packages the source tree that contains it; a port in a registry would fetch the sources with vcpkg_from_github()
# instead.
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}"
                      OPTIONS -DATTN_BUILD_TESTS=OFF -DATTN_BUILD_BENCH=OFF -DATTN_BUILD_EXAMPLES=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME attn CONFIG_PATH share/cmake/attn)
vcpkg_fixup_pkgconfig()

# Header-only: debug builds install the same files.
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug" "${CURRENT_PACKAGES_DIR}/lib")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
