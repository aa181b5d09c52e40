"""Analyse attention and training of several checkpoints, and write one page."""

from collections.abc import Sequence
from dataclasses import replace
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
from relu_nmt.data.documents import SINGLE_SENTENCES
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
            data = _Analyzer(settings, names).run(courses)
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


class _Analyzer:
    """Runs the models on the sentences. Methods take the ``index`` of a model."""

    def __init__(self, settings: Settings, names: Sequence[str]) -> None:
        self._options, self._paths, self._names = settings, settings.path, names
        self._translators = [
            load_translator(
                ModelOptions(path=path, cpu=settings.cpu, bf16=settings.bf16, fp16=settings.fp16),
                settings.data,
            )
            for path in settings.path
        ]
        subset, limit = self._options.gen_subset, self._options.max_doc_tokens
        self._splits = [one.task.load_split(subset) for one in self._translators]
        first = self._splits[0]
        if first.target is None:
            raise DataError(
                f"split {subset}: source-only data; attention is measured while the models read "
                "the references; analyse a split that has them"
            )
        self._unit = "sentences" if limit in (None, SINGLE_SENTENCES) else "groups"
        # Use the groups of the first model for all, although separators count as tokens.
        self._groups = first.groups(() if limit is None else (limit,))
        for number in self._options.examples:
            if number >= len(self._groups):
                raise ConfigError(
                    f"--examples {number}: split {subset} has {len(self._groups):,} {self._unit}, "
                    "numbered from 0"
                )
        # Find the places in each model; None if the attention has no weights.
        self._places = {
            text: [_weights_at(one, AttentionPlace.parse(text)) for one in self._translators]
            for text in self._options.places
        }

    def run(self, courses: Sequence[Course]) -> AnalysisReport:
        """Return the analysis of all models, with the examples."""
        # Choose sentences at equal distances.
        number, total = self._options.sample or len(self._groups), len(self._groups)
        chosen = np.arange(total)
        if number < total:
            chosen = np.linspace(0, total - 1, number).round().astype(np.int64)
        models = [self._analyze(index, chosen) for index in range(len(self._paths))]
        examples = [self._example(number) for number in self._options.examples]
        every = "all" if len(chosen) == total else f"{len(chosen):,} of"
        facts = {"data": self._splits[0].stem, "read": f"{every} {total:,} {self._unit}"}
        if self._unit == "groups":
            facts["groups"] = (
                f"sentences of a document, up to {self._options.max_doc_tokens:,} tokens"
            )
        return AnalysisReport(models, examples, courses, facts)

    def _pair(self, index: int, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the source and target ids of a sentence or group for a model."""
        source, target = self._splits[index].joined(self._groups.sentences(number))
        assert target is not None, "source-only data is refused at the start"
        check_lengths([SourceSentence(source)], self._translators[index].max_source_positions)
        return source, target

    def _numbers(self, index: int, number: int) -> Numbers | None:
        """Return the sentence number of each source and target token; None for one sentence."""
        if self._unit == "sentences":
            return None
        split, sentences = self._splits[index], self._groups.sentences(number)
        separators = self._translators[index].task.separators
        separated = separators is not None and (separators.alone or len(sentences) > 1)
        # The sizes count the separator of a single sentence, which some models do not read.
        unread = int(separators is not None and not separated)
        assert split.target_sizes is not None
        return (
            sentence_numbers(split.source_sizes[sentences] - unread, separated),
            sentence_numbers(split.target_sizes[sentences] - unread, separated),
        )

    def _analyze(self, index: int, chosen: np.ndarray) -> AnalyzedModel:
        """Return the analysis of one model."""
        translator, name = self._translators[index], self._names[index]
        task, config = translator.task, translator.models[0].config
        dictionaries = task.source_dictionary, task.target_dictionary
        weights = WeightStatistics(translator.ensemble, dictionaries)
        layers = LayerStatistics(translator.ensemble)
        # Read some sentences at a time, with all statistics.
        with progress_bar(f"analyse {name}", len(chosen), self._unit) as advance:
            for start in range(0, len(chosen), AT_ONCE):
                part = chosen[start : start + AT_ONCE].tolist()
                pairs = [self._pair(index, number) for number in part]
                # Number the sentences of groups only; single sentences give None.
                numbers = [own for n in part if (own := self._numbers(index, n)) is not None]
                sides = [source for source, _ in pairs], [target for _, target in pairs]
                weights.add(*sides, numbers or None, advance)
                layers.add(*sides)
        return AnalyzedModel(
            name,
            self._paths[index],
            {slot: config.attention_of(slot) for slot in SLOTS},
            config.feed_forward,
            weights.without_weights,
            weights.records(),
            layers.records(),
            layers.report() if layers.has_memories else None,
        )

    def _example(self, number: int) -> dict[str, Any]:
        """Return the maps of one sentence or group."""
        figures = []
        for text, places in self._places.items():
            # Leave out models without weights at this place.
            found = {
                self._names[index]: self._map(index, number, place)
                for index, place in enumerate(places)
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
        task, (source, target) = self._translators[0].task, self._pair(0, number)
        return {
            "number": number,
            "source": task.source_tokens(source),
            "target": task.target_tokens(target),
            "figures": figures,
        }

    def _map(self, index: int, number: int, place: AttentionPlace) -> AttentionMap:
        translator, (source, target) = self._translators[index], self._pair(index, number)
        words = SourceSentence(source, translator.task.source_dictionary.symbols_of(source))
        found = translator.attention_at(place, words, target)
        of_source, of_target = self._numbers(index, number) or (None, None)
        queries = of_source if place.slot == "encoder" else of_target
        keys = of_target if place.slot == "decoder" else of_source
        return replace(found, query_sentences=queries, key_sentences=keys)


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
