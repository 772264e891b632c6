// Keeper keeps a session connected: when the connection is lost, it reconnects with growing pauses
// until the lease expires. Frames that were not received are then sent again, and no command runs
// twice (docs/sessions.md). If the daemon has moved the session, it connects to the new daemon.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "clients/cpp/hello.h"
#include "clients/cpp/route.h"
#include "clients/session/session.h"
#include "clients/session/stream/share.h"
#include "clients/session/stream/stream.h"

namespace teletensor::client {

class Keeper {
 public:
  // Starts the session's first stream. `session` and `route` must outlive the keeper.
  Keeper(Session& session, Route& route, std::string instance, const HelloAnswer& hello);
  ~Keeper() { stop(); }
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  // Returns true if the error means that the connection was lost, and false if the session has
  // ended.
  static bool is_cut(const Status& status, const std::string& word);
  // Returns true if no process listens at the address.
  static bool is_refused(const Status& status);
  // Closes the stream and makes no more attempts to reconnect.
  void stop();
  // Runs a bulk transfer, and repeats it if the connection was lost and the session was
  // reconnected. call(&word) returns its Status.
  template <class Call>
  Status bulk(Call call) {
    for (int tries = 0;; ++tries) {
      std::string word;
      const Status status = call(&word);
      if (status.ok() || tries == kMaxTries || !is_cut(status, word) || !may_retry(word, tries)) {
        return status;
      }
    }
  }

 private:
  static constexpr int kMaxTries = 200;

  std::shared_ptr<StreamEnd> start_stream();
  void serve(std::shared_ptr<StreamEnd> end);
  // Reconnects, and returns the end of the next stream. Returns null if the session is lost or
  // stop() was called.
  std::shared_ptr<StreamEnd> again(const StreamEnd& before);
  Status attach(std::uint64_t number, AttachAnswer& answer, std::string* word);
  bool may_retry(const std::string& word, int tries);
  bool pause(std::chrono::milliseconds time);  // Waits. Returns false if stop() was called.
  void lost(const Status& status, const std::string& word);

  Session& session_;
  Route& route_;
  const std::string instance_;
  const std::uint64_t lease_seconds_;
  const std::chrono::milliseconds restart_;
  std::uint64_t epoch_, attach_ = 1;
  // Where frames can be sent without gRPC. Used by the thread that starts streams.
  std::optional<ShareAddress> local_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool attached_ = true;  // Whether the session has a stream. Accessed with mutex_ locked.
  std::atomic<bool> stopped_{false};  // Whether stop() was called. Set with mutex_ locked.
  std::thread thread_;
};

}  // namespace teletensor::client
