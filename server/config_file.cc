// Reads the daemon's TOML file.
#include <filesystem>
#include <stdexcept>
#include <string>

// The TOML parser asserts on some malformed lines. This function replaces its assertions, so that
// such lines are refused.
constexpr void refuse_unless(bool right) {
  if (!right) throw std::invalid_argument("malformed");
}
#define TOML_ASSERT(what) refuse_unless(static_cast<bool>(what))
#include <toml++/toml.h>

#include "server/access/tokens.h"
#include "server/config.h"
#include "server/settings.h"

namespace teletensor::server {

using core::Status;

namespace {

// Assigns one TOML value to a setting of the corresponding type.
Status assign(const toml::node& node, std::string& out) {
  const auto value = node.value_exact<std::string>();
  if (!value) return core::invalid("expected a string");
  out = *value;
  return {};
}
Status assign(const toml::node& node, bool& out) {
  const auto value = node.value_exact<bool>();
  if (!value) return core::invalid("expected true or false");
  out = *value;
  return {};
}
Status assign(const toml::node& node, int& out) {
  const auto value = node.value_exact<std::int64_t>();
  if (!value || *value < 0 || *value > 1'000'000) {
    return core::invalid("expected a whole number from 0 to 1000000");
  }
  out = static_cast<int>(*value);
  return {};
}
Status assign(const toml::node& node, double& out) {
  const auto value = node.value<double>();
  if (!value) return core::invalid("expected a number");
  out = *value;
  return {};
}
Status assign(const toml::node& node, std::uint64_t& out) {
  std::string text;
  if (const auto number = node.value_exact<std::int64_t>()) {
    text = std::to_string(*number);
  } else if (const auto value = node.value_exact<std::string>()) {
    text = *value;
  } else {
    return core::invalid("expected bytes: a number, or text such as \"2GiB\"");
  }
  const core::Result<std::uint64_t> bytes = parse_bytes(text);
  if (!bytes.ok()) return bytes.status();
  out = *bytes;
  return {};
}
Status assign(const toml::node& node, std::vector<std::string>& out) {
  const toml::array* array = node.as_array();
  if (array == nullptr) return core::invalid("expected a list of strings");
  out.clear();
  for (const toml::node& each : *array) {
    TT_RETURN_IF_ERROR(assign(each, out.emplace_back()));
  }
  return {};
}

template <class T>
Status assign(const toml::node& node, std::optional<T>& out) {
  T value{};
  TT_RETURN_IF_ERROR(assign(node, value));
  out = value;
  return {};
}

const program::AmountField* session_limit(std::string_view key) {
  if (!key.starts_with("session_")) return nullptr;
  key.remove_prefix(8);
  for (const program::AmountField& each : program::kAmountFields) {
    if (each.name == key) return &each;
  }
  return nullptr;
}
Status assign(const toml::node& node, const program::AmountField& field, std::uint64_t& out) {
  if (field.bytes) {
    TT_RETURN_IF_ERROR(assign(node, out));
  } else {
    const auto value = node.value_exact<std::int64_t>();
    if (!value || *value < 0) return core::invalid("expected a whole number, 0 or more");
    out = static_cast<std::uint64_t>(*value);
  }
  return out > 0 || field.may_be_all ? Status() : core::invalid("expected a number above 0");
}

Status assign_user(const std::string& key, const toml::node& node, UserConfig& user) {
  if (key == "memory") return assign(node, user.memory);
  if (key == "guaranteed") return assign(node, user.guaranteed);
  if (key == "session_memory") return assign(node, user.session_memory);
  if (key == "state_memory") return assign(node, user.state_memory);
  if (key == "sessions") return assign(node, user.sessions);
  if (key == "weight") {
    TT_RETURN_IF_ERROR(assign(node, user.weight));
    return user.weight > 0 && user.weight <= 1000
               ? Status()
               : core::invalid("expected a number above 0, at most 1000");
  }
  if (const program::AmountField* field = session_limit(key)) {
    return assign(node, *field, user.session_limits.emplace_back(field->field, 0).second);
  }
  return core::invalid("unknown key");
}

// The position of a mistake, for an error message.
std::string place(const std::string& path, const toml::node& node, const std::string& name) {
  return path + ":" + std::to_string(node.source().begin.line) + ": " + name + ": ";
}

// Reads the sections [users.NAME].
Status read_users(const std::string& path, const toml::node& node, Config& config) {
  const toml::table* users = node.as_table();
  if (users == nullptr) return core::invalid(place(path, node, "users") + "expected [users.NAME]");
  for (const auto& [key, each] : *users) {
    const std::string name(key.str());
    const toml::table* table = each.as_table();
    if (table == nullptr || !good_user(name)) {
      return core::invalid(place(path, each, "users." + name) +
                           "expected a table with a user's name: letters, digits and ._@-");
    }
    UserConfig& user = config.users[name];
    for (const auto& [what, value] : *table) {
      const std::string setting(what.str());
      if (const Status status = assign_user(setting, value, user); !status.ok()) {
        return core::invalid(place(path, value, "users." + name + "." + setting) +
                             status.message());
      }
    }
    const std::uint64_t most = user.memory.value_or(config.user_memory);
    if (most != 0 && user.guaranteed > most) {
      return core::invalid(place(path, each, "users." + name) +
                           "more is guaranteed than the user may have");
    }
  }
  return {};
}

Status assign_key(std::string_view key, const toml::node& node, Config& config) {
  for (const Setting& setting : settings()) {
    if (setting.name != key || setting.flag_only) continue;
    return std::visit([&](auto member) { return assign(node, config.*member); }, setting.member);
  }
  if (const program::AmountField* field = session_limit(key)) {
    return assign(node, *field, config.session_limits.*field->field);
  }
  return core::invalid("unknown key");
}

}  // namespace

Status read_toml(const std::string& path, Config& config) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return core::invalid(path + ": is a directory");
  toml::table table;
  try {
    table = toml::parse_file(path);
  } catch (const toml::parse_error& error) {
    const std::string line = std::to_string(error.source().begin.line);
    return core::invalid(path + (line == "0" ? "" : ":" + line) + ": " +
                         std::string(error.description()));
  } catch (const std::invalid_argument& error) {
    return core::invalid(path + ": " + error.what());
  }
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    if (name == "users") continue;
    const Status status = assign_key(name, node, config);
    if (!status.ok()) return core::invalid(place(path, node, name) + status.message());
  }
  const toml::node* users = table.get("users");
  return users == nullptr ? Status() : read_users(path, *users, config);
}

}  // namespace teletensor::server
