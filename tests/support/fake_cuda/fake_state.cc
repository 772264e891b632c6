#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "fake.h"

namespace fake {
namespace {

constexpr std::size_t kPage = 4096;
constexpr int kPoison = 0xCB;
thread_local Device* current = nullptr;

Config read_config() {
  Config made;
  const char* text = std::getenv("TT_FAKE_CUDA");
  std::istringstream words(text == nullptr ? "" : text);
  for (std::string word; std::getline(words, word, ',');) {
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
    const auto number = [&] { return std::atoi(value.c_str()); };
    if (name == "devices") made.devices = number();
    if (name == "memory") made.memory = static_cast<std::size_t>(number()) << 20;
    if (name == "capability") made.capability = number();
    if (name == "driver") made.driver = number();
    if (name == "nvrtc") {
      std::sscanf(value.c_str(), "%d.%d", &made.nvrtc_major, &made.nvrtc_minor);
    }
    if (name == "compile") made.compiles = value != "none", made.empty = value == "empty";
    if (name == "blas") made.blas = value != "none", made.blas_refuses = value == "refuse";
    if (name == "dnn") made.dnn = value != "none", made.dnn_refuses = value == "refuse";
    if (name == "graphs") made.graphs = value != "none", made.updates = value != "fixed";
    if (name == "shares") made.shares = value != "none";
    if (name == "locks") made.locks = value != "none";
    if (name == "copies") made.copies = value;
    if (name == "pace") made.pace = number();
    if (name == "seed") made.seed = static_cast<unsigned>(number());
    if (name == "cache") made.cache = value;
    if (name == "control") made.control = value;
    if (name == "emulation") made.emulation = value;
  }
  return made;
}

void read_control(State& s) {
  const std::string& path = config().control;
  if (path.empty() || access(path.c_str(), R_OK) != 0) return;
  std::ifstream file(path);
  std::string what;
  std::size_t device = 0;
  while (file >> what >> device) {
    if (device >= s.devices.size()) continue;
    Device& d = s.devices[device];
    if (what == "sticky") d.fail_next = true;
    if (what == "lost") d.error = kUnknown;
    if (what == "hang") d.hung = true;
    if (what == "full") d.full = true;
    if (what == "hold" || what == "release") d.held = what == "hold";
  }
  unlink(path.c_str());
}

// The streams whose next task may run.
std::vector<Stream*> ready(State& s) {
  std::vector<Stream*> found;
  for (const auto& [stream, owned] : s.streams) {
    if (stream->tasks.empty() || stream->device->hung) continue;
    const Task& next = stream->tasks.front();
    if (next.leaves && stream->device->held) continue;
    if (!next.wait || next.wait->done >= next.count) found.push_back(stream);
  }
  return found;
}

void open(Device& device, const Task& task, bool on) {
  for (const auto& [address, block] : device.blocks) {
    if (block.bytes == 0) continue;  // an address range without memory
    bool wanted = task.kernel;
    for (const std::uintptr_t touched : task.touched) {
      wanted = wanted || (touched >= address && touched < address + block.pages);
    }
    if (wanted) protect(address, block.pages, on);
  }
}

// Runs tasks late: nothing runs while no thread waits, up to a few dozen tasks or some
// milliseconds.
[[noreturn]] void work() {
  State& s = state();
  std::unique_lock lock(s.mutex);
  while (true) {
    while (s.queued == 0) {
      s.hurry = false;
      s.work.wait(lock);
    }
    if (!s.hurry && s.queued < 48) {
      s.work.wait_for(lock, std::chrono::milliseconds(2), [&] { return s.hurry; });
    }
    const std::vector<Stream*> streams = ready(s);
    if (streams.empty()) {
      s.work.wait_for(lock, std::chrono::milliseconds(2));
      continue;
    }
    Stream* stream = streams[s.random() % streams.size()];
    Device& device = *stream->device;
    Task task = std::move(stream->tasks.front());
    stream->tasks.pop_front();
    stream->running = true;
    --s.queued;
    if (device.fail_next && task.run) {
      device.fail_next = false;
      device.error = kIllegalAddress;
    }
    if (task.run && device.error == kSuccess) {
      // Memory is made accessible and inaccessible under the lock, because blocks are created and
      // freed under it.
      open(device, task, true);
      lock.unlock();
      const int error = task.run();
      lock.lock();
      open(device, task, false);
      if (device.error == kSuccess) device.error = error;
    }
    if (task.run) device.clock += std::chrono::microseconds(config().pace);
    if (task.record) {
      task.record->done = std::max(task.record->done, task.count);
      task.record->at = config().pace == 0 ? std::chrono::steady_clock::now()
                                           : std::chrono::steady_clock::time_point(device.clock);
    }
    stream->running = false;
    s.done.notify_all();
  }
}

}  // namespace

const Config& config() {
  static const Config made = read_config();
  return made;
}

State& state() {
  static State* const made = [] {
    auto* s = new State;  // never deleted: the worker lives as long as the process
    s->random.seed(config().seed);
    for (int i = 0; i < config().devices; ++i) {
      Device& device = s->devices.emplace_back();
      device.index = i;
      const std::size_t room = 8 * config().memory + (std::size_t{64} << 20);
      void* base =
          mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (base == MAP_FAILED) std::abort();
      device.base = reinterpret_cast<std::uintptr_t>(base);
      device.end = device.base + room;
    }
    return s;
  }();
  static const bool started = [] {
    std::thread(work).detach();
    return true;
  }();
  (void)started;
  return *made;
}

int set_current(void* context) {
  current = static_cast<Device*>(context);
  return current == nullptr || current->retained > 0 ? kSuccess : kInvalidContext;
}

Device* enter(std::unique_lock<std::mutex>& lock, int* error) {
  State& s = state();
  lock = std::unique_lock(s.mutex);
  read_control(s);
  *error = current == nullptr || current->retained == 0 ? kInvalidContext : current->error;
  return *error == kSuccess ? current : nullptr;
}

int push(Stream* stream, Task task, std::uintptr_t node) {
  State& s = state();
  if (stream->capture) {
    if (node == 0) return kCaptureUnsupported;
    task.kind = node;
    stream->capture->libraries.push_back(task.library);
    task.library = nullptr;
    stream->capture->nodes.push_back(std::move(task));
    return kSuccess;
  }
  stream->tasks.push_back(std::move(task));
  ++s.queued;
  s.work.notify_all();
  return kSuccess;
}

void protect(std::uintptr_t address, std::size_t pages, bool on) {
  if (mprotect(reinterpret_cast<void*>(address), pages, on ? PROT_READ | PROT_WRITE : PROT_NONE)) {
    std::perror("fake driver: mprotect");
    std::abort();
  }
}

Block* block_of(Device& device, std::uintptr_t address, std::size_t bytes, std::uintptr_t* start) {
  auto after = device.blocks.upper_bound(address);
  if (after == device.blocks.begin()) return nullptr;
  --after;
  Block& block = after->second;
  *start = after->first;
  if (block.freed || address + bytes > after->first + block.bytes) return nullptr;
  return &block;
}

std::uintptr_t find_gap(const Device& device, std::size_t pages, std::size_t alignment) {
  const auto aligned = [&](std::uintptr_t at) {
    return (at + alignment - 1) / alignment * alignment;
  };
  std::uintptr_t at = aligned(device.base + kPage);
  for (const auto& [start, block] : device.blocks) {
    if (start >= at + pages + kPage) break;
    at = std::max(at, aligned(start + block.pages + kPage));
  }
  return at + pages + kPage > device.end ? 0 : at;
}

int allocate(Device& device, std::size_t bytes, std::uintptr_t* address) {
  const std::size_t pages = (bytes + kPage - 1) / kPage * kPage;
  if (bytes == 0) return kInvalidValue;
  if (device.full || device.used + pages > config().memory) return kOutOfMemory;
  const std::uintptr_t at = find_gap(device, pages, kPage);
  if (at == 0) return kOutOfMemory;
  device.blocks[at] = {bytes, pages};
  device.used += pages;
  protect(at, pages, true);
  std::memset(reinterpret_cast<void*>(at), kPoison, pages);
  protect(at, pages, false);
  *address = at;
  return kSuccess;
}

void release(Device& device, std::uintptr_t address) {
  const auto found = device.blocks.find(address);
  device.used -= found->second.pages;
  madvise(reinterpret_cast<void*>(address), found->second.pages, MADV_DONTNEED);
  device.blocks.erase(found);
}

}  // namespace fake
