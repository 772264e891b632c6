"""No class of the C++ sources has so many members that a reader cannot know its state."""

import pytest
from cpp_classes import classes
from repository import files, relative

MAX_METHODS = 40
MAX_FIELDS = 20  # of a class with methods: a struct without methods may have more
SOURCES = [p for p in files(".h", ".cc") if relative(p).startswith(("engine/", "proto/", "server/", "clients/"))
           and not relative(p).endswith(("_test.h", "_test.cc"))]


def sizes() -> dict[tuple[str, str], tuple[int, int]]:
    return {(relative(path), each.name): (len(each.methods), len(each.fields))
            for path in SOURCES for each in classes(path.read_text(encoding="utf-8")) if each.methods}


def test_classes_stay_small():
    found = sizes()
    assert len(found) > len(SOURCES) / 4, "most classes were not read"
    wrong = [f"{file}: {name} has {methods} methods and {fields} fields"
             for (file, name), (methods, fields) in found.items() if methods > MAX_METHODS or fields > MAX_FIELDS]
    assert not wrong, "make a class of the part that has a state of its own"


@pytest.mark.parametrize("source, methods, fields", [
    ("class A { int x_ = 0, y_[2]; void f(); int g() const { return x_; } };", {"f", "g"}, {"x_", "y_"}),
    ("class A final : public B { public: A(int); ~A(); std::function<void(int)> h; void f(int) noexcept; };",
     {"f"}, {"h"}),
    ("struct A { int x TT_GUARDED_BY(mu) = 0; static constexpr int kN = 1; bool operator==(const A&) const; };",
     set(), {"x"}),
    ("struct A { void f(); void f(int); struct B { int y; }; std::vector<int> z{1, 2}; }; // int no;",
     {"f"}, {"z"}),
    ("class A { void f(int a, std::function<void(Status)> done, bool thin = false) override; int x_; };",
     {"f"}, {"x_"}),
    ("class A { virtual Status f(Args... a) = 0; using T = int; friend class B; enum { kOne }; T t_; };",
     {"f"}, {"t_"}),
])
def test_members_are_found(source, methods, fields):
    found = next(classes(source))
    assert (found.methods, found.fields) == (methods, fields)
