"""Builds programs that contain every drawn mutant, beside a build that exists, of which nothing is changed.

The overlay is a folder with the mutated files. A command of the existing build that compiles one of them is run again
with the overlay as the first folder for includes, and its object replaces the original in copies of the libraries and
of the programs. One build therefore serves all mutants, and files without a mutant are not compiled.
"""

import json
import re
import shlex
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from sites import Site, mutated

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FLAGS = ["-O1", "-w", "-Wno-narrowing", "-include", str(HERE / "switch.h")]
RETRIES = 8  # the maximum number of times that a file is compiled with fewer mutants


@dataclass
class Mutant:
    """A place in a file, by number."""

    number: int
    path: str
    line: int
    site: Site

    def __str__(self) -> str:
        return f"{self.number} {self.path}:{self.line} {self.site.kind}: {self.site.what}"


@dataclass
class Build:
    """The programs of the build in `folder` with all `mutants`, which are written to `overlay`. `dropped` contains
    the mutants that do not compile.
    """

    folder: Path
    overlay: Path
    mutants: list[Mutant]
    dropped: list[Mutant] = field(default_factory=list)

    def commands(self) -> list[dict[str, str]]:
        text = subprocess.run(["ninja", "-t", "compdb"], cwd=self.folder, capture_output=True, text=True, check=True)
        return [entry for entry in json.loads(text.stdout) if entry.get("output")]

    def write(self, path: str) -> None:
        target = self.overlay / path
        target.parent.mkdir(parents=True, exist_ok=True)
        chosen = {mutant.number: mutant.site for mutant in self.mutants if mutant.path == path}
        target.write_text(mutated((ROOT / path).read_text(), chosen))

    def make(self, programs: list[str], jobs: int) -> dict[str, Path]:
        """Compiles and links; returns the paths of the programs."""
        paths = {mutant.path for mutant in self.mutants}
        for path in paths:
            self.write(path)
        commands = self.commands()
        units = [entry for entry in commands
                 if entry["output"].endswith(".o") and paths & set(included(Path(self.folder, entry["file"])))]
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(self.compile, units))
        objects = {unit["output"] for unit in units}
        libraries = {entry["output"] for entry in commands if entry["output"].endswith(".a")
                     if self.replace_objects(entry, objects)}
        with ThreadPoolExecutor(jobs) as pool:
            return dict(zip(programs, pool.map(lambda name: self.link(name, libraries), programs)))

    def output(self, name: str) -> Path:
        target = self.overlay / "build" / self.folder.name / name
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def compile(self, entry: dict[str, str]) -> None:
        """Compiles a unit; mutants in lines with errors are dropped, and at last all mutants of the unit."""
        for attempt in range(RETRIES):
            result = subprocess.run(self.changed(entry), cwd=self.folder, capture_output=True, text=True)
            if result.returncode == 0:
                return
            wrong = self.in_lines(result.stderr)
            if not wrong or attempt == RETRIES - 2:
                inside = set(included(Path(self.folder, entry["file"])))
                wrong = wrong or [mutant for mutant in self.mutants if mutant.path in inside]
            if not wrong:
                break
            self.dropped += wrong
            self.mutants = [mutant for mutant in self.mutants if mutant not in wrong]
            for path in {mutant.path for mutant in wrong}:
                self.write(path)
        raise SystemExit(f"{entry['file']} does not compile:\n{result.stderr}")

    def changed(self, entry: dict[str, str]) -> list[str]:
        """The command of a unit, for the overlay."""
        words = shlex.split(entry["command"])
        for option in ("-MT", "-MF"):
            if option in words:
                del words[words.index(option):words.index(option) + 2]
        words = [word for word in words if word not in ("-MD", "-Werror")]
        words[words.index("-o") + 1] = str(self.output(entry["output"]))
        own = self.overlay / relative(Path(self.folder, entry["file"]))
        if own.exists():
            words[words.index("-c") + 1] = str(own)
        first = next(at for at, word in enumerate(words) if word.startswith("-I"))
        return [*words[:first], f"-I{self.overlay}", *words[first:], *FLAGS]

    def in_lines(self, errors: str) -> list[Mutant]:
        """The mutants in lines that an error message names."""
        found = set()
        for path, line in re.findall(rf"{re.escape(str(self.overlay))}/(\S+?):(\d+):", errors):
            for mutant in self.mutants:
                lines = mutant.site.text("", 0).count("\n")
                source = (ROOT / path).read_text() if mutant.path == path else ""
                lines += source[mutant.site.start:mutant.site.end].count("\n")
                if mutant.path == path and mutant.line <= int(line) <= mutant.line + lines:
                    found.add(mutant.number)
        return [mutant for mutant in self.mutants if mutant.number in found]

    def replace_objects(self, entry: dict[str, str], objects: set[str]) -> bool:
        """Copies a library with the objects that were compiled; returns false if it has none of them."""
        own = [word for word in shlex.split(entry["command"]) if word in objects]
        if own:
            target = self.output(entry["output"])
            shutil.copy2(self.folder / entry["output"], target)
            subprocess.run(["ar", "r", str(target), *[str(self.output(name)) for name in own]], check=True,
                           capture_output=True)
        return bool(own)

    def link(self, program: str, libraries: set[str]) -> Path:
        text = subprocess.run(["ninja", "-t", "commands", "-s", program], cwd=self.folder, capture_output=True,
                              text=True, check=True).stdout.splitlines()[-1]
        command = text.removeprefix(": && ").split(" && ")[0]
        words = [str(self.output(word)) if word in libraries else word for word in shlex.split(command)]
        target = self.output(program)
        words[words.index("-o") + 1] = str(target)
        subprocess.run(words, cwd=self.folder, check=True)
        return target


def relative(path: Path) -> str:
    return str(path.resolve().relative_to(ROOT)) if path.resolve().is_relative_to(ROOT) else str(path)


def included(unit: Path) -> list[str]:
    """The files of the repository that a unit compiles: itself, or those that cmake/teletensor.cmake put into it."""
    name = relative(unit)
    if not name.startswith("build/"):
        return [name]
    return re.findall(r'^#include "(\S+\.cc)"$', unit.read_text(), re.MULTILINE)
