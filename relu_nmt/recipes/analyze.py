"""Analyse attention and training of several checkpoints, and write one page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from relu_nmt.applications.analysis.report import (
    AnalysisReport,
    AnalyzedModel,
    distinct_names,
)
from relu_nmt.applications.analysis.statistics import LayerStatistics
from relu_nmt.applications.analysis.weights import Numbers, WeightStatistics
from relu_nmt.cli.analyze import AnalysisSettings as Settings
from relu_nmt.cli.generate import ModelOptions
from relu_nmt.data.documents import SINGLE_SENTENCES, Groups
from relu_nmt.data.split import Split
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.io.safe_write import check_writable, write_file
from relu_nmt.io.work import hidden_progress, progress_bar
from relu_nmt.modules.config import SLOTS, AttentionPlace
from relu_nmt.recipes.translation import load_translator
from relu_nmt.training.results import FILE_NAME, Course, read_course
from relu_nmt.translation.search.translations import SourceSentence, check_lengths
from relu_nmt.translator import Translator
from relu_nmt.translator.attention_maps import (
    SLOT_NAMES,
    AttentionMap,
    attention_of,
    checked_place,
    head_maps,
    large_maps,
    single_model,
)

AT_ONCE = 1000
"""Most sentences or groups to read, sort by length and analyse before the next ones."""


def run(settings: Settings, *, progress: bool = True) -> AnalysisReport:
    """Analyse checkpoints on sentences or documents, and write the page and its CSV files.

    Raises:
        ConfigError: a place that a model does not have, or a setting that does not fit.
        CheckpointError: a checkpoint is missing, damaged, or not a translation model.
        DataError: the split is missing, source-only, or without document boundaries, a log cannot
            be read, or a file cannot be written.
    """
    # Read the courses of training before the long part.
    page = Path(settings.output)
    paths = settings.path
    check_writable("--output", settings.output)
    names = list(settings.names) or distinct_names(paths)
    courses = _courses(settings, names)
    with hidden_progress(settings.no_progress_bar or not progress):
        data = AnalysisReport(courses=courses)
        if paths:
            data = _analyze(settings, names, courses)
    # Write the page and its CSV files.
    texts = data.csv_files()
    files = [page.with_name(f"{page.stem}_{name}.csv") for name in texts]
    for file, text in zip(files, texts.values(), strict=True):
        write_file("--output", str(file), text)
    write_file("--output", settings.output, data.page([file.name for file in files]))
    if progress:
        print(f"written: {', '.join(map(str, [page, *files]))}")
    return data


def _courses(settings: Settings, names: Sequence[str]) -> list[Course]:
    """Return the courses of training of the checkpoints, if recorded, and of the logs."""
    found: dict[Path, Course] = {}
    for path, name in zip(settings.path, names, strict=True):
        results = Path(path).with_name(FILE_NAME)
        if results.exists() and results not in found:
            found[results] = read_course(results, name, may_be_empty=True)
    for path, name in zip(settings.log, distinct_names(settings.log), strict=True):
        found[Path(path)] = read_course(path, f"{name} (log)" if name in names else name)
    return [course for course in found.values() if course.curves]


def _analyze(settings: Settings, names: Sequence[str], courses: list[Course]) -> AnalysisReport:
    """Return the analysis of all models, with the examples."""
    data, subset, limit = settings.data, settings.gen_subset, settings.max_doc_tokens
    precision = {name: getattr(settings, name) for name in ("cpu", "bf16", "fp16")}
    translators = [load_translator(ModelOptions(path=p, **precision), data) for p in settings.path]
    splits = [translator.task.load_split(subset) for translator in translators]
    if splits[0].target is None:
        raise DataError(
            f"split {subset}: source-only data; attention is measured while the models read "
            "the references; analyse a split that has them"
        )
    # Use the groups of the first model for all, although separators count as tokens.
    groups = splits[0].groups(() if limit is None else (limit,))
    total, unit = len(groups), "sentences" if limit in (None, SINGLE_SENTENCES) else "groups"
    models = [_Model(*own, groups, unit) for own in zip(names, translators, splits, strict=True)]
    for number in settings.examples:
        if number >= total:
            raise ConfigError(
                f"--examples {number}: split {subset} has {total:,} {unit}, numbered from 0"
            )
    # Find the places in each model; None if the attention has no weights.
    places = {
        text: [_weights_at(one, AttentionPlace.parse(text)) for one in translators]
        for text in settings.places
    }
    # Choose sentences at equal distances.
    chosen = np.arange(total)
    if 0 < settings.sample < total:
        chosen = np.linspace(0, total - 1, settings.sample).round().astype(np.int64)
    facts = {
        "data": splits[0].stem,
        "read": f"{'all' if len(chosen) == total else f'{len(chosen):,} of'} {total:,} {unit}",
    }
    if unit == "groups":
        facts["groups"] = f"sentences of a document, up to {limit:,} tokens"
    analyzed = [one.analyze(path, chosen) for one, path in zip(models, settings.path, strict=True)]
    examples = [_example(models, places, number) for number in settings.examples]
    return AnalysisReport(analyzed, examples, courses, facts)


@dataclass(frozen=True)
class _Model:
    """A checkpoint, with the split as it reads it, in ``groups`` of sentences or one by one."""

    name: str
    translator: Translator
    split: Split
    groups: Groups
    unit: str  # "sentences" or "groups"

    def pair(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the source and target ids of a sentence or group."""
        source, target = self.split.joined(self.groups.sentences(number))
        assert target is not None, "source-only data is refused at the start"
        check_lengths([SourceSentence(source)], self.translator.max_source_positions)
        return source, target

    def numbers(self, number: int) -> Numbers | None:
        """Return the sentence number of each source and target token; None for one sentence."""
        if self.unit == "sentences":
            return None
        split, sentences = self.split, self.groups.sentences(number)
        separators = self.translator.task.separators
        separated = separators is not None and (separators.alone or len(sentences) > 1)
        # The sizes count the separator of a single sentence, which some models do not read.
        unread = int(separators is not None and not separated)
        assert split.target_sizes is not None
        return (
            sentence_numbers(split.source_sizes[sentences] - unread, separated),
            sentence_numbers(split.target_sizes[sentences] - unread, separated),
        )

    def analyze(self, path: str, chosen: np.ndarray) -> AnalyzedModel:
        """Return the analysis of the chosen sentences or groups."""
        task, ensemble = self.translator.task, self.translator.ensemble
        config = self.translator.models[0].config
        weights = WeightStatistics(ensemble, (task.source_dictionary, task.target_dictionary))
        layers = LayerStatistics(ensemble)
        # Read some sentences at a time, with all statistics.
        with progress_bar(f"analyse {self.name}", len(chosen), self.unit) as advance:
            for start in range(0, len(chosen), AT_ONCE):
                part = chosen[start : start + AT_ONCE].tolist()
                sources, targets = zip(*map(self.pair, part), strict=True)
                # Number the sentences of groups only; single sentences give None.
                numbers = [own for n in part if (own := self.numbers(n)) is not None]
                weights.add(sources, targets, numbers or None, advance)
                layers.add(sources, targets)
        return AnalyzedModel(
            self.name,
            path,
            {slot: config.attention_of(slot) for slot in SLOTS},
            config.feed_forward,
            weights.without_weights,
            weights.records(),
            layers.records(),
            layers.report() if layers.has_memories else None,
        )

    def map(self, number: int, place: AttentionPlace) -> AttentionMap:
        """Return the map of a sentence or group."""
        source, target = self.pair(number)
        words = SourceSentence(source, self.translator.task.source_dictionary.symbols_of(source))
        found = self.translator.attention_at(place, words, target)
        of_source, of_target = self.numbers(number) or (None, None)
        queries = of_source if place.slot == "encoder" else of_target
        keys = of_target if place.slot == "decoder" else of_source
        return replace(found, query_sentences=queries, key_sentences=keys)


def _example(
    models: Sequence[_Model], places: Mapping[str, Sequence[AttentionPlace | None]], number: int
) -> dict[str, Any]:
    """Return the maps of one sentence or group; ``places`` has the place in each model."""
    figures = []
    for text, own_places in places.items():
        # Leave out models without weights at this place.
        found = {
            model.name: model.map(number, place)
            for model, place in zip(models, own_places, strict=True)
            if place is not None
        }
        if not found:
            continue
        # Draw the mean of the heads, and each head.
        place = AttentionPlace.parse(text)
        name = SLOT_NAMES[place.slot]
        layer = "last layer" if place.layer == -1 else f"layer {place.layer}"
        head = "mean of the heads" if place.head is None else f"head {place.head}"
        figures.append((f"{name}, {layer}, {head}", large_maps(found)))
        if place.head is None:
            figures.append((f"{name}, {layer}, every head", head_maps(found)))
    task, (source, target) = models[0].translator.task, models[0].pair(number)
    return {
        "number": number,
        "source": task.source_tokens(source),
        "target": task.target_tokens(target),
        "figures": figures,
    }


def _weights_at(translator: Translator, place: AttentionPlace) -> AttentionPlace | None:
    """Return the place; None if its attention has no weights."""
    model = single_model(translator.ensemble)
    if not attention_of(model, place.slot, place.layer).capabilities.weights:
        return None
    return checked_place(model, place)


def sentence_numbers(sizes: np.ndarray, separated: bool) -> np.ndarray:
    """Return the sentence number of each token of joined sentences, int64 [n].

    Args:
        sizes: tokens of each sentence with its ``</s>``, int; only the last ``</s>`` stays.
        separated: a separator ends each sentence. The final ``</s>`` then gets a number of its
            own, as for attention that stays inside sentences.

    Example:
        >>> sentence_numbers(np.array([3, 2]), separated=False).tolist()
        [0, 0, 1, 1]
    """
    numbers = np.repeat(np.arange(len(sizes)), sizes - 1)
    return np.append(numbers, len(sizes) if separated else len(sizes) - 1)
