# Tests of the memory sources; included by CMakeLists.txt.
commensal_test(
  memory_source_test
  ${CMAKE_CURRENT_LIST_DIR}/fake_memory_source_test.cpp
  ${CMAKE_CURRENT_LIST_DIR}/memory_source_contract_test.cpp
  SHARDS
  2
  LIBRARIES fake_memory_source commensal::allocator
  LABELS allocator)
# Who stops threads is one a process, and some cases fork it.
commensal_test(
  host_memory_test
  ${CMAKE_CURRENT_LIST_DIR}/host_file_system_test.cpp
  ${CMAKE_CURRENT_LIST_DIR}/host_fork_test.cpp
  ${CMAKE_CURRENT_LIST_DIR}/host_kernel_io_test.cpp
  ${CMAKE_CURRENT_LIST_DIR}/host_moves_test.cpp
  ${CMAKE_CURRENT_LIST_DIR}/host_pipeline_test.cpp
  ${CMAKE_CURRENT_LIST_DIR}/host_thread_stopper_test.cpp
  ${CMAKE_CURRENT_LIST_DIR}/host_tier_test.cpp
  ${CMAKE_CURRENT_LIST_DIR}/host_write_watch_test.cpp
  ${CMAKE_CURRENT_LIST_DIR}/own_descriptors_test.cpp
  PROCESS_A_CASE
  LIBRARIES commensal::allocator
  LABELS allocator)
