#include "server/base/log.h"

#include <limits.h>
#include <poll.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>

namespace teletensor::server {
namespace {

class StandardError final : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (left_out_ > 0) {
      const std::string text = "event=log_left_out lines=" + std::to_string(left_out_);
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

void start_log(const std::string& level) {
  auto log = std::make_shared<spdlog::logger>("teletensord", std::make_shared<StandardError>());
  log->set_pattern("time=%Y-%m-%dT%H:%M:%S.%e%z level=%l %v");
  log->set_level(spdlog::level::from_str(level));
  spdlog::set_default_logger(std::move(log));
}

}  // namespace teletensor::server
