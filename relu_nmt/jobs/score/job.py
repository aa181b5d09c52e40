"""BLEU, chrF, TER and COMET of files of translations, and contrastive tests of a model."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import relu_nmt
from relu_nmt.config import split_paths
from relu_nmt.data.documents import (
    DOCUMENT_TAG,
    SEPARATOR_TESTS,
    SEPARATORS,
    read_documents,
)
from relu_nmt.errors import DataError, counted
from relu_nmt.evaluation import document_scores as docs
from relu_nmt.evaluation.contrasts import accuracies, contrast_scores, read_contrasts
from relu_nmt.evaluation.metrics import MetricConfig, Score, choose_tokenizer, comet_score
from relu_nmt.evaluation.significance import paired_bootstrap
from relu_nmt.io.safe_write import check_writable, write_file
from relu_nmt.io.text_lines import named_input, read_input
from relu_nmt.io.work import hidden_progress, progress_bar
from relu_nmt.jobs.score.settings import COMET
from relu_nmt.jobs.score.settings import ScoreSettings as Settings

FEW_SEGMENTS = 20
"""With fewer segments, resamples differ so little that the p-value of a bootstrap says little."""
Entry = tuple[str, dict[str, Any]]
"""One result: the line to print, and the same for JSON."""


def run(settings: Settings, *, progress: bool = True) -> dict[str, float]:
    """Score translations, or run a contrastive test of a model.

    Returns:
        The first score of each name, such as ``BLEU``, ``d-BLEU`` or ``accuracy``.

    Raises:
        ConfigError: the tokenizer is unknown, or buckets do not rise.
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
    return {values["name"]: values["score"] for values in reversed(entries) if "name" in values}


def _sentence_report(options: Settings) -> Iterator[Entry]:
    """Yield the BLEU of each line, then the signature."""
    system, reference_texts, _ = _read_texts(options)
    hypotheses = _segments(options, system)
    references = [_segments(options, text) for text in reference_texts]
    tokenizer, note = _tokenizer(options, references[0])
    metric = MetricConfig("bleu", options.ignore_case, tokenizer, options.order)
    for number, line in enumerate(hypotheses):
        score = metric.sentence_score(line, [lines[number] for lines in references])
        yield f"{number} {score.text}", {"line": number, **_entry(score)[1]}
    # Print the signature once, since all lines share it.
    if hypotheses:
        yield f"signature: {score.signature}", {"signature": score.signature}
    yield from _notes(note)


def _text_report(options: Settings) -> Iterator[Entry]:
    """Yield all scores of whole files."""
    # Read everything before the first score, so that mistakes are reported first.
    system, reference_texts, baseline = _read_texts(options)
    hypotheses = _segments(options, system)
    references = [_segments(options, text) for text in reference_texts]
    aligned = None
    if options.has_documents:
        aligned = docs.AlignedDocuments(system, reference_texts, options.language)
    prefix = "" if aligned is None else "d-"
    unit = "line" if aligned is None else "document"
    tokenizer, note = _tokenizer(options, references[0])
    metrics = []
    for name in options.metrics:
        if name != COMET:
            metrics.append(
                MetricConfig(
                    name, options.ignore_case, tokenizer, options.order, options.chrf_word_order
                )
            )
    # Scores of all segments, by metric.
    for metric in metrics:
        if aligned is None:
            yield _entry(metric.score(hypotheses, references))
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
        yield _entry(comet_score(options.comet_model, sources, hypotheses, references[0]))
    # Score the segments by the length of their references.
    for metric in metrics if options.length_buckets else ():
        lengths = metric.reference_lengths(references[0])
        buckets = docs.length_buckets(lengths, options.length_buckets)
        for bucket, size, score in docs.bucket_scores(metric, buckets, hypotheses, references):
            if score is not None:
                labeled = score.labeled(prefix, f"{unit}s = {size}").of_bucket(bucket)
                yield _entry(labeled, bucket=bucket, segments=size)
    # Compare with the baseline.
    if baseline is not None:
        if len(baseline) < FEW_SEGMENTS:
            yield from _notes(f"only {counted(len(baseline), unit)}: the p-values below say little")
        baseline_segments = _segments(options, baseline)
        for metric in metrics:
            line, values = paired_bootstrap(
                metric, hypotheses, baseline_segments, references, options.paired_bs_n, prefix
            )
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
        system = _read(options, path, counts or options.documents)
        # Require as many documents or lines as in each reference.
        for reference_path, reference in zip(paths, references, strict=True):
            if len(reference) != len(system):
                unit = "document" if options.has_documents else "line"
                raise DataError(
                    f"{named_input(reference_path)}: {counted(len(reference), unit)}, but "
                    f"{named_input(path)} has {len(system):,}; both need the same {same}"
                )
        # Divide joined lines at the symbol between sentences, if one is given.
        if options.sentence_separator is not None:
            system = docs.split_sentences(system, options.sentence_separator)
        systems.append(system)
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
    """Return the tokenizer of BLEU, and a note about it."""
    if options.sacrebleu_tokenizer:
        return options.sacrebleu_tokenizer, ""
    return choose_tokenizer(options.language, references)


def _document_scores(
    metric: MetricConfig, aligned: docs.AlignedDocuments, edges: Sequence[int]
) -> Iterator[Entry]:
    """Yield the scores of documents, of their sentences, and of sentences by position."""
    number = len(aligned.documents[0])
    document_score = aligned.document_score(metric)
    sentence_score = aligned.sentence_score(metric)
    yield _entry(document_score, documents=number)
    # Score the sentences of documents that have as many lines as their reference.
    mismatch = {"documents": number, "mismatched_documents": aligned.num_mismatched}
    if sentence_score is None:
        name = document_score.name.replace("d-", "s-", 1)
        reason = "no document has as many lines as its reference"
        yield f"{name}: none, {reason}", {"name": name, "score": None, **mismatch}
        return
    yield _entry(sentence_score, **mismatch)
    for bucket, size, score in aligned.position_scores(metric, edges) if edges else ():
        name = f"{sentence_score.name}[position {bucket}]"
        values = {"position": bucket, "segments": size}
        if score is None:
            text = f"{name}: none, no aligned document is that long"
            yield text, {"name": name, "score": None, **values}
        else:
            labeled = score.labeled("s-", f"sentences = {size}")
            yield _entry(labeled.of_bucket(f"position {bucket}"), **values)


def _notes(text: str) -> Iterator[Entry]:
    if text:
        yield f"NOTE: {text}", {"note": text}


def _entry(score: Score, **details: object) -> Entry:
    values = {"name": score.name, "score": score.value, "text": score.text}
    return str(score), {**values, "signature": score.signature, **details}


def _contrast_report(options: Settings) -> Iterator[Entry]:
    """Yield the accuracies with and without context, of all contrasts and by category."""
    # Import PyTorch for this alone, since that takes longer than scoring most texts.
    from relu_nmt.translation.search.config import GenerationConfig
    from relu_nmt.translator import Translator

    # Read the file before the model, and keep the contrasts in the model's source language.
    contrasts = read_contrasts(options.contrastive)
    translator = Translator.from_checkpoint(options.path, "cpu" if options.cpu else None)
    language = translator.task.source_lang
    languages = Counter(contrast.source_language for contrast in contrasts)
    left_out = {name: count for name, count in languages.items() if name != language}
    contrasts = [contrast for contrast in contrasts if contrast.source_language == language]
    if not contrasts:
        raise DataError(
            f"{options.contrastive}: sentences in {', '.join(sorted(left_out))}, but the model "
            f"translates from {language}"
        )
    if left_out:
        counts = ", ".join(f"{count:,} in {name}" for name, count in left_out.items())
        text = f"NOTE: left out {counts}: the model translates from {language}"
        yield text, {"left out": left_out}
    # Score with context, then without, to show its effect.
    search = GenerationConfig(score_reference=True, batch_size=options.batch_size)
    generator = translator.generator(search)
    total = sum(1 + len(contrast.contrasts) for contrast in contrasts)
    for context in (options.context_sentences, 0):
        size = "all" if context is None else str(context)
        with progress_bar(f"score with context {size}", total, "translations") as advance:
            scores = contrast_scores(translator.task, generator, contrasts, context, advance)
        # A tie counts as wrong, since the model does not prefer the right translation.
        is_right = [bool(values[0] > values[1:].max()) for values in scores]
        version = f"relu_nmt-{relu_nmt.__version__}"
        signature = f"context:{size}|score:logprob-sum|ties:wrong|version:{version}"
        for category in accuracies(contrasts, is_right):
            name = f"accuracy[{category['category']}]"
            part = f"{category['right']}/{category['contrasts']}"
            score = f"{category['score']:.2f} ({part}) chance = {category['chance']:.2f}"
            text = f"{name} = {score} context = {size} signature: {signature}"
            yield text, {"name": "accuracy", **category, "context": size, "signature": signature}
