#!/usr/bin/env bash
# CIFAR-10 with four attentions, the same short training for each. See README.md.
#   IMAGES=folder/of/train.zip/and/test.zip UPDATES=140 examples/cifar10/run.sh
set -euo pipefail
cd "$(dirname "$0")/../.."

IMAGES=${IMAGES:?"IMAGES=FOLDER that holds train and test, each a folder or .zip of class folders"}
UPDATES=${UPDATES:-140}
SEED=${SEED:-1}
PRECISION=${PRECISION:-}
RUN=${RUN:-cifar10/seed$SEED}
ATTENTIONS=${ATTENTIONS:-"softmax pointwise:h=relu,alpha=1 polynomial:power=3,scale=fixed sima"}

part() { if [ -e "$IMAGES/$1.zip" ]; then echo "$IMAGES/$1.zip"; else echo "$IMAGES/$1"; fi; }

for attention in $ATTENTIONS; do
    folder=$RUN/${attention//[:=,]/-}
    relu-nmt-vision-train "$(part train)" --valid-fraction 0.02 --valid-data "$(part test)" \
        --arch vit_ti --image-size 32 --patch-size 4 --attention "$attention" \
        --batch-size 128 --lr 1e-3 --lr-scheduler cosine --warmup-updates "$((UPDATES / 10))" \
        --max-update "$UPDATES" --clip-norm 1.0 --seed "$SEED" $PRECISION \
        --best-checkpoint-metric accuracy --no-epoch-checkpoints --save-dir "$folder/checkpoints" \
        --log-format json --log-interval 10 --telemetry-interval 50 \
        --log-file "$folder/log.jsonl" --tensorboard-logdir "$folder/tensorboard"
done
python examples/cifar10/table.py $(for a in $ATTENTIONS; do echo "$RUN/${a//[:=,]/-}/log.jsonl"; done)
