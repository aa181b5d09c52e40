"""The alignment of lines and words, against the weights of a pass over the whole translation."""

from dataclasses import replace

import numpy as np
import pytest

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.document_settings import WindowConfig
from relu_nmt.errors import ConfigError
from relu_nmt.jobs.translate.line_format import LineFormat
from relu_nmt.jobs.translate.settings import ModelOptions
from relu_nmt.modules.config import AttentionPlace
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translator import TranslationRequest, Translator
from relu_nmt.translator.spans import align_words, word_spans
from tests.tiny import tiny_model, tiny_task
from tests.unit.translator.models import cut, texts_of

pytestmark = pytest.mark.filterwarnings("ignore:.*reached the longest output")

DOCUMENT = ["ein Haus", "", "das Haus ist gross", "gross", "ein"]
ALIGNED = {"beam": 2, "max_len_a": 0, "max_len_b": 20, "print_alignment": "hard"}


def make_translator(separated=True, packed=False):
    task = tiny_task(["ein", "das", "Haus", "ist", "gross", "house", "is", "big", "a", "the"])
    if separated:
        task = task.with_sentence_separator()
    return Translator([tiny_model(task).eval()], task, "cpu", packed=packed)


def ranges_of(ids, separator):
    """Return the first and the last position, exclusive, of each sentence."""
    ends = np.flatnonzero(ids == separator)
    return list(zip([0, *(ends + 1)], ends, strict=False))


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("packed", [False, True])
def test_each_line_is_aligned_by_the_attention_over_its_window(packed, overlap):
    translator = make_translator(packed=packed)
    separators = translator.task.separators
    # Leave out the repair, which would translate line by line.
    request = TranslationRequest(DOCUMENT, windows=WindowConfig(12, overlap))
    sources = translator.sources.encode(request)
    translated = translator.translate_sources(sources, GenerationConfig(**ALIGNED))
    assert texts_of(translated[0].translations) == translated[0]
    num_checked = 0
    for result in translated.windows:
        source = result.source
        read_alone = (source.ids == separators.source).sum() == 1
        if read_alone or not result.divided:
            continue
        # Compute the weights again for the whole translation, context included.
        hypothesis = result.translations[0].hypothesis
        target = np.concatenate([source.context, hypothesis.ids])
        slot = AttentionPlace("cross", -1)
        weights = translator.attention_at(slot, source, target).weights.mean(0)
        # No token is aligned to the end of a sentence.
        weights[:, np.isin(source.ids, [separators.source, Dictionary.eos_index])] = -np.inf
        positions = weights.argmax(1)
        np.testing.assert_array_equal(hypothesis.alignment, positions[len(source.context) :])
        # Cut both sides at the separators, and compare sentence by sentence.
        lines = [line for line in result.lines if line.source_tokens]
        source_ranges = ranges_of(source.ids, separators.source)[-len(lines) :]
        target_ranges = ranges_of(np.append(target[:-1], separators.target), separators.target)
        for line, (begin, end), (first, last) in zip(
            lines, source_ranges, target_ranges[-len(lines) :], strict=True
        ):
            inside = positions[first:last] - begin
            inside[(inside < 0) | (inside > end - begin)] = -1
            np.testing.assert_array_equal(line.alignment[: last - first], inside)
            num_checked += 1
    assert num_checked >= 2


def test_words_align_as_their_tokens_do():
    translator = make_translator(separated=False)
    lines = ["das Haus  ist gross", ""]
    request = TranslationRequest(lines)
    [translated] = translator.translate_request(request, **ALIGNED)
    [line, blank] = translated.translations
    words = translator.align_words(lines[0], line)
    assert cut(lines[0], words.source) == lines[0].split()
    assert cut(line.text, words.target) == line.text.split()
    assert words.links == sorted((source, i) for i, source in enumerate(line.alignment.tolist()))
    assert translator.align_words("", blank).links == []


def test_tokens_without_attention_have_no_links_and_no_printed_pairs():
    translator = make_translator(separated=False)
    [translated] = translator.translate_request(TranslationRequest(["das Haus"]), **ALIGNED)
    [line] = translated.translations
    alignment = np.full(len(line.hypothesis.ids), -1)
    alignment[1] = 0
    line = replace(line, hypothesis=replace(line.hypothesis, alignment=alignment))
    words = translator.align_words("das Haus", line)
    assert [target for _, target in words.links] == [1]
    config = GenerationConfig(**ALIGNED)
    line_format = LineFormat(translator.task, ModelOptions(path="model"), config)
    assert line_format.hypothesis(7, line)[-1] == "A-7\t0-1"


def test_words_without_alignment_are_an_error():
    translator = make_translator()
    [line] = translator.translate(["ein"], max_len_b=3).translations
    with pytest.raises(ConfigError, match="print_alignment"):
        translator.align_words("ein", line)


@pytest.mark.parametrize(
    ("text", "tokens", "expected"),
    [
        ("I don't, well-known!", [], ["I", "don't", ",", "well-known", "!"]),
        ("e\u0301t\u00ade\u200d x", [], ["e\u0301t\u00ade\u200d", "x"]),
        ("हिन्दी में", [], ["हिन्दी", "में"]),
        ("你好吗。", [(0, 2), (2, 3), (3, 4)], ["你好", "吗", "。"]),
        ("Hausboot", [(0, 4), (4, 8)], ["Hausboot"]),
        (" \t", [], []),
    ],
)
def test_words_are_runs_of_letters_or_single_characters(text, tokens, expected):
    assert cut(text, word_spans(text, tokens)) == expected


def test_all_tokens_of_a_word_count_for_its_links():
    source = "Haus boot", [(0, 2), (2, 4), (5, 9)]
    target = "houseboat", [(0, 5), (5, 9)]
    words = align_words(source, target, np.array([1, 2]))
    assert words.links == [(0, 0), (1, 0)]
    assert align_words(source, target, np.array([-1, 3])).links == []
