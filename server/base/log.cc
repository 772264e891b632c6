#include "server/base/log.h"

#include <limits.h>
#include <poll.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>

#include "engine/program/text.h"

namespace teletensor::server {
namespace {

constexpr std::size_t kMaxText = 2048;  // bytes of one text in a line
constexpr const char* kLogger = "teletensord";

LogFormat format_of_log = LogFormat::kLogfmt;  // set before the daemon has threads

// Appends a character as JSON writes it within quotes.
void escape(std::uint32_t point, std::string_view bytes, std::string& out) {
  if (point == '"' || point == '\\') {
    out += '\\';
    out += static_cast<char>(point);
  } else if (point == '\n') {
    out += "\\n";
  } else if (point == '\t') {
    out += "\\t";
  } else if (program::is_shown(point)) {
    out += bytes;
  } else {
    char code[8];
    std::snprintf(code, sizeof code, "\\u%04x", point & 0xffffu);
    out += code;
  }
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  const bool cut = text.size() > kMaxText;
  if (cut) text = text.substr(0, kMaxText);
  while (!text.empty()) {
    constexpr std::uint32_t kReplacement = 0xfffd;
    std::uint32_t point = 0;
    const std::size_t size = program::first_character(text, point);
    if (size == 0) point = kReplacement;
    escape(point, size == 0 ? "\xef\xbf\xbd" : text.substr(0, size), out);
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return out + (cut ? "...\"" : "\"");
}

void write(spdlog::level::level_enum level, std::string_view event,
           std::initializer_list<LogField> fields) {
  spdlog::logger& log = *spdlog::default_logger_raw();
  if (log.should_log(level)) log.log(level, log_text(format_of_log, event, fields));
}

const char* pattern() {
  return format_of_log == LogFormat::kJson
             ? "{\"time\":\"%Y-%m-%dT%H:%M:%S.%e%z\",\"level\":\"%l\",%v}"
             : "time=%Y-%m-%dT%H:%M:%S.%e%z level=%l %v";
}

class StandardError final : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (left_out_ > 0) {
      const std::string text = log_text(format_of_log, "log_left_out", {{"lines", left_out_}});
      if (!write({message.logger_name, spdlog::level::warn, text})) {
        ++left_out_;
        return;
      }
      left_out_ = 0;
    }
    if (!write(message)) ++left_out_;
  }
  void flush_() override {}

 private:
  // Writes a line unless that would wait. A descriptor that is ready accepts PIPE_BUF bytes without
  // waiting.
  bool write(const spdlog::details::log_msg& message) {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    for (std::size_t at = 0; at < line.size();) {
      pollfd ready{STDERR_FILENO, POLLOUT, 0};
      if (::poll(&ready, 1, 0) != 1 || (ready.revents & POLLOUT) == 0) return false;
      const std::size_t piece = std::min<std::size_t>(line.size() - at, PIPE_BUF);
      const ssize_t written = ::write(STDERR_FILENO, line.data() + at, piece);
      if (written <= 0) return false;
      at += static_cast<std::size_t>(written);
    }
    return true;
  }

  std::uint64_t left_out_ = 0;
};

}  // namespace

LogField::LogField(const char* name, std::string_view text) : name_(name), value_(quoted(text)) {}

LogField::LogField(const char* name, double number) : name_(name) {
  char digits[400];  // the largest double has 309 digits before its point
  std::snprintf(digits, sizeof digits, "%.3f", number);
  value_ = digits;
}

std::string log_text(LogFormat format, std::string_view event,
                     std::initializer_list<LogField> fields) {
  const bool json = format == LogFormat::kJson;
  std::string out = json ? "\"event\":\"" : "event=";
  out += event;
  if (json) out += '"';
  for (const LogField& field : fields) {
    out += json ? ",\"" : " ";
    out += field.name();
    out += json ? "\":" : "=";
    out += field.value();
  }
  return out;
}

void log_debug(std::string_view event, std::initializer_list<LogField> fields) {
  write(spdlog::level::debug, event, fields);
}
void log_info(std::string_view event, std::initializer_list<LogField> fields) {
  write(spdlog::level::info, event, fields);
}
void log_warn(std::string_view event, std::initializer_list<LogField> fields) {
  write(spdlog::level::warn, event, fields);
}
void log_error(std::string_view event, std::initializer_list<LogField> fields) {
  write(spdlog::level::err, event, fields);
}

void log_failure(std::string_view event, std::string_view reason) {
  spdlog::logger& log = *spdlog::default_logger_raw();
  if (log.level() == spdlog::level::off) log.set_level(spdlog::level::err);
  log_error(event, {{"reason", reason}});
}

void start_log(const std::string& level, LogFormat format) {
  format_of_log = format;
  auto log = std::make_shared<spdlog::logger>(kLogger, std::make_shared<StandardError>());
  log->set_pattern(pattern());
  log->set_level(spdlog::level::from_str(level));
  spdlog::set_default_logger(std::move(log));
}

}  // namespace teletensor::server
