#!/bin/sh
# clang-format, ruff, mypy, a clang build (thread-safety analysis), and clang-tidy over the C++ files
# that differ from the given commit (default: all). Runs everything, fails if anything failed.
set -u
cd "$(dirname "$0")/.."
status=0
.venv/bin/python -m pytest -q -p no:cacheprovider tests/policy/test_style.py || status=1
cmake --preset clang --log-level=WARNING >/dev/null && cmake --build --preset clang || exit 1
if [ -n "${SINCE:-}" ]; then
  changed=$(git diff --name-only --diff-filter=d "$SINCE" -- '*.cc')
else
  changed=$(git ls-files '*.cc')
fi
known=$(for f in $changed; do grep -q "/$f\"" build/clang/compile_commands.json && echo "$f"; done)
[ -z "$known" ] ||
  echo "$known" | xargs -P "$(nproc)" -n 4 clang-tidy --quiet -p build/clang || status=1
exit $status
