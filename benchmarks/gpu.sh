#!/usr/bin/env bash
# Run all parts that need a GPU: GPU tests, Triton's kernels beside SDPA, training and decoding in
# bfloat16, compiled and recorded steps, and two processes if there are two devices.
#   benchmarks/gpu.sh FOLDER           writes FOLDER/gpu.md, and logs beside it
#   ON_CPU=1 benchmarks/gpu.sh FOLDER  the same parts, tiny, on the CPU: Triton by its interpreter
# Settings: PYTHON (python), TEXT (folder of text for benchmarks/run.py).
# Exit code 1: a part failed, see the page; 2: no GPU.
set -uo pipefail
source "$(dirname "$0")/../examples/usage.bash"
FOLDER=$(realpath -m "${1:?"usage: benchmarks/gpu.sh FOLDER"}")
cd "$(dirname "$0")/.." || exit 2
PYTHON=${PYTHON:-python}
ON_CPU=${ON_CPU:-}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"

DEVICES=$("$PYTHON" -c 'import torch; print(torch.cuda.device_count())') || {
    echo "benchmarks/gpu.sh: $PYTHON has no PyTorch; set PYTHON=/path/to/python" >&2
    exit 2
}
if [ -z "$ON_CPU" ] && [ "$DEVICES" -eq 0 ]; then
    echo "benchmarks/gpu.sh: PyTorch finds no GPU here; ON_CPU=1 tries the script on the CPU" >&2
    exit 2
fi
mkdir -p "$FOLDER" || exit 2
PAGE=$FOLDER/gpu.md
FAILED=0

# part TITLE COMMAND...: run the command, and put its output on the page.
part() {
    local title=$1 log
    shift
    log=$FOLDER/$(tr -cs 'a-z0-9' '-' <<<"${title,,}").log
    echo "== $title"
    "$@" >"$log" 2>&1
    local status=$?
    {
        printf '\n## %s\n\n' "$title"
        [ $status -eq 0 ] || printf '**Failed** with status %s:\n\n' "$status"
        tail -n 60 "$log" | sed 's/^/    /'
    } >>"$PAGE"
    [ $status -eq 0 ] || { FAILED=1; echo "   failed, see $log"; }
}

{
    echo "# GPU measurements"
    echo
    echo "\`benchmarks/gpu.sh\`, $(date -u '+%Y-%m-%d %H:%M') UTC, revision $(git describe --always --dirty 2>/dev/null)"
    echo
    if [ -n "$ON_CPU" ]; then
        echo "**A dry run on the CPU: no figure here says anything of a GPU.**"
    else
        nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null |
            sed 's/^/* /'
    fi
    "$PYTHON" -c 'import torch; print(f"* PyTorch {torch.__version__}, CUDA {torch.version.cuda}")'
    "$PYTHON" -c 'import triton; print(f"* Triton {triton.__version__}")' 2>/dev/null
} >"$PAGE"

if [ -n "$ON_CPU" ]; then
    export TRITON_INTERPRET=1
    tests=(--collect-only)
    attention=(--device cpu --dtypes fp32 --lengths 32 --rounds 1 --heads 1 --head-dim 16
        --backends triton --threads 1)
    lengths=(--device cpu --lengths 64 --shape 1,32,2 --tokens 128 --rounds 1 --backends reference
        --attentions reluformer:gamma=2)
    steps=(plain)
    run=(--device cpu --pairs 200 --sentences 4 --documents 1 --lengths 32 --merges 100 --updates 4
        --model-updates 2 --max-tokens 256 --shape 1,32,2,64 --rounds 1 --threads 1
        --batch-sizes 4)
    DEVICES=2
else
    tests=()
    attention=(--device cuda --dtypes bf16 fp32 --lengths 2048 8192 16384
        --backends triton blockwise sdpa)
    lengths=(--device cuda --dtype bf16 --shape 6,512,8 --tokens 16384 --what training
        --lengths 2048 16384 --backends triton fused --checkpointing off --rounds 1)
    steps=(plain compiled graph)
    run=(--device cuda --lengths 512 --max-tokens 16384 --batch-sizes 64 --rounds 1 --model-updates 500)
fi
[ -z "${TEXT:-}" ] || run+=(--text "$TEXT")
[ "$DEVICES" -lt 2 ] || run+=(--processes 2)

part "Attention" "$PYTHON" benchmarks/attention.py "${attention[@]}"
part "Attention, causal" "$PYTHON" benchmarks/attention.py "${attention[@]}" --causal
part "Attention with the regulariser" \
    "$PYTHON" benchmarks/attention.py "${attention[@]}" --regularizer
part "Models by length" "$PYTHON" benchmarks/lengths.py "${lengths[@]}" --steps "${steps[@]}" \
    --csv "$FOLDER/lengths.csv" --plot "$FOLDER/lengths.png"
part "Training and decoding" "$PYTHON" benchmarks/run.py "${run[@]}" --peers \
    --only training sentences documents --folder "$FOLDER/run" --output "$FOLDER/run.md"

part "GPU tests" "$PYTHON" -m pytest -m gpu -p no:cacheprovider "${tests[@]}" tests

echo "wrote $PAGE"
exit $FAILED
