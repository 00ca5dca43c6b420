# conan create cmake/packaging/conan
import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain
from conan.tools.files import copy, load

required_conan_version = ">=2.0"


class AttnConan(ConanFile):
    name = "attn"
    description = "Exact attention for CPUs on Eigen: naive and flash, any mask or score change"
    license = "MIT"
    topics = ("attention", "transformer", "simd", "eigen", "header-only")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    no_copy_source = True

    _project = os.path.join("..", "..", "..")

    def set_version(self):
        header = load(self, os.path.join(self.recipe_folder, self._project, "include", "attn", "version.h"))
        self.version = ".".join(re.findall(r"#define ATTN_VERSION_\w+ (\d+)", header))

    def export_sources(self):
        project = os.path.join(self.recipe_folder, self._project)
        for pattern in ("include/*", "cmake/*", "CMakeLists.txt", "LICENSE"):
            copy(self, pattern, src=project, dst=self.export_sources_folder)

    def requirements(self):
        self.requires("eigen/[>=3.4.0]", transitive_headers=True)

    def validate(self):
        check_min_cppstd(self, 20)

    def generate(self):
        toolchain = CMakeToolchain(self)
        for part in ("TESTS", "BENCH", "EXAMPLES"):
            toolchain.cache_variables[f"ATTN_BUILD_{part}"] = False
        toolchain.generate()

    def build(self):
        CMake(self).configure()

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE", src=self.source_folder, dst=os.path.join(self.package_folder, "licenses"))

    def package_id(self):
        self.info.clear()

    def package_info(self):
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
        # The package's own CMake files define attn::attn and attn::compiled.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("share", "cmake", "attn")]
        self.cpp_info.set_property("pkg_config_name", "attn")
        if self.settings.os in ("Linux", "FreeBSD"):
            self.cpp_info.system_libs = ["pthread"]
