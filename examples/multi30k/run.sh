#!/usr/bin/env bash
# Multi30k German-English: training and translation in about 20 minutes on two cores. See README.md.
#   TEXT=folder/of/the/text FAMILY=transformer SEED=2 examples/multi30k/run.sh
set -euo pipefail
cd "$(dirname "$0")/../.."

TEXT=${TEXT:?"TEXT=FOLDER that holds train, val and test_2016_flickr, each as .de and .en"}
FAMILY=${FAMILY:-reluformer}
UPDATES=${UPDATES:-4400}
SEED=${SEED:-1}
DATA=${DATA:-multi30k/data-bin}
PRECISION=${PRECISION:-}
RUN=multi30k/$FAMILY-seed$SEED

[ -e "$DATA/manifest.json" ] || relu-nmt-preprocess --source-lang de --target-lang en \
    --trainpref "$TEXT/train" --validpref "$TEXT/val" --testpref "$TEXT/test_2016_flickr" \
    --destdir "$DATA" --joined-dictionary \
    --tokenizer moses --lowercase --subword subword-nmt --subword-size 8000

relu-nmt-train "$DATA" --arch "${FAMILY}_tiny" --share-all-embeddings \
    --encoder-layers 3 --encoder-embed-dim 256 --encoder-ffn-embed-dim 1024 \
    --encoder-attention-heads 4 \
    --decoder-layers 3 --decoder-embed-dim 256 --decoder-ffn-embed-dim 1024 \
    --decoder-attention-heads 4 \
    --max-tokens 768 --dropout 0.1 --label-smoothing 0.1 \
    --optimizer adam --adam-betas '(0.9, 0.98)' --lr 1e-3 --lr-scheduler polynomial_decay \
    --warmup-updates 600 --total-num-update "$UPDATES" --max-update "$UPDATES" \
    --store-ema --ema-decay 0.998 --seed "$SEED" $PRECISION \
    --log-interval 100 --validate-interval 2 --no-epoch-checkpoints \
    --save-dir "$RUN/checkpoints" --tensorboard-logdir "$RUN/tensorboard"

relu-nmt-generate "$DATA" --path "$RUN/checkpoints/checkpoint_last.safetensors" \
    --beam 5 --lenpen 1 --results-path "$RUN"
tail -n 1 "$RUN/generate-test.txt"
