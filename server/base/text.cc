#include "server/base/text.h"

#include <cstdint>

#include "engine/program/text.h"

namespace teletensor::server {

std::string readable(std::string_view text, std::size_t most) {
  std::string out;
  while (!text.empty()) {
    std::uint32_t point = 0;
    const std::size_t size = program::first_character(text, point);
    const bool good = size != 0 && program::is_shown(point) && point != '"' && point != '\\';
    const std::size_t step = size == 0 ? 1 : size;
    if (out.size() + (good ? step : 1) > most) break;
    out += good ? text.substr(0, step) : std::string_view("?");
    text.remove_prefix(step);
  }
  return out;
}

}  // namespace teletensor::server
