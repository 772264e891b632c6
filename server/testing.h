// For tests: a temporary folder, an engine that remembers what it is told, waiting for conditions.
#pragma once

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "engine/core/mutex.h"
#include "engine/engine.h"

namespace teletensor::server::testing {

// Ends a hang; no test depends on how long something takes.
inline constexpr std::chrono::seconds kHang{240};

// Does it come to hold?
inline bool eventually(const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + kHang;
  while (!holds()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

struct Folder {
  Folder() {
    char name[] = "/tmp/tt-test-XXXXXX";
    path = mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path;
};

// The books of a FakeEngine; outlives it.
struct Books {
  core::Mutex mutex;
  int sessions TT_GUARDED_BY(mutex) = 0;
  std::int64_t upload_bytes TT_GUARDED_BY(mutex) = 0;  // not yet given back
  bool hold_done TT_GUARDED_BY(mutex) = false;         // frames are taken but not consumed
  std::uint64_t commands TT_GUARDED_BY(mutex) = 0;
  // Of the session that is to go to another client, which waits for this call.
  std::function<void(core::Result<engine::TakenOver>)> successor TT_GUARDED_BY(mutex);

  template <class Field>
  Field get(Field Books::*field) {
    core::MutexLock lock(mutex);
    return this->*field;
  }
};

// Runs commands at once: a Fetch of handle h answers 1-d float32 of h elements, each h; a Fetch of
// handle 13 fails. Uploads cost memory until the session ends; those over 1 GiB are refused.
class FakeEngine final : public engine::Engine {
 public:
  explicit FakeEngine(Books& books);
  const ops::Catalog& catalog() const override { return catalog_; }
  std::vector<core::Device> devices() const override { return {{}}; }
  std::vector<engine::MemoryUse> memory() const override;
  core::Result<std::unique_ptr<engine::Session>> open(const engine::SessionOptions& options,
                                                      engine::SessionListener* listener) override;

 private:
  Books& books_;
  ops::Catalog catalog_;
};

}  // namespace teletensor::server::testing
