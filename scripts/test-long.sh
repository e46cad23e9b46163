#!/usr/bin/env bash
# Runs the phases that take too long for scripts/test.sh and stops at the first failure. Needs root.
#
#   scripts/test-long.sh               all phases, over an hour
#   scripts/test-long.sh fuzz suites   only these, in this order
#
# tests: the time-boxed and random tests, TIERFS_TEST_SCALE (10) times as long, and those on a cluster.
# tests-uring: all tests, with requests over io_uring. tests-core: the unit tests of the
# portable core, whose other tests run as WebAssembly in scripts/test.sh. tests-aarch64, check-aarch64: the codecs on
# another processor, in an emulator, and the program compiled for it. kernels: the program under kernels 6.1 and 6.12, in an
# emulator. containers: mounts in containers of podman, where that is installed. features: GPUs and traces, which are off by
# default. fuzz: each target for a minute. suites: foreign test suites. loaders: programs that load models, on a mount.
# loaders-remote: the same, on a remote. dist, check-dist: the files of a release, built and tried in the systems that they
# are for. bench-clippy: checks the benchmarks without running them. scripts/phases.sh runs the phases.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"

all_phases=(setup setup-suites setup-loaders setup-bench setup-dist setup-check-dist bench-clippy tests tests-uring tests-core tests-aarch64
    check-aarch64 kernels containers features fuzz suites loaders loaders-remote dist check-dist)

declare -A limit_seconds=([setup]=2400 [setup-suites]=2400 [setup-loaders]=2400 [setup-bench]=1200 [bench-clippy]=900
    [tests]=5400 [tests-uring]=5400 [tests-core]=900 [tests-aarch64]=1200 [check-aarch64]=1200 [kernels]=1800 [containers]=900
    [features]=1800 [fuzz]=3600 [suites]=7200 [loaders]=4800 [loaders-remote]=2400
    [setup-dist]=2400 [setup-check-dist]=2400 [dist]=7200 [check-dist]=1200)

phase_command() {
    case $1 in
    setup) echo scripts/setup.sh ;;
    setup-suites) echo scripts/setup.sh suites ;;
    setup-bench) echo scripts/setup.sh bench ;;
    bench-clippy) echo cargo clippy --locked --manifest-path tests/bench/Cargo.toml --target-dir target -- -D warnings ;;
    setup-loaders) echo scripts/setup.sh loaders ;;
    tests) echo env "TIERFS_TEST_SCALE=${TIERFS_TEST_SCALE:-10}" cargo nextest run --locked --profile long ;;
    tests-uring) uring ;;
    tests-core) echo cargo nextest run --locked --no-default-features --lib ;;
    tests-aarch64) echo scripts/targets.sh aarch64 ;;
    check-aarch64) echo scripts/targets.sh check ;;
    kernels) echo scripts/kernels.sh ;;
    containers) echo scripts/containers.sh ;;
    features) echo cargo nextest run --locked --features cuda,traces --test control --test gpu -E 'binary(gpu)+test(/^traces::/)' ;;
    fuzz) echo scripts/fuzz.sh ;;
    suites) echo scripts/suites.sh ;;
    loaders) echo scripts/loaders.sh ;;
    loaders-remote) echo scripts/loaders.sh --remote ;;
    setup-dist) echo scripts/setup.sh dist ;;
    setup-check-dist) echo scripts/setup.sh dist-check ;;
    dist) echo scripts/dist.sh ;;
    check-dist) echo scripts/dist.sh check ;;
    esac
}

. scripts/phases.sh
