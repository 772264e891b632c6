#include "server/net/reflection.h"

#include <google/protobuf/descriptor.pb.h>

#include <set>
#include <utility>

#include "engine/core/with_memory.h"
#include "server/session/streams.h"

namespace teletensor::server {

using core::Status;
using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;

namespace {

constexpr char kReflection[] = "grpc.reflection.v1alpha.ServerReflection";
constexpr char kReflectionInfo[] = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

using Request = ReflectionService::Request;
using Response = ReflectionService::Response;

void add_with_imports(const FileDescriptor& file, std::set<const FileDescriptor*>& added,
                      grpc::reflection::v1alpha::FileDescriptorResponse& response) {
  if (!added.insert(&file).second) return;
  google::protobuf::FileDescriptorProto proto;
  file.CopyTo(&proto);
  *response.add_file_descriptor_proto() = proto.SerializeAsString();
  for (int i = 0; i < file.dependency_count(); ++i) {
    add_with_imports(*file.dependency(i), added, response);
  }
}

// The file that a request asks for. Null if there is none.
const FileDescriptor* file_of(const Request& request) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  switch (request.message_request_case()) {
    case Request::kFileByFilename:
      return pool.FindFileByName(request.file_by_filename());
    case Request::kFileContainingSymbol:
      return pool.FindFileContainingSymbol(request.file_containing_symbol());
    case Request::kFileContainingExtension: {
      const auto& extension = request.file_containing_extension();
      const Descriptor* const type = pool.FindMessageTypeByName(extension.containing_type());
      const FieldDescriptor* const field =
          type ? pool.FindExtensionByNumber(type, extension.extension_number()) : nullptr;
      return field ? field->file() : nullptr;
    }
    default:
      return nullptr;
  }
}

void fail(grpc::StatusCode code, const char* text, Response& response) {
  response.mutable_error_response()->set_error_code(code);
  response.mutable_error_response()->set_error_message(text);
}

void respond(const Request& request, const std::vector<std::string>& services, Response& response) {
  response.Clear();
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case Request::kListServices:
      for (const std::string& name : services) {
        response.mutable_list_services_response()->add_service()->set_name(name);
      }
      return;
    case Request::kAllExtensionNumbersOfType: {
      const DescriptorPool& pool = *DescriptorPool::generated_pool();
      const std::string& name = request.all_extension_numbers_of_type();
      const Descriptor* const type = pool.FindMessageTypeByName(name);
      if (!type) return fail(grpc::NOT_FOUND, "there is no such message", response);
      std::vector<const FieldDescriptor*> extensions;
      pool.FindAllExtensions(type, &extensions);
      auto& numbers = *response.mutable_all_extension_numbers_response();
      numbers.set_base_type_name(name);
      for (const FieldDescriptor* each : extensions) numbers.add_extension_number(each->number());
      return;
    }
    case Request::MESSAGE_REQUEST_NOT_SET:
      return fail(grpc::INVALID_ARGUMENT, "the request asks for nothing", response);
    default: {
      const FileDescriptor* const file = file_of(request);
      if (!file) return fail(grpc::NOT_FOUND, "there is no such file or symbol", response);
      std::set<const FileDescriptor*> added;
      add_with_imports(*file, added, *response.mutable_file_descriptor_response());
    }
  }
}

// Reads and answers one request after the other. gRPC calls its functions one at a time.
class ReflectionStream final : public grpc::ServerBidiReactor<Request, Response> {
 public:
  explicit ReflectionStream(const std::vector<std::string>& services) : services_(services) {
    StartRead(&request_);
  }

  void OnReadDone(bool ok) noexcept override {
    if (!ok) return Finish(grpc::Status::OK);
    const Status status = core::with_memory("a call", [&] {
      respond(request_, services_, response_);
      return Status();
    });
    if (!status.ok()) return Finish(to_grpc(status));
    StartWrite(&response_);
  }
  void OnWriteDone(bool ok) noexcept override {
    if (!ok) return Finish(grpc::Status::OK);
    StartRead(&request_);
  }
  void OnDone() noexcept override { delete this; }

 private:
  const std::vector<std::string>& services_;
  Request request_;
  Response response_;
};

}  // namespace

ReflectionService::ReflectionService(const Auth& auth, Entrance entrance,
                                     std::vector<std::string> services)
    : auth_(auth), entrance_(std::move(entrance)), services_([&] {
        services.emplace_back(kReflection);
        return std::move(services);
      }()) {}

grpc::ServerBidiReactor<Request, Response>* ReflectionService::ServerReflectionInfo(
    grpc::CallbackServerContext* context) {
  using Reactor = grpc::ServerBidiReactor<Request, Response>;
  Reactor* reactor = nullptr;
  const Status status = core::with_memory("a stream", [&] {
    const Status refused = auth_.check(*context, entrance_, kReflectionInfo).status();
    if (refused.ok()) reactor = new ReflectionStream(services_);
    return refused;
  });
  return status.ok() ? reactor : new RefusedStream<Reactor>(status);
}

}  // namespace teletensor::server
