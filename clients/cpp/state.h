// The implementation types behind Connection and Tensor (client.h).
//
// A connection may be used by several threads: each function of Connection and Tensor locks
// ConnectionState::api, and the session below sees one API thread at a time. Errors are thrown as
// Error, with the code and the text of the Status.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "clients/cpp/client.h"
#include "clients/cpp/credentials.h"
#include "clients/cpp/hello.h"
#include "clients/cpp/keeper.h"
#include "clients/cpp/route.h"
#include "clients/session/session.h"
#include "clients/session/stream/stream.h"

namespace teletensor::client {

// Throws Error if the status is not OK.
void raise_if(const Status& status);

// The native session for C++, which has neither Python hooks nor custom autograd functions.
class CppSession final : public Session {
 public:
  CppSession(const SessionLimits& limits, std::recursive_mutex& api)
      : Session(limits), api_(api), sites_(kSites) {}

  // Sets the operator and source line of the commands that this thread issues next.
  void at(std::string_view op, const Where& where) { op_ = op, where_ = where; }

  Status run_function(autograd::Node&, std::span<Var>, std::span<Var>) override {
    return core::internal("the C++ client does not support custom autograd functions");
  }
  core::Result<Var> run_hook(autograd::HookId, const Var& g) override { return g; }

 protected:
  Status block(const std::function<bool()>& ready) override;
  void note_site(std::uint64_t seq) override;
  void tick() override;
  std::string issued(std::uint64_t seq) const override;
  core::Result<autograd::Node*> again(autograd::Node&) override {
    return core::internal("the C++ client does not support checkpoints");
  }

 private:
  struct Site {
    std::uint64_t seq = 0;
    std::string_view op;  // Name of the operator in the catalog.
    Where where;
  };
  static constexpr std::size_t kSites = 1 << 14;
  std::recursive_mutex& api_;
  std::string_view op_;
  Where where_;
  std::vector<Site> sites_;
};

// A connection to a daemon. It lives as long as a Connection or a Tensor refers to it.
struct ConnectionState : std::enable_shared_from_this<ConnectionState> {
  // Connects and opens the session. Throws Error if the daemon is not reached or refuses.
  ConnectionState(const std::string& address, const Options& options);
  ~ConnectionState();
  // Waits until all commands have run, and ends the session on the daemon. Then throws the error of
  // a command whose result was not read, if there is one. Later calls do nothing.
  void close();

  // Throws an error that lists the daemon's devices if this is not one of them.
  void check_device(core::Device device) const;
  Tensor wrap(HandleRef handle);
  // Calls an operator by its name in the catalog, with the arguments by position and then by name.
  // Values are computed later; late errors are thrown by a later call that reads a value.
  std::vector<Tensor> call(std::string_view op, const std::vector<Value>& arguments,
                           const Named& named, bool inplace, const Where& where);
  // Copies `bytes`, the elements in row-major order, to the daemon; they are not used afterwards.
  Tensor upload(std::string_view bytes, core::DType dtype, core::Device device, const Shape& shape);
  // Waits for the contents of the tensor and returns them in row-major order.
  std::string read(Handle& handle);
  // Throws the oldest asynchronous error of the session, if there is one.
  void raise_late();
  // Publishes the tensor; a null handle withdraws the name.
  void publish(const std::string& name, const HandleRef& handle, bool writable,
               const std::string& users);
  Tensor published(const std::string& name);

  std::recursive_mutex api;  // Locked by the thread that runs a call on the connection.
  Route route;
  double timeout;
  HelloAnswer hello;
  std::unique_ptr<CppSession> session;
  // A detached alias of each published tensor, by name. The daemon drops a name with the last
  // holder of its tensor.
  std::map<std::string, HandleRef> publications;
  std::unique_ptr<Keeper> keeper;  // Reconnects the session's streams.
  std::uint64_t uploads = 0;
  std::int64_t seed = 67280421310721, ordinal = 0;  // PyTorch's default seed.
  bool closed = false;
};

struct TensorImpl {
  ~TensorImpl() {
    std::lock_guard lock(state->api);
    handle = {};
  }
  std::shared_ptr<ConnectionState> state;
  HandleRef handle;
};

}  // namespace teletensor::client
