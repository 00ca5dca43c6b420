# Divides the tests between commits, by the commit's hash (ATTN_TEST_SEED). If the variable is not set, a build has all
# of its tests: `cmake --preset asan` by hand.
#
# Samples: `tests/run` builds and runs the tests of sample ATTN_TEST_SEED mod ATTN_SAMPLES, and those that are in every
# sample. A new test needs no line here, because each test goes to the sample with the least work so far. The file
# samples.txt in the build folder lists the samples.
#
# Rounds: CI's other builds repeat tests under sanitizers and emulators. A commit has the round
#
#   ATTN_TEST_SEED mod ATTN_ROUNDS
#
# and a test that is named below runs only in its rounds; other tests run whenever their build does. In the last round,
# CI runs `tests/run --all` instead of these builds. Add a new test to a short round whose tests link the same libraries
# (attn_test_rows_...). Leave it unlisted, so that it runs in every round, if it can find memory errors in most of the
# code, or races between threads.
#
# As a script: cmake -D SEED=<seed> -P Rounds.cmake prints the builds that run in the seed's round. `release` is
# `tests/run`, `all` is `tests/run --all`.
cmake_policy(VERSION 3.22)  # also as a script
set(ATTN_SAMPLES 8)
set(ATTN_ROUNDS 5)

# Tests of each kind, and the sweeps that cover most mods and instruction sets.
set(ATTN_IN_EVERY_SAMPLE attention_tests backward_sweep_float_test backward_sweep_half_test hello package.install poison_test
                         random_calls_test refusal_tests software_sets_test sweep_bfloat16_test sweep_float_test)

# CPU seconds to build and run the tests that take far more than ATTN_SECONDS_OF_MOST: groups of tests, and tests whose
# libraries no others link. The longest come first because they are assigned first.
set(ATTN_SECONDS_OF_MOST 15)
set(ATTN_SECONDS benchmarks 300 train_translation 200 train_gpt 200 package.find_package 90 software_sets.registers 90
                 tinystories 90 contraction 90 ring_test 80 sweep_double_test 45 sweep_long_double_test 45
                 software_neon_test 35)

# Puts a test into the sample with the least work so far, unless it already has a sample or is in every sample.
function(attn_assign name seconds)
  get_property(sample GLOBAL PROPERTY attn_sample_of_${name})
  if(NOT "${sample}" STREQUAL "")
    return()
  endif()
  set(sample every)
  if(NOT name IN_LIST ATTN_IN_EVERY_SAMPLE)
    get_property(work GLOBAL PROPERTY attn_work_of_samples)
    if("${work}" STREQUAL "")
      string(REPEAT ";0" ${ATTN_SAMPLES} work)
      list(REMOVE_AT work 0)
    endif()
    set(least ${work})
    list(SORT least COMPARE NATURAL)
    list(GET least 0 least)
    list(FIND work ${least} sample)
    list(REMOVE_AT work ${sample})
    math(EXPR least "${least} + ${seconds}")
    list(INSERT work ${sample} ${least})
    set_property(GLOBAL PROPERTY attn_work_of_samples ${work})
  endif()
  set_property(GLOBAL PROPERTY attn_sample_of_${name} ${sample})
endfunction()

set(long ${ATTN_SECONDS})
while(long)
  list(POP_FRONT long name seconds)
  attn_assign(${name} ${seconds})
endwhile()

# attn_in_sample(<variable> <test> <seed>): whether the seed's sample has the test; ON if the seed is empty.
function(attn_in_sample variable name seed)
  attn_assign(${name} ${ATTN_SECONDS_OF_MOST})
  get_property(sample GLOBAL PROPERTY attn_sample_of_${name})
  set_property(GLOBAL APPEND PROPERTY attn_samples "${sample} ${name}")
  set(${variable} ON PARENT_SCOPE)
  if(NOT seed STREQUAL "" AND NOT sample STREQUAL "every")
    math(EXPR drawn "${seed} % ${ATTN_SAMPLES}")
    if(NOT sample EQUAL drawn)
      set(${variable} OFF PARENT_SCOPE)
    endif()
  endif()
endfunction()

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
  # properties_test and tensor_views_test are in every round.
  in_rounds(asan 0 extremes_test half_test row_invariant_test sweep_bfloat16_test sweep_float_test tensor_test)
  in_rounds(asan 1 adjacent_heads_test backward_bf16_test gathered_test kv_attention_test kv_cache_test kv_dots_test
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

  in_rounds(all 4 all)

  list(REMOVE_DUPLICATES builds)
endmacro()

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  attn_rounds()
  math(EXPR round "${SEED} % ${ATTN_ROUNDS}")
  set(run " release")
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

# attn_leaves_out(<variable> <test>): whether this build leaves the test to other seeds, by its list or by the sample.
function(attn_leaves_out variable name)
  attn_in_sample(in_sample ${name} "${ATTN_SAMPLE_SEED}")
  if(in_sample AND NOT name IN_LIST ATTN_LEFT_OUT)
    set(${variable} OFF PARENT_SCOPE)
  else()
    set(${variable} ON PARENT_SCOPE)
  endif()
endfunction()

# attn_share(<list> <seed>): reduces a list of similar items to those of the seed's sample; keeps all if the seed is
# empty.
function(attn_share variable seed)
  if(seed STREQUAL "")
    return()
  endif()
  math(EXPR sample "${seed} % ${ATTN_SAMPLES}")
  set(attn_kept "")
  set(turn 0)
  foreach(item IN LISTS ${variable})
    if(turn EQUAL sample)
      list(APPEND attn_kept ${item})
    endif()
    math(EXPR turn "(${turn} + 1) % ${ATTN_SAMPLES}")
  endforeach()
  set(${variable} ${attn_kept} PARENT_SCOPE)
endfunction()
