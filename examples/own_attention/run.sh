#!/usr/bin/env bash
# Train and translate with an attention from outside relu_nmt. See README.md.
#   OUT=folder DOCUMENTS=400 UPDATES=500 examples/own_attention/run.sh
set -euo pipefail
source "$(dirname "$0")/../usage.bash"
cd "$(dirname "$0")/../.."

OUT=${OUT:-own-attention}
DOCUMENTS=${DOCUMENTS:-400}
UPDATES=${UPDATES:-500}
PYTHON=${PYTHON:-python}
MINE=(--user-module examples/own_attention/own_attention.py)

[ -e "$OUT/text/corpus.json" ] ||
    "$PYTHON" data_prep/grammar_corpus.py --out "$OUT/text" --documents "$DOCUMENTS" --seed 1

[ -e "$OUT/data-bin/manifest.json" ] || relu-nmt-preprocess --source-lang de --target-lang en \
    --trainpref "$OUT/text/train" --validpref "$OUT/text/valid" --testpref "$OUT/text/test" \
    --destdir "$OUT/data-bin" --joined-dictionary \
    --tokenizer moses --subword subword-nmt --subword-size 1000

relu-nmt-train "$OUT/data-bin" "${MINE[@]}" --attention cosine_relu:gamma=2 \
    --arch reluformer_paper_tiny --share-all-embeddings --max-tokens 2048 \
    --lr 3e-3 --lr-scheduler inverse_sqrt --warmup-updates 100 --max-update "$UPDATES" \
    --log-interval 50 --no-epoch-checkpoints --save-dir "$OUT/checkpoints"

relu-nmt-generate "$OUT/data-bin" "${MINE[@]}" \
    --path "$OUT/checkpoints/checkpoint_last.safetensors" --beam 2 --max-len-a 1.2 --max-len-b 10 \
    --attention-stats "$OUT/attention.json" --results-path "$OUT"
tail -n 1 "$OUT/generate-test.txt"
