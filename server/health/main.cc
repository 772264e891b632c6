// teletensor-health ADDRESS exits with 0 if the daemon at ADDRESS reports that it is serving (gRPC
// health protocol), and with 1 otherwise. Container images use it, because they have no Python.
// ADDRESS is written as for a client: unix:/run/teletensor/teletensor.sock, the same path alone, or
// 127.0.0.1:7420.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "proto/wire/target.h"

namespace {

constexpr auto kPatience = std::chrono::seconds(2);

// gRPC's target for the daemon at `address`. Empty if the address is invalid.
std::string target_of(const std::string& address) {
  const bool prefixed = address.starts_with("unix:");
  if (!prefixed && !address.starts_with('/')) return address;
  const std::string path = prefixed ? address.substr(5) : address;
  return teletensor::wire::is_socket_path(path) ? teletensor::wire::socket_target(path) : "";
}

// The encoded answer of grpc.health.v1.Health/Check for the whole server.
grpc::Status check(const std::string& target, std::string& answer) {
  const auto channel = grpc::CreateChannel(target, grpc::InsecureChannelCredentials());
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  grpc::CompletionQueue queue;
  grpc::ByteBuffer request(nullptr, 0);  // An empty message, in which every field has its default.
  const auto call =
      stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
  call->StartCall();
  grpc::ByteBuffer reply;
  grpc::Status status;
  call->Finish(&reply, &status, &queue);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);  // The call's deadline bounds this wait.
  std::vector<grpc::Slice> slices;
  if (status.ok() && reply.Dump(&slices).ok()) {
    for (const grpc::Slice& slice : slices) {
      answer.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
  }
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string word = argc == 2 ? argv[1] : "";
  const bool help = word == "--help" || word == "-h";
  if (help || word.empty() || word.starts_with('-')) {
    std::fprintf(
        help ? stdout : stderr,
        "teletensor-health: whether the daemon at an address reports that it is serving.\n"
        "Usage: teletensor-health unix:PATH | PATH | HOST:PORT\n\n"
        "Exit status: 0 if it is serving, 1 if it is not or does not answer within 2 s, 2 for "
        "a mistake on the command line.\n");
    return help ? 0 : 2;
  }
  const std::string target = target_of(argv[1]);
  if (target.empty()) {
    std::fprintf(stderr, "%s: gRPC cannot name a socket's path that is empty or has a comma\n",
                 argv[1]);
    return 1;
  }
  std::string answer;
  const grpc::Status status = check(target, answer);
  if (!status.ok()) {
    std::fprintf(stderr, "%s: %s\n", argv[1], status.error_message().c_str());
    return 1;
  }
  // Field 1 (status) with the value SERVING.
  const bool serving = answer == std::string("\x08\x01");
  std::puts(serving ? "serving" : "not serving");
  return serving ? 0 : 1;
}
