// teletensor-health ADDRESS: exits 0 when the daemon there says that it serves (gRPC health
// protocol), 1 otherwise. For images, which have no Python. ADDRESS as a client takes it:
// unix:/run/teletensor/teletensor.sock, that path alone, or 127.0.0.1:7420.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "proto/wire/target.h"

namespace {

constexpr auto kPatience = std::chrono::seconds(2);

// gRPC's name of the daemon at `address`; "" if it has none.
std::string target_of(const std::string& address) {
  const bool prefixed = address.starts_with("unix:");
  if (!prefixed && !address.starts_with('/')) return address;
  const std::string path = prefixed ? address.substr(5) : address;
  return teletensor::wire::is_socket_path(path) ? teletensor::wire::socket_target(path) : "";
}

// The answer of grpc.health.v1.Health/Check for the whole server, still encoded.
grpc::Status check(const std::string& target, std::string& answer) {
  const auto channel = grpc::CreateChannel(target, grpc::InsecureChannelCredentials());
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  grpc::CompletionQueue queue;
  grpc::ByteBuffer request(nullptr, 0);  // an empty message: every field has its default
  const auto call =
      stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
  call->StartCall();
  grpc::ByteBuffer reply;
  grpc::Status status;
  call->Finish(&reply, &status, &queue);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);  // the deadline bounds it
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
  if (argc != 2) {
    std::fprintf(stderr, "usage: teletensor-health unix:PATH | PATH | HOST:PORT\n");
    return 2;
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
  const bool serving = answer == std::string("\x08\x01");  // field 1, status: SERVING
  std::puts(serving ? "serving" : "not serving");
  return serving ? 0 : 1;
}
