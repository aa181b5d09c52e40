#!/usr/bin/env bash
# Start from a trained model: ReLU in the place of its softmax, and documents. Ends with a report.
# See README.md.
#   TEXT=folder/of/the/text examples/adapt/run.sh
#   PARTS=documents SEEDS=1 examples/adapt/run.sh
#   JOBS=3 examples/adapt/run.sh
#   GPUS=8 examples/adapt/run.sh real
set -euo pipefail
source "$(dirname "$0")/../usage.bash"
cd "$(dirname "$0")/../.."

FORM=${1:-small}
OUT=${OUT:-adapt/$FORM}
PARTS=${PARTS:-attention teacher documents}
SEEDS=${SEEDS:-1 2 3}           # each has models of its own to start from
JOBS=${JOBS:-1}                 # seeds at once
WIDTH=${WIDTH:-256}             # of the small models of sentences
PYTHON=${PYTHON:-python}
GPUS=${GPUS:-1}
DOCUMENT_UPDATES=${DOCUMENT_UPDATES:-$([ "$FORM" = small ] && echo 1000 || echo 2000)}
case $FORM in
small) TRAIN=(relu-nmt-train) LENPEN=1 PRECISION=${PRECISION-auto} ;;
real)
    TRAIN=(torchrun --standalone --nproc-per-node "$GPUS" -m relu_nmt.cli.train) LR=7e-4 LENPEN=0.6
    RECIPE=(--arch transformer_wmt_en_de --share-all-embeddings --positions sinusoidal+rotary
        --dropout 0.1 --attention-dropout 0.1 --label-smoothing 0.1
        --optimizer adam --adam-betas '(0.9, 0.98)' --max-tokens $((32768 / GPUS)) --bf16)
    ;;
*) echo "$FORM: expected small or real" >&2 && exit 2 ;;
esac
ADAPT_LR=${ADAPT_LR:-4e-4}      # peak behind the start from a softmax model
source examples/small_corpus.bash
[ "${PRECISION:-}" != auto ] || PRECISION=$(fast_precision)

# Train a model and translate the test set, unless that is done. Seed 1 is validated four times, for
# its curve.
#   learn NAME SEED UPDATES FLAG...
learn() {
    local run=$OUT/$1-seed$2 seed=$2 updates=$3 times=1 length
    shift 3
    [ "$seed" != 1 ] || times=4
    [ -e "$run/test-${LENGTHS##* }.json" ] || "${TRAIN[@]}" "$DATA" "${RECIPE[@]}" \
        --lr "$LR" --lr-scheduler polynomial_decay --warmup-updates $((updates / 10)) \
        --total-num-update "$updates" --max-update "$updates" --seed "$seed" --eval-bleu \
        --eval-bleu-args "{\"beam\": 5, \"lenpen\": $LENPEN}" --validate-interval 1000 \
        --validate-interval-updates $((updates / times)) --no-epoch-checkpoints \
        --save-dir "$run" "$@"
    for length in $LENGTHS; do
        [ -e "$run/test-$length.json" ] || relu-nmt-generate "$DATA" \
            --path "$run/checkpoint_last.safetensors" --beam 5 --lenpen "$LENPEN" \
            --max-doc-tokens "$length" --quiet --results "$run/test-$length.json"
    done
}

# Prepare the sentences and the settings of their models.
sentences() {
    LENGTHS=1
    if [ "$FORM" = small ]; then
        DATA=${DATA:-$OUT/multi30k} UPDATES=${UPDATES:-4400} LR=1e-3
        source examples/multi30k/recipe.bash
        RECIPE+=(--arch transformer_tiny
            --encoder-embed-dim "$WIDTH" --encoder-ffn-embed-dim $((4 * WIDTH))
            --decoder-embed-dim "$WIDTH" --decoder-ffn-embed-dim $((4 * WIDTH)) --ema-decay 0.99)
    else
        DATA=${DATA:-wmt14/data-bin} UPDATES=${UPDATES:-100000}
        [ -e "$DATA/manifest.json" ] || "$PYTHON" data_prep/wmt14_en_de.py --out wmt14
    fi
}

# Train the softmax model of a seed, and set the flags of a training that goes on from it.
softmax() {
    learn softmax "$1" "$UPDATES"
    MODEL=$OUT/softmax-seed$1/checkpoint_last.safetensors
    START=(--finetune-from-model "$MODEL" --lr "$ADAPT_LR" --store-ema --ema-decay 0.9)
}

# Put ReLU in the place of softmax in encoder and decoder within a tenth of the softmax model's
# updates, and in every slot within a fifth. In the cross-attention, the squares of centered scores
# come nearer to the outputs of softmax.
#   replace SEED NAME FLAG...
replace() {
    local seed=$1 name=$2
    shift 2
    learn "reluformer_hybrid-$name" "$seed" $((UPDATES / 10)) "$@" --attention-preset reluformer_hybrid
    learn "reluformer_paper-$name" "$seed" $((UPDATES / 5)) "$@" \
        --attention-preset reluformer_paper --cross-attention reluformer:gamma=8,centered=true,power=2
}

# ReLU from the weights of the softmax model, and from nothing; softmax goes on, to compare.
attention() {
    local seed updates
    sentences
    for seed in $SEEDS; do
        softmax "$seed"
        [ -e "$OUT/start-seed$seed.md" ] ||
            "$PYTHON" examples/adapt/start.py "$DATA" "$MODEL" "$OUT/start-seed$seed.md"
        replace "$seed" start "${START[@]}"
        for updates in $((UPDATES / 10)) $((UPDATES / 5)); do
            learn "softmax-start-$updates" "$seed" "$updates" "${START[@]}"
        done
        replace "$seed" nothing
    done
}

# The softmax model also teaches: its predictions, and the outputs of its attention. A model that
# copies another one needs no dropout.
teacher() {
    local seed
    sentences
    for seed in $SEEDS; do
        softmax "$seed"
        replace "$seed" teacher "${START[@]}" --dropout 0 --attention-dropout 0 \
            --teacher "$MODEL" --teacher-weight 0.9 --teacher-top-k 512 \
            --teacher-attention-weight 50
    done
}

# Sentences become documents whose sentences stay apart, and the same from nothing.
documents() {
    local corpus=$OUT/corpus seed
    if [ "$FORM" = small ]; then
        DATA=$OUT/grammar UPDATES=${SENTENCE_UPDATES:-400} LR=2e-3
        [ -e "$corpus/corpus.json" ] || "$PYTHON" data_prep/grammar_corpus.py --out "$corpus" \
            --documents 8000 --near-copy 2
        [ -e "$DATA/manifest.json" ] || relu-nmt-preprocess --source-lang en --target-lang de \
            --document-separator blank --trainpref "$corpus/train" --validpref "$corpus/valid" \
            --testpref "$corpus/test" --destdir "$DATA" --joined-dictionary \
            --subword sentencepiece --subword-size 1200
        RECIPE=(--arch transformer_tiny --share-all-embeddings --positions sinusoidal+rotary
            --encoder-layers 3 --encoder-embed-dim 128 --encoder-ffn-embed-dim 512
            --encoder-attention-heads 4 --encoder-normalize-before
            --decoder-layers 3 --decoder-embed-dim 128 --decoder-ffn-embed-dim 512
            --decoder-attention-heads 4 --decoder-normalize-before
            --max-tokens 1024 --dropout 0.1 --attention-dropout 0.1 --label-smoothing 0.1
            --clip-norm 1.0 --optimizer adam --adam-betas '(0.9, 0.98)' $PRECISION)
    else
        DATA=europarl/data-bin UPDATES=${SENTENCE_UPDATES:-100000}
        [ -e "$DATA/manifest.json" ] ||
            "$PYTHON" data_prep/europarl_documents.py --out europarl --documents chapters
    fi
    local aligned=(--document-attention aligned --sentence-separator --doc-mixture 1,128,512,1024)
    for seed in $SEEDS; do
        LENGTHS=1
        learn sentences "$seed" "$UPDATES" --max-doc-tokens 1
        LENGTHS="1 1024"
        learn documents-start "$seed" "$DOCUMENT_UPDATES" "${aligned[@]}" \
            --finetune-from-model "$OUT/sentences-seed$seed/checkpoint_last.safetensors"
        learn documents-nothing "$seed" "$DOCUMENT_UPDATES" "${aligned[@]}"
    done
}

if [ "$JOBS" -gt 1 ]; then
    for part in $PARTS; do (SEEDS='' && "$part"); done # prepares the data that the seeds share
    printf '%s\n' $SEEDS |
        xargs -P "$JOBS" -I{} env SEEDS={} JOBS=1 bash examples/adapt/run.sh "$FORM"
else
    for part in $PARTS; do ("$part"); done
fi
"$PYTHON" examples/adapt/report.py "$OUT"
