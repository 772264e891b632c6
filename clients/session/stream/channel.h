// Channel is a connection to a daemon through clients/wire, for the calls of one session.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "clients/session/frames/origin.h"
#include "clients/wire/wire.h"
#include "engine/core/dtype.h"
#include "engine/core/status.h"

namespace teletensor::client {

// Loads the library at `path` so that neither its symbols nor those of the process are visible to
// each other. Loads it once and keeps it. UNAVAILABLE with the loader's message on failure.
core::Result<const tt_wire_api*> load_wire(const std::string& path);

// Called every 100 ms while a call waits. If it returns true, the call is cancelled and ends with
// CANCELLED.
using Stop = std::function<bool()>;

// A call, which ends with this object.
class Call {
 public:
  // The call keeps `channel` alive.
  Call(const tt_wire_api& api, tt_wire_call* call, std::shared_ptr<tt_wire_channel> channel)
      : api_(&api), call_(call), channel_(std::move(channel)) {}
  ~Call() { api_->end(call_); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  const tt_wire_api& api() const { return *api_; }
  tt_wire_call* get() const { return call_; }
  // The final status of the call. Precondition: a read has returned OVER. `word` receives the
  // daemon's reason for the end of a session, or an empty text.
  core::Status status(std::string* word = nullptr) const;

 private:
  const tt_wire_api* const api_;
  tt_wire_call* const call_;
  const std::shared_ptr<tt_wire_channel> channel_;
};

struct ShareAddress;

class Channel {
 public:
  // `target` is in gRPC's notation: "host:port" or wire::socket_target(). Not encrypted if `tls` is
  // null.
  Channel(const tt_wire_api& api, const std::string& target, const tt_wire_tls* tls = nullptr);

  // The process that created the channel; must be checked before each call.
  const Origin& origin() const { return origin_; }
  // Sets the metadata, such as the token, that later calls carry.
  void set_metadata(std::vector<std::pair<std::string, std::string>> metadata) {
    metadata_ = std::move(metadata);
  }

  // Makes a unary call. `method` is a name like "/teletensor.v1.Compute/Hello". `timeout` is in
  // seconds. With `wait`, it waits for a connection.
  core::Result<std::string> unary(const std::string& method, std::string_view request,
                                  double timeout, bool wait, const Stop& stop,
                                  std::string* word = nullptr);
  // Starts the Run call of attach number `attach`: as a local stream if `local` is given and the
  // daemon accepts one (local_call.h), otherwise over gRPC.
  std::unique_ptr<Call> run(std::uint64_t attach, const ShareAddress* local = nullptr);

  // Number of bytes transferred so far, for a thread that displays progress.
  using Moved = std::atomic<std::uint64_t>;

  // Sends the bytes, and returns the upload's number when the daemon has all of them. With `again`,
  // the connection was lost during an upload with the same `key`, which is resumed. `moved` may be
  // null.
  core::Result<std::uint64_t> upload(core::Device device, std::string_view bytes,
                                     std::size_t chunk_bytes, std::uint64_t key, bool again,
                                     const Stop& stop, std::string* word = nullptr,
                                     Moved* moved = nullptr);
  // Reads the `size` bytes of bulk fetch `seq`, starting at `at`, which is advanced by what was
  // read.
  core::Status download(std::uint64_t seq, char* out, std::size_t size, std::size_t& at,
                        const Stop& stop, std::string* word = nullptr, Moved* moved = nullptr);

 private:
  using Metadata = std::vector<std::pair<std::string, std::string>>;
  std::unique_ptr<Call> start(const std::string& method, bool wait, std::int64_t timeout,
                              const Metadata& more = {});

  const tt_wire_api& api_;
  const std::string target_;
  const Origin origin_;
  const std::shared_ptr<tt_wire_channel> channel_;
  std::vector<std::pair<std::string, std::string>> metadata_;
};

}  // namespace teletensor::client
