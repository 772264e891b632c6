// The fake engine of server/testing.h. This file has no tests of its own.
#include <variant>

#include "server/testing.h"

namespace teletensor::server::testing {

using core::Code;
using core::MutexLock;
using core::Result;
using core::Status;

namespace {

constexpr std::uint64_t kBudget = 1ull << 30;

std::string floats(std::uint64_t count, float value) {
  std::string bytes;
  for (std::uint64_t i = 0; i < count; ++i) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return bytes;
}

struct FakeUpload {
  std::uint64_t size = 0;
  std::string bytes;
};

class FakeUploads final : public engine::Uploads {
 public:
  explicit FakeUploads(Books& books) : books_(books) {}
  ~FakeUploads() override {
    MutexLock lock(books_.mutex);
    for (const auto& [id, upload] : uploads_) {
      books_.upload_bytes -= static_cast<std::int64_t>(upload.size);
    }
  }
  Result<std::uint64_t> begin(core::Device, std::uint64_t bytes) override {
    MutexLock lock(books_.mutex);
    if (static_cast<std::uint64_t>(books_.upload_bytes) + bytes > kBudget || bytes > kBudget) {
      return Status(Code::kResourceExhausted, "upload: out of memory");
    }
    books_.upload_bytes += static_cast<std::int64_t>(bytes);
    uploads_[++last_] = {bytes, ""};
    return last_;
  }
  Status write(std::uint64_t id, std::uint64_t offset, std::string_view bytes) override {
    FakeUpload& upload = uploads_.at(id);
    if (offset != upload.bytes.size()) return core::invalid("upload: out of order");
    upload.bytes.append(bytes);
    return {};
  }
  Status finish(std::uint64_t id) override {
    return uploads_.at(id).bytes.size() == uploads_.at(id).size ? Status()
                                                                : core::invalid("upload: short");
  }
  void abort(std::uint64_t id) override {
    MutexLock lock(books_.mutex);
    books_.upload_bytes -= static_cast<std::int64_t>(uploads_.at(id).size);
    uploads_.erase(id);
  }
  const FakeUpload* find(std::uint64_t id) const {
    const auto found = uploads_.find(id);
    return found == uploads_.end() ? nullptr : &found->second;
  }

 private:
  Books& books_;
  std::map<std::uint64_t, FakeUpload> uploads_;
  std::uint64_t last_ = 0;
};

// A download returns the contents of the upload with number `seq`. Downloads from kWaits on wait
// until they are stopped.
class FakeDownloads final : public engine::Downloads {
 public:
  explicit FakeDownloads(const FakeUploads& uploads) : uploads_(uploads) {}
  std::uint64_t begin(std::uint64_t seq, Ready ready) override {
    if (seq >= kWaits) {
      waiting_ = std::move(ready);
      return 1;
    }
    const FakeUpload* const upload = uploads_.find(seq);
    if (upload == nullptr) {
      ready(Status(Code::kNotFound, "download: no such fetch"));
      return 0;
    }
    engine::Fetched fetched;
    fetched.seq = seq;
    fetched.dtype = core::DType::kU8;
    fetched.shape = {static_cast<std::int64_t>(upload->size)};
    ready(std::move(fetched));
    return 0;
  }
  void stop_waiting(std::uint64_t, std::uint64_t, Status why) override {
    if (const Ready ready = std::exchange(waiting_, nullptr)) ready(std::move(why));
  }
  Status read(std::uint64_t seq, std::uint64_t offset, std::span<char> into) override {
    uploads_.find(seq)->bytes.copy(into.data(), into.size(), offset);
    return {};
  }
  void end(std::uint64_t) override {}

 private:
  static constexpr std::uint64_t kWaits = 1000;
  const FakeUploads& uploads_;
  Ready waiting_;
};

class FakeSession final : public engine::Session {
 public:
  FakeSession(Books& books, engine::SessionListener* listener)
      : books_(books), listener_(listener), uploads_(books), downloads_(uploads_) {
    MutexLock lock(books_.mutex);
    ++books_.sessions;
  }
  ~FakeSession() override {
    MutexLock lock(books_.mutex);
    --books_.sessions;
  }

  void submit(std::uint64_t first_seq, std::uint64_t, std::vector<program::Command> commands,
              std::function<void(Status)> done, bool) override {
    {
      MutexLock lock(books_.mutex);
      if (books_.hold_done) return;
      books_.commands += commands.size();
    }
    std::uint64_t seq = first_seq;
    for (const program::Command& command : commands) {
      if (const auto* fetch = std::get_if<program::Fetch>(&command)) answer(seq, *fetch);
      if (const auto* raise = std::get_if<program::Raise>(&command)) {
        listener_->on_raised({seq, raise->root, {raise->root}});
      }
      if (std::holds_alternative<program::SetData>(command)) {
        return done(core::invalid("set_data: not here"));
      }
      ++seq;
    }
    listener_->on_completed(seq - 1);
    done({});
  }

  engine::Uploads& uploads() override { return uploads_; }
  engine::Downloads& downloads() override { return downloads_; }

  void take_over(std::function<void(Result<engine::TakenOver>)> done) override {
    MutexLock lock(books_.mutex);
    books_.successor = std::move(done);
  }

  void interrupt(std::uint64_t) override {
    listener_->on_error({1, Status(Code::kCancelled, "interrupted")});
  }
  std::vector<engine::MemoryUse> memory() const override { return {{{}, 1, 2, 3, 4, 5}}; }
  std::uint64_t completed_upto() const override { return 0; }
  engine::Load load() const override { return {0, 0, 5'000'000, 0}; }
  std::size_t handles() const override { return 42; }
  std::vector<engine::Holding> largest(std::size_t most) const override {
    return most == 0 ? std::vector<engine::Holding>{}
                     : std::vector<engine::Holding>{{{}, 7, 3, false, {}, {}}};
  }

 private:
  void answer(std::uint64_t seq, const program::Fetch& fetch) {
    engine::Fetched fetched;
    fetched.seq = seq;
    if (fetch.handle == 13) {
      fetched.status = Status(Code::kResourceExhausted, "matmul: out of memory");
      fetched.root = 1;
    } else {
      fetched.shape = {static_cast<std::int64_t>(fetch.handle)};
      fetched.bytes = floats(fetch.handle, static_cast<float>(fetch.handle));
    }
    listener_->on_fetched(std::move(fetched));
  }

  Books& books_;
  engine::SessionListener* const listener_;
  FakeUploads uploads_;
  FakeDownloads downloads_;
};

ops::OpDef op(std::string_view signature, int revision) {
  ops::OpDef def;
  def.signature = signature;
  def.infer = [](ops::InferContext&) { return Status(); };
  def.revision = revision;
  return def;
}

}  // namespace

FakeEngine::FakeEngine(Books& books)
    : books_(books),
      catalog_({op("add(Operand a, Operand b) -> Tensor", 1), op("exp(Tensor x) -> Tensor", 2)}) {}

std::vector<engine::MemoryUse> FakeEngine::memory() const {
  engine::MemoryUse use;
  use.device_total = kBudget;
  return {use};
}

Result<std::unique_ptr<engine::Session>> FakeEngine::open(const engine::SessionOptions&,
                                                          engine::SessionListener* listener) {
  return std::unique_ptr<engine::Session>(std::make_unique<FakeSession>(books_, listener));
}

}  // namespace teletensor::server::testing
