#!/usr/bin/env bash
# Imports a real model exactly, in q8 and in q3, mounts the store and reads a tensor of each, as a terminal session.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"

scripts/setup.sh demo
source scripts/session.sh
ln -s "$root/scripts/compare.py" compare.py
tensor=encoder.layer.0.intermediate.dense.weight

run "tierfs init store"
run "tierfs import store demo/minilm minilm"
run "tierfs import store demo/minilm-q8 minilm/model.safetensors --tier q8:all"
run "tierfs import store demo/minilm-q3 minilm/model.safetensors --tier q3:all"
run "mkdir mnt && tierfs mount store mnt"
run "ls mnt/demo"
run "ls -lh mnt/demo/minilm"
run "ls -lh mnt/demo/minilm/.tensors | sed -n 1,12p"
run "cmp minilm/model.safetensors mnt/demo/minilm/model.safetensors && echo identical"
run "python compare.py minilm/model.safetensors mnt/demo/minilm $tensor --exact"
run "python compare.py minilm/model.safetensors mnt/demo/minilm-q8 $tensor --bits 8"
run "python compare.py minilm/model.safetensors mnt/demo/minilm-q3 $tensor --bits 3"
run "du -sh mnt/demo/*"
run "tierfs umount mnt"
