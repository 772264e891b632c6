#include "server/config.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <map>

#include "server/peer_settings.h"
#include "server/settings.h"
#include "server/settings_check.h"

namespace teletensor::server {

using core::Status;

namespace {

// The file that --config or TELETENSOR_CONFIG names; empty if there is none. Other mistakes on the
// command line are left to the main parser.
std::string config_path(int argc, const char* const* argv) {
  const std::string_view flag = "--config";
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == flag && i + 1 < argc) return argv[i + 1];
    if (word.starts_with(flag) && word.size() > flag.size() && word[flag.size()] == '=') {
      return std::string(word.substr(flag.size() + 1));
    }
  }
  const char* variable = std::getenv("TELETENSOR_CONFIG");
  return variable ? variable : "";
}

CLI::Validator bytes_validator() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        const core::Result<std::uint64_t> bytes = parse_bytes(text);
        if (!bytes.ok()) return bytes.status().message();
        text = std::to_string(*bytes);
        return {};
      },
      "BYTES");
}

// Adds the flag and the variable of one setting.
class SettingOption {
 public:
  SettingOption(CLI::App& app, const Setting& setting, Config& config)
      : app_(app), setting_(setting), flag_(flag_of(setting.name)), help_(setting.help) {
    CLI::Option* option =
        std::visit([&](auto member) { return add(config.*member); }, setting.member);
    if (!setting.flag_only) option->envname(variable_of(setting.name));
    if (setting.separated) option->delimiter(',');
    if (!setting.choices.empty()) {
      option->check(
          CLI::IsMember(std::vector<std::string>(setting.choices.begin(), setting.choices.end())));
    }
    if (setting.shows_default) option->capture_default_str();
  }

 private:
  template <class T>
  CLI::Option* add(T& value) {
    return app_.add_option(flag_, value, help_);
  }
  CLI::Option* add(bool& value) { return app_.add_flag(flag_, value, help_); }
  CLI::Option* add(std::uint64_t& value) {
    return app_.add_option(flag_, value, help_)->transform(bytes_validator());
  }
  CLI::Option* add(std::optional<std::uint64_t>& value) {
    return app_.add_option(flag_, value, help_)->transform(bytes_validator());
  }
  // An empty text is a value, which CLI11 would take for none.
  CLI::Option* add(std::optional<std::string>& value) {
    return app_.add_option_function<std::string>(
        flag_, [&value](const std::string& text) { value = text; }, help_);
  }

  CLI::App& app_;
  const Setting& setting_;
  const std::string flag_, help_;
};

// Adds the options --session-handles, TELETENSOR_SESSION_HANDLES and so on.
void add_session_limits(CLI::App& app, program::Amounts& limits) {
  for (const program::AmountField& each : program::kAmountFields) {
    const std::string name = "session_" + std::string(each.name);
    CLI::Option* option =
        app.add_option(flag_of(name), limits.*each.field,
                       std::string(each.what) + (each.may_be_all ? " [all its memory]" : ""))
            ->envname(variable_of(name));
    if (!each.may_be_all) option->capture_default_str();
    if (each.bytes) option->transform(bytes_validator());
    if (!each.may_be_all) option->check(CLI::PositiveNumber);
  }
}

// A mistake that the parser of flags has found. Its text names a flag, also if a variable was read.
std::string mistake(std::string text, const CLI::App& app, const SettingSources& sources) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string variable = option->get_envname(), flag = option->get_name();
    const std::size_t at = text.find(flag);
    if (variable.empty() || at == text.npos) continue;
    const std::size_t end = at + flag.size();
    const bool whole = end == text.size() || (text[end] != '-' && !std::isalnum(text[end]));
    std::string key = flag.substr(2);
    std::replace(key.begin(), key.end(), '-', '_');
    if (whole && sources.of(key) == variable) return text.replace(at, flag.size(), variable);
  }
  return text;
}

// Returns why the settings cannot be used, regardless of whether a flag, a variable or the file has
// set them. Empty if they can.
std::string refusal(const Config& config, const SettingSources& sources) {
  if (const auto wrong = wrong_setting(config)) {
    return sources.of(wrong->name) + ": " + wrong->expected;
  }
  return peer_options(config).status().message();
}

}  // namespace

core::Result<std::uint64_t> parse_bytes(std::string_view text) {
  const auto refuse = [&] {
    return core::invalid("not a number of bytes: \"" + std::string(text) +
                         "\" (such as 1048576, 64MiB or 1.5GB)");
  };
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !(number >= 0)) return refuse();
  std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  static const std::map<std::string_view, double> kUnits = {
      {"", 1},       {"B", 1},        {"K", 0x1p10},   {"M", 0x1p20},   {"G", 0x1p30},
      {"T", 0x1p40}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
      {"kB", 1e3},   {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12}};
  const auto found = kUnits.find(unit);
  if (found == kUnits.end()) return refuse();
  const double bytes = number * found->second;
  if (!(bytes < 0x1p62)) return refuse();
  return static_cast<std::uint64_t>(bytes);
}

int max_user_sessions(const Config& config) {
  if (config.user_sessions) return *config.user_sessions;
  const bool only_its_own_user = config.listen.empty() && config.proxy_socket.empty() &&
                                 !config.socket_users && config.move_from.empty();
  return only_its_own_user ? 0 : config.max_sessions - config.max_sessions / 4;
}

Parsed parse_command_line(int argc, const char* const* argv, const std::string& version) {
  Parsed parsed;
  Config& config = parsed.config;
  std::string path = config_path(argc, argv);
  const SettingSources sources(argc, argv, path);
  if (!path.empty()) {
    if (const Status status = read_toml(path, config); !status.ok()) {
      parsed.exit_code = 2;
      parsed.text = "teletensord: " + status.message() + "\n";
      return parsed;
    }
  }

  CLI::App app(
      "teletensord: a server that stores tensors and computes for programs on this and other "
      "machines.\n"
      "Settings: flags, then TELETENSOR_* in the environment, then the --config file.");
  app.set_version_flag("--version", "teletensord " + version);
  app.footer(
      "Exit status: 0 if it has ended as asked, or printed what was asked for; 1 if it could not "
      "start, or not restart after the loss of a GPU; 2 for a mistake in a setting.");
  app.add_option("--config", path, "TOML file; keys are the flags' names with underscores")
      ->envname("TELETENSOR_CONFIG");
  for (const Setting& setting : settings()) SettingOption(app, setting, config);
  bool no_socket = false;
  app.add_flag("--no-socket", no_socket, "no UNIX socket");
  add_session_limits(app, config.session_limits);
  auto* create_option =
      app.add_option("--create-token", parsed.create_token,
                     "USER:ROLE (user, admin, metrics): print a new token and exit");
  app.add_option(
         "--output", parsed.output,
         "with --create-token: write the token to this new file, which only its owner can read")
      ->needs(create_option);
  app.add_flag("--gpu-paths", parsed.gpu_paths,
               "print how each op runs on a GPU (a kind of kernel, or host), and exit");
  app.add_flag("--ops", parsed.ops, "print the declaration of each op as a line of JSON, and exit");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream out, mistakes;
    parsed.exit_code = app.exit(error, out, mistakes) == 0 ? 0 : 2;
    parsed.text = out.str() + mistake(mistakes.str(), app, sources);
    return parsed;
  }
  parsed.file = path;
  if (no_socket) config.socket = "";
  if (config.embedded && app.get_option("--listen")->count() == 0) config.listen = "";
  if (const std::string why = refusal(config, sources); !why.empty()) {
    parsed.exit_code = 2;
    parsed.text = "teletensord: " + why + "\n";
  }
  return parsed;
}

}  // namespace teletensor::server
