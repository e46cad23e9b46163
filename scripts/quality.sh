#!/usr/bin/env bash
# Measures what each tier costs in precision on real models, beside ggml's types, and writes docs/TIERS.md and its plots.
# Needs root; about 15 minutes on 2 cores.
#
#   scripts/quality.sh             measures everything
#   scripts/quality.sh --resume    keeps what an earlier run that was stopped has measured
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"

case ${1:-} in
--resume) ;;
"") rm -rf target/quality ;;
*)
    echo "usage: scripts/quality.sh [--resume]" >&2
    exit 2
    ;;
esac
scripts/setup.sh quality
cargo build --release --locked
cargo build --release --locked --manifest-path tests/quality/Cargo.toml --target-dir target
target/venv/bin/python scripts/quality.py target/release/tierfs target/release/tierfs-quality
