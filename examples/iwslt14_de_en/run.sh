#!/usr/bin/env bash
# IWSLT14 German-English: corpus, training, translation. See README.md.
#   ARCH=transformer_iwslt_de_en DROPOUT=0.3 SEED=2 examples/iwslt14_de_en/run.sh
set -euo pipefail
source "$(dirname "$0")/../usage.bash"
cd "$(dirname "$0")/../.."

ARCH=${ARCH:-reluformer_iwslt_de_en}
DROPOUT=${DROPOUT:-0.1}
SEED=${SEED:-1}
CORPUS=${CORPUS:-iwslt14}
PRECISION=${PRECISION:---bf16}
RUN=$CORPUS/$ARCH-dropout$DROPOUT-seed$SEED

[ -e "$CORPUS/data-bin/manifest.json" ] || python data_prep/iwslt14_de_en.py --out "$CORPUS"

relu-nmt-train "$CORPUS/data-bin" --arch "$ARCH" --share-all-embeddings \
    --dropout "$DROPOUT" --attention-dropout 0.1 --label-smoothing 0.1 \
    --optimizer adam --adam-betas '(0.9, 0.98)' --adam-eps 1e-9 \
    --lr 7e-4 --lr-scheduler inverse_sqrt --warmup-updates 4000 \
    --max-tokens 8192 --max-update 100000 --seed "$SEED" $PRECISION \
    --eval-bleu --eval-bleu-args '{"beam": 5, "lenpen": 1.1, "max_len_a": 1.2, "max_len_b": 10}' \
    --best-checkpoint-metric bleu --keep-last-epochs 10 \
    --save-dir "$RUN/checkpoints" --tensorboard-logdir "$RUN/tensorboard"

relu-nmt-generate "$CORPUS/data-bin" --path "$RUN/checkpoints/checkpoint_best.safetensors" \
    --beam 5 --lenpen 1.1 --max-len-a 1.2 --max-len-b 10 --results-path "$RUN"
tail -n 1 "$RUN/generate-test.txt"
