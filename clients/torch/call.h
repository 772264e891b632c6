// Call: one call of an operator of torch, as a row sees it.
//
// Calls of ops through the session and ops/functions.h need no check: after a failure results are
// absent, further calls do nothing, and the status is looked at once, when the row has returned.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "clients/torch/storage.h"
#include "engine/ops/functions.h"

namespace teletensor::torch {

class Call;

// A line of the tables: how operators of torch become ops of the catalog.
//
// `names`: the operators, without overloads and without the "_" of in-place forms, separated by
// blanks. `text`: "op(argument, ...)", the op's parameters in the order of its signature, where
// "op" is left out if the operator has the op's name; or, for a row with a function, "(argument,
// ...)". An argument is a name from torch's schema, "name?" where some overloads lack it (then the
// op's default is used), a number, 'text', or "-" for None. A row serves an overload only where
// both have the same arguments: none of torch's is ignored, except those after "|". "out" is the
// dtype of the tensor that is written, for operators that have one. A row with an op and a function
// calls the function, which runs the op by run_row() where the op can serve the call.
struct Row {
  const char* names;
  const char* text;
  void (*function)(Call&) = nullptr;
};
std::span<const Row> pointwise_rows();
std::span<const Row> reduction_rows();
std::span<const Row> matrix_rows();
std::span<const Row> linalg_rows();
std::span<const Row> order_rows();
std::span<const Row> loss_rows();
std::span<const Row> neural_rows();
std::span<const Row> window_rows();
std::span<const Row> resample_rows();
std::span<const Row> index_rows();
std::span<const Row> creation_rows();
std::span<const Row> optimizer_rows();

// The rows use this part of the process around them.
class Host {
 public:
  virtual ~Host() = default;
  virtual Session& session() = 0;
  virtual core::Device device() = 0;  // where new tensors go
  virtual void random(void* generator, std::uint64_t count, std::int64_t& seed,
                      std::int64_t& ordinal) = 0;
  // The value of an integer tensor of one element. Waits.
  virtual core::Result<std::int64_t> integer_of(const Var& tensor) = 0;
};

struct Plan;

class Call {
 public:
  Call(Host& host, const Plan& plan, std::span<const tt_value> values,
       std::vector<tt_result>& results)
      : session(host.session()),
        device(host.device()),
        host_(host),
        plan_(plan),
        values_(values),
        results_(results) {}

  Session& session;
  const core::Device device;

  // Arguments by their names in torch's schema. One that this overload lacks is TT_NONE.
  const tt_value& value(std::string_view name) const;
  bool absent(std::string_view name) const { return value(name).kind == TT_NONE; }
  std::int64_t integer(std::string_view name, std::int64_t otherwise = 0) const;
  bool flag(std::string_view name) const { return integer(name) != 0; }
  double real(std::string_view name, double otherwise = 0) const;
  bool is_real(std::string_view name) const;  // false for a number with an imaginary part
  core::Dims ints(std::string_view name) const;
  std::string_view text(std::string_view name) const;
  std::optional<DType> dtype(std::string_view name);
  Var var(std::string_view name) { return var(value(name)); }
  Var var(const tt_value& value);
  std::vector<Var> vars(std::string_view name);
  // Whether element i of the argument `output_mask` is set; true without one.
  bool wanted(std::size_t i) const;
  std::string_view name() const;  // of torch's operator
  // The default generator's, or that of the argument `generator`.
  core::Attributes with_random(core::Attributes attributes);

  // Result 0 of an op.
  Var run(ops::OpId op, std::initializer_list<Var> arguments, core::Attributes attributes = {}) {
    return run_all(op, std::span(arguments.begin(), arguments.size()), std::move(attributes))[0];
  }
  ops::Vars run_all(ops::OpId op, std::span<const Var> arguments, core::Attributes attributes,
                    std::span<const std::uint32_t> counts = {}) {
    return session.call(op, arguments, std::move(attributes), counts);
  }
  // Writes to a tensor, as copy_() does.
  void write(const Var& tensor, const Var& value);
  void run_inplace(ops::OpId op, std::initializer_list<Var> arguments,
                   core::Attributes attributes = {});
  // The value of an integer tensor of one element. Waits; an error in a trace.
  core::Result<std::int64_t> integer_of(const Var& tensor);

  // The next result; of an in-place form, what is written to argument 0.
  void give(const Var& result);
  void give_nothing();  // an undefined tensor
  // A tensor of no dimensions without contents, for what torch wants to have and no row reads.
  void give_blank(DType dtype);
  void give_integer(std::int64_t number);
  void fail(Status status);

  // Runs the op of the row.
  void run_row();
  // Result 0 of the op of the row, with another first operand.
  Var run_row_on(const Var& first);

  // Returns the gradients of an op's operands, computed by the op's own vjp. Bit i of `wants`
  // selects operand i; the gradients of other operands are absent. Results of the op that the vjp
  // needs are computed again unless `results` has them.
  std::vector<Var> gradients(std::string_view op, std::span<const Var> operands,
                             const core::Attributes& attributes, std::span<const Var> gradients,
                             std::uint32_t wants, std::span<const Var> results = {},
                             std::span<const std::uint32_t> counts = {});

 private:
  // What the op of the row is called with.
  struct Operands {
    core::InlineVector<Var, 4> tensors;
    core::InlineVector<std::uint32_t, 2> counts;
    core::Attributes attributes;
    std::span<const Var> all() const { return {tensors.data(), tensors.size()}; }
    std::span<const std::uint32_t> lists() const { return {counts.data(), counts.size()}; }
  };
  Operands row_operands();  // fails the call for a value that the op does not take

  Var var(const tt_tensor& tensor);  // absent for an undefined tensor
  bool in_place() const;

  Host& host_;
  const Plan& plan_;
  const std::span<const tt_value> values_;
  std::vector<tt_result>& results_;
  std::vector<Var> operands_;  // seen so far
  int generators_ = 0;
};

// The rows, found by the operators' schemas.
class Table {
 public:
  Table();
  ~Table();
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;
  int resolve(const tt_schema& schema);
  // Precondition: resolve() gave `row`. `results` is emptied first.
  Status call(Host& host, int row, std::span<const tt_value> arguments,
              std::vector<tt_result>& results) const;
  std::span<const tt_value> arguments(int row, const tt_value* values) const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

// "none", "mean", "sum", by torch's number.
std::string_view reduction_of(std::int64_t number);

}  // namespace teletensor::torch
