import json

import numpy as np
import pytest
import torch

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.evaluation.contrasts import Contrast, accuracies, contrast_scores, read_contrasts
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.task import TranslationTask
from relu_nmt.translator import Translator
from tests.outputs import values
from tests.tiny import as_text, tiny_config

WORDS = Dictionary(
    ["it", "is", "red", "here", "a", "hat", "er", "es", "rot", "ist", "ein", "Hut", "hier"]
)
CONTRASTS = [
    Contrast(
        "en",
        "it is red",
        "er ist rot",
        ("es ist rot", "es ist rot hier"),
        ("here is a hat", "a hat"),
        ("hier ist ein Hut", "ein Hut"),
    ),
    Contrast("en", "a hat", "ein Hut", ("Hut",), ("red",), ("rot",)),
]


class Separating(TextPipeline):
    """Ends every sentence with a token, as models of documents may want it."""

    def encode(self, raw):
        return [*super().encode(raw), "hier"]


@pytest.fixture(scope="module")
def translator():
    torch.manual_seed(0)
    config = tiny_config(attention="reluformer")
    model = EncoderDecoder(config, len(WORDS), len(WORDS), pad_index=1).eval()
    task = TranslationTask(TextPipeline("en"), TextPipeline("de"), WORDS, WORDS)
    return Translator([model], task, "cpu")


@torch.no_grad()
def log_prob(model, source, before, target):
    """Return log p(target | before, source) by one plain forward pass."""
    src = torch.tensor(WORDS.encode(source.split()))[None]
    tgt = torch.tensor(WORDS.encode(f"{before} {target}".split()))
    inputs = torch.cat([torch.tensor([WORDS.eos_index]), tgt[:-1]])[None]
    log_probs = model.logits(model(src, inputs))[0].double().log_softmax(-1)
    chosen = log_probs.gather(1, tgt[:, None])[:, 0]
    return float(chosen[len(before.split()) :].sum())


def scores_of(translator, contrasts, context=None, on_progress=None):
    generator = translator.generator(GenerationConfig(score_reference=True))
    return contrast_scores(translator.task, generator, contrasts, context, on_progress)


@pytest.mark.parametrize("context", [None, 0, 1, 2, 9])
def test_only_the_tokens_after_the_context_are_scored(translator, context):
    [model] = translator.models
    for contrast, scores in zip(CONTRASTS, scores_of(translator, CONTRASTS, context), strict=True):
        first = {None: 0, 0: None, 1: -1, 2: -2, 9: 0}[context]
        source_context = " ".join([] if first is None else contrast.source_context[first:])
        reference_context = " ".join([] if first is None else contrast.reference_context[first:])
        source = f"{source_context} {contrast.source}"
        expected = [
            log_prob(model, source, reference_context, target)
            for target in (contrast.reference, *contrast.contrasts)
        ]
        np.testing.assert_allclose(scores, expected, atol=1e-4)


def test_context_changes_scores_and_progress_is_reported(translator):
    done = []
    with_context = scores_of(translator, CONTRASTS, on_progress=done.append)
    without = scores_of(translator, CONTRASTS, 0)
    assert sum(done) == 5
    assert not np.allclose(with_context[0], without[0], atol=1e-3)
    assert scores_of(translator, []) == []


def test_separators_of_the_model_stand_between_the_sentences(translator):
    [model] = translator.models
    task = TranslationTask(Separating("en"), Separating("de"), WORDS, WORDS)
    [scores] = scores_of(Translator([model], task, "cpu"), CONTRASTS[1:])
    expected = [
        log_prob(model, "red hier a hat hier", "rot hier", f"{text} hier")
        for text in ("ein Hut", "Hut")
    ]
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    assert not np.allclose(scores, scores_of(translator, CONTRASTS[1:])[0], atol=1e-3)


def test_scores_that_are_not_finite_are_an_error():
    model = EncoderDecoder(tiny_config(), len(WORDS), len(WORDS), pad_index=1).eval()
    with torch.no_grad():
        model.output_projection.weight.fill_(float("nan"))
    task = TranslationTask(TextPipeline("en"), TextPipeline("de"), WORDS, WORDS)
    with pytest.raises(ConfigError, match="not finite"):
        scores_of(Translator([model], task, "cpu"), CONTRASTS)


RECORD = {
    "document": "1/7",
    "sentence": 1,
    "antecedent": 0,
    "distance": 1,
    "phenomenon": "thing pronoun",
    "source_language": "en",
    "source": "It is red.",
    "reference": "Er ist rot.",
    "contrasts": ["Es ist rot.", "Sie ist rot."],
    "source_context": ["Here is a hat."],
    "reference_context": ["Hier ist ein Hut."],
}


def written(path, *records):
    lines = [r if isinstance(r, str) else json.dumps(r, ensure_ascii=False) for r in records]
    path.write_text(as_text(lines), encoding="utf-8")
    return path


def test_contrasts_are_read_with_and_without_their_optional_fields(tmp_path):
    bare = {**RECORD}
    del bare["phenomenon"], bare["distance"]
    first, second = read_contrasts(written(tmp_path / "c.jsonl", RECORD, "", bare))
    assert first == Contrast(
        "en",
        "It is red.",
        "Er ist rot.",
        ("Es ist rot.", "Sie ist rot."),
        ("Here is a hat.",),
        ("Hier ist ein Hut.",),
        "thing pronoun",
        1,
    )
    assert (second.phenomenon, second.distance) == ("", None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": None}, "contrast 'source': expected text, found None"),
        ({"reference": 3}, "'reference': expected text, found 3"),
        ({"contrasts": "Es ist rot."}, "'contrasts': expected a list, found 'Es ist rot.'"),
        ({"contrasts": []}, "'contrasts' is empty"),
        ({"contrasts": ["Er ist rot."]}, "the reference is one of the contrasts"),
        ({"source_context": [1]}, "'source_context' 0: expected text, found 1"),
        ({"reference_context": []}, "1 sentence in 'source_context', but 0"),
        ({"distance": "near"}, "'distance': expected a whole number, found 'near'"),
    ],
)
def test_an_error_names_the_line_of_a_wrong_record(tmp_path, change, message):
    path = written(tmp_path / "c.jsonl", RECORD, {**RECORD, **change})
    with pytest.raises(DataError, match=f"c.jsonl:2: .*{message}"):
        read_contrasts(path)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"c\.jsonl:1: Expecting value.*expected a JSON object"):
        read_contrasts(written(tmp_path / "c.jsonl", "It is red."))
    with pytest.raises(DataError, match=r"c\.jsonl:1: contrast: expected a table, found \[1\]"):
        read_contrasts(written(tmp_path / "c.jsonl", "[1]"))
    with pytest.raises(DataError, match="no contrasts"):
        read_contrasts(written(tmp_path / "c.jsonl"))
    with pytest.raises(DataError, match="cannot read"):
        read_contrasts(tmp_path / "none.jsonl")


def test_accuracies_are_given_for_all_and_by_category():
    def contrast(phenomenon, distance, number):
        wrong = tuple(map("w{}".format, range(number)))
        return Contrast("en", "s", "r", wrong, phenomenon=phenomenon, distance=distance)

    contrasts = [contrast("pronoun", 1, 2), contrast("pronoun", 2, 1), contrast("address", 1, 1)]
    records = accuracies(contrasts, [True, False, True])
    names = ["all", "address", "pronoun", "distance 1", "distance 2"]
    assert values(records, "category") == names
    assert values(records, "right") == [2, 1, 1, 2, 0]
    assert values(records, "contrasts") == [3, 1, 2, 2, 1]
    chances = [100 * 4 / 9, 50, 100 * 5 / 12, 100 * 5 / 12, 50]
    assert values(records, "chance") == pytest.approx(chances)
    assert values(records, "score") == pytest.approx([200 / 3, 100, 50, 100, 0])
