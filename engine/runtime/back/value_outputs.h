// ValueOutputs: runs the queue entries that pass values on: fetches for the client, and
// publications for other sessions.
#pragma once

#include "engine/memory/pool.h"
#include "engine/runtime/back/back_events.h"
#include "engine/runtime/back/entry_failures.h"
#include "engine/runtime/execute/executor.h"
#include "engine/runtime/publications.h"
#include "engine/runtime/queue/queue.h"

namespace teletensor::runtime {

// Used by the session task only.
class ValueOutputs {
 public:
  // The maximum number of bytes of a Fetch that is not `bulk`.
  static constexpr std::size_t kMaxFetched = std::size_t{1} << 20;

  // `owner` identifies the session. `publications` is null if the daemon does not support them.
  ValueOutputs(Executor& executor, EntryFailures& failures, BackEvents& events,
               Publications* publications, memory::OwnerId owner)
      : executor_(executor),
        failures_(failures),
        events_(events),
        publications_(publications),
        owner_(owner) {}

  // Both return false if the entry did not run and must be tried again (Executor::stopped).
  bool fetch(Entry& entry);
  // The tensor keeps its value even if the publication fails.
  bool publish(Entry& entry);

 private:
  Executor& executor_;
  EntryFailures& failures_;
  BackEvents& events_;
  Publications* const publications_;
  const memory::OwnerId owner_;
};

}  // namespace teletensor::runtime
