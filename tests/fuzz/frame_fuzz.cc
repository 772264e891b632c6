// Hostile frames against the decoder and a whole engine session: nothing may crash, hang, or leave a
// byte behind, and what was decoded encodes to the same again.
//
//   frame_fuzz [--seconds N] [--seed S]   random programs; prints how many and how far they came
//   with clang and -fsanitize=fuzzer (target frame_libfuzzer): libFuzzer's flags and corpus
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "engine/core/mutex.h"
#include "engine/engine.h"
#include "hostile.h"
#include "proto/wire/bulk.h"
#include "proto/wire/frame.h"
#include "proto/wire/progress.h"

namespace teletensor::fuzz {
namespace {

using program::Command;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "frame_fuzz: %s\n", what);
  std::abort();
}

// Counts what a session says, so that the fuzzer can wait for it.
class Listener final : public engine::SessionListener {
 public:
  void on_completed(std::uint64_t seq) override {
    {
      core::MutexLock lock(mutex_);
      completed_ = std::max(completed_, seq);
    }
    changed_.notify_all();
  }
  void on_fetched(engine::Fetched) override {}
  void on_error(engine::LateError) override {}
  void on_raised(engine::Raised) override {}

  void consumed(core::Status status) {
    {
      core::MutexLock lock(mutex_);
      consumed_ = true;
      status_ = std::move(status);
    }
    changed_.notify_all();
  }
  core::Status wait_consumed() {
    core::MutexLock lock(mutex_);
    while (!consumed_) wait("the session took a frame and did not say so");
    consumed_ = false;
    return status_;
  }
  void wait_completed(std::uint64_t seq) {
    core::MutexLock lock(mutex_);
    while (completed_ < seq) wait("a command did not complete");
  }

 private:
  void wait(const char* what) TT_REQUIRES(mutex_) {
    if (!changed_.wait_for(mutex_, std::chrono::seconds(60))) fail(what);
  }

  core::Mutex mutex_;
  core::CondVar changed_;
  bool consumed_ TT_GUARDED_BY(mutex_) = false;
  core::Status status_ TT_GUARDED_BY(mutex_);
  std::uint64_t completed_ TT_GUARDED_BY(mutex_) = 0;
};

engine::Engine& the_engine() {
  static const std::unique_ptr<engine::Engine> engine = [] {
    engine::EngineOptions options;
    options.lanes = 1;
    options.host_memory = 64 << 20;
    return engine::Engine::create(options);
  }();
  return *engine;
}

// A session that is fed frames until one is refused.
class Victim {
 public:
  Victim() {
    engine::SessionOptions options;
    options.memory_quota = 16 << 20;
    auto opened = the_engine().open(options, &listener_);
    if (!opened.ok()) fail("no session");
    session_ = std::move(*opened);
  }
  ~Victim() {
    session_.reset();
    for (const engine::MemoryUse& use : the_engine().memory()) {
      if (use.device_used == 0) continue;
      std::fprintf(stderr, "%s: %llu bytes: ", core::to_string(use.device).c_str(),
                   static_cast<unsigned long long>(use.device_used));
      fail("left behind");
    }
  }

  // False when the session refused it, and with it everything to come.
  bool submit(wire::Frame frame) {
    const std::uint64_t count = frame.commands.size();
    session_->submit(frame.first_seq, frame.first_id, std::move(frame.commands),
                     [this](core::Status status) { listener_.consumed(std::move(status)); });
    if (!listener_.wait_consumed().ok()) return false;
    if (count != 0) listener_.wait_completed(frame.first_seq + count - 1);
    return true;
  }

 private:
  Listener listener_;
  std::unique_ptr<engine::Session> session_;
};

// Whatever the bytes decode to must encode to the same commands.
void check_round_trip(const wire::Frame& frame) {
  wire::FrameWriter writer;
  writer.begin(frame.first_seq, frame.first_id);
  for (const Command& command : frame.commands) writer.append(command, wire::usual_made(command));
  wire::Frame back;
  // Ids shift where a frame states its own counts; only frames without are compared.
  if (writer.next_id() != frame.next_id) return;
  if (!wire::FrameReader().read(writer.finish(frame.ack_upto, frame.attach_counter), back).ok()) {
    fail("what was read is refused when written again");
  }
  if (back.commands.size() != frame.commands.size()) fail("commands lost");
}

void run_bytes(std::string_view bytes) {
  wire::Progress progress;
  (void)wire::decode_progress(bytes, progress);
  wire::UploadHeader upload;
  (void)wire::decode_upload_header(bytes, bytes.size(), upload);
  wire::DownloadHeader download;
  (void)wire::decode_download_header(bytes, bytes.size(), download);
  wire::Frame frame;
  if (!wire::FrameReader().read(bytes, frame).ok()) return;
  check_round_trip(frame);
  Victim victim;
  victim.submit(std::move(frame));
}

struct Counts {
  std::uint64_t programs = 0, bytes = 0, commands = 0, refused = 0;
};

void say(const Command& command) {
  const auto* apply = std::get_if<program::Apply>(&command);
  if (!apply) {
    std::fprintf(stderr, "kind %zu\n", command.index());
    return;
  }
  std::string text = the_engine().catalog().at(apply->op).name;
  for (const program::Argument& a : apply->arguments) {
    text += a.kind == program::Argument::Kind::kHandle   ? " h" + std::to_string(a.handle)
            : a.kind == program::Argument::Kind::kNumber ? " " + core::to_string(a.number)
                                                         : " -";
  }
  for (std::size_t i = 0; i < apply->attributes.size(); ++i) {
    text += " kind" + std::to_string(static_cast<int>(apply->attributes.at(i).kind)) + ":" +
            std::to_string(apply->attributes.integer(i));
    for (std::int64_t value : apply->attributes.ints(i)) text += "," + std::to_string(value);
  }
  std::fprintf(stderr, "%s%s%s\n", text.c_str(), apply->inplace ? " in place" : "",
               apply->record ? " recorded" : "");
}

// One program: constants, then commands one frame each, through bytes, until one is refused. The bytes
// of the last frame.
std::string run_program(Hostile& hostile, Counts& counts, bool verbose) {
  std::string bytes;
  Victim victim;
  wire::FrameWriter writer;
  writer.begin(1, 1);
  std::uint64_t handles = 0;
  const auto send = [&](const std::vector<Command>& commands) {
    writer.begin(writer.next_seq(), writer.next_id());
    for (const Command& command : commands) writer.append(command, wire::usual_made(command));
    bytes = writer.finish(0, 1);
    handles = writer.next_id() - 1;
    wire::Frame frame;
    if (!wire::FrameReader().read(bytes, frame).ok()) fail("a well-formed frame is refused");
    check_round_trip(frame);
    counts.commands += commands.size();
    if (verbose) {
      for (const Command& command : commands) say(command);
    }
    if (victim.submit(std::move(frame))) return true;
    ++counts.refused;
    return false;
  };
  ++counts.programs;
  if (!send(hostile.constants())) fail("constants are refused");
  const ops::Catalog& catalog = the_engine().catalog();
  for (int i = 0; i < 40; ++i) {
    const bool op = !hostile.one_in(6);
    if (!send({op ? Command(hostile.apply(catalog, handles))
                  : hostile.other(handles, writer.next_seq())})) {
      break;
    }
  }
  return bytes;
}

void run(std::uint64_t seed, Counts& counts, bool verbose) {
  Hostile hostile(seed);
  std::string bytes = run_program(hostile, counts, verbose);
  for (int i = 0; i < 20; ++i) {
    bytes[hostile.below(bytes.size())] = static_cast<char>(hostile.below(256));
    run_bytes(bytes);
    ++counts.bytes;
  }
}

}  // namespace
}  // namespace teletensor::fuzz

#ifdef TELETENSOR_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  teletensor::fuzz::run_bytes({reinterpret_cast<const char*>(data), size});
  return 0;
}
#else
namespace {

char current_seed[64];

void say_seed(int signal) {
  (void)!write(2, current_seed, std::strlen(current_seed));
  ::signal(signal, SIG_DFL);
  raise(signal);
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 10;
  std::uint64_t seed = 1;
  bool one = false;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--seconds") == 0) seconds = std::atof(argv[i + 1]);
    if (std::strcmp(argv[i], "--seed") == 0) {
      seed = std::strtoull(argv[i + 1], nullptr, 10);
      one = true;
    }
  }
  for (int number : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS, SIGILL}) signal(number, say_seed);
  teletensor::fuzz::Counts counts;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  do {
    std::snprintf(current_seed, sizeof current_seed, "frame_fuzz: --seed %llu\n",
                  static_cast<unsigned long long>(seed));
    teletensor::fuzz::run(seed++, counts, one);
  } while (!one && std::chrono::steady_clock::now() < end);
  std::printf("frame_fuzz: %llu programs, %llu commands, %llu programs refused, %llu damaged frames\n",
              static_cast<unsigned long long>(counts.programs),
              static_cast<unsigned long long>(counts.commands),
              static_cast<unsigned long long>(counts.refused),
              static_cast<unsigned long long>(counts.bytes));
  return 0;
}
#endif
