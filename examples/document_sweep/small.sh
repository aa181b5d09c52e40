#!/usr/bin/env bash
# Softmax and ReLUFormer on documents, from a fresh clone to a report in less than 40 minutes on two
# cores. See README.md.
#   MINUTES=60 SEEDS=1,2 examples/document_sweep/small.sh
#   MIXTURE= MINUTES=7 examples/document_sweep/small.sh      a model for each length
set -euo pipefail
source "$(dirname "$0")/../usage.bash"
cd "$(dirname "$0")/../.."

OUT=${OUT:-document-sweep}
PYTHON=${PYTHON:-.venv/bin/python}
CORPUS=${CORPUS:-auto} # libreoffice, grammar, or auto
ATTENTIONS=${ATTENTIONS:-softmax,reluformer}
LENGTHS=${LENGTHS:-1,128,256,512}
MIXTURE=${MIXTURE-1,128,512}
SEEDS=${SEEDS:-1}
MINUTES=${MINUTES:-22} # of training, for each model
BUDGET=${BUDGET:-${MINUTES}m} # or updates, such as 2000u
JOBS=${JOBS:-2}
PRECISION=${PRECISION-auto}

source examples/small_corpus.bash
small_corpus "$OUT"
[ "$PRECISION" != auto ] || PRECISION=$(fast_precision)

exec "$PYTHON" -m relu_nmt.cli.sweep "$OUT/data-bin" --save-dir "$OUT/sweep" --delete-checkpoints \
    --published examples/document_sweep/table6.yaml \
    --attentions "$ATTENTIONS" --lengths "$LENGTHS" ${MIXTURE:+--doc-mixture "$MIXTURE"} \
    --seeds "$SEEDS" --budget "$BUDGET" --jobs "$JOBS" \
    -- --arch reluformer_tiny --share-all-embeddings --sentence-separator \
    --encoder-layers 3 --encoder-embed-dim 256 --encoder-ffn-embed-dim 1024 \
    --encoder-attention-heads 4 --encoder-normalize-before \
    --decoder-layers 3 --decoder-embed-dim 256 --decoder-ffn-embed-dim 1024 \
    --decoder-attention-heads 4 --decoder-normalize-before \
    --max-tokens 768 --dropout 0.1 --label-smoothing 0.1 --clip-norm 1.0 \
    --optimizer adam --adam-betas '(0.9, 0.98)' --lr 1e-3 --lr-scheduler inverse_sqrt \
    --warmup-updates 400 --store-ema --ema-decay 0.995 $PRECISION \
    --save-interval-updates 400 --keep-interval-updates 1 ${TRAIN_FLAGS:-}
