#!/usr/bin/env bash
# Runs the phases of CI in order and stops at the first failure.
#
#   scripts/test.sh                  all phases
#   scripts/test.sh clippy tests     only these, in this order
#
# scripts/phases.sh runs the phases.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"

all_phases=(setup format clippy clippy-core clippy-features rustdoc links python tests tests-decoded tests-uring tests-wasm doctests wheel)

declare -A limit_seconds=(
    [setup]=2400 [format]=60 [clippy]=900 [clippy-core]=600 [clippy-features]=600 [rustdoc]=600
    [links]=60 [python]=300 [tests]=2700 [tests-decoded]=900 [tests-uring]=900
    [tests-wasm]=900 [doctests]=600 [wheel]=900
)

# The tests that a decoded copy of every file could disturb, without those that choose the size of the cache themselves.
decoded='(binary(passthrough)+(binary(tiers)-test(/^policy::/))'
decoded+='+(binary(crashes)&test(/^(daemon_survival|failing_calls|killed_calls|repair)::/))'
decoded+='+(binary(full_disk)&test(/^(full_store|random_calls|refused_calls)::/))+test(/^pinned::/))-test(decoded_)'

# The program, and the reader for Rust programs.
packages="-p tierfs -p tierfs-client"

phase_command() {
    case $1 in
    setup) echo scripts/setup.sh ;;
    format) echo cargo fmt --all --check ;;
    clippy) echo cargo clippy --locked $packages --all-targets -- -D warnings ;;
    clippy-core) echo cargo clippy --locked --no-default-features --lib -- -D warnings ;;
    clippy-features) echo cargo clippy --locked --features cuda,traces --bins --lib --test control --test gpu -- -D warnings ;;
    rustdoc) echo env RUSTDOCFLAGS=-Dwarnings cargo doc --locked $packages --no-deps ;;
    links) echo python3 scripts/check_links.py README.md docs ;;
    python) echo target/venv/bin/python -m unittest discover -s tests/python ;;
    tests) echo cargo nextest run --locked $packages ;;
    # Every file is decoded when it is opened, into so little memory that copies go all the time.
    tests-decoded) echo env TIERFS_TEST_DECODED_CACHE=16M cargo nextest run --locked --test crashes --test forms --test full_disk \
        --test passthrough --test tiers -E "$decoded" ;;
    # Requests arrive over io_uring.
    tests-uring) uring --test passthrough --test posix -E '!test(/heavy::/)' ;;
    tests-wasm) echo scripts/targets.sh wasm ;;
    doctests) echo cargo test --locked $packages --doc ;;
    wheel) echo scripts/wheel.sh check ;;
    esac
}

. scripts/phases.sh
