#include "capture/depths.h"

#include <nanobind/stl/string.h>

#include <array>
#include <string>
#include <utility>

namespace nb = nanobind;

namespace teletensor::client {
namespace {

constexpr int kUnreached = -1;

struct Opcodes {
  struct Kind {
    bool jumps = false, backward = false, ends = false;
  };
  std::array<Kind, 256> kinds{};
  int cache = -1, extended = -1, generator = -1;
};

const Opcodes& opcodes() {
  static const Opcodes known = [] {
    Opcodes made;
    const nb::module_ module = nb::module_::import_("opcode");
    const nb::object jumps = module.attr("hasjrel");
    for (const auto [key, value] : nb::cast<nb::dict>(module.attr("opmap"))) {
      const std::string name = nb::cast<std::string>(key);
      const int op = nb::cast<int>(value);
      if (op >= 256) continue;  // Pseudo-opcodes, which only the compiler uses.
      Opcodes::Kind& kind = made.kinds[static_cast<std::size_t>(op)];
      kind.jumps = nb::cast<bool>(jumps.attr("__contains__")(value));
      kind.backward = name.find("BACKWARD") != std::string::npos;
      kind.ends = name.starts_with("RETURN_") || name == "RERAISE" || name == "RAISE_VARARGS" ||
                  name == "JUMP_FORWARD" || name == "JUMP_BACKWARD" ||
                  name == "JUMP_BACKWARD_NO_INTERRUPT";
      if (name == "CACHE") made.cache = op;
      if (name == "EXTENDED_ARG") made.extended = op;
      if (name == "RETURN_GENERATOR") {
        made.generator = op;
        kind.ends = false;  // The generator continues after RETURN_GENERATOR.
      }
    }
    return made;
  }();
  return known;
}

// Follows all paths through the code.
class Walk {
 public:
  explicit Walk(std::string_view bytes) : bytes_(bytes), depths_(bytes.size() / 2, kUnreached) {}

  void from(int offset, int depth) {
    ways_.emplace_back(offset, depth);
    while (!ways_.empty()) {
      const auto [at, values] = ways_.back();
      ways_.pop_back();
      go(at, values);
    }
  }
  std::vector<int> depths() && { return std::move(depths_); }

 private:
  int byte(int offset) const {
    return static_cast<unsigned char>(bytes_[static_cast<std::size_t>(offset)]);
  }
  int size() const { return static_cast<int>(bytes_.size()); }
  int& depth_at(int offset) { return depths_[static_cast<std::size_t>(offset) / 2]; }

  static int effect(int op, int arg, bool jumps) {
    const int change = PyCompile_OpcodeStackEffectWithJump(op, arg, jumps ? 1 : 0);
    if (change == PY_INVALID_STACK_EFFECT) {
      PyErr_Format(PyExc_SystemError, "opcode %d has no effect on the stack", op);
      throw nb::python_error();
    }
    return change;
  }

  void go(int at, int depth) {
    const Opcodes& known = opcodes();
    int arg = 0;
    while (at >= 0 && at + 1 < size() && depth_at(at) == kUnreached) {
      depth_at(at) = depth;
      const int op = byte(at);
      arg = arg << 8 | byte(at + 1);
      at += 2;
      if (op == known.extended) continue;
      while (at + 1 < size() && byte(at) == known.cache) {
        depth_at(at) = depth;
        at += 2;
      }
      const Opcodes::Kind kind = known.kinds[static_cast<std::size_t>(op)];
      if (kind.jumps) {
        ways_.emplace_back(at + (kind.backward ? -2 : 2) * arg, depth + effect(op, arg, true));
      }
      if (kind.ends) return;
      // A generator is resumed with a value, whatever effect the compiler records for its creation.
      depth = op == known.generator ? 1 : depth + effect(op, arg, false);
      arg = 0;
    }
  }

  std::string_view bytes_;
  std::vector<int> depths_;
  // Starting points of paths: an offset, and the number of values on the stack there.
  std::vector<std::pair<int, int>> ways_;
};

// Reads the numbers of co_exceptiontable: six bits in each byte, most significant first.
class ExceptionTable {
 public:
  explicit ExceptionTable(std::string_view bytes) : bytes_(bytes) {}
  bool ended() const { return at_ >= bytes_.size(); }
  int next() {
    int value = 0;
    while (!ended()) {
      const int byte = static_cast<unsigned char>(bytes_[at_++]);
      value = value << 6 | (byte & 63);
      if ((byte & 64) == 0) break;
    }
    return value;
  }

 private:
  std::string_view bytes_;
  std::size_t at_ = 0;
};

}  // namespace

void load_opcodes() { (void)opcodes(); }

std::vector<int> stack_depths(PyCodeObject* code, std::string_view bytes) {
  Walk walk(bytes);
  walk.from(0, 0);
  const auto held = nb::cast<nb::bytes>(
      nb::getattr(nb::handle(reinterpret_cast<PyObject*>(code)), "co_exceptiontable"));
  ExceptionTable table({held.c_str(), held.size()});
  while (!table.ended()) {
    table.next();  // The first instruction that the entry covers.
    table.next();  // The number of instructions that the entry covers.
    const int target = 2 * table.next(), depth = table.next();
    // The stack also has the offset of the instruction, if the entry requests it, and the
    // exception.
    walk.from(target, (depth >> 1) + (depth & 1) + 1);
  }
  return std::move(walk).depths();
}

}  // namespace teletensor::client
