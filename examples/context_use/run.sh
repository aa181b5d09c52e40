#!/usr/bin/env bash
# Test if document models use earlier sentences: contrasts with and without them, in both directions
# of the grammar corpus. See README.md.
#   UPDATES=1600 JOBS=4 PRECISION=--bf16 examples/context_use/run.sh
set -euo pipefail
source "$(dirname "$0")/../usage.bash"
cd "$(dirname "$0")/../.."

OUT=${OUT:-context-use}
PYTHON=${PYTHON:-python}
DIRECTIONS=${DIRECTIONS:-en-de de-en}
UPDATES=${UPDATES:-800}
SEEDS=${SEEDS:-1}
JOBS=${JOBS:-1}
PRECISION=${PRECISION:-}
HYBRID='--attention-preset reluformer_hybrid'
ALIGNED='--document-attention aligned'

# Keep held-out documents whole: a line seen in training may be the decisive one.
corpus=$OUT/corpus
[ -e "$corpus/corpus.json" ] || "$PYTHON" data_prep/grammar_corpus.py --out "$corpus" \
    --documents 8000 --held-out 200 --near-copy 2

for direction in $DIRECTIONS; do
    data=$OUT/$direction/data-bin
    [ -e "$data/manifest.json" ] || "$PYTHON" -m relu_nmt.cli.preprocess \
        --source-lang "${direction%-*}" --target-lang "${direction#*-}" --document-separator blank \
        --trainpref "$corpus/train" --validpref "$corpus/valid" --testpref "$corpus/test" \
        --destdir "$data" --joined-dictionary --subword sentencepiece --subword-size 1200

    "$PYTHON" -m relu_nmt.cli.sweep "$data" --save-dir "$OUT/$direction/sweep" \
        --doc-mixture 1,128,512 --lengths 1,512 --seeds "$SEEDS" --budget "${UPDATES}u" \
        --checkpoint last --contrastive "$corpus/test.contrasts.jsonl" --jobs "$JOBS" \
        --attentions softmax --variants "softmax-aligned: $ALIGNED" \
        "hybrid: $HYBRID" "hybrid-aligned: $HYBRID $ALIGNED" \
        "reluformer-aligned: --attention-preset reluformer $ALIGNED" \
        "thresholded-aligned: --attention thresholded_relu $ALIGNED" \
        -- --arch transformer_tiny --share-all-embeddings --sentence-separator \
        --encoder-layers 3 --encoder-embed-dim 128 --encoder-ffn-embed-dim 512 \
        --encoder-attention-heads 4 --encoder-normalize-before \
        --decoder-layers 3 --decoder-embed-dim 128 --decoder-ffn-embed-dim 512 \
        --decoder-attention-heads 4 --decoder-normalize-before \
        --max-tokens 1024 --dropout 0.1 --attention-dropout 0.1 --label-smoothing 0.1 \
        --clip-norm 1.0 --optimizer adam --adam-betas '(0.9, 0.98)' --lr 2e-3 \
        --lr-scheduler polynomial_decay --warmup-updates 200 --total-num-update "$UPDATES" \
        --disable-validation --no-progress-bar $PRECISION
done

"$PYTHON" examples/context_use/table.py "$OUT"/*/sweep/results.csv
