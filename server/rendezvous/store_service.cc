#include "server/rendezvous/store_service.h"

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/with_memory.h"
#include "server/session/streams.h"

namespace teletensor::server {

using core::Result;
using core::Status;

namespace {

constexpr char kStoreService[] = "/teletensor.v1.Store/";

KeyStores::Ref ref_of(const v1::StoreRef& ref, const Caller& caller) {
  return {caller.user, ref.name(), ref.generation()};
}

KeyStores::Call call_of(const v1::StoreCall& call) { return {call.client(), call.number()}; }

// A call whose answer may be given later, by any thread. gRPC owns it.
class StoreCall final : public grpc::ServerUnaryReactor {
 public:
  StoreCall(KeyStores& stores, std::string user) : stores_(stores), user_(std::move(user)) {}

  const std::string& user() const { return user_; }
  // Sets the wait that OnCancel() cancels. gRPC calls OnCancel() only after the method has
  // returned.
  void waits(KeyStores::WaitRef wait) { wait_ = std::move(wait); }
  void give(const Status& status) noexcept {
    const core::UsesReserve reserve;
    if (!given_.exchange(true)) Finish(to_grpc(status));
  }
  // Answers the call; fill(found) writes the result into the reply.
  template <class Fill>
  void give(const Result<KeyStores::Found>& found, Fill fill) noexcept {
    if (found.ok()) bytes_ = found->bytes;
    give(core::with_memory("a call", [&] {
      if (found.ok()) fill(*found);
      return found.status();
    }));
  }
  void OnCancel() override {
    if (wait_ && stores_.cancel(wait_))
      give(Status(core::Code::kCancelled, "the caller has disconnected"));
  }
  void OnDone() override {
    stores_.sent(user_, bytes_);
    delete this;
  }

 private:
  KeyStores& stores_;
  const std::string user_;
  KeyStores::WaitRef wait_;
  std::uint64_t bytes_ = 0;  // Size of the values in the answer, in bytes.
  std::atomic<bool> given_{false};
};

}  // namespace

Result<Caller> StoreService::caller(const grpc::CallbackServerContext& context,
                                    const char* method) const {
  Result<Caller> who = auth_.check(context, entrance_, kStoreService + std::string(method));
  if (!who.ok() || who->user != kAnonymous) return who;
  return Status(core::Code::kPermissionDenied,
                "a store needs an authenticated user: connect through the daemon's Unix socket or "
                "with a token");
}

// Answers a call of `method` with the result of act(caller), if the caller may make the call.
template <class Act>
grpc::ServerUnaryReactor* StoreService::answer_to(grpc::CallbackServerContext* context,
                                                  const char* method, Act act) noexcept {
  return answer(context, [&]() -> Status {
    const Result<Caller> who = caller(*context, method);
    return who.ok() ? act(*who) : who.status();
  });
}

// Starts a call of `method` that may wait, if the caller may make it. The call fails with the
// result of act(caller, call), or, if that is OK, is answered later through `call`.
template <class Act>
grpc::ServerUnaryReactor* StoreService::waiting(grpc::CallbackServerContext* context,
                                                const char* method, Act act) noexcept {
  StoreCall* call = nullptr;
  const Status status = core::with_memory("a call", [&]() -> Status {
    const Result<Caller> who = caller(*context, method);
    if (!who.ok()) return who.status();
    call = new StoreCall(stores_, who->user);
    return act(*who, *call);
  });
  if (call == nullptr) return answer(context, [&] { return status; });
  if (!status.ok()) call->give(status);
  return call;
}

grpc::ServerUnaryReactor* StoreService::Open(grpc::CallbackServerContext* context,
                                             const v1::StoreOpenRequest* request,
                                             v1::StoreOpenReply* reply) {
  return waiting(context, "Open", [&](const Caller& caller, StoreCall& call) -> Status {
    const KeyStores::Ref ref{caller.user, request->name(), request->generation()};
    const auto fill = [reply](const KeyStores::Found& found) {
      reply->set_generation(found.generation);
    };
    if (request->way() == v1::StoreOpenRequest::JOIN) {
      auto wait = stores_.join(ref, [&call, fill](const auto& found) { call.give(found, fill); });
      if (wait.ok()) call.waits(std::move(*wait));
      return wait.status();
    }
    if (!v1::StoreOpenRequest::Way_IsValid(request->way())) {
      return core::invalid("way: no value " + std::to_string(request->way()));
    }
    KeyStores::Way way = KeyStores::Way::kShare;
    if (request->way() == v1::StoreOpenRequest::BEGIN) way = KeyStores::Way::kBegin;
    if (request->way() == v1::StoreOpenRequest::NEW) way = KeyStores::Way::kNew;
    const Result<std::uint64_t> generation = stores_.open(ref, way);
    if (!generation.ok()) return generation.status();
    call.give(KeyStores::Found{true, {}, *generation, 0}, fill);
    return {};
  });
}

grpc::ServerUnaryReactor* StoreService::Set(grpc::CallbackServerContext* context,
                                            const v1::StoreSetRequest* request,
                                            v1::StoreSetReply*) {
  return answer_to(context, "Set", [&](const Caller& caller) {
    std::vector<KeyStores::Entry> entries;
    entries.reserve(static_cast<std::size_t>(request->entries_size()));
    for (const v1::StoreEntry& each : request->entries()) {
      entries.emplace_back(each.key(), each.value());
    }
    return stores_.set(ref_of(request->store(), caller), entries);
  });
}

grpc::ServerUnaryReactor* StoreService::Get(grpc::CallbackServerContext* context,
                                            const v1::StoreGetRequest* request,
                                            v1::StoreGetReply* reply) {
  return waiting(context, "Get", [&](const Caller& caller, StoreCall& call) -> Status {
    const std::vector<std::string_view> keys(request->keys().begin(), request->keys().end());
    const auto fill = [reply](const KeyStores::Found& found) {
      reply->set_there(found.there);
      for (const std::string& value : found.values) reply->add_values(value);
    };
    const KeyStores::Ref ref = ref_of(request->store(), caller);
    if (!request->wait()) {
      const Result<KeyStores::Found> found = stores_.find(ref, keys, request->values());
      call.give(found, fill);
      return {};
    }
    auto wait = stores_.wait(ref, keys, request->values(),
                             [&call, fill](const auto& found) { call.give(found, fill); });
    if (wait.ok()) call.waits(std::move(*wait));
    return wait.status();
  });
}

grpc::ServerUnaryReactor* StoreService::Add(grpc::CallbackServerContext* context,
                                            const v1::StoreAddRequest* request,
                                            v1::StoreAddReply* reply) {
  return answer_to(context, "Add", [&](const Caller& caller) {
    const auto sum = stores_.add(ref_of(request->store(), caller), call_of(request->call()),
                                 request->key(), request->amount());
    if (sum.ok()) reply->set_sum(*sum);
    return sum.status();
  });
}

grpc::ServerUnaryReactor* StoreService::Append(grpc::CallbackServerContext* context,
                                               const v1::StoreAppendRequest* request,
                                               v1::StoreAppendReply*) {
  return answer_to(context, "Append", [&](const Caller& caller) {
    return stores_.append(ref_of(request->store(), caller), call_of(request->call()),
                          request->key(), request->value());
  });
}

grpc::ServerUnaryReactor* StoreService::CompareSet(grpc::CallbackServerContext* context,
                                                   const v1::StoreCompareSetRequest* request,
                                                   v1::StoreCompareSetReply* reply) {
  return answer_to(context, "CompareSet", [&](const Caller& caller) {
    auto value = stores_.compare_set(ref_of(request->store(), caller), call_of(request->call()),
                                     request->key(), request->expected(), request->desired());
    if (value.ok()) reply->set_value(std::move(*value));
    return value.status();
  });
}

grpc::ServerUnaryReactor* StoreService::Delete(grpc::CallbackServerContext* context,
                                               const v1::StoreDeleteRequest* request,
                                               v1::StoreDeleteReply* reply) {
  return answer_to(context, "Delete", [&](const Caller& caller) {
    const auto deleted =
        stores_.erase(ref_of(request->store(), caller), call_of(request->call()), request->key());
    if (deleted.ok()) reply->set_deleted(*deleted);
    return deleted.status();
  });
}

grpc::ServerUnaryReactor* StoreService::Count(grpc::CallbackServerContext* context,
                                              const v1::StoreCountRequest* request,
                                              v1::StoreCountReply* reply) {
  return answer_to(context, "Count", [&](const Caller& caller) {
    const auto keys = stores_.count(ref_of(request->store(), caller));
    if (keys.ok()) reply->set_keys(*keys);
    return keys.status();
  });
}

grpc::ServerUnaryReactor* StoreService::Drop(grpc::CallbackServerContext* context,
                                             const v1::StoreDropRequest* request,
                                             v1::StoreDropReply*) {
  return answer_to(context, "Drop", [&](const Caller& caller) {
    return stores_.drop(ref_of(request->store(), caller));
  });
}

}  // namespace teletensor::server
