"""Prints the measured table of the structure and of the English of the checkout: `make house`.

The same readers as those of the policy tests: files, comments, classes, imports, marks of unclear English. Lines are
those of files written by hand, without the generated ones.
"""

import ast
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import test_classes
import test_files
import test_layers
import test_prose
from repository import files, relative

GENERATED = {"clients/python/teletensor/_core.pyi", "clients/python/teletensor/_catalog.pyi"}
CODE = [path for path in files(".h", ".cc", ".cu", ".cuh", ".py", ".proto") if relative(path) not in GENERATED]
LARGEST = 12


def is_test(name: str) -> bool:
    return name.startswith("tests/") or name.endswith(("_test.cc", "_test.h"))


def layer_of(name: str) -> str:
    """The folder that counts as one layer: two names deep, and three in backends and the Python client."""
    if is_test(name):
        return "tests"
    parts = name.split("/")
    deep = 3 if name.startswith(("engine/backends/", "clients/python/")) else 2
    return "/".join(parts[:min(deep, len(parts) - 1)]) or "."


def spread(numbers: Sequence[int]) -> str:
    ordered = sorted(numbers)
    return f"median {statistics.median_low(ordered)}, p90 {ordered[len(ordered) * 9 // 10]}, largest {ordered[-1]}"


def function_lengths() -> list[int]:
    return [node.end_lineno - node.lineno + 1 for path in files(".py") if not is_test(relative(path))
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def comment_share(headers: bool) -> float:
    """Lines of comments in 100 lines of C++ that are not empty."""
    prose = code = 0
    for path in CODE:
        if path.suffix not in test_prose.CPP or is_test(relative(path)) or (path.suffix in {".h", ".cuh"}) != headers:
            continue
        lines = path.read_text().splitlines()
        prose += sum(line.lstrip().startswith("//") for line in lines)
        code += sum(bool(line.strip()) for line in lines)
    return 100 * prose / code


def marks() -> dict[str, tuple[int, int]]:
    """Marks of unclear English and lines of prose, by layer."""
    found: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for path in test_prose.prose_files():
        lines = list(test_prose.READERS[path.suffix](path.read_text()))
        here = sum(len(test_prose.marks_of(each.text)) for each in test_prose.paragraphs(lines))
        marked, all_lines = found[layer_of(relative(path))]
        found[layer_of(relative(path))] = marked + here, all_lines + len({line.number for line in lines if line.text})
    return dict(found)


def rows() -> Iterator[tuple[str, str]]:
    lines = {relative(path): path.read_text().count("\n") for path in CODE}
    ours = [count for name, count in lines.items() if not is_test(name)]
    yield "files of code, lines of a file", f"{len(ours)} files; {spread(ours)}; {sum(n > 800 for n in ours)} over 800"
    lengths = function_lengths()
    yield "lines of a Python function", f"{spread(lengths)}; {sum(n > 60 for n in lengths)} of {len(lengths)} over 60"
    yield "comments in C++", f"headers {comment_share(True):.1f} %, bodies {comment_share(False):.1f} %"
    full = [f"{folder} {count}" for folder, count in test_files.full_folders().items()]
    yield "folders with more than 20 files of code", ", ".join(full) or "none"
    sizes = test_classes.sizes()
    large = [each for each in sizes.values() if each[0] > test_classes.MAX_METHODS or each[1] > test_classes.MAX_FIELDS]
    yield "C++ classes with methods", f"{len(sizes)}, {len(large)} with over 40 methods or 20 fields"
    for (path, name), (methods, fields) in sorted(sizes.items(), key=lambda row: -sum(row[1]))[:LARGEST]:
        yield f"  {name}", f"{methods} methods, {fields} fields ({path})"
    by_layer: Counter[str] = Counter()
    for name, count in lines.items():
        by_layer[layer_of(name)] += count
    prose = marks()
    for layer, count in by_layer.most_common():
        marked, of = prose.get(layer, (0, 0))
        yield f"  {layer}", f"{count:7,} lines; {100 * marked / max(of, 1):.2f} marks in 100 lines of prose"
    marked, of = (sum(each) for each in zip(*prose.values(), strict=True))
    yield "marks of unclear English, whole checkout", f"{100 * marked / of:.2f} in 100 of {of:,} lines of prose"
    yield "modules of the Python client", f"{len(test_layers.modules_of_the_client())}"


if __name__ == "__main__":
    for row, figure in rows():
        print(f"{row:42} {figure}")
