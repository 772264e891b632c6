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

class FakeSession final : public engine::Session {
 public:
  FakeSession(Books& books, engine::SessionListener* listener)
      : books_(books), listener_(listener) {
    MutexLock lock(books_.mutex);
    ++books_.sessions;
  }
  ~FakeSession() override {
    MutexLock lock(books_.mutex);
    --books_.sessions;
    for (const auto& [id, upload] : uploads_) {
      books_.upload_bytes -= static_cast<std::int64_t>(upload.size);
    }
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

  Result<std::uint64_t> begin_upload(core::Device, std::uint64_t bytes) override {
    MutexLock lock(books_.mutex);
    if (static_cast<std::uint64_t>(books_.upload_bytes) + bytes > kBudget || bytes > kBudget) {
      return Status(Code::kResourceExhausted, "upload: out of memory");
    }
    books_.upload_bytes += static_cast<std::int64_t>(bytes);
    uploads_[++last_] = {bytes, ""};
    return last_;
  }
  Status upload_chunk(std::uint64_t id, std::uint64_t offset, std::string_view bytes) override {
    Upload& upload = uploads_.at(id);
    if (offset != upload.bytes.size()) return core::invalid("upload: out of order");
    upload.bytes.append(bytes);
    return {};
  }
  Status finish_upload(std::uint64_t id) override {
    return uploads_.at(id).bytes.size() == uploads_.at(id).size ? Status()
                                                                : core::invalid("upload: short");
  }
  void abort_upload(std::uint64_t id) override {
    MutexLock lock(books_.mutex);
    books_.upload_bytes -= static_cast<std::int64_t>(uploads_.at(id).size);
    uploads_.erase(id);
  }
  // A download returns the contents of the upload with number `seq`.
  void begin_download(std::uint64_t seq,
                      std::function<void(Result<engine::Fetched>)> ready) override {
    if (uploads_.count(seq) == 0) return ready(Status(Code::kNotFound, "download: no such fetch"));
    engine::Fetched fetched;
    fetched.seq = seq;
    fetched.dtype = core::DType::kU8;
    fetched.shape = {static_cast<std::int64_t>(uploads_[seq].size)};
    ready(std::move(fetched));
  }
  Status download_chunk(std::uint64_t seq, std::uint64_t offset, std::span<char> into) override {
    uploads_.at(seq).bytes.copy(into.data(), into.size(), offset);
    return {};
  }
  void end_download(std::uint64_t) override {}

  void take_over(std::function<void(Result<engine::TakenOver>)> done) override {
    MutexLock lock(books_.mutex);
    books_.successor = std::move(done);
  }

  void interrupt(std::uint64_t) override {
    listener_->on_error({1, Status(Code::kCancelled, "interrupted")});
  }
  std::vector<engine::MemoryUse> memory() const override { return {{{}, 1, 2, 3, 4, 5}}; }
  std::uint64_t completed_upto() const override { return 0; }
  std::size_t queued() const override { return 0; }
  double wait_seconds() const override { return 0; }
  std::size_t handles() const override { return 42; }
  std::uint64_t lane_ns() const override { return 5'000'000; }
  std::size_t ahead() const override { return 0; }
  std::vector<engine::Holding> largest(std::size_t most) const override {
    return most == 0 ? std::vector<engine::Holding>{}
                     : std::vector<engine::Holding>{{{}, 7, 3, false, {}, {}}};
  }

 private:
  struct Upload {
    std::uint64_t size = 0;
    std::string bytes;
  };

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
  std::map<std::uint64_t, Upload> uploads_;
  std::uint64_t last_ = 0;
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
