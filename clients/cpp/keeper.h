// Keeps a session attached: when the connection is lost it attaches again, with growing pauses,
// until the lease is over; frames that had not come then go again, and nothing runs twice
// (docs/sessions.md). Where the daemon has moved the session to another one, it attaches there.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "clients/cpp/hello.h"
#include "clients/cpp/route.h"
#include "clients/session/session.h"
#include "clients/session/stream.h"

namespace teletensor::client {

class Keeper {
 public:
  // Begins the session's first stream. Both outlive it.
  Keeper(Session& session, Route& route, std::string instance, const HelloAnswer& hello);
  ~Keeper() { stop(); }
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  // The connection's end, not the session's.
  static bool is_cut(const Status& status, const std::string& word);
  // Nobody listens there.
  static bool is_refused(const Status& status);
  // Cuts the stream; no more attempts.
  void stop();
  // Runs a bulk call, again where the connection's end has cut it and the session is attached
  // again. call(&word) gives its Status.
  template <class Call>
  Status bulk(Call call) {
    for (int tries = 0;; ++tries) {
      std::string word;
      const Status status = call(&word);
      if (status.ok() || tries == kMaxTries || !is_cut(status, word) || !comes_again(word, tries)) {
        return status;
      }
    }
  }

 private:
  static constexpr int kMaxTries = 200;

  void serve(std::shared_ptr<StreamEnd> end);
  // The next stream's end; null: the session is lost, or stop() was called.
  std::shared_ptr<StreamEnd> again(const StreamEnd& before);
  Status attach(std::uint64_t number, AttachAnswer& answer, std::string* word);
  bool comes_again(const std::string& word, int tries);
  bool pause(std::chrono::milliseconds time);  // false: stop()
  void lost(const Status& status, const std::string& word);

  Session& session_;
  Route& route_;
  const std::string instance_;
  const std::uint64_t lease_seconds_;
  const std::chrono::milliseconds restart_;
  std::uint64_t epoch_, attach_ = 1;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool attached_ = true;              // with mutex_
  std::atomic<bool> stopped_{false};  // set with mutex_
  std::thread thread_;
};

}  // namespace teletensor::client
