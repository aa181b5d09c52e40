#!/usr/bin/env bash
# Makes the checkpoints of fairseq and its translations that test_fairseq.py reads, in this folder.
# It needs fairseq (fairseq-fixed 0.12.3.1 with PyTorch 2.13 made the files in the repository).
set -euo pipefail
cd "$(dirname "$0")"
export TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 # without it, newer PyTorch reads no checkpoint of fairseq
DATA=../files/data-fairseq
SHAPE="--encoder-embed-dim 8 --decoder-embed-dim 8 --encoder-ffn-embed-dim 16 --decoder-ffn-embed-dim 16
    --encoder-attention-heads 2 --decoder-attention-heads 2 --encoder-layers 2 --decoder-layers 1"

make_model() {
    local name=$1 updates=$2
    shift 2
    fairseq-train $DATA --cpu -s de -t en --arch transformer $SHAPE --dropout 0.1 --optimizer adam --lr 1e-2 \
        --lr-scheduler inverse_sqrt --warmup-updates 20 --criterion label_smoothed_cross_entropy \
        --label-smoothing 0.1 --max-tokens 300 --max-update "$updates" --save-dir made --no-epoch-checkpoints \
        --disable-validation --save-interval 1000 --no-save-optimizer-state --num-workers 0 --seed 1 "$@"
    fairseq-generate $DATA --cpu -s de -t en --path made/checkpoint_last.pt --beam 3 --max-len-b 20 \
        --batch-size 1 --num-workers 0 | grep -aE '^(H|P)-' > "$name.txt"
    mv made/checkpoint_last.pt "$name.pt"
    rmdir made
}

make_model post_norm 100 --share-decoder-input-output-embed
make_model pre_norm 88 --encoder-normalize-before --decoder-normalize-before --encoder-learned-pos \
    --decoder-learned-pos --max-source-positions 60 --max-target-positions 70 --no-scale-embedding \
    --layernorm-embedding --activation-fn gelu
