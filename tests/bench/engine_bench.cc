// Measures the cost of the engine per small instruction, without wire and client: one row per line,
// in nanoseconds. "cpu" counts all threads, so it is also meaningful on a busy machine.
//
//   engine_bench [instructions] [row]
//
// "back" is the queue and the executor alone, with instructions made by hand (making them is timed
// separately). "session" is commands through front and back, as the server submits them. "frames"
// is the chain x * b + a in encoded frames, as a client sends it, with the releases; "mixed" has
// the same instructions in random order, "recorded" records a chain of ten ops after the other for
// backward, and "apart" executes them without templates. With `row`, only the rows whose name
// contains it run. Counts of instructions do not depend on the load:
//
//   valgrind --tool=callgrind --separate-threads=yes engine_bench 100000 "frames together"
#include <time.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <string>
#include <utility>

#include "engine/backends/cpu/cpu.h"
#include "engine/backends/sim/sim_backend.h"
#include "engine/runtime/back/back.h"
#include "engine/session/host.h"
#include "proto/wire/frame.h"

namespace {

using namespace teletensor;
using Clock = std::chrono::steady_clock;

double cpu_ns() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

double ns_each(Clock::duration time, long n) {
  return std::chrono::duration<double, std::nano>(time).count() / static_cast<double>(n);
}

struct Waiter {
  std::mutex mu;
  std::condition_variable changed;
  std::uint64_t completed = 0;
  bool go_on = false;
  void wait_for(std::uint64_t seq) {
    std::unique_lock<std::mutex> lock(mu);
    changed.wait(lock, [&] { return completed >= seq; });
  }
  void tell(std::uint64_t seq) {
    std::lock_guard<std::mutex> lock(mu);
    completed = std::max(completed, seq);
    changed.notify_all();
  }
};

struct Events : runtime::BackEvents, Waiter {
  void on_completed(std::uint64_t seq) override { tell(seq); }
  void on_fetched(runtime::FetchResult) override {}
  void on_failed(const program::Failure& root) override {
    std::printf("failed: %s\n", root.status.message().c_str());
  }
  void on_continue() override {
    std::lock_guard<std::mutex> lock(mu);
    go_on = true;
    changed.notify_all();
  }
};

struct Listener : engine::SessionListener, Waiter {
  void on_completed(std::uint64_t seq) override { tell(seq); }
  void on_fetched(engine::Fetched) override {}
  void on_error(engine::LateError error) override {
    std::printf("failed: %s\n", error.status.message().c_str());
  }
  void on_raised(engine::Raised) override {}
};

constexpr core::Device kSim{core::DeviceKind::kSim, 0};

std::unique_ptr<runtime::Device> device(bool null_mode) {
  return std::make_unique<runtime::Device>(
      std::make_unique<backends::sim::SimBackend>(backends::cpu::make_kernels(ops::catalog()),
                                                  std::uint8_t{0}, null_mode),
      1u << 30, ops::catalog());
}

core::Attributes defaults(const ops::OpDef& op) {
  core::Attributes attributes;
  for (std::size_t p = static_cast<std::size_t>(op.operand_parameters); p < op.parameters.size();
       ++p) {
    attributes.push_back(op.parameters[p].fallback);
  }
  return attributes;
}

program::Instruction add(std::uint64_t seq, const program::ValueRef& x, const program::ValueRef& y,
                         const program::ValueRef& z) {
  static const ops::OpRef op("add");
  static const core::Geometry laid_out(core::Dims{8, 8});
  static const core::Geometry* const geometry = &laid_out;
  static const core::Attributes attributes = defaults(ops::catalog().at(op));
  program::Instruction i;
  i.op = op;
  i.seq = seq;
  i.operands.push_back({program::Operand::Kind::kTensor, x, core::DType::kF32, geometry, {}});
  i.operands.push_back({program::Operand::Kind::kTensor, y, core::DType::kF32, geometry, {}});
  i.results.push_back({z, geometry, -1});
  i.attributes = &attributes;
  return i;
}

program::ValueRef value() { return core::make_ref<program::Value>(core::DType::kF32, kSim, 64); }

// Runs the executor in a loop on this thread.
void bench_executor(long n, bool null_mode) {
  std::vector<std::unique_ptr<runtime::Device>> list;
  list.push_back(device(null_mode));
  runtime::Devices devices(std::move(list));
  runtime::Lanes lanes(1);
  runtime::LockWait lock_wait(lanes);
  const runtime::SessionGroups groups(nullptr);
  runtime::Executor executor(ops::catalog(), devices, lanes, 1, 0, lock_wait, groups);
  const memory::SessionTaskScope strand(1);
  program::ValueRef x = value(), y = value();
  const std::string zeros(256, '\0');
  executor.bind(*x, zeros, nullptr, 1);
  executor.bind(*y, zeros, nullptr, 1);
  Clock::duration making{}, running{};
  for (long k = 0; k < n; k += 64) {
    const auto t0 = Clock::now();
    std::vector<program::Instruction> some;
    some.reserve(64);
    for (int i = 0; i < 64; ++i) {
      program::ValueRef z = value();
      some.push_back(add(2, x, y, z));
      x = std::move(z);
    }
    const auto t1 = Clock::now();
    bool root;
    for (program::Instruction& i : some) {
      executor.run(i, &root);
      i = {};
    }
    running += Clock::now() - t1;
    making += t1 - t0;
  }
  std::printf("executor alone, 8x8 add%s: %.0f ns (making the instruction: %.0f ns)\n",
              null_mode ? ", null kernels" : "", ns_each(running, n), ns_each(making, n));
}

void bench_back(long n, bool null_mode) {
  std::vector<std::unique_ptr<runtime::Device>> list;
  list.push_back(device(null_mode));
  runtime::Devices devices(std::move(list));
  runtime::Lanes lanes(1);
  Events events;
  runtime::Back back(ops::catalog(), devices, lanes, 1, 0, &events);
  program::ValueRef x = value(), y = value();
  back.queue().constant(1, {64}, std::string(256, '\0'), x);
  back.queue().constant(2, {64}, std::string(256, '\0'), y);
  std::uint64_t seq = 2;
  const auto began = Clock::now();
  const double cpu = cpu_ns();
  for (long k = 0; k < n; ++k) {
    program::ValueRef z = value();
    ++seq;
    back.queue().instruction(seq) = add(seq, x, y, z);
    x = std::move(z);
    if (back.load().full()) {
      back.publish(seq);
      if (back.wait_for_room()) {
        std::unique_lock<std::mutex> lock(events.mu);
        events.changed.wait(lock, [&] { return std::exchange(events.go_on, false); });
      }
    }
  }
  back.publish(seq);
  const auto pushed = Clock::now();
  events.wait_for(seq);
  std::printf("back, 8x8 add%s: %.0f ns (pump: %.0f, cpu: %.0f)\n",
              null_mode ? ", null kernels" : "", ns_each(Clock::now() - began, n),
              ns_each(pushed - began, n), (cpu_ns() - cpu) / static_cast<double>(n));
}

// Submits commands, and waits until the session has consumed them.
void consume(engine::Session& session, std::uint64_t first_seq, std::uint64_t first_id,
             std::vector<program::Command> commands) {
  std::mutex mu;
  std::condition_variable changed;
  bool consumed = false;
  session.submit(first_seq, first_id, std::move(commands), [&](core::Status status) {
    if (!status.ok()) std::printf("refused: %s\n", status.message().c_str());
    std::lock_guard<std::mutex> lock(mu);
    consumed = true;
    changed.notify_all();
  });
  std::unique_lock<std::mutex> lock(mu);
  changed.wait(lock, [&] { return consumed; });
}

void bench_session(long n, bool null_mode) {
  std::vector<std::unique_ptr<runtime::Device>> list;
  // The memory of names is charged to the host.
  list.push_back(std::make_unique<runtime::Device>(
      std::make_unique<backends::cpu::CpuBackend>(backends::cpu::make_kernels(ops::catalog())),
      1u << 30, ops::catalog()));
  list.push_back(device(null_mode));
  Listener listener;
  session::Host host(ops::catalog(), std::move(list), 2);
  auto session = std::move(*host.open({}, &listener));
  static const ops::OpRef op("add");
  const core::Attributes attributes = defaults(ops::catalog().at(op));
  std::uint64_t seq = 1, id = 1, last = 0;
  auto submit = [&](std::vector<program::Command> commands, std::uint64_t handles) {
    const std::uint64_t count = commands.size();
    consume(*session, seq, id, std::move(commands));
    seq += count;
    id += handles;
  };
  std::vector<program::Command> commands;
  for (int i = 0; i < 2; ++i) {
    commands.push_back(program::Constant{core::DType::kF32, kSim, {8, 8}, std::string(256, '\0')});
  }
  submit(std::move(commands), 2);
  last = 1;
  Clock::duration submitting{}, making{};
  const auto began = Clock::now();
  const double cpu = cpu_ns();
  for (long k = 0; k < n; k += 256) {
    const auto t0 = Clock::now();
    std::vector<program::Command> frame;
    frame.reserve(512);
    for (std::uint64_t i = 0; i < 256; ++i) {
      program::Apply apply;
      apply.op = op;
      apply.arguments.push_back(program::Argument::of(last));
      apply.arguments.push_back(program::Argument::of(2));
      apply.attributes = attributes;
      frame.push_back(std::move(apply));
      if (last != 2) frame.push_back(program::Release{{last}});
      last = id + i;
    }
    const auto t1 = Clock::now();
    submit(std::move(frame), 256);
    submitting += Clock::now() - t1;
    making += t1 - t0;
  }
  listener.wait_for(seq - 1);
  const auto total = Clock::now() - began - making;
  std::printf("session, 8x8 add and release%s: %.0f ns (pump: %.0f, cpu: %.0f)\n",
              null_mode ? ", null kernels" : "", ns_each(total, n), ns_each(submitting, n),
              (cpu_ns() - cpu) / static_cast<double>(n));
}

// The frames of a client whose loop body is x = x * b + a, in frames of 256 ops. Releases are sent
// in batches of eight, as clients send them.
enum class Chain { kRepeated, kMixed, kRecorded };

void bench_frames(long n, Chain chain, bool templates) {
  constexpr int kOps = 256, kRecordedOps = 10;
  const bool mixed = chain == Chain::kMixed, recorded = chain == Chain::kRecorded;
  std::vector<std::unique_ptr<runtime::Device>> list;
  list.push_back(std::make_unique<runtime::Device>(
      std::make_unique<backends::cpu::CpuBackend>(backends::cpu::make_kernels(ops::catalog())),
      1u << 30, ops::catalog()));
  Listener listener;
  session::Host host(ops::catalog(), std::move(list), 1);
  engine::SessionOptions options;
  options.templates = templates;
  auto session = std::move(*host.open(options, &listener));
  const wire::FrameReader reader;
  wire::KnownApplies known;
  wire::FrameWriter writer;
  std::uint64_t seq = 1;
  program::HandleId id = 1;
  const core::Device cpu{core::DeviceKind::kCpu, 0};
  static const ops::OpRef mul("mul"), add("add");
  const core::Attributes of_mul = defaults(ops::catalog().at(mul)),
                         of_add = defaults(ops::catalog().at(add));
  Clock::duration submitting{};
  const auto submit = [&] {
    const std::string bytes(writer.finish(0, 1));
    const auto began = Clock::now();
    wire::Frame frame;
    if (const core::Status status = reader.read(bytes, frame, &known); !status.ok()) {
      std::printf("refused: %s\n", status.message().c_str());
      std::exit(1);
    }
    seq = frame.first_seq + frame.commands.size();
    id = frame.next_id;
    consume(*session, frame.first_seq, frame.first_id, std::move(frame.commands));
    submitting += Clock::now() - began;
    writer.begin(seq, id);
  };
  writer.begin(seq, id);
  for (int i = 0; i < 3; ++i) {
    writer.append(program::Constant{core::DType::kF32, cpu, {8, 8}, std::string(256, '\0')}, 1);
  }
  if (recorded) {
    writer.append(program::SetFlag{program::SetFlag::What::kRequiresGrad, 2, true}, 0);
  }
  submit();
  program::HandleId last = 1;
  program::Release release;
  std::mt19937 random(1);
  submitting = {};
  const double cpu_before = cpu_ns();
  for (long k = 0; k < n; k += kOps) {
    for (int i = 0; i < kOps; ++i) {
      const bool product = (mixed ? random() : static_cast<unsigned>(i)) % 2 == 0;
      const bool begins = recorded && (k + i) % kRecordedOps == 0;
      const program::Argument arguments[] = {program::Argument::of(begins ? 1 : last),
                                             program::Argument::of(product ? 2 : 3)};
      if (last > 3) release.handles.push_back(last);
      last = writer.next_id();
      writer.append(wire::ApplyView{product ? mul : add,
                                    true,
                                    false,
                                    core::DType::kF32,
                                    arguments,
                                    {},
                                    product ? of_mul : of_add},
                    1);
      if (release.handles.size() < 8) continue;
      writer.append(program::Command(std::exchange(release, {})), 0);
    }
    submit();
  }
  listener.wait_for(seq - 1);
  std::printf("frames, 8x8 x * b + a%s%s: consumer: %.0f ns, cpu: %.0f ns, repeated: %.0f %%\n",
              mixed      ? ", mixed"
              : recorded ? ", recorded"
                         : "",
              templates ? "" : ", apart", ns_each(submitting, n),
              (cpu_ns() - cpu_before) / static_cast<double>(n),
              100 * static_cast<double>(session->load().repeated) / static_cast<double>(seq));
}

}  // namespace

int main(int argc, char** argv) {
  const long n = (argc > 1 ? std::atol(argv[1]) : 1000000) / 256 * 256;
  const std::string only = argc > 2 ? argv[2] : "";
  const auto runs = [&](const char* row) {
    return std::string(row).find(only) != std::string::npos;
  };
  for (bool null_mode : {true, false}) {
    if (runs("executor")) bench_executor(n, null_mode);
    if (runs("back")) bench_back(n, null_mode);
    if (runs("session")) bench_session(n, null_mode);
  }
  const std::pair<const char*, Chain> chains[] = {
      {"frames", Chain::kRepeated}, {"mixed", Chain::kMixed}, {"recorded", Chain::kRecorded}};
  for (const auto& [name, chain] : chains) {
    if (runs((std::string(name) + " together").c_str())) bench_frames(n, chain, true);
    if (runs((std::string(name) + " apart").c_str())) bench_frames(n, chain, false);
  }
}
