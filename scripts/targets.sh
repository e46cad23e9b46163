#!/usr/bin/env bash
# Builds the portable core for other processors and runs its tests there, without such a processor.
#
#   scripts/targets.sh wasm      wasm32-unknown-unknown is checked; tests of wasm32-wasip1 run in wasmtime
#   scripts/targets.sh aarch64   tests of aarch64-unknown-linux-gnu run in qemu, on the oldest processor of 64 bits
#   scripts/targets.sh check     the whole program, mount and remotes too, is checked by clippy for aarch64-unknown-linux-gnu
#
# scripts/setup.sh installs the targets. A target that this machine cannot have is skipped by name.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"

# Nobody measures or debugs these programs.
export CARGO_PROFILE_DEV_DEBUG=none CARGO_INCREMENTAL=0
# The tests that need no process, no other user and no mount.
tests=(--test codec --test formats --test log)

# has_target NAME: whether the standard library of the target is installed; says so if it is not.
has_target() {
    [ ! -d "$(rustc --print sysroot)/lib/rustlib/$1/lib" ] || return 0
    echo "skipped: $1, whose standard library is not installed"
    return 1
}

# has_cross: whether the linker for aarch64 and what follows are there; says so if one is not.
has_cross() {
    local program
    has_target aarch64-unknown-linux-gnu || return 1
    for program in aarch64-linux-gnu-gcc "$@"; do
        command -v "$program" >/dev/null || {
            echo "skipped: aarch64-unknown-linux-gnu, because $program is not installed"
            return 1
        }
    done
}

wasm() {
    # Checked only: this one does not run, and the other one generates code for the same instructions.
    ! has_target wasm32-unknown-unknown ||
        cargo check --locked --no-default-features --lib --target wasm32-unknown-unknown
    ! has_target wasm32-wasip1 ||
        CARGO_TARGET_WASM32_WASIP1_RUNNER="target/venv/bin/python scripts/run_wasm.py" \
            cargo test --locked --no-default-features "${tests[@]}" --target wasm32-wasip1
}

aarch64() {
    ! has_cross qemu-aarch64 ||
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
            CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -cpu cortex-a53 -L /usr/aarch64-linux-gnu" \
            cargo test --locked --no-default-features --test codec --target aarch64-unknown-linux-gnu
}

check() {
    ! has_cross || cargo clippy --locked --target aarch64-unknown-linux-gnu -- -D warnings
}

case ${1:-} in
wasm | aarch64 | check) "$1" ;;
*)
    echo "usage: scripts/targets.sh wasm|aarch64|check" >&2
    exit 2
    ;;
esac
