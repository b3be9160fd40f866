# Tests of the memory sources; included by CMakeLists.txt.
commensal_test(
  memory_source_test
  ${CMAKE_CURRENT_LIST_DIR}/fake_memory_source.cpp
  ${CMAKE_CURRENT_LIST_DIR}/fake_memory_source_test.cpp
  ${CMAKE_CURRENT_LIST_DIR}/memory_source_contract_test.cpp
  LIBRARIES commensal::allocator
  LABELS allocator)
