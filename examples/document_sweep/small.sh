#!/usr/bin/env bash
# Softmax and ReLUFormer on documents, from a fresh clone to a report in less than 40 minutes on two
# cores. See README.md.
#   MINUTES=60 SEEDS=1,2 examples/document_sweep/small.sh
#   MIXTURE= MINUTES=7 examples/document_sweep/small.sh      a model for each length
set -euo pipefail
cd "$(dirname "$0")/../.."

OUT=${OUT:-document-sweep}
PYTHON=${PYTHON:-.venv/bin/python}
CORPUS=${CORPUS:-auto} # libreoffice, grammar, or auto
ATTENTIONS=${ATTENTIONS:-softmax,reluformer}
LENGTHS=${LENGTHS:-1,128,256,512}
MIXTURE=${MIXTURE-1,128,512}
SEEDS=${SEEDS:-1}
MINUTES=${MINUTES:-22} # of training, for each model
JOBS=${JOBS:-2}
PRECISION=${PRECISION-auto}

command -v "$PYTHON" >/dev/null || make .venv/.installed

# 40 documents each for validation and test: the test set is translated once for each length.
corpus=$OUT/corpus
if [ ! -e "$corpus/corpus.json" ]; then
    fetch=("$PYTHON" data_prep/libreoffice_help.py --lang de --scratch "$OUT/packages")
    write=("$PYTHON" data_prep/grammar_corpus.py)
    held_out=(--out "$corpus" --held-out 40)
    case $CORPUS in
    libreoffice) "${fetch[@]}" "${held_out[@]}" ;;
    grammar) "${write[@]}" "${held_out[@]}" ;;
    *) "${fetch[@]}" "${held_out[@]}" || {
        echo "The LibreOffice help cannot be had here; going on with documents of our own grammar."
        "${write[@]}" "${held_out[@]}"
    } ;;
    esac
fi

data=$OUT/data-bin
[ -e "$data/manifest.json" ] || "$PYTHON" -m relu_nmt.cli.preprocess \
    --source-lang de --target-lang en --document-separator blank \
    --trainpref "$corpus/train" --validpref "$corpus/valid" --testpref "$corpus/test" \
    --destdir "$data" --joined-dictionary --subword sentencepiece --subword-size 4000

# bfloat16 is faster on CPUs that have instructions for it, and on GPUs.
if [ "$PRECISION" = auto ]; then
    PRECISION=
    if grep -qwE 'avx512_bf16|amx_bf16' /proc/cpuinfo 2>/dev/null; then PRECISION=--bf16; fi
fi

exec "$PYTHON" -m relu_nmt.cli.sweep "$data" --save-dir "$OUT/sweep" --delete-checkpoints \
    --attentions "$ATTENTIONS" --lengths "$LENGTHS" ${MIXTURE:+--doc-mixture "$MIXTURE"} \
    --seeds "$SEEDS" --budget "${MINUTES}m" --jobs "$JOBS" \
    -- --arch reluformer_tiny --share-all-embeddings --sentence-separator \
    --encoder-layers 3 --encoder-embed-dim 256 --encoder-ffn-embed-dim 1024 \
    --encoder-attention-heads 4 --encoder-normalize-before \
    --decoder-layers 3 --decoder-embed-dim 256 --decoder-ffn-embed-dim 1024 \
    --decoder-attention-heads 4 --decoder-normalize-before \
    --max-tokens 768 --dropout 0.1 --label-smoothing 0.1 --clip-norm 1.0 \
    --optimizer adam --adam-betas '(0.9, 0.98)' --lr 1e-3 --lr-scheduler inverse_sqrt \
    --warmup-updates 400 --store-ema --ema-decay 0.995 $PRECISION \
    --save-interval-updates 400 --keep-interval-updates 1
