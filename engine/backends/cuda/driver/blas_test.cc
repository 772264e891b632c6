// Compares our declarations of cuBLASLt with its header, if that is installed, and tests loading
// the library.
#include "engine/backends/cuda/driver/blas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/backends/cuda/driver/signatures_test.h"

#if __has_include(<cublasLt.h>)
#define TT_HAVE_CUBLASLT 1
#include <cublasLt.h>
#endif

namespace teletensor::backends::cuda {
namespace {

using testing::HasSubstr;

#ifdef TT_HAVE_CUBLASLT

TT_CUBLASLT_FUNCTIONS(TT_SAME)
static_assert(std::is_same_v<decltype(&::cublasLtGetVersion), std::size_t (*)()>);

static_assert(offsetof(BlasAnswer, workspace) ==
              offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(BlasAnswer, state) == offsetof(cublasLtMatmulHeuristicResult_t, state));
static_assert(sizeof(BlasAlgorithm) == sizeof(cublasLtMatmulAlgo_t));

TEST(Blas, NumbersAreTheHeaders) {
  EXPECT_EQ(kBlasExecutionFailed, CUBLAS_STATUS_EXECUTION_FAILED);
  EXPECT_EQ(kBlasInternalError, CUBLAS_STATUS_INTERNAL_ERROR);
  EXPECT_EQ(kBlasNotSupported, CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(kReal16, CUDA_R_16F);
  EXPECT_EQ(kBrain16, CUDA_R_16BF);
  EXPECT_EQ(kReal32, CUDA_R_32F);
  EXPECT_EQ(kReal64, CUDA_R_64F);
  EXPECT_EQ(kCompute32, CUBLAS_COMPUTE_32F);
  EXPECT_EQ(kCompute64, CUBLAS_COMPUTE_64F);
  EXPECT_EQ(kComputeTf32, CUBLAS_COMPUTE_32F_FAST_TF32);
  EXPECT_EQ(kTransposed, CUBLAS_OP_T);
  EXPECT_EQ(kOperationA, CUBLASLT_MATMUL_DESC_TRANSA);
  EXPECT_EQ(kOperationB, CUBLASLT_MATMUL_DESC_TRANSB);
  EXPECT_EQ(kEpilogue, CUBLASLT_MATMUL_DESC_EPILOGUE);
  EXPECT_EQ(kBiasPointer, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
  EXPECT_EQ(kBatchCount, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
  EXPECT_EQ(kBatchStride, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
  EXPECT_EQ(kMaxWorkspace, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
  EXPECT_EQ(kReductions, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
  EXPECT_EQ(kAlignmentA, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
  EXPECT_EQ(kAlignmentA + 3, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
  EXPECT_EQ(kEpilogueBias, CUBLASLT_EPILOGUE_BIAS);
  EXPECT_EQ(kReduceAsComputed, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
}

#endif

// Descriptors are created on the host, so the library itself can tell whether it knows the
// attributes.
TEST(Blas, TheLibraryKnowsOurAttributes) {
  Driver driver;
  driver.version = 13990;
  Blas blas;
  const core::Status loaded = load_blas(driver, "", &blas);
  if (!loaded.ok()) GTEST_SKIP() << loaded.message();
  BlasOperation* operation = nullptr;
  ASSERT_EQ(blas.cublasLtMatmulDescCreate(&operation, kCompute32, kReal32), 0);
  const auto has = [&](int attribute, const auto& value) {
    return blas.cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value);
  };
  EXPECT_EQ(has(kOperationA, kTransposed), 0);
  EXPECT_EQ(has(kOperationB, kTransposed), 0);
  EXPECT_EQ(has(kEpilogue, kEpilogueBias), 0);
  const void* const pointer = &driver;
  EXPECT_EQ(has(kBiasPointer, pointer), 0);
  EXPECT_NE(has(kOperationA, std::int64_t{1}), 0);
  EXPECT_EQ(blas.cublasLtMatmulDescDestroy(operation), 0);
  BlasLayout* layout = nullptr;
  ASSERT_EQ(blas.cublasLtMatrixLayoutCreate(&layout, kBrain16, 5, 7, 9), 0);
  const std::int32_t count = 3;
  const std::int64_t stride = 63;
  EXPECT_EQ(blas.cublasLtMatrixLayoutSetAttribute(layout, kBatchCount, &count, sizeof count), 0);
  EXPECT_EQ(blas.cublasLtMatrixLayoutSetAttribute(layout, kBatchStride, &stride, sizeof stride), 0);
  EXPECT_EQ(blas.cublasLtMatrixLayoutDestroy(layout), 0);
  BlasPreference* preference = nullptr;
  ASSERT_EQ(blas.cublasLtMatmulPreferenceCreate(&preference), 0);
  const auto wants = [&](int attribute, const auto& value) {
    return blas.cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value);
  };
  EXPECT_EQ(wants(kMaxWorkspace, std::uint64_t{1} << 20), 0);
  EXPECT_EQ(wants(kReductions, kReduceAsComputed), 0);
  for (int matrix = 0; matrix < 4; ++matrix) {
    EXPECT_EQ(wants(kAlignmentA + matrix, std::uint32_t{16}), 0);
  }
  EXPECT_EQ(blas.cublasLtMatmulPreferenceDestroy(preference), 0);
}

TEST(Blas, SaysWhatIsMissing) {
  Driver driver;
  driver.version = 13000;
  Blas blas;
  EXPECT_THAT(load_blas(driver, "libno-such-blas.so.1", &blas).message(),
              HasSubstr("libno-such-blas.so.1"));
  EXPECT_THAT(load_blas(driver, "libc.so.6", &blas).message(),
              HasSubstr("libc.so.6 has no cublasLtCreate"));
#ifdef TT_FAKE_CUDA_LIBRARY
  EXPECT_EQ(load_blas(driver, TT_FAKE_CUDA_LIBRARY, &blas).message(), "");
  driver.version = 12040;
  EXPECT_THAT(load_blas(driver, TT_FAKE_CUDA_LIBRARY, &blas).message(),
              HasSubstr("of version 13, 12 to 12 fits the driver"));
#endif
}

}  // namespace
}  // namespace teletensor::backends::cuda
