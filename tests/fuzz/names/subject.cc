#include "subject.h"

#include <cstring>
#include <stdexcept>
#include <utility>

#include "engine/backends/cpu/cpu.h"
#include "engine/backends/cpu/cpu_backend.h"
#include "engine/runtime/queue/queue.h"

namespace teletensor::fuzz {

using client::Handle;
using client::HandleRef;
using core::Status;
using ops::Var;

namespace {

[[noreturn]] void bug(const std::string& what) { throw std::runtime_error(what); }

runtime::Devices& devices() {
  static runtime::Devices all = [] {
    std::vector<std::unique_ptr<runtime::Device>> list;
    list.push_back(std::make_unique<runtime::Device>(
        std::make_unique<backends::cpu::CpuBackend>(backends::cpu::make_kernels(ops::catalog())),
        256u << 20, ops::catalog()));
    return runtime::Devices(std::move(list));
  }();
  return all;
}

runtime::Lanes& lanes() {
  static runtime::Lanes one(1);
  return one;
}

memory::OwnerId next_owner() {
  static memory::OwnerId owner = 0;
  return ++owner;
}

client::SessionLimits limits() {
  client::SessionLimits limits;
  limits.credit_upto = 1ull << 40;
  limits.credit_bytes = 1ull << 50;
  return limits;
}

}  // namespace

// ---------------------------------------------------------------- the daemon

Daemon::Daemon()
    : owner_(next_owner()),
      lock_wait_(lanes()),
      executor_(ops::catalog(), devices(), lanes(), owner_, 0, lock_wait_, groups_),
      front_(ops::catalog(), this) {}
Daemon::~Daemon() { pending_ = {}; }

void Daemon::frame(std::string_view bytes, wire::Progress& progress) {
  const memory::SessionTaskScope strand(owner_);
  progress_ = &progress;
  wire::Frame frame;
  if (Status read = wire::FrameReader().read(bytes, frame, &known_); !read.ok()) {
    bug(read.message());
  }
  if (frame.first_id != front_.next_id()) bug("client and daemon count handles differently");
  std::uint64_t seq = frame.first_seq;
  for (std::size_t at = 0; at < frame.commands.size(); ++at) {
    if (const auto count = front_.repeat(seq, std::span(frame.commands).subspan(at)); count > 0) {
      at += count - 1;
      seq += count;
      repeated += count;
      progress.completed_upto = seq - 1;
      continue;
    }
    program::Command& command = frame.commands[at];
    if (std::holds_alternative<program::Raise>(command)) run_pending();
    Status status = front_.execute(seq, std::move(command));
    while (status.ok() && front_.busy()) status = front_.resume(1 << 20);
    if (!status.ok()) bug("the front refuses what the mirror accepted: " + status.message());
    run_pending();
    progress.completed_upto = seq++;
  }
  if (rebinds_.empty()) front_.completed(progress.completed_upto);
  progress.received_upto = progress.completed_upto;
}

void Daemon::run_pending() {
  if (!std::exchange(has_pending_, false)) return;
  runtime::FailureRef failure;
  bool root = false;
  for (const program::Operand& o : pending_.operands) {
    if (o.value && o.value->failure) failure = o.value->failure;
  }
  if (!failure && instructions == fail_at) {
    failure = std::make_shared<const program::Failure>(
        program::Failure{pending_.seq, Status(core::Code::kResourceExhausted, "injected")});
    root = true;
    executor_.fail(pending_, failure);
  } else {
    failure = executor_.run(pending_, &root);
  }
  ++instructions;
  if (failure) {
    failed.insert(pending_.seq);
    std::vector<std::uint64_t>& seqs = rebinds_[failure->seq];
    bool rebinds = false;
    for (const program::ResultSlot& r : pending_.results) rebinds |= r.overwrites >= 0;
    if (rebinds && (seqs.empty() || seqs.back() != pending_.seq)) seqs.push_back(pending_.seq);
    if (root) progress_->errors.push_back({failure->seq, failure->status});
  }
  pending_ = {};
}

program::Instruction& Daemon::instruction(std::uint64_t seq) {
  run_pending();
  has_pending_ = true;
  pending_.seq = seq;
  return pending_;
}

std::size_t Daemon::prepare(program::Template& repeated) {
  return runtime::TemplateRunner::prepare(repeated, ops::catalog(), devices());
}

void Daemon::repeat(std::unique_ptr<program::TemplateCall>&& call, std::uint64_t) {
  run_pending();
  const auto size = static_cast<std::int64_t>(call->size());
  const bool fails = fail_at >= instructions && fail_at < instructions + size;
  if (!fails && executor_.templates().run(*call)) {
    instructions += size;
    return;
  }
  runtime::Chunk chunk;
  runtime::TemplateRunner::expand(*call, chunk);
  for (; !chunk.empty(); chunk.pop()) {
    pending_ = std::move(chunk.front().instruction);
    has_pending_ = true;
    run_pending();
  }
}

Status Daemon::constant(std::uint64_t seq, program::Constant constant, program::ValueRef value) {
  run_pending();
  if (executor_.bind(*value, constant.bytes, nullptr, seq)) bug("a constant failed");
  return {};
}

Status Daemon::uploaded(std::uint64_t, const program::Uploaded&, program::ValueRef) {
  return core::invalid("no uploads here");
}

void Daemon::fetch(std::uint64_t seq, bool, program::Operand operand) {
  run_pending();
  wire::FetchedValue value;
  value.seq = seq;
  value.dtype = operand.dtype;
  value.shape = operand.geometry->shape;
  if (operand.value->failure) {
    value.status = operand.value->failure->status;
    value.root = operand.value->failure->seq;
  } else {
    runtime::RowMajor contents;
    value.status = executor_.row_major(operand, seq, &contents);
    if (value.status.ok() && contents.bytes != 0) {
      value.data.assign(static_cast<const char*>(contents.storage->data()) + contents.offset,
                        contents.bytes);
    }
  }
  progress_->fetched.push_back(std::move(value));
}

std::vector<std::uint64_t> Daemon::failed_rebinds(std::uint64_t root) {
  const auto found = rebinds_.find(root);
  if (found == rebinds_.end()) return {};
  std::vector<std::uint64_t> seqs = std::move(found->second);
  rebinds_.erase(found);
  return seqs;
}

void Daemon::raised(std::uint64_t seq, std::uint64_t root,
                    const std::vector<std::uint64_t>& rebinds) {
  progress_->raised.push_back({seq, root, rebinds});
}

// ---------------------------------------------------------------- the client

Client::Client() : client::Session(limits()), sends_(stream().take_up(1, 0)) {}
Client::~Client() = default;

bool Client::keep(Status status) {
  if (status.ok()) return true;
  refused = std::move(status);
  return false;
}

core::Attributes Client::filled(std::string_view op, core::Attributes attributes) {
  const ops::OpDef& def = *ops::catalog().find(op);
  const std::size_t first = static_cast<std::size_t>(def.operand_parameters) + attributes.size();
  for (std::size_t p = first; p < def.parameters.size(); ++p) {
    attributes.push_back(def.parameters[p].fallback);
  }
  return attributes;
}

client::Handles Client::call_list(std::string_view op, std::vector<Var> arguments,
                                  core::Attributes attributes) {
  client::Handles results;
  const core::Attributes all = filled(op, std::move(attributes));
  const ops::OpId id = ops::catalog().id(*ops::catalog().find(op));
  if (!keep(apply(id, arguments, {}, all, results))) results.clear();
  return results;
}

HandleRef Client::call_op(std::string_view op, std::vector<Var> arguments,
                          core::Attributes attributes) {
  client::Handles results = call_list(op, std::move(arguments), std::move(attributes));
  return results.empty() ? HandleRef() : results[0];
}

void Client::call_inplace(std::string_view op, std::vector<Var> arguments) {
  const ops::OpId id = ops::catalog().id(*ops::catalog().find(op));
  (void)keep(apply_inplace(id, arguments, {}, filled(op, {})));
}

HandleRef Client::make(const std::vector<std::int64_t>& shape, const std::vector<double>& numbers) {
  auto made = constant(
      core::DType::kF64, {}, core::Dims(shape),
      std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(double)));
  if (!made.ok()) bug(made.status().message());
  return *made;
}

bool Client::read(Handle& h, std::vector<double>& out) {
  auto seq = fetch(h, false);
  if (!seq.ok()) bug(seq.status().message());
  auto value = wait_fetched(*seq);
  if (!value.ok()) bug(value.status().message());
  if (!value->status.ok()) return false;
  out.resize(value->data.size() / sizeof(double));
  if (!out.empty()) std::memcpy(out.data(), value->data.data(), value->data.size());
  return true;
}

int Client::raise_all() {
  for (int n = 0;; ++n) {
    if (Status status = synchronize(); !status.ok()) bug(status.message());
    if (errors().raise().status.ok()) return n;
  }
}

autograd::HookId Client::add_hook(int tag, bool scale) {
  const autograd::HookId id = hooks_.size() + 1;
  hooks_[id] = {tag, scale};
  return id;
}

core::Result<Var> Client::run_hook(autograd::HookId hook, const Var& g) {
  static const ops::OpRef contiguous("contiguous"), mul("mul");
  const auto [tag, scale] = hooks_.at(hook);
  Var seen = g;
  if (!g.layout().geometry.contiguous()) {
    seen = call(contiguous, {&g, 1}, {}, {})[0];
    TT_RETURN_IF_ERROR(status_);
  }
  std::vector<double> values;
  if (!read(autograd::handle_of(seen), values)) bug("a hook saw an error");
  log.emplace_back(tag, std::move(values));
  if (!scale) return seen;
  const Var both[] = {seen, Var(2.0)};
  Var doubled = call(mul, both, {}, {})[0];
  TT_RETURN_IF_ERROR(status_);
  return doubled;
}

Status Client::block(const std::function<bool()>& ready) {
  for (int tries = 0; tries < 2; ++tries) {
    {
      core::MutexLock lock(stream().mutex());
      if (ready()) return {};
    }
    pump();
  }
  core::MutexLock lock(stream().mutex());
  if (ready()) return {};
  bug("the client waits for what nobody sends");
}

void Client::pump() {
  while (true) {
    std::string frame;
    if (!stream().next_frame(frame, 0, sends_) || frame.empty()) return;
    wire::Progress progress;
    progress.credit_upto = 1ull << 40;
    progress.credit_bytes = 1ull << 50;
    daemon.frame(frame, progress);
    if (Status status = stream().on_progress(wire::encode_progress(progress)); !status.ok()) {
      bug(status.message());
    }
  }
}

}  // namespace teletensor::fuzz
