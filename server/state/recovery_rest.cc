// Recovery's part in a shutdown that brings groups to rest, so that their sessions can be written.

#include <algorithm>
#include <map>
#include <thread>

#include "server/base/log.h"
#include "server/state/recovery.h"

namespace teletensor::server {

using core::Status;

// Sessions in groups are written when the ranks of each group have all executed the same
// collectives, or else, after a part of the budget, with their open collectives. For these the
// other daemons of a group have to answer before five eighths of it have passed.
void Recovery::rest_groups(const std::vector<LeaseRef>& all, Clock::time_point since,
                           std::chrono::milliseconds budget,
                           const std::function<void()>& begin_again) {
  using engine::Rest;
  constexpr std::chrono::milliseconds kTick{1}, kStuck{200};
  engine::Engine& engine = leases_.engine();
  const auto ranks = times_.ranks.count() > 0 ? std::min(times_.ranks, budget / 2) : budget / 2;
  const Clock::time_point until = since + ranks, began = Clock::now();
  Clock::time_point ran = began;
  while (Clock::now() < std::min(until, cut_.load())) {
    std::map<Rest, std::vector<LeaseRef>> found;
    const auto look = [&](const LeaseRef& lease, bool push) {
      Rest rest = Rest::kApart;
      (void)lease->with_session([&](engine::Session& session) {
        rest = session.come_to_rest(push);
        return Status();
      });
      if (rest != Rest::kApart) found[rest].push_back(lease);
    };
    begin_again();
    for (const LeaseRef& lease : all) look(lease, false);
    if (found.empty()) return;
    const Clock::time_point now = Clock::now();
    if (found.contains(Rest::kRuns)) {
      ran = now;
    } else if (engine.rest_groups() && found.size() == 1 && found.contains(Rest::kRests)) {
      for (const LeaseRef& lease : found[Rest::kRests]) {
        (void)lease->with_session([](engine::Session& session) {
          session.stay_at_rest();
          return Status();
        });
      }
      log_info("groups_at_rest",
               {{"sessions", found[Rest::kRests].size()},
                {"seconds", std::chrono::duration<double>(Clock::now() - began).count()}});
      continue;
    }
    if (now - ran > kStuck) {
      // A rank may wait for a send of another rank whose command comes after those that the other
      // rank has executed.
      std::vector<LeaseRef> held_up = found[Rest::kRests];
      const std::vector<LeaseRef>& waiting = found[Rest::kWaits];
      held_up.insert(held_up.end(), waiting.begin(), waiting.end());
      for (const LeaseRef& lease : held_up) look(lease, true);
      ran = now;
    }
    std::this_thread::sleep_for(kTick);
  }
  log_info("groups_open",
           {{"seconds", std::chrono::duration<double>(Clock::now() - began).count()}});
  hold_groups(all, since + budget / 2 + budget / 8, begin_again);
}

// Writes the sessions with what waits for other ranks. A session whose image cannot contain that
// leaves its groups. Groups whose sessions still run at `until` end.
void Recovery::hold_groups(const std::vector<LeaseRef>& all, Clock::time_point until,
                           const std::function<void()>& begin_again) {
  using engine::Rest;
  constexpr std::chrono::milliseconds kTick{1};
  engine::Engine& engine = leases_.engine();
  bool held = false, in_time = true;
  for (; Clock::now() < deadline_.load(); std::this_thread::sleep_for(kTick)) {
    begin_again();
    bool runs = false;
    std::vector<LeaseRef> stopped;
    for (const LeaseRef& lease : all) {
      Rest rest = Rest::kApart;
      (void)lease->with_session([&](engine::Session& session) {
        rest = session.stop_here();
        return Status();
      });
      runs = runs || rest == Rest::kRuns;
      if (rest == Rest::kRests || rest == Rest::kWaits) stopped.push_back(lease);
    }
    if (in_time && !held && Clock::now() >= std::min(until, cut_.load())) {
      in_time = false;
      engine.end_moving_groups(kShutsDown);
      continue;
    }
    if (runs) continue;
    if (stopped.empty()) return;
    if (!held) {
      for (const LeaseRef& lease : stopped) {
        (void)lease->with_session([&](engine::Session& session) {
          if (!session.may_stay()) session.leave_groups(kShutsDown);
          return Status();
        });
      }
      held = engine.hold_groups(kShutsDown);
      continue;
    }
    for (const LeaseRef& lease : stopped) {
      (void)lease->with_session([](engine::Session& session) {
        session.stay_at_rest();
        return Status();
      });
    }
    log_info("groups_held", {{"sessions", stopped.size()}});
  }
}

}  // namespace teletensor::server
