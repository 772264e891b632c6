// Makes hostile calls of the service of stores, over gRPC within the process.
//
//   store_fuzz [--seconds N] [--from S] [--seed S]
//     random runs with the seeds S, S + 1, ... (--seed: this one alone): calls of two users with
//     arbitrary fields, a part of them with damaged bytes, some given up while they wait, between
//     calls of a third user who uses a store as programs do.
//
// The following must hold: nothing crashes; each call has an answer, or a status that a caller can
// cause; the third user reads what it has written; and after its stores are deleted nothing remains
// of any user.
#include <google/protobuf/message.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "server/access/tokens.h"
#include "server/rendezvous/store_service.h"
#include "server/testing.h"
#include "victim.h"

namespace teletensor::fuzz {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using server::KeyStores;

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  std::uint64_t number() {
    const std::uint64_t values[] = {0, 1, 2, 3, ~0ull, ~0ull >> 1, 1ull << 63, random_()};
    return values[below(std::size(values))];
  }
  // Usually one of a few texts, so that calls refer to the same stores.
  std::string text() {
    if (one_in(20)) return std::string(4000 + below(200), 'k');
    if (one_in(40)) return std::string((1 << 20) - 2 + below(4), 'v');
    if (one_in(10)) return std::to_string(static_cast<std::int64_t>(number()));
    std::string made(below(4), 'a');
    for (char& each : made) each = static_cast<char>(one_in(4) ? below(128) : 'a' + below(2));
    return made;
  }

 private:
  std::mt19937_64 random_;
};

void fill(Dice& dice, Message& message) {
  const auto* const reflection = message.GetReflection();
  const auto* const type = message.GetDescriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* const field = type->field(i);
    for (std::uint64_t n = field->is_repeated() ? dice.below(4) : dice.below(8) != 0; n > 0; --n) {
      switch (field->cpp_type()) {
        case FieldDescriptor::CPPTYPE_MESSAGE:
          fill(dice, *(field->is_repeated() ? reflection->AddMessage(&message, field)
                                            : reflection->MutableMessage(&message, field)));
          break;
        case FieldDescriptor::CPPTYPE_STRING:
          field->is_repeated() ? reflection->AddString(&message, field, dice.text())
                               : reflection->SetString(&message, field, dice.text());
          break;
        case FieldDescriptor::CPPTYPE_UINT64:
          reflection->SetUInt64(&message, field, dice.number());
          break;
        case FieldDescriptor::CPPTYPE_INT64:
          reflection->SetInt64(&message, field, static_cast<std::int64_t>(dice.number()));
          break;
        case FieldDescriptor::CPPTYPE_BOOL:
          reflection->SetBool(&message, field, dice.one_in(2));
          break;
        case FieldDescriptor::CPPTYPE_ENUM:
          reflection->SetEnumValue(&message, field, static_cast<int>(dice.below(5)));
          break;
        default:
          fail("a type of fields that the fuzzer does not know");
      }
    }
  }
}

// A service whose callers are this user.
class UnixListener {
 public:
  UnixListener(KeyStores& stores, server::Auth& auth, const std::string& user)
      : service_(stores, auth, server::Entrance{false, user}) {
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    builder.SetMaxReceiveMessageSize(8 << 20);
    server_ = builder.BuildAndStart();
    if (!server_) fail("the server does not start");
    channel_ = server_->InProcessChannel(grpc::ChannelArguments());
    stub_ = std::make_unique<grpc::GenericStub>(channel_);
  }
  ~UnixListener() { server_->Shutdown(); }
  std::shared_ptr<grpc::Channel> channel() const { return channel_; }

  // Makes one call with these bytes, which is cancelled after this time.
  grpc::StatusCode call(const std::string& method, const std::string& bytes,
                        std::chrono::milliseconds most) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + most);
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::CompletionQueue queue;
    auto rpc = stub_->PrepareUnaryCall(&context, "/teletensor.v1.Store/" + method, request, &queue);
    rpc->StartCall();
    grpc::ByteBuffer reply;
    grpc::Status status;
    rpc->Finish(&reply, &status, &queue);
    void* tag = nullptr;
    bool ok = false;
    if (!queue.Next(&tag, &ok)) fail("a call has no end");
    queue.Shutdown();
    while (queue.Next(&tag, &ok)) {
    }
    return status.error_code();
  }

 private:
  server::StoreService service_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<grpc::GenericStub> stub_;
};

struct House {
  server::testing::Folder folder;
  server::Tokens tokens{folder.path};
  server::Auth auth{tokens, false, false};
  KeyStores::Clock::time_point now = KeyStores::Clock::now();
  KeyStores stores{{}, [this] { return now; }};
  UnixListener mallory{stores, auth, "mallory"}, trudy{stores, auth, "trudy"},
      alice{stores, auth, "alice"};
  std::unique_ptr<v1::Store::Stub> honest = v1::Store::NewStub(alice.channel());
};

const std::pair<const char*, const Message*> kMethods[] = {
    {"Open", &v1::StoreOpenRequest::default_instance()},
    {"Set", &v1::StoreSetRequest::default_instance()},
    {"Get", &v1::StoreGetRequest::default_instance()},
    {"Add", &v1::StoreAddRequest::default_instance()},
    {"Append", &v1::StoreAppendRequest::default_instance()},
    {"CompareSet", &v1::StoreCompareSetRequest::default_instance()},
    {"Delete", &v1::StoreDeleteRequest::default_instance()},
    {"Count", &v1::StoreCountRequest::default_instance()},
    {"Drop", &v1::StoreDropRequest::default_instance()},
};

// Sets a key and reads it.
void use_honestly(House& house, std::uint64_t generation, std::uint64_t number) {
  v1::StoreSetRequest set;
  set.mutable_store()->set_name("a");  // the same names as the other users' stores
  set.mutable_store()->set_generation(generation);
  v1::StoreEntry& entry = *set.add_entries();
  entry.set_key("a");
  entry.set_value(std::to_string(number));
  grpc::ClientContext writing, reading;
  v1::StoreSetReply written;
  if (!house.honest->Set(&writing, set, &written).ok()) fail("an honest call is refused");
  v1::StoreGetRequest get;
  *get.mutable_store() = set.store();
  get.add_keys(std::string("a"));
  get.set_values(true);
  v1::StoreGetReply found;
  if (!house.honest->Get(&reading, get, &found).ok() || found.values_size() != 1 ||
      found.values(0) != entry.value()) {
    fail("another value than the one that was set");
  }
}

std::uint64_t run(House& house, std::uint64_t seed) {
  Dice dice(seed);
  constexpr std::uint64_t kCalls = 200;
  v1::StoreOpenRequest open;
  open.set_name("a");
  open.set_way(v1::StoreOpenRequest::BEGIN);
  open.set_generation(seed + 1);
  v1::StoreOpenReply opened;
  grpc::ClientContext context;
  if (!house.honest->Open(&context, open, &opened).ok()) fail("a store cannot be opened");
  for (std::uint64_t i = 0; i < kCalls; ++i) {
    const auto& [method, type] = kMethods[dice.below(std::size(kMethods))];
    const std::unique_ptr<Message> request(type->New());
    fill(dice, *request);
    std::string bytes = request->SerializePartialAsString();
    for (std::uint64_t n = dice.one_in(4) ? 1 + dice.below(3) : 0; n > 0 && !bytes.empty(); --n) {
      bytes[dice.below(bytes.size())] = static_cast<char>(dice.below(256));
    }
    const auto code = (dice.one_in(2) ? house.mallory : house.trudy)
                          .call(method, bytes, std::chrono::milliseconds(1 + dice.below(20)));
    // gRPC answers UNIMPLEMENTED to bytes that are not a valid message.
    const bool is_message = request->ParsePartialFromString(bytes);
    if ((code == grpc::StatusCode::UNIMPLEMENTED && is_message) ||
        code == grpc::StatusCode::DATA_LOSS) {
      std::fprintf(stderr, "%s: status %d\n", method, static_cast<int>(code));
      fail("a status that no caller can cause");
    }
    if (i % 20 == 0) use_honestly(house, opened.generation(), i);
  }
  house.now += std::chrono::hours(2);
  if (!server::testing::eventually([&] {  // a cancelled call ends slightly later
        house.stores.sweep();
        return house.stores.total() == KeyStores::Total{};
      })) {
    fail("a store, a byte or a call is left");
  }
  return kCalls;
}

}  // namespace
}  // namespace teletensor::fuzz

int main(int argc, char** argv) {
  double seconds = 10;
  std::uint64_t seed = 1, calls = 0;
  bool alone = false;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--seconds") == 0) seconds = std::atof(argv[i + 1]);
    const bool one = std::strcmp(argv[i], "--seed") == 0;
    if (one || std::strcmp(argv[i], "--from") == 0) {
      seed = std::strtoull(argv[i + 1], nullptr, 10);
      alone = one;
    }
  }
  teletensor::fuzz::House house;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  do {
    teletensor::fuzz::now_at("store_fuzz: --seed %llu\n", static_cast<unsigned long long>(seed));
    calls += teletensor::fuzz::run(house, seed++);
  } while (!alone && std::chrono::steady_clock::now() < end);
  std::printf("store_fuzz: %llu calls\n", static_cast<unsigned long long>(calls));
  return 0;
}
