// SPDX-License-Identifier: Apache-2.0
// A libcuda.so.1 of before CUDA 12.5: it has what is looked for first, but no cuCtxRecordEvent.

#define COMMENSAL_OLD(name) \
  extern "C" int name();    \
  int name() { return 0; }
COMMENSAL_OLD(cuInit)
COMMENSAL_OLD(cuGetErrorName)
COMMENSAL_OLD(cuGetErrorString)
COMMENSAL_OLD(cuDeviceGet)
COMMENSAL_OLD(cuDeviceGetAttribute)
COMMENSAL_OLD(cuDeviceTotalMem_v2)
COMMENSAL_OLD(cuDeviceGetUuid_v2)
COMMENSAL_OLD(cuMemHostRegister_v2)
COMMENSAL_OLD(cuMemHostUnregister)
COMMENSAL_OLD(cuMemHostGetDevicePointer_v2)
COMMENSAL_OLD(cuStreamWriteValue64_v2)
COMMENSAL_OLD(cuDevicePrimaryCtxRetain)
COMMENSAL_OLD(cuDevicePrimaryCtxRelease_v2)
COMMENSAL_OLD(cuCtxGetCurrent)
COMMENSAL_OLD(cuCtxSetCurrent)
COMMENSAL_OLD(cuCtxGetStreamPriorityRange)
