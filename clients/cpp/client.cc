#include "clients/cpp/client.h"

#include <cstring>

#include "clients/cpp/state.h"

namespace teletensor::client {

using Lock = std::lock_guard<std::recursive_mutex>;

namespace {

TensorImpl& made(const std::shared_ptr<TensorImpl>& impl) {
  if (!impl) throw Error(Error::kInvalid, "the tensor is absent");
  return *impl;
}

template <class T>
std::vector<T> elements(const std::string& bytes) {
  std::vector<T> out(bytes.size() / sizeof(T));
  std::memcpy(out.data(), bytes.data(), out.size() * sizeof(T));
  return out;
}

template <class T>
double element(const std::string& bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), sizeof value);
  return static_cast<double>(value);
}

// An operator does not know the line of its caller.
Tensor binary(const char* op, const Tensor& a, const Value& b) { return a.call(op, {b}, {}, {}); }

}  // namespace

// ---------------------------------------------------------------- Tensor

Shape Tensor::shape() const {
  TensorImpl& impl = made(impl_);
  const Lock lock(impl.state->api);
  const auto& dims = impl.handle->layout.geometry.shape;
  return Shape(dims.begin(), dims.end());
}

std::string Tensor::dtype() const {
  TensorImpl& impl = made(impl_);
  const Lock lock(impl.state->api);
  return std::string(core::name_of(impl.handle->layout.dtype));
}

std::int64_t Tensor::numel() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape()) count *= size;
  return count;
}

std::vector<Tensor> Tensor::run(std::string_view op, std::vector<Value>&& arguments,
                                const Named& named, bool inplace, const Where& where) const {
  TensorImpl& impl = made(impl_);
  arguments.insert(arguments.begin(), Value(*this));
  return impl.state->call(op, arguments, named, inplace, where);
}

Tensor Tensor::matmul(const Tensor& other, Where where) const {
  return call("matmul", {other}, {}, where);
}
Tensor Tensor::sum(Where where) const { return call("sum", {}, {}, where); }
Tensor Tensor::mean(Where where) const { return call("mean", {}, {}, where); }
Tensor Tensor::detach() const { return call("detach"); }

const Tensor& Tensor::requires_grad(bool on) const {
  TensorImpl& impl = made(impl_);
  const Lock lock(impl.state->api);
  raise_if(impl.state->session->set_requires_grad(*impl.handle, on));
  return *this;
}

bool Tensor::is_grad_required() const {
  TensorImpl& impl = made(impl_);
  const Lock lock(impl.state->api);
  return impl.handle->requires_grad();
}

void Tensor::backward(Where where) const {
  TensorImpl& impl = made(impl_);
  const Lock lock(impl.state->api);
  impl.state->session->at("backward", where);
  autograd::BackwardCall call;
  call.roots.push_back(impl.handle);
  call.seeds.push_back({});
  std::vector<HandleRef> results;
  raise_if(impl.state->session->backward(std::move(call), false, results));
}

Tensor Tensor::grad() const {
  TensorImpl& impl = made(impl_);
  const Lock lock(impl.state->api);
  return impl.handle->grad ? impl.state->wrap(impl.handle->grad) : Tensor();
}

void Tensor::zero_grad() const {
  TensorImpl& impl = made(impl_);
  const Lock lock(impl.state->api);
  if (impl.handle->grad) raise_if(impl.state->session->assign_grad(*impl.handle, nullptr));
}

std::string Tensor::to_bytes() const {
  TensorImpl& impl = made(impl_);
  return impl.state->read(*impl.handle);
}

double Tensor::item() const {
  if (numel() != 1) {
    throw Error(Error::kInvalid, "item: a tensor with " + std::to_string(numel()) + " elements");
  }
  const std::string type = dtype();
  const std::string bytes = to_bytes();
  if (type == "float32") return element<float>(bytes);
  if (type == "float64") return element<double>(bytes);
  if (type == "int64") return element<std::int64_t>(bytes);
  if (type == "int32") return element<std::int32_t>(bytes);
  if (type == "bool" || type == "uint8") return element<std::uint8_t>(bytes);
  return call("cast", {DTypeName{"float64"}}).item();
}

std::vector<float> Tensor::to_floats() const {
  if (dtype() != "float32") throw Error(Error::kInvalid, "to_floats: the dtype is " + dtype());
  return elements<float>(to_bytes());
}

std::vector<std::int64_t> Tensor::to_ints() const {
  if (dtype() != "int64") throw Error(Error::kInvalid, "to_ints: the dtype is " + dtype());
  return elements<std::int64_t>(to_bytes());
}

Tensor operator+(const Tensor& a, const Value& b) { return binary("add", a, b); }
Tensor operator-(const Tensor& a, const Value& b) { return binary("sub", a, b); }
Tensor operator*(const Tensor& a, const Value& b) { return binary("mul", a, b); }
Tensor operator/(const Tensor& a, const Value& b) { return binary("div", a, b); }
Tensor operator-(const Tensor& a) { return a.call("neg", {}, {}, {}); }

// ---------------------------------------------------------------- Connection

Connection Connection::open(const std::string& address, const Options& options) {
  return Connection(std::make_shared<ConnectionState>(address, options));
}

const std::string& Connection::name() const { return state_->hello.name; }
std::string Connection::address() const { return state_->route.address(); }
std::vector<std::string> Connection::devices() const { return state_->hello.devices; }

Tensor Connection::tensor(std::span<const float> values, const Shape& shape) const {
  return state_->upload({reinterpret_cast<const char*>(values.data()), values.size_bytes()},
                        core::DType::kF32, {}, shape);
}

Tensor Connection::tensor(std::span<const std::int64_t> values, const Shape& shape) const {
  return state_->upload({reinterpret_cast<const char*>(values.data()), values.size_bytes()},
                        core::DType::kI64, {}, shape);
}

Tensor Connection::tensor(std::string_view bytes, const std::string& dtype, const Shape& shape,
                          const std::string& device) const {
  const auto type = core::dtype_from_name(dtype);
  const auto place = core::device_from_name(device);
  if (!type || !place) throw Error(Error::kInvalid, "tensor: unknown " + dtype + " or " + device);
  return state_->upload(bytes, *type, *place, shape);
}

Tensor Connection::randn(const Shape& shape, Where where) const {
  return call("randn", {shape}, {}, where);
}
Tensor Connection::zeros(const Shape& shape, Where where) const {
  return call("full", {0.0, shape}, {}, where);
}

void Connection::manual_seed(std::int64_t seed) const {
  const Lock lock(state_->api);
  state_->seed = seed;
  state_->ordinal = 0;
}

std::vector<Tensor> Connection::call_all(std::string_view op, std::vector<Value> arguments,
                                         Named named, Where where) const {
  return state_->call(op, arguments, named, false, where);
}

Tensor Connection::call(std::string_view op, std::vector<Value> arguments, Named named,
                        Where where) const {
  std::vector<Tensor> out = call_all(op, std::move(arguments), std::move(named), where);
  return out.empty() ? Tensor() : std::move(out[0]);
}

void Connection::publish(const std::string& name, const Tensor& tensor, bool writable,
                         const std::string& users) const {
  if (made(tensor.impl_).state != state_) {
    throw Error(Error::kInvalid, "publish: the tensor belongs to another connection");
  }
  state_->publish(name, tensor.impl_->handle, writable, users);
}
void Connection::unpublish(const std::string& name) const { state_->publish(name, {}, false, ""); }
Tensor Connection::published(const std::string& name) const { return state_->published(name); }

void Connection::synchronize() const {
  const Lock lock(state_->api);
  const Status status = state_->session->synchronize();
  state_->raise_late();
  raise_if(status);
}

void Connection::close() const { state_->close(); }

// ---------------------------------------------------------------- modes, optimizer

NoGrad::NoGrad() : before_(grad_mode()) { set_grad_mode(false); }
NoGrad::~NoGrad() { set_grad_mode(before_); }

void SGD::zero_grad() const {
  for (const Tensor& parameter : parameters_) parameter.zero_grad();
}

void SGD::step() {
  const NoGrad no_grad;
  std::vector<Tensor> parameters, grads, buffers;
  const bool first = buffers_.empty();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& parameter = parameters_[i];
    if (momentum_ != 0 && first) {
      buffers_.push_back(parameter.call("mul", {0.0}));
    }
    const Tensor grad = parameter.grad();
    if (!grad.defined()) continue;
    parameters.push_back(parameter);
    grads.push_back(grad);
    if (momentum_ != 0) buffers.push_back(buffers_[i]);
  }
  if (parameters.empty()) return;
  made(parameters[0].impl_)
      .state->call("sgd_step", {parameters, grads, buffers, lr_, momentum_},
                   {{"first", momentum_ != 0 && first}}, false, Where::current());
}

}  // namespace teletensor::client
