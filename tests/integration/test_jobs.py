"""The jobs as Python users call them: train, go on, evaluate, without a word on the screen."""

import json
import random
import re
from pathlib import Path

import pytest

from relu_nmt.jobs.convert import job as convert
from relu_nmt.jobs.preprocess import job as preprocess
from relu_nmt.jobs.score import job as score
from relu_nmt.jobs.train import job as train_translation
from relu_nmt.jobs.vision_train import job as train_images
from relu_nmt.training.checkpoint import load_checkpoint
from relu_nmt.vision.loading import ImageClassifier
from tests.markdown import code_blocks
from tests.outputs import assert_same_tensors, column, weights
from tests.tiny import write_lines
from tests.unit.vision.made_images import make_squares

PAGE = Path(__file__).parents[2] / "docs/guide/training.md"


@pytest.fixture(autouse=True)
def silent(capfd):
    """See that nothing is printed, neither here nor by a library."""
    yield
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Lines of numbers to be copied, in text/."""
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "text").mkdir()
    rng = random.Random(0)
    for split, count in (("train", 60), ("valid", 8), ("test", 8)):
        lines = []
        for _ in range(count):
            lines.append(" ".join(str(rng.randint(0, 99)) for _ in range(rng.randint(1, 9))))
        write_lines(folder / "text", split, lines)
    return folder


def made_data(folder):
    names = {name: folder / "text" / name[:-4] for name in ("trainpref", "validpref")}
    languages = {"source_lang": "de", "target_lang": "en"}
    settings = preprocess.Settings.of(**languages, **names, destdir=folder / "data-bin")
    return preprocess.run(settings, progress=False)


def tiny(folder, save_dir, **values):
    options = {"arch": "reluformer_tiny", "max_tokens": 100, "cpu": True, "warmup_updates": 9}
    return train_translation.Settings.of(
        data=folder / "data-bin", save_dir=save_dir, **{**options, **values}
    )


def test_translation_trains_goes_on_and_is_averaged(folder, tmp_path):
    manifest = made_data(folder)
    assert manifest == json.loads((folder / "data-bin/manifest.json").read_text("utf-8"))
    assert manifest == made_data(folder)  # done already
    for updates in (4, 7):
        settings = tiny(folder, tmp_path / "parts", max_update=updates, save_interval_updates=2)
        result = train_translation.run(settings, progress=False)
    full = train_translation.run(tiny(folder, tmp_path / "whole", max_update=7), progress=False)
    assert result.num_updates == full.num_updates == 7
    validated = column(result.valid["valid"], "num_updates")
    assert validated == sorted(set(validated)) and {2, 4, 6, 7} <= set(validated)
    assert_same_tensors(weights(tmp_path / "parts"), weights(tmp_path / "whole"))
    mean = convert.average(
        convert.AverageSettings.of(
            inputs=[tmp_path / "parts"], num_update_checkpoints=2, output=tmp_path / "mean"
        ),
        progress=False,
    )
    parts = ["checkpoint_2_6.safetensors", "checkpoint_1_4.safetensors"]
    assert load_checkpoint(mean).metadata["averaged"] == parts


def test_images_train_and_are_classified(tmp_path):
    make_squares(tmp_path / "images", 12, seed=1)
    shape = {"image_size": 12, "patch_size": 4, "embed_dim": 32, "heads": 2, "layers": 1}
    settings = train_images.Settings.of(
        data=tmp_path / "images",
        valid_fraction=0.25,
        batch_size=9,
        max_epoch=2,
        cpu=True,
        best_checkpoint_metric="accuracy",
        save_dir=tmp_path / "vit",
        **shape,
    )
    result = train_images.run(settings, progress=False)
    accuracies = column(result.valid["valid"], "accuracy")
    assert result.best_score == max(accuracies)
    assert ImageClassifier.from_checkpoint(result.best_checkpoint).classes == (
        "blue",
        "green",
        "red",
    )


def test_scores_are_numbers(folder):
    text = folder / "text/test.en"
    settings = score.Settings.of(sys=text, ref=text, metrics=["bleu", "chrf"])
    result = score.run(settings, progress=False)
    assert result["BLEU"] == pytest.approx(100)
    assert result["chrF2"] == pytest.approx(100)
    with pytest.raises(KeyError):
        result["d-BLEU"]


def test_the_guide_trains_resumes_and_translates(folder, tmp_path, monkeypatch, capfd):
    [block] = code_blocks(PAGE.read_text("utf-8"), "python")
    code = block.text
    for large, small in (
        ("reluformer_iwslt_de_en", "reluformer_tiny"),
        ("20_000", "3"),
        ("30_000", "5"),
        ("subword_size=8000", "subword_size=12"),
    ):
        assert large in code
        code = code.replace(large, small)
    (tmp_path / "text").symlink_to(folder / "text")
    monkeypatch.chdir(tmp_path)
    namespace: dict = {}
    exec(code, namespace)
    printed = capfd.readouterr()
    assert printed.err == ""
    assert namespace["result"].num_updates == 5
    assert str(namespace["result"].best_score) in printed.out
    assert re.search(r"^BLEU = [\d.]+ .* signature: nrefs:1", printed.out, re.MULTILINE)
