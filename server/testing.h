// Test helpers: a temporary folder, a fake engine that records its calls, waiting for conditions,
// and what gRPC calls return.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/folder_test.h"
#include "engine/core/mutex.h"
#include "engine/engine.h"

namespace teletensor::server::testing {

// The bytes of a message.
inline std::string text_of(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string text;
  if (!buffer.Dump(&slices).ok()) return text;
  for (const grpc::Slice& slice : slices) {
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return text;
}

// The reason in one word with which a call has ended. Empty if there is none.
inline std::string reason(const grpc::ClientContext& context) {
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto found = metadata.find("teletensor-reason");
  return found == metadata.end() ? "" : std::string(found->second.data(), found->second.size());
}

// Ends a test that hangs. No test depends on how long something takes.
inline constexpr std::chrono::seconds kHang{240};

// Waits until the condition holds. Returns false if it does not.
inline bool eventually(const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + kHang;
  while (!holds()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

using Folder = core::TestFolder;

// The records of a FakeEngine. It must outlive the engine.
struct Books {
  core::Mutex mutex;
  int sessions TT_GUARDED_BY(mutex) = 0;
  std::int64_t upload_bytes TT_GUARDED_BY(mutex) = 0;  // Bytes of uploads that were not freed.
  bool hold_done TT_GUARDED_BY(mutex) = false;  // Whether frames are accepted but not consumed.
  std::uint64_t commands TT_GUARDED_BY(mutex) = 0;
  // The pending callback of a session that is being taken over. Tests call it to complete the
  // takeover.
  std::function<void(core::Result<engine::TakenOver>)> successor TT_GUARDED_BY(mutex);

  template <class Field>
  Field get(Field Books::*field) {
    core::MutexLock lock(mutex);
    return this->*field;
  }
};

// Runs commands at once. A Fetch of handle h returns a 1-d float32 tensor of h elements with the
// value h; a Fetch of handle 13 fails. Uploads use memory until the session ends; those above 1 GiB
// are refused.
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
