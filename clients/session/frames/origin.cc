#include "clients/session/frames/origin.h"

#include <pthread.h>

#include <atomic>

namespace teletensor::client {

namespace {

std::atomic<unsigned> g_forks{0};
const int g_at_fork = pthread_atfork(nullptr, nullptr, [] { ++g_forks; });

}  // namespace

Origin::Origin(bool anywhere) : anywhere_(anywhere), forks_(g_forks) {}

bool Origin::is_parents() const {
  return !anywhere_ && forks_ != g_forks.load(std::memory_order_relaxed);
}

core::Status Origin::check() const {
  if (!is_parents()) return {};
  return core::Status(core::Code::kFailedPrecondition,
                      "this session was opened before fork(), and its threads are those of the "
                      "parent process: start processes by multiprocessing's \"spawn\" or "
                      "\"forkserver\", or fork before the first session is opened");
}

}  // namespace teletensor::client
