#include "engine/session/client_test.h"

#include <gtest/gtest.h>

#include <cstring>

#include "engine/backends/cpu/cpu.h"

namespace teletensor::session::testing {

Daemon::Daemon(std::uint64_t memory, int lanes, bool null_mode) {
  const backends::KernelTable kernels = backends::cpu::make_kernels(ops::catalog());
  std::vector<std::unique_ptr<runtime::Device>> devices;
  devices.push_back(std::make_unique<runtime::Device>(
      std::make_unique<backends::cpu::CpuBackend>(kernels), memory, ops::catalog()));
  auto backend = std::make_unique<backends::sim::SimBackend>(kernels, std::uint8_t{0}, null_mode);
  sim = backend.get();
  devices.push_back(std::make_unique<runtime::Device>(std::move(backend), memory, ops::catalog()));
  host = std::make_unique<Host>(ops::catalog(), std::move(devices), lanes);
}

std::uint64_t Daemon::used(core::Device device) const {
  for (const engine::MemoryUse& use : host->memory()) {
    if (use.device == device) return use.used;
  }
  return 0;
}

void Listener::on_completed(std::uint64_t seq) {
  core::MutexLock lock(mu);
  EXPECT_GT(seq, completed_upto);
  completed_upto = seq;
  changed.notify_all();
}
void Listener::on_fetched(engine::Fetched value) {
  core::MutexLock lock(mu);
  values[value.seq] = std::move(value);
  changed.notify_all();
}
void Listener::on_error(engine::LateError error) {
  core::MutexLock lock(mu);
  errors.push_back(std::move(error));
}
void Listener::on_raised(engine::Raised effects) {
  core::MutexLock lock(mu);
  raises[effects.seq] = std::move(effects);
  changed.notify_all();
}
engine::Fetched Listener::fetched(std::uint64_t seq) {
  core::MutexLock lock(mu);
  while (!values.contains(seq)) changed.wait(mu);
  return values.extract(seq).mapped();
}
engine::Raised Listener::raised(std::uint64_t seq) {
  core::MutexLock lock(mu);
  while (!raises.contains(seq)) changed.wait(mu);
  return raises.extract(seq).mapped();
}
void Listener::completed(std::uint64_t seq) {
  core::MutexLock lock(mu);
  while (completed_upto < seq) changed.wait(mu);
}
std::vector<engine::LateError> Listener::take_errors() {
  core::MutexLock lock(mu);
  return std::exchange(errors, {});
}

Client::Client(Daemon& daemon, core::Device device, std::uint64_t quota,
               const program::Amounts& limits, bool templates)
    : daemon(daemon), device(device) {
  engine::SessionOptions options;
  options.memory_quota = quota;
  options.name = "test";
  options.limits = limits;
  options.templates = templates;
  session = std::move(*daemon.host->open(options, &listener));
}

HandleId Client::constant(const core::Dims& shape, std::vector<float> elements) {
  add(program::Constant{core::DType::kF32, device, shape,
                        std::string(reinterpret_cast<const char*>(elements.data()),
                                    elements.size() * sizeof(float))});
  return name();
}

program::Apply apply_of(std::string_view op, std::vector<Argument> arguments,
                        core::Attributes attributes, bool record) {
  const ops::OpDef& definition = *ops::catalog().find(op);
  program::Apply apply;
  apply.op = ops::catalog().id(definition);
  for (std::size_t p = static_cast<std::size_t>(definition.operand_parameters) + attributes.size();
       p < definition.parameters.size(); ++p) {
    attributes.push_back(definition.parameters[p].fallback);
  }
  apply.record = record;
  for (const Argument& argument : arguments) apply.arguments.push_back(argument);
  apply.attributes = std::move(attributes);
  return apply;
}

HandleId Client::apply(std::string_view op, std::vector<Argument> arguments,
                       core::Attributes attributes, bool record) {
  add(apply_of(op, std::move(arguments), std::move(attributes), record));
  return name();
}

void Client::inplace(std::string_view op, std::vector<Argument> arguments,
                     core::Attributes attributes) {
  apply(op, std::move(arguments), std::move(attributes));
  --next_id_;
  std::get<program::Apply>(commands_.back()).inplace = true;
}

void Client::requires_grad(HandleId handle) {
  add(program::SetFlag{program::SetFlag::What::kRequiresGrad, handle, true});
}

void Client::release(std::vector<HandleId> handles) { add(program::Release{std::move(handles)}); }

std::future<core::Status> Client::send_later() {
  auto promise = std::make_shared<std::promise<core::Status>>();
  auto consumed = promise->get_future();
  const std::uint64_t first = next_seq_;
  next_seq_ += commands_.size();
  session->submit(first, std::exchange(frame_id_, next_id_), std::exchange(commands_, {}),
                  [promise](core::Status status) { promise->set_value(std::move(status)); });
  return consumed;
}

core::Status Client::send() { return send_later().get(); }

std::vector<float> Client::read(HandleId handle) {
  add(program::Fetch{handle, false});
  const std::uint64_t seq = last_seq();
  last = {};
  if (last.status = send(); !last.status.ok()) {
    ADD_FAILURE() << last.status.message();
    return {};
  }
  last = listener.fetched(seq);
  std::vector<float> elements(last.bytes.size() / sizeof(float));
  if (!elements.empty()) {
    std::memcpy(elements.data(), last.bytes.data(), elements.size() * sizeof(float));
  }
  return elements;
}

engine::Raised Client::raise(std::uint64_t root) {
  add(program::Raise{root});
  const std::uint64_t seq = last_seq();
  const core::Status status = send();
  EXPECT_TRUE(status.ok()) << status.message();
  return status.ok() ? listener.raised(seq) : engine::Raised{};
}

void Client::synchronize() {
  const std::uint64_t seq = last_seq();
  const core::Status status = send();
  EXPECT_TRUE(status.ok()) << status.message();
  if (status.ok()) listener.completed(seq);
}

std::uint64_t Client::used() const {
  for (const engine::MemoryUse& use : session->memory()) {
    if (use.device == device) return use.used;
  }
  return 0;
}

}  // namespace teletensor::session::testing
