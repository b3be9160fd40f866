# Finds the headers of CUDA 13, and nothing else: in a toolkit, or in the wheels beside the PyTorch
# that FindInstalledTorch found. Needs no nvcc, no driver and no GPU.
#
# Sets CudaHeaders_FOUND, CudaHeaders_INCLUDE_DIRS and CudaHeaders_REASON (why they were not found),
# and makes the target CudaHeaders::headers.
find_path(CudaHeaders_TOOLKIT_INCLUDE cuda_runtime_api.h HINTS ENV CUDA_HOME ENV CUDA_PATH
          PATHS /usr/local/cuda PATH_SUFFIXES include)
mark_as_advanced(CudaHeaders_TOOLKIT_INCLUDE)
set(CudaHeaders_INCLUDE_DIRS "${CudaHeaders_TOOLKIT_INCLUDE}")
if(NOT CudaHeaders_INCLUDE_DIRS)
  set(CudaHeaders_INCLUDE_DIRS "")
  # The wheels carry the same headers, Triton's those in crt/ that they include.
  find_package(InstalledTorch QUIET)
  if(InstalledTorch_FOUND)
    file(GLOB CudaHeaders_INCLUDE_DIRS "${InstalledTorch_DIR}/../nvidia/cu1[3-9]/include")
    list(APPEND CudaHeaders_INCLUDE_DIRS
         "${InstalledTorch_DIR}/../triton/backends/nvidia/include")
  endif()
endif()

include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_INCLUDES ${CudaHeaders_INCLUDE_DIRS})
check_cxx_source_compiles(
  "#include <cuda.h>
   #include <cuda_runtime_api.h>
   static_assert(CUDA_VERSION / 1000 == 13 && CUDART_VERSION / 1000 == 13);
   int main() {}"
  CudaHeaders_COMPILE)
unset(CMAKE_REQUIRED_INCLUDES)
set(CudaHeaders_REASON "")
if(NOT CudaHeaders_COMPILE)
  unset(CudaHeaders_COMPILE CACHE) # looked for again at the next configuration
  set(CudaHeaders_REASON "neither a CUDA toolkit 13 nor PyTorch's wheels give headers that compile \
(looked in: ${CudaHeaders_INCLUDE_DIRS})")
  set(CudaHeaders_FOUND FALSE)
  return()
endif()
set(CudaHeaders_FOUND TRUE)
if(NOT TARGET CudaHeaders::headers)
  add_library(CudaHeaders::headers INTERFACE IMPORTED)
  # Headers of an imported target are system headers: their warnings are not ours.
  set_target_properties(CudaHeaders::headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES
                                                        "${CudaHeaders_INCLUDE_DIRS}")
endif()
