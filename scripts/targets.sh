#!/usr/bin/env bash
# Builds the portable core for other processors and runs its tests there, without such a processor.
#
#   scripts/targets.sh wasm   wasm32-unknown-unknown is built; tests of wasm32-wasip1 run in wasmtime
#
# scripts/setup.sh installs the targets. A target that this machine's Rust cannot have is skipped by name.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"

# Nobody measures or debugs these programs.
export CARGO_PROFILE_DEV_DEBUG=none CARGO_INCREMENTAL=0
# The tests that need no process, no other user and no mount.
tests=(--test codec --test formats --test log --test records)

# has_target NAME: whether the standard library of the target is installed; says so if it is not.
has_target() {
    [ ! -d "$(rustc --print sysroot)/lib/rustlib/$1/lib" ] || return 0
    echo "skipped: $1, whose standard library is not installed"
    return 1
}

wasm() {
    # Not optimized, which takes a third of the time: this one does not run.
    ! has_target wasm32-unknown-unknown ||
        CARGO_PROFILE_DEV_OPT_LEVEL=0 cargo build --locked --no-default-features --lib --target wasm32-unknown-unknown \
            --config 'profile.dev.package."*".opt-level=0'
    ! has_target wasm32-wasip1 ||
        CARGO_TARGET_WASM32_WASIP1_RUNNER="target/venv/bin/python scripts/run_wasm.py" \
            cargo test --locked --no-default-features "${tests[@]}" --target wasm32-wasip1 \
            --config 'profile.dev.package."*".opt-level=1'
}

case ${1:-} in
wasm) "$1" ;;
*)
    echo "usage: scripts/targets.sh wasm" >&2
    exit 2
    ;;
esac
