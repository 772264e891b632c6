"""Classes of the C++ headers with the names of their methods and fields, read without a compiler."""

import re
from collections.abc import Iterator
from typing import NamedTuple

COMMENTS = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|^[ \t]*#[^\n]*', re.S | re.M)
HEAD = re.compile(r"\b(?:class|struct)\s+(?:TT_\w+(?:\([^)]*\))?\s+)?([A-Za-z_]\w*)\s*(?:final\s*)?(?::[^;{()]*)?\{")
ATTRIBUTE = re.compile(r"\bTT_\w+\([^()]*\)|\bnoexcept(?:\([^()]*\))?|\[\[[^\]]*\]\]|\balignas\([^()]*\)")
LABEL = re.compile(r"\b(?:public|protected|private)\s*:")
NOT_MEMBERS = re.compile(r"\s*(?:using|typedef|friend|enum|template\s*<[^;{]*>\s*(?:class|struct)|class|struct|union"
                         r"|static_assert|static\s+constexpr|static\s+const\b|inline\s+static)\b")


class Class(NamedTuple):
    name: str
    methods: set[str]  # overloads count once; constructors, the destructor and operators do not count
    fields: set[str]


def closing(text: str, opened: int) -> int:
    """The position of the bracket that closes the one at `opened`."""
    depth = 0
    for at in range(opened, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return len(text)


def members(body: str) -> Iterator[str]:
    """The declarations at the outermost level of a class, each without its body."""
    start = at = 0
    parentheses = 0
    while at < len(body):
        c = body[at]
        parentheses += {"(": 1, ")": -1}.get(c, 0)
        if c == "{" and parentheses == 0:
            end = closing(body, at)
            declaration = body[start:at]
            rest = re.match(r"\s*[\w\[\], ={}]*;", body[end + 1:])
            is_type = NOT_MEMBERS.match(declaration) is not None
            if "(" in ATTRIBUTE.sub("", declaration) and not is_type:
                yield declaration
                at = start = end + 1
                continue
            if rest:  # a field with an initialiser in braces, or a type
                yield declaration if not is_type else ""
                at = start = end + 1 + rest.end()
                continue
            at = end
        elif c == ";" and parentheses == 0:
            yield body[start:at]
            start = at + 1
        at += 1


def declarators(declaration: str) -> list[str]:
    """The parts of a declaration between the commas that stand in no bracket."""
    parts, depth = [""], 0
    for c in declaration:
        depth += {"<": 1, "(": 1, "[": 1, "{": 1, ">": -1, ")": -1, "]": -1, "}": -1}.get(c, 0)
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return parts


def class_of(name: str, body: str) -> Class:
    methods, fields = set(), set()
    for declaration in members(LABEL.sub("", body)):
        text = ATTRIBUTE.sub("", declaration)
        if not text.strip() or NOT_MEMBERS.match(text):
            continue
        head = re.split(r"=(?![^<]*>)", text)[0] if "operator" not in text else text
        head = re.sub(r"std::function<[^;]*?>(?=\s+\w)", "F", head)
        called = re.search(r"(~?[A-Za-z_]\w*)\s*\(", head)
        if "operator" in text:
            continue
        if called and not re.search(r"\)\s*>", head[called.start():].split(";")[0]) and called.group(1) != "decltype":
            if called.group(1).lstrip("~") != name:
                methods.add(called.group(1))
        else:
            names = (re.search(r"([A-Za-z_]\w*)\s*(?:[=\[].*)?$", each.strip(), re.S) for each in declarators(text))
            fields.update(found.group(1) for found in names if found)
    return Class(name, methods, fields)


def classes(source: str) -> Iterator[Class]:
    """Every class and struct of a C++ text, nested ones included."""
    text = COMMENTS.sub(lambda found: " " if found.group().startswith(("/", "#", " ", "\t")) else '""', source)
    for found in HEAD.finditer(text):
        opened = found.end() - 1
        yield class_of(found.group(1), text[opened + 1:closing(text, opened)])
