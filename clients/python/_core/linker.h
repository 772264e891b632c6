// Linker: pieces of straight code, branches and loops become one program, and that program's
// gradients another. What the pieces are is the script compiler's (teletensor/_script); each names
// tensors by stand-ins of a session without a daemon.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/autograd/tracer.h"
#include "engine/ops/op.h"
#include "engine/program/program.h"
#include "programs.h"

namespace teletensor::client {

// What the compiler has made of a function's statements, in their order.
struct Piece {
  enum class Kind : std::uint8_t { kSegment, kIf, kWhile };
  using Handles = std::vector<const Handle*>;
  Kind kind = Kind::kSegment;
  std::string line;  // of source

  // kSegment: straight code. `fixed` are its parameters, `made` (as `outputs` say) what it hands
  // on.
  std::shared_ptr<const program::Program> program;
  Handles fixed, made;
  std::vector<autograd::TracedOutput> outputs;
  nb::object trace;            // where gradients are recorded
  autograd::Traced gradients;  // live(): the backward of those of `made` that have a gradient

  // kIf: `test`, two blocks with what they give. kWhile: the condition's block, which gives `test`,
  // and the body's; `blocks[b]` reads what is carried as `parameters[b]`.
  const Handle* test = nullptr;
  std::vector<Piece> blocks[2];
  Handles operands, parameters[2], given[2], results;
  // live(): places in `results` that have gradients; tensors from outside that get some.
  std::vector<std::size_t> carried;
  Handles outside;
};
using Pieces = std::vector<Piece>;
// The compiler's nodes, which hold the tensors.
Pieces pieces_of(nb::list nodes);

// Finds out what gradients pass on the way from `wanted` backwards, and adds that.
void live(Pieces& pieces, std::set<const Handle*>& wanted);

class Linker {
 public:
  // `forward`: the program whose values may be read here too, as parameters (saved()).
  explicit Linker(std::string name, const Linker* forward = nullptr);

  void input(const Handle& h);
  void output(const Handle& h) { program_.body.results.push_back(of(h)); }
  // The parameters that the program has written to in place.
  void rebinds();
  // The tensors of a run of pieces, and what their gradients need of it.
  struct Done {
    const Piece* piece;
    std::vector<program::View> saved;
    std::vector<program::View> records;  // of a loop, by operand; then the number of rounds
  };
  using Tape = std::vector<Done>;
  void run(const Pieces& pieces, Tape* tape) { block(pieces, program_.body, tape); }
  program::Program take() { return std::move(program_); }
  const program::Program& program() const { return program_; }

  // ---- of a backward
  using Gradients = std::map<const Handle*, program::View>;
  program::View seed(const Handle& h);
  void reverse(const Tape& tape, Gradients& gradients) { reverse(tape, gradients, program_.body); }
  void result(const program::View& view) { program_.body.results.push_back(view); }
  program::View whole(program::ValueId value) const {
    return {value, core::Geometry(core::Dims{program_.values[value].elements})};
  }
  // What it reads of the forward program: values of that one. Ends it.
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

  // ---- writes in place
  // Storage `old` holds `now` from here on, under all of its names.
  void rebind(program::ValueId old, program::ValueId now);
  // The present value of a storage that held `old` when the innermost block began.
  program::ValueId present(program::ValueId old) const;
  // Overwrites the storage that holds `old` with the contents of `with`.
  void overwrite(program::Block& out, program::ValueId old, const program::View& with);
  // The values, of storages that are there already, which these pieces write to in place.
  void written_by(const Pieces& pieces, std::set<program::ValueId>& written) const;

  // The steps of a program whose parameters are these; its results.
  std::vector<program::View> inlined(const program::Program& piece,
                                     const std::vector<program::View>& parameters,
                                     const std::string& line, program::Block& out,
                                     std::vector<program::ValueId>* rebound = nullptr);
  program::View emit(program::Block& out, std::string_view op,
                     std::vector<program::StepOperand> operands,
                     const core::Attributes& attributes = {});
  program::View zeros(program::Block& out, const Handle& like);
  // A row-major value of its own.
  program::View own(program::Block& out, const program::View& view);
  void add(program::Block& out, Gradients& gradients, const Handle& h, const program::View& view);
  void reverse(const Tape& tape, Gradients& gradients, program::Block& out);
  void reverse_segment(const Done& done, Gradients& gradients, program::Block& out);
  void reverse_branch(const Done& done, Gradients& gradients, program::Block& out);
  void reverse_loop(const Done& done, Gradients& gradients, program::Block& out);

  const Linker* const forward_;
  program::Program program_;
  std::map<const Handle*, program::View> names_;
  std::map<program::ValueId, program::ValueId> rebound_;  // in the block under way, at its end
  std::map<program::ValueId, program::View> imported_;    // by value of the forward
  std::vector<std::pair<program::ValueId, program::View>> saved_;
  std::vector<program::View> seeds_;
  int inside_ = 0;  // blocks of the backward
};

}  // namespace teletensor::client
