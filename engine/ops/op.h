// OpDef: the complete definition of one op. The catalog, the client's inference, the Python
// functions, the documentation and the op tester are derived from it; kernels are found by its
// name.
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

// One parameter of a signature, for example
//   "sum(Tensor x, int[]? dim=None, bool keepdim=False, dtype? dtype=None) -> Tensor"
// Operand types are Tensor, Tensor? (may be None), Tensor[] (a list) and Operand (a Tensor or a
// Python number). Attribute types are bool, int, float, int[], str, dtype and device, each with "?"
// if None is allowed. Operands come before attributes.
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
  core::Attribute fallback;  // default value of an attribute
  bool is_operand() const { return type <= Type::kOperand; }
};

// ---------------------------------------------------------------- inference

// One operand as infer sees it.
struct OperandInfo {
  const core::Layout* layout = nullptr;  // set for tensors
  // Set for Python numbers; if both are null, the operand is absent.
  const core::Number* number = nullptr;
  bool tensor() const { return layout != nullptr; }
  bool absent() const { return !layout && !number; }
};

class InferContext {
 public:
  std::string_view op;
  std::span<const OperandInfo> operands;  // lists are flattened
  std::span<const std::uint32_t> counts;  // lengths of the list arguments
  const core::Attributes& attributes;
  core::DType default_dtype = core::DType::kF32;
  core::Device device;  // of the operands (creation ops: of the attribute)
  core::InlineVector<core::Layout, 2> results;

  const core::Dims& shape(std::size_t i) const { return operands[i].layout->geometry.shape; }
  int rank(std::size_t i) const { return shape(i).size(); }
  core::DType dtype(std::size_t i) const { return operands[i].layout->dtype; }
  const core::Geometry& geometry(std::size_t i) const { return operands[i].layout->geometry; }

  // Adds a row-major result. The graph's final check refuses sizes that overflow.
  void add_result(core::DType dtype, const core::Dims& shape) {
    results.push_back({dtype, device, core::Geometry(shape)});
  }
  void add_result(core::DType dtype, const core::Geometry& geometry) {
    results.push_back({dtype, device, geometry});
  }
  // Refuses a complex operand `i`; for ops that order or round their elements.
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
  // The error "op: text" for a dtype that the op does not support.
  core::Status unimplemented(std::string text) const {
    return core::unimplemented(std::string(op) + ": " + std::move(text));
  }
  // The error "op: text" for invalid arguments.
  core::Status fail(std::string text) const {
    return core::invalid(std::string(op) + ": " + std::move(text));
  }
};
// Adds the layouts of the results, including their strides, or returns why the call is refused.
using Infer = core::Status (*)(InferContext&);
// For views: returns geometries relative to operand 0's storage. If the view has another dtype, it
// is that of results[0].
using View = core::Status (*)(InferContext&, std::vector<core::Geometry>& views);

// PyTorch's promotion with its three categories: tensors, 0-d tensors, Python numbers.
core::DType result_type(std::span<const OperandInfo> operands, core::DType default_dtype);

// ---------------------------------------------------------------- derivatives

// The recorded instruction as a vjp sees it.
class VjpContext {
 public:
  virtual ~VjpContext() = default;
  virtual const core::Attributes& attributes() const = 0;
  virtual std::span<const std::uint32_t> counts() const = 0;
  virtual std::size_t operands() const = 0;  // lists are flattened
  virtual Builder& builder() = 0;
  // The gradient of result `i`; zeros if other results have a gradient and this one does not.
  virtual Var gradient(std::size_t i = 0) = 0;
  // Operand `i`: a value that `saves` kept, or a number. Absent if it was not saved; then no wanted
  // gradient needs it.
  virtual Var operand(std::size_t i) = 0;
  virtual Var result(std::size_t i = 0) = 0;  // kept by `saves` with kResult + i
  virtual const core::Layout& operand_layout(std::size_t i) const = 0;
  // Returns true if the gradient of operand i is wanted.
  virtual bool needs(std::size_t i) const = 0;
  // Sets the gradient of operand i. It is summed to the operand's shape and cast to its dtype, so
  // the vjps of broadcasting ops need not do that. Ignored if the gradient is not wanted.
  virtual void give(std::size_t i, const Var& gradient) = 0;
  // Like give() for the gradient transpose(a) @ b of matrices a [k, n] and b [k, m], which a
  // backward may compute together with other products of the same operand.
  virtual void give_product(std::size_t i, const Var& a, const Var& b, bool tf32);
};
using Vjp = void (*)(VjpContext&);

inline constexpr int kResult = 256;  // the Save::slot of result 0
constexpr std::uint32_t bit(int operand) { return 1u << operand; }
inline constexpr std::uint32_t kEveryOperand = ~0u;

// A rule: the tape keeps `slot` if the gradient of any operand in `when` is wanted.
struct Save {
  int slot;                  // operand index, or kResult + result index
  std::uint32_t when = ~0u;  // bit set of operand indices
};

// ---------------------------------------------------------------- tangents and batches

// A call as a jvp sees it: its operands, its results, and the tangents of the operands.
class JvpContext {
 public:
  virtual ~JvpContext() = default;
  virtual const core::Attributes& attributes() const = 0;
  virtual std::span<const std::uint32_t> counts() const = 0;
  virtual std::size_t operands() const = 0;  // lists are flattened
  virtual Builder& builder() = 0;
  virtual Var operand(std::size_t i) = 0;
  virtual Var result(std::size_t i = 0) = 0;
  virtual Var tangent(std::size_t i) = 0;  // absent if the operand is constant
  // Sets the tangent of result i, with its shape and dtype. If it is not called, the result is
  // constant.
  virtual void give(std::size_t i, const Var& tangent) = 0;
};
using Jvp = void (*)(JvpContext&);

// How tangents pass through an op in forward mode if the op has no jvp.
enum class Tangent : std::uint8_t {
  kAuto,        // kDiagonal if `inplace` is kElementwise, otherwise kTransposed
  kTransposed,  // transposes the vjp: correct if the vjp is differentiable, but slow
  kDiagonal,    // each operand element affects one result element: the vjp, applied to the tangents
  kLinear,      // the op applied to the tangents; the tangents of constant operands are zeros
  // The op is linear in each operand. The tangent of its result is a sum over the operands: each
  // term is the op with one operand replaced by its tangent.
  kMultilinear,
};

// A call under vmap as a batching rule sees it; the rule calls ops through it. The batch is the
// first dimension.
class BatchContext {
 public:
  virtual ~BatchContext() = default;
  virtual const core::Attributes& attributes() const = 0;
  virtual std::span<const std::uint32_t> counts() const = 0;
  virtual std::size_t operands() const = 0;  // lists are flattened
  virtual Builder& builder() = 0;
  virtual std::int64_t size() const = 0;          // size of the batch
  virtual bool batched(std::size_t i) const = 0;  // true if operand i has the batch dimension
  virtual int rank(std::size_t i) const = 0;      // of operand i without the batch dimension
  // Operand i with the batch as dimension 0; repeated if it is not batched.
  virtual Var front(std::size_t i) = 0;
  // Operand i unchanged if it is not batched, otherwise like front().
  virtual Var own(std::size_t i) = 0;
  // Adds the next result, which has the batch as dimension 0.
  virtual void give(const Var& result) = 0;
  // Calls the op once for each slice of the batch and stacks the results, for ops without a better
  // rule.
  virtual void slices() = 0;
};
using BatchRule = void (*)(BatchContext&);

// How a call under vmap becomes one call for the whole batch if the op has no batching rule.
enum class Batching : std::uint8_t {
  kAuto,    // kElementwise if `inplace` is kElementwise and the op is not random, otherwise kSlices
  kSlices,  // one call per slice
  kElementwise,  // operands are broadcast against each other
  // The batch becomes dimension 0 of every tensor. Attributes named dim, dim0, dim1, dim2 and dims
  // are shifted accordingly (None for an int[] means all dimensions except the batch); the batch
  // size is inserted in front of an attribute named size.
  kFront,
};

// ---------------------------------------------------------------- the definition

// How a kernel may be used if the result overwrites operand 0.
enum class Inplace : std::uint8_t {
  kTemporary,    // operand and result must not share memory, so a temporary is used
  kElementwise,  // an operand with exactly the result's geometry may share the result's memory
  // The result already contains operand 0, and the kernel writes only the elements that change.
  kRegion,
};

struct OpDef {
  std::string_view signature;
  std::string_view doc;   // one or two sentences: meaning, formula, units
  Infer infer = nullptr;  // null for views
  View view = nullptr;
  Vjp vjp = nullptr;
  std::string_view not_differentiable{};  // the reason, if vjp is null or refuses every operand
  // Bit set of operands whose derivative is not implemented. A backward or a tangent that reaches
  // one raises an error. (If vjp is null, the results are constants instead.)
  std::uint32_t refused = 0;
  std::vector<Save> saves{};
  Inplace inplace = Inplace::kTemporary;
  // Indices of parameters whose tensors are overwritten (list ops: sgd_step, ...); they are the
  // results, in this order.
  std::vector<int> mutates{};
  bool random = false;      // the last two attributes are (int seed, int ordinal)
  bool internal = false;    // a helper of derivatives; not a Python function
  bool collective = false;  // runs when all ranks of its group have reached it
  int revision = 1;
  Tangent tangent = Tangent::kAuto;  // the catalog replaces kAuto
  Jvp jvp = nullptr;
  Batching batching = Batching::kAuto;  // the catalog replaces kAuto
  BatchRule batch = nullptr;

  // The catalog parses these from the signature.
  std::string name{};
  std::vector<Parameter> parameters{};
  int operand_parameters = 0;
  int results = 1;  // -1: as many as infer or view returns ("-> Tensor[]")
};

// Returns true if the derivative by operand i (lists flattened) is refused.
inline bool refuses(const OpDef& def, std::size_t i) {
  return (def.refused >> (i < 31 ? i : 31) & 1) != 0;
}
// Returns the op with the derivatives by `operands` marked as not implemented: a backward or a
// tangent that needs one raises an error.
OpDef refusing(OpDef def, std::uint32_t operands = kEveryOperand);
// The error for operand `i` of a call with these attributes.
core::Status not_implemented(const OpDef& def, const core::Attributes& attributes, std::size_t i);

// The table of all ops by name and id. Built once from the list of families; immutable afterwards.
class Catalog {
 public:
  explicit Catalog(std::vector<OpDef> definitions);
  std::size_t size() const { return definitions_.size(); }
  // Precondition: id < size().
  const OpDef& at(OpId id) const { return definitions_[id]; }
  // Returns nullptr if there is no such op.
  const OpDef* find(std::string_view name) const;
  OpId id(const OpDef& op) const { return static_cast<OpId>(&op - definitions_.data()); }
  // A text with every name, revision and signature, which two sides can compare at Hello.
  std::string fingerprint() const;

  // Checks the number of operands, the counts and the kinds of attributes against the signature.
  // Every decoder and every caller calls it.
  core::Status check(OpId op, std::size_t operands, std::span<const std::uint32_t> counts,
                     const core::Attributes& attributes) const;

 private:
  std::vector<OpDef> definitions_;
  std::vector<std::pair<std::string_view, OpId>> by_name_;  // sorted by name
};

// The catalog of all ops (ops/catalog.cc lists the families).
const Catalog& catalog();

// The id of an op that C++ code names; looked up once.
class OpRef {
 public:
  explicit OpRef(std::string_view name) : id_(catalog().id(*catalog().find(name))) {}
  operator OpId() const { return id_; }

 private:
  OpId id_;
};

}  // namespace teletensor::ops
