# Finds the CUDA half of the PyTorch that FindInstalledTorch found, and CUDA headers to compile
# against it: those of the nvidia wheels beside torch, else those of a toolkit. Needs no nvcc.
#
# Sets InstalledTorchCuda_FOUND, InstalledTorchCuda_VERSION ("13.0"), InstalledTorchCuda_INCLUDE_DIR
# (the folder of cuda.h), InstalledTorchCuda_REASON (what is missing), and makes the targets
# InstalledTorch::cuda_headers, InstalledTorch::c10_cuda and InstalledTorch::cudart (the runtime beside
# those headers, for programs; a library finds PyTorch's in its process).
set(InstalledTorchCuda_REASON "")
set(InstalledTorchCuda_VERSION "")
find_package(InstalledTorch QUIET)
if(NOT InstalledTorch_FOUND)
  set(InstalledTorchCuda_REASON "no PyTorch: ${InstalledTorch_REASON}")
else()
  file(STRINGS "${InstalledTorch_DIR}/version.py" _torch_cuda_line REGEX "^cuda[: ]")
  if(_torch_cuda_line MATCHES "'([0-9]+)\\.([0-9]+)")
    set(InstalledTorchCuda_VERSION "${CMAKE_MATCH_1}.${CMAKE_MATCH_2}")
    set(_torch_cuda_major "${CMAKE_MATCH_1}")
  else()
    set(InstalledTorchCuda_REASON "PyTorch ${InstalledTorch_VERSION} is built without CUDA")
  endif()
endif()

if(InstalledTorchCuda_VERSION)
  foreach(_torch_file include/c10/cuda/CUDACachingAllocator.h lib/libc10_cuda.so lib/libtorch_cuda.so)
    if(NOT EXISTS "${InstalledTorch_DIR}/${_torch_file}")
      set(InstalledTorchCuda_REASON "${InstalledTorch_DIR} has no ${_torch_file}")
    endif()
  endforeach()
  # The wheels of CUDA 12 have one folder a component, those of CUDA 13 one for all.
  find_path(
    InstalledTorchCuda_INCLUDE_DIR cuda_runtime_api.h
    HINTS "${InstalledTorch_DIR}/../nvidia/cu${_torch_cuda_major}/include"
          "${InstalledTorch_DIR}/../nvidia/cuda_runtime/include"
          "$ENV{CUDA_HOME}/include" "$ENV{CUDA_PATH}/include"
    PATHS /usr/local/cuda-${InstalledTorchCuda_VERSION}/include
          /usr/local/cuda-${_torch_cuda_major}/include /usr/local/cuda/include)
  if(NOT InstalledTorchCuda_INCLUDE_DIR)
    set(InstalledTorchCuda_REASON
        "no cuda_runtime_api.h for CUDA ${InstalledTorchCuda_VERSION}; install the wheel \
nvidia-cuda-runtime of that version beside torch, or set CUDA_HOME to a toolkit")
  else()
    file(STRINGS "${InstalledTorchCuda_INCLUDE_DIR}/cuda.h" _cuda_line REGEX "^#define CUDA_VERSION ")
    string(REGEX REPLACE "^#define CUDA_VERSION +([0-9]+)[0-9][0-9][0-9].*" "\\1" _cuda_major
                         "${_cuda_line}")
    if(NOT _cuda_major EQUAL _torch_cuda_major)
      set(InstalledTorchCuda_REASON
          "${InstalledTorchCuda_INCLUDE_DIR} is CUDA ${_cuda_major}, PyTorch is built for \
${InstalledTorchCuda_VERSION}")
    endif()
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  InstalledTorchCuda
  REQUIRED_VARS InstalledTorchCuda_VERSION InstalledTorchCuda_INCLUDE_DIR
  VERSION_VAR InstalledTorchCuda_VERSION
  REASON_FAILURE_MESSAGE "${InstalledTorchCuda_REASON}")
if(InstalledTorchCuda_REASON)
  set(InstalledTorchCuda_FOUND FALSE)
endif()

if(InstalledTorchCuda_FOUND AND NOT TARGET InstalledTorch::c10_cuda)
  add_library(InstalledTorch::cuda_headers INTERFACE IMPORTED)
  set_target_properties(InstalledTorch::cuda_headers
                        PROPERTIES INTERFACE_INCLUDE_DIRECTORIES
                                   "${InstalledTorchCuda_INCLUDE_DIR}")
  add_library(InstalledTorch::c10_cuda SHARED IMPORTED)
  # The base class of the allocator calls the runtime from inline code.
  find_library(
    InstalledTorchCuda_CUDART libcudart.so.${_torch_cuda_major} NO_DEFAULT_PATH
    HINTS "${InstalledTorchCuda_INCLUDE_DIR}/../lib" "${InstalledTorchCuda_INCLUDE_DIR}/../lib64")
  add_library(InstalledTorch::cudart INTERFACE IMPORTED)
  if(InstalledTorchCuda_CUDART)
    set_target_properties(InstalledTorch::cudart PROPERTIES INTERFACE_LINK_LIBRARIES
                                                            "${InstalledTorchCuda_CUDART}")
  endif()
  set_target_properties(
    InstalledTorch::c10_cuda
    PROPERTIES IMPORTED_LOCATION "${InstalledTorch_DIR}/lib/libc10_cuda.so"
               INTERFACE_LINK_LIBRARIES "InstalledTorch::torch;InstalledTorch::cuda_headers")
  # Kernels of ops, for what calls them itself.
  add_library(InstalledTorch::torch_cuda SHARED IMPORTED)
  set_target_properties(InstalledTorch::torch_cuda
                        PROPERTIES IMPORTED_LOCATION "${InstalledTorch_DIR}/lib/libtorch_cuda.so"
                                   INTERFACE_LINK_LIBRARIES InstalledTorch::c10_cuda)
endif()
