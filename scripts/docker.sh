#!/usr/bin/env bash
# Runs each step of scripts/Dockerfile without Docker, as root: the steps of the first stage in a clone of this
# repository on this machine, those of the second and the entry point in a Debian system that debootstrap makes.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
scripts/setup.sh packages

mirror=http://deb.debian.org/debian
place=$(mktemp -d)
system=$place/system
clean() {
    umount "$system/proc" 2>/dev/null || true
    rm -rf --one-file-system "$place"
}
trap clean EXIT

stage=0 runs=0
while read -r instruction arguments; do
    case $instruction in
    '#'* | '' | WORKDIR | CMD) continue ;;
    FROM)
        stage=$((stage + 1))
        case $stage in
        1) git clone --quiet "$root" "$place/build" ;;
        2)
            suite=${arguments#debian:}
            debootstrap --variant=minbase "${suite%-slim}" "$system" "$mirror" >"$place/log" 2>&1 || {
                tail -n 5 "$place/log" >&2
                exit 1
            }
            mount -t proc proc "$system/proc"
            ;;
        esac
        ;;
    COPY)
        case $arguments in
        '. .') ;; # the clone
        '--from=build /build/'*)
            read -r _ from to <<<"$arguments"
            mkdir -p "$system$to"
            cp -r "$place/build/${from#/build/}." "$system$to"
            ;;
        *)
            echo "docker: cannot run: COPY $arguments" >&2
            exit 1
            ;;
        esac
        ;;
    RUN)
        runs=$((runs + 1))
        echo "docker: stage $stage: $arguments"
        # It uses the compiled crates, tools and CARGO_HOME of this machine.
        case $stage in
        1)
            mkdir -p "$place/build/target"
            [ ! -d target/tools ] || cp -r target/tools "$place/build/target/"
            (cd "$place/build" && bash -ec "$arguments" </dev/null)
            ;;
        2) chroot "$system" bash -ec "$arguments" </dev/null >"$place/log" 2>&1 || {
            tail -n 15 "$place/log" >&2
            exit 1
        } ;;
        esac
        ;;
    ENTRYPOINT)
        program=$(sed 's/^\["\(.*\)"\]$/\1/' <<<"$arguments")
        chroot "$system" "$program" --version
        chroot "$system" "$program" --help >/dev/null
        ;;
    *)
        echo "docker: cannot run: $instruction $arguments" >&2
        exit 1
        ;;
    esac
done <scripts/Dockerfile
[ "$runs" = "$(grep -c '^RUN ' scripts/Dockerfile)" ]
echo "docker: each step ran"
