#!/usr/bin/env bash
# Table 4: BLEU and speed of sparse attentions. See README.md.
#   examples/paper_study/table4.sh [small|paper]
#   DATASET=wmt14 examples/paper_study/table4.sh paper
source "$(dirname "$0")/../usage.bash"
cd "$(dirname "$0")/../.." || exit
FORM=${1:-small} TABLE=table4 SMALL_MINUTES=5

# Run one process at a time on a CPU, so that speeds can be compared.
[ "$FORM" = paper ] || JOBS=${JOBS:-1}

sweep=(--attentions softmax,sparsemax,entmax15,rela:gated=true,reluformer_paper)
train=()
source examples/paper_study/study.bash
