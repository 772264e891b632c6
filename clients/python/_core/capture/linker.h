// Linker joins pieces of straight-line code, branches and loops to one program, and builds another
// program for its gradients. The script compiler (teletensor/_script) produces the pieces. Each
// piece refers to tensors by stand-ins of a session that is not connected to a daemon.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "capture/programs.h"
#include "engine/autograd/trace/tracer.h"
#include "engine/ops/op.h"
#include "engine/program/program.h"

namespace teletensor::client {

inline program::StepOperand operand_of(const program::View& view) {
  return {program::Operand::Kind::kTensor, view, {}};
}

// A part of a function's statements, as the compiler has translated it. The pieces are in the order
// of the statements.
struct Piece {
  enum class Kind : std::uint8_t { kSegment, kIf, kWhile };
  using Handles = std::vector<const Handle*>;
  Kind kind = Kind::kSegment;
  std::string line;  // The source line of the piece.

  // kSegment: straight-line code. `fixed` are its parameters, and `made` are its results, described
  // by `outputs`.
  std::shared_ptr<const program::Program> program;
  Handles fixed, made;
  std::vector<autograd::TracedOutput> outputs;
  nb::object trace;  // The Trace of the segment, if gradients are recorded.
  // Set by live(): the program that computes the gradients of the segment's parameters from the
  // gradients of its results in `made`, as far as these have one.
  autograd::Traced gradients;

  // kIf: `test` and two blocks with their results. kWhile: the block of the condition, whose result
  // is `test`, and the block of the body; `blocks[b]` reads the carried values as `parameters[b]`.
  const Handle* test = nullptr;
  std::vector<Piece> blocks[2];
  Handles operands, parameters[2], given[2], results;
  // Set by live(): indices in `results` of tensors with gradients, and tensors from outside that
  // receive gradients.
  std::vector<std::size_t> carried;
  Handles outside;
};
using Pieces = std::vector<Piece>;
// Converts the compiler's nodes. The nodes own the tensors.
Pieces pieces_of(nb::list nodes);

// Determines which gradients flow backwards through the pieces, beginning with `wanted`, and adds
// the tensors that receive gradients to `wanted`.
void live(Pieces& pieces, std::set<const Handle*>& wanted);

class Linker {
 public:
  // `forward` is the program whose values this one may read as parameters (see saved()).
  explicit Linker(std::string name, const Linker* forward = nullptr);

  void input(const Handle& h);
  void output(const Handle& h) { program_.body.results.push_back(of(h)); }
  // Records the parameters that the program has written to in place.
  void rebinds();
  // The tensors of an executed piece that its gradients need.
  struct Done {
    const Piece* piece;
    std::vector<program::View> saved;
    // Records of a loop, by operand, and then the number of rounds.
    std::vector<program::View> records;
  };
  using Tape = std::vector<Done>;
  void run(const Pieces& pieces, Tape* tape) { block(pieces, program_.body, tape); }
  program::Program take() { return std::move(program_); }
  const program::Program& program() const { return program_; }

  // ---- for a backward program
  using Gradients = std::map<const Handle*, program::View>;
  program::View seed(const Handle& h);
  void reverse(const Tape& tape, Gradients& gradients) { reverse(tape, gradients, program_.body); }
  void result(const program::View& view) { program_.body.results.push_back(view); }
  program::View whole(program::ValueId value) const {
    return {value, core::Geometry(core::Dims{program_.values[value].elements})};
  }
  // Returns the values of the forward program that this program reads. Completes this program.
  std::vector<program::ValueId> saved();

 private:
  program::View make(core::DType dtype, core::Device device, std::int64_t elements,
                     const core::Geometry& geometry);
  program::View like(const program::View& view);
  program::View of(const Handle& h);
  program::View import(const program::View& of_forward);
  void segment(const Piece& piece, program::Block& out, Tape* tape);
  void branch(const Piece& piece, program::Block& out, Tape* tape);
  void loop(const Piece& piece, program::Block& out, Tape* tape);
  void block(const Pieces& pieces, program::Block& out, Tape* tape);
  // Appends the results of a block: the tensors `given`, and then the present values of the
  // storages that contained the values `written` at its beginning.
  template <class Values>
  void end_block(const Piece::Handles& given, const Values& written, program::Block& out);

  // ---- writes in place
  // Makes every tensor whose storage contained the value `old` refer to the value `now`.
  void rebind(program::ValueId old, program::ValueId now);
  // The current value of a storage that contained `old` at the beginning of the innermost block.
  program::ValueId present(program::ValueId old) const;
  // Overwrites the storage that contains `old` with the contents of `with`.
  void overwrite(program::Block& out, program::ValueId old, const program::View& with);
  // The values, in storages that exist already, that these pieces write to in place.
  void written_by(const Pieces& pieces, std::set<program::ValueId>& written) const;

  // Appends the steps of a program with these parameters, and returns its results.
  std::vector<program::View> inlined(const program::Program& piece,
                                     const std::vector<program::View>& parameters,
                                     const std::string& line, program::Block& out,
                                     std::vector<program::ValueId>* rebound = nullptr);
  program::View emit(program::Block& out, std::string_view op,
                     std::vector<program::StepOperand> operands,
                     const core::Attributes& attributes = {});
  program::View zeros(program::Block& out, const Handle& like);
  // Copies a view to a new value in row-major order.
  program::View own(program::Block& out, const program::View& view);
  void add(program::Block& out, Gradients& gradients, const Handle& h, const program::View& view);
  void reverse(const Tape& tape, Gradients& gradients, program::Block& out);
  void reverse_segment(const Done& done, Gradients& gradients, program::Block& out);
  void reverse_branch(const Done& done, Gradients& gradients, program::Block& out);
  void reverse_loop(const Done& done, Gradients& gradients, program::Block& out);

  const Linker* const forward_;
  program::Program program_;
  std::map<const Handle*, program::View> names_;
  // The new values of storages that the current block has written to so far.
  std::map<program::ValueId, program::ValueId> rebound_;
  // Parameters for values of the forward program, by value.
  std::map<program::ValueId, program::View> imported_;
  std::vector<std::pair<program::ValueId, program::View>> saved_;
  std::vector<program::View> seeds_;
  int inside_ = 0;  // Number of blocks of the backward around the current one.
};

}  // namespace teletensor::client
