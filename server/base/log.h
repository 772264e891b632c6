// The daemon's log: lines of an event and its fields, as logfmt or JSON.
#pragma once

#include <concepts>
#include <initializer_list>
#include <string>
#include <string_view>

namespace teletensor::server {

enum class LogFormat { kLogfmt, kJson };

// Starts the log, which writes lines of `level` and above to standard error. The daemon never waits
// for its log: if standard error is a full pipe, lines are dropped, and the next line that can be
// written reports their number.
void start_log(const std::string& level, LogFormat format = LogFormat::kLogfmt);

// One field of a line. A number and a flag are written as they are; a text is written in quotes,
// with the escapes of JSON, so that no text can end its line, its field or its encoding, and is
// cut if it is long. This is the only place where values enter the log.
class LogField {
 public:
  LogField(const char* name, std::string_view text);
  LogField(const char* name, const std::string& text) : LogField(name, std::string_view(text)) {}
  LogField(const char* name, const char* text) : LogField(name, std::string_view(text)) {}
  LogField(const char* name, bool flag) : name_(name), value_(flag ? "true" : "false") {}
  LogField(const char* name, std::integral auto number)
      : name_(name), value_(std::to_string(number)) {}
  LogField(const char* name, double number);

  std::string_view name() const { return name_; }
  std::string_view value() const { return value_; }  // valid in logfmt and in JSON

 private:
  const char* name_;
  std::string value_;
};

// The text of a line behind its time and level. `event` is a word of this program.
std::string log_text(LogFormat format, std::string_view event,
                     std::initializer_list<LogField> fields);

void log_debug(std::string_view event, std::initializer_list<LogField> fields = {});
void log_info(std::string_view event, std::initializer_list<LogField> fields = {});
void log_warn(std::string_view event, std::initializer_list<LogField> fields = {});
void log_error(std::string_view event, std::initializer_list<LogField> fields = {});

// Writes the reason why the daemon does not start or does not end well, even if the log is off.
void log_failure(std::string_view event, std::string_view reason);

}  // namespace teletensor::server
