"""relu-nmt-preprocess --like: data like the data of a model, ours or imported."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.tokenization.base import JoinedPieces
from relu_nmt.translation.agreement import describe_task
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.task import TranslationTask
from relu_nmt.translator import Translator
from tests.commands import assert_refused, run_here
from tests.compat.cases import FILES
from tests.outputs import contents, numbers_of, texts_of
from tests.tiny import as_lists, save_tiny_model, tiny_task, train, write_lines

MARIAN = FILES.parent / "marian_files"
LINES = ["Das Haus , drei Hunde", "wo ist ein roter Hund ?", "ein größer Xaver", "Hund"] * 3
STEPS = ["--tokenizer", "moses", "--lowercase", "--subword", "subword-nmt", "--subword-size", "20"]
QUICK = ["--max-tokens", "200", "--max-update", "1", "--no-epoch-checkpoints", "--lr", "1e-9"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for split in ("train", "valid", "new"):
        write_lines(folder, split, LINES)
    (folder / "train.de").write_text("das Haus ist rot\nein Haus , drei Hunde\n" * 6, "utf-8")
    return folder


@pytest.fixture(scope="module")
def ours(texts):
    """Return the data folder and the checkpoint of a training on it."""
    preprocess(texts / "ours", files(texts, "train"), GIVEN, STEPS, "--joined-dictionary")
    train(texts / "ours", texts / "model", QUICK)
    return texts / "ours", texts / "model/checkpoint_last.safetensors"


GIVEN = ("-s", "de", "-t", "en")


@pytest.fixture(scope="module")
def marian(tmp_path_factory):
    path = tmp_path_factory.mktemp("marian") / "model.safetensors"
    run_here("import_marian", MARIAN, "--output", path)
    return path


def files(folder, split="new"):
    return "--trainpref", folder / split, "--validpref", folder / "valid"


def preprocess(destdir, *flags, check=True):
    return run_here("preprocess", flags, "--destdir", destdir, check=check)


def test_data_like_that_of_our_model_is_what_its_files_give(texts, ours, tmp_path):
    data, path = ours
    preprocess(tmp_path / "like", files(texts), "--like", path)
    by_hand = ["--srcdict", data / "dict.de.txt", "--subword-model", data / "subword.codes"]
    steps = [*STEPS[:5], "--joined-dictionary", *by_hand]
    preprocess(tmp_path / "hand", files(texts), GIVEN, steps)
    assert contents(tmp_path / "like") == contents(tmp_path / "hand")
    like = TranslationTask.from_data_folder(tmp_path / "like")
    hand = TranslationTask.from_data_folder(tmp_path / "hand")
    assert describe_task(like) == describe_task(hand)
    # Flags that repeat the model's steps are accepted, and a second run finds its work done.
    done = preprocess(tmp_path / "like", files(texts), "--like", path, GIVEN, steps[:6])
    assert "complete already" in done.stdout


def test_a_training_goes_on_with_data_like_the_models(texts, ours, tmp_path):
    path = ours[1]
    preprocess(tmp_path / "other", files(texts), GIVEN)
    flags = [*QUICK, "--finetune-from-model", path]
    done = train(tmp_path / "other", tmp_path / "new", flags, check=False)
    assert_refused(done, f"make the data with relu-nmt-preprocess --like {path}, or")
    generated = ["--path", path, "--cpu", "--gen-subset", "valid"]
    done = run_here("generate", tmp_path / "other", generated, check=False)
    assert_refused(done, f"relu-nmt-preprocess --like {path}")
    preprocess(tmp_path / "like", files(texts), "--like", path)
    train(tmp_path / "like", tmp_path / "new", flags)
    run_here("generate", tmp_path / "like", generated, "--max-len-b", 3)


def test_two_models_of_pieces_and_names_of_languages(marian, tmp_path):
    for language, other in (("de", "deu"), ("en", "eng")):
        for split in ("new", "valid"):
            for ending in (language, other):
                (tmp_path / f"{split}.{ending}").write_text("\n".join(LINES) + "\n", "utf-8")
    done = preprocess(tmp_path / "named", files(tmp_path), "--like", marian)
    assert "NOTE" not in done.stdout
    # Codes of another system may name the same language, which is told.
    done = preprocess(tmp_path / "data", files(tmp_path), "--like", marian, GIVEN)
    assert f"NOTE: de is taken for deu, the language's name in {marian}\n" in done.stdout
    model = Translator.from_checkpoint(marian, "cpu")
    for name in ("named", "data"):
        for side, language in (("source", "deu"), ("target", "eng")):
            pieces = tmp_path / name / f"sentencepiece.{language}.model"
            assert pieces.read_bytes() == (MARIAN / f"{side}.spm").read_bytes()
        split = TranslationTask.from_data_folder(tmp_path / name).load_split("train")
        expected = as_lists(map(model.task.encode_source, LINES))
        assert as_lists(split.source) == expected
        expected = as_lists(map(model.task.encode_target, LINES))
        assert as_lists(split.targets()) == expected
    # Training, validation by BLEU and generation read the folder as the model's.
    flags = [*QUICK, "--config", marian, "--finetune-from-model", marian, "--eval-bleu", "--cpu"]
    run_here("train", tmp_path / "data", flags, "--save-dir", tmp_path / "new")
    words = ["--path", marian, "--cpu", "--gen-subset", "valid", "--beam", 2, "--max-len-b", 9]
    done = run_here("generate", tmp_path / "data", words)
    config = GenerationConfig(beam=2, max_len_b=9)
    assert numbers_of(done.stdout, "D") == list(range(len(LINES)))
    assert texts_of(done.stdout) == model.translate(LINES, config)


def test_two_subword_models_are_given_as_marian_has_them(texts, tmp_path):
    pieces = ["--subword", "sentencepiece", "--subword-model", MARIAN / "source.spm"]
    pieces += ["--target-subword-model", MARIAN / "target.spm"]
    for split in ("train", "valid"):
        for ending in ("de", "en"):
            (tmp_path / f"{split}.{ending}").write_text("\n".join(LINES) + "\n", "utf-8")
    preprocess(tmp_path / "data", files(tmp_path, "train"), GIVEN, pieces)
    for side, language in (("source", "de"), ("target", "en")):
        model = tmp_path / "data" / f"sentencepiece.{language}.model"
        assert model.read_bytes() == (MARIAN / f"{side}.spm").read_bytes()
    task = TranslationTask.from_data_folder(tmp_path / "data")
    assert task.source_text.encode(LINES[0]) != task.target_text.encode(LINES[0])
    done = preprocess(
        tmp_path / "x", files(tmp_path, "train"), GIVEN, pieces[:2], pieces[4:], check=False
    )
    assert_refused(done, "--target-subword-model")


def test_a_code_of_the_target_language_begins_each_source(texts, tmp_path):
    task = tiny_task(["Haus", "das", "rot", ">>fra<<"])
    task.source_text.first_symbol = ">>fra<<"
    save_tiny_model(tmp_path / "model.safetensors", task)
    (tmp_path / "new.de").write_text("das Haus\n\nrot das\n", "utf-8")
    (tmp_path / "new.en").write_text("das Haus\nrot\nrot das\n", "utf-8")
    flags = ["--trainpref", tmp_path / "new", "--validpref", tmp_path / "new"]
    preprocess(tmp_path / "data", flags, "--like", tmp_path / "model.safetensors")
    built = TranslationTask.from_data_folder(tmp_path / "data")
    assert built.source_text.first_symbol == ">>fra<<" and built.target_text.first_symbol is None
    split = built.load_split("train")
    assert as_lists(split.source) == [[7, 5, 4, 2], [2], [7, 6, 5, 2]]
    flags = [*QUICK, "--finetune-from-model", tmp_path / "model.safetensors"]
    shape = "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 --decoder-embed-dim 16"
    shape += " --encoder-ffn-embed-dim 16 --decoder-ffn-embed-dim 16"
    train(tmp_path / "data", tmp_path / "new", flags, shape.split())


@pytest.mark.parametrize("symbols", ["a b madeupword0000 madeupword0001", "a b c"])
def test_the_place_of_the_separator_is_free_again(tmp_path, symbols):
    words = Dictionary(symbols.split())
    grown = words.with_symbol("<sep>")
    free = grown.without_symbol("<sep>")
    assert len(free) == len(grown) and "<sep>" not in free
    assert free.with_symbol("<sep>") == grown
    write_lines(tmp_path, "new", ["a b", "b a", "b"] * 3)
    path = tmp_path / "model.safetensors"
    save_tiny_model(path, tiny_task(symbols.split()).with_sentence_separator())
    flags = ["--trainpref", tmp_path / "new", "--validpref", tmp_path / "new", "--like", path]
    preprocess(tmp_path / "data", flags)
    task = TranslationTask.from_data_folder(tmp_path / "data").with_sentence_separator()
    assert task.source_dictionary == grown
    assert task.load_split("train").source[0].tolist() == [4, 5, 2]


def test_shards_sampling_and_source_alone(texts, ours, tmp_path):
    data, path = ours
    paths = f"{texts / 'new'},{texts / 'train'}"
    shards = ["--trainpref", paths, "--validpref", texts / "valid", "--like", path]
    sampled = ["--subword", "subword-nmt", "--subword-sampling", 0.5]
    preprocess(tmp_path, shards, sampled)
    files_made = contents(data)
    for number in (0, 1):
        shard = contents(tmp_path / f"shard{number}")
        for name in ("dict.de.txt", "subword.codes"):
            assert shard[name] == files_made[name]
    # A source without target has the model's steps, too.
    flags = ["--testpref", texts / "new", "--only-source", "--like", path, "--destdir", tmp_path]
    run_here("preprocess", flags)
    assert (tmp_path / "test.de-None.de.bin").exists()
    assert not (tmp_path / "dict.en.txt").exists()
    words = ["--path", path, "--cpu", "--max-len-b", 3]
    run_here("generate", tmp_path, words, "-s", "de", "-t", "en")
    preprocess(tmp_path / "words", files(texts), "--like", path, "--dict-only")
    assert contents(tmp_path / "words")["dict.en.txt"] == files_made["dict.en.txt"]


def test_text_that_arrives_in_pieces_is_told(texts, tmp_path):
    task = tiny_task(["ein@@", "Haus"], subword=JoinedPieces("@@ "), detokenizer="moses")
    save_tiny_model(tmp_path / "model.safetensors", task)
    done = preprocess(
        tmp_path / "data", files(texts), "--like", tmp_path / "model.safetensors", "--workers", 1
    )
    assert "takes prepared text; prepare this text in the same way" in done.stdout
    assert TranslationTask.from_data_folder(tmp_path / "data").source_text.keeps_text


REFUSED = {
    "another source": (["-s", "fr"], "--source-lang fr: the model of --like"),
    "the other way": (["-s", "en", "-t", "de"], "translates from de to en"),
    "an ending of no file": (["-s", "deu"], "new.deu: no such file; its name"),
    "a dictionary": (["--srcdict", "d"], "--srcdict d: --like takes dictionaries and subwords"),
    "another dictionary": (["--tgtdict", "d"], "--tgtdict d: --like takes"),
    "rare words": (["--thresholdtgt", 2], "--thresholdtgt 2: --like takes"),
    "a size": (["--subword", "subword-nmt", "--subword-size", 9], "--subword-size 9: --like takes"),
    "pieces": (["--subword", "subword-nmt", "--subword-model", "d"], "--subword-model d: --like"),
    "another tokenizer": (
        ["--tokenizer", "moses-aggressive"],
        "--tokenizer moses-aggressive: the model of --like",
    ),
    "another method": (["--subword", "sentencepiece"], "has --subword subword-nmt; leave"),
    "alignments": (["--align-suffix", "a"], "leave --like out"),
    "no text": (["--trainpref", "none"], "none.de: no such file"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_flags_that_contradict_the_model_are_refused(name, texts, ours, tmp_path):
    flags, message = REFUSED[name]
    refused(tmp_path, [*files(texts), "--like", ours[1], *flags], message)


def refused(folder, flags, message):
    assert_refused(preprocess(folder / "data", flags, check=False), message)
    assert not (folder / "data").exists()


def test_steps_that_the_model_has_not_are_refused(texts, marian, tmp_path):
    paths = [*files(texts), "--like", marian]
    refused(tmp_path, [*paths, "--lowercase"], "has --no-lowercase; leave the flag out")
    other = tiny_task(["a"])
    other.source_text.lowercase = True
    save_tiny_model(tmp_path / "sides.safetensors", other)
    refused(tmp_path, [*paths[:-1], tmp_path / "sides.safetensors"], "have different text steps")
    apart = replace(tiny_task(["a"]), target_dictionary=Dictionary(["b"]))
    save_tiny_model(tmp_path / "apart.safetensors", apart)
    flags = [*paths[:-1], tmp_path / "apart.safetensors", "-s", "de", "-t", "en"]
    refused(tmp_path, [*flags, "--joined-dictionary"], "has --no-joined-dictionary; leave")


def test_what_is_no_translation_model_is_refused(texts, tmp_path):
    images = Path(FILES) / "checkpoints/vit-mean.safetensors"
    refused(tmp_path, [*files(texts), "--like", images], "the checkpoint of an image classifier")
    refused(tmp_path, [*files(texts), "--like", tmp_path / "none"], "no such checkpoint")
    refused(tmp_path, [*files(texts), "--like", texts / "new.de"], "new.de: ")


def test_a_tokenizer_that_is_missing_here_is_told(texts, tmp_path):
    task = tiny_task(["a"])
    path = tmp_path / "model.safetensors"
    state = task.to_state()
    state["source_text"]["tokenizer"] = "of-another-machine"
    save_tiny_model(path, task, metadata={"task": state})
    refused(tmp_path, [*files(texts), "--like", path], "one of your own: --user-module FILE")


def test_a_damaged_symbol_in_a_manifest_is_told(texts, ours, tmp_path):
    preprocess(tmp_path / "like", files(texts), "--like", ours[1])
    manifest = json.loads((tmp_path / "like/manifest.json").read_text("utf-8"))
    manifest["text"]["de"]["first_symbol"] = ["x"]
    (tmp_path / "like/manifest.json").write_text(json.dumps(manifest), "utf-8")
    assert_refused(train(tmp_path / "like", tmp_path / "new", QUICK, check=False), "first_symbol")
