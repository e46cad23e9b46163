#!/usr/bin/env bash
# Publishes a real model in an object storage (SeaweedFS on this machine) and mounts it from there, as a terminal
# session. As root, a second mount has a link of 100 Mbit/s, by a network namespace.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"

scripts/setup.sh
source scripts/session.sh
mkdir weed
server=
link=tierfs$$
at_end=stop
stop() {
    [ -z "$server" ] || { kill "$server" && wait "$server"; } 2>/dev/null || true
    ip netns del "$link" 2>/dev/null || true
}

# A pair of virtual interfaces: the server listens at this end, the slow mount has the other. /30 of a range for tests
# of networks (RFC 2544), so that no real address is hidden.
host=127.0.0.1
slow=()
make_link() {
    ip netns add "$link" && ip link add "${link}a" type veth peer name "${link}b" netns "$link" &&
        ip addr add 198.18.77.1/30 dev "${link}a" && ip link set "${link}a" up &&
        ip -n "$link" addr add 198.18.77.2/30 dev "${link}b" && ip -n "$link" link set "${link}b" up &&
        tc qdisc add dev "${link}a" root tbf rate 100mbit burst 128kb latency 50ms
}
if [ "$(id -u)" = 0 ] && make_link 2>"$work/link.log"; then
    host=198.18.77.1
    slow=(nsenter "--net=/run/netns/$link")
else
    echo "note: no network namespace can be made here, so nothing shows a slow link"
fi

source "$root/scripts/seaweed.sh"
start_seaweed weed "$host"

run "tierfs import store demo/minilm minilm"
run "tierfs import store demo/minilm-q5 minilm/model.safetensors --tier q5:all"
run "tierfs push store demo/minilm s3://models/demo --create"
run "tierfs push store demo/minilm s3://models/demo"
run "tierfs push store demo/minilm-q5 s3://models/demo"
run "tierfs ls s3://models/demo demo/minilm"
run "mkdir mnt && tierfs mount s3://models/demo mnt --cache cache"
run "cmp minilm/model.safetensors mnt/demo/minilm/model.safetensors && echo identical"
run "time cat mnt/demo/minilm/model.safetensors >/dev/null  # from the cache, read by the kernel"
run "tierfs umount mnt"
if [ ${#slow[@]} != 0 ]; then
    printf '\n# The same remote from a machine with a link of 100 Mbit/s:\n'
    mkdir slow
    "${slow[@]}" tierfs mount s3://models/demo slow --cache cache-slow
    run "time cat slow/demo/minilm/model.safetensors >/dev/null     # exact"
    run "time cat slow/demo/minilm-q5/model.safetensors >/dev/null  # q5"
    run "cmp minilm/model.safetensors slow/demo/minilm/model.safetensors && echo identical"
    run "tierfs umount slow"
fi
