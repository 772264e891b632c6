// PlannedPrograms: the programs that a session has called, prepared for their runs. A program is
// planned when it is called for the first time, and forgotten once nothing can call it any more.
// Not thread-safe: used by the thread that has the session's front end.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "engine/core/clock.h"
#include "engine/runtime/programs/prepared.h"

namespace teletensor::runtime {

class PlannedPrograms {
 public:
  // Returns true if a call of the program would have to plan it.
  bool is_new(const program::Program& program) const { return !planned_.contains(&program); }
  // Returns the prepared program. Sets `ns` to the time that planning it has taken now, or to 0.
  std::shared_ptr<const Prepared> plan(const std::shared_ptr<const program::Program>& program,
                                       const ops::Catalog& catalog, const Devices& devices,
                                       std::uint64_t* ns) {
    Planned& planned = planned_[program.get()];
    *ns = 0;
    if (!planned.prepared) {
      const auto began = core::Clock::now();
      planned.prepared = std::make_shared<const Prepared>(program, catalog, devices);
      *ns = planned.ns = core::ns_since(began);
      bytes_ += planned.prepared->bytes();
    }
    return planned.prepared;
  }
  // Forgets the programs that nothing can call any more; returns the planning time of the others.
  std::uint64_t forget_unused() {
    std::uint64_t ns = 0;
    std::erase_if(planned_, [&](const auto& each) {
      const Planned& planned = each.second;
      if (planned.prepared->shared().use_count() > 1) {
        ns += planned.ns;
        return false;
      }
      bytes_ -= planned.prepared->bytes();
      return true;
    });
    return ns;
  }
  // The memory of the plans, in bytes, without the programs.
  std::uint64_t bytes() const { return bytes_; }

 private:
  struct Planned {
    std::shared_ptr<const Prepared> prepared;
    std::uint64_t ns = 0;
  };
  std::unordered_map<const program::Program*, Planned> planned_;
  std::uint64_t bytes_ = 0;
};

}  // namespace teletensor::runtime
