#!/usr/bin/env bash
# Tries tierfs under kernels of Debian 12, 6.1 and 6.12, in an emulator: import, mount, compare, write with fsync, a power
# cut by killing the emulator, and the check of its disk afterwards. About a minute a kernel, without KVM.
#
#   scripts/kernels.sh [PROGRAM]   without PROGRAM, builds target/debug/tierfs
#
# Installs qemu-system-x86, busybox-static and cpio, needs a Debian with x86-64, and keeps its files under target/kernels.
set -euo pipefail
cd "$(dirname "$0")/.."

program=${1:-target/debug/tierfs}
[ -n "${1:-}" ] || cargo build --locked --quiet
writes=20
limit=600
place=$PWD/target/kernels
mkdir -p "$place"

missing=()
command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86)
[ -x /bin/busybox ] && ! ldd /bin/busybox >/dev/null 2>&1 || missing+=(busybox-static)
command -v cpio >/dev/null || missing+=(cpio)
command -v xz >/dev/null || missing+=(xz-utils)
if [ ${#missing[@]} != 0 ]; then
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >"$place/apt.log" 2>&1 ||
        { tail -n 5 "$place/apt.log" >&2; exit 1; }
fi

emulator=
end() {
    [ -z "$emulator" ] || kill -9 "$emulator" 2>/dev/null || true
}
trap end EXIT

# kernel_of METAPACKAGE: downloads and unpacks the kernel that a package depends on, and prints its folder.
kernel_of() {
    local package
    package=$(apt-cache depends "$1" | awk '/Depends: linux-image/ { print $2; exit }')
    if [ ! -d "$place/$package/boot" ]; then
        (cd "$place" && apt-get download "$package" >/dev/null 2>&1)
        dpkg-deb -x "$place/$package"_*.deb "$place/$package"
        rm "$place/$package"_*.deb
    fi
    echo "$place/$package"
}

# initial_files KERNEL ROOT: makes the file system that the kernel begins with.
initial_files() {
    local kernel=$1 root=$2 library module found
    rm -rf "$root"
    mkdir -p "$root"/{bin,modules,proc,sys,dev,lib,lib64}
    cp /bin/busybox "$root/bin/busybox"
    ln -s busybox "$root/bin/sh"
    cp "$program" "$root/bin/tierfs"
    for library in $(ldd "$program" | grep -o '/[^ ]*'); do
        mkdir -p "$root$(dirname "$library")"
        cp -L "$library" "$root$library"
    done
    # Those that are not there are built into the kernel.
    for module in virtio virtio_ring virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk fuse; do
        found=$(find "$kernel/lib/modules" -name "$module.ko*" | head -n 1)
        [ -n "$found" ] || continue
        case $found in
        *.xz) xz -dc "$found" >"$root/modules/$module.ko" ;;
        *) cp "$found" "$root/modules/$module.ko" ;;
        esac
    done
    install -m 755 tests/kernels/init "$root/init"
    (cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$root.cpio.gz"
}

# boot KERNEL ROOT DISK WORDS: starts the emulator, whose console goes to $root.log.
boot() {
    local kernel=$1 root=$2 disk=$3 words=$4
    : >"$root.log"
    qemu-system-x86_64 -accel tcg -cpu max -m 1024 -display none -no-reboot -serial "file:$root.log" -monitor none \
        -kernel "$kernel"/boot/vmlinuz-* -initrd "$root.cpio.gz" -append "console=ttyS0 panic=-1 quiet $words" \
        -drive "file=$disk,format=raw,if=virtio,cache=writeback" </dev/null &
    emulator=$!
}

# await TEXT LOG: waits for a line; fails if the emulator says that something failed, or ends.
await() {
    local begun=$SECONDS
    until grep -q "kernels: $1" "$2"; do
        if grep -a "kernels: failed\|Kernel panic" "$2" || [ $((SECONDS - begun)) -gt $limit ] || ! kill -0 "$emulator" 2>/dev/null; then
            echo "kernels: no line \"$1\"; the end of the console:" >&2
            tail -n 20 "$2" >&2
            exit 1
        fi
        sleep 1
    done
}

for package in linux-image-cloud-amd64 linux-image-6.12-cloud-amd64; do
    kernel=$(kernel_of "$package")
    root=$place/root disk=$place/disk
    initial_files "$kernel" "$root"
    rm -rf "$place/files" && mkdir -p "$place/files/source"
    cp target/models/silero/*.safetensors "$place/files/source/" 2>/dev/null || true
    head -c 3000000 /dev/urandom >"$place/files/source/plain.bin"
    truncate -s 512M "$disk"
    mkfs.ext4 -q -F -d "$place/files" "$disk"

    boot "$kernel" "$root" "$disk" phase=write
    await "acknowledged $writes" "$root.log"
    # The power is cut.
    kill -9 "$emulator"
    wait "$emulator" 2>/dev/null || true
    acknowledged=$(grep -ac 'kernels: acknowledged' "$root.log")
    release=$(sed -n 's/.*kernels: kernel \([^ \r]*\).*/\1/p' "$root.log")

    boot "$kernel" "$root" "$disk" "phase=check acknowledged=$acknowledged"
    await "checked $acknowledged writes" "$root.log"
    wait "$emulator" || true
    emulator=
    echo "kernels: $release: imported, mounted and compared; $acknowledged writes after fsync survived the power cut"
done
