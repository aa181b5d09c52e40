"""Analyze attention and training of several checkpoints, and write one page and its CSV files."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from relu_nmt.applications.statistics import ANALYZED
from relu_nmt.data.document_settings import SINGLE_SENTENCES
from relu_nmt.drawing.attention_maps import (
    SLOT_NAMES,
    AttentionMap,
    head_maps,
    large_maps,
    readable,
)
from relu_nmt.drawing.pages import csv_text
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.evaluation.metrics import ScoringConfig
from relu_nmt.evaluation.split_scorer import SplitScorer
from relu_nmt.io.progress import hidden_progress
from relu_nmt.io.safe_write import check_writable, write_output
from relu_nmt.jobs.analyze.analyzed_model import AnalyzedModel
from relu_nmt.jobs.analyze.curves import Curves, curve_rows, read_curves
from relu_nmt.jobs.analyze.page import page_text
from relu_nmt.jobs.analyze.settings import AnalysisSettings as Settings
from relu_nmt.jobs.translate.model import load_translator
from relu_nmt.jobs.translate.settings import ModelOptions
from relu_nmt.modules.config import AttentionPlace
from relu_nmt.training.config import RESULTS_FILE
from relu_nmt.translator import Translator
from relu_nmt.translator.attention_maps import attention_of, checked_place, single_model

USUAL_NAMES = re.compile(r"checkpoint(s|[_\d].*)|average|best|last|results|train")
"""Names of folders and files that every training has."""
PLACE = ("checkpoint", "slot", "sees", "layer", "head")
MEMORY_STATISTICS = ("tokens", "size", "variance_ratio", "anisotropy", "null_fraction")


def run(settings: Settings, *, progress: bool = True) -> list[AnalyzedModel]:
    """Analyze checkpoints on sentences or documents, and write the page and its CSV files."""
    # Read the courses of training before the long part.
    check_writable("--output", settings.output)
    names = list(settings.names) or distinct_names(settings.path)
    courses = _courses(settings, names)
    models: list[AnalyzedModel] = []
    examples: list[dict[str, Any]] = []
    facts: dict[str, str] = {}
    if settings.path:
        with hidden_progress(settings.no_progress_bar or not progress):
            models, examples, facts = _analyze(settings, names)
    page = Path(settings.output)
    files = [page]
    for name, text in csv_texts(models, courses).items():
        files.append(page.with_name(f"{page.stem}_{name}.csv"))
        write_output("--output", str(files[-1]), text)
    text = page_text(models, examples, courses, facts, [file.name for file in files[1:]])
    write_output("--output", settings.output, text)
    if progress:
        print(f"written: {', '.join(map(str, files))}")
    return models


def _courses(settings: Settings, names: Sequence[str]) -> dict[str, Curves]:
    """Return the curves of the checkpoints' trainings, if recorded, and of the logs, by name."""
    courses: dict[str, Curves] = {}
    read: set[Path] = set()
    for path, name in zip(settings.path, names, strict=True):
        results = Path(path).with_name(RESULTS_FILE)
        if results.exists() and results not in read:
            read.add(results)
            courses[name] = read_curves(results, may_be_empty=True)
    for path, name in zip(settings.log, distinct_names(settings.log), strict=True):
        if name in names:
            name = f"{name} (log)"
        courses[name] = read_curves(path)
    return {name: curves for name, curves in courses.items() if curves}


def _analyze(
    settings: Settings, names: Sequence[str]
) -> tuple[list[AnalyzedModel], list[dict[str, Any]], dict[str, str]]:
    """Return all models with their results, the examples, and names and values of the inputs."""
    models = _open_models(settings, names)
    translators = [model.translator for model in models]
    split = models[0].split
    unit = models[0].unit
    total = len(models[0].groups)
    for number in settings.examples:
        if number >= total:
            raise ConfigError(
                f"--examples {number}: split {settings.gen_subset} has {total:,} {unit}, numbered "
                "from 0"
            )
    # Find the layers and heads to draw in each model. None stands for attention without weights.
    shown_places: dict[str, list[AttentionPlace | None]] = {}
    for text in settings.places:
        place = AttentionPlace.parse(text)
        shown_places[text] = [_weights_at(translator, place) for translator in translators]
    # Choose sentences at equal distances.
    chosen = np.arange(total)
    if 0 < settings.sample < total:
        chosen = np.linspace(0, total - 1, settings.sample).round().astype(np.int64)
    facts = {"data": split.stem, "read": f"all {total:,} {unit}"}
    if len(chosen) < total:
        facts["read"] = f"{len(chosen):,} of {total:,} {unit}"
    if unit == "groups":
        facts["groups"] = f"sentences of a document, up to {settings.max_doc_tokens:,} tokens"
    scorer = None
    if settings.bleu:
        scorer = SplitScorer(translators[0].task, split, ScoringConfig())
    for model in models:
        model.analyze(chosen, scorer)
    examples = [_example(models, shown_places, number) for number in settings.examples]
    return models, examples, facts


def _open_models(settings: Settings, names: Sequence[str]) -> list[AnalyzedModel]:
    """Load the checkpoints. Each reads the split in the groups of the first one."""
    translators = []
    splits = []
    for path in settings.path:
        options = ModelOptions(path=path, cpu=settings.cpu, bf16=settings.bf16, fp16=settings.fp16)
        translators.append(load_translator(options, settings.data))
        splits.append(translators[-1].task.load_split(settings.gen_subset))
    if splits[0].target is None:
        raise DataError(
            f"split {settings.gen_subset}: source-only data; attention is measured while the "
            "models read the references; analyze a split that has them"
        )
    # Separators count as tokens, so that the groups of another model could differ.
    limit = settings.max_doc_tokens
    groups = splits[0].groups(() if limit is None else (limit,))
    unit = "groups"
    if limit in (None, SINGLE_SENTENCES):
        unit = "sentences"
    models = []
    for name, path, translator, split in zip(
        names, settings.path, translators, splits, strict=True
    ):
        models.append(AnalyzedModel(name, path, translator, split, groups, unit))
    return models


def _weights_at(translator: Translator, place: AttentionPlace) -> AttentionPlace | None:
    """Return the place, or None if its attention has no weights."""
    model = single_model(translator.ensemble)
    if not attention_of(model, place.slot, place.layer).capabilities.weights:
        return None
    return checked_place(translator.ensemble, place)


def _example(
    models: Sequence[AnalyzedModel],
    places_by_text: Mapping[str, Sequence[AttentionPlace | None]],
    number: int,
) -> dict[str, Any]:
    """Return number, texts and ``figures`` of a sentence or group, by the places in each model."""
    figures = []
    for text, places_in_models in places_by_text.items():
        # Leave out models without weights at this place.
        maps: dict[str, AttentionMap] = {}
        for model, place_in_model in zip(models, places_in_models, strict=True):
            if place_in_model is not None:
                maps[model.name] = model.map(number, place_in_model)
        if not maps:
            continue
        # Draw the mean of the heads, and each head.
        place = AttentionPlace.parse(text)
        name = SLOT_NAMES[place.slot]
        name += ", last layer" if place.layer == -1 else f", layer {place.layer}"
        if place.head is None:
            figures.append((f"{name}, mean of the heads", large_maps(maps)))
            figures.append((f"{name}, every head", head_maps(maps)))
        else:
            figures.append((f"{name}, head {place.head}", large_maps(maps)))
    task = models[0].translator.task
    source, target = models[0].pair(number)
    return {
        "number": number,
        "source": readable(task.source_dictionary.symbols_of(source)),
        "target": readable(task.target_dictionary.symbols_of(target)),
        "figures": figures,
    }


def csv_texts(models: Sequence[AnalyzedModel], courses: Mapping[str, Curves]) -> dict[str, str]:
    """Return the text of each CSV file by the last part of its name."""
    # Branches and attention of each checkpoint, with a row for each head and each mean.
    attention: list[Mapping[str, Any]] = []
    ranks: list[Mapping[str, Any]] = []
    memories: list[Mapping[str, Any]] = []
    branches: list[Mapping[str, Any]] = []
    sums: dict[str, None] = {}  # columns of the memories' sums, in order
    for model in models:
        for record in model.branches:
            branches.append({"checkpoint": model.name, **record})
        for record in model.records:
            record = {"checkpoint": model.name, **record}
            attention.append(record)
            for percent, top in record["top_sum"].items():
                share = record["share_at_rank"][percent]
                rank = {"percent": percent, "top_sum": top, "share_at_rank": share}
                ranks.append({**record, **rank, "beyond": 1 - top})
        # Memories, a row for each layer.
        for module, part in (model.memories or {"modules": {}})["modules"].items():
            side, layer = module.split(".")
            row = {"checkpoint": model.name, "side": side, "layer": layer, **part}
            for percent, top in part.get("top_sums", {}).items():
                row[f"top_sum_{percent}"] = top
                sums[f"top_sum_{percent}"] = None
            memories.append(row)
    training: list[Mapping[str, Any]] = []
    for name, curves in courses.items():
        training += curve_rows(name, curves)
    tables: dict[str, tuple[list[str], Sequence[Mapping[str, Any]]]] = {
        "attention": ([*PLACE, "rows", *ANALYZED], attention),
        "top_sums": ([*PLACE, "percent", "top_sum", "share_at_rank", "beyond"], ranks),
        "branches": (["checkpoint", "side", "layer", "branch", "variance_ratio"], branches),
        "feed_forward": (["checkpoint", "side", "layer", *MEMORY_STATISTICS, *sums], memories),
        "training": (["training", "split", "metric", "num_updates", "value"], training),
    }
    texts = {}
    for name, (columns, rows) in tables.items():
        if rows:
            texts[name] = csv_text(columns, rows)
    return texts


def distinct_names(paths: Sequence[str]) -> list[str]:
    """Return short distinct names for paths: folder names if these differ, or file names.

    Example:
        >>> distinct_names(["runs/relu/best.safetensors", "runs/softmax/last.safetensors"])
        ['relu', 'softmax']
        >>> distinct_names(["runs/relu/checkpoints/checkpoint_best.safetensors"])
        ['relu']
    """
    parts = []
    for path in map(Path, paths):
        parts.append((*path.absolute().parent.parts, path.stem))
    number = len(set(parts))
    # Drop usual names at the end, or else the file name, if the paths differ without it.
    for shorter in (list(map(_without_usual_names, parts)), [path[:-1] for path in parts]):
        if len(set(shorter)) == number:
            parts = shorter
            break
    # Drop an end that all paths share. Then take as few parts from the end as distinguish the
    # paths.
    while number > 1 and len({path[-1] for path in parts}) == 1:
        parts = [path[:-1] for path in parts]
    length = 1
    while len({path[-length:] for path in parts}) < number:
        length += 1
    names: list[str] = []
    counts: Counter[str] = Counter()
    for path_parts in parts:
        name = "/".join(path_parts[-length:])
        counts[name] += 1
        if counts[name] > 1:
            name += f" {counts[name]}"
        names.append(name)
    return names


def _without_usual_names(parts: tuple[str, ...]) -> tuple[str, ...]:
    while len(parts) > 2 and USUAL_NAMES.fullmatch(parts[-1]):
        parts = parts[:-1]
    return parts
