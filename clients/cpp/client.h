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
// Every op of the catalog (docs/ops.md) is there by its name: call(). Names, arguments, defaults
// and meaning are those of the Python client, and so is the rest: an op call does no I/O, eager
// errors are raised at the call, late ones (out of memory, an index out of range) by whatever waits
// next. This header needs nothing but the standard library.
//
// Thread-safe; one thread at a time is inside a connection.
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

// A daemon's or a mirror's refusal. `code` is one of google.rpc.Code; what() ends with the op and
// the line that issued it, where an op is to blame.
class Error : public std::runtime_error {
 public:
  Error(int code, const std::string& text) : std::runtime_error(text), code_(code) {}
  int code() const { return code_; }
  static constexpr int kInvalid = 3, kOutOfMemory = 8, kUnimplemented = 12, kLost = 14;

 private:
  int code_;
};

// The line of a call; a default argument.
struct Where {
  const char* file = "";
  unsigned line = 0;  // 0: not known
  static constexpr Where current(const char* file = __builtin_FILE(),
                                 unsigned line = __builtin_LINE()) {
    return {file, line};
  }
};

// Element types by their names in Python: "float32", "int64", "bool", ...
struct DTypeName {
  std::string name;
};
struct DeviceName {
  std::string name;  // "cpu", "sim:0"
};

class Connection;
class Value;
struct TensorImpl;
struct ConnectionState;

using Named = std::vector<std::pair<std::string, Value>>;

class Tensor {
 public:
  Tensor() = default;  // absent, as an argument
  bool defined() const { return impl_ != nullptr; }

  Shape shape() const;
  std::string dtype() const;
  std::int64_t numel() const;

  // An op with this tensor as its first argument; named attributes and operands by `named`.
  // arguments = {}, named = {}, where = Where::current()
  Tensor call(std::string_view op, std::vector<Value> arguments, Named named, Where where) const;
  // The in-place form: writes this tensor.
  const Tensor& call_(std::string_view op, std::vector<Value> arguments, Named named,
                      Where where) const;
  Tensor matmul(const Tensor& other, Where where = Where::current()) const;
  Tensor sum(Where where = Where::current()) const;
  Tensor mean(Where where = Where::current()) const;

  // Gradients, as in PyTorch.
  const Tensor& requires_grad(bool on = true) const;
  bool is_grad_required() const;
  void backward(Where where = Where::current()) const;
  Tensor grad() const;  // absent where there is none
  void zero_grad() const;
  Tensor detach() const;

  // ---- These wait, and raise late errors.
  double item() const;
  std::vector<float> to_floats() const;       // row-major; float32 only
  std::vector<std::int64_t> to_ints() const;  // int64 only
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

// An argument of an op: a tensor, a number, a text, a list.
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

// Here, because a list of Values has no default before Value is complete.
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
  std::string name;          // of the session, for people
  std::uint64_t memory = 0;  // bytes asked for on each device; 0: what the daemon allows
  std::string token;         // who this is ["": TELETENSOR_TOKEN, the file TELETENSOR_TOKEN_FILE]
  double timeout = 10;       // seconds, for the connection
  // Seconds that the daemon keeps the session after the connection is lost; until then this client
  // attaches again by itself, and nothing is lost or runs twice. 0: the session ends with it.
  std::uint64_t lease = 30;
  // Files of PEM for TLS: authorities ["": TELETENSOR_CA, the system's], this client's own
  // certificate and key, where the daemon asks for one [TELETENSOR_CERT, TELETENSOR_KEY].
  std::string ca = "", certificate = "", key = "";
};

class Connection {
 public:
  // "host:port", "unix:/path" or a path. Off loopback, and where `ca` or `certificate` is given,
  // the connection is TLS; "tls://host:port" always is. Throws Error: kInvalid for an address, a
  // token or a file that is none, and what gRPC says at once where no daemon can be reached.
  static Connection open(const std::string& address, const Options& options = {});

  const std::string& name() const;
  // Of the daemon that has the session: another one than open() has named once the session has
  // moved.
  std::string address() const;
  std::vector<std::string> devices() const;

  Tensor tensor(std::span<const float> values, const Shape& shape) const;
  Tensor tensor(std::span<const std::int64_t> values, const Shape& shape) const;
  // The bytes of a tensor, row-major, as to_bytes() gives them.
  Tensor tensor(std::string_view bytes, const std::string& dtype, const Shape& shape,
                const std::string& device = "cpu") const;
  Tensor randn(const Shape& shape, Where where = Where::current()) const;
  Tensor zeros(const Shape& shape, Where where = Where::current()) const;
  void manual_seed(std::int64_t seed) const;

  // Any op of the catalog by name.
  Tensor call(std::string_view op, std::vector<Value> arguments, Named named = {},
              Where where = Where::current()) const;
  std::vector<Tensor> call_all(std::string_view op, std::vector<Value> arguments, Named named = {},
                               Where where = Where::current()) const;

  // Lets other sessions use the tensor as `name`. The connection holds the tensor until
  // unpublish(), another tensor's publication under the name, or its own end (docs/sharing.md).
  // `writable`: they may write it in place, and everybody sees every write. `users`: who besides
  // this user's own sessions, with spaces between them; "*": all. Both wait.
  void publish(const std::string& name, const Tensor& tensor, bool writable = false,
               const std::string& users = "") const;
  void unpublish(const std::string& name) const;
  // What a session has published, of another user as "user/name": a leaf on the publisher's own
  // memory.
  Tensor published(const std::string& name) const;

  // Waits until everything issued has run; raises a late error.
  void synchronize() const;
  // Ends the session and gives its memory back; so does the end of the last Tensor and Connection.
  void close() const;

 private:
  friend class Program;
  explicit Connection(std::shared_ptr<ConnectionState> state) : state_(std::move(state)) {}
  std::shared_ptr<ConnectionState> state_;
};

// A program that tt.jit.save has written in Python: a forward, or a whole training step with its
// backward and its optimizer.
//
//   Program step = Program::load(daemon, "step.safetensors");
//   for (...) losses.push_back(step({x, y})[0]);     // one small message each; nothing waits
//
// Copies are one program: they share weights and numbers. A call is not recorded; what trains is a
// saved training step.
class Program {
 public:
  // Checks the file, the program's checksum, each op with its revision, and each step, before
  // anything goes to the daemon. Throws Error: kInvalid for a damaged file, kUnimplemented for what
  // this software has not, by name.
  static Program load(const Connection& connection, const std::string& path);

  const std::string& name() const;
  const std::vector<std::string>& arguments() const;
  std::vector<std::string> weights() const;
  // A training step writes it in place. Throws Error for a name that is none.
  Tensor weight(const std::string& name) const;
  // Numbers that are no arguments: learning rates, counts of steps.
  std::vector<std::string> numbers() const;
  double number(const std::string& name) const;
  void set_number(const std::string& name, double value) const;

  // The tensors of its result, in their order; constants in its containers are left out.
  std::vector<Tensor> operator()(const std::vector<Value>& arguments,
                                 Where where = Where::current()) const;
  // Runs it `rounds` times on the daemon, as one message: what it would return, of all rounds along
  // a new first dimension. `data` are the first arguments: each round has the next slice of them
  // along dimension 0, and the first again behind the last. Throws Error where a round leaves
  // something behind that the next cannot begin with (a first training step, which makes
  // gradients).
  std::vector<Tensor> repeat(std::uint32_t rounds, const std::vector<Tensor>& data,
                             const std::vector<Value>& arguments = {},
                             Where where = Where::current()) const;
  // One line a step, with the lines of source.
  std::string text() const;

 private:
  struct State;
  // times 0: once; else a loop in which the first `sliced` arguments are slices.
  std::vector<Tensor> run(const std::vector<Value>& arguments, std::uint32_t times,
                          std::size_t sliced, const Where& where) const;
  explicit Program(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

// While it lives, the calling thread records no gradients.
class NoGrad {
 public:
  NoGrad();
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  const bool before_;
};

// Stochastic gradient descent: one instruction a step.
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
