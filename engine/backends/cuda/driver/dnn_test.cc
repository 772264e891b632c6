// Compares our declarations of cuDNN with its header, if that is installed, and tests loading the
// library. If the library itself is installed, it makes plans of our graphs for a device that
// exists only as a description.
#include "engine/backends/cuda/driver/dnn.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/backends/cuda/driver/signatures_test.h"
#include "engine/backends/cuda/library/dnn_plan.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif
#if __has_include(<cudnn_graph.h>)
#define TT_HAVE_CUDNN 1
#include <cudnn_graph.h>
#endif

namespace teletensor::backends::cuda {
namespace {

using core::DType;
using testing::HasSubstr;

#ifdef TT_HAVE_CUDNN

TT_CUDNN_FUNCTIONS(TT_SAME)
static_assert(std::is_same_v<decltype(&::cudnnGetVersion), std::size_t (*)()>);
static_assert(std::is_same_v<decltype(&::cudnnGetCudartVersion), std::size_t (*)()>);

TEST(Dnn, NumbersAreTheHeaders) {
  EXPECT_EQ(kDnnNotSupported, CUDNN_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(kDnnInternalError, CUDNN_STATUS_INTERNAL_ERROR);
  EXPECT_EQ(kDnnExecutionFailed, CUDNN_STATUS_EXECUTION_FAILED);
  EXPECT_EQ(kDnnReal32, CUDNN_DATA_FLOAT);
  EXPECT_EQ(kDnnReal64, CUDNN_DATA_DOUBLE);
  EXPECT_EQ(kDnnReal16, CUDNN_DATA_HALF);
  EXPECT_EQ(kDnnBrain16, CUDNN_DATA_BFLOAT16);
  EXPECT_EQ(kDnnCrossCorrelation, CUDNN_CROSS_CORRELATION);
  EXPECT_EQ(kDnnAdd, CUDNN_POINTWISE_ADD);
  EXPECT_EQ(kDnnFallbacks, CUDNN_HEUR_MODE_FALLBACK);
  EXPECT_EQ(kDnnBestFirst, CUDNN_HEUR_MODE_A);
  const auto same = [](auto ours, auto theirs) {
    EXPECT_EQ(static_cast<int>(ours), static_cast<int>(theirs));
  };
  same(DnnKind::kPointwise, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  same(DnnKind::kConvolution, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  same(DnnKind::kEngine, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  same(DnnKind::kEngineConfig, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  same(DnnKind::kHeuristics, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  same(DnnKind::kPlan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  same(DnnKind::kConvolve, CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
  same(DnnKind::kConvolveToWeight, CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR);
  same(DnnKind::kConvolveBack, CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR);
  same(DnnKind::kPointwiseOperation, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  same(DnnKind::kGraph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  same(DnnKind::kVariantPack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  same(DnnKind::kTensor, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  same(DnnType::kHandle, CUDNN_TYPE_HANDLE);
  same(DnnType::kDataType, CUDNN_TYPE_DATA_TYPE);
  same(DnnType::kBoolean, CUDNN_TYPE_BOOLEAN);
  same(DnnType::kInt64, CUDNN_TYPE_INT64);
  same(DnnType::kFloat, CUDNN_TYPE_FLOAT);
  same(DnnType::kDouble, CUDNN_TYPE_DOUBLE);
  same(DnnType::kPointer, CUDNN_TYPE_VOID_PTR);
  same(DnnType::kConvolutionMode, CUDNN_TYPE_CONVOLUTION_MODE);
  same(DnnType::kHeuristicMode, CUDNN_TYPE_HEUR_MODE);
  same(DnnType::kNumericalNote, CUDNN_TYPE_NUMERICAL_NOTE);
  same(DnnType::kPointwiseMode, CUDNN_TYPE_POINTWISE_MODE);
  same(DnnType::kDescriptor, CUDNN_TYPE_BACKEND_DESCRIPTOR);
  same(kNoteTensorCore, CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
  same(kNoteNarrowInputs, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
  same(kNoteNarrowSums, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION);
  same(kNoteFft, CUDNN_NUMERICAL_NOTE_FFT);
  same(kNoteNotRepeatable, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
  same(kNoteWinograd, CUDNN_NUMERICAL_NOTE_WINOGRAD);
  same(kNoteWinograd4, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4);
  same(kNoteWinograd6, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6);
  same(kNoteWinograd13, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13);
  using enum DnnAttribute;
  same(DnnAttribute::kPointwiseMode, CUDNN_ATTR_POINTWISE_MODE);
  same(kPointwiseCompute, CUDNN_ATTR_POINTWISE_MATH_PREC);
  same(kConvolutionCompute, CUDNN_ATTR_CONVOLUTION_COMP_TYPE);
  same(DnnAttribute::kConvolutionMode, CUDNN_ATTR_CONVOLUTION_CONV_MODE);
  same(kConvolutionDilations, CUDNN_ATTR_CONVOLUTION_DILATIONS);
  same(kConvolutionStrides, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
  same(kConvolutionAfter, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS);
  same(kConvolutionBefore, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
  same(kConvolutionRank, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS);
  same(kHeuristicsMode, CUDNN_ATTR_ENGINEHEUR_MODE);
  same(kHeuristicsGraph, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  same(kHeuristicsResults, CUDNN_ATTR_ENGINEHEUR_RESULTS);
  same(kConfigEngine, CUDNN_ATTR_ENGINECFG_ENGINE);
  same(kPlanHandle, CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
  same(kPlanConfig, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  same(kPlanWorkspace, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
  same(kConvolveAlpha, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA);
  same(kConvolveBeta, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA);
  same(kConvolveBy, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC);
  same(kConvolveWeight, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W);
  same(kConvolveX, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X);
  same(kConvolveY, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y);
  same(kBackAlpha, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA);
  same(kBackBeta, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA);
  same(kBackBy, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC);
  same(kBackWeight, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W);
  same(kBackX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX);
  same(kBackY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY);
  same(kToWeightAlpha, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA);
  same(kToWeightBeta, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA);
  same(kToWeightBy, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC);
  same(kToWeightWeight, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW);
  same(kToWeightX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X);
  same(kToWeightY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY);
  same(kPointwiseBy, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  same(kPointwiseX, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
  same(kPointwiseB, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
  same(kPointwiseY, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
  same(kGraphHandle, CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
  same(kGraphOperations, CUDNN_ATTR_OPERATIONGRAPH_OPS);
  same(kTensorAlignment, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
  same(kTensorType, CUDNN_ATTR_TENSOR_DATA_TYPE);
  same(kTensorSizes, CUDNN_ATTR_TENSOR_DIMENSIONS);
  same(kTensorStrides, CUDNN_ATTR_TENSOR_STRIDES);
  same(kTensorName, CUDNN_ATTR_TENSOR_UNIQUE_ID);
  same(kTensorVirtual, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
  same(kPackNames, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  same(kPackPointers, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  same(kPackWorkspace, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  same(kEngineNotes, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE);
#if CUDNN_VERSION >= 91100
  same(DnnType::kChar, CUDNN_TYPE_CHAR);
  same(DnnKind::kDeviceProperties, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  same(kHeuristicsDevice, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
  same(kPlanDevice, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
  same(kDeviceText, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION);
#endif
}

#endif

TEST(Dnn, SaysWhatIsMissing) {
  Driver driver;
  driver.version = 13000;
  Dnn dnn;
  EXPECT_THAT(load_dnn(driver, "libno-such-dnn.so.9", &dnn).message(),
              HasSubstr("libno-such-dnn.so.9"));
  EXPECT_THAT(load_dnn(driver, "libc.so.6", &dnn).message(),
              HasSubstr("libc.so.6 has no cudnnCreate"));
#ifdef TT_FAKE_CUDA_LIBRARY
  EXPECT_EQ(load_dnn(driver, TT_FAKE_CUDA_LIBRARY, &dnn).message(), "");
  driver.version = 12040;
  EXPECT_THAT(load_dnn(driver, TT_FAKE_CUDA_LIBRARY, &dnn).message(),
              HasSubstr("made for CUDA 13, the driver for 12"));
#endif
}

// The description of a device for the library, in place of an actual device.
std::string described(int capability, const char* name, int multiprocessors, int shared,
                      int cache) {
  const auto number = [](const char* key, long value) {
    return ",\"" + std::string(key) + "\":" + std::to_string(value);
  };
  return "{\"deviceName\":\"" + std::string(name) + "\"" + number("deviceVer", capability * 10L) +
         number("driverVer", 13000) + number("cudaDeviceId", 0) +
         number("totalGlobalMem", 85'000'000'000) +
         ",\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64]" +
         number("regsPerBlock", 65536) + number("multiProcessorCount", multiprocessors) +
         number("warpSize", 32) + number("maxSharedMemoryPerBlock", 49152) +
         number("maxSharedMemoryPerBlockOptin", shared) +
         number("reservedSharedMemoryPerBlock", 1024) + number("maxRegistersPerSM", 65536) +
         number("maxCtasPerSM", 32) + number("maxThreadsPerBlock", 1024) +
         number("maxThreadsPerSM", 2048) + number("pciDeviceId", 0) + number("isTccDriver", 0) +
         number("supportCoopLaunch", 1) + number("smClockRateKHz", 1'400'000) +
         number("memClockRateKHz", 1'600'000) + number("l2CacheSize", cache) + "}";
}

struct Case {
  const char* what;
  std::vector<std::int64_t> x, weight, stride, padding, dilation;
  bool channels_last = false;
};

void lay_out(Convolution::Side& side, const std::vector<std::int64_t>& sizes, bool channels_last) {
  std::copy(sizes.begin(), sizes.end(), side.sizes);
  std::int64_t step = 1;
  const auto put = [&](std::size_t d) {
    side.strides[d] = step;
    step *= sizes[d];
  };
  if (channels_last) put(1);
  for (std::size_t d = sizes.size() - 1; d >= 2; --d) put(d);
  if (!channels_last) put(1);
  put(0);
}

Convolution described(const Case& c, DType dtype, ConvolutionPass pass, bool biased) {
  Convolution made;
  made.dtype = dtype;
  made.pass = pass;
  made.rank = static_cast<int>(c.x.size());
  std::vector<std::int64_t> y = {c.x[0], c.weight[0]};
  for (std::size_t d = 0; d + 2 < c.x.size(); ++d) {
    made.stride[d] = c.stride[d];
    made.padding[d] = c.padding[d];
    made.dilation[d] = c.dilation[d];
    const std::int64_t span = c.dilation[d] * (c.weight[d + 2] - 1) + 1;
    y.push_back((c.x[d + 2] + 2 * c.padding[d] - span) / c.stride[d] + 1);
  }
  lay_out(made.x, c.x, c.channels_last);
  lay_out(made.weight, c.weight, false);
  lay_out(made.y, y, false);
  if (biased) made.bias = reinterpret_cast<const void*>(256);
  return made;
}

// For each graph there is an engine and a plan, on devices of two generations.
TEST(Dnn, TheLibraryPlansOurGraphs) {
#ifdef __SANITIZE_ADDRESS__
  const __lsan::ScopedDisabler it_leaks;  // the library leaks memory if it finds no device
#endif
  Driver driver;
  driver.version = 13990;
  Dnn dnn;
  const core::Status loaded = load_dnn(driver, "", &dnn);
  if (!loaded.ok()) GTEST_SKIP() << loaded.message();
  if (dnn.version < 91100) GTEST_SKIP() << "cuDNN " << dnn.version << " describes no device";
  const std::vector<Case> cases = {
      {"3x3", {16, 64, 56, 56}, {128, 64, 3, 3}, {1, 1}, {1, 1}, {1, 1}},
      {"3x3 read channels last", {16, 64, 28, 28}, {64, 64, 3, 3}, {2, 2}, {1, 1}, {1, 1}, true},
      {"1x1", {8, 256, 14, 14}, {64, 256, 1, 1}, {1, 1}, {0, 0}, {1, 1}},
      {"7x7 of few channels", {8, 3, 64, 64}, {64, 3, 7, 7}, {2, 2}, {3, 3}, {1, 1}},
      {"odd sizes", {3, 6, 17, 19}, {9, 2, 3, 2}, {2, 1}, {1, 0}, {1, 2}},
      {"each channel alone", {8, 32, 28, 28}, {32, 1, 3, 3}, {1, 1}, {1, 1}, {1, 1}},
      {"a line", {4, 16, 1, 100}, {32, 16, 1, 5}, {1, 2}, {0, 2}, {1, 1}},
      {"a volume", {2, 16, 8, 16, 16}, {32, 16, 3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}},
  };
  for (const std::string& text :
       {described(80, "NVIDIA A100-SXM4-80GB", 108, 166'912, 41'943'040),
        described(90, "NVIDIA H100 80GB HBM3", 132, 232'448, 52'428'800)}) {
    DnnObject properties(dnn, DnnKind::kDeviceProperties);
    properties
        .set(DnnAttribute::kDeviceText, DnnType::kChar, static_cast<std::int64_t>(text.size()),
             text.data())
        .finalize();
    ASSERT_TRUE(properties.ok()) << text;
    const DnnTarget target{nullptr, properties.descriptor()};
    const std::pair<DType, bool> types[] = {{DType::kF32, false},
                                            {DType::kF32, true},
                                            {DType::kF16, false},
                                            {DType::kBF16, false},
                                            {DType::kF64, false}};
    for (const auto& [dtype, tf32] : types) {
      for (const Case& c : cases) {
        for (const ConvolutionPass pass :
             {ConvolutionPass::kOutput, ConvolutionPass::kInput, ConvolutionPass::kWeight}) {
          for (const bool biased : {false, true}) {
            if (biased && pass != ConvolutionPass::kOutput) continue;
            Convolution convolution = described(c, dtype, pass, biased);
            convolution.tf32 = tf32;
            EXPECT_NE(plan_convolution(dnn, target, convolution), nullptr)
                << c.what << " of " << core::name_of(dtype) << (tf32 ? " as TF32" : "") << ", pass "
                << static_cast<int>(pass) << (biased ? ", biased" : "");
          }
        }
      }
    }
    // An unsupported graph gives no plan and no message.
    Case wrong = cases[0];
    wrong.weight[1] = 63;
    EXPECT_EQ(plan_convolution(dnn, target,
                               described(wrong, DType::kF32, ConvolutionPass::kOutput, false)),
              nullptr);
  }
}

}  // namespace
}  // namespace teletensor::backends::cuda
