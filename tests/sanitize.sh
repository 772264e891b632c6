#!/bin/sh
# ASan and UBSan over the unit tests and over the daemon in the end-to-end tests (the client is not
# instrumented); TSan over the tests of stream, session and pool, and over the daemon in the
# end-to-end tests of concurrency. `sanitize.sh address` or `thread` runs one of the two.
set -u
cd "$(dirname "$0")/.."
status=0
only=${1:-}
build() {
  cmake --preset "$1" --log-level=WARNING >/dev/null && cmake --build --preset "$1"
}
if [ "$only" != thread ]; then
  build asan || exit 1
  export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1
  export UBSAN_OPTIONS=print_stacktrace=1
  export LSAN_OPTIONS=suppressions=$PWD/tests/lsan.supp:print_suppressions=0
  export TELETENSOR_SANITIZED=1  # tests of speed and of the daemon's own size are not for it
  ctest --preset asan -L '^unit$' || status=1
  TELETENSORD=$PWD/build/asan/bin/teletensord .venv/bin/python -m pytest -q -p no:cacheprovider \
    tests/e2e || status=1
fi
if [ "$only" != address ]; then
  build tsan || exit 1
  export TSAN_OPTIONS=suppressions=$PWD/tests/tsan.supp:second_deadlock_stack=1
  ctest --preset tsan -R '^(core|memory|runtime|session|engine|server)_test$' || status=1
fi
exit $status
