// Command: one entry of a frame, as the client issues it and the daemon's front end executes it.
//
// Handles are identified by ids. A command that makes handles takes the next ids in order. Both
// sides count, and the frame's header states the first id, so that a disagreement is found at once.
// `proto/wire` encodes and decodes exactly these structs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/core/attributes.h"
#include "engine/core/geometry.h"
#include "engine/core/inline_vector.h"
#include "engine/core/ref.h"
#include "engine/core/status.h"
#include "engine/program/instruction.h"

namespace teletensor::program {

using HandleId = std::uint64_t;  // 0 means no handle

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

// Runs an op of the catalog: ops that compute values, views (select, expand, detach, ...) and
// in-place forms.
struct Apply {
  Apply() {}  // not = default, which would zero the whole struct first
  OpId op = 0;
  bool record = false;   // the client's grad mode at the call
  bool inplace = false;  // result 0 overwrites argument 0
  core::DType default_dtype = core::DType::kF32;
  // Number of ids that a thin client's command takes, also if it is refused; 0 for other clients.
  std::uint32_t made = 0;
  core::InlineVector<Argument, 3> arguments;
  core::InlineVector<std::uint32_t, 2> counts;  // lengths of list arguments, in signature order
  core::Attributes attributes;
  friend bool operator==(const Apply&, const Apply&) = default;
};

// A small tensor whose row-major bytes are part of the frame. Makes one handle.
struct Constant {
  core::DType dtype = core::DType::kF32;
  core::Device device;
  core::Dims shape;
  std::string bytes;
  friend bool operator==(const Constant&, const Constant&) = default;
};

// Binds a finished upload (row-major bytes) to a new handle.
struct Uploaded {
  std::uint64_t upload = 0;
  core::DType dtype = core::DType::kF32;
  core::Device device;
  core::Dims shape;
  friend bool operator==(const Uploaded&, const Uploaded&) = default;
};

// Requests the row-major contents of a tensor at this position of the stream. Small contents are
// sent with the progress reports. With `bulk` the daemon keeps them until a Download asks for this
// sequence number. With `describe` the result is the layout alone,
// without a wait for kernels.
struct Fetch {
  HandleId handle = 0;
  bool bulk = false;
  bool describe = false;
  friend bool operator==(const Fetch&, const Fetch&) = default;
};

// Computes the gradients of roots. With `inputs` each used input's gradient becomes a new handle,
// in that order (an unused input makes none). Without `inputs` the gradients go into the .grad of
// the leaves, and `made` counts the new .grad handles.
struct Backward {
  std::vector<HandleId> roots;
  std::vector<HandleId> seeds;  // one per root; 0 means a gradient of ones
  std::vector<HandleId> inputs;
  bool has_inputs = false;
  bool retain_graph = false;
  bool allow_unused = false;
  // If true, the client has already issued the instructions of this backward itself. The command
  // then only frees, on both sides, the saved values that the backward used up.
  bool expanded = false;
  std::uint32_t made = 0;
  friend bool operator==(const Backward&, const Backward&) = default;
};

// Makes a handle for the value that tape node `node` saved in `slot` (operand index, or 256 +
// result index).
struct Saved {
  std::uint64_t node = 0;
  std::uint32_t slot = 0;
  friend bool operator==(const Saved&, const Saved&) = default;
};

// Drops the values that tape node `node` saved. The client will run the node's backward on values
// that it recomputes (checkpoint).
struct Forget {
  std::uint64_t node = 0;
  friend bool operator==(const Forget&, const Forget&) = default;
};

// Changes the state of a handle without computing anything.
struct SetFlag {
  // kNode: rebuilds a view's tape node now if it is outdated. The client sends it because a
  // backward visits nodes in the order in which they were made.
  enum class What : std::uint8_t { kRequiresGrad, kRetainGrad, kNode };
  What what = What::kRequiresGrad;
  HandleId handle = 0;
  bool on = true;  // used only by kRequiresGrad
  friend bool operator==(const SetFlag&, const SetFlag&) = default;
};
struct SetGrad {  // h.grad = grad; handle 0 means None
  HandleId handle = 0, grad = 0;
  friend bool operator==(const SetGrad&, const SetGrad&) = default;
};
struct SetData {  // h.data = other
  HandleId handle = 0, other = 0;
  friend bool operator==(const SetData&, const SetData&) = default;
};

// The client has raised the late error that command `root` caused. From here on, every tensor that
// the error reached has its last good value and history again.
struct Raise {
  std::uint64_t root = 0;
  friend bool operator==(const Raise&, const Raise&) = default;
};

// Handles that the client has dropped, in the order of the stream.
struct Release {
  std::vector<HandleId> handles;
  friend bool operator==(const Release&, const Release&) = default;
};

// The client has received all bytes of the bulk Fetch `fetch`, or no longer wants them.
struct Taken {
  std::uint64_t fetch = 0;  // sequence number of the Fetch
  friend bool operator==(const Taken&, const Taken&) = default;
};

// Keeps the tensor under this name (printable ASCII) in the session, even when its client is gone.
// Handle 0 removes the name.
struct Keep {
  std::string name;
  HandleId handle = 0;
  friend bool operator==(const Keep&, const Keep&) = default;
};

// Publishes the tensor under this name to other sessions: to those of the same user and of `users`
// ("alice bob"; "*" means all users). Other sessions may write it if `writable`. Handle 0 withdraws
// the publication; sessions that already use the tensor keep it.
struct Publish {
  std::string name;
  HandleId handle = 0;
  bool writable = false;
  std::string users;
  friend bool operator==(const Publish&, const Publish&) = default;
};

// Binds a published tensor to a new handle; dtype, device, shape and `writable` are those of its
// description.
struct Published {
  std::uint64_t publication = 0;
  core::DType dtype = core::DType::kF32;
  core::Device device;
  core::Dims shape;
  bool writable = false;
  friend bool operator==(const Published&, const Published&) = default;
};

// The session joins a group of the user's sessions as `rank` of `ranks`. Collectives identify the
// group by `group`, a number that the session has chosen. `timeout_ms` bounds how long a collective
// may wait. A second Join of the group changes it.
struct Join {
  static constexpr std::size_t kMaxGroups = 64;  // that a session is in at the same time
  std::uint64_t group = 0;
  std::string name;
  std::uint32_t rank = 0, ranks = 1;
  std::uint64_t timeout_ms = 0;
  // The group continues without ranks that are lost; the same on all ranks.
  bool elastic = false;
  friend bool operator==(const Join&, const Join&) = default;
};
struct Leave {
  std::uint64_t group = 0;
  friend bool operator==(const Leave&, const Leave&) = default;
};

// Gives the program in `bytes` (serialize.h) a number for later calls; the number is not 0 and not
// in use.
struct Define {
  std::uint64_t program = 0;
  std::string bytes;
  friend bool operator==(const Define&, const Define&) = default;
};

// Runs a program. Its results become new handles, the parameters that it rebinds are written in
// place (without history), and its gradients become .grad. Nothing is recorded on the tape.
//
// If `times` is not 0, the program runs in a loop of that many rounds; each round reads the rebound
// parameters as the previous round left them. An input in `sliced` has one more leading dimension:
// round i gets slice i modulo the size of that dimension. `numbers` holds the numbers of the first
// round, then those of the second, and so on. Results that are gradients come from the last round;
// all other results are stacked over the rounds along a new dimension 0.
struct Call {
  std::uint64_t program = 0;
  std::vector<HandleId> inputs;        // one per parameter
  std::vector<core::Number> numbers;   // as many, and of the same kinds, as the program declares
  std::int64_t seed = 0, ordinal = 0;  // for its random steps
  std::uint32_t made = 0;              // number of results
  std::uint32_t times = 0;             // 0: run once, without a loop
  std::vector<std::uint32_t> sliced;   // indices of parameters, ascending
  friend bool operator==(const Call&, const Call&) = default;
};

// Frees the program's number; calls that are already queued still run.
struct Undefine {
  std::uint64_t program = 0;
  friend bool operator==(const Undefine&, const Undefine&) = default;
};

// A thin client's command that its reader has refused: a late error, whose ids fail. Not on the
// wire.
struct Refused {
  core::Code code = core::Code::kInvalidArgument;
  std::string text;
  std::uint32_t made = 0;
  friend bool operator==(const Refused&, const Refused&) = default;
};

// An Apply that a session has sent several times, without its handles. It makes one new handle.
// Shared by the frames that are queued.
class KnownApply : public core::Shared {
 public:
  static constexpr std::size_t kMaxArguments = 4;
  // The front end derives facts from the instruction. They contain no reference to a handle or a
  // value, so any thread may destroy them.
  class Facts {
   public:
    virtual ~Facts() = default;
  };
  explicit KnownApply(Apply apply) : apply(std::move(apply)) {}

  const Apply apply;
  mutable std::unique_ptr<Facts> facts;  // belongs to the front end of the session
};

// A KnownApply with handles. Not on the wire: the frame contains an Apply.
struct Repeated {
  core::Ref<const KnownApply> known;
  std::array<HandleId, KnownApply::kMaxArguments> handles{};  // 0 for an argument of another kind

  Apply expanded() const {
    Apply apply = known->apply;
    for (std::size_t i = 0; i < apply.arguments.size(); ++i) {
      apply.arguments[i].handle = handles[i];
    }
    return apply;
  }
  friend bool operator==(const Repeated&, const Repeated&) = default;
};

using Command = std::variant<Apply, Repeated, Constant, Uploaded, Fetch, Backward, Saved, SetFlag,
                             SetGrad, SetData, Raise, Release, Forget, Taken, Keep, Define, Call,
                             Undefine, Publish, Published, Join, Leave, Refused>;

}  // namespace teletensor::program
