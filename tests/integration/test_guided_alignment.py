"""Training on word alignments: the chosen heads learn them, and --print-alignment prints them."""

import random
import shutil

import pytest

from relu_nmt.jobs.train.settings import TranslationTrainingSettings as Settings
from relu_nmt.translation.task import TranslationTask
from tests import outputs, tiny
from tests.commands import assert_refused, run_here
from tests.outputs import assert_same_tensors, json_lines, weights

GUIDED = "--criterion label_smoothed_cross_entropy_with_alignment --load-alignments"
LEARNED = f"{GUIDED} --alignment-lambda 0.5 --alignment-layer 0 --alignment-heads 1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Text to be copied in documents of two sentences. Every token is aligned with the first.

    A model would not align it so itself.
    """
    folder = tmp_path_factory.mktemp("guided")
    rng = random.Random(0)
    for split, count in (("train", 120), ("valid", 30)):
        lines = [rng.choices("0123456789", k=rng.randint(2, 6)) for _ in range(count)]
        text = aligned = ""
        for number, line in enumerate(lines):
            links = [f"0-{i}" for i in range(len(line))]
            end = "\n" if number % 2 else "\n\n"
            text += " ".join(line) + end
            aligned += " ".join(links) + end
        for ending, content in (("de", text), ("en", text), ("align", aligned)):
            (folder / f"{split}.{ending}").write_text(content)
    preprocess(folder, "bin", "--align-suffix", "align")
    preprocess(folder, "plain")
    return folder


def preprocess(folder, dest, *flags):
    words = "-s de -t en --joined-dictionary --document-separator blank --workers 1"
    text = ["--trainpref", folder / "train", "--validpref", folder / "valid"]
    run_here("preprocess", words.split(), text, "--destdir", folder / dest, flags)


def train(data, save_dir, flags, check=True):
    options = "--max-tokens 300 --lr 4e-3 --warmup-updates 20 --no-epoch-checkpoints"
    done = tiny.train(data, save_dir, options.split(), flags.split(), check=check)
    return done, json_lines(done.stdout)


def values(lines, name):
    return list(map(float, outputs.values(lines, name)))


def agreement(data, model):
    """Return the share of the tokens whose printed alignment is the given one."""
    words = "--gen-subset valid --cpu --beam 1 --print-alignment --path"
    output = run_here("generate", data, words.split(), model).stdout
    pairs = " ".join(outputs.texts_of(output, "A")).split()
    return len(outputs.starting(pairs, "0-")) / len(pairs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attention", "updates", "lowest"), [("softmax", 60, 0.9), ("reluformer:gamma=8", 110, 0.5)]
)
def test_the_chosen_head_learns_what_it_is_given(folder, tmp_path, attention, updates, lowest):
    flags = f"--max-update {updates} --save-interval 99 --validate-interval 9 "
    flags += f"--cross-attention {attention} "
    _, lines = train(folder / "bin", tmp_path / "guided", flags + LEARNED)
    losses = values(lines, "alignment_loss")
    valid = values(lines, "valid_alignment_loss")
    assert losses[-1] < 0.5 * losses[0] and valid[-1] < valid[0]
    guided = agreement(folder / "bin", tmp_path / "guided/checkpoint_last.safetensors")
    train(folder / "bin", tmp_path / "free", flags + "--alignment-layer 0 --alignment-heads 1")
    free = agreement(folder / "bin", tmp_path / "free/checkpoint_last.safetensors")
    assert guided > lowest and free < 0.4


@pytest.mark.parametrize(
    "flags",
    ["--update-freq 2", "--doc-mixture 1,12,40 --sentence-separator --checkpoint-activations"],
)
def test_stopping_and_going_on_changes_no_bit(folder, tmp_path, flags):
    full, halves = tmp_path / "whole", tmp_path / "halves"
    flags = f"{GUIDED} --disable-validation {flags} --max-update"
    _, lines = train(folder / "bin", full, f"{flags} 6")
    assert min(values(lines, "alignment_loss")) > 0
    train(folder / "bin", halves, f"{flags} 3")
    train(folder / "bin", halves, f"{flags} 6")
    assert_same_tensors(weights(full), weights(halves))


def test_the_other_direction_has_the_pairs_the_other_way(folder):
    forth = TranslationTask.from_data_folder(folder / "bin").load_split("train", True)
    back = TranslationTask.from_data_folder(folder / "bin", "en", "de").load_split("train", True)
    assert (back.aligned(range(1)) == forth.aligned(range(1))[:, ::-1]).all()
    assert forth.aligned(range(1)).tolist() == [[0, i] for i in range(forth.target_sizes[0] - 1)]


def test_validation_text_may_be_without(folder, tmp_path):
    data = tmp_path / "bin"
    shutil.copytree(folder / "bin", data)
    for name in ("manifest.json", "valid.align.de-en.idx", "valid.align.de-en.bin"):
        (data / name).unlink()
    _, lines = train(data, tmp_path / "run", f"{GUIDED} --max-update 1")
    assert values(lines, "valid_loss") and not values(lines, "valid_alignment_loss")


@pytest.mark.parametrize(
    ("data", "flags", "message"),
    [
        ("plain", GUIDED, "train.de-en: no word alignments of it; run relu-nmt-preprocess with"),
        ("bin", "--load-alignments", "does nothing with --criterion label_smoothed_cross_entropy;"),
        ("bin", "--alignment-lambda 0.1", "--alignment-lambda 0.1 does nothing with --criterion"),
        ("bin", GUIDED.split(" --load")[0], "with_alignment: give --load-alignments too"),
        ("bin", f"{GUIDED} --alignment-lambda 0", "--alignment-lambda 0: expected more than 0"),
        ("bin", f"{GUIDED} --alignment-layer 2", "layer 2: the decoder's layers are 0 to 1"),
        ("bin", f"{GUIDED} --alignment-heads 3", "is more than --decoder-attention-heads 2"),
        ("bin", f"{GUIDED} --cross-attention polynomial", "polynomial has no weights that are"),
        ("bin", f"{GUIDED} --full-context-alignment", "the alignment of a token depends on"),
        ("bin", f"{GUIDED} --extra-data plain", "plain/train.de-en: no word alignments of it"),
    ],
)
def test_mistakes_are_one_line(folder, tmp_path, monkeypatch, data, flags, message):
    monkeypatch.chdir(folder)
    done, _ = train(data, tmp_path / "run", flags, check=False)
    assert_refused(done, message)


def test_what_aligns_may_be_changed_and_is_fairseqs_by_name(folder, tmp_path):
    train(folder / "bin", tmp_path, "--max-update 1 --disable-validation")
    flags = f"{LEARNED} --max-update 2 --disable-validation --save-interval 2"
    done, _ = train(folder / "bin", tmp_path, flags)
    assert "--alignment-layer 0 (was not given)" in done.stdout
    for arch, width in (("transformer_align", 512), ("transformer_wmt_en_de_big_align", 1024)):
        model = Settings.of(data="d", max_tokens=9, arch=arch).model
        assert (model.alignment_layer, model.alignment_heads) == (4, 1)
        assert model.decoder_embed_dim == width
