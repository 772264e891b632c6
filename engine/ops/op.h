// OpDef: everything about one op in one place. The catalog, the client's inference, the Python
// functions, the documentation and the op tester come from it; kernels are found by its name.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/attributes.h"
#include "engine/core/geometry.h"
#include "engine/core/status.h"
#include "engine/ops/var.h"

namespace teletensor::ops {

// ---------------------------------------------------------------- signature

// One parameter of a signature such as
//   "sum(Tensor x, int[]? dim=None, bool keepdim=False, dtype? dtype=None) -> Tensor"
// Operand types: Tensor, Tensor? (may be None), Tensor[] (list), Operand (Tensor or Python number).
// Attribute types: bool, int, float, int[], str, dtype, device; each with "?" when None is allowed.
// Operands come before attributes.
struct Parameter {
  enum class Type : std::uint8_t {
    kTensor,
    kOptionalTensor,
    kTensorList,
    kOperand,
    kBool,
    kInt,
    kFloat,
    kInts,
    kString,
    kDType,
    kDevice,
  };
  std::string name;
  Type type = Type::kTensor;
  bool optional = false;  // None is allowed
  bool has_default = false;
  core::Attribute fallback;  // the default of an attribute
  bool is_operand() const { return type <= Type::kOperand; }
};

// ---------------------------------------------------------------- inference

// What infer sees of one operand.
struct OperandInfo {
  const core::Layout* layout = nullptr;  // tensors
  const core::Number* number = nullptr;  // Python scalars; both null: absent
  bool tensor() const { return layout != nullptr; }
  bool absent() const { return !layout && !number; }
};

class InferContext {
 public:
  std::string_view op;
  std::span<const OperandInfo> operands;  // lists flattened
  std::span<const std::uint32_t> counts;  // lengths of list arguments
  const core::Attributes& attributes;
  core::DType default_dtype = core::DType::kF32;
  core::Device device;  // of the operands (of the attribute for creation ops)
  core::InlineVector<core::Layout, 2> results;

  const core::Dims& shape(std::size_t i) const { return operands[i].layout->geometry.shape; }
  int rank(std::size_t i) const { return shape(i).size(); }
  core::DType dtype(std::size_t i) const { return operands[i].layout->dtype; }
  const core::Geometry& geometry(std::size_t i) const { return operands[i].layout->geometry; }

  // Row-major result. Refuses (through the graph's final check) sizes that overflow.
  void add_result(core::DType dtype, const core::Dims& shape) {
    results.push_back({dtype, device, core::Geometry(shape)});
  }
  void add_result(core::DType dtype, const core::Geometry& geometry) {
    results.push_back({dtype, device, geometry});
  }
  // Refuses a complex operand `i`: for ops that order or round their elements.
  core::Status not_complex(std::size_t i = 0) const {
    return core::is_complex(dtype(i)) ? not_defined_for(dtype(i)) : core::Status();
  }
  core::Status not_defined_for(core::DType dtype, std::string_view instead = "") const {
    return unimplemented("is not defined for " + std::string(core::name_of(dtype)) +
                         std::string(instead));
  }
  // Refuses a dtype that is not floating.
  core::Status only_floating(core::DType dtype) const {
    return core::is_floating(dtype) ? core::Status() : not_defined_for(dtype);
  }
  core::Status floating_expected(core::DType got) const {
    return unimplemented("expected a floating point tensor, got " +
                         std::string(core::name_of(got)));
  }
  // "op: text" as an error of a dtype that the op does not take.
  core::Status unimplemented(std::string text) const {
    return core::unimplemented(std::string(op) + ": " + std::move(text));
  }
  // "op: text" as an invalid-argument error.
  core::Status fail(std::string text) const {
    return core::invalid(std::string(op) + ": " + std::move(text));
  }
};
// Adds the results' layouts, or says why the call is refused. Strides are part of the answer.
using Infer = core::Status (*)(InferContext&);
// For views: geometries on operand 0's storage, whatever its own. results[0] has another dtype.
using View = core::Status (*)(InferContext&, std::vector<core::Geometry>& views);

// PyTorch's three ranks: tensors, 0-d tensors, Python numbers.
core::DType result_type(std::span<const OperandInfo> operands, core::DType default_dtype);

// ---------------------------------------------------------------- derivatives

// What a vjp sees of the recorded instruction.
class VjpContext {
 public:
  virtual ~VjpContext() = default;
  virtual const core::Attributes& attributes() const = 0;
  virtual std::span<const std::uint32_t> counts() const = 0;
  virtual std::size_t operands() const = 0;  // lists flattened
  virtual Builder& builder() = 0;
  // Gradient of result `i`; zeros if other results had a gradient and this one none.
  virtual Var gradient(std::size_t i = 0) = 0;
  // Operand `i`: saved by `saves`, or a number. Absent if it was not saved (then nothing that needs
  // it is wanted).
  virtual Var operand(std::size_t i) = 0;
  virtual Var result(std::size_t i = 0) = 0;  // saved by `saves` with kResult + i
  virtual const core::Layout& operand_layout(std::size_t i) const = 0;
  // Is operand i's gradient wanted?
  virtual bool needs(std::size_t i) const = 0;
  // Hands over operand i's gradient; it is summed to the operand's shape and cast to its dtype
  // here, so vjps of broadcasting ops need not. Ignored where not wanted.
  virtual void give(std::size_t i, const Var& gradient) = 0;
};
using Vjp = void (*)(VjpContext&);

inline constexpr int kResult = 256;  // Save::slot of result 0
constexpr std::uint32_t bit(int operand) { return 1u << operand; }
inline constexpr std::uint32_t kEveryOperand = ~0u;

// The tape keeps `slot` if the gradient of any operand in `when` is wanted.
struct Save {
  int slot;                  // operand number, or kResult + result number
  std::uint32_t when = ~0u;  // bits of operand numbers
};

// ---------------------------------------------------------------- tangents and batches

// What a jvp sees of a call: its operands, its results, the tangents that operands carry.
class JvpContext {
 public:
  virtual ~JvpContext() = default;
  virtual const core::Attributes& attributes() const = 0;
  virtual std::span<const std::uint32_t> counts() const = 0;
  virtual std::size_t operands() const = 0;  // lists flattened
  virtual Builder& builder() = 0;
  virtual Var operand(std::size_t i) = 0;
  virtual Var result(std::size_t i = 0) = 0;
  virtual Var tangent(std::size_t i) = 0;  // absent: the operand is constant
  // Hands over result i's tangent, of its shape and dtype. Not called: the result is constant.
  virtual void give(std::size_t i, const Var& tangent) = 0;
};
using Jvp = void (*)(JvpContext&);

// How tangents flow through an op (forward mode), where no jvp is given.
enum class Tangent : std::uint8_t {
  kAuto,         // kDiagonal where `inplace` says elementwise, else kTransposed
  kTransposed,   // the vjp's own transpose: right where the vjp has a derivative, but slow
  kDiagonal,     // each element of the operands reaches one of the result: the vjp, applied to them
  kLinear,       // the op of the tangents, those of constant operands being zeros
  kMultilinear,  // linear in each operand alone: the sum over operands of the op with its tangent
};

// What a batching rule sees of a call under vmap, and calls ops through. Batches come first.
class BatchContext {
 public:
  virtual ~BatchContext() = default;
  virtual const core::Attributes& attributes() const = 0;
  virtual std::span<const std::uint32_t> counts() const = 0;
  virtual std::size_t operands() const = 0;  // lists flattened
  virtual Builder& builder() = 0;
  virtual std::int64_t size() const = 0;          // of the batch
  virtual bool batched(std::size_t i) const = 0;  // does operand i differ within the batch?
  virtual int rank(std::size_t i) const = 0;      // of operand i without the batch
  // Operand i with the batch as dimension 0, repeated where it is not batched.
  virtual Var front(std::size_t i) = 0;
  // Operand i as it is where it is not batched, else as front().
  virtual Var own(std::size_t i) = 0;
  // Hands over the next result, which has the batch as dimension 0.
  virtual void give(const Var& result) = 0;
  // One call for each slice of the batch, whose results are stacked: for what has no better form.
  virtual void slices() = 0;
};
using BatchRule = void (*)(BatchContext&);

// How a call under vmap becomes one call for the whole batch, where no rule is given.
enum class Batching : std::uint8_t {
  kAuto,         // kElementwise where `inplace` says so and the op is not random, else kSlices
  kSlices,       // one call a slice
  kElementwise,  // operands broadcast against each other
  // The batch becomes dimension 0 of every tensor. Attributes named dim, dim0, dim1, dim2 and dims
  // count from there (int[] None: all but the batch), one named size is preceded by the batch's.
  kFront,
};

// ---------------------------------------------------------------- the definition

// How a kernel may be used on a result that overwrites operand 0.
enum class Inplace : std::uint8_t {
  kTemporary,    // the kernel must not see operand and result share memory: via a temporary
  kElementwise,  // an operand at exactly the result's geometry may share its memory
  kRegion,       // the kernel expects the result to hold operand 0 already and writes what changes
};

struct OpDef {
  std::string_view signature;
  std::string_view doc;   // one or two sentences: meaning, formula, units
  Infer infer = nullptr;  // null for views
  View view = nullptr;
  Vjp vjp = nullptr;
  std::string_view not_differentiable{};  // why, where vjp is null or refuses every operand
  // Operands whose derivative is not implemented, as bits. A backward or a tangent that would reach
  // one raises an error. (Where vjp is null the results are constants.)
  std::uint32_t refused = 0;
  std::vector<Save> saves{};
  Inplace inplace = Inplace::kTemporary;
  std::vector<int> mutates{};  // parameters whose tensors are overwritten (list ops: sgd_step,
                               // ...); the results are these, in order
  bool random = false;         // the last two attributes are (int seed, int ordinal)
  bool internal = false;       // not a Python function (vjps' helpers)
  bool collective = false;     // it runs once all ranks of its group have come to it
  int revision = 1;
  Tangent tangent = Tangent::kAuto;  // resolved by the catalog
  Jvp jvp = nullptr;
  Batching batching = Batching::kAuto;  // resolved by the catalog
  BatchRule batch = nullptr;

  // Parsed from the signature by the catalog.
  std::string name{};
  std::vector<Parameter> parameters{};
  int operand_parameters = 0;
  // Is the derivative by operand i (lists flattened) refused?
  bool refuses(std::size_t i) const { return (refused >> (i < 31 ? i : 31) & 1) != 0; }
  int results = 1;  // -1: as many as infer or view says ("-> Tensor[]")
};

// The op with derivatives by `operands` that are not implemented: a backward or a tangent that
// would need one raises an error.
OpDef refusing(OpDef def, std::uint32_t operands = kEveryOperand);
// That error, for operand `i` of a call with these attributes.
core::Status not_implemented(const OpDef& def, const core::Attributes& attributes, std::size_t i);

// Name -> OpDef; built once from the explicit list of families; immutable afterwards.
class Catalog {
 public:
  explicit Catalog(std::vector<OpDef> definitions);
  std::size_t size() const { return definitions_.size(); }
  // Precondition: id < size().
  const OpDef& at(OpId id) const { return definitions_[id]; }
  // nullptr where there is none.
  const OpDef* find(std::string_view name) const;
  OpId id(const OpDef& op) const { return static_cast<OpId>(&op - definitions_.data()); }
  // Text that two sides compare at Hello: every name, revision and signature.
  std::string fingerprint() const;

  // Counts and attribute kinds against the signature; every decoder and every caller goes through
  // it.
  core::Status check(OpId op, std::size_t operands, std::span<const std::uint32_t> counts,
                     const core::Attributes& attributes) const;

 private:
  std::vector<OpDef> definitions_;
  std::vector<std::pair<std::string_view, OpId>> by_name_;  // sorted
};

// The product's catalog (ops/catalog.cc lists the families).
const Catalog& catalog();

// An op named in code, looked up once.
class OpRef {
 public:
  explicit OpRef(std::string_view name) : id_(catalog().id(*catalog().find(name))) {}
  operator OpId() const { return id_; }

 private:
  OpId id_;
};

}  // namespace teletensor::ops
