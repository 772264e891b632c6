// Gives hostile programs to the decoder, the verifier, the passes and a whole engine session: an
// invalid program must be refused by session and verifier alike; a program that is accepted must
// run, leave no memory behind, and give the same bits after the passes.
//
//   program_fuzz [--seconds N] [--from S] [--seed S] [--write FOLDER] [--corpus FILE] [FILE...]
//     Makes programs with the seeds S, S + 1, ... Runs each program as it was made, then with a
//     corrupted structure, then with corrupted bytes; prints how many programs were accepted.
//     --corpus: runs only the programs in a file, which has one program a line, in hexadecimal and
//     without the checksum. FILE: runs only the program in this file, as libFuzzer writes it.
//   Built with clang and -fsanitize=fuzzer (target program_libfuzzer), the program takes the flags
//   and the corpus of libFuzzer.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "engine/ops/verify.h"
#include "engine/passes/passes.h"
#include "engine/program/serialize.h"
#include "hostile.h"
#include "programs_made.h"
#include "victim.h"

namespace teletensor::fuzz {
namespace {

using core::Attribute;
using program::Command;
using program::Program;

constexpr std::size_t kTail = 9;
constexpr std::chrono::milliseconds kLong{3000};  // a loop may run for ever

const ops::Catalog& catalog() { return the_engine().catalog(); }

std::string written(const Program& p) { return program::serialize(p, ops::op_names(catalog())); }

std::optional<Program> accepted(const std::string& bytes) {
  auto read = program::deserialize(bytes, ops::op_finder(catalog()));
  if (!read.ok() || !ops::verify(*read, catalog()).ok()) return std::nullopt;
  return std::move(*read);
}

struct Counts {
  std::uint64_t made = 0, valid = 0, spoilt = 0, ran = 0, compared = 0, endless = 0, calls = 0;
};

// The outcome of a run: the bytes of each result and parameter, or how they failed.
struct Outcome {
  bool defined = false, called = false, late = false;
  std::vector<std::pair<core::Code, std::string>> values;
};

class Run {
 public:
  explicit Run(std::uint64_t seed) : random_(seed) {}

  Outcome operator()(const std::string& bytes, const std::optional<Program>& p, bool wild) {
    Outcome out;
    std::vector<std::uint64_t> inputs;
    if (p) {
      for (const program::View& parameter : p->body.parameters) input(*p, parameter, inputs);
    }
    out.defined = send(program::Define{1, bytes}, 0);
    if (!out.defined || !p) return out;
    program::Call call;
    call.program = 1;
    call.inputs = inputs;
    call.numbers = p->numbers;
    call.made = static_cast<std::uint32_t>(p->body.results.size());
    if (wild) spoil(call);
    const std::uint64_t first = next_id_;
    out.called = send(call, call.made);
    if (!out.called || late_) {
      out.late = late_;
      return out;
    }
    for (std::uint64_t id = first; id < next_id_; ++id) fetch(id, out);
    for (const std::uint64_t id : inputs) fetch(id, out);
    out.late = late_;
    return out;
  }

 private:
  bool send(Command command, std::uint64_t made) {
    wire::Frame frame;
    frame.first_seq = seq_++;
    frame.first_id = next_id_;
    frame.commands.push_back(std::move(command));
    const bool good = victim_.submit(std::move(frame), kLong, &late_).ok();
    if (good) next_id_ += made;
    return good;
  }

  // A tensor with that layout, on a storage that contains the whole value.
  void input(const Program& p, const program::View& view, std::vector<std::uint64_t>& inputs) {
    const program::ValueType& type = p.values[view.value];
    constexpr std::int64_t kMax = 1 << 13;
    std::uint64_t storage = 0;
    for (std::size_t i = 0; i < inputs.size(); ++i) {  // several inputs may be views of one value
      if (p.body.parameters[i].value == view.value) storage = storage_[i];
    }
    if (storage == 0) {
      const std::int64_t elements = std::min(type.elements, kMax);
      if (!send(
              program::Constant{
                  type.dtype, {}, {elements}, contents(random_, type.dtype, elements)},
              1)) {
        fail("a constant is refused");
      }
      storage = next_id_ - 1;
    }
    storage_.push_back(storage);
    // The daemon refuses a call with an input of more than kMax elements. A view of such an input
    // is not made, because it would end the session.
    inputs.push_back(type.elements <= kMax ? strided(view, storage) : storage);
  }
  std::uint64_t strided(const program::View& view, std::uint64_t storage) {
    static const ops::OpRef as_strided("as_strided");
    program::Apply apply;
    apply.op = as_strided;
    apply.arguments.push_back(program::Argument::of(storage));
    apply.attributes = {Attribute::of(view.geometry.shape), Attribute::of(view.geometry.strides),
                        Attribute::of(view.geometry.offset)};
    return send(std::move(apply), 1) ? next_id_ - 1 : storage;
  }

  void fetch(std::uint64_t id, Outcome& out) {
    if (late_ || !send(program::Fetch{id, false}, 0) || late_) return;
    engine::Fetched value = victim_.fetched();
    out.values.emplace_back(value.status.code(), value.status.ok() ? std::move(value.bytes) : "");
  }

  void spoil(program::Call& call) {
    switch (random_.below(7)) {
      case 0:
        call.program = random_.below(3);
        break;
      case 1:
        call.inputs.resize(random_.below(5), random_.below(6));
        break;
      case 2:
        if (!call.inputs.empty()) call.inputs[random_.below(call.inputs.size())] = random_.below(9);
        break;
      case 3:
        call.numbers.resize(random_.below(6), core::Number::of_float(0.5));
        break;
      case 4:
        call.times = static_cast<std::uint32_t>(random_.one_in(3) ? -1 : random_.below(4));
        break;
      case 5:
        call.times = 1 + static_cast<std::uint32_t>(random_.below(3));
        call.sliced = {static_cast<std::uint32_t>(random_.below(3))};
        break;
      default:
        call.made = static_cast<std::uint32_t>(random_.below(5));
        call.seed = static_cast<std::int64_t>(random_.below(9)) - 4;
        call.ordinal = INT64_MAX - static_cast<std::int64_t>(random_.below(3));
    }
  }

  Hostile random_;
  Victim victim_;
  std::vector<std::uint64_t> storage_;
  std::uint64_t seq_ = 1, next_id_ = 1;
  bool late_ = false;
};

bool any_step(const program::Block& block, bool (*test)(const program::Step&)) {
  for (const program::Step& step : block.steps) {
    if (test(step)) return true;
    for (const program::Block& inner : step.blocks) {
      if (any_step(inner, test)) return true;
    }
  }
  return false;
}

// Returns whether its results may be arbitrary memory of the session.
bool uninitialized(const program::Step& step) {
  return step.kind == program::Step::Kind::kOp && catalog().at(step.op).name == "empty";
}

bool is_memory(core::Code code) { return code == core::Code::kResourceExhausted; }

// Two conditions must hold: the session agrees with the verifier, and the passes change no result.
void check(const std::string& bytes, std::uint64_t seed, Counts& counts) {
  const std::optional<Program> p = accepted(bytes);
  std::optional<Program> better;
  if (p) {
    if (written(*p) != bytes && !accepted(written(*p)))
      fail("what was accepted is refused when written");
    (void)passes::to_string(*p, catalog(), true);
    // recomputes far more than is worth its time
    better = passes::rematerialise(passes::optimize(*p, catalog()), catalog(),
                                   {.time = 1e9, .worth = 1e9, .least = 1});
    if (const core::Status status = ops::verify(*better, catalog()); !status.ok()) {
      fail(("the passes have broken a program: " + std::string(status.message())).c_str());
    }
  }
  Outcome plain;
  {
    plain = Run(seed)(bytes, p, false);
    if (plain.defined != p.has_value()) fail("session and verifier differ");
  }
  Victim::check_all_gone();
  if (!p) return;
  ++counts.ran;
  if (plain.late) {
    ++counts.endless;
    return;
  }
  const Outcome passed = Run(seed)(written(*better), better, false);
  Victim::check_all_gone();
  if (passed.late) return;  // a slow machine: the result is not meaningful
  if (plain.called != passed.called) fail("the passes have changed whether it runs");
  if (any_step(p->body, uninitialized)) return;
  ++counts.compared;
  for (std::size_t i = 0; i < std::min(plain.values.size(), passed.values.size()); ++i) {
    const auto& [code, value] = plain.values[i];
    const auto& [other_code, other] = passed.values[i];
    if (is_memory(code) || is_memory(other_code)) continue;
    if (code != other_code) fail("the passes have changed an error");
    if (value != other) fail("the passes have changed a result");
  }
  (void)Run(seed)(bytes, p, true);
  ++counts.calls;
  Victim::check_all_gone();
}

[[maybe_unused]] void run(std::uint64_t seed, Counts& counts, bool verbose, const char* folder) {
  Hostile random(seed);
  ProgramBuilder maker(random, catalog());
  const Program made = maker.make();
  const std::string bytes = written(made);
  ++counts.made;
  const core::Status status = ops::verify(made, catalog());
  counts.valid += status.ok();
  if (verbose)
    std::fprintf(stderr, "%s%s\n", passes::to_string(made).c_str(), status.message().c_str());
  check(bytes, seed, counts);
  if (folder != nullptr && status.ok()) {
    const std::string path = std::string(folder) + "/program-" + std::to_string(seed);
    std::ofstream out(path, std::ios::binary);
    if (!(out << bytes.substr(0, bytes.size() - kTail))) fail("cannot write into the folder");
  }
  for (int i = 0; i < 12; ++i) {
    Program spoilt = made;
    for (std::uint64_t n = 1 + random.below(2); n > 0; --n) maker.spoil(spoilt);
    ++counts.spoilt;
    check(written(spoilt), seed, counts);
  }
  for (int i = 0; i < 12; ++i) {
    ++counts.spoilt;
    check(maker.spoil(bytes), seed, counts);
  }
}

}  // namespace
}  // namespace teletensor::fuzz

#ifdef TELETENSOR_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static teletensor::fuzz::Counts counts;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  teletensor::fuzz::check(teletensor::fuzz::with_checksum(body), 1, counts);
  return 0;
}
#else
int main(int argc, char** argv) {
  double seconds = 10;
  std::uint64_t seed = 1;
  bool one = false;
  const char* folder = nullptr;
  std::vector<const char*> files;
  const char* corpus = nullptr;
  for (int i = 1; i < argc; ++i) {
    if (argv[i][0] != '-') {
      files.push_back(argv[i]);
      continue;
    }
    if (i + 1 == argc) break;
    if (std::strcmp(argv[i], "--seconds") == 0) seconds = std::atof(argv[i + 1]);
    if (std::strcmp(argv[i], "--write") == 0) folder = argv[i + 1];
    if (std::strcmp(argv[i], "--corpus") == 0) corpus = argv[i + 1];
    const bool alone = std::strcmp(argv[i], "--seed") == 0;
    if (alone || std::strcmp(argv[i], "--from") == 0) {
      seed = std::strtoull(argv[i + 1], nullptr, 10);
      one = alone;
    }
    ++i;
  }
  teletensor::fuzz::Counts counts;
  for (const char* file : files) {
    teletensor::fuzz::now_at("program_fuzz: %.150s\n", file);
    std::ifstream in(file, std::ios::binary);
    const std::string body{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    if (!in) teletensor::fuzz::fail("cannot read a file");
    teletensor::fuzz::check(teletensor::fuzz::with_checksum(body), 1, counts);
  }
  if (corpus != nullptr) {
    std::ifstream in(corpus);
    for (std::string line; std::getline(in, line);) {
      teletensor::fuzz::now_at("program_fuzz: program %llu of %.100s\n",
                               static_cast<unsigned long long>(counts.ran), corpus);
      std::string body;
      for (std::size_t i = 0; i + 1 < line.size(); i += 2) {
        body += static_cast<char>(std::stoi(line.substr(i, 2), nullptr, 16));
      }
      teletensor::fuzz::check(teletensor::fuzz::with_checksum(body), 1, counts);
    }
    if (counts.ran == 0) teletensor::fuzz::fail("no program of the corpus is accepted");
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (files.empty() && corpus == nullptr) {
    teletensor::fuzz::now_at("program_fuzz: --seed %llu\n", static_cast<unsigned long long>(seed));
    teletensor::fuzz::run(seed++, counts, one, folder);
    if (one || std::chrono::steady_clock::now() >= end) break;
  }
  const auto number = [](std::uint64_t n) { return static_cast<unsigned long long>(n); };
  std::printf(
      "program_fuzz: %llu made, %llu of them valid; %llu spoilt; %llu ran, %llu compared, "
      "%llu without an end, %llu called wrongly\n",
      number(counts.made), number(counts.valid), number(counts.spoilt), number(counts.ran),
      number(counts.compared), number(counts.endless), number(counts.calls));
  if (counts.made >= 20 && counts.valid * 2 < counts.made) {
    std::fprintf(stderr, "program_fuzz: most programs are refused as they were made\n");
    return 1;
  }
  return 0;
}
#endif
