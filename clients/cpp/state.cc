#include "clients/cpp/state.h"

#include <errno.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "clients/session/error_text.h"
#include "engine/ops/op.h"

namespace teletensor::client {

using core::Attribute;
using core::Code;
using ops::Parameter;
using Lock = std::lock_guard<std::recursive_mutex>;

namespace {

// Seconds for each of two attempts. If both fail, the session exists until its lease expires.
constexpr double kCloseTimeout = 3;
// Number of attempts to reach a daemon if no process listens.
constexpr int kStartingTries = 10;
constexpr std::chrono::milliseconds kStartingPause{100};

std::string random_bytes() {
  std::random_device device;
  std::string bytes;
  for (int i = 0; i < 16; ++i) bytes += static_cast<char>(device());
  return bytes;
}

void describe_this_process(HelloAsked& asked) {
  char text[1024] = "";
  passwd entry{}, *found = nullptr;
  if (::getpwuid_r(::geteuid(), &entry, text, sizeof text, &found) == 0 && found != nullptr) {
    asked.user = entry.pw_name;
  } else {
    asked.user = "uid " + std::to_string(::geteuid());
  }
  if (::gethostname(text, sizeof text - 1) == 0) asked.host = text;
  asked.pid = static_cast<std::uint64_t>(::getpid());
  asked.program = program_invocation_short_name;
  // The daemon accepts only UTF-8, so other bytes are replaced.
  for (std::string* each : {&asked.user, &asked.host, &asked.program}) {
    std::replace_if(
        each->begin(), each->end(), [](char c) { return static_cast<signed char>(c) < 0; }, '?');
  }
}

Status wrong(const ops::OpDef& def, const Parameter& parameter, const char* wants) {
  return core::invalid(def.name + "(): argument '" + parameter.name + "' must be " + wants);
}

// Sends Hello and returns the reply. If no process listens, tries again for a short time, because
// the daemon may be starting. Tries again for the whole timeout if the daemon shuts down, because
// it may be restarting, or if the session is being moved to the daemon.
core::Result<std::string> first_reply(Route& route, const std::string& hello, double timeout) {
  const auto began = std::chrono::steady_clock::now();
  bool patient = false;
  for (int tries = 1;; ++tries) {
    std::string word;
    auto reply =
        route.channel()->unary("/teletensor.v1.Compute/Hello", hello, timeout, false, {}, &word);
    if (reply.ok()) return reply;
    patient = patient || word == "daemon" || word == "arriving";
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - began;
    const bool again = patient
                           ? reply.status().code() == Code::kUnavailable && waited.count() < timeout
                           : tries < kStartingTries && Keeper::is_refused(reply.status());
    if (!again) return reply;
    std::this_thread::sleep_for(kStartingPause);
    route.connect_again();
  }
}

// Checks a name. The daemon would end the session for an invalid one.
void check_name(const char* what, std::string_view name) {
  const auto printable = [](char c) { return c >= ' ' && c <= '~'; };
  if (name.empty() || name.size() > 200 || !std::all_of(name.begin(), name.end(), printable)) {
    raise_if(core::invalid(std::string("publish: ") + what +
                           ": 1 to 200 characters of printable ASCII"));
  }
}

// The arguments of one call, in the form that Session expects.
struct Parsed {
  core::InlineVector<Var, 3> arguments;
  core::InlineVector<std::uint32_t, 2> counts;
  core::Attributes attributes;
};

core::Number number_of(const Attribute& fallback) {
  if (fallback.kind == Attribute::Kind::kFloat) return core::Number::of_float(fallback.real);
  if (fallback.kind == Attribute::Kind::kBool) {
    return core::Number::of_bool(fallback.integer != 0);
  }
  return core::Number::of_int(fallback.integer);
}

Status to_attribute(const ops::OpDef& def, const Parameter& p, const Value& given, Attribute& out) {
  const auto& value = given.value;
  const auto* integer = std::get_if<std::int64_t>(&value);
  if (std::holds_alternative<std::nullptr_t>(value)) {
    if (!p.optional) return wrong(def, p, "given");
    out = Attribute::none();
    return {};
  }
  switch (p.type) {
    case Parameter::Type::kBool:
      if (const auto* flag = std::get_if<bool>(&value)) return out = Attribute::of(*flag), Status();
      return wrong(def, p, "bool");
    case Parameter::Type::kInt:
      if (integer) return out = Attribute::of(*integer), Status();
      return wrong(def, p, "int");
    case Parameter::Type::kFloat:
      if (const auto* real = std::get_if<double>(&value)) {
        return out = Attribute::of(*real), Status();
      }
      if (integer) return out = Attribute::of(static_cast<double>(*integer)), Status();
      return wrong(def, p, "a number");
    case Parameter::Type::kInts:
      if (const auto* list = std::get_if<Shape>(&value)) {
        return out = Attribute::of(std::span<const std::int64_t>(*list)), Status();
      }
      if (integer) {
        return out = Attribute::of(std::span<const std::int64_t>(integer, 1)), Status();
      }
      return wrong(def, p, "a list of ints");
    case Parameter::Type::kString:
      if (const auto* text = std::get_if<std::string>(&value)) {
        return out = Attribute::of(std::string_view(*text)), Status();
      }
      return wrong(def, p, "a text");
    case Parameter::Type::kDType:
      if (const auto* name = std::get_if<DTypeName>(&value)) {
        const auto dtype = core::dtype_from_name(name->name);
        if (dtype) return out = Attribute::of(*dtype), Status();
      }
      return wrong(def, p, "a dtype");
    case Parameter::Type::kDevice:
      if (const auto* name = std::get_if<DeviceName>(&value)) {
        const auto device = core::device_from_name(name->name);
        if (device) return out = Attribute::of(*device), Status();
      }
      return wrong(def, p, "a device");
    default:
      return wrong(def, p, "an attribute");
  }
}

}  // namespace

void raise_if(const Status& status) {
  if (!status.ok()) throw Error(static_cast<int>(status.code()), status.message());
}

// ---------------------------------------------------------------- CppSession

Status CppSession::block(const std::function<bool()>& ready) {
  while (!stream().wait_for(ready, std::chrono::seconds(1))) {
  }
  return {};
}

void CppSession::note_site(std::uint64_t seq) { sites_[seq % kSites] = {seq, op_, where_}; }

void CppSession::tick() {
  // Another thread holds the lock and sends the releases later.
  if (!api_.try_lock()) return;
  commands().idle();
  api_.unlock();
}

std::string CppSession::issued(std::uint64_t seq) const {
  const Site& site = sites_[seq % kSites];
  if (site.seq != seq || site.op.empty()) return "";
  std::string out = "by " + std::string(site.op);
  if (site.where.line != 0) {
    out += " at " + std::string(site.where.file) + ":" + std::to_string(site.where.line);
  }
  return out;
}

// ---------------------------------------------------------------- ConnectionState

ConnectionState::ConnectionState(const std::string& address, const Options& options)
    : route(address, credentials_of(address, options)), timeout(options.timeout) {
  HelloAsked asked;
  asked.version = "cpp";
  asked.instance = random_bytes();
  asked.name = options.name;
  asked.memory = options.memory;
  asked.lease_seconds = options.lease;
  describe_this_process(asked);
  const std::string request = encode_hello(asked, ops::catalog());
  const auto reply = first_reply(route, request, timeout);
  const Code code = reply.status().code();
  if (code == Code::kUnavailable || code == Code::kDeadlineExceeded) {
    throw Error(static_cast<int>(code),
                "no teletensord answers at " + address + ": " + reply.status().message());
  }
  raise_if(reply.status());
  raise_if(decode_hello(*reply, hello));
  route.set_session(hello.token);
  session = std::make_unique<CppSession>(hello.limits, api);
  if (hello.snapshots) session->stream().retain();
  keeper = std::make_unique<Keeper>(*session, route, asked.instance, hello);
}

ConnectionState::~ConnectionState() {
  try {
    close();
  } catch (const std::exception&) {  // A destructor cannot report an error, so it is dropped.
  }
}

void ConnectionState::close() {
  const Lock lock(api);
  if (std::exchange(closed, true)) return;
  publications.clear();
  LateError late{session->synchronize()};
  if (late.status.ok()) late = session->errors().raise();
  const std::string text = explained(*session, late);
  session->stream().close();
  const bool lost = late.status.code() == Code::kUnavailable,
             stays = !lost && hello.lease_seconds > 0;
  for (const bool again : {false, true}) {
    std::string word;
    const Status ended =
        route.channel()
            ->unary("/teletensor.v1.Compute/Close", "", kCloseTimeout, again, {}, &word)
            .status();
    if (ended.ok() || !stays || !Keeper::is_cut(ended, word)) break;
  }
  keeper->stop();
  if (!late.status.ok() && !lost) {
    throw Error(static_cast<int>(late.status.code()), text);
  }
}

Tensor ConnectionState::wrap(HandleRef handle) {
  auto impl = std::make_shared<TensorImpl>();
  impl->state = shared_from_this();
  impl->handle = std::move(handle);
  return Tensor(std::move(impl));
}

std::vector<Tensor> ConnectionState::call(std::string_view op, const std::vector<Value>& arguments,
                                          const Named& named, bool inplace, const Where& where) {
  const Lock lock(api);
  const ops::OpDef* def = ops::catalog().find(op);
  if (def == nullptr) raise_if(core::invalid("there is no op " + std::string(op)));
  const std::size_t parameters = def->parameters.size();
  // The seed and the ordinal are not arguments of the caller.
  const std::size_t fillable = def->random ? parameters - 2 : parameters;
  if (arguments.size() > fillable) {
    raise_if(
        core::invalid(def->name + "() takes at most " + std::to_string(fillable) + " arguments"));
  }
  std::vector<const Value*> values(parameters, nullptr);
  for (std::size_t i = 0; i < arguments.size(); ++i) values[i] = &arguments[i];
  for (const auto& [name, value] : named) {
    const auto found =
        std::find_if(def->parameters.begin(), def->parameters.end(),
                     [&wanted = name](const Parameter& p) { return p.name == wanted; });
    const auto i = static_cast<std::size_t>(found - def->parameters.begin());
    if (i >= fillable || values[i] != nullptr) {
      raise_if(core::invalid(def->name + "(): argument '" + name +
                             (i >= fillable ? "' is unknown" : "' is given twice")));
    }
    values[i] = &value;
  }

  Parsed parsed;
  const auto operand = [&](const Tensor& tensor) {
    if (tensor.impl_ && tensor.impl_->state.get() != this) {
      raise_if(core::invalid(def->name + "(): a tensor of another connection"));
    }
    parsed.arguments.push_back(tensor.impl_ ? Var(session.get(), tensor.impl_->handle) : Var());
  };
  for (std::size_t i = 0; i < parameters; ++i) {
    const Parameter& p = def->parameters[i];
    const bool list = p.type == Parameter::Type::kTensorList;
    if (values[i] == nullptr) {
      if (p.is_operand() && list && p.has_default) {
        parsed.counts.push_back(0);
      } else if (p.is_operand() && (p.optional || p.type == Parameter::Type::kOptionalTensor)) {
        parsed.arguments.push_back({});
      } else if (p.is_operand() && p.has_default) {
        parsed.arguments.push_back(Var(number_of(p.fallback)));
      } else if (!p.is_operand() && i >= fillable) {
        parsed.attributes.push_back(Attribute::of(i == fillable ? seed : ordinal++));
      } else if (!p.is_operand() && (p.has_default || p.optional)) {
        parsed.attributes.push_back(p.fallback);
      } else {
        raise_if(core::invalid(def->name + "() misses argument '" + p.name + "'"));
      }
      continue;
    }
    const auto& value = values[i]->value;
    if (!p.is_operand()) {
      Attribute attribute;
      raise_if(to_attribute(*def, p, *values[i], attribute));
      const bool device = attribute.kind == Attribute::Kind::kDevice;
      parsed.attributes.push_back(std::move(attribute));
      if (device) check_device(parsed.attributes.device(parsed.attributes.size() - 1));
    } else if (const auto* tensors = std::get_if<std::vector<Tensor>>(&value); list && tensors) {
      parsed.counts.push_back(static_cast<std::uint32_t>(tensors->size()));
      for (const Tensor& tensor : *tensors) operand(tensor);
    } else if (const auto* tensor = std::get_if<Tensor>(&value); tensor && !list) {
      const bool optional = p.optional || p.type == Parameter::Type::kOptionalTensor;
      if (!tensor->defined() && !optional) raise_if(wrong(*def, p, "a Tensor"));
      operand(*tensor);
    } else if (std::holds_alternative<std::nullptr_t>(value) &&
               (p.optional || p.type == Parameter::Type::kOptionalTensor)) {
      parsed.arguments.push_back({});
    } else if (p.type != Parameter::Type::kOperand) {
      raise_if(wrong(*def, p, list ? "a list of Tensors" : "a Tensor"));
    } else if (const auto* flag = std::get_if<bool>(&value)) {
      parsed.arguments.push_back(Var(core::Number::of_bool(*flag)));
    } else if (const auto* integer = std::get_if<std::int64_t>(&value)) {
      parsed.arguments.push_back(Var(core::Number::of_int(*integer)));
    } else if (const auto* real = std::get_if<double>(&value)) {
      parsed.arguments.push_back(Var(core::Number::of_float(*real)));
    } else {
      raise_if(wrong(*def, p, "a Tensor or a number"));
    }
  }

  const std::span<const Var> operands(parsed.arguments.data(), parsed.arguments.size());
  const std::span<const std::uint32_t> counts(parsed.counts.data(), parsed.counts.size());
  const ops::OpId id = ops::catalog().id(*def);
  session->at(def->name, where);
  std::vector<Tensor> out;
  if (inplace) {
    raise_if(session->apply_inplace(id, operands, counts, parsed.attributes));
    return out;
  }
  Handles results;
  raise_if(session->apply(id, operands, counts, parsed.attributes, results));
  for (HandleRef& result : results) out.push_back(wrap(std::move(result)));
  return out;
}

void ConnectionState::check_device(core::Device device) const {
  const std::string name = core::to_string(device);
  std::string all;
  for (const std::string& each : hello.devices) {
    if (each == name) return;
    all += (all.empty() ? "" : ", ") + each;
  }
  raise_if(core::invalid("device " + name + " is not on this daemon; it has " + all));
}

Tensor ConnectionState::upload(std::string_view bytes, core::DType dtype, core::Device device,
                               const Shape& shape) {
  const Lock lock(api);
  check_device(device);
  if (shape.size() > static_cast<std::size_t>(core::kMaxRank)) {
    raise_if(core::invalid("rank " + std::to_string(shape.size()) + " is above the limit of 12"));
  }
  const auto elements = core::checked_numel(shape);
  raise_if(elements.status());
  if (static_cast<std::uint64_t>(*elements) * core::size_of(dtype) != bytes.size()) {
    raise_if(
        core::invalid("tensor: " + std::to_string(bytes.size()) + " bytes do not fit the shape"));
  }
  session->at("tensor", {});
  const core::Dims dims{std::span<const std::int64_t>(shape)};
  core::Result<HandleRef> handle = HandleRef();
  if (bytes.size() <= hello.limits.frame.inline_bytes) {
    handle = session->constant(dtype, device, dims, std::string(bytes));
  } else {
    std::uint64_t number = 0;
    ++uploads;
    bool again = false;
    raise_if(keeper->bulk([&](std::string* word) -> Status {
      const auto sent = route.channel()->upload(device, bytes, hello.chunk_bytes, uploads,
                                                std::exchange(again, true), {}, word);
      if (sent.ok()) number = *sent;
      return sent.status();
    }));
    handle = session->uploaded(number, dtype, device, dims);
  }
  raise_if(handle.status());
  return wrap(std::move(*handle));
}

void ConnectionState::raise_late() {
  const LateError late = session->errors().raise();
  if (!late.status.ok()) {
    throw Error(static_cast<int>(late.status.code()), explained(*session, late));
  }
}

std::string ConnectionState::read(Handle& handle) {
  const Lock lock(api);
  const auto& layout = handle.layout;
  const auto elements = core::checked_numel(layout.geometry.shape.span());
  raise_if(elements.status());
  const std::size_t size = static_cast<std::size_t>(*elements) * core::size_of(layout.dtype);
  const bool bulk = size > hello.limits.frame.inline_bytes;
  session->at("fetch", {});
  if (bulk) {
    const auto seq = session->fetch(handle, true);
    raise_if(seq.status());
    std::string bytes(size, '\0');
    std::size_t at = 0;
    const Status status = keeper->bulk([&](std::string* word) {
      return route.channel()->download(*seq, bytes.data(), size, at, {}, word);
    });
    session->commands().taken(*seq);
    raise_late();
    raise_if(status);
    return bytes;
  }
  ValueReads& reads = session->value_reads();
  if (auto known = reads.find(*session, handle)) return std::move(known->data);
  const auto asked = reads.ask(*session, handle);
  raise_if(asked.status());
  auto value = reads.wait(*session, *asked);
  raise_late();
  raise_if(value.status());
  if (!value->status.ok()) {
    throw Error(static_cast<int>(value->status.code()),
                explained(*session, value->status.message(), value->root));
  }
  return std::move(value->data);
}

void ConnectionState::publish(const std::string& name, const HandleRef& handle, bool writable,
                              const std::string& users) {
  check_name("a name", name);
  if (!users.empty()) check_name("users", users);
  const Lock lock(api);
  const auto wait = [this] {
    const Status status = session->synchronize();
    raise_late();
    raise_if(status);
  };
  wait();  // Errors of earlier lines are thrown before anything is published.
  session->at("publish", {});
  raise_if(session->names().publish(name, handle.get(), writable, users));
  wait();  // Waits, so that errors of the publication are thrown here.
  if (handle) {
    publications.insert_or_assign(name, wrap(handle).detach().impl_->handle);
  } else {
    publications.erase(name);
  }
}

Tensor ConnectionState::published(const std::string& name) {
  check_name("a name", name);
  const Lock lock(api);
  std::string reply;
  raise_if(keeper->bulk([&](std::string* word) -> Status {
    auto answer = route.channel()->unary("/teletensor.v1.Compute/Published", encode_published(name),
                                         timeout, true, {}, word);
    if (answer.ok()) reply = std::move(*answer);
    return answer.status();
  }));
  auto found = decode_published(reply);
  raise_if(found.status());
  for (const PublishedAnswer& answer : *found) {
    const std::string below = "/" + answer.name;  // A publication of another user: "user/name".
    const bool whole =
        name == answer.name || (name.size() > below.size() &&
                                name.compare(name.size() - below.size(), below.size(), below) == 0);
    if (!whole) continue;
    session->at("published", {});
    auto handle = session->names().published(answer.described);
    raise_if(handle.status());
    const Status status = session->synchronize();
    raise_late();
    raise_if(status);
    return wrap(std::move(*handle));
  }
  throw Error(static_cast<int>(Code::kNotFound),
              "nothing that this session may use is published as '" + name + "'");
}

}  // namespace teletensor::client
