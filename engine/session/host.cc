#include "engine/session/host.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "engine/runtime/shared_locks.h"
#include "engine/session/session.h"

namespace teletensor::engine {

bool Publication::open_to(std::string_view whom) const {
  return runtime::Publications::open_to(user, users, whom);
}

}  // namespace teletensor::engine

namespace teletensor::session {
namespace {

// The largest owner number that is accepted from a file.
constexpr memory::OwnerId kMaxOwner = memory::OwnerId{1} << 62;
constexpr memory::OwnerId kGroupsOwner = kMaxOwner + 1;
// The time between two checks of a wait for a storage.
constexpr std::chrono::milliseconds kCheckEvery{100};
constexpr char kGroupsUser[] = " groups";  // cannot be a user's name

}  // namespace

core::Status reserve_for_groups(memory::DevicePool& host, std::uint64_t bytes) {
  TT_RETURN_IF_ERROR(host.guarantee(kGroupsUser, bytes, 0));
  host.enroll(kGroupsOwner, kGroupsUser, 0);
  return {};
}

Host::Host(const ops::Catalog& catalog, std::vector<std::unique_ptr<runtime::Device>> devices,
           int lanes, std::unique_ptr<memory::Disk> disk)
    : catalog_(catalog),
      disk_(std::move(disk)),
      devices_(std::move(devices)),
      lanes_(lanes > 0 ? lanes
                       : std::max(1, static_cast<int>(std::thread::hardware_concurrency()))),
      adder_(catalog, devices_.at(runtime::kHostIndex), lanes_, kGroupsOwner),
      groups_(adder_),
      restored_storages_(devices_, publications_) {
  if (disk_ || devices_.size() > 1) tiers_ = std::make_unique<runtime::Tiers>(disk_.get());
}

std::vector<core::Device> Host::devices() const {
  std::vector<core::Device> ids;
  for (std::size_t i = 0; i < devices_.size(); ++i) ids.push_back(devices_.at(i).id());
  return ids;
}

std::vector<engine::Accelerator> Host::accelerators() const {
  std::vector<engine::Accelerator> found;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    const backends::Accelerator* const each = devices_.at(i).accelerator();
    if (each == nullptr) continue;
    const backends::Accelerator::Facts facts = each->facts();
    found.push_back(
        {each->device(), facts.model, facts.capability, facts.multiprocessors, facts.memory});
  }
  return found;
}

std::vector<std::pair<core::Device, program::Activity>> Host::activity() const {
  std::vector<std::pair<core::Device, program::Activity>> found;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    const backends::Accelerator* const each = devices_.at(i).accelerator();
    if (each != nullptr) found.emplace_back(each->device(), each->activity());
  }
  return found;
}

std::vector<engine::MemoryUse> Host::memory() const {
  std::vector<engine::MemoryUse> uses;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    const memory::Budget& budget = devices_.at(i).pool().budget();
    uses.push_back({devices_.at(i).id(), budget.used(), budget.peak(), budget.total(),
                    budget.used(), budget.total()});
    memory::DevicePool& pool = devices_.at(i).pool();
    uses.back().device_held = pool.held();
    uses.back().locked = pool.locked();
    const memory::DevicePool::Moved& moved = pool.moved();
    uses.back().away = moved.away;
    uses.back().moved = {moved.out, moved.in, 0, moved.out_ns, moved.in_ns, 0};
    if (!disk_ || !(devices_.at(i).id() == core::Device{})) continue;
    uses.back().away = disk_->bytes();
    uses.back().disk_used = disk_->budget().used();
    uses.back().disk_quota = disk_->budget().total();
  }
  return uses;
}

// Releases idle memory of the host only, because freeing memory of a GPU would wait for all work
// that runs on the GPU.
void Host::release_idle() {
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    if (devices_.at(i).id() == core::Device{}) devices_.at(i).pool().release_idle();
  }
}

core::Status Host::health() const {
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    TT_RETURN_IF_ERROR(devices_.at(i).backend().health());
  }
  return {};
}

engine::Moved Host::moved() const {
  if (!disk_) return {};
  const memory::Disk::Moved moved = disk_->moved();
  return {moved.out, moved.in, moved.files, moved.out_ns, moved.in_ns, moved.failures};
}

std::vector<engine::Publication> Host::publications() const {
  std::vector<engine::Publication> all;
  for (runtime::Publications::Facts& facts : publications_.all()) {
    all.push_back(to_engine(std::move(facts)));
  }
  return all;
}

memory::OwnerId Host::enroll(const engine::SessionOptions& options, memory::OwnerId owner) {
  {
    core::MutexLock lock(mu_);
    if (!restoring_ || owner == 0 || owner > kMaxOwner || taken_.contains(owner)) {
      owner = next_owner_;
    }
    next_owner_ = std::max(next_owner_, owner + 1);
    if (restoring_) taken_.insert(owner);
  }
  const bool known = !options.user.empty() || options.user_quota != 0;
  for (std::size_t i = 0; known && i < devices_.size(); ++i) {
    devices_.at(i).pool().enroll(owner, options.user, options.user_quota);
  }
  return owner;
}

core::Result<std::unique_ptr<engine::Session>> Host::open(const engine::SessionOptions& options,
                                                          engine::SessionListener* listener) {
  return std::unique_ptr<engine::Session>(new Session(catalog_, devices_, lanes_, publications_,
                                                      enroll(options), options, listener,
                                                      tiers_.get(), &groups_));
}

core::Result<std::unique_ptr<engine::Session>> Host::restore(const engine::SessionOptions& options,
                                                             engine::SessionListener* listener,
                                                             program::Image image,
                                                             const ReadBytes& read) {
  auto session = std::make_unique<Session>(catalog_, devices_, lanes_, publications_,
                                           enroll(options, image.owner), options, listener,
                                           tiers_.get(), &groups_);
  TT_RETURN_IF_ERROR(session->restore_contents(std::move(image), read, restored_storages_));
  return std::unique_ptr<engine::Session>(std::move(session));
}

core::Status Host::hold(const program::Image::Storage& storage, const Check& check,
                        const Act& act) {
  auto& contents = static_cast<memory::Storage&>(*storage.contents);
  if (contents.sharing() == nullptr) return core::internal("no common storage");
  const memory::OnBehalf behalf(contents.owner());
  memory::UnlockedSignal unlocked;
  memory::LockRequest request(&unlocked);
  std::optional<runtime::SharedLocks> locks;
  for (bool waits = true; waits;) {
    locks.emplace(devices_, request);
    locks->add(contents, false);
    TT_RETURN_IF_ERROR(locks->acquire(&waits));
    while (waits && !unlocked.wait_for(kCheckEvery)) TT_RETURN_IF_ERROR(check());
  }
  const engine::SharedStorage facts{
      contents.sharing()->order,    contents.device(), contents.bytes(),
      contents.sharing()->writes(), contents.owner(),  runtime::Publications::user_of(contents)};
  return act(facts, [&] { locks.reset(); });
}

void Host::number_from(std::uint64_t first) {
  {
    core::MutexLock lock(mu_);
    next_owner_ = std::max(next_owner_, first);
  }
  publications_.number_from(first);
}

core::Status Host::restore_common(const engine::SharedStorage& facts, std::uint64_t user_quota,
                                  const ReadBytes& read) {
  return restored_storages_.restore(facts, user_quota, read);
}

void Host::restore_publication(engine::Publication publication) {
  restored_storages_.restore(std::move(publication));
}

void Host::restored() {
  restored_storages_.clear();
  groups_.restored();
  core::MutexLock lock(mu_);
  restoring_ = false;
  taken_.clear();
}

core::Status Host::read_storage(const program::Image::Storage& storage, std::uint64_t offset,
                                void* to, std::size_t bytes) {
  auto& contents = static_cast<memory::Storage&>(*storage.contents);
  if (offset > contents.bytes() || bytes > contents.bytes() - offset) {
    return core::internal("the bytes to read lie outside the storage");
  }
  return contents.read(offset, to, bytes);
}

}  // namespace teletensor::session
