#include "engine/backends/cuda/codegen/kernel_cache.h"

#include <utility>

#include "engine/backends/cuda/codegen/code_folder.h"
#include "engine/core/threads.h"

namespace teletensor::backends::cuda {

using core::Code;
using core::MutexLock;
using core::Result;
using core::Status;

KernelCache::KernelCache(Gpu& gpu, const Compiler& compiler, std::string folder, Log log)
    : gpu_(gpu),
      compiler_(compiler),
      flags_(compile_flags(compiler, gpu.facts().capability)),
      folder_(std::move(folder)),
      log_(std::move(log)),
      worker_(core::start_thread([this] { work(); })) {}

KernelCache::~KernelCache() {
  {
    MutexLock lock(mu_);
    ending_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

KernelCache::Counts KernelCache::counts() const {
  MutexLock lock(mu_);
  Counts found = counts_;
  for (const auto& [key, entry] : entries_) found.loaded += entry.kernel != nullptr;
  return found;
}

// If there are too many entries, removes the least recently used one that is not being compiled.
KernelCache::Entry& KernelCache::entry(const std::string& key) {
  const auto [found, fresh] = entries_.try_emplace(key);
  Entry& entry = found->second;
  if (!fresh) {
    recent_.splice(recent_.begin(), recent_, entry.place);
    return entry;
  }
  recent_.push_front(key);
  entry.place = recent_.begin();
  for (auto at = recent_.end(); entries_.size() > kMax && --at != recent_.begin();) {
    const auto old = entries_.find(*at);
    if (old->second.making) continue;
    entries_.erase(old);
    recent_.erase(at);
    break;
  }
  return entry;
}

Result<KernelRef> KernelCache::find(const std::string& key, unsigned shared_bytes) {
  {
    MutexLock lock(mu_);
    while (true) {
      Entry& found = entry(key);
      if (found.kernel) return found.kernel;
      if (!found.refused.ok()) return found.refused;
      if (!found.making) {
        found.making = true;
        break;
      }
      changed_.wait(mu_);
    }
  }
  Result<KernelRef> made = make(key, shared_bytes);
  settle(key, made);
  return made;
}

Result<KernelRef> KernelCache::find_loop(const std::string& key, unsigned shared_bytes) {
  MutexLock lock(mu_);
  Entry& found = entry(key);
  if (found.kernel) return found.kernel;
  if (!found.refused.ok()) return found.refused;
  if (!found.making && ++found.seen >= kSightings && queue_.size() < kMaxQueued) {
    found.making = true;
    queue_.emplace_back(key, shared_bytes);
    changed_.notify_all();
  }
  return Status(Code::kUnavailable, "a loop that is not compiled yet");
}

void KernelCache::settle(const std::string& key, Result<KernelRef> made) {
  bool tell = false;
  {
    MutexLock lock(mu_);
    Entry& found = entries_.at(key);
    found.making = false;
    if (made.ok()) {
      found.kernel = *made;
    } else if (made.status().code() == Code::kUnimplemented) {
      found.refused = made.status();
      ++counts_.refused;
      tell = !std::exchange(told_, true);
    }
  }
  changed_.notify_all();
  if (tell && log_) {
    log_(true, gpu_.name() + ": " + made.status().message() +
                   " (it runs on the host, as others that do not compile will)");
  }
}

Result<std::string> KernelCache::code_of(const KernelSource& source) {
  const std::string text = std::string(prelude()) + source.text;
  const CodeFolder folder(folder_);
  const std::string name = CodeFolder::name_of(flags_, text);
  if (std::optional<std::string> code = folder.read(name)) {
    MutexLock lock(mu_);
    ++counts_.from_disk;
    return std::move(*code);
  }
  Result<std::string> code = compile(compiler_, text, gpu_.facts().capability);
  if (!code.ok()) {
    return Status(Code::kUnimplemented, source.name + ": " + code.status().message());
  }
  folder.write(name, *code);
  MutexLock lock(mu_);
  ++counts_.compiled;
  return code;
}

Result<KernelRef> KernelCache::make(const std::string& key, unsigned shared_bytes) {
  const KernelSource source = print_kernel(key);
  Result<std::string> code = code_of(source);
  if (!code.ok()) return code.status();
  const auto refusal = [&](const Status& status) {
    TT_RETURN_IF_ERROR(gpu_.health());
    return status.code() == Code::kResourceExhausted
               ? status
               : Status(Code::kUnimplemented, source.name + ": " + status.message());
  };
  Module module = nullptr;
  if (const Status status = gpu_.load(*code, &module); !status.ok()) return refusal(status);
  Function function = nullptr;
  if (const Status status = gpu_.function(module, source.name, shared_bytes, &function);
      !status.ok()) {
    gpu_.unload(module);
    return refusal(status);
  }
  return std::make_shared<const LoadedKernel>(gpu_, module, function);
}

void KernelCache::work() {
  CodeFolder(folder_).trim(kMaxOnDisk);
  while (true) {
    std::pair<std::string, unsigned> next;
    {
      MutexLock lock(mu_);
      while (queue_.empty() && !ending_) changed_.wait(mu_);
      if (ending_) return;
      next = std::move(queue_.front());
      queue_.pop_front();
    }
    settle(next.first, make(next.first, next.second));
  }
}

}  // namespace teletensor::backends::cuda
