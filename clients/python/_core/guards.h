// Guards: what a captured program has read from Python, and whether it still stands there.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "bindings.h"

namespace teletensor::client {

// Is `b` another object with the same constant value: a number, text, bytes, or a tuple of such?
bool same_value(PyObject* a, PyObject* b);

// What a place held. Objects that allow it are held weakly, so that a program keeps no model and no
// optimizer's state alive that the program has replaced.
class Expected {
 public:
  Expected() = default;  // nothing stands there
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
  PyObject* get() const;  // borrowed; nullptr: nothing, or it is gone
  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  PyObject* referent() const;

  PyObject* object_ = nullptr;     // counted where there is no reference
  PyObject* reference_ = nullptr;  // a weakref
};

// Facts about Python objects, compared all at once. A list of containers, each with what was read
// of it. Used under the GIL.
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
    kBuffer
  };

  // Each notes a fact, once: a second one about the same place is left out. `expected` may be
  // nullptr: nothing stands there.
  void item(PyObject* dict, PyObject* key, PyObject* expected, const char* owner = nullptr);
  void element(PyObject* list, Py_ssize_t i, PyObject* expected);
  void cell(PyObject* cell, PyObject* expected, PyObject* name);
  void type(PyObject* type, PyObject* name, PyObject* expected);
  void attribute(PyObject* object, PyObject* name, PyObject* expected);
  void length(PyObject* container, Py_ssize_t size);
  void number(PyObject* dict, PyObject* key);  // an int or a float, or a tuple of as many as now
  void set(PyObject* set, PyObject* members);  // a frozenset
  void members(PyObject* container, PyObject* list);  // in this order
  void buffer(PyObject* object, PyObject* bytes);
  bool knows(PyObject* dict, PyObject* key) const;

  // What was noted is not all: they never hold.
  void spoil() { spoilt_ = true; }
  // Does everything hold?
  bool check();
  // Can it never hold again, since what it expects is gone?
  bool dead() const;
  // The first fact that does not hold, for people; "" where all do.
  std::string why();
  std::size_t size() const;

  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  struct Fact {
    PyObject* key = nullptr;  // counted
    Py_ssize_t index = 0;
    Expected expected;
  };
  struct Group {
    Kind kind;
    Expected container;
    PyObject* object;  // the container
    std::uint64_t version = 0;
    std::string owner;
    PyObject* keys = nullptr;  // a set, while facts are noted
    std::vector<Fact> facts;
  };
  Group& group(Kind kind, PyObject* object);
  Fact* fact(Group& group, PyObject* key, PyObject* expected);
  static bool holds(const Group& group, const Fact& fact);
  static bool unchanged(const Group& group);
  static void note_version(Group& group);

  bool spoilt_ = false;
  std::vector<Group> groups_;
  std::unordered_map<PyObject*, std::size_t> places_[10];  // of a container, by kind
};

void bind_guards(nb::module_& m);

}  // namespace teletensor::client
