"""Pages of the site with every public name of the Python client, from the modules themselves.

docs/site_hooks.py calls `pages` when the site is built; nothing is written into the checkout.
"""

import importlib
import inspect
import re
import types
from typing import Any

import teletensor
from teletensor import _core

# Module: title of its page. A page has the names of `__all__` that are no modules.
MODULES = {
    "teletensor": "Tensors and sessions",
    "teletensor.nn": "Modules",
    "teletensor.nn.functional": "Functions of networks",
    "teletensor.nn.init": "Initial values",
    "teletensor.nn.utils": "Utilities for networks",
    "teletensor.optim": "Optimizers",
    "teletensor.optim.lr_scheduler": "Learning rates",
    "teletensor.autograd": "Derivatives",
    "teletensor.func": "Functions of functions",
    "teletensor.jit": "Captured functions",
    "teletensor.linalg": "Linear algebra",
    "teletensor.fft": "Fourier transforms",
    "teletensor.special": "Special functions",
    "teletensor.amp": "Mixed precision",
    "teletensor.distributions": "Distributions",
    "teletensor.utils.data": "Data",
    "teletensor.cuda": "GPUs",
}
OP = type(_core.ops["exp"])
OPS = {op["name"]: op for op in _core.catalog() if not op["internal"]}


def pages() -> dict[str, str]:
    """The Markdown of each page, by its path in the site."""
    found = {f"api/{page_name(module)}.md": page(module, title) for module, title in MODULES.items()}
    rows = [f"| [`{module}`]({page_name(module)}.md) | {title} |" for module, title in MODULES.items()]
    found["api/index.md"] = "\n".join([
        "# API", "", "| module | |", "|---|---|", *rows,
        "| | [Operators](../ops.md): what the functions are made of, with dtypes and examples |",
    ]) + "\n"
    return found


def page_name(module: str) -> str:
    return module.removeprefix("teletensor.")


def page(module_name: str, title: str) -> str:
    """One module: its documentation, an index, and an entry for each public name."""
    module = importlib.import_module(module_name)
    names = public_names(module)
    lines = [f"# {title}", "", f"`{module_name}`", "", markdown(inspect.getdoc(module) or ""), ""]
    if module is teletensor:
        lines += ["## Operators", "", "Each of these functions is one [operator](../ops.md):", "",
                  ", ".join(f"[{name}](../ops.md#{op})" for name in names if (op := operator_of(name))), ""]
        names = [name for name in names if not operator_of(name)]
    lines += ["## Index", "", ", ".join(f"[{name}](#{anchor(name)})" for name in names), "", "## Names", ""]
    for name in names:
        lines += entry(module_name, name, getattr(module, name))
    return "\n".join(lines).rstrip() + "\n"


def public_names(module: types.ModuleType) -> list[str]:
    """The public names that the module exports, without modules, in alphabetical order."""
    return sorted((name for name in module.__all__
                   if name[0] != "_" and not isinstance(getattr(module, name), types.ModuleType)),
                  key=lambda name: (name.lower(), name))


def operator_of(name: str) -> str:
    """The public operator that a function of `teletensor` corresponds to, also in place (`exp_`); "" if
    there is none."""
    return next((op for op in (name, name.removesuffix("_")) if op in OPS), "")


def anchor(name: str) -> str:
    """A name as an anchor of a page; capitals and small letters differ."""
    return f"name-{name}"


def entry(module: str, name: str, value: Any) -> list[str]:
    """The heading, the signature and the documentation of one name."""
    lines = [f"### {name} {{ #{anchor(name)} }}", ""]
    if callable(value):
        kind = "class " if inspect.isclass(value) else ""
        lines += ["```python", f"{kind}{module}.{name}{signature(value)}", "```", ""]
        lines += [markdown(inspect.getdoc(value) or ""), ""]
    else:
        lines += [f"`{value!r}`", ""]
    if inspect.isclass(value):
        lines += methods(value)
    return lines


def methods(owner: type) -> list[str]:
    """The documented methods and properties that a class adds to its bases.

    Tensors have most functions of `teletensor` as methods, which are not said twice.
    """
    lines = []
    for name, member in vars(owner).items():
        value = member.fget if isinstance(member, property) else getattr(owner, name)
        text = inspect.getdoc(member)
        if name.startswith("_") or not text or inherited(owner, name):
            continue
        if owner is teletensor.Tensor and (operator_of(name) or hasattr(teletensor, name)):
            continue
        call = "" if isinstance(member, property) else signature(value, bound=True)
        lines += [f"**`{name}{call}`**", "", markdown(text), ""]
    return lines


def inherited(owner: type, name: str) -> bool:
    """Returns whether a base class has the name too, with its documentation."""
    return any(hasattr(base, name) for base in owner.__mro__[1:])


def signature(value: Any, bound: bool = False) -> str:
    """Names and defaults of the parameters; "(...)" if Python does not know them."""
    if isinstance(value, OP):
        found = OPS.get(value.__name__)
        return "(" + re.sub(r"^\w+\(|\) -> .*$", "", found["signature"]) + ")" if found else "(...)"
    try:
        parameters = list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        return "(...)"
    if bound and parameters and parameters[0].name == "self":
        parameters = parameters[1:]
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    return str(inspect.Signature(bare))


def markdown(text: str) -> str:
    """A docstring as Markdown: examples become blocks of code, the arguments a list."""
    lines: list[str] = []
    block: list[str] = []

    def end_block() -> None:
        if block:
            lines.extend(["", "```pycon", *block, "```", ""])
            block.clear()

    in_arguments = False
    for line in text.splitlines():
        if line.lstrip().startswith(">>> ") or (block and line.strip()):
            block.append(line.strip() if line.lstrip().startswith((">>>", "...")) else line.rstrip())
            continue
        end_block()
        heading = re.fullmatch(r"(Args|Returns|Raises|Shape|Example|Examples|Note):", line)
        if heading:
            in_arguments = heading[1] in ("Args", "Raises")
            lines += ["", f"**{heading[1].replace('Args', 'Arguments')}**", ""]
            continue
        if in_arguments and (found := re.match(r"    ([\w*, ]+): (.*)", line)):
            lines.append(f"- `{found[1]}`: {found[2]}")
        else:
            in_arguments = in_arguments and (not line or line.startswith(" "))
            lines.append(line)
    end_block()
    return "\n".join(lines)
