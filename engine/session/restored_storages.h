// RestoredStorages: shared storages restored after a restart of the daemon, kept until the sessions
// that used them are restored as well.
//
// Each storage is charged to its publisher's user, but to no session. Used by one thread.
#pragma once

#include <cstdint>
#include <map>

#include "engine/core/status.h"
#include "engine/engine.h"
#include "engine/runtime/device.h"
#include "engine/runtime/publications.h"

namespace teletensor::session {

class RestoredStorages {
 public:
  RestoredStorages(runtime::Devices& devices, runtime::Publications& publications)
      : devices_(devices), publications_(publications) {}

  // See Engine::restore_common() and Engine::restore_publication().
  core::Status restore(const engine::SharedStorage& facts, std::uint64_t user_quota,
                       const engine::Engine::ReadBytes& read);
  void restore(engine::Publication publication);
  // Returns the storage that an image refers to, or the error why it is missing.
  core::Result<core::Ref<memory::Storage>> find(const program::Image::Storage& wanted) const;
  void clear() { found_.clear(); }

 private:
  core::Result<core::Ref<memory::Storage>> restore_contents(const engine::SharedStorage& facts,
                                                            std::uint64_t user_quota,
                                                            const engine::Engine::ReadBytes& read);

  runtime::Devices& devices_;
  runtime::Publications& publications_;
  std::map<std::uint64_t, core::Result<core::Ref<memory::Storage>>> found_;
};

// Reads the bytes of `storage` from a snapshot piece by piece. `gone` receives the error if the
// snapshot lacks the rest of the bytes.
core::Status read_into(memory::Storage& storage, runtime::Device& device,
                       const engine::Engine::ReadBytes& read, core::Status& gone);

}  // namespace teletensor::session
