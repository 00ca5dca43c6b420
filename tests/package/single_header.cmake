# The installed attn.hpp: included twice in a unit and by two units of a program, with the kernels compiled in a third
# unit, and in place of the headers in some examples.
include(${CMAKE_CURRENT_LIST_DIR}/steps.cmake)
set(work ${WORK_DIR}/single_header)
file(REMOVE_RECURSE ${work})
file(MAKE_DIRECTORY ${work}/include/attn)
file(COPY ${prefix}/include/attn.hpp DESTINATION ${work}/include)
separate_arguments(warnings UNIX_COMMAND "${WARNINGS}")
set(compile ${COMPILER} -std=c++20 -DATTN_EXTERN_TEMPLATES ${warnings} -Werror -I${work}/include -isystem ${EIGEN_INCLUDE} -pthread)

# Headers of the same names that forward to attn.hpp.
file(GLOB_RECURSE headers RELATIVE ${SOURCE_DIR}/include ${SOURCE_DIR}/include/attn/*.h)
foreach(header IN LISTS headers)
  if(header MATCHES "^attn/(mods/)?[a-z_]+\\.h$" AND NOT header MATCHES "openmp")
    file(WRITE ${work}/include/${header} "#include \"attn.hpp\"\n")
  endif()
endforeach()

file(WRITE ${work}/other.cpp "#include \"attn.hpp\"\n#include \"attn.hpp\"
Eigen::MatrixXf causal(const Eigen::MatrixXf& x) { return attn::attention(x, x, x, attn::causal()).out; }\n")
file(WRITE ${work}/main.cpp "#include \"attn.hpp\"\nEigen::MatrixXf causal(const Eigen::MatrixXf& x);
int main() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Random(5, 8);
  return causal(x) == attn::attention(x, x, x, attn::causal()).out ? 0 : 1;
}\n")
file(WRITE ${work}/kernels.cpp "#define ATTN_INSTANTIATE\n#include \"attn.hpp\"\n")
run(${compile} ${work}/main.cpp ${work}/other.cpp ${work}/kernels.cpp -o ${work}/program)
run(${work}/program)

# Examples that together use most of the library: mods, gradients, layers, caches.
foreach(example IN ITEMS custom_mod gradients nn/attention tinystories/transformer)
  run(${compile} -DNN_SCALAR=float -fsyntax-only ${SOURCE_DIR}/examples/${example}.cpp)
endforeach()
