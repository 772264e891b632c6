"""Finds places of a C++ file that can be broken: a tokenizer, and one function for each kind of change.

The files must be formatted by clang-format: only the spaces around `<`, `>` and `&&` tell an operator from a list of
template arguments or a reference. A place that is misread gives code that does not compile, and build.py drops it.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

TOKEN = re.compile(
    r'(?P<skip>//[^\n]*|/\*.*?\*/|^[ \t]*#(?:[^\n\\]|\\.|\\\n)*)'
    r'|(?P<text>(?:u8|[uUL])?R"(?P<mark>[^(\n]*)\(.*?\)(?P=mark)"|"(?:[^"\\\n]|\\.)*")'
    r"|(?P<char>'(?:[^'\\\n]|\\.)+')"
    r"|(?P<number>\.?\d(?:'?[\w.]|[eEpP][+-])*)"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<mark_>->\*?|::|\+\+|--|<=>|<<=|>>=|<<|[-+*/%&|^<>=!]=|&&|\|\||\.\.\.|[^\s\w])",
    re.MULTILINE | re.DOTALL)
PAIRS = {"(": ")", "[": "]", "{": "}"}
COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
ASSIGNMENTS = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}
# Tokens that end the operand of an operator: of the ternary operator, and then of tighter ones.
ENDS = ASSIGNMENTS | {",", ";", "?", ":", "return", "co_return", "case", "else", "do", "throw"}
ENDS_OF_BOTH = ENDS | {"||"}
ENDS_OF_EQUAL = ENDS_OF_BOTH | {"&&", "|", "&", "^", "==", "!="}
ENDS_OF_LESS = ENDS_OF_EQUAL | {"<", "<=", ">", ">=", "<=>"}
ENDS_OF_SUM = ENDS_OF_LESS | {"<<", ">>", "+", "-"}
# Statements in which no place is taken: constants of the compiler, and declarations of types.
CONSTANT = {"constexpr", "consteval", "static_assert", "using", "template", "enum", "class", "struct", "static",
            "thread_local", "asm", "goto"}
# Statements whose effect no user of the program can see: logs, capacity, hints.
UNSEEN = re.compile(r"\b(log_\w+|log|logged|reserve|shrink_to_fit|assert|abort|prefetch|madvise|yield|pause|"
                    r"set_name|pthread_setname_np|static_cast<void>)\b")
# Calls whose order makes no difference, because each sets one field of a message.
SETTER = re.compile(r"\b(set_\w+|mutable_\w+|field|number)\(")
KEYWORDS = {"if", "for", "while", "switch", "return", "else", "do", "case", "default", "break", "continue", "delete",
            "throw", "try", "catch", "new", "using", "auto", "const", "co_return", "co_await", "operator"}


@dataclass(frozen=True)
class Token:
    """A token, and whether a space is on each side of it."""

    text: str
    start: int
    end: int
    spaced: bool
    kind: str


@dataclass(frozen=True)
class Site:
    """A place that can be broken. The source from `start` to `end` becomes `form`, in which `@` is the question
    whether the mutant is active, `{original}` the source and `{broken}` what replaces it.
    """

    kind: str
    start: int
    end: int
    broken: str
    what: str
    form: str = "(@ ? {broken} : {original})"

    def text(self, source: str, number: int) -> str:
        """The code with both variants, in the same number of lines."""
        original = source[self.start:self.end]
        switch = f"::teletensor_mutant({number})"
        text = self.form.replace("@", switch).replace("{broken}", self.broken.replace("\n", " "))
        return text.replace("{original}", original)


def tokens_of(source: str) -> list[Token]:
    found = []
    for match in TOKEN.finditer(source):
        kind = match.lastgroup or ""
        if kind == "skip":
            continue
        start, end = match.span()
        spaced = source[start - 1:start].isspace() and source[end:end + 1].isspace()
        found.append(Token(match.group(), start, end, spaced, kind))
    return found


class File:
    """The tokens of a file, the partner of each bracket, and which tokens are in a body of a function."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.tokens = tokens_of(source)
        self.around: list[str] = []  # the innermost bracket that each token is in
        self.partner = self._partners()
        self.in_code = self._bodies()

    def _partners(self) -> dict[int, int]:
        partner, opened = {}, []
        for at, token in enumerate(self.tokens):
            self.around.append(self.words(opened[-1]) if opened else "")
            if token.text in PAIRS:
                opened.append(at)
            elif token.text in PAIRS.values() and opened:
                first = opened.pop()
                partner[first], partner[at] = at, first
        return partner

    def _bodies(self) -> list[bool]:
        """For each token, whether it is in the body of a function that is not evaluated by the compiler."""
        inside = [False] * len(self.tokens)
        at = head = 0
        while at < len(self.tokens):
            text = self.tokens[at].text
            if text in (";", "}"):
                head = at + 1
            elif text == "{":
                words = {token.text for token in self.tokens[head:at]}
                end = self.partner.get(at, at)
                if words & {"namespace", "class", "struct", "union", "enum", "extern"} and "(" not in words:
                    head = at + 1
                elif "(" in words and "=" not in words and not words & {"constexpr", "consteval"}:
                    inside[at:end] = [True] * (end - at)
                    at = end - 1
                else:
                    at = end - 1
            at += 1
        return inside

    def words(self, at: int) -> str:
        return self.tokens[at].text if 0 <= at < len(self.tokens) else ""

    def statement(self, at: int) -> tuple[int, int]:
        """The first token of the statement of a token, and the one after its last."""
        first = last = at
        while first > 0 and self.words(first - 1) not in (";", "{", "}"):
            first -= 1
        while last < len(self.tokens) and self.words(last) not in (";", "{", "}"):
            last += 1
        return first, last

    def is_constant(self, at: int) -> bool:
        """Whether the compiler evaluates the token's statement, or no user can see what it does."""
        first, last = self.statement(at)
        words = {token.text for token in self.tokens[first:last]}
        text = self.source[self.tokens[first].start:self.tokens[last - 1].end] if last > first else ""
        return bool(words & CONSTANT or UNSEEN.search(text))

    def has_text(self, at: int) -> bool:
        """Whether the token's statement contains a string: then a number in it is usually part of a message."""
        first, last = self.statement(at)
        return any(token.kind == "text" or token.text in ("to_string", "string") for token in self.tokens[first:last])

    def left(self, at: int, ends: set[str]) -> int:
        """The first token of the operand that ends before token `at`."""
        here = at
        while here > 0:
            text = self.words(here - 1)
            if text in PAIRS or text in ends or (text == "}" and here < at and self._begins(here)):
                break
            here = self.partner.get(here - 1, here - 1) if text in PAIRS.values() else here - 1
        return here

    def _begins(self, at: int) -> bool:
        """Whether a statement or an operand begins at a token that follows `}`."""
        return self.tokens[at].kind in ("name", "number") or self.words(at) in ("!", "*", "++", "--")

    def right(self, at: int, ends: set[str]) -> int:
        """The token after the operand that begins after token `at`."""
        here = at + 1
        while here < len(self.tokens):
            text = self.words(here)
            if text in PAIRS.values() or text in ends:
                break
            here = self.partner.get(here, here) + 1 if text in PAIRS else here + 1
        return here

    def span(self, first: int, last: int) -> str:
        """The source of the tokens from `first` to before `last`."""
        return self.source[self.tokens[first].start:self.tokens[last - 1].end] if last > first else ""

    def code(self) -> Iterator[int]:
        """The tokens of bodies that can be changed."""
        return (at for at in range(len(self.tokens)) if self.in_code[at] and not self.is_constant(at))


def binary(file: File, at: int, kind: str, other: str, ends: set[str]) -> Iterator[Site]:
    """A binary operator that becomes another one."""
    first, last = file.left(at, ends), file.right(at, ends)
    while "-" in ends and file.words(first - 1) == "-":  # a - b + c is no a - (b + c)
        first = file.left(first - 1, ends)
    left, right = file.span(first, at), file.span(at + 1, last)
    if left and right:
        text = file.words(at)
        start, end = file.tokens[first].start, file.tokens[last - 1].end
        yield Site(kind, start, end, f"(({left}) {other} ({right}))", f"{text} becomes {other}",
                   "(@ ? {broken} : ({original}))")


def comparisons(file: File) -> Iterator[Site]:
    for at in file.code():
        token = file.tokens[at]
        if token.text in COMPARISONS and token.spaced and file.words(at - 1) != "operator":
            ends = ENDS_OF_EQUAL if token.text in ("==", "!=") else ENDS_OF_LESS
            yield from binary(file, at, "comparison", COMPARISONS[token.text], ends)


def junctions(file: File) -> Iterator[Site]:
    for at in file.code():
        token = file.tokens[at]
        if token.text == "&&" and token.spaced:
            yield from binary(file, at, "junction", "||", ENDS_OF_BOTH | {"&&"})
        elif token.text == "||" and token.spaced:
            yield from binary(file, at, "junction", "&&", ENDS | {"||"})


def sums(file: File) -> Iterator[Site]:
    for at in file.code():
        token = file.tokens[at]
        if token.text in ("+", "-") and token.spaced and not file.has_text(at):
            other = "-" if token.text == "+" else "+"
            yield from binary(file, at, "sum", other, ENDS_OF_SUM)


def bounds(file: File) -> Iterator[Site]:
    """A number that becomes one more, outside of sizes of arrays and template arguments."""
    for at in file.code():
        token = file.tokens[at]
        if not re.fullmatch(r"\d{1,9}", token.text) or file.has_text(at):
            continue
        if file.words(at - 1) in ("[", "<", "case", "-") or file.words(at + 1) in (">", "]"):
            continue
        yield Site("bound", token.start, token.end, str(int(token.text) + 1), f"{token.text} is one more")


def conditions(file: File) -> Iterator[Site]:
    """An `if` whose body leaves the function or the loop never does so; another condition is negated."""
    for at in file.code():
        if file.words(at) not in ("if", "while") or file.words(at + 1) != "(":
            continue
        end = file.partner[at + 1]
        inside = {token.text for token in file.tokens[at + 2:end]}
        if inside & (ASSIGNMENTS | {";"}):
            continue
        start, stop = file.tokens[at + 2].start, file.tokens[end - 1].end
        follows = {file.words(end + 1), file.words(end + 2)}
        if file.words(at) == "if" and follows & {"return", "continue", "break"}:
            yield Site("check", start, stop, "", "a check is missing", "!@ && ({original})")
        else:
            yield Site("condition", start, stop, "", "a condition is negated", "@ != static_cast<bool>({original})")


def simple_statements(file: File) -> Iterator[tuple[int, int]]:
    """The tokens of statements that call or assign, and declare nothing: the first and the one after `;`."""
    for at in file.code():
        before = file.words(at - 1)
        if file.around[at] != "{" or before not in (";", "{", "}", "else", ")") or file.words(at) in KEYWORDS:
            continue
        if before == ")" and file.words(file.partner.get(at - 1, 0) - 1) not in ("if", "for", "while"):
            continue
        if file.tokens[at].kind != "name" and file.words(at) not in ("++", "--"):
            continue
        last = file.right(at - 1, {";"})
        if file.words(last) == ";" and acts(file, at, last):
            yield at, last + 1


def acts(file: File, at: int, last: int) -> bool:
    """Whether the tokens are a call, an assignment or an increment, and no declaration."""
    here, previous = at, ""
    while here < last:
        token = file.tokens[here]
        if token.text in ASSIGNMENTS:
            return True
        if token.kind == "name" and (previous == "name" or token.text in KEYWORDS):
            return False
        if token.text in ("*", "&", ">", "&&") and file.tokens[here + 1].kind == "name":
            return False  # `T* x`, `T& x`, `vector<T> x`
        previous = token.kind
        here = file.partner[here] + 1 if token.text in PAIRS else here + 1
    return file.words(last - 1) == ")" or file.words(at) in ("++", "--") or file.words(last - 1) in ("++", "--")


def removals(file: File) -> Iterator[Site]:
    for at, last in simple_statements(file):
        start, end = file.tokens[at].start, file.tokens[last - 1].end
        yield Site("removal", start, end, "", "a statement is missing", "{ if (!@) { {original} } }")


def orders(file: File) -> Iterator[Site]:
    """Two statements that follow each other in a block change places."""
    statements = dict(simple_statements(file))
    for at, middle in statements.items():
        if middle not in statements or file.words(at - 1) not in (";", "{", "}"):
            continue
        last = statements[middle]
        first, second = file.span(at, middle), file.span(middle, last)
        if first.endswith(");") and second.endswith(");") and not SETTER.search(first + second):
            start, end = file.tokens[at].start, file.tokens[last - 1].end
            yield Site("order", start, end, f"{second} {first}", "two statements change places",
                       "if (@) { {broken} } else { {original} }")


def early_returns(file: File) -> Iterator[Site]:
    """A function that returns a Status returns OK and does nothing."""
    for at, token in enumerate(file.tokens):
        if token.text != "{" or not file.in_code[at] or file.in_code[at - 1]:
            continue
        head = at
        while head > 0 and file.words(head - 1) not in (";", "{", "}"):
            head -= 1
        words = [token.text for token in file.tokens[head:at]]
        if "Status" in words and words.index("Status") < words.index("(") and "<" not in words[:words.index("(")]:
            yield Site("early return", token.start, token.end, "", "returns OK at once", "{ if (@) return {};")


FINDERS: list[Callable[[File], Iterator[Site]]] = [comparisons, junctions, sums, bounds, conditions, removals, orders,
                                                   early_returns]
KINDS = ["comparison", "junction", "sum", "bound", "check", "condition", "removal", "order", "early return"]


def sites_of(source: str) -> list[Site]:
    """All places of a file, without those whose code would be written twice with a comment in it."""
    file = File(source)
    found = [site for find in FINDERS for site in find(file)]
    return [site for site in found if "//" not in site.broken]


def mutated(source: str, chosen: dict[int, Site]) -> str:
    """The source with all chosen places, by number, which must not overlap."""
    for number, site in sorted(chosen.items(), key=lambda item: -item[1].start):
        source = source[:site.start] + site.text(source, number) + source[site.end:]
    return source
