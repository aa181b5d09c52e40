"""Marian models of Hugging Face's transformers translate here as there."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from relu_nmt.errors import DataError
from relu_nmt.training.checkpoint import load_checkpoint
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.task import TranslationTask
from relu_nmt.translator import TranslationRequest, Translator
from relu_nmt.translator.spans import token_spans
from tests.commands import assert_refused, run_here
from tests.compat.plain_m2m100 import changed
from tests.outputs import assert_same_tensors, column

FILES = Path(__file__).parent / "marian_files"
CASES = list(map(json.loads, (FILES / "outputs.jsonl").read_text("utf-8").splitlines()))
MODEL = ("config.json", "vocab.json", "source.spm", "target.spm", "model.safetensors")


def imported(folder, out, *flags, check=True):
    path = out / "imported.safetensors"
    return path, run_here("import_marian", folder, "--output", path, flags, check=check)


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    path, done = imported(FILES, tmp_path_factory.mktemp("marian"))
    assert done.stdout.startswith(f"written: {path} (deu-eng, ")
    return Translator.from_checkpoint(path, "cpu")


@pytest.fixture
def folder(tmp_path):
    """Return a copy of the model, to be changed."""
    copy = tmp_path / "model"
    copy.mkdir()
    for name in MODEL:
        shutil.copy(FILES / name, copy)
    return copy


@pytest.fixture(scope="module")
def our_ids(translator):
    """Return our id of each id there."""
    vocabulary = json.loads((FILES / "vocab.json").read_text("utf-8"))
    dictionary = translator.task.target_dictionary
    ids = {number: dictionary.index(symbol) for symbol, number in vocabulary.items()}
    return np.array([ids[number] for number in range(len(ids) - 1)] + [dictionary.bos_index])


def test_ids_and_logits_are_the_same(translator, our_ids):
    logits = load_file(FILES / "logits.safetensors")
    [model] = translator.models
    for number, case in enumerate(CASES):
        source = translator.sources.sentence(case["line"]).ids
        assert source.tolist() == our_ids[case["ids"]].tolist()
        target = torch.from_numpy(our_ids[case["beam4"]["tokens"]])
        read = torch.cat([torch.tensor([2]), target[:-1]])
        with torch.no_grad():
            scores = model.logits(model(torch.from_numpy(source)[None], read[None]))[0]
        torch.testing.assert_close(scores[:, our_ids], logits[str(number)], atol=1e-5, rtol=1e-5)
        # Padding, which is no symbol there, takes no probability.
        shares = logits[str(number)].log_softmax(1)
        torch.testing.assert_close(scores.log_softmax(1)[:, our_ids], shares, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("beam", [1, 4])
def test_translations_are_the_same(translator, our_ids, beam):
    lines = column(CASES, "line")
    translations = translator.translate_nbest(lines, beam=beam, max_len_b=28, stop_rule="full")
    assert len({case[f"beam{beam}"]["text"] for case in CASES}) > 3
    for case, [best] in zip(CASES, translations, strict=True):
        expected = case[f"beam{beam}"]
        assert best.hypothesis.ids.tolist() == our_ids[expected["tokens"]].tolist()
        assert best.text == expected["text"]
        if beam > 1:
            assert best.score == pytest.approx(expected["score"], abs=1e-5)


def test_weights_as_pytorch_keeps_them_are_the_same(folder, tmp_path, translator):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    path, done = imported(folder, tmp_path)
    assert "(source-target, " in done.stdout  # nothing tells the languages
    [model] = Translator.from_checkpoint(path, "cpu").models
    assert_same_tensors(model.state_dict(), translator.models[0].state_dict())


def with_languages(folder):
    """Make two rare pieces the symbols of target languages."""
    content = (folder / "vocab.json").read_text("utf-8")
    for piece, code in (("g", ">>deu<<"), ("?", ">>fra<<")):
        assert content.count(f'"{piece}": ') == 1
        content = content.replace(f'"{piece}": ', f'"{code}": ')
    (folder / "vocab.json").write_text(content, "utf-8-sig")  # some editors write a mark


def test_a_model_of_several_languages_becomes_one_for_each(folder, tmp_path, translator):
    with_languages(folder)
    first_ids = {"deu": "g", "fra": "?"}
    for language, piece in first_ids.items():
        path, done = imported(folder, tmp_path, "--target-lang", language)
        assert f"(source-{language}, " in done.stdout
        other = Translator.from_checkpoint(path, "cpu")
        code = translator.task.source_dictionary.index(piece)
        lines = column(CASES[:3], "line")
        plain = translator.sources.sentences(TranslationRequest(lines))
        named = [replace(source, ids=np.append(code, source.ids)) for source in plain]
        sentences = other.sources.sentences(TranslationRequest(lines))
        for source, expected in zip(sentences, named, strict=True):
            assert source.ids.tolist() == expected.ids.tolist()
        config = GenerationConfig(beam=4, max_len_b=28)
        expected = [nbest[0].hypothesis for nbest in translator.window_translator(config)(named)]
        texts = other.translate(lines, config)
        for hypothesis, text in zip(expected, texts, strict=True):
            tokens = other.task.target_dictionary.symbols_of(hypothesis.ids[:-1])
            assert other.task.target_text.decode(tokens) == text
        text = other.task.source_text
        assert text.decode(text.encode(lines[0])) == lines[0]
        assert other.translate(["", lines[0]], config) == ["", texts[0]]


def test_a_typed_code_of_the_language_is_the_models_symbol(folder, tmp_path):
    with_languages(folder)
    path, _ = imported(folder, tmp_path, "--target-lang", "deu")
    german = Translator.from_checkpoint(path, "cpu")
    lines = column(CASES[:3], "line")
    flags = ["--path", path, "--cpu", "--beam", 2, "--max-len-a", 0, "--max-len-b", 9]
    plain = run_here("interactive", flags, stdin="\n".join(lines)).stdout
    for begin in (">>deu<< ", ">>deu<<", "  >>deu<<\t"):
        typed = [begin + line for line in lines]
        for line, with_code in zip(lines, typed, strict=True):
            ids = german.sources.sentence(line).ids
            assert german.sources.sentence(with_code).ids.tolist() == ids.tolist()
        assert run_here("interactive", flags, stdin="\n".join(typed)).stdout == plain
        (tmp_path / "text").write_text("\n".join(typed) + "\n", "utf-8")
        assert run_here("translate_document", tmp_path / "text", flags).stdout == plain
    assert german.translate([">>deu<<", " >>deu<< "]) == ["", ""]
    # Spans of tokens, which the server shows, are spans of words.
    text = german.task.source_text
    tokens = text.encode(f">>deu<< {lines[0]}")
    spans = token_spans(f">>deu<< {lines[0]}", tokens, text)
    plain_spans = token_spans(lines[0], tokens, text)
    assert [begin - 8 for begin, _ in spans[2:]] == [begin for begin, _ in plain_spans[2:]]


def test_a_typed_code_of_another_language_is_refused(folder, tmp_path, translator):
    with_languages(folder)
    path, _ = imported(folder, tmp_path, "--target-lang", "deu")
    german = Translator.from_checkpoint(path, "cpu")
    text = "line 2: the text begins with >>fra<<, but the model is for >>deu<<.*--target-lang fra$"
    with pytest.raises(DataError, match=text):
        german.translate(["Haus", ">>fra<< Haus"])
    done = run_here("interactive", "--path", path, "--cpu", stdin=">>fra<<Haus\n", check=False)
    assert_refused(done, "line 1: the text begins with >>fra<<")
    # The codes of other kinds of models are no text either.
    for code in ("deu_Latn", "__de__"):
        with pytest.raises(DataError, match=f"begins with {code}, but"):
            german.translate([f"{code} Haus"])
    # A model of a single language has no codes.
    with pytest.raises(DataError, match="begins with >>deu<<, but the model translates into a si"):
        translator.translate([">>deu<< Haus"])
    translator.sources.encode(TranslationRequest(["__init__ Haus", "a >>deu<<"]))


def test_data_like_a_model_have_its_code_once(folder, tmp_path):
    with_languages(folder)
    path, _ = imported(folder, tmp_path, "--target-lang", "deu")
    task = Translator.from_checkpoint(path, "cpu").task
    lines = column(CASES[:3], "line")
    for split, begin in (("train", ">>deu<< "), ("valid", "")):
        for side, other in ((begin, "source"), ("", "deu")):
            text = "".join(f"{side}{line}\n" for line in lines)
            (tmp_path / f"{split}.{other}").write_text(text, "utf-8")
    words = ["--like", path, "--trainpref", tmp_path / "train", "--validpref", tmp_path / "valid"]
    done = run_here("preprocess", words, "--destdir", tmp_path / "data", "--workers", 1)
    assert "[source] 3 of 3 sampled lines" in done.stdout
    data = TranslationTask.from_data_folder(tmp_path / "data")
    for split in ("train", "valid"):
        pairs = data.load_split(split)
        for number, line in enumerate(lines):
            assert pairs.source[number].tolist() == task.encode_source(line).tolist()
            assert pairs.target[number].tolist() == task.encode_target(line).tolist()
    path = tmp_path / "train.source"
    path.write_text(path.read_text("utf-8").replace("deu", "fra"), "utf-8")
    done = run_here("preprocess", words, "--destdir", tmp_path / "new", check=False)
    assert done.returncode == 2 and f"{path}: the text begins with >>fra<<" in done.stderr


def test_ctranslate2_translates_the_same(tmp_path, translator):
    ctranslate2 = pytest.importorskip("ctranslate2")
    path, _ = imported(FILES, tmp_path)
    run_here("convert", path, "--to", "ctranslate2", "--output", tmp_path / "ct2")
    text = translator.task
    model = ctranslate2.Translator(str(tmp_path / "ct2"), device="cpu")
    for case in CASES:
        tokens = text.source_text.encode(case["line"])
        [result] = model.translate_batch([tokens], beam_size=1, max_decoding_length=28)
        assert text.target_text.decode(result.hypotheses[0]) == case["beam1"]["text"]


def test_training_goes_on_from_an_imported_model(tmp_path):
    path, _ = imported(FILES, tmp_path)
    for side, other in (("source", "s"), ("target", "t")):
        (tmp_path / f"text.{other}").write_text("das ist ein Haus\n" * 4, "utf-8")
        shutil.copy(FILES / f"{side}.spm", tmp_path)
    translator = Translator.from_checkpoint(path, "cpu")
    translator.task.source_dictionary.save(tmp_path / "dict")
    text = (
        f"--trainpref {tmp_path}/text --validpref {tmp_path}/text --source-lang s --target-lang t"
    )
    words = f"--srcdict {tmp_path}/dict --joined-dictionary --destdir {tmp_path}/data"
    run_here("preprocess", text.split(), words.split())
    flags = f"{tmp_path}/data --cpu --config {path} --finetune-from-model {path} --lr 1e-9"
    flags += " --label-smoothing 0.1 --max-tokens 100 --max-update 1 --no-epoch-checkpoints"
    done = run_here("train", flags.split(), "--disable-validation", "--save-dir", tmp_path / "new")
    assert f"note: {path} takes raw text, but that of {tmp_path}/data is prepared" in done.stdout
    trained = Translator.from_checkpoint(tmp_path / "new/checkpoint_last.safetensors", "cpu")
    assert trained.models[0].config == translator.models[0].config
    # No regularizer comes with the settings of the model.
    args = load_checkpoint(tmp_path / "new/checkpoint_last.safetensors").metadata["args"]
    assert args["regularizer"]["attention_entropy_weight"] == 0
    weights = trained.models[0].state_dict()
    torch.testing.assert_close(weights, translator.models[0].state_dict())


def test_no_checkpoint_of_a_training_is_replaced(tmp_path):
    path = tmp_path / "imported.safetensors"
    shutil.copy(FILES.parent / "files/checkpoints/softmax.safetensors", path)
    before = path.read_bytes()
    _, done = imported(FILES, tmp_path, check=False)
    assert_refused(done, "holds the state that a training goes on from")
    assert path.read_bytes() == before


def written(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def without(name):
    return lambda folder: (folder / name).unlink()


def with_harm(folder):
    class Harm:
        def __reduce__(self):
            return os.system, (f"touch {folder / 'harm'}",)

    (folder / "model.safetensors").unlink()
    torch.save({"shared.weight": Harm()}, folder / "pytorch_model.bin")


def with_flat_table(folder):
    tensors = load_file(folder / "model.safetensors")
    for part in "qkv":
        name = f"model.encoder.layers.0.self_attn.{part}_proj.weight"
        tensors[name] = torch.zeros([3, 3, 3][: ord(part) % 3 + 1])
    save_file(tensors, folder / "model.safetensors")


REFUSED = {
    "another model": (changed("config.json", model_type="t5"), "its model_type is 't5'"),
    "no settings": (without("config.json"), "config.json: cannot read it"),
    "settings cut off": (written("config.json", b'{"model_type": "mar'), "config.json: damaged"),
    "settings of a list": (written("config.json", b"[]"), "config.json: damaged"),
    "another start": (changed("config.json", decoder_start_token_id=0), "decoder_start_token_id"),
    "two tables": (changed("config.json", tie_word_embeddings=False), "tie_word_embeddings"),
    "a function": (changed("config.json", activation_function="tanh"), "function tanh"),
    "a table": (changed("config.json", activation_function={}), "config.json: damaged"),
    "no width": (changed("config.json", d_model="wide"), "config.json: "),
    "many positions": (changed("config.json", max_position_embeddings=10**5), "more than 65,536"),
    "no such size": (changed("config.json", max_position_embeddings=10**12), "expected 1 to"),
    "no heads": (changed("config.json", encoder_attention_heads=None), "config.json: "),
    "another width": (changed("config.json", d_model=32), "does not fit the model: it has"),
    "more layers": (changed("config.json", decoder_layers=2), "it lacks decoder.layers.1."),
    "more symbols": (changed("vocab.json", more=27), "28 symbols, which its vocabulary has"),
    "an id twice": (changed("vocab.json", more=3), "vocab.json: damaged"),
    "ids of text": (changed("vocab.json", more="27"), "vocab.json: damaged"),
    "no padding": (written("vocab.json", b'{"</s>": 0, "<unk>": 1}'), "lacks <pad>"),
    "languages": (with_languages, "give --target-lang one of deu, fra"),
    "a flat table": (with_flat_table, "damaged weights"),
    "no weights": (without("model.safetensors"), "neither model.safetensors nor"),
    "weights cut off": (
        written("model.safetensors", b"\x10\0\0"),
        "model.safetensors: cannot be read",
    ),
    "no pieces": (without("target.spm"), "target.spm: cannot read"),
    "damaged pieces": (written("source.spm", b"x"), "source.spm: not a model"),
    "a pickle that runs": (with_harm, "pytorch_model.bin: cannot be read as weights"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_such_model_is_refused(name, folder, tmp_path):
    change, expected = REFUSED[name]
    change(folder)
    path, done = imported(folder, tmp_path, check=False)
    assert_refused(done, expected)
    assert not path.exists() and not (folder / "harm").exists()


def test_a_language_that_is_none_of_the_models_is_refused(folder, tmp_path):
    for change, expected in (
        (None, "names no languages"),
        (with_languages, "'spa'; --target-lang is one of deu, fra"),
    ):
        if change is not None:
            change(folder)
        path, done = imported(folder, tmp_path, "--target-lang", "spa", check=False)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert expected in done.stderr and not path.exists()
