// Declares the table of the daemon's settings. Flags, environment variables, keys of the TOML file,
// --help and the checks of numbers are made from it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/config.h"

namespace teletensor::server {

struct Setting {
  // An unsigned number is a size in bytes.
  using Member = std::variant<std::string Config::*, std::optional<std::string> Config::*,
                              std::vector<std::string> Config::*, bool Config::*, int Config::*,
                              std::optional<int> Config::*, double Config::*,
                              std::uint64_t Config::*, std::optional<std::uint64_t> Config::*>;

  // The numbers that a setting may have.
  struct Range {
    double least, most;
    bool excludes_least;

    static constexpr Range from(double least, double most) { return {least, most, false}; }
    static constexpr Range above(double least, double most) { return {least, most, true}; }
    bool contains(double value) const {
      return (excludes_least ? value > least : value >= least) && value <= most;
    }
    // Such as "expected a number from 0 to 1024".
    std::string text() const;
  };

  // The key in the file: "host_memory". The flag is --host-memory, the environment variable
  // TELETENSOR_HOST_MEMORY.
  std::string_view name;
  Member member;
  std::string_view help;
  std::optional<Range> range = {};
  std::span<const std::string_view> choices = {};  // Empty: any text.
  bool separated = false;      // Whether the flag takes a list that is separated by commas.
  bool shows_default = false;  // Whether --help shows the default, which `help` does not state.
  bool flag_only = false;      // Whether only a flag can set it.
};

// All settings, except for the limits of a session (program::kAmountFields), whose names are
// "session_" and the name of the field.
std::span<const Setting> settings();

// "--host-memory" and "TELETENSOR_HOST_MEMORY" for the name "host_memory".
std::string flag_of(std::string_view name);
std::string variable_of(std::string_view name);

// The first setting whose value is out of its range or none of its choices, and what it expects.
struct WrongSetting {
  std::string_view name;
  std::string expected;
};
std::optional<WrongSetting> wrong_setting(const Config& config);

}  // namespace teletensor::server
