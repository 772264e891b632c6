// Dnn: the functions of cuDNN's graph API that the backend calls, loaded with dlopen like the
// driver's (driver.h).
//
// The declarations are our own; dnn_test.cc compares them with <cudnn_graph.h> if that is
// installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/backends/cuda/driver/driver.h"
#include "engine/core/status.h"

struct cudnnContext;

namespace teletensor::backends::cuda {

using DnnHandle = cudnnContext*;
using DnnDescriptor = void*;

// Values of cudnnStatus_t. The thousands digit is the category of the error.
inline constexpr int kDnnNotSupported = 3000;
inline constexpr int kDnnInternalError = 4000;
inline constexpr int kDnnExecutionFailed = 5000;
inline constexpr int kDnnErrorKind = 1000;
// Values of cudnnDataType_t, cudnnConvolutionMode_t and cudnnPointwiseMode_t.
inline constexpr int kDnnReal32 = 0;
inline constexpr int kDnnReal64 = 1;
inline constexpr int kDnnReal16 = 2;
inline constexpr int kDnnBrain16 = 9;
inline constexpr int kDnnCrossCorrelation = 1;
inline constexpr int kDnnAdd = 0;

// Values of cudnnBackendDescriptorType_t.
enum class DnnKind : int {
  kPointwise = 0,
  kConvolution = 1,
  kEngine = 2,
  kEngineConfig = 3,
  kHeuristics = 4,
  kPlan = 5,
  kConvolve = 10,          // x and weight give y
  kConvolveToWeight = 11,  // x and the gradient of y give the gradient of the weight
  kConvolveBack = 12,      // the gradient of y and the weight give the gradient of x
  kPointwiseOperation = 13,
  kGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
  kDeviceProperties = 38,
};

// Values of cudnnBackendAttributeType_t.
enum class DnnType : int {
  kHandle = 0,
  kDataType = 1,
  kBoolean = 2,
  kInt64 = 3,
  kFloat = 4,
  kDouble = 5,
  kPointer = 6,
  kConvolutionMode = 7,
  kHeuristicMode = 8,
  kNumericalNote = 11,
  kPointwiseMode = 14,
  kDescriptor = 15,
  kChar = 24,
};

// Values of cudnnBackendAttributeName_t.
enum class DnnAttribute : int {
  kPointwiseMode = 0,
  kPointwiseCompute = 1,
  kConvolutionCompute = 100,
  kConvolutionMode = 101,
  kConvolutionDilations = 102,
  kConvolutionStrides = 103,
  kConvolutionAfter = 104,  // padding after the last element
  kConvolutionBefore = 105,
  kConvolutionRank = 106,
  kHeuristicsMode = 200,
  kHeuristicsGraph = 201,
  kHeuristicsResults = 202,
  kHeuristicsDevice = 204,
  kConfigEngine = 300,
  kPlanHandle = 400,
  kPlanConfig = 401,
  kPlanWorkspace = 402,
  kPlanDevice = 407,
  // The attributes of each operation: alpha, beta, the convolution, and then the tensors in the
  // library's order.
  kConvolveAlpha = 700,
  kConvolveBeta = 701,
  kConvolveBy = 702,
  kConvolveWeight = 703,
  kConvolveX = 704,
  kConvolveY = 705,
  kBackAlpha = 706,
  kBackBeta = 707,
  kBackBy = 708,
  kBackWeight = 709,
  kBackX = 710,
  kBackY = 711,
  kToWeightAlpha = 712,
  kToWeightBeta = 713,
  kToWeightBy = 714,
  kToWeightWeight = 715,
  kToWeightX = 716,
  kToWeightY = 717,
  kPointwiseBy = 750,
  kPointwiseX = 751,
  kPointwiseB = 752,
  kPointwiseY = 753,
  kGraphHandle = 800,
  kGraphOperations = 801,
  kTensorAlignment = 900,
  kTensorType = 901,
  kTensorSizes = 902,
  kTensorStrides = 903,
  kTensorName = 906,
  kTensorVirtual = 907,
  kPackNames = 1000,
  kPackPointers = 1001,
  kPackWorkspace = 1003,
  kEngineNotes = 1303,
  kDeviceText = 2702,
};

// Values of cudnnBackendHeurMode_t.
inline constexpr int kDnnFallbacks = 2;
inline constexpr int kDnnBestFirst = 3;

// Values of cudnnBackendNumericalNote_t: how an engine computes.
enum DnnNote : int {
  kNoteTensorCore = 0,
  kNoteNarrowInputs = 1,
  kNoteNarrowSums = 2,
  kNoteFft = 3,
  kNoteNotRepeatable = 4,
  kNoteWinograd = 5,
  kNoteWinograd4 = 6,
  kNoteWinograd6 = 7,
  kNoteWinograd13 = 8,
};

// X(member, exported name, arguments). All functions return cudnnStatus_t.
#define TT_CUDNN_FUNCTIONS(X)                                                            \
  X(cudnnCreate, "cudnnCreate", (DnnHandle*))                                            \
  X(cudnnDestroy, "cudnnDestroy", (DnnHandle))                                           \
  X(cudnnSetStream, "cudnnSetStream", (DnnHandle, Stream))                               \
  X(cudnnBackendCreateDescriptor, "cudnnBackendCreateDescriptor", (int, DnnDescriptor*)) \
  X(cudnnBackendDestroyDescriptor, "cudnnBackendDestroyDescriptor", (DnnDescriptor))     \
  X(cudnnBackendFinalize, "cudnnBackendFinalize", (DnnDescriptor))                       \
  X(cudnnBackendSetAttribute, "cudnnBackendSetAttribute",                                \
    (DnnDescriptor, int, int, std::int64_t, const void*))                                \
  X(cudnnBackendGetAttribute, "cudnnBackendGetAttribute",                                \
    (DnnDescriptor, int, int, std::int64_t, std::int64_t*, void*))                       \
  X(cudnnBackendExecute, "cudnnBackendExecute", (DnnHandle, DnnDescriptor, DnnDescriptor))

struct Dnn {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration
#define TT_MEMBER(member, name, arguments) int(*member) arguments = nullptr;
  TT_CUDNN_FUNCTIONS(TT_MEMBER)
#undef TT_MEMBER
  std::size_t version = 0;  // 91900 means 9.19
  std::string path;
};

// Opens the library and never closes it. `path` may be "" to look for the version that fits the
// driver under its usual names.
core::Status load_dnn(const Driver& driver, const std::string& path, Dnn* dnn);

}  // namespace teletensor::backends::cuda
