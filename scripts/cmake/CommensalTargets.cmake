# What every target of this project shares: warnings, language level, sanitizers.
add_library(commensal_warnings INTERFACE)
add_library(commensal::warnings ALIAS commensal_warnings)
target_compile_options(
  commensal_warnings
  INTERFACE -Wall -Wextra -Wconversion -Wshadow -Werror
            $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>)
# GCC 12 reports "string literal" + std::string as overlapping copies at -O2 (GCC bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(commensal_warnings INTERFACE -Wno-restrict)
endif()
target_compile_features(commensal_warnings INTERFACE cxx_std_20)

add_library(commensal_sanitize INTERFACE)
add_library(commensal::sanitize ALIAS commensal_sanitize)
if(COMMENSAL_SANITIZE)
  # Lines for stack traces are enough: with all variables a build takes twice as long. GCC's warnings
  # are wrong about what a sanitizer adds; the other builds hold to them.
  target_compile_options(
    commensal_sanitize INTERFACE -fsanitize=${COMMENSAL_SANITIZE} -fno-omit-frame-pointer -g1
                                 $<$<CXX_COMPILER_ID:GNU>:-Wno-error>)
  target_link_options(commensal_sanitize INTERFACE -fsanitize=${COMMENSAL_SANITIZE})
endif()

# commensal_unity(TARGET): compiles its sources ten at a time. Most of what one costs is its headers,
# which ten share: half of the time, a fifth for clang-tidy.
function(commensal_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${COMMENSAL_UNITY} UNITY_BUILD_BATCH_SIZE 10)
endfunction()

# commensal_library(NAME source...): a static library `commensal_NAME`, alias `commensal::NAME`,
# whose headers are included by their path from the top of the tree.
function(commensal_library name)
  add_library(commensal_${name} STATIC ${ARGN})
  add_library(commensal::${name} ALIAS commensal_${name})
  commensal_unity(commensal_${name})
  target_include_directories(commensal_${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_compile_features(commensal_${name} PUBLIC cxx_std_20)
  target_link_libraries(commensal_${name} PRIVATE commensal::warnings PUBLIC commensal::sanitize
                                                                             Threads::Threads)
endfunction()

# commensal_fake(NAME source... LIBRARIES target...): a static library that several tests link.
function(commensal_fake name)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "" "LIBRARIES")
  add_library(${name} STATIC ${ARG_UNPARSED_ARGUMENTS})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE commensal::warnings PUBLIC ${ARG_LIBRARIES})
endfunction()

# commensal_test_headers(): the header of googletest, which takes longer than most tests, compiled once
# for all of them.
function(commensal_test_headers)
  # A program, as the tests: a library would be compiled with other options.
  add_executable(commensal_test_headers ${PROJECT_SOURCE_DIR}/tests/test_headers.cpp)
  target_link_libraries(commensal_test_headers PRIVATE commensal::warnings commensal::sanitize
                                                       Threads::Threads GTest::gmock)
  target_precompile_headers(commensal_test_headers PRIVATE <gmock/gmock.h> <gtest/gtest.h>)
  commensal_test_options(commensal_test_headers)
endfunction()

# A fuzz target does not call the tests' own code, so that needs no marks for the fuzzer. It undoes an
# option of commensal_sanitize, so it must come after all that brings that: the last library of a test.
add_library(commensal_not_fuzzed INTERFACE)
if(COMMENSAL_SANITIZE MATCHES fuzzer)
  target_compile_options(commensal_not_fuzzed INTERFACE -fno-sanitize=fuzzer-no-link)
endif()

# The compiler's options for a test: equal for all, or they could not share a header.
function(commensal_test_options name)
  target_link_libraries(${name} PRIVATE commensal_not_fuzzed)
  # What is tested is optimised; tests themselves build in a third of the time without.
  target_compile_options(${name} PRIVATE -O0)
  # So that ccache knows what it may keep of a target with a compiled header.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${name} PRIVATE -fpch-preprocess)
  else()
    target_compile_options(${name} PRIVATE "SHELL:-Xclang -fno-pch-timestamp")
  endif()
endfunction()

# commensal_test(NAME source... [ONE_THREAD source...] LIBRARIES target... [LABELS label...] [SHARDS n]
# [PROCESS_A_CASE] [OPTIMISED] [OWN_HEADERS]): a GoogleTest program. Each source has a namespace of its
# own, as several are compiled at a time.
# ONE_THREAD: nothing for TSan to see, so left out there.
# ctest runs the program as a whole, for most cases take less time than the start of a process; SHARDS:
# in n parts, for what takes long; PROCESS_A_CASE: each case by itself, as the preset dev does for all.
# OPTIMISED: computes much, so the build of it takes longer.
# OWN_HEADERS: has definitions that change what the shared header means, but in a release.
function(commensal_test name)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "OPTIMISED;OWN_HEADERS;PROCESS_A_CASE" "SHARDS"
                        "ONE_THREAD;LIBRARIES;LABELS")
  set(sources ${ARG_UNPARSED_ARGUMENTS})
  if(NOT COMMENSAL_SANITIZE MATCHES thread)
    list(APPEND sources ${ARG_ONE_THREAD})
  endif()
  if(NOT sources)
    return()
  endif()
  add_executable(${name} ${sources})
  commensal_unity(${name})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE commensal::warnings commensal::sanitize ${ARG_LIBRARIES}
                                        GTest::gmock_main)
  commensal_test_options(${name})
  if(ARG_OPTIMISED)
    target_compile_options(${name} PRIVATE -O2)
  endif()
  if(ARG_OPTIMISED OR (ARG_OWN_HEADERS AND NOT CMAKE_BUILD_TYPE STREQUAL Release))
    target_precompile_headers(${name} PRIVATE <gmock/gmock.h> <gtest/gtest.h>)
  else()
    target_precompile_headers(${name} REUSE_FROM commensal_test_headers)
  endif()
  add_dependencies(commensal_tests ${name})
  # Labels: what was given, the program's name, and `asan`: that preset runs it, too, so that .ci/run
  # leaves it out of this one, but for the first.
  set(labels ${ARG_LABELS} ${name})
  set(labels_of_first ${labels})
  if(NOT ARG_LABELS MATCHES "torch|whole_trace|simulated_cuda")
    list(APPEND labels asan)
  endif()
  if(ARG_PROCESS_A_CASE OR NOT COMMENSAL_UNITY)
    commensal_test_by_case(${name} "${labels}" "${labels_of_first}")
    return()
  endif()
  if(NOT ARG_SHARDS)
    set(ARG_SHARDS 1)
  endif()
  math(EXPR last "${ARG_SHARDS} - 1")
  foreach(shard RANGE ${last})
    set(test ${name}.${shard})
    add_test(NAME ${test} COMMAND ${name} --gtest_output=xml:${CMAKE_BINARY_DIR}/results/cases/${test}.xml)
    set_tests_properties(
      ${test} PROPERTIES ENVIRONMENT "GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${shard}"
                         TIMEOUT 600 LABELS "${labels}")
  endforeach()
  set_tests_properties(${name}.0 PROPERTIES LABELS "${labels_of_first}")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${COMMENSAL_TEST_COSTS}")
endfunction()

# Each case a test of ctest's, by the name that GoogleTest filters by (no bytes of parameters).
function(commensal_test_by_case name labels labels_of_first)
  gtest_discover_tests(${name} NO_PRETTY_VALUES DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 300)
  # Of a list among those properties it would keep the first entry alone.
  set(file "${CMAKE_CURRENT_BINARY_DIR}/${name}_labels.cmake")
  file(WRITE "${file}" "if(${name}_TESTS)
  set_tests_properties(\${${name}_TESTS} PROPERTIES LABELS \"${labels}\")
  list(GET ${name}_TESTS 0 first)
  set_tests_properties(\${first} PROPERTIES LABELS \"${labels_of_first}\")
endif()
include(\"${COMMENSAL_TEST_COSTS}\")
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${file}")
endfunction()
