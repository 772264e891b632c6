// The ids that a command declares and the handles that it would write, read from the command alone:
// for commands of thin clients that are refused.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/ops/op.h"
#include "engine/program/command.h"
#include "engine/program/made.h"

namespace teletensor::autograd {

// The ids that a thin client's command takes.
inline std::uint32_t declared_ids(const program::Command& command) {
  if (const auto* apply = std::get_if<program::Apply>(&command)) return apply->made;
  if (const auto* refused = std::get_if<program::Refused>(&command)) return refused->made;
  return program::usual_made(command);
}

// The handles that an instruction would have written to. Its operands may be too few or too many.
inline std::vector<program::HandleId> written_handles(const program::Apply& apply,
                                                      const ops::Catalog& catalog) {
  std::vector<program::HandleId> written;
  const std::size_t operands = apply.arguments.size();
  if (apply.inplace && operands > 0) written.push_back(apply.arguments[0].handle);
  if (apply.op >= catalog.size()) return written;
  const ops::OpDef& def = catalog.at(apply.op);
  std::size_t begin = 0, list = 0;
  for (int p = 0; p < def.operand_parameters && !def.mutates.empty(); ++p) {
    std::size_t count = 1;
    if (def.parameters[static_cast<std::size_t>(p)].type == ops::Parameter::Type::kTensorList) {
      count = list < apply.counts.size() ? apply.counts[list] : 0;
      ++list;
    }
    const std::size_t end = begin + std::min(count, operands - begin);
    if (std::find(def.mutates.begin(), def.mutates.end(), p) != def.mutates.end()) {
      for (std::size_t i = begin; i < end; ++i) written.push_back(apply.arguments[i].handle);
    }
    begin = end;
  }
  std::erase(written, program::HandleId{0});
  return written;
}

// Adds the attributes that a thin client has left out, with their defaults. The ordinal of a random
// op becomes the command's own number, so that each command gets other random numbers.
inline void complete(program::Apply& apply, const ops::OpDef& def, std::uint64_t seq) {
  const auto operands = static_cast<std::size_t>(def.operand_parameters);
  for (std::size_t p = operands + apply.attributes.size(); p < def.parameters.size(); ++p) {
    const ops::Parameter& parameter = def.parameters[p];
    if (!parameter.has_default) return;
    core::Attribute value = parameter.fallback;
    if (def.random && p + 1 == def.parameters.size())
      value.integer = static_cast<std::int64_t>(seq);
    apply.attributes.push_back(std::move(value));
  }
}

}  // namespace teletensor::autograd
