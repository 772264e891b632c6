#!/bin/sh
# Runs all fuzzers for longer than the unit tests do: names and the tape, in one process against their
# specification, and (a fiftieth of the programs) with a daemon against PyTorch; the same number of random
# functions in every way (line by line, in windows, captured, scripted, from a file), which must give the
# same bits; for SECONDS_EACH each, hostile frames and programs against the engine, hostile daemons, hostile
# calls of stores, and damaged files against everything that reads a file; KERNEL_CALLS calls of the kernels
# of all ops with hostile operands, and the same number for the ops that read and write by index; and then
# frames and programs for the same time again, guided by coverage, which continues from the corpus of
# earlier runs.
set -eu
cd "$(dirname "$0")/.."
tests=build/release/tests
$tests/names_inprocess --seed "$SEED" --programs "$PROGRAMS" --failures "$((PROGRAMS / 4))"
.venv-peers/bin/python tests/fuzz/names_fuzz.py --seed "$SEED" --programs "$((PROGRAMS / 50))"
.venv-peers/bin/python tests/fuzz/differential.py --seed "$SEED" --programs "$((PROGRAMS / 50))"
$tests/frame_fuzz --from "$SEED" --seconds "$SECONDS_EACH"
$tests/frame_fuzz --from "$SEED" --seconds "$((SECONDS_EACH / 5))" --bits 1
$tests/program_fuzz --from "$SEED" --seconds "$SECONDS_EACH"
$tests/kernel_fuzz --from "$SEED" --calls "$KERNEL_CALLS"
$tests/kernel_fuzz --indices --from "$SEED" --calls "$KERNEL_CALLS"
for what in config tokens safetensors session; do
  $tests/file_fuzz --only $what --from "$SEED" --seconds "$SECONDS_EACH"
done
for what in peer store; do
  $tests/${what}_fuzz --from "$SEED" --seconds "$SECONDS_EACH"
done
for what in saved_files torch_files onnx_files; do
  .venv-peers/bin/python tests/fuzz/$what.py --seed "$SEED" --seconds "$SECONDS_EACH"
done
cmake --preset fuzz --log-level=WARNING >/dev/null
cmake --build --preset fuzz
for what in frame program; do
  mkdir -p "build/fuzz/corpus-$what" "build/fuzz/seeds-$what"
  "$tests/${what}_fuzz" --from "$SEED" --seconds 5 --write "build/fuzz/seeds-$what"
  "build/fuzz/bin/${what}_libfuzzer" -max_total_time="$SECONDS_EACH" -max_len=16384 -timeout=60 \
    -rss_limit_mb=4096 -artifact_prefix=build/fuzz/ "build/fuzz/corpus-$what" "build/fuzz/seeds-$what"
done
echo "fuzz: ok"
