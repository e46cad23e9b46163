# Runs phases in order and stops at the first failure. scripts/test.sh and scripts/test-long.sh source this file and
# define all_phases, limit_seconds and phase_command. The report at the end has the wall and the processor time (user and
# system) of each phase, with the daemons that it started.
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
if [ $# = 0 ]; then
    phases=("${all_phases[@]}")
    # A run of all phases compiles everything once; a record for the next compilation would only take time.
    export CARGO_INCREMENTAL=0
fi
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
processor_seconds=0

# Adds the current phase to the report; the argument says how it ended.
add_to_report() {
    local wall=$((SECONDS - phase_started)) used=-
    if [ -s "$TMPDIR/processor" ]; then
        used=$(cat "$TMPDIR/processor")
        processor_seconds=$((processor_seconds + used))
    fi
    report+=$(printf '\n%-16s %7d s %7s s%s' "$current" "$wall" "$used" "${1:-}")
    current=""
}

finish() {
    local status=$?
    trap - EXIT
    unmount_leftovers
    [ -z "$current" ] || add_to_report '  FAILED'
    rm -rf --one-file-system "$TMPDIR" || true
    printf '\n%-16s %9s %9s%s\n' phase wall processor "$report"
    printf '%-16s %7d s %7d s, %d minutes of processor\n' total $((SECONDS - started)) \
        "$processor_seconds" $(((processor_seconds + 30) / 60))
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
    # Setup installs Python where it is missing.
    measured=()
    rm -f "$TMPDIR/processor"
    ! command -v python3 >/dev/null || measured=(python3 scripts/processor_time.py "$TMPDIR/processor")
    # The shell handles a signal at once only while it waits for a background job.
    "${measured[@]}" timeout --kill-after=20 "${limit_seconds[$name]}" "${words[@]}" </dev/null &
    child=$!
    trap 'kill -TERM "$child" 2>/dev/null; exit 130' INT
    trap 'kill -TERM "$child" 2>/dev/null; exit 143' TERM
    status=0
    wait "$child" || status=$?
    if [ "$status" != 0 ]; then
        [ "$status" != 124 ] || echo "$name: timed out after ${limit_seconds[$name]} s" >&2
        exit "$status"
    fi
    add_to_report
    # A mount that a failed test has left must not be met by the next phase.
    unmount_leftovers
done
