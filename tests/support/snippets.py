"""The fenced code blocks of the documents: programs, and the output that the page shows for them.

A block ```python or ```ipython is a separate program. A block ```output right after it shows its standard
output, in which `...` stands for any text, as in a doctest. The same holds for a block ```output after a
block ```sh. A program whose fence has a title (```python title="alice.py") belongs to a test that runs it
together with other blocks of its page.
"""

import doctest
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.M | re.S)
LIMIT = 300  # seconds; ends a hang
SUFFIX = {"python": "py", "ipython": "ipy", "sh": "sh"}


@dataclass(frozen=True)
class Snippet:
    """One program of a page. `output` is what it prints; None if the page does not show it."""

    language: str
    title: str
    code: str
    output: str | None

    @property
    def needs_torch(self) -> bool:
        return re.search(r"^import torch$", self.code, re.M) is not None


def snippets(page: Path) -> list[Snippet]:
    """The programs in a Markdown file, in order."""
    text = page.read_text(encoding="utf-8")
    fences = list(FENCE.finditer(text))
    found = []
    for fence, following in zip(fences, [*fences[1:], None]):
        language, attributes, code = fence.groups()
        shown = (following is not None and following[1] == "output"
                 and not text[fence.end():following.start()].strip())
        if language in ("python", "ipython") or (language == "sh" and shown):
            title = re.search(r'title="([^"]*)"', attributes)
            found.append(Snippet(language, title[1] if title else "", code, following[3] if shown else None))
    return found


def check(snippet: Snippet, folder: Path) -> None:
    """Runs the program in `folder`; fails if the program fails or prints something else than the page
    shows."""
    script = folder / f"snippet.{SUFFIX[snippet.language]}"
    script.write_text(snippet.code, encoding="utf-8")
    run = {"python": [sys.executable], "ipython": [sys.executable, "-m", "IPython", "--no-banner"],
           "sh": ["sh", "-e"]}[snippet.language]
    environment = {**os.environ, "MPLBACKEND": "Agg", "IPYTHONDIR": str(folder / "ipython"),
                   "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run([*run, str(script)], cwd=folder, env=environment, capture_output=True, text=True,
                          timeout=LIMIT)
    assert done.returncode == 0, f"status {done.returncode}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    if snippet.output is not None:
        assert_same(snippet.output, done.stdout)


def assert_same(shown: str, printed: str) -> None:
    """Checks that the page shows what was printed; `...` stands for any text."""
    same = doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS)
    assert same, f"the page shows\n{shown}\nbut the program prints\n{printed}"
