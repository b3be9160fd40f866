# The host memory source, part of the library `commensal_allocator`.
target_sources(
  commensal_allocator
  PRIVATE ${CMAKE_CURRENT_LIST_DIR}/child_watch.cpp
          ${CMAKE_CURRENT_LIST_DIR}/file_system.cpp
          ${CMAKE_CURRENT_LIST_DIR}/host_memory_source.cpp
          ${CMAKE_CURRENT_LIST_DIR}/kernel_io.cpp
          ${CMAKE_CURRENT_LIST_DIR}/live_memory.cpp
          ${CMAKE_CURRENT_LIST_DIR}/own_descriptors.cpp
          ${CMAKE_CURRENT_LIST_DIR}/own_threads.cpp
          ${CMAKE_CURRENT_LIST_DIR}/page_map.cpp
          ${CMAKE_CURRENT_LIST_DIR}/quick_calls.cpp
          ${CMAKE_CURRENT_LIST_DIR}/signal_stacks.cpp
          ${CMAKE_CURRENT_LIST_DIR}/slot_io.cpp
          ${CMAKE_CURRENT_LIST_DIR}/spill_file.cpp
          ${CMAKE_CURRENT_LIST_DIR}/stop_probe.cpp
          ${CMAKE_CURRENT_LIST_DIR}/thread_stopper.cpp
          ${CMAKE_CURRENT_LIST_DIR}/thread_tracer.cpp
          ${CMAKE_CURRENT_LIST_DIR}/write_watch.cpp)

# These run in a signal handler, or while threads are stopped that may hold a sanitizer's locks, or
# read memory that others write on purpose.
if(COMMENSAL_SANITIZE)
  set_source_files_properties(
    ${CMAKE_CURRENT_LIST_DIR}/live_memory.cpp ${CMAKE_CURRENT_LIST_DIR}/own_threads.cpp
    ${CMAKE_CURRENT_LIST_DIR}/page_map.cpp ${CMAKE_CURRENT_LIST_DIR}/quick_calls.cpp
    ${CMAKE_CURRENT_LIST_DIR}/signal_stacks.cpp ${CMAKE_CURRENT_LIST_DIR}/thread_stopper.cpp
    ${CMAKE_CURRENT_LIST_DIR}/thread_tracer.cpp
    ${CMAKE_CURRENT_LIST_DIR}/write_watch.cpp
    PROPERTIES COMPILE_OPTIONS "-fno-sanitize=all")
endif()
