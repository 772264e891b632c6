// Client for the session's tests: it assigns handles as the Python client does, and waits for
// results.
#pragma once

#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/backends/sim/sim_backend.h"
#include "engine/core/mutex.h"
#include "engine/engine.h"
#include "engine/session/host.h"

namespace teletensor::session::testing {

using program::Argument;
using program::HandleId;

inline constexpr core::Device kHostDevice{};
inline constexpr core::Device kSimDevice{core::DeviceKind::kSim, 0};

// The real catalog and kernels, on the host and on one simulated device.
struct Daemon {
  explicit Daemon(std::uint64_t memory = 256u << 20, int lanes = 2, bool null_mode = false);
  backends::sim::SimBackend* sim;
  std::unique_ptr<Host> host;
  std::uint64_t used(core::Device device) const;
};

struct Listener : engine::SessionListener {
  void on_completed(std::uint64_t seq) override;
  void on_fetched(engine::Fetched value) override;
  void on_error(engine::LateError error) override;
  void on_raised(engine::Raised effects) override;
  std::uint64_t unread_bytes() const override { return unread; }
  // Wait for the event and return it.
  engine::Fetched fetched(std::uint64_t seq);
  engine::Raised raised(std::uint64_t seq);
  void completed(std::uint64_t seq);
  std::vector<engine::LateError> take_errors();

  std::atomic<std::uint64_t> unread = 0;  // bytes that the client claims not to have read
  core::Mutex mu;
  core::CondVar changed;
  std::uint64_t completed_upto TT_GUARDED_BY(mu) = 0;
  std::map<std::uint64_t, engine::Fetched> values TT_GUARDED_BY(mu);
  std::map<std::uint64_t, engine::Raised> raises TT_GUARDED_BY(mu);
  std::vector<engine::LateError> errors TT_GUARDED_BY(mu);
};

class Client {
 public:
  explicit Client(Daemon& daemon, core::Device device = kSimDevice, std::uint64_t quota = 0,
                  const program::Amounts& limits = program::kUsualLimits, bool templates = true);

  // Commands are collected until send() or a call that waits. All tensors are f32; omitted
  // attributes have their defaults.
  HandleId constant(const core::Dims& shape, std::vector<float> elements);
  HandleId apply(std::string_view op, std::vector<Argument> arguments,
                 core::Attributes attributes = {}, bool record = false);
  void inplace(std::string_view op, std::vector<Argument> arguments,
               core::Attributes attributes = {});
  void requires_grad(HandleId h);
  void add(program::Command command) { commands_.push_back(std::move(command)); }
  HandleId name() { return next_id_++; }
  void release(std::vector<HandleId> handles);
  std::uint64_t last_seq() const { return next_seq_ + commands_.size() - 1; }

  core::Status send();  // waits until the frame is consumed
  std::future<core::Status> send_later();
  std::vector<float> read(HandleId h);  // empty if the value failed; `last` then has the error
  engine::Fetched last;
  engine::Raised raise(std::uint64_t root);
  void synchronize();
  std::uint64_t used() const;

  Daemon& daemon;
  const core::Device device;
  Listener listener;
  std::unique_ptr<engine::Session> session;

 private:
  std::vector<program::Command> commands_;
  std::uint64_t next_seq_ = 1, next_id_ = 1, frame_id_ = 1;
};

// An instruction whose omitted attributes have their defaults.
program::Apply apply_of(std::string_view op, std::vector<Argument> arguments,
                        core::Attributes attributes, bool record);

inline Argument h(HandleId id) { return Argument::of(id); }
inline Argument number(double x) { return Argument::of(core::Number::of_float(x)); }

}  // namespace teletensor::session::testing
