#!/usr/bin/env bash
# Table 1 and Figures 1 to 3: the feed-forward network as a memory. See README.md.
#   examples/paper_study/table1.sh [small|paper]
source "$(dirname "$0")/../usage.bash"
cd "$(dirname "$0")/../.." || exit
FORM=${1:-small} TABLE=table1 SMALL_MINUTES=4

# Sizes besides 1024, the size for comparing all networks and the controls.
if [ "$FORM" = paper ]; then
    SIZES=${SIZES-32,64,128,256,512,2048,3072,4096}
else
    SIZES=${SIZES-32,256}
fi
softmax_attention="--attention-preset none --attention softmax"
variants=()
for network in relu softmax softmax-ln relu-ln softmax:temperature=4; do
    variants+=("${network//:temperature=/-t}: $softmax_attention --feed-forward $network")
done
for size in ${SIZES//,/ }; do
    for network in relu softmax softmax-ln; do
        variants+=("$network-$size: $softmax_attention --feed-forward $network
            --encoder-ffn-embed-dim $size --decoder-ffn-embed-dim $size")
    done
done
sweep=(--variants "${variants[@]}" --memory-stats)
train=()
source examples/paper_study/study.bash
