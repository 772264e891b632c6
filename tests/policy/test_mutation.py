"""Tests the places that tests/mutation/sites.py finds in a file, and that both variants of a place are written."""

import importlib.util
import sys

import pytest
from repository import ROOT

SOURCE = '''
constexpr int kMany = 3 + 4;  // a < b && c
template <class T>
constexpr bool few(T x) { return x < 3; }
Status Pool::take(std::vector<int>& items, int most) {
  if (items.size() > most) return refused("more than " + std::to_string(most + 1));
  const auto label = "a < b";
  static const int kept = 7;
  for (int i = 0; i < most && !over(); ++i) {
    items[i] = first - offset;
    width = last - -first + most;
    release(items[i]);
    notify();
  }
  log_info("taken");
  std::array<int, 8> room;
  return {};
}
'''


@pytest.fixture(scope="module")
def sites():
    spec = importlib.util.spec_from_file_location("mutation_sites", ROOT / "tests/mutation/sites.py")
    module = sys.modules["mutation_sites"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def found(sites, kind):
    return [(SOURCE[site.start:site.end], site.text(SOURCE, 7)) for site in sites.sites_of(SOURCE)
            if site.kind == kind]


def test_operators_have_their_operands(sites):
    on = "::teletensor_mutant(7)"
    assert found(sites, "comparison") == [
        ("items.size() > most", f"({on} ? ((items.size()) >= (most)) : (items.size() > most))"),
        ("i < most", f"({on} ? ((i) <= (most)) : (i < most))")]
    assert found(sites, "junction") == [
        ("i < most && !over()", f"({on} ? ((i < most) || (!over())) : (i < most && !over()))")]
    assert found(sites, "sum") == [
        ("first - offset", f"({on} ? ((first) + (offset)) : (first - offset))"),
        ("last - -first + most", f"({on} ? ((last - -first) - (most)) : (last - -first + most))")]


def test_statements_can_be_left_out(sites):
    assert [original for original, _ in found(sites, "removal")] == [
        "items[i] = first - offset;", "width = last - -first + most;", "release(items[i]);", "notify();"]
    assert found(sites, "order") == [
        ("release(items[i]);\n    notify();", "if (::teletensor_mutant(7)) { notify(); release(items[i]); } else "
         "{ release(items[i]);\n    notify(); }")]


def test_checks_bounds_and_results_can_be_wrong(sites):
    assert found(sites, "check") == [("items.size() > most", "!::teletensor_mutant(7) && (items.size() > most)")]
    assert found(sites, "early return") == [("{", "{ if (::teletensor_mutant(7)) return {};")]
    assert [original for original, _ in found(sites, "bound")] == ["0"]  # no constant, no message, no array


def test_all_places_are_written_in_the_lines_where_they_were(sites):
    chosen = [site for site in sites.sites_of(SOURCE) if site.kind in ("comparison", "removal", "early return")]
    chosen = [site for site in chosen if site.kind != "comparison" or "size" in site.broken]
    text = sites.mutated(SOURCE, dict(enumerate(chosen, 1)))
    assert text.count("::teletensor_mutant(") == len(chosen) == 6
    assert text.count("\n") == SOURCE.count("\n")
    assert sites.mutated(SOURCE, {}) == SOURCE


def test_known_survivors_name_lines_that_exist(sites):
    lines = (ROOT / "tests/mutation/survivors.txt").read_text().splitlines()
    known = [line.split(" | ", 2) for line in lines if not line.startswith("#")]
    assert known
    for path, kind, rest in known:
        text, reason = rest.rsplit(" | ", 1)
        assert kind in sites.KINDS and len(reason) > 20
        assert text in [line.strip() for line in (ROOT / path).read_text().splitlines()], f"{path}: {text}"
