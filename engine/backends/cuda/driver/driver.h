// Driver and Compiler: the functions of the CUDA driver and of NVRTC that the backend calls, loaded
// with dlopen.
//
// The declarations are our own, so that this compiles without a toolkit; driver_test.cc compares
// them with <cuda.h> and <nvrtc.h> if those are installed. The names are CUDA's without the version
// suffixes that its headers hide (cuMemAlloc is cuMemAlloc_v2).
#pragma once

#include <cstddef>
#include <string>

#include "engine/core/status.h"

struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUmod_st;
struct CUfunc_st;
struct CUgraph_st;
struct CUgraphExec_st;
struct CUgraphNode_st;
struct CUmemPoolHandle_st;
struct _nvrtcProgram;  // NOLINT(bugprone-reserved-identifier): the header's own name

namespace teletensor::backends::cuda {

using Context = CUctx_st*;
using Stream = CUstream_st*;
using Event = CUevent_st*;
using Module = CUmod_st*;
using Function = CUfunc_st*;
using Graph = CUgraph_st*;
using GraphExec = CUgraphExec_st*;
using Program = _nvrtcProgram*;
using Address = unsigned long long;  // an address in device memory (CUdeviceptr)
inline Address address(const void* memory) { return reinterpret_cast<Address>(memory); }
// Physical memory without an address (CUmemGenericAllocationHandle).
using Physical = unsigned long long;

// The values of CUresult that the backend distinguishes.
inline constexpr int kSuccess = 0;
inline constexpr int kInvalidValue = 1;
inline constexpr int kOutOfMemory = 2;
inline constexpr int kNoDevice = 100;
inline constexpr int kInvalidImage = 200;
inline constexpr int kNoBinaryForGpu = 209;
inline constexpr int kInvalidPtx = 218;
inline constexpr int kUnsupportedPtxVersion = 222;
inline constexpr int kNotFound = 500;
inline constexpr int kNotReady = 600;
inline constexpr int kIllegalAddress = 700;
inline constexpr int kLaunchOutOfResources = 701;
inline constexpr int kNotSupported = 801;
inline constexpr int kGraphUpdateFailure = 910;
// Values of CUdevice_attribute.
inline constexpr int kMultiprocessors = 16;
inline constexpr int kComputeMode = 20;
inline constexpr int kCapabilityMajor = 75;
inline constexpr int kCapabilityMinor = 76;
inline constexpr int kDescriptorsSupported = 103;
inline constexpr int kMemoryPoolsSupported = 115;
// Values of CUcomputemode, CUstream_flags, CUevent_flags, CUfunction_attribute and
// CUstreamCaptureMode.
inline constexpr int kComputeModeProhibited = 2;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr int kMaxDynamicSharedBytes = 8;
inline constexpr unsigned kLockForAll = 1;  // CU_MEMHOSTREGISTER_PORTABLE
inline constexpr int kCaptureRelaxed = 2;

// CUgraphExecUpdateResultInfo: why a graph could not take the parameters of another one.
struct GraphUpdate {
  int result = 0;
  CUgraphNode_st *node = nullptr, *from = nullptr;
};

// CUmemLocation: a device. CUmemAllocationProp: memory of the device that can be exported as a file
// descriptor. CUmemAccessDesc: the access rights to mapped memory.
struct MemoryPlace {
  int type = 1;  // CU_MEM_LOCATION_TYPE_DEVICE
  int id = 0;
};
inline constexpr int kDescriptor = 1;  // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
struct MemoryKind {
  int type = 1;  // CU_MEM_ALLOCATION_TYPE_PINNED
  int handles = kDescriptor;
  MemoryPlace place;
  void* unused = nullptr;
  unsigned char flags[8] = {};
};
struct MemoryAccess {
  MemoryPlace place;
  int flags = 3;  // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
};
struct Uuid {
  char bytes[16] = {};
};

// X(member, exported name, arguments). All functions return CUresult.
#define TT_CUDA_FUNCTIONS(X)                                                                     \
  X(cuInit, "cuInit", (unsigned))                                                                \
  X(cuDriverGetVersion, "cuDriverGetVersion", (int*))                                            \
  X(cuGetErrorName, "cuGetErrorName", (int, const char**))                                       \
  X(cuDeviceGetCount, "cuDeviceGetCount", (int*))                                                \
  X(cuDeviceGet, "cuDeviceGet", (int*, int))                                                     \
  X(cuDeviceGetName, "cuDeviceGetName", (char*, int, int))                                       \
  X(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int*, int, int))                              \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (Context*, int))                       \
  X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (int))                            \
  X(cuCtxSetCurrent, "cuCtxSetCurrent", (Context))                                               \
  X(cuMemGetInfo, "cuMemGetInfo_v2", (std::size_t*, std::size_t*))                               \
  X(cuMemAlloc, "cuMemAlloc_v2", (Address*, std::size_t))                                        \
  X(cuMemFree, "cuMemFree_v2", (Address))                                                        \
  X(cuMemAllocAsync, "cuMemAllocAsync", (Address*, std::size_t, Stream))                         \
  X(cuMemFreeAsync, "cuMemFreeAsync", (Address, Stream))                                         \
  X(cuDeviceGetUuid_v2, "cuDeviceGetUuid_v2", (Uuid*, int))                                      \
  X(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", (CUmemPoolHandle_st**, int))         \
  X(cuMemPoolTrimTo, "cuMemPoolTrimTo", (CUmemPoolHandle_st*, std::size_t))                      \
  X(cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity",                              \
    (std::size_t*, const MemoryKind*, int))                                                      \
  X(cuMemCreate, "cuMemCreate", (Physical*, std::size_t, const MemoryKind*, unsigned long long)) \
  X(cuMemRelease, "cuMemRelease", (Physical))                                                    \
  X(cuMemExportToShareableHandle, "cuMemExportToShareableHandle",                                \
    (void*, Physical, int, unsigned long long))                                                  \
  X(cuMemAddressReserve, "cuMemAddressReserve",                                                  \
    (Address*, std::size_t, std::size_t, Address, unsigned long long))                           \
  X(cuMemAddressFree, "cuMemAddressFree", (Address, std::size_t))                                \
  X(cuMemMap, "cuMemMap", (Address, std::size_t, std::size_t, Physical, unsigned long long))     \
  X(cuMemUnmap, "cuMemUnmap", (Address, std::size_t))                                            \
  X(cuMemSetAccess, "cuMemSetAccess", (Address, std::size_t, const MemoryAccess*, std::size_t))  \
  X(cuMemHostAlloc, "cuMemHostAlloc", (void**, std::size_t, unsigned))                           \
  X(cuMemFreeHost, "cuMemFreeHost", (void*))                                                     \
  X(cuMemHostRegister, "cuMemHostRegister_v2", (void*, std::size_t, unsigned))                   \
  X(cuMemHostUnregister, "cuMemHostUnregister", (void*))                                         \
  X(cuMemsetD8Async, "cuMemsetD8Async", (Address, unsigned char, std::size_t, Stream))           \
  X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (Address, const void*, std::size_t, Stream))      \
  X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void*, Address, std::size_t, Stream))            \
  X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", (Address, Address, std::size_t, Stream))          \
  X(cuMemcpyPeerAsync, "cuMemcpyPeerAsync",                                                      \
    (Address, Context, Address, Context, std::size_t, Stream))                                   \
  X(cuStreamCreate, "cuStreamCreate", (Stream*, unsigned))                                       \
  X(cuStreamDestroy, "cuStreamDestroy_v2", (Stream))                                             \
  X(cuStreamWaitEvent, "cuStreamWaitEvent", (Stream, Event, unsigned))                           \
  X(cuEventCreate, "cuEventCreate", (Event*, unsigned))                                          \
  X(cuEventRecord, "cuEventRecord", (Event, Stream))                                             \
  X(cuEventQuery, "cuEventQuery", (Event))                                                       \
  X(cuEventElapsedTime, "cuEventElapsedTime", (float*, Event, Event))                            \
  X(cuEventDestroy, "cuEventDestroy_v2", (Event))                                                \
  X(cuModuleLoadData, "cuModuleLoadData", (Module*, const void*))                                \
  X(cuModuleUnload, "cuModuleUnload", (Module))                                                  \
  X(cuModuleGetFunction, "cuModuleGetFunction", (Function*, Module, const char*))                \
  X(cuFuncSetAttribute, "cuFuncSetAttribute", (Function, int, int))                              \
  X(cuLaunchKernel, "cuLaunchKernel",                                                            \
    (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream,     \
     void**, void**))                                                                            \
  X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", (Stream, int))                              \
  X(cuStreamEndCapture, "cuStreamEndCapture", (Stream, Graph*))                                  \
  X(cuGraphInstantiate, "cuGraphInstantiateWithFlags", (GraphExec*, Graph, unsigned long long))  \
  X(cuGraphDestroy, "cuGraphDestroy", (Graph))                                                   \
  X(cuGraphExecUpdate, "cuGraphExecUpdate_v2", (GraphExec, Graph, GraphUpdate*))                 \
  X(cuGraphExecDestroy, "cuGraphExecDestroy", (GraphExec))                                       \
  X(cuGraphLaunch, "cuGraphLaunch", (GraphExec, Stream))

// All functions return nvrtcResult.
#define TT_NVRTC_FUNCTIONS(X)                                                          \
  X(nvrtcVersion, "nvrtcVersion", (int*, int*))                                        \
  X(nvrtcGetNumSupportedArchs, "nvrtcGetNumSupportedArchs", (int*))                    \
  X(nvrtcGetSupportedArchs, "nvrtcGetSupportedArchs", (int*))                          \
  X(nvrtcCreateProgram, "nvrtcCreateProgram",                                          \
    (Program*, const char*, const char*, int, const char* const*, const char* const*)) \
  X(nvrtcDestroyProgram, "nvrtcDestroyProgram", (Program*))                            \
  X(nvrtcCompileProgram, "nvrtcCompileProgram", (Program, int, const char* const*))    \
  X(nvrtcGetCUBINSize, "nvrtcGetCUBINSize", (Program, std::size_t*))                   \
  X(nvrtcGetCUBIN, "nvrtcGetCUBIN", (Program, char*))                                  \
  X(nvrtcGetPTXSize, "nvrtcGetPTXSize", (Program, std::size_t*))                       \
  X(nvrtcGetPTX, "nvrtcGetPTX", (Program, char*))                                      \
  X(nvrtcGetProgramLogSize, "nvrtcGetProgramLogSize", (Program, std::size_t*))         \
  X(nvrtcGetProgramLog, "nvrtcGetProgramLog", (Program, char*))

struct Driver {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration
#define TT_MEMBER(member, name, arguments) int(*member) arguments = nullptr;
  TT_CUDA_FUNCTIONS(TT_MEMBER)
  int version = 0;  // 12040 means CUDA 12.4
  // The library also exports NVRTC's functions (true for the tests' fake driver).
  bool compiles = false;
  std::string path;
};

struct Compiler {
  TT_NVRTC_FUNCTIONS(TT_MEMBER)
#undef TT_MEMBER
  int major = 0, minor = 0;
  std::string path;
};

// These open the libraries, never close them, and fill the tables. They return NOT_FOUND if there
// is no such library or if it lacks a function; the message says which one. load_driver also calls
// cuInit.
core::Status load_driver(const std::string& path, Driver* driver);
// `path` may be "" for NVRTC under its usual names.
core::Status load_compiler(const std::string& path, Compiler* compiler);
// Checks that driver and compiler fit each other. The error is one sentence that names both
// versions.
core::Status check_versions(const Driver& driver, const Compiler& compiler);

// Compiles `source` to machine code for `capability` (90 means 9.0), or to PTX for the nearest
// lower architecture that the compiler knows. If it does not compile, the error has the compiler's
// log.
core::Result<std::string> compile(const Compiler& compiler, const std::string& source,
                                  int capability);
// All inputs of compile() apart from the text; part of a kernel's file name on disk.
std::string compile_flags(const Compiler& compiler, int capability);

}  // namespace teletensor::backends::cuda
