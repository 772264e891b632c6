#include "engine/backends/cpu/linalg/lapack.h"

#include <gtest/gtest.h>

#include <limits>

namespace teletensor::backends::cpu::lapack {
namespace {

// LAPACK checks the arguments of its inner calls. If an operand contains NaN, some of these calls
// are refused, and a client's NaN must not write messages into the daemon's log.
TEST(Lapack, RefusesWithoutPrinting) {
  prepare();
  double matrix[] = {1, 0, 0, 1}, right[] = {1, 1};
  const double nan = std::numeric_limits<double>::quiet_NaN(), one = 1;
  const int size = 2, band = 0, pivots[] = {1, 2};
  const char whole = 'G';
  int info = 0;
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  LAPACK_dlascl(&whole, &band, &band, &nan, &one, &size, &size, matrix, &size, &info);
  getrs('?', size, 1, matrix, size, pivots, right, size);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(info, -4);
}

}  // namespace
}  // namespace teletensor::backends::cpu::lapack
