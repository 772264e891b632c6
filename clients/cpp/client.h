// The C++ client: tensors that live and compute in a teletensord daemon.
//
//   using namespace teletensor::client;
//   Connection c = Connection::open("unix:/run/user/1000/teletensor.sock");
//   Tensor w = c.randn({3, 1}).requires_grad();
//   Tensor loss = (x.matmul(w) - y).call("square").mean();
//   loss.backward();
//   SGD({w}, 0.1).step();
//   std::printf("%f\n", loss.item());       // the only line that waits for the daemon
//
// call() runs any operator of the catalog (docs/ops.md) by its name. Names, arguments, defaults and
// behaviour are those of the Python client: a call does no I/O; errors that can be found without
// data are thrown at the call; later errors (out of memory, an index out of range) are thrown by
// the next call that waits. This header needs only the standard library.
//
// Thread-safe; one thread at a time runs a call on a connection.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace teletensor::client {

using Shape = std::vector<std::int64_t>;

// An error that the daemon or the client has found. `code` is a google.rpc.Code. If an operator
// caused the error, what() ends with the operator and the line that issued it.
class Error : public std::runtime_error {
 public:
  Error(int code, const std::string& text) : std::runtime_error(text), code_(code) {}
  int code() const { return code_; }
  static constexpr int kInvalid = 3, kOutOfMemory = 8, kUnimplemented = 12, kLost = 14;

 private:
  int code_;
};

// The source line of a call, as a default argument.
struct Where {
  const char* file = "";
  unsigned line = 0;  // Line number. 0 if unknown.
  static constexpr Where current(const char* file = __builtin_FILE(),
                                 unsigned line = __builtin_LINE()) {
    return {file, line};
  }
};

// An element type by its Python name: "float32", "int64", "bool" and so on.
struct DTypeName {
  std::string name;
};
struct DeviceName {
  std::string name;  // Device name, for example "cpu" or "sim:0".
};

class Connection;
class Value;
struct TensorImpl;
struct ConnectionState;

using Named = std::vector<std::pair<std::string, Value>>;

class Tensor {
 public:
  Tensor() = default;  // Creates an undefined tensor, which as an argument means an absent operand.
  bool defined() const { return impl_ != nullptr; }

  Shape shape() const;
  std::string dtype() const;
  std::int64_t numel() const;

  // Calls an operator with this tensor as its first argument. `named` has attributes and operands
  // by name. Default arguments:
  //  arguments = {}, named = {}, where = Where::current()
  Tensor call(std::string_view op, std::vector<Value> arguments, Named named, Where where) const;
  // Calls the in-place form of an operator, which writes to this tensor.
  const Tensor& call_(std::string_view op, std::vector<Value> arguments, Named named,
                      Where where) const;
  Tensor matmul(const Tensor& other, Where where = Where::current()) const;
  Tensor sum(Where where = Where::current()) const;
  Tensor mean(Where where = Where::current()) const;

  // ---- gradients, as in PyTorch
  const Tensor& requires_grad(bool on = true) const;
  bool is_grad_required() const;
  void backward(Where where = Where::current()) const;
  Tensor grad() const;  // The .grad of the tensor. Undefined if there is no gradient.
  void zero_grad() const;
  Tensor detach() const;

  // ---- These functions wait for the daemon and throw asynchronous errors.
  double item() const;
  std::vector<float> to_floats() const;       // The values in row-major order; for float32 only.
  std::vector<std::int64_t> to_ints() const;  // The values in row-major order; for int64 only.
  std::string to_bytes() const;

 private:
  friend class Connection;
  friend struct ConnectionState;
  friend class Program;
  friend class SGD;
  explicit Tensor(std::shared_ptr<TensorImpl> impl) : impl_(std::move(impl)) {}
  std::vector<Tensor> run(std::string_view op, std::vector<Value>&& arguments, const Named& named,
                          bool inplace, const Where& where) const;
  std::shared_ptr<TensorImpl> impl_;
};

// An argument of an operator: a tensor, a number, a string or a list.
class Value {
 public:
  Value(std::nullptr_t = nullptr) {}
  Value(const Tensor& tensor) : value(tensor) {}
  Value(bool flag) : value(flag) {}
  Value(int number) : value(static_cast<std::int64_t>(number)) {}
  Value(std::int64_t number) : value(number) {}
  Value(double number) : value(number) {}
  Value(const char* text) : value(std::string(text)) {}
  Value(std::string text) : value(std::move(text)) {}
  Value(Shape numbers) : value(std::move(numbers)) {}
  Value(std::vector<Tensor> tensors) : value(std::move(tensors)) {}
  Value(DTypeName dtype) : value(std::move(dtype)) {}
  Value(DeviceName device) : value(std::move(device)) {}

  std::variant<std::nullptr_t, Tensor, bool, std::int64_t, double, std::string, Shape,
               std::vector<Tensor>, DTypeName, DeviceName>
      value;
};

// Defined here because a list of Values cannot have a default before Value is complete.
inline Tensor Tensor::call(std::string_view op, std::vector<Value> arguments = {}, Named named = {},
                           Where where = Where::current()) const {
  std::vector<Tensor> out = run(op, std::move(arguments), named, false, where);
  return out.empty() ? Tensor() : std::move(out[0]);
}
inline const Tensor& Tensor::call_(std::string_view op, std::vector<Value> arguments = {},
                                   Named named = {}, Where where = Where::current()) const {
  run(op, std::move(arguments), named, true, where);
  return *this;
}

Tensor operator+(const Tensor& a, const Value& b);
Tensor operator-(const Tensor& a, const Value& b);
Tensor operator*(const Tensor& a, const Value& b);
Tensor operator/(const Tensor& a, const Value& b);
Tensor operator-(const Tensor& a);

struct Options {
  std::string name;  // Name of the session, for people.
  // Memory to request on each device, in bytes. 0 means the daemon's limit.
  std::uint64_t memory = 0;
  // Access token. If it is empty, TELETENSOR_TOKEN or the file TELETENSOR_TOKEN_FILE supplies it.
  std::string token;
  double timeout = 10;  // Maximum time to connect, in seconds.
  // Seconds for which the daemon keeps the session after the connection is lost. Meanwhile the
  // client reconnects by itself; no command is lost or runs twice. 0 means that the session ends
  // with the connection.
  std::uint64_t lease = 30;
  // Paths of PEM files for TLS: the certificate authorities (empty: TELETENSOR_CA or the system's),
  // and the client's own certificate and key, for a daemon that requests one (empty:
  // TELETENSOR_CERT and TELETENSOR_KEY).
  std::string ca = "", certificate = "", key = "";
};

class Connection {
 public:
  // Connects to "host:port", "unix:/path" or a socket path. The connection uses TLS if the host is
  // not a loopback address, if `ca` or `certificate` is given, or if the address is
  // "tls://host:port". Throws Error: kInvalid for an invalid address, token or file, or the error
  // that gRPC returns if no daemon can be reached.
  static Connection open(const std::string& address, const Options& options = {});

  const std::string& name() const;
  // Address of the daemon that has the session. It differs from that of open() after the session
  // was moved.
  std::string address() const;
  std::vector<std::string> devices() const;

  Tensor tensor(std::span<const float> values, const Shape& shape) const;
  Tensor tensor(std::span<const std::int64_t> values, const Shape& shape) const;
  // Creates a tensor from bytes in row-major order, as to_bytes() returns them.
  Tensor tensor(std::string_view bytes, const std::string& dtype, const Shape& shape,
                const std::string& device = "cpu") const;
  Tensor randn(const Shape& shape, Where where = Where::current()) const;
  Tensor zeros(const Shape& shape, Where where = Where::current()) const;
  void manual_seed(std::int64_t seed) const;

  // Calls any operator of the catalog by its name.
  Tensor call(std::string_view op, std::vector<Value> arguments, Named named = {},
              Where where = Where::current()) const;
  std::vector<Tensor> call_all(std::string_view op, std::vector<Value> arguments, Named named = {},
                               Where where = Where::current()) const;

  // Publishes the tensor for other sessions under `name`. The connection keeps the tensor until
  // unpublish(), the publication of another tensor under the name, or its own end
  // (docs/sharing.md). With `writable`, other sessions may write to it in place, and all sessions
  // see every write. `users` lists users besides this session's user, separated by spaces; "*"
  // means all. Both functions wait for the daemon.
  void publish(const std::string& name, const Tensor& tensor, bool writable = false,
               const std::string& users = "") const;
  void unpublish(const std::string& name) const;
  // Opens a published tensor; "user/name" for one of another user. The result is a leaf that uses
  // the publisher's memory.
  Tensor published(const std::string& name) const;

  // Waits until all issued commands have run. Throws an asynchronous error if there is one.
  void synchronize() const;
  // Ends the session and releases its memory. The destructor of the last Tensor and Connection does
  // the same.
  void close() const;

 private:
  friend class Program;
  explicit Connection(std::shared_ptr<ConnectionState> state) : state_(std::move(state)) {}
  std::shared_ptr<ConnectionState> state_;
};

// A program that tt.jit.save has written in Python: a forward pass, or a complete training step
// with its backward pass and its optimizer.
//
//   Program step = Program::load(daemon, "step.safetensors");
//   for (...) losses.push_back(step({x, y})[0]);     // one small message each; nothing waits
//
// Copies refer to the same program: they share weights and numbers. A call is not recorded for
// gradients; to train, save a training step.
class Program {
 public:
  // Loads a program. Checks the file, the program's checksum, the revision of each operator, and
  // each step, before anything is sent to the daemon. Throws Error: kInvalid for a damaged file,
  // kUnimplemented with the name of an operator that this version does not have.
  static Program load(const Connection& connection, const std::string& path);

  const std::string& name() const;
  const std::vector<std::string>& arguments() const;
  std::vector<std::string> weights() const;
  // Returns a weight of the program. A training step writes to it in place. Throws Error if no
  // weight has this name.
  Tensor weight(const std::string& name) const;
  // Numbers that are not arguments, such as learning rates and step counts.
  std::vector<std::string> numbers() const;
  double number(const std::string& name) const;
  void set_number(const std::string& name, double value) const;

  // Runs the program. Returns the tensors of its result in order; constants in its containers are
  // omitted.
  std::vector<Tensor> operator()(const std::vector<Value>& arguments,
                                 Where where = Where::current()) const;
  // Runs the program `rounds` times in the daemon, with a single message. Returns the results of
  // all rounds, stacked along a new first dimension. `data` are the first arguments: each round
  // receives their next slice along dimension 0, starting again with the first slice after the last
  // one. Throws Error if the program cannot start from the state that a round leaves, such as a
  // first training step, which creates gradients.
  std::vector<Tensor> repeat(std::uint32_t rounds, const std::vector<Tensor>& data,
                             const std::vector<Value>& arguments = {},
                             Where where = Where::current()) const;
  // The program as text, one line for each step, with the source lines.
  std::string text() const;

 private:
  struct State;
  // Runs the program once if `times` is 0, otherwise as a loop in which the first `sliced`
  // arguments are sliced.
  std::vector<Tensor> run(const std::vector<Value>& arguments, std::uint32_t times,
                          std::size_t sliced, const Where& where) const;
  explicit Program(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

// Disables gradient recording in the calling thread while it exists.
class NoGrad {
 public:
  NoGrad();
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  const bool before_;
};

// Stochastic gradient descent; each step is one instruction.
class SGD {
 public:
  SGD(std::vector<Tensor> parameters, double lr, double momentum = 0)
      : parameters_(std::move(parameters)), lr_(lr), momentum_(momentum) {}
  void zero_grad() const;
  void step();

 private:
  std::vector<Tensor> parameters_, buffers_;
  double lr_, momentum_;
};

}  // namespace teletensor::client
