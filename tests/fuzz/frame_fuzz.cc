// Feeds hostile frames to the decoder and to a whole engine session: nothing may crash, hang, or
// leak memory; decoded commands must be encoded to the same bytes again; and a session must accept
// exactly the commands that a client's own checks accept.
//
//   frame_fuzz [--seconds N] [--from S] [--seed S] [--bits 1] [--write FOLDER]
//     Runs random programs with the seeds S, S + 1, ... and prints the numbers of programs,
//     commands, refused programs and damaged frames. --seed: runs only the program with this seed
//     and prints its commands. --bits: runs each program in two sessions whose memory held
//     different bytes earlier; every result must be equal bit by bit. --write: writes each program
//     that passed into the folder as one frame, for the initial corpus of libFuzzer.
//   Built with clang and -fsanitize=fuzzer (target frame_libfuzzer), the program takes the flags
//   and the corpus of libFuzzer.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/autograd/front.h"
#include "hostile.h"
#include "proto/wire/bulk.h"
#include "proto/wire/frame.h"
#include "proto/wire/progress.h"
#include "victim.h"

namespace teletensor::fuzz {
namespace {

using program::Command;

// A decoded frame must be encoded to the same commands again.
void check_round_trip(const wire::Frame& frame) {
  wire::FrameWriter writer;
  writer.begin(frame.first_seq, frame.first_id);
  for (const Command& command : frame.commands) writer.append(command, wire::usual_made(command));
  wire::Frame back;
  // If a frame states its own counts, the ids shift; only frames without them are compared.
  if (writer.next_id() != frame.next_id) return;
  if (!wire::FrameReader().read(writer.finish(frame.ack_upto, frame.attach_counter), back).ok()) {
    fail("what was read is refused when written again");
  }
  if (back.commands.size() != frame.commands.size()) fail("commands lost");
}

// A thin client's session ends for no contents of a frame, but for its limits and its numbers.
void run_thin(std::string_view bytes) {
  const wire::FrameReader reader({}, {}, {}, true);
  wire::Frame frame;
  if (!reader.read(bytes, frame).ok()) return;
  {
    Victim victim;
    const core::Status status = victim.submit(std::move(frame), Victim::kPatience, nullptr, true);
    if (!status.ok() && status.code() != core::Code::kResourceExhausted &&
        status.code() != core::Code::kFailedPrecondition) {
      fail(("a thin session has ended: " + status.message()).c_str());
    }
  }
  Victim::check_all_gone();
}

void run_bytes(std::string_view bytes) {
  wire::Progress progress;
  (void)wire::decode_progress(bytes, progress);
  wire::UploadHeader upload;
  (void)wire::decode_upload_header(bytes, bytes.size(), upload);
  wire::DownloadHeader download;
  (void)wire::decode_download_header(bytes, bytes.size(), download);
  run_thin(bytes);
  wire::Frame frame;
  if (!wire::FrameReader().read(bytes, frame).ok()) return;
  check_round_trip(frame);
  {
    Victim victim;
    (void)victim.submit(std::move(frame));
  }
  Victim::check_all_gone();
}

struct Counts {
  std::uint64_t programs = 0, bytes = 0, commands = 0, refused = 0;
  std::vector<std::uint64_t> ran = std::vector<std::uint64_t>(the_engine().catalog().size());
};

// Computes what the client's shape inference would report: the same session front end without
// storage.
class Mirror final : public autograd::Sink {
 public:
  // Ok if the command has been executed in the mirror.
  core::Status execute(std::uint64_t seq, Command command) {
    core::Status status = front_.execute(seq, std::move(command));
    while (status.ok() && front_.busy()) status = front_.resume(1000);
    return status;
  }
  std::uint64_t next_id() const { return front_.next_id(); }

  program::Instruction& instruction(std::uint64_t) override {
    if (interner_->size() > 10000) interner_ = std::make_unique<program::Interner>();
    return unused_ = program::Instruction();
  }
  program::Interner& interner() override { return *interner_; }
  core::Status constant(std::uint64_t, program::Constant, program::ValueRef) override { return {}; }
  core::Status uploaded(std::uint64_t, const program::Uploaded&, program::ValueRef) override {
    return core::invalid("uploaded: none");
  }
  void fetch(std::uint64_t, bool, program::Operand) override {}
  std::vector<std::uint64_t> failed_rebinds(std::uint64_t) override { return {}; }
  void raised(std::uint64_t, std::uint64_t, const std::vector<std::uint64_t>&) override {}

 private:
  program::Instruction unused_;
  std::unique_ptr<program::Interner> interner_ = std::make_unique<program::Interner>();
  autograd::Front front_{the_engine().catalog(), this};
};

void say(const Command& command) {
  const auto* apply = std::get_if<program::Apply>(&command);
  if (!apply) {
    std::string text = "kind " + std::to_string(command.index());
    if (const auto* c = std::get_if<program::Constant>(&command)) {
      text = "constant " + std::string(core::name_of(c->dtype)) + core::to_string(c->shape);
    } else if (const auto* d = std::get_if<program::SetData>(&command)) {
      text = "set_data h" + std::to_string(d->handle) + " h" + std::to_string(d->other);
    } else if (const auto* f = std::get_if<program::Fetch>(&command)) {
      text = "fetch h" + std::to_string(f->handle) + (f->bulk ? " bulk" : "");
    } else if (const auto* g = std::get_if<program::SetFlag>(&command)) {
      text = "set_flag h" + std::to_string(g->handle);
    }
    std::fprintf(stderr, "%s\n", text.c_str());
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

// Runs one program: constants, then commands that the mirror accepts, and at last one that it
// refuses. The session must agree on each. Returns the bytes of the last frame; `whole` gets the
// program as one frame.
std::string run_program(Hostile& hostile, Counts& counts, bool verbose, bool bits,
                        std::string& whole) {
  constexpr int kCommands = 40;
  Victim victim;
  std::optional<Victim> twin;
  if (bits) twin.emplace();
  bool spoiling = false;
  Mirror mirror;
  wire::KnownApplies known;
  wire::FrameWriter writer, all_commands;
  writer.begin(1, 1);
  all_commands.begin(1, 1);
  std::string bytes;
  const auto send = [&](const Command& command, std::uint64_t next_id) {
    const auto made = static_cast<std::uint32_t>(next_id - writer.next_id());
    writer.begin(writer.next_seq(), writer.next_id());
    writer.append(command, made);
    all_commands.append(command, made);
    bytes = writer.finish(0, 1);
    wire::Frame frame;
    if (!wire::FrameReader().read(bytes, frame, &known).ok()) {
      fail("a well-formed frame is refused");
    }
    check_round_trip(frame);
    ++counts.commands;
    if (verbose && !spoiling) say(command);
    if (twin) {
      wire::Frame other;  // decoded by itself, so it tells whether repeated instructions differ
      (void)wire::FrameReader().read(bytes, other);
      if (auto* c = std::get_if<program::Constant>(&other.commands[0]); c && spoiling) {
        c->bytes.assign(c->bytes.size(), static_cast<char>(0xa5));
      }
      const core::Status one = victim.submit(std::move(frame));
      const core::Status two = twin->submit(std::move(other));
      if (one.code() != two.code()) fail("the sessions differ in what they refuse");
      return one;
    }
    return victim.submit(std::move(frame));
  };
  bool over = false;
  const auto both = [&](const Command& command) {
    const std::uint64_t before = mirror.next_id();
    const core::Status status = mirror.execute(writer.next_seq(), command);
    if (!status.ok()) {
      // A Backward that states a wrong number of new handles is refused only after it has made
      // them.
      over = mirror.next_id() != before || std::holds_alternative<program::Backward>(command);
      return false;
    }
    const core::Status session = send(command, mirror.next_id());
    if (const auto* apply = std::get_if<program::Apply>(&command)) ++counts.ran[apply->op];
    // The mirror does not know which devices the daemon has.
    over = !session.ok() && session.message().find("this daemon has no") != std::string::npos;
    if (twin && session.ok() && std::holds_alternative<program::Fetch>(command)) {
      const engine::Fetched one = victim.fetched(), two = twin->fetched();
      if (one.status.code() != two.status.code() || one.bytes != two.bytes) {
        fail("a result shows what was in memory before");
      }
    }
    if (session.ok() || over) return true;
    say(command);
    std::fprintf(stderr, "the session: %s\n", session.message().c_str());
    fail("the session refused what the mirror accepted");
  };
  ++counts.programs;
  // Allocates memory of every size that results may have, with zeros in one session and other bytes
  // in the other.
  if (twin) {
    spoiling = true;
    program::Release all;
    for (int size = 16; size <= 1 << 12; size *= 2) {
      // as many blocks as a pool keeps
      for (int n = std::clamp((16 << 10) / size, 1, 64) + 8; n > 0; --n) {
        const core::Dims shape = {size - (n % 3) * size / 8};
        if (!both(program::Constant{core::DType::kU8,
                                    {},
                                    shape,
                                    std::string(static_cast<std::size_t>(shape[0]), '\0')})) {
          fail("a constant is refused");
        }
        all.handles.push_back(mirror.next_id() - 1);
      }
    }
    if (!both(all)) fail("a release is refused");
    spoiling = false;
  }
  // earlier ids are those of handles that are released
  const std::uint64_t first = mirror.next_id();
  for (const Command& command : hostile.constants(first - 1)) {
    if (!both(command)) fail("a constant is refused");
  }
  // Compares the bits of the tensors that the command has made or written to.
  const auto same_bits = [&](const Command& command, std::uint64_t before) {
    if (!twin) return;
    std::vector<std::uint64_t> names;
    for (std::uint64_t id = before; id < mirror.next_id(); ++id) names.push_back(id);
    const auto* apply = std::get_if<program::Apply>(&command);
    if (apply != nullptr && names.empty()) {
      for (const program::Argument& a : apply->arguments) {
        if (a.kind == program::Argument::Kind::kHandle) names.push_back(a.handle);
      }
    }
    for (const std::uint64_t id : names) {
      if (!over) (void)both(program::Fetch{id, false});
    }
  };
  const ops::Catalog& catalog = the_engine().catalog();
  Command command;
  for (int done = 0; done < kCommands && !over;) {
    const std::uint64_t handles = mirror.next_id() - 1;
    command = hostile.one_in(6) ? hostile.other(handles, writer.next_seq())
                                : Command(hostile.apply(catalog, handles));
    if (const auto* apply = std::get_if<program::Apply>(&command)) {
      // "empty" is the only op whose results may be arbitrary memory of the session.
      if (twin && catalog.at(apply->op).name == "empty") continue;
    }
    // The result of Raise depends on which commands have failed, which the mirror does not know.
    if (std::holds_alternative<program::Raise>(command)) continue;
    if (both(command)) {
      ++done;
      same_bits(command, handles + 1);
    } else if (hostile.one_in(60)) {
      break;
    }
  }
  // The refused command, or a Raise of an arbitrary command.
  if (hostile.one_in(2)) command = program::Raise{1 + hostile.below(writer.next_seq())};
  if (!send(command, writer.next_id() + wire::usual_made(command)).ok()) ++counts.refused;
  whole = all_commands.finish(0, 1);
  return bytes;
}

[[maybe_unused]] void run(std::uint64_t seed, Counts& counts, bool verbose, bool bits,
                          const char* folder) {
  Hostile hostile(seed);
  std::string whole, bytes = run_program(hostile, counts, verbose, bits, whole);
  if (folder != nullptr) {
    const std::string path = std::string(folder) + "/seed-" + std::to_string(seed);
    if (!(std::ofstream(path, std::ios::binary) << whole)) fail("cannot write into the folder");
  }
  Victim::check_all_gone();
  for (int i = 0; i < 20; ++i) {
    bytes[hostile.below(bytes.size())] = static_cast<char>(hostile.below(256));
    run_bytes(bytes);
    ++counts.bytes;
  }
}

// Reports the ops that the mirror never accepted: for these the generator is too random, or had too
// little time.
[[maybe_unused]] void say_never_run(const Counts& counts) {
  std::string never;
  std::size_t ops = 0;
  for (std::size_t op = 0; op < counts.ran.size(); ++op) {
    if (counts.ran[op] != 0) {
      ++ops;
    } else {
      never += " " + the_engine().catalog().at(static_cast<program::OpId>(op)).name;
    }
  }
  std::printf("frame_fuzz: %zu of %zu ops ran; never:%s\n", ops, counts.ran.size(),
              never.empty() ? " none" : never.c_str());
}

}  // namespace
}  // namespace teletensor::fuzz

#ifdef TELETENSOR_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  teletensor::fuzz::run_bytes({reinterpret_cast<const char*>(data), size});
  return 0;
}
#else
int main(int argc, char** argv) {
  double seconds = 10;
  std::uint64_t seed = 1;
  bool one = false, bits = false;
  const char* folder = nullptr;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--seconds") == 0) seconds = std::atof(argv[i + 1]);
    if (std::strcmp(argv[i], "--bits") == 0) bits = std::atoi(argv[i + 1]) != 0;
    if (std::strcmp(argv[i], "--write") == 0) folder = argv[i + 1];
    const bool alone = std::strcmp(argv[i], "--seed") == 0;
    if (alone || std::strcmp(argv[i], "--from") == 0) {
      seed = std::strtoull(argv[i + 1], nullptr, 10);
      one = alone;
    }
  }
  teletensor::fuzz::Counts counts;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  do {
    teletensor::fuzz::now_at("frame_fuzz: --seed %llu\n", static_cast<unsigned long long>(seed));
    teletensor::fuzz::run(seed++, counts, one, bits, folder);
  } while (!one && std::chrono::steady_clock::now() < end);
  std::printf(
      "frame_fuzz: %llu programs, %llu commands, %llu programs refused, %llu damaged frames\n",
      static_cast<unsigned long long>(counts.programs),
      static_cast<unsigned long long>(counts.commands),
      static_cast<unsigned long long>(counts.refused),
      static_cast<unsigned long long>(counts.bytes));
  teletensor::fuzz::say_never_run(counts);
  return 0;
}
#endif
