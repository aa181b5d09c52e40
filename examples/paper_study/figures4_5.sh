#!/usr/bin/env bash
# Figures 4 and 5: attention maps of softmax and ReLUFormer on documents. Without models, train them
# as examples/document_sweep does. See README.md.
#   examples/paper_study/figures4_5.sh [small|paper]
set -euo pipefail
source "$(dirname "$0")/../usage.bash"
cd "$(dirname "$0")/../.."

FORM=${1:-small}
export ATTENTIONS=softmax,reluformer_paper SEEDS=1
case $FORM in
small)
    export OUT=${OUT:-document-sweep} PYTHON=${PYTHON:-.venv/bin/python}
    export MIXTURE=${MIXTURE-1,128,512} LENGTHS=${LENGTHS:-1,128,256,512}
    LENGTH=512 trained_on=${MIXTURE:+mix${MIXTURE//,/+}} checkpoint=checkpoint_best
    ;;
paper)
    export OUT=${OUT:-europarl} PYTHON=${PYTHON:-python} LENGTHS=${LENGTH:=1024}
    trained_on='' checkpoint=average
    ;;
*) echo "$FORM: expected small or paper" >&2 && exit 2 ;;
esac
examples/document_sweep/"$FORM".sh

models=()
for attention in softmax reluformer_paper; do
    models+=("$OUT/sweep/models/$attention-${trained_on:-L$LENGTH}-seed1/checkpoints/$checkpoint.safetensors")
done
# Draw the maps of the first group of the test set, without a choice.
"$PYTHON" -m relu_nmt.cli.analyze "$OUT/data-bin" --path "${models[@]}" \
    --names softmax,reluformer --max-doc-tokens "$LENGTH" --sample 0 \
    --examples 0 --places encoder.-1,decoder.-1,cross.-1 --output "$OUT/figures4_5.html"
