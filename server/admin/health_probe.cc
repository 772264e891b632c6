#include "server/admin/health_probe.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "engine/core/threads.h"
#include "engine/core/with_memory.h"
#include "server/base/log.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Status;

namespace {

// The product of [1, 2, 3] and its transpose.
constexpr float kAnswer = 14;

// Receives the result of the computation; shared with the waiting thread.
class AnswerOnce final : public engine::SessionListener {
 public:
  void on_completed(std::uint64_t) override {}
  void on_error(engine::LateError) override {}
  void on_raised(engine::Raised) override {}
  void on_fetched(engine::Fetched fetched) override {
    MutexLock lock(mutex_);
    fetched_ = std::move(fetched);
    came_.notify_all();
  }
  engine::Fetched wait() {
    MutexLock lock(mutex_);
    while (!fetched_) came_.wait(mutex_);
    return *fetched_;
  }

 private:
  core::Mutex mutex_;
  core::CondVar came_;
  std::optional<engine::Fetched> fetched_ TT_GUARDED_BY(mutex_);
};

program::Constant vector(core::Dims shape) {
  const float values[] = {1, 2, 3};
  program::Constant constant;
  constant.shape = std::move(shape);
  constant.bytes.assign(reinterpret_cast<const char*>(values), sizeof values);
  return constant;
}

}  // namespace

HealthProbe::HealthProbe(engine::Engine& engine, std::function<void(bool)> tick,
                         std::chrono::nanoseconds patience)
    : engine_(engine),
      tick_(std::move(tick)),
      patience_(patience),
      probe_thread_(core::start_thread([this] { run_once(); })),
      watcher_(core::start_thread([this] { watch(); })) {}

void HealthProbe::stop() {
  stopping_ = true;
  {
    MutexLock lock(mutex_);
    stop_ = true;
    if (session_ != nullptr) session_->interrupt();
  }
  stopped_.notify_all();
}

HealthProbe::~HealthProbe() {
  stop();
  watcher_.join();
  probe_thread_.join();
}

void HealthProbe::wait_for_first(std::chrono::milliseconds patience) const {
  const auto end = std::chrono::steady_clock::now() + patience;
  MutexLock lock(mutex_);
  while (!ended_once_) {
    const auto left = end - std::chrono::steady_clock::now();
    if (left <= left.zero() || !sung_.wait_for(mutex_, left)) return;
  }
}

bool HealthProbe::ready() const {
  return !stopping_ && engine_.health().ok() && right_at_ns_ >= 0 &&
         (is_recent() || engine_.busy());
}

bool HealthProbe::is_recent() const {
  return age_seconds() < std::chrono::duration<double>(patience_).count();
}

bool HealthProbe::is_late() const { return !is_recent() && ready(); }

double HealthProbe::age_seconds() const {
  const std::chrono::nanoseconds since(std::max<std::int64_t>(right_at_ns_, 0));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_ - since).count();
}

std::string HealthProbe::trouble() const {
  if (stopping_) return "the daemon shuts down";
  if (ready()) return "";
  if (const Status health = engine_.health(); !health.ok()) return health.message();
  MutexLock lock(mutex_);
  if (!wrong_.ok()) return wrong_.message();
  return "no computation has ended for " + std::to_string(static_cast<int>(age_seconds())) + " s";
}

Status HealthProbe::once() {
  const ops::OpDef* matmul = engine_.catalog().find("matmul");
  if (matmul == nullptr) return core::internal("the engine has no matmul");
  AnswerOnce answer;  // The receiver of the result must outlive the session.
  engine::SessionOptions options;
  options.name = "canary";
  auto session = engine_.open(options, &answer);
  if (!session.ok()) return session.status();
  program::Apply product;
  product.op = engine_.catalog().id(*matmul);
  product.arguments.push_back(program::Argument::of(program::HandleId{1}));
  product.arguments.push_back(program::Argument::of(program::HandleId{2}));
  std::vector<program::Command> commands;
  commands.emplace_back(vector({1, 3}));
  commands.emplace_back(vector({3, 1}));
  commands.emplace_back(std::move(product));
  commands.emplace_back(program::Fetch{3, false});
  Status submitted;
  (*session)->submit(1, 1, std::move(commands), [&](Status status) { submitted = status; });
  TT_RETURN_IF_ERROR(submitted);
  const auto watch_session = [&](engine::Session* current) {
    MutexLock lock(mutex_);
    session_ = current;
    if (stop_ && session_ != nullptr) session_->interrupt();
  };
  watch_session(session->get());
  const engine::Fetched fetched = answer.wait();
  watch_session(nullptr);
  TT_RETURN_IF_ERROR(fetched.status);
  float value = 0;
  if (fetched.bytes.size() == sizeof value) std::memcpy(&value, fetched.bytes.data(), sizeof value);
  if (value == kAnswer) return {};
  return Status(Code::kDataLoss, "a product that is 14 was computed as " + std::to_string(value));
}

void HealthProbe::run_once() {
  while (true) {
    const auto began = std::chrono::steady_clock::now();
    Status status = core::with_memory("the canary", [&] { return once(); });
    // A daemon that reports full memory correctly counts as healthy.
    if (status.code() == Code::kResourceExhausted) status = {};
    const auto ended = std::chrono::steady_clock::now();
    if (stopping_) {
      // The computation may have been interrupted, so its result does not count.
    } else if (status.ok()) {
      last_ns_ = static_cast<std::uint64_t>((ended - began).count());
      right_at_ns_ = (ended - started_).count();
    } else {
      // After a wrong result the daemon is not ready until a later result is correct.
      log_error("canary_wrong", {{"reason", status.message()}});
      right_at_ns_ = -1;
    }
    MutexLock lock(mutex_);
    wrong_ = status;
    if (!std::exchange(ended_once_, true)) sung_.notify_all();
    if (!stop_) stopped_.wait_for(mutex_, kPeriod);
    if (stop_) return;
  }
}

void HealthProbe::watch() {
  while (true) {
    {
      MutexLock lock(mutex_);
      if (stop_) return;
    }
    tick_(ready());
    MutexLock lock(mutex_);
    if (stop_) return;
    stopped_.wait_for(mutex_, kPeriod);
  }
}

}  // namespace teletensor::server
