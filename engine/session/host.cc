#include "engine/session/host.h"

#include <algorithm>
#include <thread>

#include "engine/session/session.h"

namespace teletensor::engine {

bool Publication::open_to(std::string_view whom) const {
  return runtime::Publications::open_to(user, users, whom);
}

}  // namespace teletensor::engine

namespace teletensor::session {

Host::Host(const ops::Catalog& catalog, std::vector<std::unique_ptr<runtime::Device>> devices,
           int lanes)
    : catalog_(catalog),
      devices_(std::move(devices)),
      lanes_(lanes > 0 ? lanes
                       : std::max(1, static_cast<int>(std::thread::hardware_concurrency()))) {}

std::vector<core::Device> Host::devices() const {
  std::vector<core::Device> ids;
  for (std::size_t i = 0; i < devices_.size(); ++i) ids.push_back(devices_.at(i).id());
  return ids;
}

std::vector<engine::MemoryUse> Host::memory() const {
  std::vector<engine::MemoryUse> uses;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    const memory::Budget& budget = devices_.at(i).pool().budget();
    uses.push_back({devices_.at(i).id(), budget.used(), budget.peak(), budget.total(),
                    budget.used(), budget.total()});
  }
  return uses;
}

std::vector<engine::Publication> Host::publications() const {
  std::vector<engine::Publication> all;
  for (runtime::Publications::Facts& facts : publications_.all()) {
    all.push_back(to_engine(std::move(facts)));
  }
  return all;
}

core::Result<std::unique_ptr<engine::Session>> Host::open(const engine::SessionOptions& options,
                                                          engine::SessionListener* listener) {
  const memory::OwnerId owner = next_owner_++;
  const bool known = !options.user.empty() || options.user_quota != 0;
  for (std::size_t i = 0; known && i < devices_.size(); ++i) {
    devices_.at(i).pool().enroll(owner, options.user, options.user_quota);
  }
  return std::unique_ptr<engine::Session>(
      new Session(catalog_, devices_, lanes_, publications_, owner, options, listener));
}

}  // namespace teletensor::session
