#!/usr/bin/env bash
# Runs programs that load models, map indexes and take backups on a mount and on the imported directory, and compares
# the results. scripts/setup.sh loaders installs them. docs/LOADERS.md shows their use.
#
#   scripts/loaders.sh                all
#   scripts/loaders.sh onnx backups   only these
#   scripts/loaders.sh --remote       those that only read, on a remote in SeaweedFS: each with an empty cache, and again
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$HOME/.cargo/bin:$PATH"
export PYTHONDONTWRITEBYTECODE=1 OPENBLAS_NUM_THREADS=1 RAYON_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1

# The loaders tests/loaders/load_*.py with their input: a kind of tests/loaders/make.py, or a downloaded model.
loaders=(numpy:arrays safetensors:minilm gguf:gguf gguf:smollm2 llamacpp:smollm2 hub:minilm onnx:onnx tokenizers:minilm tinygrad:minilm
    torch:minilm transformers:minilm model2vec:static usearch:vectors faiss:vectors annoy:vectors arrow:tables)
remote=
if [ "${1:-}" = --remote ]; then
    remote=s3://models/demo
    shift
fi
wanted=("$@")
if [ $# = 0 ]; then
    wanted=(numpy safetensors gguf llamacpp hub onnx tokenizers torch transformers pickle quantized adapted model2vec usearch faiss annoy arrow candle)
    # tinygrad opens the files that it reads for writing.
    # The others write.
    [ -n "$remote" ] || wanted+=(tinygrad arrivals engines backups)
fi

scripts/setup.sh loaders
cargo build --locked --quiet
tierfs=$PWD/target/debug/tierfs
python=$PWD/target/venv-loaders/bin/python
here=$PWD/tests/loaders

place=$(mktemp -d)
source=$place/source
mnt=$place/mnt
mkdir -p "$source" "$mnt"
server=
clean() {
    umount -l "$mnt" 2>/dev/null || true
    [ -z "$server" ] || { kill "$server" && wait "$server"; } 2>/dev/null || true
    rm -rf --one-file-system "$place"
}
trap clean EXIT

for kind in arrays gguf onnx vectors tables; do "$python" "$here/make.py" "$kind" "$source/$kind"; done
"$python" "$here/make.py" static "$source/static" target/models/minilm
"$python" "$here/make.py" pickled "$source/pickled" target/models/minilm
"$python" "$here/quantize.py" "$source/quantized"
"$python" "$here/adapt.py" "$source/adapted"
cp -rL target/models/minilm target/models-loaders/smollm2 "$source"
for kind in "$source"/*; do "$tierfs" import "$place/store" "demo/$(basename "$kind")" "$kind" >"$place/import.log"; done
# The loaders also find tensors beside their containers; the reference of the backups has none.
cp -r "$source/arrays" "$place/arrays"
"$python" "$here/make.py" beside "$source/arrays"
mounted=$place/store
options=()
if [ -n "$remote" ]; then
    mkdir "$place/weed"
    source scripts/seaweed.sh
    start_seaweed "$place/weed" 127.0.0.1
    for kind in "$source"/*; do
        "$tierfs" push "$place/store" "demo/$(basename "$kind")" "$remote" --create >"$place/push.log"
    done
    mounted=$remote
    options=(--cache "$place/cache")
fi
"$tierfs" mount "$mounted" "$mnt" "${options[@]}"

# With a remote, the next program finds nothing in a cache of tierfs or of the kernel.
cold() {
    [ -n "$remote" ] || return 0
    "$tierfs" umount "$mnt"
    rm -rf "$place/cache"
    "$tierfs" mount "$mounted" "$mnt" "${options[@]}"
}

fail() {
    echo "loaders: $*"
    exit 1
}

is_wanted() {
    local name
    for name in "${wanted[@]}"; do [ "$name" != "$1" ] || return 0; done
    return 1
}

for pair in "${loaders[@]}"; do
    loader=${pair%:*} kind=${pair#*:}
    is_wanted "$loader" || continue
    cold
    timeout 300 "$python" "$here/load_$loader.py" "$source/$kind" "$mnt/demo/$kind" || fail "$loader on $kind"
    [ -z "$remote" ] || timeout 300 "$python" "$here/load_$loader.py" "$source/$kind" "$mnt/demo/$kind" || fail "$loader on $kind again"
    echo "loaders: $loader on $kind: the same"
done

# A model of pickles opens as safetensors, and the object beside its weights does nothing.
if is_wanted pickle; then
    cold
    timeout 300 "$python" "$here/load_transformers.py" "$source/minilm" "$mnt/demo/pickled/.as/safetensors" || fail "transformers on pickled"
    [ ! -e "$source/pickled.was-run" ] || fail "the pickle was run"
    echo "loaders: transformers on pickled: the same, and no pickle was run"
fi

# Quantized models open as models of bf16, without the libraries of the schemes.
if is_wanted quantized; then
    for scheme in fp8 mxfp4 gptq nf4; do
        cold
        timeout 300 "$python" "$here/causal.py" "$source/quantized/$scheme.plain" "$mnt/demo/quantized/.as/bf16/$scheme" ||
            fail "transformers on $scheme"
        echo "loaders: transformers on $scheme: the values of the codes"
    done
fi

# A base with an adapter opens as the model that PEFT merges, without PEFT.
if is_wanted adapted; then
    cold
    timeout 300 "$python" "$here/causal.py" "$source/adapted/merged" "$mnt/demo/adapted/.as/merged/adapted:lora/base" ||
        fail "transformers on a base with an adapter"
    echo "loaders: transformers on a base with an adapter: what PEFT merged"
fi

# candle maps the weights, or tierfs-client does; the embedding equals that of tests/loaders/minilm.py except for rounding.
if is_wanted candle; then
    CARGO_TARGET_DIR=target/loaders timeout 3000 cargo build --release --locked --quiet --manifest-path "$here/candle/Cargo.toml"
    cold
    sentence="A file system shows tensors as files."
    for folder in "$source" "$mnt/demo"; do
        timeout 300 target/loaders/release/tierfs-loader-candle "$folder/minilm" "$sentence"
    done >"$place/candle"
    # The same by tierfs-client, tensor by tensor.
    timeout 300 target/loaders/release/client "$mnt/demo/minilm" "$sentence" >>"$place/candle"
    "$python" "$here/minilm.py" "$source/minilm" --json "$sentence" >>"$place/candle"
    "$python" - "$place/candle" <<'END' || fail "candle"
import json, sys
one, other, client, numpy = map(json.loads, open(sys.argv[1]))
if not one == other == client:
    sys.exit("another embedding from the mount")
furthest = max(abs(a - b) for a, b in zip(one, numpy, strict=True))
if furthest > 1e-4:
    sys.exit(f"{furthest} away from NumPy's")
END
    echo "loaders: candle on minilm, by itself and by tierfs-client: the same"
fi

# Copies a real GGUF file into the mount, where the test above imported it.
if is_wanted arrivals; then
    mkdir "$mnt/demo/copied"
    cp "$source"/smollm2/*.gguf "$mnt/demo/copied/"
    cmp "$source"/smollm2/*.gguf "$mnt"/demo/copied/*.gguf
    timeout 300 "$python" "$here/load_gguf.py" "$source/smollm2" "$mnt/demo/copied" || fail "gguf, copied into the mount"
    [ "$(getfattr --only-values --absolute-names -n user.tierfs.dtype "$mnt/demo/copied/.tensors/blk.0.attn_q.weight")" = q4_1 ] ||
        fail "tensors of a GGUF file copied into the mount"
    rm -rf "$mnt/demo/copied"
    echo "loaders: arrivals: the same"
fi

# The file tiers of engines store more blocks than a cache directory holds.
if is_wanted engines; then
    for engine in vllm sglang lmcache; do
        mkdir -p "$mnt/kv/$engine"
        "$tierfs" set policy=cache:48M "$mnt/kv/$engine"
        timeout 300 "$python" "$here/kv_engines.py" "$engine" target/engines "$mnt/kv/$engine" 48 || fail "blocks of $engine"
    done
    rm -rf "$mnt/kv"
fi

# Backups take each byte once and restore the imported bytes.
if is_wanted backups; then
    "$tierfs" umount "$mnt"
    "$tierfs" mount "$place/store" "$mnt"
    rm -r "$source/arrays"
    mv "$place/arrays" "$source/arrays"
    export HOME=$place/home RESTIC_PASSWORD=backup BORG_BASE_DIR=$place/borg-home
    mkdir -p "$HOME" "$place"/{rsync,tar,restic,borg}
    rsync -a "$mnt/demo/" "$place/rsync"
    tar -C "$mnt/demo" -cf - . | tar -C "$place/tar" -xf -
    (
        cd "$mnt/demo"
        restic --quiet --no-cache --repo "$place/restic-repository" init
        restic --quiet --no-cache --repo "$place/restic-repository" backup .
        borg init --encryption none "$place/borg-repository"
        borg create "$place/borg-repository::one" .
    )
    restic --quiet --no-cache --repo "$place/restic-repository" restore latest --target "$place/restic"
    (cd "$place/borg" && borg extract "$place/borg-repository::one")
    for tool in rsync tar restic borg; do
        diff -r "$source" "$place/$tool" || fail "$tool"
        rm -r "${place:?}/$tool"
        echo "loaders: $tool: the same"
    done
fi
"$tierfs" umount "$mnt"
[ -z "$remote" ] || "$tierfs" cache "$place/cache" --verify
"$tierfs" fsck "$mounted"
