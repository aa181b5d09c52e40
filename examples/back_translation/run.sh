#!/usr/bin/env bash
# Back-translation: a model that also learns from text of the target language alone. See README.md.
#   TEXT=text/train MONO=news.en examples/back_translation/run.sh
set -euo pipefail
source "$(dirname "$0")/../usage.bash"
cd "$(dirname "$0")/../.."

SRC=${SRC:-de}
TGT=${TGT:-en}
TEXT=${TEXT:-text/train} # text/train.de and text/train.en
VALID=${VALID:-text/valid}
MONO=${MONO:-mono.$TGT} # sentences of the target language, one a line
OUT=${OUT:-back-translation}
REAL=$OUT/real-bin
BACK=$OUT/back-bin
LANGUAGES="--source-lang $SRC --target-lang $TGT"
TRAIN="--arch ${ARCH:-reluformer_iwslt_de_en} --share-all-embeddings --optimizer adam --adam-betas (0.9,0.98)
    --lr 7e-4 --lr-scheduler inverse_sqrt --warmup-updates 4000 --label-smoothing 0.1 --dropout 0.3
    --max-tokens 8192 --max-update ${UPDATES:-50000} --keep-last-epochs 3"

relu-nmt-preprocess $LANGUAGES --trainpref "$TEXT" --validpref "$VALID" --destdir "$REAL" \
    --tokenizer moses --subword subword-nmt --subword-size 10000 --joined-dictionary

# Train from the target language into the source language.
relu-nmt-train "$REAL" --source-lang "$TGT" --target-lang "$SRC" $TRAIN --save-dir "$OUT/reverse"

# Its output is the source of the people's text. Sampled sources teach more than the best ones.
mkdir -p "$OUT/back"
[ -e "$OUT/back/train.$SRC" ] || {
    relu-nmt-interactive --path "$OUT/reverse/checkpoint_best.safetensors" --input "$MONO" \
        --beam 1 --sampling --seed 1 | tee "$OUT/back/unfinished" > /dev/null
    mv "$OUT/back/unfinished" "$OUT/back/train.$SRC"
}
ln -sf "$(realpath -m "$MONO")" "$OUT/back/train.$TGT"
relu-nmt-preprocess $LANGUAGES --trainpref "$OUT/back/train" --destdir "$BACK" \
    --tokenizer moses --subword subword-nmt --subword-model "$REAL/subword.codes" \
    --joined-dictionary --srcdict "$REAL/dict.$SRC.txt"

relu-nmt-train "$REAL" $LANGUAGES $TRAIN --extra-data "$BACK" --corpus-weights "${WEIGHTS:-2,1}" \
    --tag-extra-data --save-dir "$OUT/forward"
