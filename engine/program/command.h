// Command: one entry of a frame, as the client issues it and the daemon's front executes it.
//
// Handles are ids. A command that makes handles takes the next ids in order; both sides count, and
// the frame's header states the first so that a disagreement is found at once. `proto/wire` encodes
// and decodes exactly this.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "engine/core/attributes.h"
#include "engine/core/geometry.h"
#include "engine/core/inline_vector.h"
#include "engine/program/instruction.h"

namespace teletensor::program {

using HandleId = std::uint64_t;  // 0: none

struct Argument {
  enum class Kind : std::uint8_t { kAbsent, kHandle, kNumber };
  Kind kind = Kind::kAbsent;
  HandleId handle = 0;
  core::Number number;

  static Argument absent() { return {}; }
  static Argument of(HandleId id) { return {Kind::kHandle, id, {}}; }
  static Argument of(core::Number number) { return {Kind::kNumber, 0, number}; }
  friend bool operator==(const Argument&, const Argument&) = default;
};

// A catalog op: values, views (select, expand, detach, ...) and in-place forms alike.
struct Apply {
  Apply() {}  // not = default: Apply() would clear it whole first
  OpId op = 0;
  bool record = false;   // the client's grad mode at the call
  bool inplace = false;  // result 0 is written through argument 0
  core::DType default_dtype = core::DType::kF32;
  core::InlineVector<Argument, 3> arguments;
  core::InlineVector<std::uint32_t, 2> counts;  // lengths of list arguments, in signature order
  core::Attributes attributes;
  friend bool operator==(const Apply&, const Apply&) = default;
};

// A small tensor whose bytes travel in the frame (row-major). Makes one handle.
struct Constant {
  core::DType dtype = core::DType::kF32;
  core::Device device;
  core::Dims shape;
  std::string bytes;
  friend bool operator==(const Constant&, const Constant&) = default;
};

// Binds a finished upload (row-major) to a new handle.
struct Uploaded {
  std::uint64_t upload = 0;
  core::DType dtype = core::DType::kF32;
  core::Device device;
  core::Dims shape;
  friend bool operator==(const Uploaded&, const Uploaded&) = default;
};

// Asks for the contents (row-major) as of this position. Small ones come with the progress; with
// `bulk` they wait, bound to this sequence number, for a Download that names it.
struct Fetch {
  HandleId handle = 0;
  bool bulk = false;
  friend bool operator==(const Fetch&, const Fetch&) = default;
};

// Gradients of roots. With `inputs` the results become new handles in that order (those marked
// unused make none); else they go into .grad of the leaves, and `made` counts the .grad handles
// that are new.
struct Backward {
  std::vector<HandleId> roots;
  std::vector<HandleId> seeds;  // one per root, 0: ones
  std::vector<HandleId> inputs;
  bool has_inputs = false;
  bool retain_graph = false;
  bool allow_unused = false;
  // Structure only: the client has expanded this backward into instructions itself, and now both
  // sides free what it used up.
  bool expanded = false;
  std::uint32_t made = 0;
  friend bool operator==(const Backward&, const Backward&) = default;
};

// Gives a name to what tape node `node` saved in `slot` (operand number, or 256 + result number).
struct Saved {
  std::uint64_t node = 0;
  std::uint32_t slot = 0;
  friend bool operator==(const Saved&, const Saved&) = default;
};

// What tape node `node` saved is dropped: the client will run its backward over values that it has
// computed again (checkpoint).
struct Forget {
  std::uint64_t node = 0;
  friend bool operator==(const Forget&, const Forget&) = default;
};

// Changes to a handle that compute nothing.
struct SetFlag {
  // kNode: a view's node is made again now, if it has to be; nodes run in the order of their
  // making.
  enum class What : std::uint8_t { kRequiresGrad, kRetainGrad, kNode };
  What what = What::kRequiresGrad;
  HandleId handle = 0;
  bool on = true;  // of kRequiresGrad alone
  friend bool operator==(const SetFlag&, const SetFlag&) = default;
};
struct SetGrad {  // h.grad = grad; 0: None
  HandleId handle = 0, grad = 0;
  friend bool operator==(const SetGrad&, const SetGrad&) = default;
};
struct SetData {  // h.data = other
  HandleId handle = 0, other = 0;
  friend bool operator==(const SetData&, const SetData&) = default;
};

// The client has raised the late error whose root is command `root`: what it touched has its last
// good values and history again from here on.
struct Raise {
  std::uint64_t root = 0;
  friend bool operator==(const Raise&, const Raise&) = default;
};

// Names dropped by the client, in the order of the stream.
struct Release {
  std::vector<HandleId> handles;
  friend bool operator==(const Release&, const Release&) = default;
};

// The client has all bytes that the bulk Fetch `fetch` was to bring, or wants them no more.
struct Taken {
  std::uint64_t fetch = 0;  // seq
  friend bool operator==(const Taken&, const Taken&) = default;
};

// The session keeps the tensor under this name (printable ASCII) beyond its client (0: not any
// more).
struct Keep {
  std::string name;
  HandleId handle = 0;
  friend bool operator==(const Keep&, const Keep&) = default;
};

// Other sessions may use the tensor under this name, those of the same user and of `users` ("alice
// bob", "*": everybody); they may write it when `writable`. Handle 0: the session's publication of
// this name is withdrawn; who has it keeps it.
struct Publish {
  std::string name;
  HandleId handle = 0;
  bool writable = false;
  std::string users;
  friend bool operator==(const Publish&, const Publish&) = default;
};

// Binds a publication to a new handle; dtype, device, shape and `writable` are as it was described.
struct Published {
  std::uint64_t publication = 0;
  core::DType dtype = core::DType::kF32;
  core::Device device;
  core::Dims shape;
  bool writable = false;
  friend bool operator==(const Published&, const Published&) = default;
};

// The session takes part in a group of the user's sessions as `rank` of `ranks`; collectives name
// the group by the session's number. `timeout_ms`: how long one may wait; a second Join changes it.
struct Join {
  std::uint64_t group = 0;
  std::string name;
  std::uint32_t rank = 0, ranks = 1;
  std::uint64_t timeout_ms = 0;
  friend bool operator==(const Join&, const Join&) = default;
};
struct Leave {
  std::uint64_t group = 0;
  friend bool operator==(const Leave&, const Leave&) = default;
};

// Gives the program in `bytes` (serialize.h) a number, not 0 and not in use, for later calls.
struct Define {
  std::uint64_t program = 0;
  std::string bytes;
  friend bool operator==(const Define&, const Define&) = default;
};

// Runs a program. Its results become new handles, parameters that it rebinds are written in place
// (without history), gradients become .grad. Nothing of it is recorded.
//
// With `times` a loop: so many rounds, each on what the one before left in the parameters that it
// rebinds. Inputs in `sliced` have one more dimension in front: round i gets slice i modulo its
// size. `numbers` are those of the first round, then those of the second, ... Results that are no
// gradients are those of all rounds, along a new dimension 0; gradients are the last round's.
struct Call {
  std::uint64_t program = 0;
  std::vector<HandleId> inputs;        // one a parameter
  std::vector<core::Number> numbers;   // as many and of the kinds that the program has
  std::int64_t seed = 0, ordinal = 0;  // of its random steps
  std::uint32_t made = 0;              // results
  std::uint32_t times = 0;             // 0: once, not a loop
  std::vector<std::uint32_t> sliced;   // parameters, ascending
  friend bool operator==(const Call&, const Call&) = default;
};

// The program's number is free again; calls under way are not touched.
struct Undefine {
  std::uint64_t program = 0;
  friend bool operator==(const Undefine&, const Undefine&) = default;
};

using Command = std::variant<Apply, Constant, Uploaded, Fetch, Backward, Saved, SetFlag, SetGrad,
                             SetData, Raise, Release, Forget, Taken, Keep, Define, Call, Undefine,
                             Publish, Published, Join, Leave>;

}  // namespace teletensor::program
