#include "session/source_lines.h"

#include <new>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "capture/frames.h"
#include "collection.h"
#include "gil.h"

namespace teletensor::client {

namespace {

std::string* g_package;  // The folder of the package's Python files.
std::string* g_library;  // The folder of a library whose lines are internal as well; may be null.

// Returns true if the code belongs to the package itself; the caller's line is then searched
// further out. Every code object of a file has the same file name object.
bool internal_code(PyCodeObject* code) {
  static std::unordered_map<PyObject*, bool> known;
  static const std::string* library = nullptr;
  // Consecutive commands are mostly issued by one file, whose name object is kept in `known`.
  static std::pair<PyObject*, bool> last;
  if (library != g_library) {
    library = g_library;
    known.clear();  // what the objects stand for is kept, and few
    last = {};
  }
  if (code->co_filename == last.first) return last.second;
  const auto found = known.find(code->co_filename);
  if (found != known.end()) {
    last = *found;
    return found->second;
  }
  const char* name = PyUnicode_AsUTF8(code->co_filename);
  if (name == nullptr) PyErr_Clear();
  const std::string_view file = name ? name : "";
  const bool internal = (g_package != nullptr && file.starts_with(*g_package)) ||
                        (g_library != nullptr && file.starts_with(*g_library));
  if (known.size() < 4096) known.emplace(Py_NewRef(code->co_filename), internal);
  return internal;
}

}  // namespace

void set_package_folder(const std::string& folder) {
  delete g_package;
  g_package = new std::string(folder);
}

void pass_over(const std::string& folder) { g_library = new std::string(folder); }

#ifdef TELETENSOR_FRAMES
Site present_site() {
  Site site;
  const FrameData* frame = present_frame();
  while (frame != nullptr && internal_code(code_of(*frame))) frame = caller_of(*frame);
  if (frame == nullptr) return site;
  site.code = Py_NewRef(frame->code);
  site.instruction = instruction_of(*frame);
  return site;
}
#else
// Garbage collection is paused: creating frame objects may start it, and it runs Python code and
// lets other threads run, which would issue commands in the middle of this one.
Site present_site() {
  const WithoutCollection paused;
  Site site;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame != nullptr) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    if (internal_code(code)) {
      PyFrameObject* caller = PyFrame_GetBack(frame);
      Py_DECREF(frame);
      Py_DECREF(code);
      frame = caller;
      continue;
    }
    site.code = reinterpret_cast<PyObject*>(code);
    site.instruction = PyFrame_GetLasti(frame);
    Py_DECREF(frame);
    break;
  }
  return site;
}
#endif

std::string line_of(const Site& site) {
  if (site.code == nullptr) return "";
  auto* code = reinterpret_cast<PyCodeObject*>(site.code);
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  const char* name = PyUnicode_AsUTF8(code->co_name);
  if (file == nullptr || name == nullptr) {
    PyErr_Clear();
    return "";
  }
  return std::string(file) + ":" + std::to_string(PyCode_Addr2Line(code, site.instruction)) +
         " in " + name;
}

SourceLines::SourceLines() : sites_(static_cast<Site*>(std::calloc(kSites, sizeof(Site)))) {
  if (sites_ == nullptr) throw std::bad_alloc();
}

SourceLines::~SourceLines() {
  // The pages of sites that were never used stay untouched.
  for (std::uint64_t i = 0; i < used_; ++i) Py_XDECREF(sites_[i].code);
}

void SourceLines::end_lap() {
  if (!on_lap.is_valid() || on_lap.is_none()) return;
  const nb::error_scope kept;
  const WithoutCollection paused;
  PyObject* done = call_python(on_lap.ptr());
  if (done == nullptr) PyErr_Clear();
  Py_XDECREF(done);
}

void SourceLines::note(std::uint64_t seq, const Site* given) {
  if (seq % kLap == 0) [[unlikely]]
    end_lap();
  const std::uint64_t at = seq % kSites;
  if (at >= used_) used_ = at + 1;
  Site& site = sites_[at];
  PyObject* const before = site.code;
  site = given == nullptr ? present_site() : *given;
  if (given != nullptr) Py_XINCREF(site.code);
  if (site.code == nullptr) {
    site.code = before;
    site.seq = 0;
    return;
  }
  site.seq = seq;
  Py_XDECREF(before);
}

void RepeatedReads::note(const Site& site) {
  const bool again =
      site.code == code_ && site.instruction == instruction_ && site.seq - seq_ <= kFewCommands;
  reads_ = again ? reads_ + 1 : 1;
  code_ = site.code;
  instruction_ = site.instruction;
  seq_ = site.seq;
  if (reads_ != kMany || !on_many.is_valid() || on_many.is_none()) return;
  const std::string line = line_of(site);
  const nb::object text =
      nb::steal(PyUnicode_DecodeUTF8(line.data(), static_cast<Py_ssize_t>(line.size()), "replace"));
  PyObject* done = text.is_valid() ? call_python(on_many.ptr(), text.ptr()) : nullptr;
  if (done == nullptr) PyErr_Clear();
  Py_XDECREF(done);
}

}  // namespace teletensor::client
