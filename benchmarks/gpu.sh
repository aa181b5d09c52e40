#!/usr/bin/env bash
# Run all parts that need a GPU: Triton's kernels beside SDPA, training steps, training, decoding
# in bfloat16, compiled steps, the GPU tests, and two processes if there are two devices. Documents
# of 512 tokens serve for steps: from 1,024 on, kernels of many sizes are compiled and compared.
#   benchmarks/gpu.sh FOLDER           writes FOLDER/gpu.md, and logs beside it, in about 4 minutes
#   ON_CPU=1 benchmarks/gpu.sh FOLDER  the same parts, tiny, on the CPU: Triton by its interpreter
# Settings: PYTHON (python), TEXT (folder of text for benchmarks/run.py), TESTS (empty: without them),
# LIMIT (seconds of each part, instead of its own).
# Exit code 1: a part failed or took too long, see the page; 2: no GPU.
set -uo pipefail
source "$(dirname "$0")/../examples/usage.bash"
FOLDER=$(realpath -m "${1:?"usage: benchmarks/gpu.sh FOLDER"}")
cd "$(dirname "$0")/.." || exit 2
PYTHON=${PYTHON:-python}
ON_CPU=${ON_CPU:-}
TESTS=${TESTS-yes}
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

# part SECONDS TITLE COMMAND...: run the command, and put its output on the page, also if it is ended
# after SECONDS.
part() {
    local seconds=${LIMIT:-$1} title=$2 log began=$SECONDS
    shift 2
    log=$FOLDER/$(tr -cs 'a-z0-9' '-' <<<"${title,,}").log
    echo "== $title"
    PYTHONUNBUFFERED=1 timeout --kill-after=5 "$seconds" "$@" >"$log" 2>&1
    local status=$?
    {
        printf '\n## %s\n\n' "$title"
        case $status in
        0) ;;
        124 | 137) printf '**Not finished** after %s seconds:\n\n' "$seconds" ;;
        *) printf '**Failed** with status %s:\n\n' "$status" ;;
        esac
        tr '\r' '\n' <"$log" | grep -v '[0-9]%|' | tail -n 60 | sed 's/^/    /'
    } >>"$PAGE"
    echo "   took $((SECONDS - began)) s"
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
    LIMIT=${LIMIT:-600}
    tests=(--collect-only)
    attention=(--device cpu --dtypes fp32 --lengths 32 --rounds 1 --heads 1 --head-dim 16
        --backends triton --threads 1)
    lengths=(--device cpu --lengths 64 --shape 1,32,2 --tokens 128 --rounds 1 --backends reference
        --attentions reluformer:gamma=2)
    steps=(plain)
    run=(--device cpu --pairs 200 --sentences 4 --lengths 32 --merges 100 --updates 4
        --model-updates 2 --max-tokens 256 --shape 1,32,2,64 --rounds 1 --threads 1
        --batch-sizes 4)
    DEVICES=2
else
    tests=()
    attention=(--device cuda --dtypes bf16 fp32 --lengths 2048 8192 16384
        --backends triton blockwise sdpa --rounds 3)
    lengths=(--device cuda --dtype bf16 --shape 3,512,8 --tokens 16384 --what training
        --lengths 512 --attentions softmax reluformer:gamma=2 --backends fused triton
        --checkpointing off --rounds 1)
    steps=(plain graph)
    run=(--device cuda --pairs 10000 --sentences 256 --merges 2000 --lengths 512
        --max-tokens 16384 --batch-sizes 64 --rounds 1 --updates 40 --model-updates 100)
    # Compile the kernels first, side by side: each part below then finds them on the disk.
    for dtype in bf16 fp32; do
        for more in "" --causal --regularizer; do
            timeout "${LIMIT:-60}" "$PYTHON" benchmarks/attention.py --device cuda --dtypes "$dtype" \
                --lengths 1024 --backends triton --rounds 1 $more >/dev/null 2>&1 &
        done
    done
    timeout "${LIMIT:-60}" "$PYTHON" benchmarks/lengths.py "${lengths[@]}" --steps plain \
        --attentions reluformer:gamma=2 --tokens 1024 >/dev/null 2>&1 &
    wait
    echo "== compiled the kernels in $SECONDS s"
fi
[ -z "${TEXT:-}" ] || run+=(--text "$TEXT")
[ "$DEVICES" -lt 2 ] || run+=(--processes 2)

part 45 "Attention, causal" "$PYTHON" benchmarks/attention.py "${attention[@]}" --causal
part 45 "Attention with the regularizer" \
    "$PYTHON" benchmarks/attention.py "${attention[@]}" --regularizer
part 45 "Attention" "$PYTHON" benchmarks/attention.py "${attention[@]}"
part 60 "Training steps" "$PYTHON" benchmarks/lengths.py "${lengths[@]}" --steps "${steps[@]}" \
    --csv "$FOLDER/lengths.csv" --plot "$FOLDER/lengths.png"
for section in training sentences; do
    part 60 "Toolkit, $section" "$PYTHON" benchmarks/run.py "${run[@]}" --peers \
        --variants bfloat16 --only $section --folder "$FOLDER/run" --output "$FOLDER/$section.md"
done
part 100 "Compiled training steps" "$PYTHON" benchmarks/lengths.py "${lengths[@]}" \
    --steps compiled --csv "$FOLDER/compiled.csv"
if [ -n "$TESTS" ]; then
    # Name the files: to import all tests takes long, and needs the packages of all extras.
    mapfile -t files < <(grep -rl --include='test_*.py' '^@pytest.mark.gpu' tests | sort)
    part 200 "GPU tests" "$PYTHON" -m pytest -m gpu -p no:cacheprovider "${tests[@]}" "${files[@]}"
fi

echo "wrote $PAGE"
exit $FAILED
