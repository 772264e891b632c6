// Host: the implementation of Engine over a given list of devices. Engine::create() passes the real
// devices, tests pass their own.
//
// Threads of the server call it, several at a time; engine::Engine documents the functions.
// Sessions must be destroyed before their host. After a restart of the daemon the order is
// number_from(), restore_common() and restore_publication(), restore() for each session, and
// restored().
#pragma once

#include <memory>
#include <set>
#include <vector>

#include "engine/core/mutex.h"
#include "engine/engine.h"
#include "engine/runtime/device.h"
#include "engine/runtime/groups/group_adder.h"
#include "engine/runtime/lanes/lanes.h"
#include "engine/runtime/publications.h"
#include "engine/runtime/tiers.h"
#include "engine/session/restored_storages.h"

namespace teletensor::session {

// Reserves memory of the host for reductions of groups. Must be called before a Host is created
// with this pool.
core::Status reserve_for_groups(memory::DevicePool& host, std::uint64_t bytes);

class Host final : public engine::Engine {
 public:
  // lanes <= 0 means one per core. The catalog must outlive the host. `disk` is where storages are
  // moved when memory is short; null: they are not moved.
  Host(const ops::Catalog& catalog, std::vector<std::unique_ptr<runtime::Device>> devices,
       int lanes, std::unique_ptr<memory::Disk> disk = nullptr);

  const ops::Catalog& catalog() const override { return catalog_; }
  std::vector<core::Device> devices() const override;
  int lanes() const override { return lanes_.count(); }
  std::vector<engine::Accelerator> accelerators() const override;
  std::vector<std::pair<core::Device, program::Activity>> activity() const override;
  std::vector<engine::MemoryUse> memory() const override;
  void release_idle() override;
  runtime::Fabric::Receiver* connect(runtime::Fabric& fabric) override {
    return &groups_.connect(fabric);
  }
  core::Status health() const override;
  bool busy() const override { return lanes_.all_busy(); }
  engine::Moved moved() const override;
  std::vector<engine::Publication> publications() const override;
  std::vector<runtime::GroupFacts> groups() override { return groups_.all(); }
  bool rest_groups() override { return groups_.rest(); }
  void end_moving_groups(const std::string& why) override { groups_.end_moving(why); }
  bool hold_groups(const std::string& why) override { return groups_.hold_open(why); }
  core::Result<std::unique_ptr<engine::Session>> open(const engine::SessionOptions& options,
                                                      engine::SessionListener* listener) override;
  core::Status read_storage(const program::Image::Storage& storage, std::uint64_t offset, void* to,
                            std::size_t bytes) override;
  core::Status hold(const program::Image::Storage& storage, const Check& check,
                    const Act& act) override;
  std::uint64_t publications_changed() const override { return publications_.changes(); }
  void number_from(std::uint64_t first) override;
  core::Status restore_common(const engine::SharedStorage& facts, std::uint64_t user_quota,
                              const ReadBytes& read) override;
  void restore_publication(engine::Publication publication) override;
  void restored() override;
  core::Result<std::unique_ptr<engine::Session>> restore(const engine::SessionOptions& options,
                                                         engine::SessionListener* listener,
                                                         program::Image image,
                                                         const ReadBytes& read) override;

 private:
  // Chooses the session's owner number: `owner`, the number before the restart, if it is not 0 and
  // not in use; else a new one.
  memory::OwnerId enroll(const engine::SessionOptions& options, memory::OwnerId owner = 0);

  const ops::Catalog& catalog_;
  const std::unique_ptr<memory::Disk> disk_;  // null if there is no disk
  runtime::Publications publications_;
  mutable runtime::Devices devices_;
  runtime::Lanes lanes_;
  runtime::GroupAdder adder_;
  runtime::Groups groups_;
  std::unique_ptr<runtime::Tiers> tiers_;  // null if nothing is moved
  core::Mutex mu_;
  memory::OwnerId next_owner_ TT_GUARDED_BY(mu_) = 1;
  bool restoring_ TT_GUARDED_BY(mu_) = true;
  std::set<memory::OwnerId> taken_ TT_GUARDED_BY(mu_);  // numbers in use during the restoration
  RestoredStorages restored_storages_;  // restored storages that no session has claimed yet
};

}  // namespace teletensor::session
