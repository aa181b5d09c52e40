#!/usr/bin/env bash
# One post-norm model for each attention and document length, as in the paper, in a small form: long
# documents of our own grammar, each model from a sentence model of its attention. See README.md.
#   SEEDS=1,2 JOBS=2 examples/document_sweep/lengths.sh
set -euo pipefail
source "$(dirname "$0")/../usage.bash"
cd "$(dirname "$0")/../.."

OUT=${OUT:-document-lengths}
PYTHON=${PYTHON:-python}
ATTENTIONS=${ATTENTIONS:-softmax,reluformer,reluformer_paper,sparsemax}
LENGTHS=${LENGTHS:-128,512,1024}
SEEDS=${SEEDS:-1}
SENTENCE_UPDATES=${SENTENCE_UPDATES:-800}
UPDATES=${UPDATES:-1200} # of each model of documents, after those of its sentence model
JOBS=${JOBS:-1}
TRAIN_FLAGS=${TRAIN_FLAGS:-}

corpus=$OUT/corpus
text=$OUT/text
[ -e "$corpus/corpus.json" ] || "$PYTHON" data_prep/grammar_corpus.py --out "$corpus" \
    --documents 6000 --held-out 300

# Join 16 documents to one of about 1,100 tokens.
[ -e "$OUT/data-bin/manifest.json" ] || {
    "$PYTHON" examples/document_sweep/join_documents.py "$corpus" "$text" 16
    "$PYTHON" -m relu_nmt.cli.preprocess \
        --source-lang de --target-lang en --document-separator blank \
        --trainpref "$text/train" --validpref "$text/valid" --testpref "$text/test" \
        --destdir "$OUT/data-bin" --joined-dictionary --subword sentencepiece --subword-size 2000
}

# sweep FOLDER LENGTHS UPDATES [FLAGS]
sweep() {
    "$PYTHON" -m relu_nmt.cli.sweep "$OUT/data-bin" --save-dir "$OUT/$1" --lengths "$2" \
        --budget "${3}u" --attentions "$ATTENTIONS" --seeds "$SEEDS" --jobs "$JOBS" \
        --checkpoint last "${@:4}" \
        -- --arch reluformer_tiny --share-all-embeddings --sentence-separator \
        --encoder-layers 2 --encoder-embed-dim 128 --encoder-ffn-embed-dim 512 \
        --encoder-attention-heads 4 \
        --decoder-layers 2 --decoder-embed-dim 128 --decoder-ffn-embed-dim 512 \
        --decoder-attention-heads 4 --positions sinusoidal+rotary \
        --max-tokens 1280 --dropout 0.1 --label-smoothing 0.1 --clip-norm 1.0 \
        --optimizer adam --adam-betas '(0.9, 0.98)' --lr 1e-3 --lr-scheduler inverse_sqrt \
        --warmup-updates 200 --store-ema --ema-decay 0.995 $TRAIN_FLAGS
}

sweep sentences 1 "$SENTENCE_UPDATES"
sweep sweep "$LENGTHS" "$UPDATES" --start-from "$OUT/sentences" \
    --published examples/document_sweep/table6.yaml

# Show where the models look (the paper's Figures 4 and 5).
for seed in ${SEEDS//,/ }; do
    for length in ${LENGTHS//,/ }; do
        models=()
        for attention in ${ATTENTIONS//,/ }; do
            models+=("$OUT/sweep/models/$attention-L$length-seed$seed/checkpoints/checkpoint_last.safetensors")
        done
        "$PYTHON" -m relu_nmt.cli.analyze "$OUT/data-bin" --path "${models[@]}" \
            --names "$ATTENTIONS" --max-doc-tokens "$length" --sample 0 \
            --output "$OUT/attention-$length-seed$seed.html"
    done
done
