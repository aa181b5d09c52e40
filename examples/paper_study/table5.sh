#!/usr/bin/env bash
# Tables 3 and 5: entropy and zeros of attention weights; ReLUFormer without its factor, without its
# regularization loss, and without either of the loss's terms. See README.md.
#   examples/paper_study/table5.sh [small|paper]
source "$(dirname "$0")/../usage.bash"
cd "$(dirname "$0")/../.." || exit
FORM=${1:-small} TABLE=table5 SMALL_MINUTES=8

reluformer="--attention-preset reluformer_paper"
sweep=(--attentions softmax,reluformer_paper --variants
    "no-factor: $reluformer --attention pointwise:h=relu,alpha=0,qk_norm=false"
    "no-regularization: $reluformer --attention-norm-weight 0 --attention-entropy-weight 0"
    "no-norm-term: $reluformer --attention-norm-weight 0"
    "no-entropy-term: $reluformer --attention-entropy-weight 0")
train=()
source examples/paper_study/study.bash
