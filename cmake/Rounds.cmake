# Lists the tests that CI does not run for every commit. Sanitizers, emulators and sweeps of more scalars repeat what
# every commit runs, and together take longer than a run may. So there are four rounds, and a commit has the round
#
#   ATTN_TEST_SEED mod 4
#
# .ci/run sets that environment variable to the commit's hash. A test that is named below runs only in its rounds; other
# tests run whenever their build does. If the variable is not set, a build has all of its tests: `cmake --preset asan`
# by hand.
#
# Add a new test to a short round whose tests link the same libraries (attn_test_rows_...). Leave it unlisted, so that
# it runs in every round, if it can find memory errors in most of the code, or races between threads.
#
# As a script: cmake -D SEED=<seed> -P Rounds.cmake prints the builds that run in the seed's round.
set(ATTN_ROUNDS 4)

# in_rounds(<build> <rounds> <test>...): adds tests to the lists <build>_listed and <build>_<round>, and the build to
# `builds`.
macro(in_rounds build rounds)
  list(APPEND builds ${build})
  list(APPEND ${build}_listed ${ARGN})
  foreach(round IN ITEMS ${rounds})
    list(APPEND ${build}_${round} ${ARGN})
  endforeach()
endmacro()

# Sets these lists.
macro(attn_rounds)
  # Sweeps of float and of bfloat16 are in every round.
  in_rounds(release 0 sweep_double_test backward_sweep_half_test)
  in_rounds(release 1 sweep_long_double_test jvp_sweep_double_test)
  in_rounds(release 2 sweep_half_test backward_sweep_long_double_test)
  in_rounds(release 3 backward_sweep_double_test contraction)
  # Benchmarks are built and run in one round. (bench_rivals needs oneDNN, which CI does not install.)
  in_rounds(release 0 bench_additive bench_attention_bench bench_compare bench_rivals bench_training)
  in_rounds(release 1 bench_backward bench_caches bench_decode bench_family bench_ring)
  in_rounds(release 2 bench_halves bench_heatmap bench_linear_attention bench_ring_model bench_threads)
  in_rounds(release 3 bench_compile_time bench_mods bench_phases bench_small)
  # Each compiles programs of users of the package. package.install is in every round.
  in_rounds(release 0 package.find_package)
  in_rounds(release 1 package.exported)
  in_rounds(release 2 package.mpi package.pkg_config package.recipes package.subdirectory)
  in_rounds(release 3 package.deb package.single_header)
  # With the checks of the site. Round 1 builds it, too, and checks its links.
  in_rounds(release "0;2" site.build)

  # properties_test and tensor_views_test are in every round.
  in_rounds(asan 0 extremes_test half_test row_invariant_test sweep_bfloat16_test sweep_float_test tensor_test)
  in_rounds(asan 1 adjacent_heads_test backward_matrix_unit_test gathered_test kv_attention_test kv_cache_test kv_dots_test
            kv_errors_test kv_quantised_test kv_view_test unshared_query_test merge_test paged_kv_operations_test weights_test)
  in_rounds(asan 2 backward_sweep_float_test backward_test dropout_test jvp_test ring_test)
  in_rounds(asan 3 additive_test bad_input_test compile_fail internals_test mistakes_test multi_head_cache_test
            multi_head_parts_test multi_head_test overlaps_test rope_test segments_test
            kv_caches_operations_test kv_caches_test kv_positions_test kv_row_operations_test tinystories_files_test
            transliterate_files_test)

  in_rounds(tsan 0 backward_test)
  in_rounds(tsan 1 kv_invariance_test)
  in_rounds(tsan 2 kv_view_test paged_kv_operations_test)
  in_rounds(tsan 3 learned_test)

  # One emulated build per round. The others compile and run an example.
  in_rounds(aarch64 0 backward_test explain_loops_test explain_test extremes_test internals_test kv_attention_test masks_test)
  in_rounds(aarch64 2 kv_cache_test kv_quantised_test mod_test poison_test rope_test row_invariant_test sweep_float_test)
  in_rounds(riscv64 1 golden_test half_test masks_test)
  in_rounds(aarch64-clang 3 golden_test half_test internals_test kv_cache_test masks_test)

  # 32 bits, in rounds whose emulated build is short.
  in_rounds(i686 1 golden_test half_test kv_cache_test masks_test)
  in_rounds(armv7 3 golden_test half_test masks_test)

  # Other systems and compilers.
  in_rounds(mingw 0 extremes_test golden_test half_test kv_cache_test masks_test parallel_test)
  in_rounds(wasm32 1 golden_test half_test internals_test kv_cache_test kv_quantised_test masks_test mod_test
            no_threads rope_test)
  in_rounds(sample "2;3" decode_kernels_test golden_test half_test kv_cache_test masks_test no_exceptions no_threads simd_test)

  # The other MPI, in a round whose emulated build is short.
  in_rounds(mpich 3 mpi_delays mpi_killed mpi_no_init mpi_train_gpt_test ring_test)

  list(REMOVE_DUPLICATES builds)
endmacro()

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  attn_rounds()
  math(EXPR round "${SEED} % ${ATTN_ROUNDS}")
  set(run "")
  foreach(build IN LISTS builds)
    if(${build}_${round})
      string(APPEND run " ${build}")
    endif()
  endforeach()
  execute_process(COMMAND ${CMAKE_COMMAND} -E echo "${run}")
  return()
endif()

# attn_left_out(<variable> <build> <seed>): the tests that the build leaves to rounds other than the seed's. None if the
# seed is empty, or if the build has no tests in the seed's round, because it was then started by hand.
function(attn_left_out variable build seed)
  set(${variable} "" PARENT_SCOPE)
  if(build STREQUAL "" OR seed STREQUAL "")
    return()
  endif()
  attn_rounds()
  math(EXPR round "${seed} % ${ATTN_ROUNDS}")
  if(${build}_${round})
    list(REMOVE_ITEM ${build}_listed ${${build}_${round}})
    set(${variable} ${${build}_listed} PARENT_SCOPE)
  endif()
endfunction()

# attn_share(<list> <seed>): reduces a list of similar items to the quarter of the seed's round; keeps all if the seed
# is empty.
function(attn_share variable seed)
  if(seed STREQUAL "")
    return()
  endif()
  math(EXPR round "${seed} % ${ATTN_ROUNDS}")
  set(attn_kept "")
  set(turn 0)
  foreach(item IN LISTS ${variable})
    if(turn EQUAL round)
      list(APPEND attn_kept ${item})
    endif()
    math(EXPR turn "(${turn} + 1) % ${ATTN_ROUNDS}")
  endforeach()
  set(${variable} ${attn_kept} PARENT_SCOPE)
endfunction()
