// The modes of resampling along one dimension.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace teletensor::ops {

enum class ResampleMode : std::uint8_t { kNearest, kNearestExact, kLinear, kCubic };
std::optional<ResampleMode> resample_mode(std::string_view name);

}  // namespace teletensor::ops
