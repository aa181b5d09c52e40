"""A checkpoint that is analyzed: its input, and the results."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from relu_nmt.applications.layer_statistics import LayerStatistics
from relu_nmt.applications.weight_statistics import (
    Numbers,
    Records,
    WeightStatistics,
    sentence_numbers,
)
from relu_nmt.data.groups import Groups
from relu_nmt.data.split import Split
from relu_nmt.drawing.attention_maps import SLOT_NAMES, AttentionMap
from relu_nmt.evaluation.significance import SegmentStatistics
from relu_nmt.evaluation.split_scorer import SplitScorer
from relu_nmt.io.progress import progress_bar
from relu_nmt.jobs.analyze.answers import Losses, Removal, weak_heads
from relu_nmt.modules.config import AttentionPlace
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.translations import SourceSentence, check_lengths
from relu_nmt.translator import Translator
from relu_nmt.translator.attention_maps import layers_of, single_model

AT_ONCE = 1000  # most sentences or groups to read, sort by length and analyze together


@dataclass
class AnalyzedModel:
    """A checkpoint, the split in the groups or single sentences that it reads, and its results.

    The results are the records and the report of :class:`WeightStatistics` and
    :class:`LayerStatistics`. Feed-forward networks without a memory have no report.
    """

    name: str
    path: str
    translator: Translator
    split: Split
    groups: Groups
    unit: str  # "sentences" or "groups"
    records: Records = ()
    branches: Records = ()
    memories: Mapping[str, Any] | None = None
    remarks: list[str] = field(default_factory=list)  # statistics that the checkpoint lacks
    losses: Losses | None = None  # of the references
    alone: Losses | None = None  # of the sentences of groups, each read by itself
    removal: Removal | None = None  # of all weak heads that can go, or else of the weakest
    bleu: SegmentStatistics | None = None

    @property
    def config(self) -> TransformerConfig:
        """The settings of the model."""
        return self.translator.models[0].config

    def pair(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the source and target ids of a sentence or group."""
        source, target = self.split.joined(self.groups.sentences(number))
        assert target is not None, "source-only data is refused at the start"
        check_lengths([SourceSentence(source)], self.translator.max_source_positions)
        return source, target

    def numbers(self, number: int) -> Numbers | None:
        """Return the sentence number of each source and target token, or None for one sentence."""
        if self.unit == "sentences":
            return None
        split = self.split
        sentences = self.groups.sentences(number)
        separators = self.translator.task.separators
        separated = separators is not None and separators.of_group(len(sentences)) is not None
        # The sizes count the separator of a single sentence, which some models do not read.
        num_lacking = int(separators is not None and not separated)
        assert split.target_sizes is not None
        return (
            sentence_numbers(split.source_sizes[sentences] - num_lacking, separated),
            sentence_numbers(split.target_sizes[sentences] - num_lacking, separated),
        )

    def analyze(self, chosen: np.ndarray, scorer: SplitScorer | None) -> None:
        """Measure the chosen sentences or groups. A scorer compares translations, too."""
        task = self.translator.task
        ensemble = self.translator.ensemble
        weights = WeightStatistics(ensemble, (task.source_dictionary, task.target_dictionary))
        layers = LayerStatistics(ensemble)
        with progress_bar(f"analyze {self.name}", len(chosen), self.unit) as advance:
            for start in range(0, len(chosen), AT_ONCE):
                part = chosen[start : start + AT_ONCE].tolist()
                sources, targets = zip(*map(self.pair, part), strict=True)
                # Number the sentences of groups only. Single sentences give None.
                of_groups = list(filter(None, map(self.numbers, part)))
                weights.add(sources, targets, of_groups or None, advance)
                layers.add(sources, targets)
        records = weights.records()
        variances = layers.added_variances()
        for record in records:
            variance = variances.get((record["slot"], record["layer"], record["head"]))
            if variance is not None:
                record["added_variance"] = variance
        self.records = records
        self.branches = layers.records()
        # Say which statistics this checkpoint lacks.
        for slot in weights.without_weights:
            name = f"{SLOT_NAMES[slot]} ({self.config.attention_of(slot)})"
            self.remarks.append(f"{name} has no matrix of weights; it is left out")
        if layers.has_memories:
            self.memories = layers.report()
        else:
            name = f"its feed-forward networks ({self.config.feed_forward})"
            self.remarks.append(f"{name} are no memories")
        self._measure_losses(chosen.tolist())
        if scorer is not None:
            self._translate(chosen.tolist(), scorer)

    def _measure_losses(self, numbers: Sequence[int]) -> None:
        """Measure losses: of sentences or groups, of sentences alone, and without weak heads."""
        task = self.translator.task
        # Leave out ends of sentences, which models with and without separators mark differently.
        left_out = []
        if task.separators is not None:
            left_out.append(task.separators.target)
        if self.unit == "groups":
            left_out.append(task.target_dictionary.eos_index)
        label = f"losses of {self.name}"
        sources = [self._source(number) for number in numbers]
        of_all = reference_losses(self.translator, sources, left_out, label)
        if not np.isfinite(of_all.bits).all():
            self.remarks.append("the losses of the references are not finite (training diverged)")
            return
        self.losses = of_all
        # Read each sentence of a group by itself.
        if self.unit == "groups":
            sentences: list[SourceSentence] = []
            first = []
            for number in numbers:
                first.append(len(sentences))
                for sentence in self.groups.sentences(number):
                    source, target = self.split.pair(sentence)
                    sentences.append(SourceSentence(source, reference=target))
            losses = reference_losses(self.translator, sentences, left_out, label)
            self.alone = losses.joined(first)
        # Remove all weak heads, then half as many, and so on until the loss hardly rises.
        weak = weak_heads(self.records)
        while weak and (self.removal is None or not self.removal.is_harmless(of_all)):
            places = list(map(AttentionPlace.parse, weak))
            with without_heads(single_model(self.translator.ensemble), places):
                losses = reference_losses(self.translator, sources, left_out, label)
            self.removal = Removal(weak, losses)
            weak = weak[: len(weak) // 2]

    def _source(self, number: int) -> SourceSentence:
        source, target = self.pair(number)
        return SourceSentence(source, reference=target)

    def _translate(self, numbers: Sequence[int], scorer: SplitScorer) -> None:
        """Translate sentences or groups, and count their n-grams for BLEU."""
        sources = [self._source(number) for number in numbers]
        with progress_bar(f"translate for {self.name}", len(sources), self.unit) as advance:
            # Search as relu-nmt-generate does, and take the best translations.
            config = GenerationConfig().resolved(self.unit == "groups", workers=0)
            translate = self.translator.window_translator(config)
            translations = translate(sources, on_progress=advance)
        texts = [nbest[0].text for nbest in translations]
        segments = [self.groups.sentences(number) for number in numbers]
        self.bleu = scorer.segment_statistics(texts, segments)

    def map(self, number: int, place: AttentionPlace) -> AttentionMap:
        """Return the map of a sentence or group."""
        source, target = self.pair(number)
        words = SourceSentence(source, self.translator.task.source_dictionary.symbols_of(source))
        attention_map = self.translator.attention_at(place, words, target)
        of_source, of_target = self.numbers(number) or (None, None)
        queries, keys = {
            "encoder": (of_source, of_source),
            "decoder": (of_target, of_target),
            "cross": (of_target, of_source),
        }[place.slot]
        return replace(attention_map, query_sentences=queries, key_sentences=keys)


def reference_losses(
    translator: Translator, sources: Sequence[SourceSentence], left_out: Sequence[int], label: str
) -> Losses:
    """Return the losses of the references of sources, without the tokens of these ids."""
    bits: list[float] = []
    tokens: list[int] = []
    generator = translator.generator(GenerationConfig(score_reference=True))
    with progress_bar(label, len(sources), "sources", only_if_slow=True) as advance:
        references = generator.translate(sources, on_progress=advance)
    for [reference] in references:
        is_counted = ~np.isin(reference.ids, left_out)
        log_probs = reference.positional_scores[is_counted]
        bits.append(-float(log_probs.sum(dtype=np.float64)) / math.log(2))
        tokens.append(int(is_counted.sum()))
    return Losses(np.array(bits), np.array(tokens))


@contextmanager
def without_heads(model: EncoderDecoder, places: Sequence[AttentionPlace]) -> Iterator[None]:
    """Let the heads at these places add nothing inside the block."""
    with ExitStack() as hooks:
        for place in places:
            layer = layers_of(model, place.slot)[place.layer]
            module = layer.cross_attention if place.slot == "cross" else layer.self_attention
            assert module is not None and place.head is not None
            width = module.embed_dim // module.num_heads
            channels = slice(place.head * width, (place.head + 1) * width)

            def empty(_: Any, inputs: tuple[Tensor], channels: slice = channels) -> tuple[Tensor]:
                values = inputs[0].clone()
                values[..., channels] = 0
                return (values,)

            hooks.enter_context(module.out_proj.register_forward_pre_hook(empty))
        yield
