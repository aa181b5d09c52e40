"""relu-nmt-convert: other programs compute the same as the model."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from relu_nmt.attention import attentions
from relu_nmt.config.registry import Spec
from relu_nmt.data.translation_batches import collate
from relu_nmt.errors import CheckpointError
from relu_nmt.training.checkpoint import load_checkpoint
from relu_nmt.translation.building import build_model, load_model
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.translations import SourceSentence
from relu_nmt.translator import TranslationRequest, Translator
from relu_nmt.vision.loading import ImageClassifier
from tests.commands import assert_refused, run_here
from tests.tiny import tiny_model

CHECKPOINTS = Path(__file__).parents[1] / "compat" / "files" / "checkpoints"
LINES = ["drei , acht und zwölf .", "elf .", "fünf und xyz , Sieben !"]
TARGETS = ["three , eight and twelve .", "eleven", "five and xyz , seven !"]


def converted(name, output, *flags, check=True):
    path = CHECKPOINTS / f"{name}.safetensors"
    return run_here("convert", path, "--output", output, flags, check=check)


def encoded(translator, lines):
    return translator.sources.encode(TranslationRequest(lines)).sentences


def scored(translator):
    """Return the sources, and each target's tokens with </s> and their log-probabilities."""
    task = translator.task
    sources = []
    for source, target in zip(encoded(translator, LINES), TARGETS, strict=True):
        sources.append(SourceSentence(source.ids, source.tokens, task.encode_target(target)))
    translations = translator.window_translator(GenerationConfig(score_reference=True))(sources)
    return sources, [nbest[0].hypothesis.positional_scores for nbest in translations]


def test_a_conversion_gives_the_same_bytes_each_time(tmp_path):
    contents = set()
    for number in range(3):
        converted("softmax", tmp_path / f"{number}.safetensors")
        contents.add((tmp_path / f"{number}.safetensors").read_bytes())
    assert len(contents) == 1


def test_a_checkpoint_for_decoding_alone_is_smaller_and_translates_the_same(tmp_path):
    path = CHECKPOINTS / "softmax.safetensors"
    small = tmp_path / "small.safetensors"
    done = converted("softmax", small)
    assert done.stdout == f"written: {small} ({small.stat().st_size:,} bytes)\n"
    assert small.stat().st_size < path.stat().st_size / 2
    small_file = load_checkpoint(small, with_training_state=True)
    assert not small_file.training_tensors and "training_state" not in small_file.metadata
    expected = Translator.from_checkpoint(path, "cpu").translate(LINES)
    assert Translator.from_checkpoint(small, "cpu").translate(LINES) == expected


@pytest.mark.parametrize("name", ["softmax", "learned"])
def test_ctranslate2_computes_the_same(name, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    converted(name, tmp_path / "out", "--to", "ctranslate2")
    translator = Translator.from_checkpoint(CHECKPOINTS / f"{name}.safetensors", "cpu")
    other = ctranslate2.Translator(str(tmp_path / "out"), compute_type="float32")
    sources, scores = scored(translator)
    tokens = [source.tokens for source in sources]
    targets = list(map(translator.task.target_text.encode, TARGETS))
    for result, expected in zip(other.score_batch(tokens, targets), scores, strict=True):
        np.testing.assert_allclose(result.log_probs, expected, atol=1e-5)
    best = translator.window_translator(GenerationConfig(beam=1, max_len_b=20))(sources)
    results = other.translate_batch(tokens, beam_size=1, max_decoding_length=20)
    for result, expected in zip(results, best, strict=True):
        assert result.hypotheses[0] == expected[0].tokens


@pytest.mark.parametrize("chosen", [{}, {"alignment_layer": 0, "alignment_heads": 1}])
def test_ctranslate2_aligns_the_same(chosen, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    from relu_nmt.applications.conversion.exports import save_ctranslate2

    path = CHECKPOINTS / "softmax.safetensors"
    (tmp_path / "out").mkdir()
    save_ctranslate2(*load_model(path, chosen)[:2], tmp_path / "out")
    translator = Translator.from_checkpoint(path, "cpu", model_overrides=chosen)
    sources = encoded(translator, LINES)
    search = GenerationConfig(beam=1, max_len_b=20, print_alignment="hard")
    best = translator.window_translator(search)(sources)
    other = ctranslate2.Translator(str(tmp_path / "out"), compute_type="float32")
    results = other.translate_batch(
        [s.tokens for s in sources], beam_size=1, max_decoding_length=20, return_attention=True
    )
    for theirs, nbest in zip(results, best, strict=True):
        positions = np.array(theirs.attention[0]).argmax(1)
        assert positions.tolist() == nbest[0].hypothesis.alignment[: len(positions)].tolist()


@pytest.mark.parametrize(
    ("name", "what"), [("reluformer", "attention reluformer"), ("soft", "attention soft")]
)
def test_the_error_names_the_part_that_ctranslate2_lacks(name, what, tmp_path):
    pytest.importorskip("ctranslate2")
    done = converted(name, tmp_path / "out", "--to", "ctranslate2", check=False)
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert f"CTranslate2 has no {what}" in done.stderr


def test_an_existing_output_is_not_overwritten(tmp_path):
    assert_refused(converted("softmax", tmp_path, "--to", "onnx", check=False), "is there already")
    done = converted("softmax", tmp_path / "model.pt", check=False)
    assert_refused(done, "ending in .safetensors")


def onnx_scores(folder, sources):
    """Return the log-probabilities of references, by the two graphs."""
    runtime = pytest.importorskip("onnxruntime")
    encoder = runtime.InferenceSession(folder / "encoder.onnx")
    decoder = runtime.InferenceSession(folder / "decoder.onnx")
    batch = collate([(source.ids, source.reference) for source in sources], range(len(sources)))
    src_tokens = batch.src_tokens.numpy()
    [states] = encoder.run(None, {"src_tokens": src_tokens})
    inputs = {"prev_output_tokens": batch.prev_output_tokens.numpy(), "encoder_states": states}
    [logits] = decoder.run(None, {**inputs, "src_tokens": src_tokens})
    log_probs = torch.from_numpy(logits).log_softmax(-1)
    chosen = log_probs.gather(2, batch.tgt_tokens[:, :, None])[:, :, 0].numpy()
    return [row[: len(s.reference)] for row, s in zip(chosen, sources, strict=True)]


@pytest.mark.slow
def test_onnx_graphs_compute_the_same(tmp_path):
    pytest.importorskip("onnxscript")
    converted("reluformer", tmp_path / "out", "--to", "onnx")
    translator = Translator.from_checkpoint(CHECKPOINTS / "reluformer.safetensors", "cpu")
    sources, scores = scored(translator)
    for result, expected in zip(onnx_scores(tmp_path / "out", sources), scores, strict=True):
        np.testing.assert_allclose(result, expected, atol=1e-4)
    [single] = onnx_scores(tmp_path / "out", sources[1:2])
    np.testing.assert_allclose(single, scores[1], atol=1e-4)
    config = json.loads((tmp_path / "out" / "config.json").read_text("utf-8"))
    assert config["target_symbols"][:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert len(config["source_symbols"]) == len(translator.task.source_dictionary)


POINTWISE = "pointwise:h=relu2,alpha=0.5,gate=silu"
POLYNOMIAL = "polynomial:power=3,scale=dynamic,per_head=true"
SLOTS = [
    ("cosformer", "cosformer", "linear", "sinusoidal"),
    ("sima", "rela:gated=true", "entmax", "learned"),
    ("xca", "sparsemax", "linformer", "sinusoidal"),
    ("nystromformer:landmarks=8", POLYNOMIAL, "efficient", "sinusoidal"),
    ("soft:stride=3", "performer", "performer:kernel=relu", "sinusoidal"),
    ("entmax15", POINTWISE, "rela", "t5"),
    ("softmax", "thresholded_relu", "thresholded_relu", "sinusoidal"),
]


def small_model(**settings):
    """Return a model of one layer, and its task."""
    task = Translator.from_checkpoint(CHECKPOINTS / "softmax.safetensors", "cpu").task
    return tiny_model(task, 0, {"ffn_embed_dim": 24}, **settings).eval(), task


def compare_at_all_lengths(model, task, folder):
    from relu_nmt.applications.conversion.exports import save_onnx

    save_onnx(model, task, folder)
    # Choose lengths with special cases in the model: longer than a chunk, and one token.
    for lengths in [((6, 5), (3, 2)), ((1, 1),), ((150, 130), (90, 70)), ((2, 90),)]:
        sources = []
        for length, reference_length in lengths:
            ids = torch.randint(4, 9, (length - 1,)).tolist()
            reference = torch.randint(4, 9, (reference_length - 1,)).tolist()
            sources.append(SourceSentence(np.array([*ids, 2]), [], np.array([*reference, 2])))
        translator = Translator([model], task, "cpu")
        translations = translator.window_translator(GenerationConfig(score_reference=True))(sources)
        expected = [best.hypothesis.positional_scores for [best] in translations]
        for translations, scores in zip(onnx_scores(folder, sources), expected, strict=True):
            np.testing.assert_allclose(translations, scores, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("encoder", "decoder", "cross", "positions"), SLOTS)
def test_graphs_compute_the_same_at_all_lengths(encoder, decoder, cross, positions, tmp_path):
    pytest.importorskip("onnxscript")
    slots = {"encoder_attention": encoder, "decoder_attention": decoder, "cross_attention": cross}
    model, task = small_model(positions=positions, **slots)
    if positions == "t5":
        for half in (model.encoder, model.decoder):
            torch.nn.init.normal_(half.embedding.positions.weight)  # it starts at zero
    compare_at_all_lengths(model, task, tmp_path)


def test_settings_of_graphs_name_the_symbols_that_begin_source_and_target(tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")
    from relu_nmt.applications.conversion import exports

    monkeypatch.setattr(exports, "_export", lambda *_: None)
    model, task = small_model()
    for code in (None, ">>fra<<"):
        text = replace(task.source_text, first_symbol=code)
        exports.save_onnx(model, replace(task, source_text=text), tmp_path)
        config = json.loads((tmp_path / "config.json").read_text("utf-8"))
        assert (config["source_first_symbol"], config["target_first_symbol"]) == (code, None)


def test_every_attention_is_compared():
    compared = {"reluformer", "softmax"}  # a whole model and an image classifier have these
    for *specs, _ in SLOTS:
        for text in specs:
            compared.add(Spec.parse(text).name)
    assert compared >= set(filter(attentions.is_built_in, attentions.names()))


def test_an_attention_of_ones_own_is_refused(tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")
    from relu_nmt.applications.conversion.exports import save_onnx

    monkeypatch.setattr(attentions, "is_built_in", lambda name: name != "soft")
    task = Translator.from_checkpoint(CHECKPOINTS / "softmax.safetensors", "cpu").task
    config = TransformerConfig(encoder_layers=1, decoder_layers=1, encoder_attention="soft")
    with pytest.raises(CheckpointError, match=r"attention soft \(encoder\): one of your own"):
        save_onnx(build_model(config, task), task, tmp_path)


@pytest.mark.slow
def test_an_image_classifier_is_one_graph(tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    converted("vit-class", tmp_path / "out", "--to", "onnx")
    classifier = ImageClassifier.from_checkpoint(CHECKPOINTS / "vit-class.safetensors", "cpu")
    images = torch.sin(torch.arange(3 * 3 * 8 * 8) ** 1.5).view(3, 3, 8, 8)
    session = runtime.InferenceSession(tmp_path / "out" / "model.onnx")
    [logits] = session.run(None, {"images": images.numpy()})
    np.testing.assert_allclose(logits, classifier.outputs(images).logits, atol=1e-4)
    config = json.loads((tmp_path / "out" / "config.json").read_text("utf-8"))
    assert (tuple(config["classes"]), config["size"]) == (classifier.classes, [8, 8])


def test_a_model_that_no_graph_can_express_is_refused(tmp_path):
    pytest.importorskip("onnxscript")
    task = Translator.from_checkpoint(CHECKPOINTS / "documents.safetensors", "cpu").task
    config = TransformerConfig(
        encoder_layers=1, decoder_layers=1, document_attention="aligned", global_layers=1
    )
    from relu_nmt.applications.conversion.exports import save_onnx

    with pytest.raises(CheckpointError, match="--document-attention aligned"):
        save_onnx(build_model(config, task), task, tmp_path)


@pytest.mark.parametrize(
    ("form", "package"), [("onnx", "onnxscript"), ("ctranslate2", "ctranslate2")]
)
def test_a_full_disk_is_an_error(form, package, tmp_path, monkeypatch):
    module = pytest.importorskip(package)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if form == "onnx":
        program = SimpleNamespace(save=full)  # exporting takes seconds
        monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: program)
    else:
        monkeypatch.setattr(module.specs.TransformerSpec, "save", full)
    done = converted("softmax", tmp_path / "out", "--to", form, check=False)
    assert_refused(done, f"--output {tmp_path / 'out'}: cannot write it: No space left on device")
    assert list(tmp_path.iterdir()) == []
