"""BLEU, chrF, TER and COMET of files of translations, and contrastive tests of a model.

A contrastive test asks if a model prefers the right of several translations. Its file has one JSON
object a line, a :class:`Contrast` (``test.contrasts.jsonl`` of the grammar corpus). All lists of
texts but ``contrasts`` may be empty. ``phenomenon`` and ``distance`` may be absent.
"""

import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import relu_nmt
from relu_nmt.cli.score import COMET
from relu_nmt.cli.score import ScoreSettings as Settings
from relu_nmt.config import split_paths
from relu_nmt.config.stored import parse_json
from relu_nmt.data.documents import (
    DOCUMENT_TAG,
    SEPARATOR_TESTS,
    SEPARATORS,
    join_sentences,
    read_documents,
)
from relu_nmt.errors import ConfigError, DataError, counted
from relu_nmt.evaluation import document_scores as docs
from relu_nmt.evaluation.metrics import MetricConfig, Score, choose_tokenizer, comet_score
from relu_nmt.evaluation.significance import paired_bootstrap
from relu_nmt.io.safe_write import check_writable, write_file
from relu_nmt.io.text_lines import named_input, read_input, read_lines
from relu_nmt.io.work import hidden_progress, progress_bar

if TYPE_CHECKING:
    from relu_nmt.translator import Translator

FEW_SEGMENTS = 20
"""With fewer segments, resamples differ so little that the p-value of a bootstrap says little."""
TEXTS = ("source_language", "source", "reference", "phenomenon")
LISTS = ("contrasts", "source_context", "reference_context")
Entry = tuple[str, dict[str, Any]]
"""One result: the line to print, and the same for JSON."""


def run(settings: Settings, *, progress: bool = True) -> dict[str, float]:
    """Score translations, or run a contrastive test of a model.

    Returns:
        The first score of each name, such as ``BLEU``, ``d-BLEU`` or ``accuracy``.

    Raises:
        ConfigError: the tokeniser is unknown, or buckets do not rise.
        DataError: lines or documents of the files do not fit, or a file cannot be written.
        CheckpointError: the model of a contrastive test cannot be read.
    """
    check_writable("--results", settings.results)
    as_lines = progress and settings.format == "text"
    report = _text_report
    if settings.contrastive:
        report = _contrast_report
    elif settings.sentence_bleu:
        report = _sentence_report
    # Collect the scores, which the generators compute one at a time.
    entries: list[dict[str, Any]] = []
    with hidden_progress(not progress):
        for line, values in report(settings):
            entries.append(values)
            if as_lines:
                print(line, flush=True)
    text = json.dumps(entries, indent=1, ensure_ascii=False)
    if progress and not as_lines:
        print(text)
    if settings.results is not None:
        write_file("--results", settings.results, text + "\n")
    # The first score of a name stays.
    return {own["name"]: own["score"] for own in reversed(entries) if "name" in own}


def _sentence_report(options: Settings) -> Iterator[Entry]:
    """Yield the BLEU of each line, then the signature."""
    system, references, _ = _read_texts(options)
    hypotheses, *others = (_segments(options, side) for side in (system, *references))
    tokenizer, note = _tokenizer(options, others[0])
    metric = MetricConfig("bleu", options.ignore_case, tokenizer, options.order)
    for number, (line, *own) in enumerate(zip(hypotheses, *others, strict=True)):
        score = metric.sentence_score(line, own)
        yield f"{number} {score.text}", {"line": number, **_entry(score)[1]}
    # Print the signature once, since all lines share it.
    if hypotheses:
        yield f"signature: {score.signature}", {"signature": score.signature}
    yield from _notes(note)


def _text_report(options: Settings) -> Iterator[Entry]:
    """Yield all scores of whole files."""
    # Read everything before the first score, so that mistakes are reported first.
    system, references, baseline = _read_texts(options)
    hypotheses, *others = (_segments(options, side) for side in (system, *references))
    aligned, prefix, unit = None, "", "line"
    if options.has_documents:
        aligned = docs.AlignedDocuments(system, references, options.language)
        prefix, unit = "d-", "document"
    tokenizer, note = _tokenizer(options, others[0])
    case, orders = options.ignore_case, (options.order, options.chrf_word_order)
    metrics = [MetricConfig(m, case, tokenizer, *orders) for m in options.metrics if m != COMET]
    # Scores of all segments, by metric.
    for metric in metrics:
        if aligned is None:
            yield _entry(metric.score(hypotheses, others))
        else:
            yield from _document_scores(metric, aligned, options.position_buckets)
    if "bleu" in options.metrics or options.length_buckets:
        yield from _notes(note)
    # Score with COMET, which also reads the sources.
    if COMET in options.metrics and options.src is not None:
        sources = read_input(options.src)
        if len(sources) != len(hypotheses):
            raise DataError(
                f"{options.src}: {counted(len(sources), 'line')}, but "
                f"{named_input(options.sys)} has {len(hypotheses):,}; both need the same "
                "sentences in the same order"
            )
        yield _entry(comet_score(options.comet_model, sources, hypotheses, others[0]))
    # Score the segments by the length of their references.
    for metric in metrics if options.length_buckets else ():
        lengths = metric.reference_lengths(others[0])
        buckets = docs.length_buckets(lengths, options.length_buckets)
        for bucket, size, score in docs.bucket_scores(metric, buckets, hypotheses, others):
            if score is not None:
                shown = score.labelled(prefix, f"{unit}s = {size}").of_bucket(bucket)
                yield _entry(shown, bucket=bucket, segments=size)
    # Compare with the baseline.
    if baseline is not None:
        if len(baseline) < FEW_SEGMENTS:
            yield from _notes(f"only {counted(len(baseline), unit)}: the p-values below say little")
        both = hypotheses, _segments(options, baseline)
        for metric in metrics:
            line, values = paired_bootstrap(metric, *both, others, options.paired_bs_n, prefix)
            yield line, {"paired bootstrap": values}


def _read_texts(
    options: Settings,
) -> tuple[docs.Documents, list[docs.Documents], docs.Documents | None]:
    """Return the translations, each set of references, and the baseline, by document.

    Without boundaries each line is a document.
    """
    paths = split_paths(options.ref, ",")
    references = [_read(options, path, options.documents) for path in paths]
    same = "sentences in the same order"
    if options.has_documents:
        same = (
            "documents in the same order (an empty translation looks like a blank separator: "
            "use --documents or <d> lines)"
        )
    # Read the translations last, since they are checked against the references.
    systems = []
    for path, counts in (
        (options.sys, options.sys_documents),
        (options.baseline, options.baseline_documents),
    ):
        if path is None:
            continue
        found = _read(options, path, counts or options.documents)
        # Require as many documents or lines as in each reference.
        for reference, own in zip(paths, references, strict=True):
            if len(own) != len(found):
                unit = "document" if options.has_documents else "line"
                raise DataError(
                    f"{named_input(reference)}: {counted(len(own), unit)}, but {named_input(path)} "
                    f"has {len(found):,}; both need the same {same}"
                )
        # Divide joined lines at the symbol between sentences, if one is given.
        separator = options.sentence_separator
        systems.append(found if separator is None else docs.split_sentences(found, separator))
    return systems[0], references, systems[1] if len(systems) > 1 else None


def _read(options: Settings, path: str, counts: str | None) -> docs.Documents:
    """Return the documents of a file, by a file with their numbers of lines or by separators."""
    lines = read_input(path)
    if not options.has_documents:
        return [[line] for line in lines]
    if counts is None:
        separator = options.document_separator
        if separator == "tag" and lines and not any(map(SEPARATOR_TESTS["tag"], lines)):
            raise DataError(
                f"{named_input(path)}: no line {DOCUMENT_TAG} in it, but --document-separator tag "
                "expects one before each document, in all files"
            )
        return docs.split_at_separators(lines, separator)
    # Refuse a text that has separators itself, which the counts do not include.
    sizes = read_documents(counts)
    for separator in SEPARATORS[1:]:
        between = sum(map(SEPARATOR_TESTS[separator], lines))
        if between and len(lines) == sizes.sum() + between:
            raise DataError(
                f"{named_input(path)} with {counts}: there are separators in the text itself; give "
                f"--document-separator {separator} instead of --documents, for all files"
            )
    return docs.cut_by_counts(lines, sizes, f"{named_input(path)} with {counts}")


def _segments(options: Settings, documents: docs.Documents) -> list[str]:
    """Return the segments of a text: whole documents, or lines."""
    if options.has_documents:
        return docs.join_lines(documents, options.language)
    return [line for (line,) in documents]


def _tokenizer(options: Settings, references: Sequence[str]) -> tuple[str, str]:
    """Return the tokeniser of BLEU, and a note about it."""
    given = options.sacrebleu_tokenizer
    return (given, "") if given else choose_tokenizer(options.language, references)


def _document_scores(
    metric: MetricConfig, aligned: docs.AlignedDocuments, edges: Sequence[int]
) -> Iterator[Entry]:
    """Yield the scores of documents, of their sentences, and of sentences by position."""
    number = len(aligned.documents[0])
    whole, score = aligned.document_score(metric), aligned.sentence_score(metric)
    yield _entry(whole, documents=number)
    # Score the sentences of documents that have as many lines as their reference.
    mismatch = {"documents": number, "mismatched_documents": aligned.num_mismatched}
    if score is None:
        name = whole.name.replace("d-", "s-", 1)
        reason = "no document has as many lines as its reference"
        yield f"{name}: none, {reason}", {"name": name, "score": None, **mismatch}
        return
    yield _entry(score, **mismatch)
    for bucket, size, own in aligned.position_scores(metric, edges) if edges else ():
        title, more = f"{score.name}[position {bucket}]", {"position": bucket, "segments": size}
        if own is None:
            text = f"{title}: none, no aligned document is that long"
            yield text, {"name": title, "score": None, **more}
        else:
            shown = own.labelled("s-", f"sentences = {size}")
            yield _entry(shown.of_bucket(f"position {bucket}"), **more)


def _notes(text: str) -> Iterator[Entry]:
    if text:
        yield f"NOTE: {text}", {"note": text}


def _entry(score: Score, **more: object) -> Entry:
    values = {"name": score.name, "score": score.value, "text": score.text}
    return str(score), {**values, "signature": score.signature, **more}


@dataclass(frozen=True)
class Contrast:
    """A sentence with its right and its wrong translations.

    Args:
        source_language: language of the sentence. The test leaves out sentences in another
            language than the model's.
        source: the sentence.
        reference: the right translation.
        contrasts: the wrong translations, at least one.
        source_context: the sentences before, the nearest last.
        reference_context: their translations.
        phenomenon: kind of information that the context gives, a category of the result.
        distance: number of sentences back to this information, also a category.
    """

    source_language: str
    source: str
    reference: str
    contrasts: tuple[str, ...]
    source_context: tuple[str, ...] = ()
    reference_context: tuple[str, ...] = ()
    phenomenon: str = ""
    distance: int | None = None


def read_contrasts(path: str | os.PathLike[str]) -> list[Contrast]:
    """Read a file of contrasts."""
    lines = enumerate(read_lines(path), 1)
    found = [_parse(line, f"{path}:{number}") for number, line in lines if line.strip()]
    if not found:
        raise DataError(f"{path}: no contrasts in it; expected a JSON object on each line")
    return found


def _parse(line: str, place: str) -> Contrast:
    try:
        record = parse_json(line)
    except ValueError as error:
        raise DataError(
            f"{place}: not JSON; expected one object a line, as in "
            "test.contrasts.jsonl of data_prep/grammar_corpus.py"
        ) from error
    if not isinstance(record, dict):
        raise DataError(f"{place}: expected a JSON object, found {line[:40]!r}")
    # Check the types of all fields. The last two are optional. True and False are ints, too.
    values: dict[str, Any] = {name: record.get(name) for name in (*TEXTS, *LISTS, "distance")}
    values["phenomenon"] = record.get("phenomenon", "")
    for name in TEXTS:
        if not isinstance(values[name], str):
            raise DataError(f"{place}: expected a text as '{name}'")
    for name in LISTS:
        texts = values[name]
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise DataError(f"{place}: expected a list of texts as '{name}'")
        values[name] = tuple(texts)
    distance = values["distance"]
    if distance is not None and (type(distance) is not int or distance < 0):
        raise DataError(f"{place}: expected a number of sentences as 'distance'")
    # Compare the fields with each other.
    contrast = Contrast(**values)
    if not contrast.contrasts:
        raise DataError(f"{place}: 'contrasts' is empty; give at least one wrong translation")
    if contrast.reference in contrast.contrasts:
        raise DataError(f"{place}: the reference is one of the contrasts, which are all wrong")
    if len(contrast.source_context) != len(contrast.reference_context):
        raise DataError(
            f"{place}: {counted(len(contrast.source_context), 'sentence')} in 'source_context', "
            f"but {len(contrast.reference_context)} in 'reference_context'; they are translations "
            "of each other"
        )
    return contrast


def _contrast_report(options: Settings) -> Iterator[Entry]:
    """Yield the accuracies with and without context, of all contrasts and by category."""
    # Import PyTorch for this alone, since that takes longer than scoring most texts.
    from relu_nmt.translator import Translator

    # Read the file before the model, and keep the contrasts in the model's source language.
    every = read_contrasts(options.contrastive)
    translator = Translator.from_checkpoint(options.path, "cpu" if options.cpu else None)
    read = translator.task.source_lang
    contrasts = [c for c in every if c.source_language == read]
    others = Counter(c.source_language for c in every if c.source_language != read)
    if not contrasts:
        raise DataError(
            f"{options.contrastive}: sentences in {', '.join(sorted(others))}, but the model "
            f"translates from {read}"
        )
    if others:
        counts = ", ".join(f"{count:,} in {language}" for language, count in others.items())
        text = f"NOTE: left out {counts}: the model translates from {read}"
        yield text, {"left out": dict(others)}
    # Score with context, then without, to show its effect.
    total = sum(1 + len(contrast.contrasts) for contrast in contrasts)
    for context in (options.context_sentences, 0):
        shown = "all" if context is None else str(context)
        with progress_bar(f"score with context {shown}", total, "translations") as advance:
            scores = contrast_scores(translator, contrasts, context, options.batch_size, advance)
        # A tie counts as wrong, since the model does not prefer the right translation.
        is_right = [bool(own[0] > own[1:].max()) for own in scores]
        version = f"relu_nmt-{relu_nmt.__version__}"
        signature = f"context:{shown}|score:logprob-sum|ties:wrong|version:{version}"
        for found in accuracies(contrasts, is_right):
            name, part = f"accuracy[{found['category']}]", f"{found['right']}/{found['contrasts']}"
            score = f"{found['score']:.2f} ({part}) chance = {found['chance']:.2f}"
            text = f"{name} = {score} context = {shown} signature: {signature}"
            yield text, {"name": "accuracy", **found, "context": shown, "signature": signature}


def contrast_scores(
    translator: "Translator",
    contrasts: Sequence[Contrast],
    context: int | None = None,
    batch_size: int | None = None,
    on_progress: Callable[[int], object] | None = None,
) -> list[np.ndarray]:
    """Return the log-probabilities (nats) of the translations, float64, the right one first.

    Context and sentence are one source, joined like groups of sentences in training. The target
    begins with the translations of the context. The score is the total log-probability of the
    tokens after them, ``</s>`` included. ``context`` is the number of nearest sentences before to
    give, all by default.

    Raises:
        ConfigError: the model's scores are not finite.
        DataError: a source is too long for learned positions.
    """
    from relu_nmt.translation.search.config import GenerationConfig
    from relu_nmt.translation.search.translations import SourceSentence

    task, sources, prefixes = translator.task, [], []
    for contrast in contrasts:
        # Join the sentence with the nearest sentences before it. The target's context has no </s>.
        first = 0 if context is None else max(0, len(contrast.source_context) - context)
        read = [*contrast.source_context[first:], contrast.source]
        source = join_sentences([task.encode_source(text) for text in read])
        before = [task.encode_target(text) for text in contrast.reference_context[first:]]
        prefix = join_sentences(before)[:-1]
        # Make a pair for each translation, the right one first.
        for text in (contrast.reference, *contrast.contrasts):
            target = np.concatenate([prefix, task.encode_target(text)])
            sources.append(SourceSentence(source, reference=target))
            prefixes.append(len(prefix))
    # Score all translations, and sum over the tokens behind the context.
    config = GenerationConfig(score_reference=True, batch_size=batch_size)
    found = translator.generator(config).translate(sources, on_progress=on_progress)
    totals = [
        best.positional_scores[prefix:].sum(dtype=np.float64)
        for (best, *_), prefix in zip(found, prefixes, strict=True)
    ]
    if not np.isfinite(totals).all():
        raise ConfigError("the model's scores are not finite (training diverged)")
    # Divide the flat list of scores by contrast.
    rest = iter(totals)
    return [np.array(list(itertools.islice(rest, 1 + len(c.contrasts)))) for c in contrasts]


def accuracies(contrasts: Sequence[Contrast], is_right: Sequence[bool]) -> list[dict[str, Any]]:
    """Return the share of right choices, for all contrasts, by phenomenon and by distance.

    Returns:
        ``category``, ``score`` (0 to 100), the numbers ``right`` of ``contrasts``, and ``chance``,
        the expected score of a random choice.

    Example:
        >>> one = Contrast("en", "It is here.", "Er ist hier.", ("Es ist hier.",))
        >>> accuracies([one, one], [True, False])
        [{'category': 'all', 'score': 50.0, 'right': 1, 'contrasts': 2, 'chance': 50.0}]
    """
    everyone = list(zip(contrasts, is_right, strict=True))
    # Collect the contrasts of each category.
    groups = [("all", everyone)]
    for phenomenon in sorted({c.phenomenon for c in contrasts if c.phenomenon}):
        own = [pair for pair in everyone if pair[0].phenomenon == phenomenon]
        groups.append((phenomenon, own))
    for distance in sorted({c.distance for c in contrasts if c.distance is not None}):
        own = [pair for pair in everyone if pair[0].distance == distance]
        groups.append((f"distance {distance}", own))
    return [
        {
            "category": category,
            "score": 100 * sum(right for _, right in own) / len(own),
            "right": sum(right for _, right in own),
            "contrasts": len(own),
            # Average over contrasts, which may have different numbers of choices.
            "chance": 100 * sum(1 / (1 + len(c.contrasts)) for c, _ in own) / len(own),
        }
        for category, own in groups
    ]
