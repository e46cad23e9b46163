#!/usr/bin/env bash
# Runs the commands of docs/CONTAINERS.md with podman, as root, in a mount namespace of their own: containers with a mount of
# the host, by each propagation and user, while the mount ends, comes back and dies; a daemon in a container; overlayfs.
#
#   scripts/containers.sh [PROGRAM]   without PROGRAM, builds target/debug/tierfs
#
# Needs podman, crun and busybox-static (apt-get install), and no registry: the image is a busybox. Without podman, it says so
# and ends with 0.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"

for needed in podman crun busybox; do
    command -v "$needed" >/dev/null || {
        echo "containers: skipped, $needed is not installed: apt-get install podman crun busybox-static"
        exit 0
    }
done
program=$(realpath "${1:-target/debug/tierfs}")
[ -n "${1:-}" ] || cargo build --locked --quiet
if [ -z "${TIERFS_CONTAINERS_NAMESPACE:-}" ]; then
    exec env TIERFS_CONTAINERS_NAMESPACE=own unshare --mount --propagation slave "$0" "$program"
fi

place=$(mktemp -d)
chmod 755 "$place"
cd "$place"
# A host on which systemd runs shares its mounts like this.
mount --make-rshared /
# crun takes no mixture of both versions of cgroups. The containers get no groups.
! mountpoint -q /sys/fs/cgroup/unified || mount -t cgroup2 none /sys/fs/cgroup
# With overlayfs as storage driver, the root of a container is a mount of its own. It need not run inside another overlay.
mkdir images && mount --bind images images

pod() { podman --root "$place/images" --runroot "$place/run" --storage-driver vfs "$@"; }
limits=(--ulimit nofile=1024:1024 --ulimit nproc=4096:4096 --network none --cgroups disabled)
inside() { pod run --rm "${limits[@]}" "$@"; }
start() { pod run -d --name "$1" "${limits[@]}" "${@:2}" >/dev/null; }
remove() { pod rm -f -t 0 "$1" >/dev/null; }
tierfs() { "$program" "$@"; }
models=$place/srv/models
serve() { tierfs mount store "$models" "$@"; }

clean() {
    pod rm -f -t 0 -a >/dev/null 2>&1 || true
    umount -l "$models" merged 2>/dev/null || true
    umount -l images || true
    rm -rf --one-file-system "$place"
}
trap clean EXIT

fail() {
    echo "containers: $*" >&2
    exit 1
}
# gives TEXT COMMAND: the command succeeds, and its output has the text.
gives() {
    local said
    said=$("${@:2}" 2>&1) || fail "${*:2}: $said"
    [[ $said == *"$1"* ]] || fail "${*:2}: no '$1' in: $said"
}
# refuses TEXT COMMAND: the command fails and says so.
refuses() {
    local said
    ! said=$("${@:2}" 2>&1) || fail "${*:2}: it should have failed: $said"
    [[ $said == *"$1"* ]] || fail "${*:2}: no '$1' in: $said"
}
step() { echo "containers: $*"; }

mkdir -p root/{bin,models,proc,dev,sys,tmp,etc} srv/models
cp "$(command -v busybox)" root/bin/busybox
for applet in ls sleep touch sha256sum head; do ln -s busybox "root/bin/$applet"; done
echo 'root:x:0:0::/:/bin/sh' >root/etc/passwd
tar -C root -c . | pod import - busybox >/dev/null 2>&1
head -c 3000000 /dev/urandom >weights.bin
sum=$(sha256sum <weights.bin)
sum=${sum%% *}
tierfs init store >/dev/null
tierfs import store demo/m weights.bin >/dev/null

step "the mount point itself, read-only"
serve --allow-other
gives "$sum" inside -v "$models:/models:ro" busybox sha256sum /models/demo/m/weights.bin
gives "$sum" inside --user 1000:1000 -v "$models:/models:ro" busybox sha256sum /models/demo/m/weights.bin
refuses 'Read-only file system' inside -v "$models:/models:ro" busybox touch /models/demo/m/new
mapped=(--uidmap 0:100000:65536 --gidmap 0:100000:65536)
gives "$sum" inside "${mapped[@]}" -v "$models:/models:ro" busybox sha256sum /models/demo/m/weights.bin
gives "$sum" setpriv --reuid=65534 --regid=65534 --clear-groups unshare -Ur sha256sum "$models/demo/m/weights.bin"

step "the parent as a slave: ro does not reach the mount below it"
inside -v "$place/srv:/srv:ro,rslave" busybox touch /srv/models/demo/m/written
[ -e "$models/demo/m/written" ] || fail "the kernel made ro recursive; write so in docs/CONTAINERS.md"
refuses 'Permission denied' inside --user 1000 -v "$place/srv:/srv:ro,rslave" busybox touch /srv/models/demo/m/new

step "the parent as a slave: the mount ends, comes back, and dies"
start reader -v "$place/srv:/srv:ro,rslave" busybox sleep 600
gives m pod exec reader ls /srv/models/demo
began=$SECONDS
tierfs umount "$models"
[ $((SECONDS - began)) -lt 10 ] || fail "the unmount waited for a slave"
gives '' pod exec reader ls /srv/models
serve --allow-other
gives "$sum" pod exec reader sha256sum /srv/models/demo/m/weights.bin
daemon=$(sed -n 's/^process \([0-9]*\),.*/\1/p' store/lock)
kill -9 "$daemon"
refuses 'Transport endpoint is not connected' pod exec reader sha256sum /srv/models/demo/m/weights.bin
tierfs umount "$models"
serve --allow-other
gives "$sum" pod exec reader sha256sum /srv/models/demo/m/weights.bin
remove reader

step "a container that keeps the mount, and --force"
for propagation in ro ro,rslave; do
    start keeper -v "$models:/models:$propagation" busybox sleep 600
    gives m pod exec keeper ls /models/demo
    timeout 3 "$program" umount "$models" >said 2>&1 && fail "$propagation: the unmount did not wait"
    grep -q 'still used in another mount namespace: process .*, sleep' said || fail "$propagation: $(cat said)"
    refuses 'another mount namespace' tierfs mount store "$models"
    refuses 'another mount namespace' tierfs ls store demo/m
    gives '' tierfs umount --force "$models"
    refuses 'Transport endpoint is not connected' pod exec keeper ls /models
    remove keeper
    serve --allow-other
done
tierfs umount "$models"

step "without --allow-other, and with --read-only"
serve
gives m inside -v "$place/srv:/srv:rslave" busybox ls /srv/models/demo
refuses 'Permission denied' inside --user 1000 -v "$place/srv:/srv:rslave" busybox ls /srv/models/demo
tierfs umount "$models"
serve --allow-other --read-only
refuses 'Read-only file system' inside -v "$place/srv:/srv:rslave" busybox touch /srv/models/demo/m/new
tierfs umount "$models"

step "overlayfs"
mkdir upper work merged
serve --allow-other
refuses '' mount -t overlay overlay -o "lowerdir=$models/demo/m,upperdir=upper,workdir=work" merged
tierfs umount "$models"
serve --allow-other --passthrough off
mount -t overlay overlay -o "lowerdir=$models/demo/m,upperdir=upper,workdir=work" merged
cmp weights.bin merged/weights.bin
echo changed >>merged/weights.bin
cmp weights.bin "$models/demo/m/weights.bin"
[ -e upper/weights.bin ] || fail "overlayfs copied nothing"
umount merged
gives "$sum" inside -v "$models/demo/m:/m:O" busybox sha256sum /m/weights.bin
tierfs umount "$models"

step "a daemon in a container"
mkdir side
cp "$program" side/tierfs
libraries=$(ldd "$program" | grep -o '/[^ ]*')
# shellcheck disable=SC2086 # a list
cp $libraries side
start side --device /dev/fuse --cap-add SYS_ADMIN -v "$place/side:/side:ro" -v "$place/store:/store" \
    -v "$place/srv:/srv:rshared" busybox /side/ld-linux-x86-64.so.2 --library-path /side /side/tierfs \
    mount --foreground --allow-other /store /srv/models
for _ in $(seq 100); do
    [ -e "$models/demo" ] && break
    sleep 0.1
done
[ -e "$models/demo" ] || fail "the sidecar's mount did not arrive: $(pod logs side 2>&1)"
gives "$sum" inside -v "$place/srv:/srv:rslave" busybox sha256sum /srv/models/demo/m/weights.bin
gives transport inside -v "$place/srv:/srv:rslave" busybox head -n 9 /srv/models/.ctl/status
pod stop -t 20 side >/dev/null 2>&1
! mountpoint -q "$models" || fail "the sidecar ended and left its mount"
remove side
start side --device /dev/fuse -v "$place/side:/side:ro" -v "$place/store:/store" \
    busybox /side/ld-linux-x86-64.so.2 --library-path /side /side/tierfs mount --foreground /store /models
for _ in $(seq 100); do
    [ "$(pod inspect -f '{{.State.Running}}' side)" = false ] && break
    sleep 0.1
done
gives 'mounting on /models' pod logs side
remove side
tierfs fsck store >/dev/null
step "done"
