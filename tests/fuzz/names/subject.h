// A client and its daemon in one thread (disagreements between them are thrown as runtime_error):
// the client's own Session, frames as bytes, the daemon's front end, and the executor with the CPU
// kernels. There are no sockets, queues or other threads.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "clients/session/session.h"
#include "engine/autograd/front.h"
#include "engine/runtime/execute/executor.h"
#include "proto/wire/known_applies.h"

namespace teletensor::fuzz {

// Executes frames at once. One chosen instruction can be made to fail.
class Daemon final : public autograd::Sink {
 public:
  Daemon();
  ~Daemon() override;
  void frame(std::string_view bytes, wire::Progress& progress);

  std::int64_t instructions = 0;   // the number of instructions so far
  std::int64_t fail_at = -1;       // the instruction that fails
  std::set<std::uint64_t> failed;  // the commands of which an instruction has failed
  std::uint64_t repeated = 0;      // the number of commands that ran together (templates)

  program::Instruction& instruction(std::uint64_t seq) override;
  program::Interner& interner() override { return interner_; }
  std::size_t prepare(program::Template& repeated) override;
  void repeat(std::unique_ptr<program::TemplateCall>&& call, std::uint64_t last_seq) override;
  core::Status constant(std::uint64_t seq, program::Constant constant,
                        program::ValueRef value) override;
  core::Status uploaded(std::uint64_t seq, const program::Uploaded&, program::ValueRef) override;
  void fetch(std::uint64_t seq, bool bulk, program::Operand operand) override;
  std::vector<std::uint64_t> failed_rebinds(std::uint64_t root) override;
  void raised(std::uint64_t seq, std::uint64_t root,
              const std::vector<std::uint64_t>& rebinds) override;

 private:
  void run_pending();

  const memory::OwnerId owner_;
  runtime::LockWait lock_wait_;
  runtime::SessionGroups groups_{nullptr};
  runtime::Executor executor_;
  program::Interner interner_;
  autograd::Front front_;
  program::Instruction pending_;
  bool has_pending_ = false;
  wire::Progress* progress_ = nullptr;
  wire::KnownApplies known_;
  // the commands to be rebound after a failure, by root, until the error is raised
  std::map<std::uint64_t, std::vector<std::uint64_t>> rebinds_;
};

class Client final : public client::Session {
 public:
  using Hook = std::function<void(std::vector<double>)>;

  Client();
  ~Client() override;

  // Each of these may refuse; the status is then in `refused`.
  client::HandleRef call_op(std::string_view op, std::vector<ops::Var> arguments,
                            core::Attributes attributes = {});
  client::Handles call_list(std::string_view op, std::vector<ops::Var> arguments,
                            core::Attributes attributes);
  void call_inplace(std::string_view op, std::vector<ops::Var> arguments);
  client::HandleRef make(const std::vector<std::int64_t>& shape,
                         const std::vector<double>& numbers);
  // in row-major order; returns false if the value is an error
  bool read(client::Handle& h, std::vector<double>& out);
  // Sends the pending commands, which the daemon runs.
  void pump();
  // Raises every late error; returns their number.
  int raise_all();
  // The hook writes `tag` and the gradient to the log; with `scale` it doubles the gradient.
  autograd::HookId add_hook(int tag, bool scale);
  ops::Var var(const client::HandleRef& h) { return ops::Var(this, h); }

  core::Status refused;
  std::vector<std::pair<int, std::vector<double>>> log;
  Daemon daemon;

 protected:
  core::Result<ops::Var> run_hook(autograd::HookId hook, const ops::Var& g) override;
  core::Status block(const std::function<bool()>& ready) override;
  void note_site(std::uint64_t) override {}
  core::Status run_function(autograd::Node&, std::span<ops::Var>, std::span<ops::Var>) override {
    return core::invalid("no functions in Python here");
  }
  core::Result<autograd::Node*> again(autograd::Node&) override {
    return core::invalid("nothing is computed again here");
  }

 private:
  bool keep(core::Status status);
  static core::Attributes filled(std::string_view op, core::Attributes attributes);

  const std::uint64_t sends_;  // the number of the client's only stream
  std::map<autograd::HookId, std::pair<int, bool>> hooks_;
};

}  // namespace teletensor::fuzz
