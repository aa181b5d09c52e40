"""Training on documents starts from sentence models of any origin."""

import functools
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from relu_nmt.config import to_dict
from relu_nmt.data.dictionary import SENTENCE_SEPARATOR
from relu_nmt.training.checkpoint import Checkpoint, load_checkpoint, load_weights, save_checkpoint
from relu_nmt.translation.building import build_model, load_model, start_weights
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translator import TranslationRequest, Translator
from tests.commands import assert_refused, run_here
from tests.outputs import assert_same_tensors, tensors
from tests.tiny import digit_documents, preprocessed, save_tiny_model, tiny_task, write_documents

COMPAT = Path(__file__).parents[1] / "compat"
STORED = ["softmax", "reluformer", "learned", "soft", "gelu", "rela", "linear", "ema", "fairseq"]
LINES = ["drei , acht und zwölf .", "elf .", "", "fünf und xyz , Sieben !"]
WORDS = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"]
KINDS = {
    "untied": {},
    "tied": {"share_decoder_input_output_embed": True},
    "one-table": {"share_all_embeddings": True, "output_bias": True},
    "bias": {"output_bias": True, "decoder_start_symbol": "<s>"},
    "pre-norm": {"encoder_normalize_before": True, "decoder_normalize_before": True},
    "learned": {"positions": "learned", "max_source_positions": 9, "max_target_positions": 9},
    "rotary": {"positions": "sinusoidal+rotary+t5"},
    "reluformer": {"attention": "reluformer", "layernorm_embedding": True},
}
FORMS = {
    "aligned": {"document_attention": "aligned", "global_layers": 1},
    "local": {"document_attention": "aligned", "global_layers": 0},
    "full": {},
}
SEARCH = {"beam": 3, "max_len_a": 1, "max_len_b": 5}


def document_model(path, folder, **form):
    """Write the model with which training on documents would start and return its path."""
    checkpoint = load_checkpoint(path)
    sentences, task, _ = load_model(path)
    task = task.with_sentence_separator(task)
    model = build_model(replace(sentences.config, **form), task)
    load_weights(model, start_weights(model, checkpoint), path)
    metadata = {"model_config": to_dict(model.config), "task": task.to_state(), "args": {}}
    out = folder / "documents.safetensors"
    save_checkpoint(out, Checkpoint(model.state_dict(), metadata))
    return out


@functools.cache
def translated(translator, lines, options):
    """Return the translations of a sentence model, with which several models are compared."""
    return translator.translate_nbest(list(lines), **dict(options))


def assert_same(sentences, documents, lines, **search):
    """Compare tokens and scores of all hypotheses."""
    searches = [{"beam": 1}, {"nbest": 3}]
    if documents.task.separators is not None:
        searches.append({"free_sentence_count": True})
    for settings in searches:
        options = {**SEARCH, **search, **settings}
        translations = documents.translate_nbest(lines, **options)
        options.pop("free_sentence_count", None)
        expected = translated(sentences, tuple(lines), tuple(options.items()))
        for old, new in zip(expected, translations, strict=True):
            for before, after in zip(old, new, strict=True):
                first, second = before.hypothesis, after.hypothesis
                assert after.text == before.text
                assert second.ids.tolist() == first.ids.tolist()
                assert second.score == pytest.approx(first.score, abs=2e-5)
                assert second.positional_scores == pytest.approx(first.positional_scores, abs=2e-5)


def on_cpu(path):
    return Translator.from_checkpoint(path, "cpu")


def reference_scores(translator, lines):
    """Return the scores of lines as translations of themselves, by token."""
    task = translator.task
    config = GenerationConfig(score_reference=True)
    sources = translator.sources.sentences(TranslationRequest(lines))
    sentences = []
    for source, line in zip(sources, lines, strict=True):
        sentences.append(replace(source, reference=task.encode_target(line)))
    translations = translator.window_translator(config)(sentences)
    scores = []
    for [best] in translations:
        scores.extend(best.hypothesis.positional_scores)
    return scores


@pytest.fixture(scope="module", params=KINDS)
def sentence_model(request, tmp_path_factory):
    """Return the path of an untrained sentence model and its translator."""
    path = tmp_path_factory.mktemp("sentences") / "sentences.safetensors"
    task = tiny_task([*WORDS, "madeupword0000"])
    save_tiny_model(path, task, seed=5, shape={"layers": 2}, **KINDS[request.param])
    return path, on_cpu(path)


@pytest.mark.parametrize("form", FORMS)
def test_single_sentences_are_translated_as_before(sentence_model, form, tmp_path):
    path, sentences = sentence_model
    documents = on_cpu(document_model(path, tmp_path, **FORMS[form]))
    lines = ["a b c", "d", "", "e f g h a b", "unknown k"]
    assert_same(sentences, documents, lines)
    before = reference_scores(sentences, lines)
    assert reference_scores(documents, lines) == pytest.approx(before, abs=2e-5)


@pytest.mark.parametrize("name", STORED)
def test_trained_models_translate_single_sentences_as_before(name, tmp_path):
    path = COMPAT / f"files/checkpoints/{name}.safetensors"
    models = (path, document_model(path, tmp_path, **FORMS["aligned"]))
    sentences, documents = map(on_cpu, models)
    assert_same(sentences, documents, LINES, max_len_b=12)
    search = {"max_len_a": 1, "max_len_b": 20, "beam": 2}
    texts = documents.translate_documents([LINES, LINES[:1]], **search)
    assert list(map(len, texts)) == [4, 1]
    assert texts[1] == sentences.translate(LINES[:1], **search)


@pytest.mark.parametrize("origin", ["marian", "fairseq"])
@pytest.mark.parametrize("form", ["aligned", "full"])
def test_imported_models_translate_single_sentences_as_before(origin, form, tmp_path):
    path = tmp_path / "imported.safetensors"
    if origin == "marian":
        run_here("import_marian", COMPAT / "marian_files", "--output", path)
    else:
        file = COMPAT / "fairseq_files/pre_norm.pt"
        words = [file, "--data", COMPAT / "files/data-fairseq", "--output", path, "--trust-pickle"]
        run_here("import_fairseq", words)
    documents = document_model(path, tmp_path, **FORMS[form])
    assert_same(on_cpu(path), on_cpu(documents), LINES, max_len_b=12)


QUICK = "--arch transformer_tiny --cpu --max-tokens 64 --no-epoch-checkpoints --lr 1e-9"
ALIGNED = "--document-attention aligned --global-layers 1 --sentence-separator"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Documents of digits, and a sentence model with 16 learned positions."""
    folder = tmp_path_factory.mktemp("digits")
    for split, count in (("train", 20), ("valid", 4)):
        write_documents(folder, split, digit_documents(random.Random(0), count))
    preprocessed(folder, "data", document_separator="blank")
    flags = "--positions learned --max-source-positions 16 --max-target-positions 16"
    run_here("train", *command(folder, flags, folder / "sentences"))
    return folder


def command(folder, flags, out, updates=1):
    words = f"{folder}/data {QUICK} {flags} --max-update {updates} --save-dir {out}"
    return words.split()


def started(folder, flags):
    start = f"--finetune-from-model {folder}/sentences/checkpoint_last.safetensors"
    return f"--positions learned --max-target-positions 16 {start} {flags}"


@pytest.mark.parametrize(
    "form",
    [
        f"--max-source-positions 16 --doc-mixture 1,32 {ALIGNED}",
        "--max-source-positions 80 --max-target-positions 80 --max-doc-tokens 60",
        "--max-source-positions 80 --max-target-positions 80 --max-doc-tokens 60 "
        "--sentence-separator",
    ],
)
def test_the_first_update_translates_as_the_sentence_model(folder, tmp_path, form):
    run_here("train", *command(folder, started(folder, form), tmp_path))
    path = tmp_path / "checkpoint_last.safetensors"
    models = (folder / "sentences/checkpoint_last.safetensors", path)
    sentences, documents = map(on_cpu, models)
    assert_same(sentences, documents, ["1 2 3", "", "4 5"])
    # Commands read documents with it.
    text = tmp_path / "in.de"
    text.write_text("1 2 3\n4 5\n\n6 7\n")
    words = ["--path", path, "--cpu", "--max-len-b", "5"]
    assert run_here("translate_document", text, words).stdout.count("\n") == 4
    done = run_here("generate", folder / "data", "--gen-subset", "valid", words)
    assert "d-BLEU = " in done.stdout


def test_going_on_from_a_started_training_changes_no_bit(folder, tmp_path):
    flags = started(folder, f"--max-source-positions 16 --doc-mixture 1,32 {ALIGNED} --lr 1e-3")
    run_here("train", *command(folder, flags, tmp_path / "whole", 6))
    for last in (2, 6):
        run_here("train", *command(folder, flags, tmp_path / "parts", last))
    assert_same_tensors(tensors(tmp_path / "whole"), tensors(tmp_path / "parts"))


def test_an_imported_model_starts_documents(tmp_path):
    path = tmp_path / "imported.safetensors"
    data = COMPAT / "files/data-fairseq"
    words = [COMPAT / "fairseq_files/pre_norm.pt", "--data", data, "--trust-pickle"]
    run_here("import_fairseq", words, "--output", path)
    flags = f"{data} --cpu --config {path} --finetune-from-model {path} --max-tokens 300 --lr 1e-9"
    flags += f" {ALIGNED} --max-doc-tokens 1 --max-update 1 --no-epoch-checkpoints"
    run_here("train", flags.split(), "--disable-validation", "--save-dir", tmp_path)
    documents = on_cpu(tmp_path / "checkpoint_last.safetensors")
    assert_same(on_cpu(path), documents, LINES, max_len_b=12)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (
            f"--max-source-positions 8 --max-doc-tokens 32 {ALIGNED}",
            "has a sentence that is longer than the positions of the model",
        ),
        (
            "--max-source-positions 16 --max-doc-tokens 60",
            "more), but the model can take 16 (--max-source-positions",
        ),
        (f"--max-source-positions 12 {ALIGNED} --max-doc-tokens 16", "does not fit the model"),
    ],
)
def test_what_does_not_fit_is_one_line_with_a_remedy(folder, tmp_path, form, message):
    done = run_here("train", *command(folder, started(folder, form), tmp_path), check=False)
    assert_refused(done, message)


def test_longer_tables_of_positions_repeat_the_shorter_ones(tmp_path):
    path = tmp_path / "sentences.safetensors"
    save_tiny_model(path, tiny_task(WORDS), **KINDS["learned"])
    longer = document_model(path, tmp_path, max_source_positions=20)
    name = "encoder.embedding.positions.weight"
    before = load_checkpoint(path).model_tensors[name]
    after = load_checkpoint(longer).model_tensors[name]
    assert torch.equal(after, before[torch.arange(20) % 9])


def test_the_separator_comes_behind_all_symbols_and_cannot_be_chosen(tmp_path):
    path = tmp_path / "sentences.safetensors"
    save_tiny_model(path, tiny_task([*WORDS, "madeupword0000"]), output_bias=True)
    model, task, _ = load_model(document_model(path, tmp_path, **FORMS["aligned"]))
    separator = len(WORDS) + 5
    words = task.target_dictionary
    assert words.index(SENTENCE_SEPARATOR) == separator == len(words) - 1
    assert task.separators == (separator, separator, False)
    for name, tensor in model.state_dict().items():
        if len(tensor) == len(words):
            assert torch.equal(tensor[separator], tensor[2]), name
    # Even a large bias of the separator does not bring it into a single sentence.
    translator = Translator.from_checkpoint(tmp_path / "documents.safetensors", "cpu")
    with torch.no_grad():
        translator.models[0].output_projection.bias[separator] = 9.0
    assert "<sep>" not in translator.translate_nbest(["a b"], **SEARCH)[0][0].tokens
    [translations] = translator.translate_documents([["a b", "", "c"]], max_len_b=5)
    assert len(translations) == 3
