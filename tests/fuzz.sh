#!/bin/sh
# Everything random, longer than the unit tests do it: names and tape in process against their
# specification, and (a fiftieth) through a daemon against PyTorch; as many functions run in every way
# (one by one, in windows, captured, scripted, from a file) for the same bits; hostile frames against the engine
# for SECONDS_EACH, and as long again guided by coverage, which goes on from what it found before.
set -eu
cd "$(dirname "$0")/.."
tests=build/release/tests
$tests/names_inprocess --seed "$SEED" --programs "$PROGRAMS" --failures "$((PROGRAMS / 4))"
.venv-peers/bin/python tests/fuzz/names_fuzz.py --seed "$SEED" --programs "$((PROGRAMS / 50))"
.venv-peers/bin/python tests/fuzz/differential.py --seed "$SEED" --programs "$((PROGRAMS / 50))"
$tests/frame_fuzz --from "$SEED" --seconds "$SECONDS_EACH"
$tests/frame_fuzz --from "$SEED" --seconds "$((SECONDS_EACH / 5))" --bits 1
cmake --preset fuzz --log-level=WARNING >/dev/null
cmake --build --preset fuzz
mkdir -p build/fuzz/corpus build/fuzz/seeds
$tests/frame_fuzz --from "$SEED" --seconds 5 --write build/fuzz/seeds
build/fuzz/bin/frame_libfuzzer -max_total_time="$SECONDS_EACH" -max_len=16384 -timeout=60 \
  -rss_limit_mb=4096 -artifact_prefix=build/fuzz/ build/fuzz/corpus build/fuzz/seeds
echo "fuzz: ok"
