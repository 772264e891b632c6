// The transport through clients/wire: calls that release the GIL and can be interrupted by Ctrl-C.

#include <nanobind/stl/shared_ptr.h>

#include "bindings.h"
#include "clients/session/stream/channel.h"
#include "clients/session/stream/share.h"
#include "clients/session/stream/socket_owner.h"
#include "clients/session/stream/stream.h"

namespace teletensor::client {
namespace {

PyObject* g_call_error = nullptr;

struct PyWire {
  const tt_wire_api* api;
};

// The bytes of a memory view.
class Buffer {
 public:
  Buffer(nb::handle object, bool writable) {
    if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0) {
      throw nb::python_error();
    }
  }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  char* data() const { return static_cast<char*>(view_.buf); }
  std::size_t size() const { return static_cast<std::size_t>(view_.len); }

 private:
  Py_buffer view_;
};

void raise_call(const Status& status, const std::string& word = {}) {
  if (PyErr_Occurred()) throw nb::python_error();
  if (status.ok()) return;
  const nb::tuple arguments =
      nb::make_tuple(static_cast<int>(status.code()), status.message(), word);
  PyErr_SetObject(g_call_error, arguments.ptr());
  throw nb::python_error();
}

template <class Work>
auto without_gil(Work work) {
  const WithoutGil released;
  return work();
}

}  // namespace

void bind_transport(nb::module_& m) {
  m.def(
      "set_call_error",
      [](nb::object type) {
        Py_XDECREF(g_call_error);
        g_call_error = type.release().ptr();
      },
      nb::arg("type"),
      "What a failed call raises, with (code of google.rpc.Code, text, the daemon's word for "
      "why).");
  nb::class_<PyWire>(m, "Wire", "gRPC as clients/wire offers it.")
      .def(
          "__init__",
          [](PyWire* self, const std::string& path) {
            auto api = load_wire(path);
            raise_call(api.status());
            new (self) PyWire{*api};
          },
          nb::arg("path"));
  m.def(
      "socket_refusal",
      [](const std::string& target) { return check_socket_owner(target).message(); },
      nb::arg("target"),
      "Why nothing may be sent to `target`, a UNIX socket of another user. Empty if it may.");
  nb::class_<Moved>(m, "Moved", "How much of a transfer is done.")
      .def(nb::init<>())
      .def_prop_rw(
          "bytes", [](const Moved& moved) { return moved.bytes.load(std::memory_order_relaxed); },
          [](Moved& moved, std::uint64_t bytes) {
            moved.bytes.store(bytes, std::memory_order_relaxed);
          })
      .def_ro("bound", &Moved::bound, "The command is issued that makes an upload a tensor.");
  nb::class_<Channel>(m, "Channel", "A connection to a daemon.")
      .def(
          "__init__",
          [](Channel* self, const PyWire& wire, const std::string& target, bool tls,
             std::optional<nb::bytes> ca, std::optional<nb::bytes> certificate,
             std::optional<nb::bytes> key) {
            const auto text = [](const auto& pem) { return pem ? pem->c_str() : nullptr; };
            const tt_wire_tls texts{text(ca), text(certificate), text(key)};
            new (self) Channel(*wire.api, target, tls ? &texts : nullptr);
          },
          nb::arg("wire"), nb::arg("target"), nb::arg("tls"), nb::arg("ca").none(),
          nb::arg("certificate").none(), nb::arg("key").none())
      .def(
          "set_metadata",
          [](Channel& c, std::vector<std::pair<std::string, std::string>> metadata) {
            c.set_metadata(std::move(metadata));
          },
          nb::arg("metadata"), "What every later call carries.")
      .def(
          "unary",
          [](Channel& c, const std::string& method, nb::bytes request, double timeout, bool wait) {
            raise_if(c.origin().check());
            const std::string_view bytes(request.c_str(), request.size());
            std::string word;
            const core::Result<std::string> reply = without_gil(
                [&] { return c.unary(method, bytes, timeout, wait, signalled, &word); });
            raise_call(reply.status(), word);
            return nb::bytes(reply->data(), reply->size());
          },
          nb::arg("method"), nb::arg("request"), nb::arg("timeout"), nb::arg("wait"),
          "One request, one reply. CallError.")
      .def(
          "run",
          [](Channel& c, PySession& session, std::uint64_t attach, const ShareAddress* local) {
            raise_if(c.origin().check());
            return without_gil([&] { return session.stream().attach(c.run(attach, local)); });
          },
          nb::arg("session"), nb::arg("attach"), nb::arg("local").none(),
          "Starts a stream of the session; with `local`, one without gRPC if the daemon accepts "
          "it.")
      .def(
          "upload",
          [](Channel& c, PySession& session, nb::handle data, nb::handle dtype, nb::handle device,
             const std::vector<std::int64_t>& shape, std::size_t chunk, std::uint64_t key,
             bool again, Moved& moved) {
            raise_if(c.origin().check());
            const core::Dims dims = dims_of(shape);
            const Buffer buffer(data, false);
            const auto place = *device_of(device.ptr());
            std::string word;
            const auto upload = without_gil([&] {
              return c.upload(place, {buffer.data(), buffer.size()}, chunk, key, again, signalled,
                              &word, &moved.bytes);
            });
            raise_call(upload.status(), word);
            // Done here, so that no interrupt can come between an upload and its handle.
            const HandleRef h =
                value_or_raise(session.uploaded(*upload, *dtype_of(dtype.ptr()), place, dims));
            moved.bound = true;
            return nb::steal(wrap(session, h));
          },
          nb::arg("session"), nb::arg("data"), nb::arg("dtype"), nb::arg("device"),
          nb::arg("shape"), nb::arg("chunk"), nb::arg("key"), nb::arg("again"), nb::arg("moved"),
          "Sends the bytes, `again` those that have not come yet; the tensor, once the daemon has "
          "them all. CallError.")
      .def(
          "download",
          [](Channel& c, std::uint64_t seq, nb::handle out, std::size_t at, Moved& moved) {
            raise_if(c.origin().check());
            const Buffer buffer(out, true);
            std::string word;
            const Status status = without_gil([&] {
              return c.download(seq, buffer.data(), buffer.size(), at, signalled, &word,
                                &moved.bytes);
            });
            if (PyErr_Occurred()) throw nb::python_error();
            return nb::make_tuple(at, static_cast<int>(status.code()), status.message(), word);
          },
          nb::arg("seq"), nb::arg("out"), nb::arg("at"), nb::arg("moved"),
          "Reads the bytes of a bulk fetch from `at` on: (how far it came, code, text, word).");
  nb::class_<StreamEnd>(m, "StreamEnd", "How a stream ended.")
      .def(
          "wait",
          [](StreamEnd& e) {
            without_gil([&] {
              while (!e.wait(std::chrono::hours(1))) {
              }
            });
            return nb::make_tuple(static_cast<int>(e.status().code()), e.status().message(),
                                  e.word());
          },
          "Waits for it: (code, text, the daemon's word for why).");
}

}  // namespace teletensor::client
