#include "engine/program/text.h"

namespace teletensor::program {

std::size_t first_character(std::string_view text, std::uint32_t& point) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = byte(0);
  if (lead < 0x80) {
    point = lead;
    return 1;
  }
  const std::size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < size) return 0;
  point = lead & (0x7fu >> size);
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    point = point << 6 | (byte(i) & 0x3fu);
  }
  const bool overlong = (size == 3 && point < 0x800) || (size == 4 && point < 0x10000);
  const bool surrogate = point >= 0xd800 && point < 0xe000;
  return overlong || surrogate || point > 0x10ffff ? 0 : size;
}

bool is_shown(std::uint32_t point) {
  return point >= 0x20 && (point < 0x7f || point > 0x9f) && !(point >= 0x200b && point <= 0x200f) &&
         !(point >= 0x2028 && point <= 0x202e) && !(point >= 0x2060 && point <= 0x206f) &&
         point != 0xfeff;
}

bool is_one_line(std::string_view text) {
  while (!text.empty()) {
    std::uint32_t point = 0;
    const std::size_t size = first_character(text, point);
    if (size == 0 || !is_shown(point)) return false;
    text.remove_prefix(size);
  }
  return true;
}

namespace {

std::string shown(std::string_view text, bool lines) {
  std::string out;
  while (!text.empty()) {
    std::uint32_t point = 0;
    const std::size_t size = first_character(text, point);
    const bool good = size != 0 && (is_shown(point) || (lines && point == '\n'));
    out += good ? text.substr(0, size) : std::string_view("?");
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return out;
}

}  // namespace

std::string one_line(std::string_view text) { return shown(text, false); }

std::string shown_lines(std::string_view text) { return shown(text, true); }

std::string shortened(std::string text, std::size_t bytes) {
  if (text.size() <= bytes) return text;
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xc0) == 0x80) --bytes;
  text.resize(bytes);
  return text;
}

}  // namespace teletensor::program
