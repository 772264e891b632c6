// Blas: the functions of cuBLASLt that the backend calls, loaded with dlopen like the driver's
// (driver.h).
//
// The declarations are our own; blas_test.cc compares them with <cublasLt.h> if that is installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/backends/cuda/driver/driver.h"
#include "engine/core/status.h"

struct cublasLtContext;

namespace teletensor::backends::cuda {

using BlasHandle = cublasLtContext*;
// Types that are opaque in CUDA's header.
struct BlasLayout {
  std::uint64_t data[8];
};
struct BlasOperation {
  std::uint64_t data[32];
};
struct BlasPreference {
  std::uint64_t data[8];
};
struct BlasAlgorithm {
  std::uint64_t data[8];
};
struct BlasAnswer {
  BlasAlgorithm algorithm;
  std::size_t workspace = 0;
  int state = 0;
  float waves = 0;
  int reserved[4] = {};
};

// The values of cublasStatus_t that the backend distinguishes.
inline constexpr int kBlasInvalidValue = 7;
inline constexpr int kBlasExecutionFailed = 13;
inline constexpr int kBlasInternalError = 14;
inline constexpr int kBlasNotSupported = 15;
// Values of cudaDataType, cublasComputeType_t and cublasOperation_t.
inline constexpr int kReal16 = 2;
inline constexpr int kBrain16 = 14;
inline constexpr int kReal32 = 0;
inline constexpr int kReal64 = 1;
inline constexpr int kCompute32 = 68;
inline constexpr int kCompute64 = 70;
inline constexpr int kComputeTf32 = 77;
inline constexpr std::int32_t kTransposed = 1;
// Attributes of operations, layouts and preferences, and some of their values.
inline constexpr int kOperationA = 3;
inline constexpr int kOperationB = 4;
inline constexpr int kEpilogue = 7;
inline constexpr int kBiasPointer = 8;
inline constexpr int kBatchCount = 5;
inline constexpr int kBatchStride = 6;
inline constexpr int kMaxWorkspace = 1;
inline constexpr int kReductions = 3;
inline constexpr int kAlignmentA = 5;  // those of B, C and D follow
inline constexpr std::uint32_t kEpilogueBias = 4;
// Parts of a sum are added in the compute type.
inline constexpr std::uint32_t kReduceAsComputed = 2;

// X(member, exported name, arguments). All functions return cublasStatus_t.
#define TT_CUBLASLT_FUNCTIONS(X)                                                                  \
  X(cublasLtCreate, "cublasLtCreate", (BlasHandle*))                                              \
  X(cublasLtDestroy, "cublasLtDestroy", (BlasHandle))                                             \
  X(cublasLtMatmulDescCreate, "cublasLtMatmulDescCreate", (BlasOperation**, int, int))            \
  X(cublasLtMatmulDescDestroy, "cublasLtMatmulDescDestroy", (BlasOperation*))                     \
  X(cublasLtMatmulDescSetAttribute, "cublasLtMatmulDescSetAttribute",                             \
    (BlasOperation*, int, const void*, std::size_t))                                              \
  X(cublasLtMatrixLayoutCreate, "cublasLtMatrixLayoutCreate",                                     \
    (BlasLayout**, int, std::uint64_t, std::uint64_t, std::int64_t))                              \
  X(cublasLtMatrixLayoutDestroy, "cublasLtMatrixLayoutDestroy", (BlasLayout*))                    \
  X(cublasLtMatrixLayoutSetAttribute, "cublasLtMatrixLayoutSetAttribute",                         \
    (BlasLayout*, int, const void*, std::size_t))                                                 \
  X(cublasLtMatmulPreferenceCreate, "cublasLtMatmulPreferenceCreate", (BlasPreference**))         \
  X(cublasLtMatmulPreferenceDestroy, "cublasLtMatmulPreferenceDestroy", (BlasPreference*))        \
  X(cublasLtMatmulPreferenceSetAttribute, "cublasLtMatmulPreferenceSetAttribute",                 \
    (BlasPreference*, int, const void*, std::size_t))                                             \
  X(cublasLtMatmulAlgoGetHeuristic, "cublasLtMatmulAlgoGetHeuristic",                             \
    (BlasHandle, BlasOperation*, BlasLayout*, BlasLayout*, BlasLayout*, BlasLayout*,              \
     BlasPreference*, int, BlasAnswer*, int*))                                                    \
  X(cublasLtMatmul, "cublasLtMatmul",                                                             \
    (BlasHandle, BlasOperation*, const void*, const void*, BlasLayout*, const void*, BlasLayout*, \
     const void*, const void*, BlasLayout*, void*, BlasLayout*, const BlasAlgorithm*, void*,      \
     std::size_t, Stream))

struct Blas {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration
#define TT_MEMBER(member, name, arguments) int(*member) arguments = nullptr;
  TT_CUBLASLT_FUNCTIONS(TT_MEMBER)
#undef TT_MEMBER
  std::size_t version = 0;  // 130100 means 13.1
  std::string path;
};

// Opens the library and never closes it. `path` may be "" to look for the version that fits the
// driver under its usual names.
core::Status load_blas(const Driver& driver, const std::string& path, Blas* blas);

}  // namespace teletensor::backends::cuda
