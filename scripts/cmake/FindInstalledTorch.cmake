# Finds the PyTorch that a Python interpreter would import, by its own paths: no TorchConfig.cmake
# (which wants nvcc and a GPU architecture), no CUDA toolkit.
#
# Asks Python_EXECUTABLE, else COMMENSAL_PYTHON_EXECUTABLE, else .venv/bin/python, else python3.
# Sets InstalledTorch_FOUND, InstalledTorch_VERSION ("2.11.0+cu130"), InstalledTorch_MINOR ("2.11"),
# InstalledTorch_REASON (why it was not found), and makes the target InstalledTorch::torch.
if(Python_EXECUTABLE)
  set(_torch_python "${Python_EXECUTABLE}")
elseif(COMMENSAL_PYTHON_EXECUTABLE)
  set(_torch_python "${COMMENSAL_PYTHON_EXECUTABLE}")
elseif(EXISTS "${PROJECT_SOURCE_DIR}/.venv/bin/python")
  set(_torch_python "${PROJECT_SOURCE_DIR}/.venv/bin/python")
else()
  set(_torch_python python3)
endif()
set(InstalledTorch_PYTHON "${_torch_python}")

# Reads torch/version.py alone: importing torch takes seconds and may need libraries.
set(_torch_ask
    [[
import importlib.util, pathlib, runpy, sys
spec = importlib.util.find_spec("torch")
if spec is None or spec.origin is None:
    sys.exit("this Python has no torch")
folder = pathlib.Path(spec.origin).parent
print(folder, runpy.run_path(str(folder / "version.py"))["__version__"], sep=";", end="")
]])
execute_process(
  COMMAND "${_torch_python}" -c "${_torch_ask}"
  OUTPUT_VARIABLE _torch_answer
  ERROR_VARIABLE _torch_error
  RESULT_VARIABLE _torch_result
  ERROR_STRIP_TRAILING_WHITESPACE)

set(InstalledTorch_REASON "")
if(NOT _torch_result EQUAL 0)
  set(InstalledTorch_REASON "${_torch_python}: ${_torch_error}")
  if(NOT _torch_error)
    set(InstalledTorch_REASON "${_torch_python}: ${_torch_result}")
  endif()
else()
  list(GET _torch_answer 0 InstalledTorch_DIR)
  list(GET _torch_answer 1 InstalledTorch_VERSION)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" InstalledTorch_MINOR "${InstalledTorch_VERSION}")
  foreach(_torch_file include/ATen/record_function.h lib/libc10.so lib/libtorch_cpu.so)
    if(NOT EXISTS "${InstalledTorch_DIR}/${_torch_file}")
      set(InstalledTorch_REASON "${InstalledTorch_DIR} has no ${_torch_file}")
    endif()
  endforeach()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  InstalledTorch
  REQUIRED_VARS InstalledTorch_DIR InstalledTorch_MINOR
  VERSION_VAR InstalledTorch_VERSION
  REASON_FAILURE_MESSAGE "${InstalledTorch_REASON}")
if(InstalledTorch_REASON)
  set(InstalledTorch_FOUND FALSE)
endif()

if(InstalledTorch_FOUND AND NOT TARGET InstalledTorch::torch)
  add_library(InstalledTorch::c10 SHARED IMPORTED)
  set_target_properties(InstalledTorch::c10 PROPERTIES IMPORTED_LOCATION
                                                       "${InstalledTorch_DIR}/lib/libc10.so")
  add_library(InstalledTorch::torch SHARED IMPORTED)
  # Headers of an imported target are system headers: their warnings are not ours.
  set_target_properties(
    InstalledTorch::torch
    PROPERTIES IMPORTED_LOCATION "${InstalledTorch_DIR}/lib/libtorch_cpu.so"
               INTERFACE_INCLUDE_DIRECTORIES "${InstalledTorch_DIR}/include"
               INTERFACE_LINK_LIBRARIES InstalledTorch::c10)
endif()
