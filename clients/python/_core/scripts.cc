// Scripts: pieces of straight code, branches and loops, joined to one program. The compiler is
// teletensor/_script; its tensors are stand-ins of a session without a daemon.

#include <map>

#include "bindings.h"
#include "engine/ops/verify.h"
#include "programs.h"

namespace teletensor::client {
namespace {

using program::Block;
using program::Operand;
using program::Program;
using program::Step;
using program::StepOperand;
using program::StepResult;
using program::ValueId;
using program::View;

const Handle* handle_at(nb::handle object) {
  PyTensor* t = tensor_of(object.ptr());
  if (t == nullptr) throw nb::type_error("script: a Tensor is expected");
  return t->handle.get();
}

class Linker {
 public:
  explicit Linker(std::string name) { program_.name = std::move(name); }

  void input(nb::handle object) {
    const Handle* h = handle_at(object);
    const View view =
        make(h->layout.dtype, h->layout.device, h->geometry().storage_end(), h->geometry());
    names_[h] = view;
    program_.body.parameters.push_back(view);
    program_.parameter_names.emplace_back();
  }
  void run(nb::list nodes) { block(nodes, program_.body); }
  void output(nb::handle object) { program_.body.results.push_back(of(object)); }
  Program take() { return std::move(program_); }

 private:
  View make(core::DType dtype, core::Device device, std::int64_t elements,
            const core::Geometry& geometry) {
    program_.values.push_back({dtype, device, elements});
    return {static_cast<ValueId>(program_.values.size() - 1), geometry};
  }
  View of(nb::handle object) const {
    const auto found = names_.find(handle_at(object));
    if (found == names_.end()) {
      throw nb::value_error("script: a tensor of another branch or of a loop's inside is used");
    }
    return found->second;
  }
  // Handed on by name: what `to` is from now on has the type of `from`.
  View as_like(nb::handle to, const View& from) {
    const program::ValueType type = program_.values[from.value];
    const View view = make(type.dtype, type.device, type.elements, from.geometry);
    names_[handle_at(to)] = view;
    return view;
  }

  void block(nb::list nodes, Block& out) {
    for (nb::handle each : nodes) {
      const auto node = nb::cast<nb::tuple>(each);
      const std::string kind = nb::cast<std::string>(node[0]);
      if (kind == "segment") {
        segment(node, out);
      } else if (kind == "if") {
        branch(node, out);
      } else {
        loop(node, out);
      }
    }
  }

  void segment(const nb::tuple& node, Block& out) {
    const Program& piece = program_of(node[1]);
    const auto fixed = nb::cast<nb::list>(node[2]);
    std::vector<ValueId> value(piece.values.size(), program::kNoValue);
    std::vector<std::int64_t> moved(piece.values.size(), 0);
    for (std::size_t i = 0; i < piece.body.parameters.size(); ++i) {
      const View view = of(fixed[i]);
      const View& parameter = piece.body.parameters[i];
      value[parameter.value] = view.value;
      moved[parameter.value] = view.geometry.offset - parameter.geometry.offset;
    }
    const auto renamed = [&](const View& view) {
      View result{value[view.value], view.geometry};
      result.geometry.offset += moved[view.value];
      return result;
    };
    for (const program::Literal& literal : piece.literals) {
      const program::ValueType& type = piece.values[literal.value];
      value[literal.value] = make(type.dtype, type.device, type.elements, {}).value;
      program_.literals.push_back({value[literal.value], literal.bytes});
    }
    const auto origin = static_cast<std::uint32_t>(program_.origins.size());
    program_.origins.push_back(nb::cast<std::string>(node[5]));
    for (const Step& step : piece.body.steps) {
      Step& copy = out.steps.emplace_back(step);
      copy.origin = origin;
      for (StepOperand& operand : copy.operands) {
        if (operand.kind == Operand::Kind::kTensor) operand.view = renamed(operand.view);
      }
      for (StepResult& result : copy.results) {
        const ValueId id = result.view.value;
        program::ValueType type = piece.values[id];
        if (result.overwrites >= 0) {
          const auto o = static_cast<std::size_t>(result.overwrites);
          type = program_.values[copy.operands[o].view.value];
          moved[id] = moved[step.operands[o].view.value];
        }
        value[id] = make(type.dtype, type.device, type.elements, {}).value;
        result.view = renamed(result.view);
      }
      if (ops::catalog().at(copy.op).random) {
        core::Attributes attributes;
        const std::size_t last = copy.attributes.size() - 1;
        for (std::size_t i = 0; i < last; ++i) attributes.push_back(copy.attributes.at(i));
        attributes.push_back(core::Attribute::of(copy.attributes.integer(last) +
                                                 static_cast<std::int64_t>(program_.random_steps)));
        copy.attributes = std::move(attributes);
      }
    }
    program_.random_steps += piece.random_steps;
    const auto outputs = nb::cast<nb::list>(node[3]);
    const auto alive = nb::cast<nb::list>(node[4]);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const auto output = nb::cast<nb::tuple>(outputs[i]);
      const auto index = nb::cast<std::size_t>(output[1]);
      names_[handle_at(alive[i])] =
          nb::cast<bool>(output[0]) ? of(fixed[index]) : renamed(piece.body.results[index]);
    }
  }

  void branch(const nb::tuple& node, Block& out) {
    Step step;
    step.kind = Step::Kind::kIf;
    step.operands.push_back({Operand::Kind::kTensor, of(node[1]), {}});
    for (const int side : {2, 4}) {
      Block inner;
      block(nb::cast<nb::list>(node[side]), inner);
      for (nb::handle each : nb::cast<nb::list>(node[side + 1])) inner.results.push_back(of(each));
      step.blocks.push_back(std::move(inner));
    }
    std::size_t i = 0;
    for (nb::handle each : nb::cast<nb::list>(node[6])) {
      step.results.push_back({as_like(each, step.blocks[0].results[i++]), -1});
    }
    out.steps.push_back(std::move(step));
  }

  void loop(const nb::tuple& node, Block& out) {
    Step step;
    step.kind = Step::Kind::kWhile;
    std::vector<View> operands;
    for (nb::handle each : nb::cast<nb::list>(node[1])) {
      operands.push_back(of(each));
      step.operands.push_back({Operand::Kind::kTensor, operands.back(), {}});
    }
    Block head, body;
    std::size_t i = 0;
    for (nb::handle each : nb::cast<nb::list>(node[2])) {
      head.parameters.push_back(as_like(each, operands[i++]));
    }
    block(nb::cast<nb::list>(node[3]), head);
    head.results.push_back(of(node[4]));
    i = 0;
    for (nb::handle each : nb::cast<nb::list>(node[5])) {
      body.parameters.push_back(as_like(each, operands[i++]));
    }
    block(nb::cast<nb::list>(node[6]), body);
    for (nb::handle each : nb::cast<nb::list>(node[7])) body.results.push_back(of(each));
    i = 0;
    for (nb::handle each : nb::cast<nb::list>(node[8])) {
      step.results.push_back({as_like(each, operands[i++]), -1});
    }
    step.blocks.push_back(std::move(head));
    step.blocks.push_back(std::move(body));
    out.steps.push_back(std::move(step));
  }

  Program program_;
  std::map<const Handle*, View> names_;
};

}  // namespace

void bind_scripts(nb::module_& m) {
  m.def(
      "link_program",
      [](PySession& session, const std::string& name, nb::list nodes, nb::list inputs,
         nb::list outputs) {
        Linker linker(name);
        for (nb::handle each : inputs) linker.input(each);
        linker.run(nodes);
        for (nb::handle each : outputs) linker.output(each);
        Program program = linker.take();
        raise_if(ops::verify(program, ops::catalog()));
        return program_object(session, std::move(program));
      },
      nb::arg("session"), nb::arg("name"), nb::arg("nodes"), nb::arg("inputs"), nb::arg("outputs"),
      "One program of pieces, branches and loops over stand-ins.");
  m.def(
      "like",
      [](PySession& session, nb::handle object) {
        core::Layout layout = handle_at(object)->layout;
        layout.geometry.offset = 0;
        PyObject* made = wrap(session, session.stand_in(layout));
        if (made == nullptr) throw nb::python_error();
        return nb::steal(made);
      },
      nb::arg("session"), nb::arg("tensor"), "A stand-in of the same layout.");
  m.def("tracing", [](PySession& session) { return session.tracer() != nullptr; });
  m.def("alive_in_trace", [](PySession& session) {
    nb::list out;
    if (session.tracer() == nullptr) return out;
    for (const auto& [id, h] : session.tracer()->alive()) {
      if (h->owner == nullptr) continue;
      PyObject* object = wrap(session, HandleRef(h));
      if (object == nullptr) throw nb::python_error();
      out.append(nb::steal(object));
    }
    return out;
  });
}

}  // namespace teletensor::client
