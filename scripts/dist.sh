#!/usr/bin/env bash
# Builds the files of a release into target/dist, for x86_64 and aarch64: a static program, a Python wheel, a Debian
# package, an image for containers, the list of all crates in the program, and the digests of these files.
#
#   scripts/dist.sh                    for both processors
#   scripts/dist.sh x86_64|aarch64     for one of them
#   scripts/dist.sh check              tries the files of target/dist in the systems that they are for, as root
#
# The programs are linked by Zig with musl, so that they run on every Linux. scripts/setup.sh installs what is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
PATH="$HOME/.cargo/bin:$root/target/venv-dist/bin:$root/target/tools/bin:$PATH"

# The largest program that a release may have, so that it grows with intent only.
bytes_max=$((22 << 20))
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
dist=target/dist
host=$(uname -m)

program_of() { echo "$root/target/$1-unknown-linux-musl/dist/tierfs"; }

fail() {
    printf 'dist: %s\n' "$*" >&2
    exit 1
}

# name_of ARCHITECTURE: its name in Debian and Go.
name_of() {
    case $1 in
    x86_64) echo amd64 ;;
    aarch64) echo arm64 ;;
    esac
}

# Where the level of a crate is 3: outside of loops LLVM inlines only what is hardly longer than a call, unless the source
# asks for it, as the kernels of codecs do. The last pass leaves one copy of functions that are alike.
rustflags="-Cllvm-args=-inline-threshold=25 -Cllvm-args=-hot-callsite-rel-freq=8
    -Cllvm-args=-locally-hot-callsite-threshold=325 -Cpasses=mergefunc"

# The commit, its date, and whether the tree has other changes.
commit() {
    local changed
    changed=$(git status --porcelain)
    echo "$(git rev-parse --short=12 HEAD) $(git log -1 --format=%cs)${changed:+, changed}"
}

# TIERFS_VERSION: the text of `tierfs --version`, instead of the version with the commit.
build() {
    local architecture target
    local -x SOURCE_DATE_EPOCH HOST_PROGRAM PROGRAM PLATFORM
    scripts/setup.sh dist
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
    export TIERFS_VERSION=${TIERFS_VERSION:-"$version ($(commit))"}
    HOST_PROGRAM=$(program_of "$host")
    # The program for this machine writes the manual pages of all.
    for architecture in $(printf '%s\n' "$host" "$@" | sort -u); do
        target=$architecture-unknown-linux-musl
        echo "dist: building tierfs $TIERFS_VERSION for $target"
        RUSTFLAGS=$rustflags cargo zigbuild --locked --quiet --profile dist --target "$target" --bin tierfs
    done
    rm -rf "$dist"
    mkdir -p "$dist"
    for architecture; do
        target=$architecture-unknown-linux-musl
        PROGRAM=$(program_of "$architecture")
        install -m 755 "$PROGRAM" "$dist/tierfs-$version-$architecture-linux"
        PLATFORM=manylinux_2_17_$architecture.manylinux2014_$architecture.musllinux_1_1_$architecture \
            scripts/wheel.sh target/wheel/dist
        mv target/wheel/dist/*.whl "$dist/"
        scripts/deb.sh "$target" "$dist"
        image "$architecture"
        crates "$architecture"
    done
    (cd "$dist" && sha256sum -- * >SHA256SUMS)
    (cd "$dist" && ls -l)
}

# The image has the program, its name for mount(8), certificates of authorities and a folder for temporary files.
image() {
    local files=target/image
    rm -rf $files
    mkdir -p $files/usr/{bin,sbin} $files/etc/ssl/certs $files/tmp
    chmod 1777 $files/tmp
    install -m 755 "$PROGRAM" $files/usr/bin/tierfs
    ln -s ../bin/tierfs $files/usr/sbin/mount.tierfs
    install -m 644 "$(target/venv-dist/bin/python -m certifi)" $files/etc/ssl/certs/ca-certificates.crt
    target/venv-dist/bin/python scripts/image.py $files "$(name_of "$1")" "tierfs:$version" \
        "$dist/tierfs-$version-$1.oci.tar"
}

# crates ARCHITECTURE: the list of crates. cargo-cyclonedx writes it beside each Cargo.toml of the workspace.
crates() {
    local name=tierfs-$version-$1.cdx
    cargo cyclonedx --quiet --format json --spec-version 1.5 --target "$1-unknown-linux-musl" --no-build-deps \
        --override-filename "$name"
    # References have the path of this tree.
    sed "s|path+file://$root|path+file:///tierfs|g" "$name.json" >"$dist/$name.json"
    rm -f "$name.json" src/client/"$name.json"
}

# in_root ROOT COMMAND...: runs a command in a copy of a root, with /files and with mounts and processes of its own.
in_root() {
    mkdir -p "$place/layer"
    # shellcheck disable=SC2016 # the inner shell expands
    unshare --mount --pid --fork --kill-child --propagation private bash -euc '
        lower=$1 place=$2
        shift 2
        mount -t tmpfs -o mode=755 tmpfs "$place/layer"
        cd "$place/layer"
        mkdir upper work root
        mount -t overlay overlay -o "lowerdir=$lower,upperdir=upper,workdir=work" root
        mkdir -p root/dev root/proc root/files root/tmp
        mount -t proc proc root/proc
        mount --rbind /dev root/dev
        mount --bind "$place/files" root/files
        # Programs of the root come first.
        export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/files/bin HOME=/tmp
        exec chroot root "$@"' in_root "$1" "$place" "${@:2}" </dev/null
}

say() { printf '\ndist: %s\n' "$*"; }

check() {
    local architecture file program text
    [ "$(id -u)" = 0 ] || fail "check needs root"
    [ "$host" = x86_64 ] || fail "check needs a machine with x86_64"
    [ -s $dist/SHA256SUMS ] || fail "$dist is empty; run make dist first"
    scripts/setup.sh dist-check
    place=$(mktemp -d)
    trap 'rm -rf --one-file-system "$place"' EXIT

    say "digests, sizes and versions"
    (cd $dist && sha256sum --quiet --check SHA256SUMS)
    for architecture in x86_64 aarch64; do
        program=$dist/tierfs-$version-$architecture-linux
        [ -e "$program" ] || fail "$program is missing; run make dist without an argument"
        [ "$(stat -c %s "$program")" -le $bytes_max ] || fail "$program has $(stat -c %s "$program") bytes, more than $bytes_max"
        ! readelf --wide --program-headers "$program" | grep INTERP || fail "$program is not static"
        text=$(emulated_if $architecture "$program" --version)
        [[ $text =~ ^tierfs\ $version\ \([0-9a-f]{12}\ [0-9-]{10}.*\)$ ]] || fail "$program is of the version \"$text\""
        echo "$text, $architecture, $(stat -c %s "$program") bytes"
    done

    # What the systems see as /files.
    mkdir -p "$place"/files/{bin,source,wheels}
    cp target/models/silero/* target/models/minilm/*.json "$place/files/source/"
    cp tests/dist/session tests/python/package.py "$place/files/"
    cp $dist/*.whl "$place/files/wheels/"

    say "the Debian package in Debian 11"
    cp $dist/tierfs_*_amd64.deb "$place/files/tierfs.deb"
    in_root "$root/target/roots/bullseye" sh -euc '
        dpkg --install /files/tierfs.deb
        /files/session
        tierfs --version
        dpkg --purge tierfs
        [ ! -e /usr/bin/tierfs ]'

    say "the wheel in Python 3.9 and in the newest one of Debian"
    for file in bullseye sid; do
        rm -rf "$place/files/packages"
        cp -r "target/roots/$file-wheels" "$place/files/packages"
        # shellcheck disable=SC2016 # the inner shell expands
        in_root "$root/target/roots/$file" sh -euc '
            python3 --version
            python3 -m venv /tmp/venv
            /tmp/venv/bin/python -m pip install --quiet --no-index --find-links /files/packages --find-links /files/wheels \
                tierfs ml_dtypes numpy safetensors
            cd /tmp
            /tmp/venv/bin/python /files/package.py
            /tmp/venv/bin/tierfs --version'
    done

    say "the program in a root with busybox alone"
    cp /bin/busybox "$place/files/bin/"
    /bin/busybox --list | grep -vx busybox | xargs -I '{}' ln -s busybox "$place/files/bin/{}"
    cp $dist/tierfs-"$version"-x86_64-linux "$place/files/bin/tierfs"
    mkdir "$place/empty"
    in_root "$place/empty" /files/bin/sh /files/session

    say "the image"
    rm "$place/files/bin/tierfs"
    mkdir "$place/layout"
    tar -C "$place/layout" -xf "$dist/tierfs-$version-x86_64.oci.tar"
    umoci unpack --image "$place/layout:tierfs:$version" "$place/bundle"
    in_root "$place/bundle/rootfs" /files/bin/env -u AWS_CA_BUNDLE -u SSL_CERT_DIR -u SSL_CERT_FILE CERTIFICATES=yes \
        /files/bin/sh /files/session

    say "the program for aarch64 in an emulator"
    check_aarch64 "$place"
    say "all files of $dist passed"
}

# emulated_if ARCHITECTURE PROGRAM...: runs a program, for aarch64 in an emulator of the oldest processor of 64 bits.
emulated_if() {
    case $1 in
    aarch64) qemu-aarch64 -cpu cortex-a53 "${@:2}" ;;
    *) "${@:2}" ;;
    esac
}

# Imports and exports by one processor give the bytes that the other gives, in each tier and form.
check_aarch64() {
    local architecture tier form program store from=$1/files/source
    for architecture in x86_64 aarch64; do
        program=$dist/tierfs-$version-$architecture-linux
        store=$1/store-$architecture
        emulated_if $architecture "$program" init "$store"
        for tier in exact q8 q7 q5 q3 q3x; do
            emulated_if $architecture "$program" import "$store" "lab/$tier" "$from" --tier $tier:all
            emulated_if $architecture "$program" export "$store" "lab/$tier" "$1/$architecture/$tier"
        done
        for form in f16 bf16 q8 q5 npy cgeb; do
            emulated_if $architecture "$program" export --as $form "$store" lab/exact "$1/$architecture/as-$form"
        done
        emulated_if $architecture "$program" export "$1/store-x86_64" lab/q8 "$1/$architecture/of-x86_64"
        emulated_if $architecture "$program" fsck "$store"
    done
    diff -r "$1/x86_64" "$1/aarch64"
    diff -r "$from" "$1/aarch64/exact"
    emulated_if aarch64 "$dist/tierfs-$version-aarch64-linux" doctor
}

case ${1:-} in
'') build x86_64 aarch64 ;;
x86_64 | aarch64) build "$1" ;;
check) check ;;
*)
    echo "usage: scripts/dist.sh [x86_64|aarch64|check]" >&2
    exit 2
    ;;
esac
