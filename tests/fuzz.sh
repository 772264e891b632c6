#!/bin/sh
# Everything random, longer than the unit tests do it: names and tape in process against their
# specification, and (a fiftieth) through a daemon against PyTorch; as many functions run in every way
# (one by one, in windows, captured, scripted, from a file) for the same bits; hostile frames and hostile
# programs against the engine, hostile daemons and hostile calls of stores, and files that are not what they say against everything that reads one, for
# SECONDS_EACH; KERNEL_CALLS calls of the kernels of all ops with hostile operands, and as many of those
# that read and write by index; frames and programs as long again guided by coverage, which goes on from what it found before.
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
