#!/usr/bin/env bash
# Multi30k German-English: training and translation in about 20 minutes on two cores. See README.md.
#   TEXT=folder/of/the/text FAMILY=transformer SEED=2 examples/multi30k/run.sh
source "$(dirname "$0")/../usage.bash"
cd "$(dirname "$0")/../.." || exit
source examples/multi30k/recipe.bash
FAMILY=${FAMILY:-reluformer}
SEED=${SEED:-1}
RUN=multi30k/$FAMILY-seed$SEED

relu-nmt-train "$DATA" --arch "${FAMILY}_tiny" "${RECIPE[@]}" --max-update "$UPDATES" \
    --seed "$SEED" --validate-interval 2 --no-epoch-checkpoints \
    --save-dir "$RUN/checkpoints" --tensorboard-logdir "$RUN/tensorboard"

relu-nmt-generate "$DATA" --path "$RUN/checkpoints/checkpoint_last.safetensors" \
    --beam 5 --lenpen 1 --results-path "$RUN"
tail -n 1 "$RUN/generate-test.txt"
