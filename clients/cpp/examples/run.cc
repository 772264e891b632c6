// Runs a program that Python has saved (tt.jit.save), through a daemon:
//
//   teletensor-run ADDRESS FILE show               prints the program
//   teletensor-run ADDRESS FILE STEPS [VALUES...]  calls it STEPS times, prints its first results
//   teletensor-run ADDRESS FILE STEPS/SLICED [VALUES...]
//                                                  does the same as one loop in the daemon, whose
//                                                  rounds use slices of the first SLICED arguments
//
// VALUES are the arguments in order: numbers separated by commas, and after a colon the shape, for
// example 1,2,3,4:2,2. A single number without a shape is a scalar.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "clients/cpp/client.h"

using namespace teletensor::client;

namespace {

template <class Number, class Parse>
std::vector<Number> list(const std::string& text, Parse parse) {
  std::vector<Number> out;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    if (end > at) out.push_back(static_cast<Number>(parse(text.substr(at, end - at).c_str())));
    at = end + 1;
  }
  return out;
}

Value argument(const Connection& daemon, const std::string& text) {
  const std::size_t colon = text.find(':');
  const auto values =
      list<float>(text.substr(0, colon), [](const char* t) { return std::atof(t); });
  if (colon == std::string::npos && values.size() == 1) return static_cast<double>(values[0]);
  if (colon == std::string::npos) {
    return daemon.tensor(values, {static_cast<std::int64_t>(values.size())});
  }
  return daemon.tensor(values, list<std::int64_t>(text.substr(colon + 1),
                                                  [](const char* t) { return std::atoll(t); }));
}

void print(const std::string& name, const Tensor& tensor) {
  std::printf("%s", name.c_str());
  for (const float value : tensor.call("cast", {DTypeName{"float32"}}).to_floats()) {
    std::printf(" %.9g", static_cast<double>(value));
  }
  std::printf("\n");
}

int run(int count, char** arguments) {
  const Connection daemon = Connection::open(arguments[1]);
  const Program program = Program::load(daemon, arguments[2]);
  if (std::string(arguments[3]) == "show") {
    std::printf("%s", program.text().c_str());
    return 0;
  }
  std::vector<Value> values;
  for (int i = 4; i < count; ++i) values.push_back(argument(daemon, arguments[i]));
  const std::string steps = arguments[3];
  const int rounds = std::atoi(steps.c_str());
  std::vector<Tensor> first;  // The first result of each call; read when all calls have been sent.
  if (const std::size_t slash = steps.find('/'); slash == std::string::npos) {
    for (int step = 0; step < rounds; ++step) first.push_back(program(values).at(0));
  } else {
    std::vector<Tensor> data;
    for (int n = std::atoi(steps.c_str() + slash + 1); n > 0 && !values.empty(); --n) {
      data.push_back(std::get<Tensor>(values.front().value));
      values.erase(values.begin());
    }
    first.push_back(program.repeat(static_cast<std::uint32_t>(rounds), data, values).at(0));
  }
  for (const Tensor& each : first) print("result", each);
  for (const std::string& name : program.weights()) print(name, program.weight(name).detach());
  daemon.close();
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 4) {
    std::fprintf(stderr, "usage: %s ADDRESS FILE show | STEPS [VALUES...]\n", arguments[0]);
    return 2;
  }
  try {
    return run(count, arguments);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s (code %d)\n", error.what(), error.code());
    return 1;
  }
}
