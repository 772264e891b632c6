// Program: loads files that tt.jit.save has written (clients/python/teletensor/jit/_files.py), and
// calls them.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "clients/cpp/client.h"
#include "clients/cpp/safetensors.h"
#include "clients/cpp/state.h"
#include "engine/autograd/callable.h"
#include "engine/ops/verify.h"
#include "engine/passes/passes.h"
#include "engine/program/serialize.h"

namespace teletensor::client {

using core::Code;
using nlohmann::json;
using Lock = std::lock_guard<std::recursive_mutex>;

namespace {

constexpr const char* kKind = "teletensor.program";
constexpr const char* kCall = "teletensor.call";
constexpr const char* kVersion = "1";
constexpr std::string_view kWeights = "weights.";

}  // namespace

struct Program::State {
  struct Input {
    int argument = -1;     // Position among the tensor arguments of the call.
    int gradient_of = -1;  // Index of the input whose .grad this input is.
    std::string weight;    // For any other input: the name of a weight.
  };
  struct Number {
    // Name of the argument that has the value. If it is empty, the number has a name of its own.
    std::string argument;
    std::string name;
    double value = 0;
    bool counts = false;  // Whether the number counts calls.
  };
  struct Output {
    bool is_input = false;
    std::size_t index = 0;
  };

  ~State() {
    const Lock lock(connection->api);
    connection->session->programs().table().release(number);
    weights.clear();
  }
  void describe(const json& call);
  void take_weights(const SafetensorsFile& file, const json& call);
  Number& number_named(const std::string& wanted);
  core::Number number_for(std::size_t i, const std::vector<Value>& given) const;

  std::shared_ptr<ConnectionState> connection;
  std::shared_ptr<const autograd::Callable> callable;
  std::uint64_t number = 0;
  std::string name;
  std::vector<std::string> arguments;
  std::vector<Input> inputs;
  std::vector<Number> numbers;
  std::vector<Output> outputs;  // The results, in the order of the program's result.
  std::vector<std::pair<std::string, Tensor>> weights;
  bool loops = false;  // Whether the program can run again from the state that it leaves.
};

// The description of a call in the file must match the program, which was verified before.
void Program::State::describe(const json& call) {
  const program::Program& p = callable->program();
  name = call.at("name").get<std::string>();
  loops = call.value("loops", false);
  arguments = call.at("arguments").get<std::vector<std::string>>();
  for (const json& each : call.at("parameters")) {
    Input& input = inputs.emplace_back();
    if (each.contains("argument")) {
      input.argument = each.at("argument").get<int>();
    } else if (each.contains("gradient_of")) {
      input.gradient_of = each.at("gradient_of").get<int>();
    } else {
      input.weight = each.at("weight").get<std::string>();
    }
  }
  const int count = static_cast<int>(inputs.size());
  if (inputs.size() != p.body.parameters.size())
    refuse(name + ": the number of inputs differs from the number of parameters");
  for (const Input& input : inputs) {
    const bool nowhere = input.argument < 0 && input.gradient_of < 0 && input.weight.empty();
    if (nowhere || input.argument >= count || input.gradient_of >= count) {
      refuse(name + ": an input has no source");
    }
    if (input.gradient_of >= 0 &&
        inputs[static_cast<std::size_t>(input.gradient_of)].gradient_of >= 0) {
      refuse(name + ": an input is the gradient of a gradient");
    }
  }
  for (const json& each : call.at("numbers")) {
    Number& given = numbers.emplace_back();
    given.name = each.at("name").get<std::string>();
    if (each.contains("argument")) {
      given.argument = each.at("argument").get<std::string>();
      if (std::find(arguments.begin(), arguments.end(), given.argument) == arguments.end()) {
        refuse(name + ": a number refers to an argument that does not exist");
      }
      continue;
    }
    while (std::count_if(numbers.begin(), numbers.end(), [&](const Number& other) {
             return other.argument.empty() && other.name == given.name;
           }) > 1) {
      given.name += "_";
    }
    given.counts = each.contains("counter");
    given.value = each.at(given.counts ? "counter" : "value").get<double>();
  }
  if (numbers.size() != p.numbers.size())
    refuse(name + ": the description has another count of numbers than the program");
  for (const json& each : call.at("outputs")) {
    const Output output{each.at(0).get<bool>(), each.at(1).get<std::size_t>()};
    if (output.index >= (output.is_input ? inputs.size() : p.body.results.size())) {
      refuse(name + ": an output does not exist");
    }
    outputs.push_back(output);
  }
}

void Program::State::take_weights(const SafetensorsFile& file, const json& call) {
  const program::Program& p = callable->program();
  const auto flags = call.at("requires_grad").get<std::vector<std::string>>();
  const auto weight = [&](const std::string& wanted) -> Tensor* {
    for (auto& [known, tensor] : weights) {
      if (known == wanted) return &tensor;
    }
    return nullptr;
  };
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::string& own = inputs[i].weight;
    if (own.empty() || weight(own) != nullptr) continue;
    const SafetensorsFile::Entry* entry = file.find(std::string(kWeights) + own);
    const program::View& view = p.body.parameters[i];
    const program::ValueType& type = p.values[view.value];
    if (entry == nullptr || entry->dtype != type.dtype ||
        !std::equal(entry->shape.begin(), entry->shape.end(), view.geometry.shape.begin(),
                    view.geometry.shape.end())) {
      refuse(name + ": weight '" + own + "' is missing, or of another shape or dtype");
    }
    Tensor tensor = connection->upload(entry->bytes, entry->dtype, type.device, entry->shape);
    const core::Dims& strides = view.geometry.strides;
    if (!(tensor.impl_->handle->geometry().strides == strides)) {
      tensor = tensor.call("relayout", {Shape(strides.begin(), strides.end())});
    }
    if (std::find(flags.begin(), flags.end(), own) != flags.end()) tensor.requires_grad();
    weights.emplace_back(own, std::move(tensor));
  }
  for (const Input& input : inputs) {
    if (input.gradient_of < 0) continue;
    const Tensor* owner = weight(inputs[static_cast<std::size_t>(input.gradient_of)].weight);
    if (owner == nullptr) continue;  // The input is the .grad of an argument, which may be missing.
    const Tensor zero = owner->detach().call("mul", {0});
    const Lock lock(connection->api);
    raise_if(connection->session->assign_grad(*owner->impl_->handle, zero.impl_->handle.get()));
  }
}

Program Program::load(const Connection& connection, const std::string& path) {
  const auto file = SafetensorsFile::read(path);
  raise_if(file.status());
  const std::string* kind = file->metadata(kKind);
  const std::string* call = file->metadata(kCall);
  const SafetensorsFile::Entry* bytes = file->find("program");
  if (kind == nullptr || call == nullptr || bytes == nullptr) {
    refuse(path + ": this file holds no program");
  }
  if (*kind != kVersion) {
    throw Error(Error::kUnimplemented, path + ": a program file of version " + kind->substr(0, 20) +
                                           "; this software reads " + kVersion);
  }
  auto program = program::deserialize(bytes->bytes, ops::op_finder(ops::catalog()));
  raise_if(program.status());
  raise_if(ops::verify(*program, ops::catalog()));
  auto state = std::make_shared<State>();
  state->connection = connection.state_;
  state->callable = std::make_shared<const autograd::Callable>(
      std::make_shared<const program::Program>(std::move(*program)));
  try {
    const json described = json::parse(*call);
    state->describe(described);
    state->take_weights(*file, described);
  } catch (const json::exception& error) {
    refuse(path + ": the description of the call is damaged: " + error.what());
  }
  const Lock lock(connection.state_->api);
  const auto number = connection.state_->session->programs().define(state->callable->program());
  raise_if(number.status());
  state->number = *number;
  return Program(std::move(state));
}

const std::string& Program::name() const { return state_->name; }
const std::vector<std::string>& Program::arguments() const { return state_->arguments; }

std::vector<std::string> Program::weights() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state_->weights) names.push_back(name);
  return names;
}

Tensor Program::weight(const std::string& name) const {
  for (const auto& [known, tensor] : state_->weights) {
    if (known == name) return tensor;
  }
  refuse(state_->name + " has no weight '" + name + "'");
}

std::vector<std::string> Program::numbers() const {
  std::vector<std::string> names;
  for (const State::Number& each : state_->numbers) {
    if (each.argument.empty()) names.push_back(each.name);
  }
  return names;
}

Program::State::Number& Program::State::number_named(const std::string& wanted) {
  for (Number& each : numbers) {
    if (each.argument.empty() && each.name == wanted) return each;
  }
  refuse(name + " has no number '" + wanted + "'");
}

double Program::number(const std::string& name) const {
  const Lock lock(state_->connection->api);
  return state_->number_named(name).value;
}
void Program::set_number(const std::string& name, double value) const {
  const Lock lock(state_->connection->api);
  state_->number_named(name).value = value;
}

// Number `i` of a call, converted to the kind that the program expects.
core::Number Program::State::number_for(std::size_t i, const std::vector<Value>& given) const {
  using Kind = core::Number::Kind;
  const Number& own = numbers[i];
  double value = own.value;
  if (!own.argument.empty()) {
    const auto at = static_cast<std::size_t>(
        std::find(arguments.begin(), arguments.end(), own.argument) - arguments.begin());
    const auto& argument = given[at].value;
    if (const auto* integer = std::get_if<std::int64_t>(&argument)) {
      if (callable->program().numbers[i].kind == Kind::kInt) return core::Number::of_int(*integer);
      value = static_cast<double>(*integer);
    } else if (const auto* real = std::get_if<double>(&argument)) {
      value = *real;
    } else if (const auto* flag = std::get_if<bool>(&argument)) {
      value = *flag;
    } else {
      refuse(name + ": argument '" + own.argument + "' is a number");
    }
  }
  switch (callable->program().numbers[i].kind) {
    case Kind::kFloat:
      return core::Number::of_float(value);
    case Kind::kBool:
      return core::Number::of_bool(value != 0);
    case Kind::kInt:
      if (value == static_cast<double>(static_cast<std::int64_t>(value))) {
        return core::Number::of_int(static_cast<std::int64_t>(value));
      }
      [[fallthrough]];
    default:
      refuse(name + ": the number '" + own.name + "' is of another kind");
  }
}

std::vector<Tensor> Program::operator()(const std::vector<Value>& arguments, Where where) const {
  return run(arguments, 0, 0, where);
}

std::vector<Tensor> Program::repeat(std::uint32_t rounds, const std::vector<Tensor>& data,
                                    const std::vector<Value>& arguments, Where where) const {
  if (rounds == 0) refuse(state_->name + ": the number of rounds must not be 0");
  if (!state_->loops)
    refuse(state_->name + ": cannot be repeated, because it creates new gradients");
  std::vector<Value> all(data.begin(), data.end());
  all.insert(all.end(), arguments.begin(), arguments.end());
  return run(all, rounds, data.size(), where);
}

std::vector<Tensor> Program::run(const std::vector<Value>& arguments, std::uint32_t times,
                                 std::size_t sliced, const Where& where) const {
  State& s = *state_;
  const Lock lock(s.connection->api);
  if (arguments.size() != s.arguments.size()) {
    refuse(s.name + "() takes " + std::to_string(s.arguments.size()) + " arguments, " +
           std::to_string(arguments.size()) + " were given");
  }
  std::vector<HandleRef> tensors;
  for (const Value& value : arguments) {
    const auto* tensor = std::get_if<Tensor>(&value.value);
    if (tensor == nullptr) continue;
    if (!tensor->impl_ || tensor->impl_->state != s.connection) {
      refuse(s.name + "(): a tensor is absent or belongs to another connection");
    }
    tensors.push_back(tensor->impl_->handle);
  }
  std::vector<HandleRef> inputs(s.inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const State::Input& input = s.inputs[i];
    if (input.gradient_of >= 0) continue;
    if (input.argument < 0) {
      inputs[i] = weight(input.weight).impl_->handle;
    } else if (static_cast<std::size_t>(input.argument) < tensors.size()) {
      inputs[i] = tensors[static_cast<std::size_t>(input.argument)];
    } else {
      refuse(s.name + "(): has fewer tensors as arguments than it was saved with");
    }
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (s.inputs[i].gradient_of < 0) continue;
    inputs[i] = inputs[static_cast<std::size_t>(s.inputs[i].gradient_of)]->grad;
    if (!inputs[i]) refuse(s.name + "(): a tensor has no .grad, which the program needs");
  }
  program::Call command;
  command.program = s.number;
  command.times = times;
  for (std::uint32_t i = 0; i < s.inputs.size(); ++i) {
    const int place = s.inputs[i].argument;
    if (place >= 0 && static_cast<std::size_t>(place) < sliced) command.sliced.push_back(i);
  }
  const std::uint32_t rounds = std::max<std::uint32_t>(times, 1);
  const std::vector<State::Number> before = s.numbers;
  for (std::uint32_t round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < s.numbers.size(); ++i) {
      command.numbers.push_back(s.number_for(i, arguments));
    }
    for (State::Number& each : s.numbers) each.value += each.counts;
  }
  command.seed = s.connection->seed;
  command.ordinal = s.connection->ordinal;
  s.connection->session->at("a saved program", where);
  Handles results;
  const core::Status status =
      s.connection->session->programs().call(*s.callable, std::move(command), inputs, results);
  if (!status.ok()) s.numbers = before;
  raise_if(status);
  s.connection->ordinal += static_cast<std::int64_t>(s.callable->program().random_steps * rounds);
  std::vector<Tensor> out;
  for (const State::Output& output : s.outputs) {
    out.push_back(
        s.connection->wrap(output.is_input ? inputs[output.index] : results[output.index]));
  }
  return out;
}

std::string Program::text() const { return passes::to_string(state_->callable->program()); }

}  // namespace teletensor::client
