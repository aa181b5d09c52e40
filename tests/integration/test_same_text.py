"""Models, and a model and data, are refused together where they do not share their text."""

import json

import pytest

from relu_nmt.training.checkpoint import load_checkpoint, save_checkpoint
from tests.commands import assert_refused, run_here
from tests.tiny import write_lines

LINES = ["ein Haus", "das Haus ist rot", "ein Hund , ein Haus", "rot ist das Haus"] * 3
OTHER_STEPS = {
    "moses": (["--tokenizer", "moses"], "source tokenizer is moses", "it is none"),
    "lower": (["--lowercase"], "source lower-casing is on", "it is off"),
    "pieces": (
        ["--subword", "subword-nmt", "--subword-model", "CODES"],
        "source subword model is subword-nmt ",
        "it is none",
    ),
}
QUICK = "--arch transformer_tiny --cpu --max-tokens 60 --max-update 1 --disable-validation"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with data folders of one dictionary, and a model of the plain one."""
    folder = tmp_path_factory.mktemp("same-text")
    for split in ("train", "test"):
        write_lines(folder, split, LINES)
    (folder / "codes").write_text("#version: 0.2\nH a\n")
    preprocess(folder, "plain", "--padding-factor", 16)
    words = ["--srcdict", folder / "plain/dict.de.txt"]
    for name, (flags, *_) in OTHER_STEPS.items():
        flags = [folder / "codes" if flag == "CODES" else flag for flag in flags]
        preprocess(folder, name, words, flags)
    train(folder / "plain", folder / "model")
    return folder


def preprocess(folder, name, *flags):
    text = f"-s de -t en --trainpref {folder}/train --testpref {folder}/test --joined-dictionary"
    run_here("preprocess", text.split(), "--destdir", folder / name, flags)


def train(data, save_dir, *flags, check=True):
    words = [QUICK.split(), "--no-epoch-checkpoints", "--save-dir", save_dir, flags]
    return run_here("train", data, words, check=check)


LAST = "checkpoint_last.safetensors"


@pytest.mark.parametrize("name", OTHER_STEPS)
def test_data_prepared_in_another_way_is_refused(folder, tmp_path, name):
    _, value, own_value = OTHER_STEPS[name]
    path = folder / "model" / LAST
    data = folder / name
    message = (
        f"{data}: the {value}",
        f"but in {path} {own_value}; make the data with relu-nmt-preprocess --like {path}, or ",
    )
    before = path.read_bytes()
    assert_refused(train(data, folder / "model", "--max-update", 2, check=False), message)
    start = ["--finetune-from-model", path]
    assert_refused(train(data, tmp_path / "new", start, check=False), message)
    model = ["--path", path, "--cpu", "--max-len-b", 3]
    assert_refused(run_here("generate", data, model, check=False), message)
    assert_refused(run_here("interactive", data, model, stdin="ein\n", check=False), message)
    done = train(folder / "plain", tmp_path / "more", "--extra-data", data, check=False)
    assert_refused(done, f"{data}: the {value}", f"but in {folder / 'plain'} {own_value}")
    assert path.read_bytes() == before and not list(tmp_path.rglob("*.safetensors"))
    # The way back is refused alike.
    train(data, tmp_path / "own")
    path = tmp_path / "own" / LAST
    done = train(folder / "plain", tmp_path / "new", "--finetune-from-model", path, check=False)
    assert_refused(done, f"{folder / 'plain'}: the source ", f"but in {path} it is ")


@pytest.mark.parametrize("name", OTHER_STEPS)
def test_models_of_other_text_are_no_ensemble_and_no_average(folder, tmp_path, name):
    _, value, own_value = OTHER_STEPS[name]
    train(folder / name, tmp_path)
    first, second = folder / "model" / LAST, tmp_path / LAST
    message = f"{second}: the {value}", f"but in {first} {own_value}"
    model = ["--path", f"{first}:{second}", "--cpu", "--max-len-b", 3]
    (tmp_path / "text").write_text("ein\n")
    assert_refused(run_here("generate", folder / "plain", model, check=False), message)
    assert_refused(run_here("interactive", model, stdin="ein\n", check=False), message)
    assert_refused(run_here("translate_document", tmp_path / "text", model, check=False), message)
    serving = [f"{first}:{second}", "--cpu", "--port", 0]
    assert_refused(run_here("serve", serving, check=False), message)
    contrast = {"source_language": "de", "source": "ein", "reference": "ein", "contrasts": ["rot"]}
    contrast |= {"source_context": [], "reference_context": []}
    (tmp_path / "contrasts").write_text(json.dumps(contrast))
    scored = ["--contrastive", tmp_path / "contrasts", *model[:3]]
    assert_refused(run_here("score", scored, check=False), message)
    output = tmp_path / "mean.safetensors"
    words = ["--inputs", first, second, "--output", output]
    assert_refused(run_here("average", words, check=False), message)
    assert not output.exists()


def test_the_other_direction_with_one_joined_dictionary(folder, tmp_path):
    turned = ["--source-lang", "en", "--target-lang", "de"]
    train(folder / "plain", tmp_path / "turned", turned)
    first, second = folder / "model" / LAST, tmp_path / "turned" / LAST
    model = ["--path", f"{first}:{second}", "--cpu"]
    message = f"{second}: the source language is en, but in {first} it is de"
    assert_refused(run_here("interactive", model, stdin="ein\n", check=False), message)
    # The weights may start a model of it, which is told.
    done = train(folder / "plain", tmp_path / "new", "--finetune-from-model", first, turned)
    assert f"note: {first} translates de-en, and learns en-de now" in done.stdout
    # A shortlist is of one direction, too.
    de_list, en_list = tmp_path / "own", tmp_path / "other"
    run_here("shortlist", folder / "plain", "--output", de_list)
    run_here("shortlist", folder / "plain", "--output", en_list, turned)
    words = ["--path", first, "--cpu", "--max-len-b", 3, "--shortlist"]
    run_here("interactive", words, de_list, stdin="ein\n")
    done = run_here("interactive", words, en_list, stdin="ein\n", check=False)
    assert_refused(done, f"{en_list}: the shortlist is for en-de, but the model translates de-en")
    # One of an earlier version does not tell.
    en_list.write_text(en_list.read_text().replace(" #languages:en-de", ""))
    run_here("interactive", words, en_list, stdin="ein\n")


def test_a_checkpoint_that_lacks_a_field_is_not_refused_for_it(folder, tmp_path):
    path = folder / "model" / LAST
    checkpoint = load_checkpoint(path, with_training_state=True)
    for side in ("source_text", "target_text"):
        for name in ("first_symbol", "sentence_separator", "detokenizer"):
            del checkpoint.metadata["task"][side][name]
    del checkpoint.metadata["model_config"]["output_bias"]
    old = tmp_path / LAST
    save_checkpoint(old, checkpoint)
    run_here("average", "--inputs", path, old, "--output", tmp_path / "mean.safetensors")
    run_here("generate", folder / "plain", "--path", f"{path}:{old}", "--cpu", "--max-len-b", 3)
    train(folder / "plain", tmp_path, "--max-update", 2)


def test_data_of_fairseq_does_not_tell_how_its_text_was_prepared(folder, tmp_path):
    train(folder / "moses", tmp_path / "moses")
    (tmp_path / "data").mkdir()
    for file in (folder / "moses").iterdir():
        if file.name != "manifest.json" and not file.name.endswith(".raw"):
            (tmp_path / "data" / file.name).write_bytes(file.read_bytes())
    path = tmp_path / "moses" / LAST
    run_here("generate", tmp_path / "data", "--path", path, "--cpu", "--max-len-b", 3)
    train(tmp_path / "data", tmp_path / "new", "--finetune-from-model", path)
    train(tmp_path / "data", tmp_path / "moses", "--max-update", 2)
    train(tmp_path / "data", tmp_path / "more", "--extra-data", folder / "moses")
