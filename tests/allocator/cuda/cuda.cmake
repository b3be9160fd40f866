# Tests of the CUDA memory source; included by ../CMakeLists.txt. They run on the simulated driver,
# and on a card with COMMENSAL_TEST_REAL_CUDA=1 (tests/gpu/run_all.sh).
if(NOT TARGET commensal_allocator_cuda OR NOT TARGET simulated_cuda)
  return()
endif()
set(cuda_test_folder ${CMAKE_CURRENT_LIST_DIR})
commensal_library(cuda_machine ${cuda_test_folder}/cuda_machine.cpp)
# The memory source leaves what it needs of the allocator to whoever links it: in the product a shared
# library has both.
target_link_libraries(
  commensal_cuda_machine
  PUBLIC "$<LINK_GROUP:RESCAN,commensal::allocator_cuda,commensal::allocator>" GTest::gtest
         ${CMAKE_DL_LIBS})
target_compile_definitions(commensal_cuda_machine
                           PRIVATE COMMENSAL_SIMULATED_CUDA="$<TARGET_FILE:simulated_cuda>")
add_dependencies(commensal_cuda_machine simulated_cuda)
# The fingerprint kernel for Python processes on the simulated driver: tests/simulated_cuda/run.py.
if(NOT COMMENSAL_SANITIZE)
  add_library(simulated_fingerprint SHARED ${cuda_test_folder}/simulated_fingerprint.cpp)
  target_link_libraries(simulated_fingerprint PRIVATE commensal::allocator_cuda simulated_cuda
                                                      commensal::warnings)
  target_link_options(simulated_fingerprint PRIVATE "LINKER:--exclude-libs,ALL")
  set_target_properties(
    simulated_fingerprint PROPERTIES LIBRARY_OUTPUT_DIRECTORY $<TARGET_FILE_DIR:simulated_cuda>
                                     BUILD_RPATH "$ORIGIN")
endif()
# Label gpu: asks a card, too, in a stage of tests/gpu/stages.sh.
foreach(test cuda_contract_test cuda_memory_source_test elastic_on_cuda_test peer_access_test
             pinned_memory_test)
  commensal_test(${test} ${cuda_test_folder}/${test}.cpp LIBRARIES commensal::cuda_machine
                 commensal::allocator LABELS allocator simulated_cuda gpu)
endforeach()
commensal_test(cuda_faults_test ONE_THREAD ${cuda_test_folder}/cuda_faults_test.cpp LIBRARIES
               commensal::cuda_machine commensal::allocator LABELS allocator simulated_cuda gpu)
# Every case of it needs a driver that can be held and fails on demand.
commensal_test(pitfalls_cuda_test ${cuda_test_folder}/pitfalls_cuda_test.cpp LIBRARIES
               commensal::cuda_machine commensal::allocator LABELS allocator simulated_cuda)
# ... and with chunks of another size than the card's.
add_test(NAME cuda_contract_small_chunks COMMAND cuda_contract_test)
set_tests_properties(
  cuda_contract_small_chunks PROPERTIES ENVIRONMENT SIMULATED_CUDA_GRANULARITY=65536 TIMEOUT 300
                                        LABELS "allocator;simulated_cuda")

add_library(old_cuda_driver SHARED ${cuda_test_folder}/old_driver.cpp)
set_target_properties(old_cuda_driver PROPERTIES OUTPUT_NAME cuda SOVERSION 1
                                                 LIBRARY_OUTPUT_DIRECTORY old_cuda_driver)
commensal_test(cuda_driver_test ${cuda_test_folder}/cuda_driver_test.cpp LIBRARIES
               commensal::allocator_cuda commensal::allocator ${CMAKE_DL_LIBS} LABELS allocator)
target_compile_definitions(cuda_driver_test
                           PRIVATE COMMENSAL_OLD_CUDA="$<TARGET_FILE:old_cuda_driver>")
add_dependencies(cuda_driver_test old_cuda_driver)
