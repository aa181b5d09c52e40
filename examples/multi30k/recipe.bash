# The data and the flags of relu-nmt-train for run.sh and study.sh. See README.md.
set -euo pipefail

TEXT=${TEXT:-${DRY_RUN:+multi30k/text}} # no text is read in a dry run
TEXT=${TEXT:?"TEXT=FOLDER that holds train, val and test_2016_flickr, each as .de and .en"}
UPDATES=${UPDATES:-4400}
WARMUP=${WARMUP:-600}
DATA=${DATA:-multi30k/data-bin}
PRECISION=${PRECISION:-}
POSITIONS=${POSITIONS:-sinusoidal+rotary}

[ -e "$DATA/manifest.json" ] || relu-nmt-preprocess --source-lang de --target-lang en \
    --trainpref "$TEXT/train" --validpref "$TEXT/val" --testpref "$TEXT/test_2016_flickr" \
    --destdir "$DATA" --joined-dictionary \
    --tokenizer moses --lowercase --subword subword-nmt --subword-size 8000

RECIPE=(--share-all-embeddings
    --encoder-layers 3 --encoder-embed-dim 256 --encoder-ffn-embed-dim 1024
    --encoder-attention-heads 4
    --decoder-layers 3 --decoder-embed-dim 256 --decoder-ffn-embed-dim 1024
    --decoder-attention-heads 4 --positions "$POSITIONS"
    --max-tokens 768 --dropout 0.1 --attention-dropout 0.1 --label-smoothing 0.1
    --optimizer adam --adam-betas '(0.9, 0.98)' --lr 1e-3 --lr-scheduler polynomial_decay
    --warmup-updates "$WARMUP" --total-num-update "$UPDATES"
    --store-ema --ema-decay 0.998 $PRECISION --log-interval 100)
