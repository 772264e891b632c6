"""No class of the C++ sources has so many members that a reader cannot know its state."""

import pytest
from cpp_classes import classes
from repository import files, relative

MAX_METHODS = 40
MAX_FIELDS = 20  # of a class with methods: a struct without methods may have more
# Classes that are larger still: (methods, fields). A number here is only ever lowered.
LARGER = {
    ("engine/collective/participant.h", "Participant"): (76, 20),
}
SOURCES = [p for p in files(".h", ".cc") if relative(p).startswith(("engine/", "proto/", "server/", "clients/"))
           and not relative(p).endswith(("_test.h", "_test.cc"))]


def sizes() -> dict[tuple[str, str], tuple[int, int]]:
    return {(relative(path), each.name): (len(each.methods), len(each.fields))
            for path in SOURCES for each in classes(path.read_text(encoding="utf-8")) if each.methods}


def test_classes_stay_small():
    wrong = []
    for place, (methods, fields) in sizes().items():
        most_methods, most_fields = LARGER.get(place, (MAX_METHODS, MAX_FIELDS))
        if methods > max(most_methods, MAX_METHODS) or fields > max(most_fields, MAX_FIELDS):
            wrong.append(f"{place[0]}: {place[1]} has {methods} methods and {fields} fields")
    assert not wrong, "make a class of the part that has a state of its own"


def test_the_table_of_larger_classes_is_current():
    present = sizes()
    assert {place: present.get(place) for place in LARGER} == LARGER, "lower the numbers, or remove the row"


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
