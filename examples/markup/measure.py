"""Tags of translations and of references, placed by a model's attention or by position, and F1."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import sacrebleu
from aligner import best_sources
from corpus import Pair
from tagged_text import TaggedText

from relu_nmt.applications.files import FileOptions, translated
from relu_nmt.applications.files.aligned_words import AlignedText, proportional_links, word_spans
from relu_nmt.applications.files.segments import Segment
from relu_nmt.applications.files.sentences import SegmentTranslator, TranslateSegments
from relu_nmt.errors import DataError
from relu_nmt.io.progress import hidden_progress
from relu_nmt.modules.config import AttentionPlace
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.translations import Hypothesis, Translation
from relu_nmt.translator import Translator
from relu_nmt.translator.attention_maps import attention_weights

AGREEMENT = 0.75
"""Least F1 of the words of a translation and its reference for a comparison of their tags."""
BEGIN = "<p>"
END = "</p>"
LITERAL = "span.literal"
CODE = "code"
Scores = dict[str, float]


@dataclasses.dataclass
class Layers:
    """Weights of the cross-attention of all layers while the references are forced.

    Attributes:
        weights: for each pair, float32 [L, H, T, S], without the end of the source.
    """

    translator: Translator
    pairs: Sequence[Pair]
    weights: list[np.ndarray]

    @classmethod
    def of(cls, translator: Translator, pairs: Sequence[Pair]) -> "Layers":
        """Run one forward pass for each pair."""
        weights = []
        layers = []
        for layer in range(num_layers(translator)):
            layers.append(AttentionPlace("cross", layer))
        for source, target in pairs:
            ids = translator.sources.sentence(source.text).ids
            target_ids = translator.task.encode_target(target.text)
            by_layer = attention_weights(translator.ensemble, layers, ids, target_ids)
            weights.append(np.stack(by_layer)[..., :-1])
        return cls(translator, pairs, weights)

    def translations(self, layer: int, heads: slice = slice(None)) -> list[AlignedText]:
        """Return the references with links by the mean of some heads of a layer."""
        translator = self.translator
        translations = []
        for (source, target), weights in zip(self.pairs, self.weights, strict=True):
            mean = weights[layer, heads].mean(0)
            alignment = np.where(mean.any(-1), mean.argmax(-1), -1)
            source_tokens = translator.task.source_text.encode(source.text)
            tokens = translator.task.target_text.encode(target.text)
            scores = np.zeros(len(alignment), dtype=np.float32)
            ids = translator.task.encode_target(target.text)
            hypothesis = Hypothesis(ids, 0.0, scores, alignment)
            forced = Translation(target.text, tokens, hypothesis, source_tokens)
            words = translator.align_words(source.text, forced)
            links = [(words.source[i], words.target[j]) for i, j in words.links]
            translations.append(AlignedText(target.text, links))
        return translations

    def null_rows(self) -> float:
        """Return the share of rows without any weight, of all layers and heads, in percent."""
        num_empty = 0
        num_rows = 0
        for weights in self.weights:
            sums = weights.sum(-1)
            num_empty += int((sums == 0).sum())
            num_rows += sums.size
        return 100 * num_empty / num_rows


def sources_of(pairs: Sequence[Pair]) -> list[TaggedText]:
    """Return the sources of pairs."""
    return [source for source, _ in pairs]


def targets_of(pairs: Sequence[Pair]) -> list[TaggedText]:
    """Return the targets of pairs."""
    return [target for _, target in pairs]


def texts_of(tagged_texts: Sequence[TaggedText]) -> list[str]:
    """Return texts without their tags."""
    return [tagged.text for tagged in tagged_texts]


def model_of(translator: Translator) -> EncoderDecoder:
    """Return the only model of a translator."""
    [model] = translator.models
    assert isinstance(model, EncoderDecoder)
    return model


def num_layers(translator: Translator) -> int:
    """Return the number of layers of the decoder."""
    return len(model_of(translator).decoder.layers)


def aligning_heads(translator: Translator) -> tuple[int, slice]:
    """Return the layer and the heads whose weights place the tags of files."""
    config = model_of(translator).decoder.config
    layer = config.alignment_layer
    return (-1 if layer is None else layer), slice(config.alignment_heads)


# ------------------------------------------------------------------------- placed tags


def place(pairs: Sequence[Pair], translate: TranslateSegments) -> list[TaggedText]:
    """Return the translations of the sources, paragraphs of a web page, with their tags.

    Raises:
        DataError: a source is no single paragraph.
    """

    def translate_all(segments: Sequence[Segment]) -> list[AlignedText]:
        if len(segments) != len(pairs):
            raise DataError("a line of the corpus has a tag between paragraphs, or no words")
        return translate(segments)

    page = "\n".join(f"{BEGIN}{source.markup()}{END}" for source, _ in pairs)
    written = translated(page.encode(), "html", translate_all, FileOptions()).decode()
    texts = []
    for line in written.split("\n"):
        texts.append(TaggedText.of_markup(line[len(BEGIN) : -len(END)]))
    return texts


def place_known(pairs: Sequence[Pair], translations: Sequence[AlignedText]) -> list[TaggedText]:
    """Return known translations of the sources with the tags that their links place."""
    return place(pairs, lambda segments: list(translations))


def translate(translator: Translator, pairs: Sequence[Pair], beam: int) -> list[TaggedText]:
    """Return the translation of each source by a model, with its tags."""
    with hidden_progress():
        return place(pairs, SegmentTranslator(translator, search_config(beam)))


def search_config(beam: int) -> GenerationConfig:
    """Return settings of a search that ends in time with any model."""
    return GenerationConfig(beam=beam, max_len_a=1.2, max_len_b=10)


def with_code(text: TaggedText) -> TaggedText:
    """Return a text with its literals as code, which is protected."""
    tags = []
    for tag in text.tags:
        tags.append(dataclasses.replace(tag, name=CODE) if tag.name == LITERAL else tag)
    return dataclasses.replace(text, tags=tuple(tags))


def by_position(pairs: Sequence[Pair], texts: Sequence[str]) -> list[AlignedText]:
    """Return translations with links by position."""
    translations = []
    for (source, _), text in zip(pairs, texts, strict=True):
        translations.append(AlignedText(text, proportional_links(source.text, text)))
    return translations


def by_aligner(pairs: Sequence[Pair], text: Sequence[Pair]) -> list[AlignedText]:
    """Return the references with links by a statistical alignment of these pairs and a text."""
    numbers: dict[str, int] = {}
    sides: list[list[np.ndarray]] = [[], []]
    for pair in [*pairs, *text]:
        for side, ids_of_side in zip(pair, sides, strict=True):
            ids = []
            for word in words_of(side.text):
                ids.append(numbers.setdefault(word, len(numbers)))
            ids_of_side.append(np.array(ids, dtype=np.int64))
    translations = []
    for (source, target), sources in zip(pairs, best_sources(sides[0], sides[1]), strict=False):
        source_spans = word_spans(source.text)
        links = []
        for span, number in zip(word_spans(target.text), sources.tolist(), strict=True):
            if number >= 0:
                links.append((source_spans[number], span))
        translations.append(AlignedText(target.text, links))
    return translations


# ------------------------------------------------------------------------- scores


def is_sound(source: TaggedText, placed: TaggedText) -> bool:
    """Return True if all tags are there and well nested. A span may have become several."""
    names = source.names()
    written = placed.names()
    if not placed.is_nested or names.keys() != written.keys():
        return False
    for name, count in names.items():
        may_repeat = name.startswith("span")
        if written[name] < count or (written[name] > count and not may_repeat):
            return False
    return True


def cuts_word(placed: TaggedText) -> bool:
    """Return True if a tag stands within a word."""
    inside_words: set[int] = set()
    for begin, end in word_spans(placed.text):
        inside_words.update(range(begin + 1, end))
    return any(tag.begin in inside_words or tag.end in inside_words for tag in placed.tags)


def words_of(text: str) -> list[str]:
    """Return the words and marks of a text in small letters."""
    return [text[begin:end].lower() for begin, end in word_spans(text)]


def words_under_tags(text: TaggedText, by_number: bool) -> dict[str, Counter[Any]]:
    """Return the words under the tags of each name: their numbers, or the words themselves."""
    spans = word_spans(text.text)
    words = words_of(text.text)
    under_tags: dict[str, Counter[Any]] = {}
    for name in text.names():
        tags = [tag for tag in text.tags if tag.name == name]
        counts: Counter[Any] = Counter()
        for number, (begin, end) in enumerate(spans):
            if any(tag.begin <= begin and end <= tag.end for tag in tags):
                counts[number if by_number else words[number]] += 1
        under_tags[name] = counts
    return under_tags


def f1(words: Counter[Any], expected: Counter[Any]) -> float:
    """Return the harmonic mean of precision and recall of words, 0 to 1."""
    total = words.total() + expected.total()
    return 2 * (words & expected).total() / total if total else 1.0


def agreement(text: str, reference: str) -> float:
    """Return F1 of all words of a text."""
    return f1(Counter(words_of(text)), Counter(words_of(reference)))


def tag_scores(placed: Sequence[TaggedText], pairs: Sequence[Pair], by_number: bool) -> Scores:
    """Return F1 of the words under each tag, and the share of tags with exact words, in percent."""
    scores = []
    for text, (_, reference) in zip(placed, pairs, strict=True):
        words = words_under_tags(text, by_number)
        for name, expected in words_under_tags(reference, by_number).items():
            scores.append(f1(words.get(name, Counter()), expected))
    exact = scores.count(1)
    count = max(1, len(scores))
    return {"tags": len(scores), "f1": 100 * sum(scores) / count, "exact": 100 * exact / count}


def texts_under(text: TaggedText, name: str) -> Counter[str]:
    """Return the texts under the tags of a name."""
    return Counter(text.text[tag.begin : tag.end] for tag in text.tags if tag.name == name)


def protected_scores(translator: Translator, pairs: Sequence[Pair], beam: int) -> Scores:
    """Return how many literals, as code, are copied, and BLEU of their sentences.

    ``copied`` is the number of literals that the model did not write. ``forced bleu`` is BLEU if
    they are no code, but the search is forced to write them.
    """
    pairs = [pair for pair in pairs if LITERAL in pair[0].names()]
    protected_pairs = [(with_code(source), target) for source, target in pairs]
    literals = [texts_under(source, LITERAL) for source, _ in pairs]
    glossary = {text: text for counts in literals for text in counts}
    copying = SegmentTranslator(translator, search_config(beam))
    forcing = SegmentTranslator(translator, search_config(beam), glossary=glossary)
    with hidden_progress():
        copied = place(protected_pairs, copying)
        forced = place(pairs, forcing)
    references = [texts_of(targets_of(pairs))]
    return {
        "segments": len(pairs),
        "texts": sum(map(Counter.total, literals)),
        "copied": copying.num_copied,
        "bleu": sacrebleu.corpus_bleu(texts_of(copied), references).score,
        "forced bleu": sacrebleu.corpus_bleu(texts_of(forced), references).score,
    }


def forced_scores(placed: Sequence[TaggedText], pairs: Sequence[Pair]) -> Scores:
    """Return the scores of tags placed on the references."""
    equal_texts = []
    pairs_of_texts = []
    for text, pair in zip(placed, pairs, strict=True):
        # A protected text of the source that the reference lacks would move the words.
        if text.text == pair[1].text:
            equal_texts.append(text)
            pairs_of_texts.append(pair)
    scores = tag_scores(equal_texts, pairs_of_texts, by_number=True)
    return {"segments": len(equal_texts), **scores}


def translation_scores(placed: Sequence[TaggedText], pairs: Sequence[Pair]) -> Scores:
    """Return the scores of translations: soundness, tags where the words agree, and BLEU."""
    num_sound = 0
    agreeing_texts = []
    pairs_of_texts = []
    for text, pair in zip(placed, pairs, strict=True):
        num_sound += is_sound(pair[0], text)
        if agreement(text.text, pair[1].text) >= AGREEMENT:
            agreeing_texts.append(text)
            pairs_of_texts.append(pair)
    tags = tag_scores(agreeing_texts, pairs_of_texts, by_number=False)
    bleu = sacrebleu.corpus_bleu(texts_of(placed), [texts_of(targets_of(pairs))])
    return {
        "segments": len(pairs),
        "sound": 100 * num_sound / max(1, len(pairs)),
        "cut words": sum(map(cuts_word, placed)),
        "agreeing": len(agreeing_texts),
        **tags,
        "bleu": bleu.score,
    }
