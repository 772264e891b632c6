// Compares our declarations with CUDA's headers, if those are installed, and tests the version
// checks.
#include "engine/backends/cuda/driver/driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>

#include "engine/backends/cuda/driver/signatures_test.h"

#if __has_include(<cuda.h>) && __has_include(<nvrtc.h>)
#define TT_HAVE_TOOLKIT 1
#include <cuda.h>
#include <nvrtc.h>
#endif

namespace teletensor::backends::cuda {
namespace {

using testing::AllOf;
using testing::HasSubstr;

#ifdef TT_HAVE_TOOLKIT

TT_CUDA_FUNCTIONS(TT_SAME)
TT_NVRTC_FUNCTIONS(TT_SAME)

// CUDA's headers replace the names of some functions by names with a version, such as
// cuMemAlloc_v2, with macros. TT_EXPANDED gives the name after this replacement.
#define TT_TEXT(x) #x
#define TT_EXPANDED(x) TT_TEXT(x)
TEST(Driver, NamesAreTheHeaders) {
  // For this function CUDA 13's headers select a version that the driver of CUDA 12.4 does not
  // have.
#undef cuEventElapsedTime
#define TT_NAME(member, name, arguments) EXPECT_STREQ(TT_EXPANDED(member), name);
  TT_CUDA_FUNCTIONS(TT_NAME)
  TT_NVRTC_FUNCTIONS(TT_NAME)
}

TEST(Driver, NumbersAreTheHeaders) {
  EXPECT_EQ(kSuccess, CUDA_SUCCESS);
  EXPECT_EQ(kInvalidValue, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(kNoDevice, CUDA_ERROR_NO_DEVICE);
  EXPECT_EQ(kInvalidImage, CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(kNoBinaryForGpu, CUDA_ERROR_NO_BINARY_FOR_GPU);
  EXPECT_EQ(kInvalidPtx, CUDA_ERROR_INVALID_PTX);
  EXPECT_EQ(kUnsupportedPtxVersion, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
  EXPECT_EQ(kNotFound, CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(kNotReady, CUDA_ERROR_NOT_READY);
  EXPECT_EQ(kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(kLaunchOutOfResources, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  EXPECT_EQ(kNotSupported, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(kComputeMode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
  EXPECT_EQ(kCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  EXPECT_EQ(kCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  EXPECT_EQ(kMemoryPoolsSupported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
  EXPECT_EQ(kDescriptorsSupported, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
  EXPECT_EQ(kDescriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  EXPECT_EQ(MemoryPlace().type, CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(MemoryKind().type, CU_MEM_ALLOCATION_TYPE_PINNED);
  EXPECT_EQ(MemoryAccess().flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT_EQ(offsetof(MemoryKind, handles), offsetof(CUmemAllocationProp, requestedHandleTypes));
  EXPECT_EQ(offsetof(MemoryKind, place), offsetof(CUmemAllocationProp, location));
  EXPECT_EQ(offsetof(MemoryPlace, id), offsetof(CUmemLocation, id));
  EXPECT_EQ(offsetof(MemoryAccess, flags), offsetof(CUmemAccessDesc, flags));
  EXPECT_EQ(kLockForAll, CU_MEMHOSTREGISTER_PORTABLE);
  EXPECT_EQ(kComputeModeProhibited, CU_COMPUTEMODE_PROHIBITED);
  EXPECT_EQ(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
  EXPECT_EQ(kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
  EXPECT_EQ(kMaxDynamicSharedBytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
  EXPECT_EQ(CU_LAUNCH_PARAM_BUFFER_POINTER, reinterpret_cast<void*>(1));
  EXPECT_EQ(CU_LAUNCH_PARAM_BUFFER_SIZE, reinterpret_cast<void*>(2));
  EXPECT_EQ(CU_LAUNCH_PARAM_END, nullptr);
}

#endif

TEST(Driver, SaysWhatIsMissing) {
  Driver driver;
  const core::Status none = load_driver("libno-such-driver.so.1", &driver);
  EXPECT_EQ(none.code(), core::Code::kNotFound);
  EXPECT_THAT(none.message(), HasSubstr("libno-such-driver.so.1"));
  const core::Status other = load_driver("libc.so.6", &driver);
  EXPECT_EQ(other.code(), core::Code::kNotFound);
  EXPECT_THAT(other.message(), HasSubstr("libc.so.6 has no cuInit"));
  Compiler compiler;
  EXPECT_THAT(load_compiler("libc.so.6", &compiler).message(), HasSubstr("has no nvrtcVersion"));
}

TEST(Driver, VersionsThatFit) {
  const auto check = [](int driver_version, int major, int minor) {
    Driver driver;
    driver.version = driver_version;
    driver.path = "libcuda.so.1";
    Compiler compiler;
    compiler.major = major, compiler.minor = minor;
    compiler.path = "libnvrtc.so";
    return check_versions(driver, compiler).message();
  };
  EXPECT_EQ(check(12040, 12, 4), "");
  EXPECT_EQ(check(12040, 12, 9), "");  // same major version
  EXPECT_EQ(check(13000, 12, 4), "");
  EXPECT_EQ(check(13010, 13, 0), "");
  EXPECT_THAT(check(12090, 13, 0), AllOf(HasSubstr("CUDA 12.9"), HasSubstr("CUDA 13.0"),
                                         HasSubstr("later major version")));
  EXPECT_THAT(check(12030, 12, 4), HasSubstr("a driver for CUDA 12.4 or later"));
  EXPECT_THAT(check(12040, 12, 3), HasSubstr("a compiler of CUDA 12.4 or later"));
  EXPECT_THAT(check(12040, 11, 8), HasSubstr("a compiler of CUDA 12.4 or later"));
}

#ifdef TT_FAKE_CUDA_LIBRARY
TEST(Driver, CompilesForTheNearestArchitectureThatTheCompilerKnows) {
  Compiler compiler;  // a compiler that knows 7.5, 8.0 and 9.0
  ASSERT_TRUE(load_compiler(TT_FAKE_CUDA_LIBRARY, &compiler).ok());
  EXPECT_THAT(compile_flags(compiler, 90), HasSubstr("sm_90"));
  EXPECT_THAT(compile_flags(compiler, 86), HasSubstr("compute_80"));
  EXPECT_THAT(compile_flags(compiler, 120), HasSubstr("compute_90"));
  EXPECT_THAT(compile_flags(compiler, 90), HasSubstr("--fmad=false"));
  EXPECT_NE(compile_flags(compiler, 90), compile_flags(compiler, 86));
  EXPECT_EQ(compile(compiler, "", 70).status().code(), core::Code::kUnimplemented);
}
#endif

}  // namespace
}  // namespace teletensor::backends::cuda
