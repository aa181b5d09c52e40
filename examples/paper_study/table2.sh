#!/usr/bin/env bash
# Table 2: ReLU attention without and with the scale factor, and with LayerNorm in its place; growth
# of outputs, queries, keys and gradients in training. See README.md.
#   examples/paper_study/table2.sh [small|paper]
source "$(dirname "$0")/../usage.bash"
cd "$(dirname "$0")/../.." || exit
FORM=${1:-small} TABLE=table2 SMALL_MINUTES=8

relu="--attention-preset none --attention pointwise:h=relu,alpha=0,qk_norm=false"
sweep=(--attentions softmax --variants
    "relu: $relu"
    "relu-factor: --attention-preset reluformer_paper
        --attention-norm-weight 0 --attention-entropy-weight 0"
    "relu-layernorm: $relu,output_norm=true")
interval=50
[ "$FORM" = small ] || interval=1000
train=(--log-format json --telemetry-interval "$interval")
source examples/paper_study/study.bash
