#!/usr/bin/env bash
# Pre-train on many classes of images, evaluate on a few, and learn new ones. See README.md.
#   IMAGES=cifar10 examples/transfer/run.sh
set -euo pipefail
source "$(dirname "$0")/../usage.bash"
cd "$(dirname "$0")/../.."

IMAGES=${IMAGES:-cifar10} # train and test, each a folder of class folders or a .zip of one
OUT=${OUT:-transfer}
FEW=${FEW:-"automobile bird cat frog truck"} # of those it is pre-trained on: ImageNet-1k in 21k
NEW=${NEW:-"deer dog"} # that pre-training does not see
UPDATES=${UPDATES:-600}
NEW_UPDATES=${NEW_UPDATES:-150}
MODEL="--arch xcit_nano_12_p8_32 --attention sima --class-attention sima"
TRAIN="--batch-size 64 --lr 1e-3 --clip-norm 1.0 --bf16 --valid-fraction 0.02 --no-epoch-checkpoints"

# Link the class folders: the new classes in one folder, all others in another.
mkdir -p "$OUT"
for part in train test; do
    from=$IMAGES/$part
    if [ ! -d "$from" ]; then
        zip=$from.zip
        from=$OUT/unpacked/$part
        if [ ! -d "$from" ]; then
            [ -f "$zip" ] || [ -n "${DRY_RUN:-}" ] || { echo "$zip: no such file; set IMAGES (see README.md)" >&2; exit 2; }
            rm -rf "$from.part"
            python -m zipfile -e "$zip" "$from.part"
            mv "$from.part" "$from"
        fi
    fi
    mkdir -p "$OUT/many/$part" "$OUT/new/$part"
    for class in "$from"/*/; do
        [ -d "$class" ] || continue
        name=$(basename "$class")
        case " $NEW " in *" $name "*) to=new ;; *) to=many ;; esac
        ln -sfn "$(realpath "$class")" "$OUT/$to/$part/$name"
    done
done
printf '%s\n' $FEW | tee "$OUT/few.txt" > /dev/null

relu-nmt-vision-train "$OUT/many/train" $MODEL $TRAIN --max-update "$UPDATES" \
    --warmup-updates $((UPDATES / 10)) --save-dir "$OUT/pretrained"
BASE=$OUT/pretrained/checkpoint_last.safetensors

echo "== classes of the pre-training: among all, then among those of few.txt alone"
mkdir -p "$OUT/few"
for name in $FEW; do ln -sfn "$(realpath -m "$OUT/many/test/$name")" "$OUT/few/$name"; done
relu-nmt-vision-evaluate "$BASE" --data "$OUT/few" --results "$OUT/all-classes.json"
relu-nmt-vision-evaluate "$BASE" --data "$OUT/few" --classes "$OUT/few.txt" \
    --results "$OUT/few-classes.json"

echo "== new classes: from 10 images of each, by the features as they are"
relu-nmt-vision-probe "$BASE" --train "$OUT/new/train" --test "$OUT/new/test" --method ridge \
    --eval-crop-ratio 1 --results "$OUT/ridge.json"

echo "== new classes: trained on from there, and from nothing"
NEW_FLAGS="$TRAIN --max-update $NEW_UPDATES --warmup-updates $((NEW_UPDATES / 10))"
relu-nmt-vision-train "$OUT/new/train" $MODEL $NEW_FLAGS --finetune-from-model "$BASE" \
    --save-dir "$OUT/finetuned"
relu-nmt-vision-train "$OUT/new/train" $MODEL $NEW_FLAGS --save-dir "$OUT/scratch"
for model in finetuned scratch; do
    relu-nmt-vision-evaluate "$OUT/$model/checkpoint_last.safetensors" --data "$OUT/new/test" \
        --results "$OUT/$model.json"
done
