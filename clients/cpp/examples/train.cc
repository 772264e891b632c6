// Trains a small network through a daemon: y = sin(x)^2 on [0, 3], two layers, full batches.
//
//   teletensor-train unix:/run/user/1000/teletensor.sock [steps]
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "clients/cpp/client.h"

using namespace teletensor::client;

namespace {

int train(const char* address, int steps) {
  const Connection daemon = Connection::open(address);
  daemon.manual_seed(0);

  std::vector<float> inputs, targets;
  for (int i = 0; i < 64; ++i) {
    const float at = 3.0f * static_cast<float>(i) / 63.0f;
    inputs.push_back(at);
    targets.push_back(std::sin(at) * std::sin(at));
  }
  const Tensor x = daemon.tensor(inputs, {64, 1}), y = daemon.tensor(targets, {64, 1});

  const Tensor w1 = daemon.randn({1, 32}).requires_grad(), b1 = daemon.randn({32}).requires_grad();
  const Tensor w2 = (daemon.randn({32, 1}) * 0.2).detach().requires_grad();
  const Tensor b2 = daemon.zeros({1}).requires_grad();
  SGD optimizer({w1, b1, w2, b2}, 0.05, 0.9);

  for (int step = 0; step < steps; ++step) {
    const Tensor hidden = (x.matmul(w1) + b1).call("tanh");
    const Tensor loss = (hidden.matmul(w2) + b2).call("mse_loss", {y});
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    if (step % 100 == 0 || step + 1 == steps) std::printf("step %d loss %.6f\n", step, loss.item());
  }
  daemon.close();
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) {
    std::fprintf(stderr, "usage: %s ADDRESS [STEPS]\n", arguments[0]);
    return 2;
  }
  try {
    return train(arguments[1], count > 2 ? std::atoi(arguments[2]) : 500);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s (code %d)\n", error.what(), error.code());
    return 1;
  }
}
