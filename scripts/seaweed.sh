# Sourced by scripts that need an object storage on this machine.
#
# start_seaweed DIRECTORY HOST: starts one SeaweedFS with its files in DIRECTORY, waits until it answers, sets $server to
# its process, and exports what a client needs: AWS_ENDPOINT, keys and region.
start_seaweed() {
    local directory=$1 host=$2 tools weed
    tools=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/target/venv/bin
    weed=$tools/weed
    [ -x "$weed" ] || {
        echo "$weed is missing: is the Python package registry reachable?" >&2
        return 1
    }
    # Four free ports, and those of gRPC.
    local master master_grpc volume volume_grpc filer filer_grpc s3 s3_grpc
    read -r master master_grpc volume volume_grpc filer filer_grpc s3 s3_grpc < <("$tools/python" - "$host" <<'END'
import socket, sys
sockets = [socket.create_server((sys.argv[1], 0)) for _ in range(8)]
print(*(one.getsockname()[1] for one in sockets))
END
    )
    export AWS_ACCESS_KEY_ID=demo AWS_SECRET_ACCESS_KEY=demo-secret AWS_REGION=us-east-1 AWS_ALLOW_HTTP=true
    export AWS_ENDPOINT="http://$host:$s3"
    cat >"$directory/keys.json" <<END
{"identities": [{"name": "demo", "credentials": [{"accessKey": "demo", "secretKey": "demo-secret"}],
  "actions": ["Admin", "Read", "Write", "List"]}]}
END
    (cd "$directory" && exec "$weed" -logdir=. server -dir=. -ip="$host" -ip.bind="$host" -master.telemetry=false -filer -s3 \
        -s3.config=keys.json -s3.port.iceberg=0 -s3.port.lance=0 -master.volumeSizeLimitMB=256 -volume.max=20 \
        -master.port="$master" -master.port.grpc="$master_grpc" -volume.port="$volume" -volume.port.grpc="$volume_grpc" \
        -filer.port="$filer" -filer.port.grpc="$filer_grpc" -s3.port="$s3" -s3.port.grpc="$s3_grpc") >"$directory/log" 2>&1 &
    server=$!
    for _ in $(seq 300); do
        ! "$tools/python" -c "import urllib.request as u; u.urlopen('$AWS_ENDPOINT/healthz', timeout=2)" 2>/dev/null || return 0
        kill -0 "$server" 2>/dev/null || break
        sleep 0.2
    done
    cat "$directory/log" >&2
    return 1
}
