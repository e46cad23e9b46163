# Runs phases in order and stops at the first failure. scripts/test.sh and scripts/test-long.sh source this file and
# define all_phases, limit_seconds and phase_command.
#
# Every phase has a time limit, so CI cannot hang. Only phases named setup* use the network.

# The command that runs tests with mounts over io_uring.
uring() {
    if grep -q '^Y' /sys/module/fuse/parameters/enable_uring 2>/dev/null; then
        echo env TIERFS_TEST_TRANSPORT=uring cargo nextest run --locked "$@"
    else
        echo echo tests-uring is skipped: the kernel offers no FUSE over io_uring
    fi
}

phases=("$@")
[ $# != 0 ] || phases=("${all_phases[@]}")
for name in "${phases[@]}"; do
    if [ -z "${limit_seconds[$name]:-}" ]; then
        echo "unknown phase '$name'; phases: ${all_phases[*]}" >&2
        exit 2
    fi
done

# Tests create stores and mount points here; leftover mounts are found by this path.
mkdir -p target/tmp
TMPDIR=$(mktemp -d "$PWD/target/tmp/test.XXXXXX")
export TMPDIR
# Tests also act as other users, who need access to the mounts below.
chmod 755 "$TMPDIR"

unmount_leftovers() {
    local mount_point
    while read -r mount_point; do
        mount_point=$(printf '%b' "$mount_point") # the kernel writes a space as \040
        echo "unmounting leftover $mount_point" >&2
        fusermount3 -u -z "$mount_point" 2>/dev/null || umount -l "$mount_point" || true
    done < <(awk -v under="$TMPDIR/" 'index($5, under) == 1 { print $5 }' /proc/self/mountinfo | sort -r)
}

started=$SECONDS
report=""
current=""

finish() {
    local status=$?
    trap - EXIT
    unmount_leftovers
    rm -rf --one-file-system "$TMPDIR" || true
    [ -z "$current" ] || report+=$(printf '\n%-12s %5d s  FAILED' "$current" $((SECONDS - phase_started)))
    printf '\n%s\n%-12s %5d s\n' "${report#$'\n'}" total $((SECONDS - started))
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

for name in "${phases[@]}"; do
    case $name in setup*) ;; *) export CARGO_NET_OFFLINE=true ;; esac
    read -ra words <<<"$(phase_command "$name")"
    printf '\n== %s: %s\n' "$name" "${words[*]}"
    current=$name
    phase_started=$SECONDS
    # The shell handles a signal at once only while it waits for a background job.
    timeout --kill-after=20 "${limit_seconds[$name]}" "${words[@]}" </dev/null &
    child=$!
    trap 'kill -TERM "$child" 2>/dev/null; exit 130' INT
    trap 'kill -TERM "$child" 2>/dev/null; exit 143' TERM
    status=0
    wait "$child" || status=$?
    if [ "$status" != 0 ]; then
        [ "$status" != 124 ] || echo "$name: timed out after ${limit_seconds[$name]} s" >&2
        exit "$status"
    fi
    report+=$(printf '\n%-12s %5d s' "$name" $((SECONDS - phase_started)))
    current=""
    # A mount that a failed test has left must not be met by the next phase.
    unmount_leftovers
done
