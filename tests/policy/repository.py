"""The files of the repository for the policy tests."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def files(*suffixes: str) -> list[Path]:
    """The files with these suffixes, or all files (tracked, or new and not ignored)."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split("\0")
    paths = sorted({ROOT / name for name in listed if name})
    return [p for p in paths if p.is_file() and (not suffixes or p.suffix in suffixes)]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
