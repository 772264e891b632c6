#include "engine/backends/cuda/device/gpu.h"

#include <utility>

namespace teletensor::backends::cuda {

using core::Status;

Gpu::Gpu(const Driver& driver, std::string name, Options options)
    : context_(driver, std::move(name), std::move(options.log)),
      work_(context_),
      host_to_device_(context_, work_),
      device_to_host_(context_, work_),
      mappable_(context_, work_),
      watcher_(context_, work_, options.patience) {}

core::Result<std::unique_ptr<Gpu>> Gpu::open(const Driver& driver, int ordinal, std::string name,
                                             Options options) {
  std::unique_ptr<Gpu> gpu(new Gpu(driver, std::move(name), std::move(options)));
  TT_RETURN_IF_ERROR(gpu->start(ordinal));
  return gpu;
}

Status Gpu::start(int ordinal) {
  TT_RETURN_IF_ERROR(context_.open(ordinal));
  TT_RETURN_IF_ERROR(mappable_.start());
  TT_RETURN_IF_ERROR(work_.start());
  TT_RETURN_IF_ERROR(host_to_device_.start());
  TT_RETURN_IF_ERROR(device_to_host_.start());
  return watcher_.start();
}

Gpu::~Gpu() {
  watcher_.stop();
  if (context_.usable()) (void)work_.synchronize();
}

// ---------------------------------------------------------------- memory

void* Gpu::allocate(std::size_t bytes) {
  if (!context_.enter().ok()) return nullptr;
  Queues& queues = work_.queues();
  const core::Result<Queues::QueueRef> home = queues.of(0);
  if (!home.ok()) return nullptr;
  const core::Result<Stream> stream = queues.stream(**home);
  if (!stream.ok()) return nullptr;
  const Driver& driver = context_.driver();
  Address memory = 0;
  const int code = facts().pools ? driver.cuMemAllocAsync(&memory, bytes, *stream)
                                 : driver.cuMemAlloc(&memory, bytes);
  if (!context_.check(code, "allocating memory").ok()) return nullptr;
  void* made = reinterpret_cast<void*>(memory);
  if (clear(**home, made, bytes).ok() && queues.make_all_follow(**home).ok()) return made;
  free(made);
  return nullptr;
}

void Gpu::free(void* memory) {
  if (memory == nullptr || !context_.enter().ok()) return;
  Queues& queues = work_.queues();
  const core::Result<Queues::QueueRef> home = queues.of(0);
  if (!home.ok()) return;
  const Status after = facts().pools ? queues.follow_all(**home) : synchronize();
  const core::Result<Stream> stream = queues.stream(**home);
  if (!after.ok() || !stream.ok()) return;
  (void)context_.check(facts().pools ? context_.driver().cuMemFreeAsync(address(memory), *stream)
                                     : context_.driver().cuMemFree(address(memory)),
                       "freeing memory");
}

Status Gpu::clear(Queues::Queue& queue, void* memory, std::size_t bytes) {
  if (bytes == 0) return {};
  Task task;
  task.to = address(memory);
  task.bytes = bytes;
  return work_.ask(queue, task, true, "clearing memory");
}

Status Gpu::zero(void* memory, std::size_t bytes) {
  const core::Result<Queues::QueueRef> own = work_.queue();
  return own.ok() ? clear(**own, memory, bytes) : own.status();
}

Status Gpu::transfer_ownership(void* memory, std::size_t bytes, memory::OwnerId from,
                               memory::OwnerId to) {
  TT_RETURN_IF_ERROR(context_.enter());
  const core::Result<Queues::QueueRef> next = work_.queues().of(to);
  if (!next.ok()) return next.status();
  TT_RETURN_IF_ERROR(work_.queues().follow(**next, from));
  return clear(**next, memory, bytes);
}

namespace {

Task copying(void* to, const void* from, std::size_t bytes) {
  Task task;
  task.to = address(to);
  task.from = address(from);
  task.bytes = bytes;
  return task;
}

}  // namespace

Status Gpu::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return {};
  const core::Result<Queues::QueueRef> own = work_.queue();
  return own.ok() ? work_.ask(**own, copying(to, from, bytes), true, "a copy") : own.status();
}

Status Gpu::copy_now(void* to, const void* from, std::size_t bytes) {
  return bytes == 0 ? Status() : work_.run_now(copying(to, from, bytes), "a copy");
}

// The session's stream on the other device waits for the copy, so that memory which the session
// frees there afterwards is no longer being read.
Status Gpu::copy_from(Gpu& other, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return {};
  if (&other == this) return copy(to, from, bytes);
  const DeviceContext& there = other.context_;
  const Driver& driver = context_.driver();
  const core::Result<Stream> source = other.work_.stream();
  if (!source.ok()) return source.status();
  Event made = nullptr, read = nullptr;
  TT_RETURN_IF_ERROR(there.create(&made));
  Status status = there.check(driver.cuEventRecord(made, *source), "recording an event");
  const core::Result<Stream> own = work_.stream();
  if (status.ok()) status = own.status();
  const Stream stream = own.ok() ? *own : nullptr;
  if (status.ok()) status = context_.create(&read);
  if (status.ok()) {
    status = context_.check(driver.cuStreamWaitEvent(stream, made, 0), "waiting for an event");
  }
  if (status.ok()) {
    work_.count();
    status = context_.check(driver.cuMemcpyPeerAsync(address(to), context_.handle(), address(from),
                                                     there.handle(), bytes, stream),
                            "a copy from another device");
  }
  if (status.ok())
    status = context_.check(driver.cuEventRecord(read, stream), "recording an event");
  if (read != nullptr && status.ok()) {
    status = there.enter();
    if (status.ok()) {
      status = there.check(driver.cuStreamWaitEvent(*source, read, 0),
                           "waiting for a copy on another device");
    }
  }
  // The driver keeps an event until no stream waits for it.
  if (read != nullptr && context_.enter().ok()) context_.destroy(nullptr, read);
  if (there.enter().ok()) there.destroy(nullptr, made);
  return status;
}

// None of the possible errors here ends the context.
bool Gpu::lock(void* host, std::size_t bytes) {
  return context_.enter().ok() &&
         context_.driver().cuMemHostRegister(host, bytes, kLockForAll) == kSuccess;
}

bool Gpu::unlock(void* host) {
  return context_.enter().ok() && context_.driver().cuMemHostUnregister(host) == kSuccess;
}

// ---------------------------------------------------------------- queues

Status Gpu::follow_all() {
  const core::Result<Queues::QueueRef> own = work_.queue();
  return own.ok() ? work_.queues().follow_all(**own) : own.status();
}

Status Gpu::make_all_follow() {
  const core::Result<Queues::QueueRef> own = work_.queue();
  return own.ok() ? work_.queues().make_all_follow(**own) : own.status();
}

Status Gpu::begin_beside(memory::OwnerId owner) {
  TT_RETURN_IF_ERROR(context_.enter());
  const core::Result<Queues::QueueRef> own = work_.queues().of(owner);
  return own.ok() ? work_.queues().uploads_follow(**own) : own.status();
}

void Gpu::end(memory::OwnerId owner) {
  if (context_.enter().ok()) work_.queues().end(owner);
}

Queues::Time Gpu::take_time(memory::OwnerId owner) {
  return context_.enter().ok() ? work_.queues().take_time(owner) : Queues::Time();
}

// ---------------------------------------------------------------- kernels

Status Gpu::load(const std::string& code, Module* module) {
  TT_RETURN_IF_ERROR(context_.enter());
  return context_.check(context_.driver().cuModuleLoadData(module, code.c_str()),
                        "loading a kernel");
}

Status Gpu::function(Module module, const std::string& name, unsigned shared_bytes,
                     Function* function) {
  TT_RETURN_IF_ERROR(context_.enter());
  const Driver& driver = context_.driver();
  TT_RETURN_IF_ERROR(context_.check(driver.cuModuleGetFunction(function, module, name.c_str()),
                                    "finding a kernel's entry"));
  if (shared_bytes <= 48u * 1024) return {};
  return context_.check(
      driver.cuFuncSetAttribute(*function, kMaxDynamicSharedBytes, static_cast<int>(shared_bytes)),
      "reserving shared memory");
}

void Gpu::unload(Module module) {
  if (!synchronize().ok()) return;
  work_.queues().drop_graphs();
  (void)context_.check(context_.driver().cuModuleUnload(module), "unloading a kernel");
}

Status Gpu::launch(Function function, const LaunchShape& shape,
                   std::span<const std::byte> parameters, bool known) {
  const core::Result<Queues::QueueRef> own = work_.queue();
  if (!own.ok()) return own.status();
  Task task;
  task.function = function;
  task.shape = shape;
  task.params = parameters;
  return work_.ask(**own, task, known, "starting a kernel");
}

Status Gpu::launch(Library& library, const LibraryCall& call, bool known, int* code) {
  *code = 0;
  const core::Result<Queues::QueueRef> own = work_.queue();
  if (!own.ok()) return own.status();
  Task task;
  task.library = &library;
  task.call = &call;
  return work_.ask_library(**own, task, known, code);
}

Status Gpu::gather(memory::OwnerId owner, bool on) {
  TT_RETURN_IF_ERROR(context_.enter());
  return work_.queues().gather(owner, on);
}

}  // namespace teletensor::backends::cuda
