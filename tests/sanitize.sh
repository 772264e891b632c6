#!/bin/sh
# Runs ASan and UBSan on the unit tests and on the daemon in the end-to-end tests (the client is not
# instrumented), and TSan on the unit tests with several threads and on the daemon in tests of long
# calls. `sanitize.sh address` or `thread` runs one of the two, `sanitize.sh ops` the op tester
# against the daemon under ASan (the better part of an hour).
set -u
cd "$(dirname "$0")/.."
status=0
only=${1:-}
build() {
  cmake --preset "$1" --log-level=WARNING >/dev/null && cmake --build --preset "$1"
}
export TELETENSOR_SANITIZED=1  # tests of speed and of the daemon's own size are not for it
pytest() { .venv/bin/python -m pytest -q -p no:cacheprovider "$@" || status=1; }
if [ "$only" != thread ]; then
  build asan || exit 1
  export TELETENSORD=$PWD/build/asan/bin/teletensord
  export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1
  export UBSAN_OPTIONS=print_stacktrace=1
  export LSAN_OPTIONS=suppressions=$PWD/tests/lsan.supp:print_suppressions=0
  if [ "$only" = ops ]; then
    pytest tests/ops
    exit $status
  fi
  ctest --preset asan -L '^unit$' || status=1
  # These two files build packages and start no daemon with sanitizers.
  pytest tests/e2e --ignore=tests/e2e/test_sdist.py --ignore=tests/e2e/test_wheels.py
fi
if [ "$only" != address ]; then
  build tsan || exit 1
  # TSan reports races in copies that libgrpc makes; finding and suppressing each report makes an upload
  # last minutes.
  export TSAN_OPTIONS=suppressions=$PWD/tests/tsan.supp:second_deadlock_stack=1
  TSAN_OPTIONS=$TSAN_OPTIONS:ignore_noninstrumented_modules=1
  ctest --preset tsan -R '^(core|memory|runtime|session|client|server)_test$' || status=1
  # A daemon with a report exits with status 66, which the tests refuse.
  export TELETENSORD=$PWD/build/tsan/bin/teletensord
  pytest tests/e2e/test_long_calls.py
fi
exit $status
