// Guards record what a captured program has read from Python objects, and check whether it is
// unchanged.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "bindings.h"

namespace teletensor::client {

// Returns true if `b` is another object with the same constant value: a number, a string, bytes, or
// a tuple of these.
bool same_value(PyObject* a, PyObject* b);

// The object that a place contained. Objects that support it are referenced weakly, so that a
// program does not keep models or optimizer states alive that the user's program has replaced.
class Expected {
 public:
  Expected() = default;  // Expects that the place contains nothing.
  explicit Expected(PyObject* object);
  Expected(Expected&& other) noexcept;
  Expected& operator=(Expected&& other) noexcept;
  ~Expected() { clear(); }

  bool holds(PyObject* now) const {
    if (now == object_) return reference_ == nullptr || referent() == now;
    return reference_ == nullptr && now != nullptr && object_ != nullptr &&
           same_value(object_, now);
  }
  bool dead() const { return reference_ != nullptr && referent() == nullptr; }
  // The expected object, borrowed. Null if the place contains nothing, or if the object was
  // destroyed.
  PyObject* get() const;
  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  PyObject* referent() const;

  PyObject* object_ = nullptr;  // The expected object; a counted reference if `reference_` is null.
  PyObject* reference_ = nullptr;  // A weak reference to the expected object.
};

// The properties of a tensor that Python can read without its data.
struct TensorFacts {
  core::Layout layout;
  bool requires_grad = false, view = false, retains = false, inference = false;
  std::uint32_t output = 0;  // Index among the results of the op that made it.
  int made_by = -1;          // The op of its `.grad_fn`; negative for a leaf.
};
// The present facts of a tensor. Empty, without a Python error, if it cannot be used.
std::optional<TensorFacts> facts_of(PyObject* tensor);
// The same of its `.grad`; empty if there is none.
std::optional<TensorFacts> facts_of_grad(PyObject* tensor);

// Facts about Python objects, which are compared together. A list of containers, each with what was
// read from it. Used with the GIL.
class Guards {
 public:
  Guards() = default;
  Guards(const Guards&) = delete;
  ~Guards() { clear(); }

  enum class Kind : std::uint8_t {
    kDict,
    kList,
    kCell,
    kType,
    kAttribute,
    kLength,
    kNumber,
    kSet,
    kMembers,
    kBuffer,
    kTensor,
    kGrad,
    kClass,
    kFunction,
    kOrder
  };

  // Each function records a fact; a second fact about the same place is ignored. `expected` may be
  // null, which means that the place contains nothing.
  void item(PyObject* dict, PyObject* key, PyObject* expected, const char* owner = nullptr);
  void element(PyObject* list, Py_ssize_t i, PyObject* expected);
  void cell(PyObject* cell, PyObject* expected, PyObject* name);
  void type(PyObject* type, PyObject* name, PyObject* expected);
  void attribute(PyObject* object, PyObject* name, PyObject* expected);
  void length(PyObject* container, Py_ssize_t size);
  // Records that the entry is an int or a float, or a tuple of the same number of them.
  void number(PyObject* dict, PyObject* key);
  // Records the members of a set; `members` is a frozenset.
  void set(PyObject* set, PyObject* members);
  // Records the members of a container, in this order.
  void members(PyObject* container, PyObject* list);
  void buffer(PyObject* object, PyObject* bytes);
  // Records everything that Python can read from a tensor without its data and without its `.grad`.
  void tensor(PyObject* tensor, const TensorFacts& now);
  // Records whether the tensor has a `.grad`, and what can be read from that without its data.
  void grad(PyObject* tensor, const std::optional<TensorFacts>& now);
  // Records of which class an object is.
  void class_of(PyObject* object);
  // Records the code and the default arguments of a Python function.
  void function(PyObject* function);
  // Records the keys of a dict, in this order.
  void order(PyObject* dict, PyObject* keys);
  bool knows(PyObject* dict, PyObject* key) const;

  // Marks the recorded facts as incomplete, so that check() never succeeds.
  void spoil() { spoilt_ = true; }
  // Returns true if all facts hold.
  bool check();
  // Returns true if the facts can never hold again, because an expected object was destroyed.
  bool dead() const;
  // Describes the first fact that does not hold. Empty if all hold.
  std::string why();
  std::size_t size() const;

  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  struct Fact {
    PyObject* key = nullptr;  // Key of the entry; a counted reference.
    Py_ssize_t index = 0;
    Expected expected;
  };
  struct Group {
    Kind kind;
    Expected container;
    PyObject* object;  // The container whose facts these are.
    std::uint64_t version = 0;
    std::string owner;
    PyObject* keys = nullptr;  // A set of the recorded keys, while facts are recorded.
    std::vector<Fact> facts;
    std::optional<TensorFacts> tensor;  // The facts of a tensor or of its `.grad`.
  };
  Group& group(Kind kind, PyObject* object);
  Fact* fact(Group& group, PyObject* key, PyObject* expected);
  static bool holds(const Group& group, const Fact& fact);

  bool spoilt_ = false;
  std::vector<Group> groups_;
  // Index of a container in groups_, by kind.
  std::unordered_map<PyObject*, std::size_t> places_[15];
};

void bind_guards(nb::module_& m);

}  // namespace teletensor::client
