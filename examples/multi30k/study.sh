#!/usr/bin/env bash
# Compare forms of ReLU attention with softmax on Multi30k: many variants in a third of the updates,
# or the best ones, or the paper's own model, with three seeds to the end. See README.md.
#   TEXT=folder/of/the/text JOBS=2 examples/multi30k/study.sh screen
#   TEXT=folder/of/the/text JOBS=2 examples/multi30k/study.sh final
#   TEXT=folder/of/the/text JOBS=2 examples/multi30k/study.sh paper
source "$(dirname "$0")/../usage.bash"
cd "$(dirname "$0")/../.." || exit
FORM=${1:-screen}
case $FORM in
screen) UPDATES=${UPDATES:-1600} WARMUP=${WARMUP:-400} SEEDS=${SEEDS:-1} ;;
final | paper) SEEDS=${SEEDS:-1,2,3} ;;
*) echo "$FORM: expected screen, final or paper" >&2 && exit 2 ;;
esac
source examples/multi30k/recipe.bash

relu="--attention reluformer:gamma=8"
centered="--cross-attention reluformer:gamma=8,centered=true"
loss="--attention-norm-weight 0.1 --attention-entropy-weight 0.1"
# The preset reluformer_paper is $relu $loss. reluformer has ReLU over a threshold in the
# cross-attention instead, and reluformer_hybrid softmax.
attentions=softmax,reluformer,reluformer_hybrid,reluformer_paper
no_loss="no-loss: $relu"
gamma2="gamma2: --attention reluformer:gamma=2 $loss"
variants=(
    "hybrid-centered: --attention reluformer:gamma=8,centered=true --cross-attention softmax"
    "hybrid-squared: --attention reluformer:gamma=8,centered=true,power=2 --cross-attention softmax"
    "squared: $relu $centered,power=2 $loss"
    "all-squared: --attention reluformer:gamma=8,centered=true,power=2")
[ "$FORM" != screen ] || variants+=(
    "$gamma2" "$no_loss" "norm-weight-1: $relu $loss --attention-norm-weight 1"
    "hybrid-no-loss: $relu --cross-attention softmax"
    "centered: $relu $centered $loss" "centered-no-loss: $relu $centered"
    "squared-no-loss: $relu $centered,power=2"
    "all-centered-no-loss: --attention reluformer:gamma=8,centered=true"
    "encoder: --encoder-attention reluformer:gamma=8 $loss"
    "decoder: --decoder-attention reluformer:gamma=8 $loss"
    "cross: --cross-attention reluformer:gamma=8 $loss"
    "cross-gamma2: $relu --cross-attention reluformer:gamma=2 $loss"
    "qk-norm: $relu,qk_norm=true $loss"
    "softmax-no-attention-dropout: --attention-dropout 0"
    "no-attention-dropout: $relu $loss --attention-dropout 0")
validation=(--report-accuracy)
if [ "$FORM" = paper ]; then
    attentions=softmax,reluformer_paper
    variants=("$no_loss" "$gamma2")
    validation+=(--eval-bleu) # the course of BLEU, for the time to a given BLEU
fi

exec "${PYTHON:-python}" -m relu_nmt.cli.sweep "$DATA" --save-dir "multi30k/study-$FORM" \
    --lengths 1 --attentions "$attentions" \
    --variants "${variants[@]}" --seeds "$SEEDS" \
    --budget "${UPDATES}u" --checkpoint last --jobs "${JOBS:-1}" \
    --generate-flags "--beam 5 --lenpen 1" -- --arch transformer_tiny "${validation[@]}" \
    "${RECIPE[@]}"
