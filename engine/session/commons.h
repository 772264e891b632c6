// Commons: published storages that an earlier life has left behind, until the sessions that had
// them are there again.
//
// Each is charged to its publisher's user, and to no session. One thread.
#pragma once

#include <cstdint>
#include <map>

#include "engine/core/status.h"
#include "engine/engine.h"
#include "engine/runtime/device.h"
#include "engine/runtime/publications.h"

namespace teletensor::session {

class Commons {
 public:
  Commons(runtime::Devices& devices, runtime::Publications& publications)
      : devices_(devices), publications_(publications) {}

  // As Engine's of these names.
  core::Status restore(const engine::Common& facts, std::uint64_t user_quota,
                       const engine::Engine::ReadBytes& read);
  void restore(engine::Publication publication);
  // The one that an image means, or why it is not there.
  core::Result<core::Ref<memory::Storage>> find(const program::Image::Storage& wanted) const;
  void clear() { found_.clear(); }

 private:
  core::Result<core::Ref<memory::Storage>> put_up(const engine::Common& facts,
                                                  std::uint64_t user_quota,
                                                  const engine::Engine::ReadBytes& read);

  runtime::Devices& devices_;
  runtime::Publications& publications_;
  std::map<std::uint64_t, core::Result<core::Ref<memory::Storage>>> found_;
};

// The bytes of `storage`, piece by piece. `gone`: there are no more, and why.
core::Status read_into(memory::Storage& storage, runtime::Device& device,
                       const engine::Engine::ReadBytes& read, core::Status& gone);

}  // namespace teletensor::session
