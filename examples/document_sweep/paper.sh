#!/usr/bin/env bash
# The paper's documents: Europarl7 English-German, 6 + 6 layers of width 512, five lengths, three
# attentions, three seeds. See README.md.
#   MARUF=folder/of/the/split GPUS=0,1,2,3 examples/document_sweep/paper.sh
set -euo pipefail
source "$(dirname "$0")/../usage.bash"
cd "$(dirname "$0")/../.."

OUT=${OUT:-europarl}
PYTHON=${PYTHON:-python}
MARUF=${MARUF:-}             # folder with train, dev and test of Maruf et al., each .en and .de
DOCUMENTS=${DOCUMENTS:-turns} # chapters or sittings: documents that really are long
GPUS=${GPUS:-0}
JOBS=${JOBS:-$(awk -F, '{ print NF }' <<<"$GPUS")}
ATTENTIONS=${ATTENTIONS:-softmax,sparsemax,reluformer_paper}
LENGTHS=${LENGTHS:-128,256,512,1024,2048}
SEEDS=${SEEDS:-1,2,3}
UPDATES=${UPDATES:-100000}
MAX_TOKENS=${MAX_TOKENS:-8192}
UPDATE_FREQ=${UPDATE_FREQ:-1}
PRECISION=${PRECISION---bf16}

given=()
if [ -n "$MARUF" ]; then
    given=(--validpref "$MARUF/dev" --testpref "$MARUF/test")
    # Rebuild long documents: those of the split are single turns.
    if [ "$DOCUMENTS" = turns ] && [ -e "$MARUF/train.en" ]; then
        given+=(--trainpref "$MARUF/train")
    fi
fi
[ -e "$OUT/data-bin/manifest.json" ] ||
    "$PYTHON" data_prep/europarl_documents.py --out "$OUT" --documents "$DOCUMENTS" "${given[@]}"

exec "$PYTHON" -m relu_nmt.cli.sweep "$OUT/data-bin" --save-dir "$OUT/sweep" \
    --attentions "$ATTENTIONS" --lengths "$LENGTHS" --seeds "$SEEDS" --budget "${UPDATES}u" \
    --gpus "$GPUS" --jobs "$JOBS" --checkpoint average:10 --delete-checkpoints \
    --published examples/document_sweep/table6.yaml \
    --generate-flags '--beam 5 --lenpen 1.0' \
    -- --arch reluformer_wmt_en_de --share-all-embeddings \
    --dropout 0.1 --attention-dropout 0.1 --label-smoothing 0.1 \
    --optimizer adam --adam-betas '(0.9, 0.98)' --adam-eps 1e-9 \
    --lr 7e-4 --lr-scheduler inverse_sqrt --warmup-updates 4000 \
    --max-tokens "$MAX_TOKENS" --update-freq "$UPDATE_FREQ" $PRECISION \
    --save-interval-updates 5000 --keep-interval-updates 10 ${TRAIN_FLAGS:-}
