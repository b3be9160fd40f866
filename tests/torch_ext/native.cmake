# Tests of the gate and the session: free of torch, with fake clocks, pages and coordinators.
commensal_test(
  gate_test
  gate/gate_test.cpp
  gate/long_ops_test.cpp
  gate/metering_test.cpp
  ONE_THREAD
  gate/doorbell_test.cpp
  gate/gang_rule_test.cpp
  gate/gap_histogram_test.cpp
  gate/op_duration_test.cpp
  gate/pacing_law_test.cpp
  gate/rival_laws_test.cpp
  LIBRARIES
  commensal::gate
  commensal::wire)
if(TARGET commensal_cuda_machine)
  commensal_test(doze_on_cuda_test gate/doze_on_cuda_test.cpp LIBRARIES commensal::cuda_machine
                 commensal::allocator commensal::gate LABELS simulated_cuda)
endif()
commensal_test(
  runtime_test
  runtime/activity_test.cpp
  runtime/coordinator_client_test.cpp
  runtime/core_keeper_test.cpp
  runtime/gang_model_test.cpp
  runtime/limit_keeper_test.cpp
  runtime/op_samples_test.cpp
  runtime/peer_observer_test.cpp
  runtime/request_finder_test.cpp
  runtime/return_meter_test.cpp
  runtime/statistics_test.cpp
  runtime/step_tracker_test.cpp
  ONE_THREAD
  runtime/device_claim_test.cpp
  runtime/idle_watch_test.cpp
  runtime/sample_windows_test.cpp
  runtime/wanted_memory_test.cpp
  LIBRARIES
  fake_coordinator
  commensal::session
  commensal::node)
commensal_test(virtual_card_test ONE_THREAD gate/virtual_card_test.cpp LIBRARIES commensal::session)
if(TARGET virtual_card_test) # not under TSan: of its threads one runs at a time
  target_compile_definitions(virtual_card_test
                             PRIVATE VIRTUAL_CARD="${PROJECT_SOURCE_DIR}/tests/data/cards/h200.json")
endif()
# One session a process: ctest runs each case in a process of its own.
commensal_test(
  session_test
  runtime/session_test.cpp
  runtime/session_class_test.cpp
  runtime/session_cores_test.cpp
  runtime/session_devices_test.cpp
  runtime/session_idle_test.cpp
  runtime/session_life_test.cpp
  runtime/session_memory_test.cpp
  runtime/session_multiprocessors_test.cpp
  PROCESS_A_CASE
  LIBRARIES
  fake_coordinator
  fake_memory_source
  commensal::session)
commensal_test(two_sessions_test runtime/two_sessions_test.cpp
               PROCESS_A_CASE LIBRARIES
               fake_coordinator
               commensal::session)
target_compile_definitions(two_sessions_test PRIVATE COMMENSALD="$<TARGET_FILE:commensald>")
add_dependencies(two_sessions_test commensald)
