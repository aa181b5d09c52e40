# Data, models and search of the scripts in this folder, in two forms. See README.md.
# A script sets these variables and sources this file, which ends in one sweep:
#   TABLE           name of the script, of its published figures and of its folder
#   SMALL_MINUTES   minutes of training for each model of the small form
#   sweep           flags of relu-nmt-sweep for the compared models
#   train           flags of relu-nmt-train for all models, if there are any
set -euo pipefail

FORM=${FORM:-small}
PYTHON=${PYTHON:-$([ "$FORM" = small ] && echo .venv/bin/python || echo python)}
OUT=${OUT:-paper-study}
PRECISION=${PRECISION-auto}
GPUS=${GPUS:-}

case $FORM in
small)
    CORPUS=${CORPUS:-auto} # libreoffice, grammar, or auto
    JOBS=${JOBS:-2}
    source examples/small_corpus.bash
    small_corpus "$OUT/small"
    DATA=$OUT/small/data-bin
    [ "$PRECISION" != auto ] || PRECISION=$(fast_precision)
    sweep+=(--seeds "${SEEDS:-1}" --budget "${BUDGET:-${SMALL_MINUTES}m}"
        --generate-flags "--beam 5 --lenpen 1.1 --max-len-a 1.2 --max-len-b 10 $PRECISION")
    model=(--arch transformer_tiny
        --encoder-layers 3 --encoder-embed-dim 256 --encoder-ffn-embed-dim 1024
        --encoder-attention-heads 4
        --decoder-layers 3 --decoder-embed-dim 256 --decoder-ffn-embed-dim 1024
        --decoder-attention-heads 4
        --max-tokens 768 --lr 1e-3 --warmup-updates 400 --store-ema --ema-decay 0.995
        --save-interval-updates 400 --keep-interval-updates 1)
    ;;
paper)
    DATASET=${DATASET:-iwslt14} # or wmt14
    [ "$PRECISION" != auto ] || PRECISION=--bf16
    DATA=${CORPUS:=$DATASET}/data-bin
    case $DATASET in
    iwslt14)
        [ -e "$DATA/manifest.json" ] || "$PYTHON" data_prep/iwslt14_de_en.py --out "$CORPUS"
        lenpen=1.1
        model=(--arch transformer_iwslt_de_en --eval-bleu
            --eval-bleu-args '{"beam": 5, "lenpen": 1.1, "max_len_a": 1.2, "max_len_b": 10}'
            --best-checkpoint-metric bleu)
        ;;
    wmt14)
        [ -e "$DATA/manifest.json" ] || "$PYTHON" data_prep/wmt14_en_de.py --out "$CORPUS"
        lenpen=0.6
        sweep+=(--checkpoint average:10)
        model=(--arch transformer_wmt_en_de
            --save-interval-updates 5000 --keep-interval-updates 10)
        ;;
    *) echo "DATASET=$DATASET: expected iwslt14 or wmt14" >&2 && exit 2 ;;
    esac
    sweep+=(--seeds "${SEEDS:-1,2,3}" --budget "${BUDGET:-100000u}"
        --generate-flags "--beam 5 --lenpen $lenpen --max-len-a 1.2 --max-len-b 10 --scoring bleu
            $PRECISION")
    # Use batches of about 8,192 tokens over all GPUs of a training.
    update_freq=${UPDATE_FREQ:-1} together=${GPUS_PER_MODEL:-1}
    model+=(--max-tokens "${MAX_TOKENS:-$((8192 / together / update_freq))}"
        --update-freq "$update_freq" --lr 7e-4 --warmup-updates 4000
        --attention-dropout 0.1 --adam-eps 1e-9)
    JOBS=${JOBS:-$(awk -F, -v together="$together" '{ print NF / together }' <<<"${GPUS:-0}")}
    sweep+=(--training-processes "$together")
    ;;
*) echo "$FORM: expected small or paper" >&2 && exit 2 ;;
esac

published=examples/paper_study/$TABLE.${DATASET:-iwslt14}.yaml
[ -e "$published" ] || published=examples/paper_study/$TABLE.iwslt14.yaml
exec "$PYTHON" -m relu_nmt.cli.sweep "$DATA" --save-dir "$OUT/$FORM/${DATASET:+$DATASET-}$TABLE" \
    --published "$published" --lengths 1 --jobs "$JOBS" ${GPUS:+--gpus "$GPUS"} \
    --delete-checkpoints "${sweep[@]}" \
    -- --share-all-embeddings --dropout "${DROPOUT:-0.1}" --label-smoothing 0.1 \
    --optimizer adam --adam-betas '(0.9, 0.98)' --lr-scheduler inverse_sqrt \
    "${model[@]}" "${train[@]}" $PRECISION ${TRAIN_FLAGS:-}
