// Channel: a connection to a daemon by clients/wire, for the calls of one session.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "clients/session/origin.h"
#include "clients/wire/wire.h"
#include "engine/core/dtype.h"
#include "engine/core/status.h"

namespace teletensor::client {

// The library at `path`, loaded so that no symbol of it meets others of the process, nor theirs its
// own. UNAVAILABLE with the loader's words. Loaded once and kept.
core::Result<const tt_wire_api*> load_wire(const std::string& path);

// Asked every 100 ms while a call waits; true gives the call up, which then ends as CANCELLED.
using Stop = std::function<bool()>;

// Ends the call with its life.
class Call {
 public:
  // `channel` lives as long as the call.
  Call(const tt_wire_api& api, tt_wire_call* call, std::shared_ptr<tt_wire_channel> channel)
      : api_(&api), call_(call), channel_(std::move(channel)) {}
  ~Call() { api_->end(call_); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  const tt_wire_api& api() const { return *api_; }
  tt_wire_call* get() const { return call_; }
  // Precondition: a read has said OVER. `word`: the daemon's for why a session has ended, or "".
  core::Status status(std::string* word = nullptr) const;

 private:
  const tt_wire_api* const api_;
  tt_wire_call* const call_;
  const std::shared_ptr<tt_wire_channel> channel_;
};

class Channel {
 public:
  // `target` as gRPC names it: "host:port" or wire::socket_target(); not encrypted without `tls`.
  Channel(const tt_wire_api& api, const std::string& target, const tt_wire_tls* tls = nullptr);

  // To be checked before each call.
  const Origin& origin() const { return origin_; }
  // The token that later calls carry.
  void set_metadata(std::vector<std::pair<std::string, std::string>> metadata) {
    metadata_ = std::move(metadata);
  }

  // `method`: "/teletensor.v1.Compute/Hello". `timeout` in seconds; `wait` for a connection.
  core::Result<std::string> unary(const std::string& method, std::string_view request,
                                  double timeout, bool wait, const Stop& stop,
                                  std::string* word = nullptr);
  // The Run call of attach number `attach`.
  std::unique_ptr<Call> run(std::uint64_t attach);

  // How much of a transfer is done, for whoever watches from another thread.
  using Moved = std::atomic<std::uint64_t>;

  // Sends the bytes; the upload's number once the daemon has them all. `again`: the connection was
  // cut in an upload of the same `key`, which goes on from what has come. `moved` may be null.
  core::Result<std::uint64_t> upload(core::Device device, std::string_view bytes,
                                     std::size_t chunk_bytes, std::uint64_t key, bool again,
                                     const Stop& stop, std::string* word = nullptr,
                                     Moved* moved = nullptr);
  // Reads the `size` bytes of bulk fetch `seq` from `at` on, which tells how far it came.
  core::Status download(std::uint64_t seq, char* out, std::size_t size, std::size_t& at,
                        const Stop& stop, std::string* word = nullptr, Moved* moved = nullptr);

 private:
  using Metadata = std::vector<std::pair<std::string, std::string>>;
  std::unique_ptr<Call> start(const std::string& method, bool wait, std::int64_t timeout,
                              const Metadata& more = {});

  const tt_wire_api& api_;
  const Origin origin_;
  const std::shared_ptr<tt_wire_channel> channel_;
  std::vector<std::pair<std::string, std::string>> metadata_;
};

}  // namespace teletensor::client
