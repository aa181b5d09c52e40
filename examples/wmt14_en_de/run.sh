#!/usr/bin/env bash
# WMT14 English-German: corpus, training, averaging, translation. See README.md.
#   GPUS=8 UPDATE_FREQ=1 ARCH=transformer_wmt_en_de examples/wmt14_en_de/run.sh
set -euo pipefail
source "$(dirname "$0")/../usage.bash"
cd "$(dirname "$0")/../.."

ARCH=${ARCH:-reluformer_wmt_en_de}
SEED=${SEED:-1}
CORPUS=${CORPUS:-wmt14}
GPUS=${GPUS:-1}
UPDATE_FREQ=${UPDATE_FREQ:-1}
MAX_TOKENS=${MAX_TOKENS:-$((8192 / GPUS / UPDATE_FREQ))}
PRECISION=${PRECISION:---bf16}
RUN=$CORPUS/$ARCH-seed$SEED

[ -e "$CORPUS/data-bin/manifest.json" ] || python data_prep/wmt14_en_de.py --out "$CORPUS"

torchrun --standalone --nproc-per-node "$GPUS" -m relu_nmt.cli.train \
    "$CORPUS/data-bin" --arch "$ARCH" --share-all-embeddings \
    --dropout 0.1 --attention-dropout 0.1 --label-smoothing 0.1 \
    --optimizer adam --adam-betas '(0.9, 0.98)' --adam-eps 1e-9 \
    --lr 7e-4 --lr-scheduler inverse_sqrt --warmup-updates 4000 \
    --max-tokens "$MAX_TOKENS" --update-freq "$UPDATE_FREQ" --max-update 100000 \
    --seed "$SEED" $PRECISION \
    --save-interval-updates 5000 --keep-interval-updates 10 --no-epoch-checkpoints \
    --save-dir "$RUN/checkpoints" --tensorboard-logdir "$RUN/tensorboard"

relu-nmt-average --inputs "$RUN/checkpoints" --num-update-checkpoints 10 \
    --output "$RUN/average.safetensors"
relu-nmt-generate "$CORPUS/data-bin" --path "$RUN/average.safetensors" \
    --beam 5 --lenpen 0.6 --max-len-a 1.2 --max-len-b 10 --results-path "$RUN"
tail -n 1 "$RUN/generate-test.txt"
