"""BLEU, chrF, TER and COMET of files of translations, and contrastive tests of a model."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import relu_nmt
from relu_nmt.data.documents import DOCUMENT_TAG, SEPARATOR_TESTS, SEPARATORS, read_documents
from relu_nmt.errors import DataError, counted
from relu_nmt.evaluation import document_scores as docs
from relu_nmt.evaluation.contrasts import accuracies, contrast_scores, read_contrasts
from relu_nmt.evaluation.metrics import Metric, Score, choose_tokenizer, comet_score
from relu_nmt.evaluation.significance import paired_bootstrap
from relu_nmt.io.progress import hidden_progress, progress_bar
from relu_nmt.io.safe_write import check_writable, json_text, write_output
from relu_nmt.io.text_lines import named_input, read_input
from relu_nmt.jobs.score.settings import COMET
from relu_nmt.jobs.score.settings import ScoreSettings as Settings

FEW_SEGMENTS = 20
"""With fewer segments the p-value of a bootstrap says little."""
Entry = tuple[str, dict[str, Any]]  # one result: the line to print, and the same for JSON


def run(settings: Settings, *, progress: bool = True) -> dict[str, float]:
    """Score translations, or run a contrastive test of a model.

    Returns:
        The first score of each name, such as ``BLEU``, ``d-BLEU`` or ``accuracy``.
    """
    check_writable("--results", settings.results)
    as_lines = progress and settings.format == "text"
    report = _text_report
    if settings.contrastive:
        report = _contrast_report
    elif settings.sentence_bleu:
        report = _sentence_report
    entries: list[dict[str, Any]] = []
    with hidden_progress(not progress):
        for line, values in report(settings):
            entries.append(values)
            if as_lines:
                print(line, flush=True)
    text = json_text(entries)
    if progress and not as_lines:
        print(text, end="")
    if settings.results is not None:
        write_output("--results", settings.results, text)
    # Keep the first score of each name.
    return {values["name"]: values["score"] for values in reversed(entries) if "name" in values}


def _sentence_report(options: Settings) -> Iterator[Entry]:
    """Yield the BLEU of each line, then the signature."""
    texts = _Texts(options)
    tokenizer, note = _tokenizer(options, texts)
    metric = Metric("bleu", options.ignore_case, tokenizer, options.order)
    for number, (line, *references) in enumerate(
        zip(texts.hypotheses, *texts.references, strict=True)
    ):
        score = metric.sentence_score(line, references)
        yield f"{number} {score.text}", {"line": number, **_entry(score)[1]}
    # Print the signature once, since all lines share it.
    if texts.hypotheses:
        yield f"signature: {score.signature}", {"signature": score.signature}
    yield from _notes(note)


def _text_report(options: Settings) -> Iterator[Entry]:
    """Yield all scores of whole files."""
    # Read everything before the first score, so that mistakes are reported first.
    texts = _Texts(options)
    if not texts.hypotheses:
        raise DataError(f"{named_input(options.sys)}: no lines to score; give a text with some")
    tokenizer, note = _tokenizer(options, texts)
    metrics = []
    for name in options.metrics:
        if name != COMET:
            metric = Metric(name, options.ignore_case, tokenizer, options.order)
            metrics.append(replace(metric, word_order=options.chrf_word_order))
    if options.has_documents:
        aligned = docs.AlignedDocuments(texts.system, texts.reference_sets, options.language)
        for metric in metrics:
            yield from _document_scores(metric, aligned, options.position_buckets)
    else:
        for metric in metrics:
            yield _entry(metric.score(texts.hypotheses, texts.references))
    if "bleu" in options.metrics or options.length_buckets:
        yield from _notes(note)
    if COMET in options.metrics and options.src is not None:
        yield _comet_score(options, options.src, texts)
    if options.length_buckets:
        for metric in metrics:
            yield from _bucket_scores(metric, texts, options.length_buckets)
    if texts.baseline is not None:
        if len(texts.baseline) < FEW_SEGMENTS:
            count = counted(len(texts.baseline), texts.unit)
            yield from _notes(f"only {count}: the p-values below say little")
        for metric in metrics:
            line, values = paired_bootstrap(
                metric,
                texts.hypotheses,
                texts.baseline,
                texts.references,
                options.paired_bs_n,
                texts.prefix,
            )
            yield line, {"paired bootstrap": values}


class _Texts:
    """The translations, references and baseline, by document or line, and as segments to score."""

    def __init__(self, options: Settings) -> None:
        self._options = options
        self.unit = "line"
        self.prefix = ""
        if options.has_documents:
            self.unit = "document"
            self.prefix = "d-"
        # Read the references first, since the translations are compared with their number.
        self.reference_sets = [self._documents(path) for path in options.references]
        self.references = list(map(self._segments, self.reference_sets))
        self.system = self._translations(options.sys)
        self.hypotheses = self._segments(self.system)
        self.baseline = None
        if options.baseline is not None:
            self.baseline = self._segments(self._translations(options.baseline))

    def _documents(self, path: str) -> docs.Documents:
        """Return the documents of a file, cut by ``--documents`` or at separators."""
        options = self._options
        lines = read_input(path)
        if not options.has_documents:
            return [[line] for line in lines]
        if options.documents is not None:
            return _cut_by_counts(lines, options.documents, named_input(path))
        separator = options.document_separator
        if separator == "tag" and lines and not any(map(SEPARATOR_TESTS["tag"], lines)):
            raise DataError(
                f"{named_input(path)}: no line {DOCUMENT_TAG} in it, but --document-separator tag "
                "expects one before each document, in all files"
            )
        return docs.split_at_separators(lines, separator)

    def _translations(self, path: str) -> docs.Documents:
        """Return the documents of translations, as many as of each set of references."""
        system = self._documents(path)
        same = "sentences in the same order"
        if self._options.has_documents:
            same = (
                "documents in the same order (an empty translation looks like a blank separator: "
                "use --documents or <d> lines)"
            )
        for reference_path, references in zip(
            self._options.references, self.reference_sets, strict=True
        ):
            if len(references) != len(system):
                raise DataError(
                    f"{named_input(reference_path)}: {counted(len(references), self.unit)}, but "
                    f"{named_input(path)} has {len(system):,}; both need the same {same}"
                )
        # Divide joined lines at the symbol between sentences, if one is given.
        if self._options.sentence_separator is not None:
            system = docs.split_sentences(system, self._options.sentence_separator)
        return system

    def _segments(self, documents: docs.Documents) -> list[str]:
        """Return the segments of a text: whole documents, or lines."""
        if self._options.has_documents:
            return docs.join_lines(documents, self._options.language)
        return [line for (line,) in documents]


def _cut_by_counts(lines: list[str], counts: str, name: str) -> docs.Documents:
    """Cut a text into documents by a file with their numbers of lines."""
    sizes = read_documents(counts)
    # Refuse a text that has separators itself, which the counts do not include.
    for separator in SEPARATORS[1:]:
        between = sum(map(SEPARATOR_TESTS[separator], lines))
        if between and len(lines) == sizes.sum() + between:
            raise DataError(
                f"{name} with {counts}: there are separators in the text itself; give "
                f"--document-separator {separator} instead of --documents, for all files"
            )
    return docs.cut_by_counts(lines, sizes, f"{name} with {counts}")


def _tokenizer(options: Settings, texts: _Texts) -> tuple[str, str]:
    if options.sacrebleu_tokenizer:
        return options.sacrebleu_tokenizer, ""
    return choose_tokenizer(options.language, texts.references[0])


def _comet_score(options: Settings, path: str, texts: _Texts) -> Entry:
    """Return the score of COMET, which also reads the sources."""
    sources = read_input(path)
    if len(sources) != len(texts.hypotheses):
        raise DataError(
            f"{path}: {counted(len(sources), 'line')}, but {named_input(options.sys)} has "
            f"{len(texts.hypotheses):,}; both need the same sentences in the same order"
        )
    return _entry(comet_score(options.comet_model, sources, texts.hypotheses, texts.references[0]))


def _bucket_scores(metric: Metric, texts: _Texts, edges: Sequence[int]) -> Iterator[Entry]:
    """Yield the scores of segments by the length of their references."""
    buckets = docs.length_buckets(metric.reference_lengths(texts.references[0]), edges)
    for bucket, size, score in docs.bucket_scores(
        metric, buckets, texts.hypotheses, texts.references
    ):
        if score is not None:
            labeled = score.labeled(texts.prefix, f"{texts.unit}s = {size}", bucket)
            yield _entry(labeled, bucket=bucket, segments=size)


def _document_scores(
    metric: Metric, aligned: docs.AlignedDocuments, edges: Sequence[int]
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
            labeled = score.labeled("s-", f"sentences = {size}", f"position {bucket}")
            yield _entry(labeled, **values)


def _notes(text: str) -> Iterator[Entry]:
    if text:
        yield f"NOTE: {text}", {"note": text}


def _entry(score: Score, **details: object) -> Entry:
    values = {"name": score.name, "score": score.value, "text": score.text}
    return str(score), {**values, "signature": score.signature, **details}


def _contrast_report(options: Settings) -> Iterator[Entry]:
    """Yield the accuracies with and without context, of all contrasts and by category."""
    # Import PyTorch only here, since its import takes longer than scoring most texts.
    from relu_nmt.translation.search.config import GenerationConfig
    from relu_nmt.translator import Translator

    # Read the file before the model, and keep the contrasts in the model's source language.
    all_contrasts = read_contrasts(options.contrastive)
    translator = Translator.from_checkpoint(options.path, "cpu" if options.cpu else None)
    language = translator.task.source_lang
    contrasts = []
    left_out: Counter[str] = Counter()
    for contrast in all_contrasts:
        if contrast.source_language == language:
            contrasts.append(contrast)
        else:
            left_out[contrast.source_language] += 1
    if not contrasts:
        raise DataError(
            f"{options.contrastive}: sentences in {', '.join(sorted(left_out))}, but the model "
            f"translates from {language}"
        )
    if left_out:
        counts = ", ".join(f"{count:,} in {name}" for name, count in left_out.items())
        text = f"NOTE: left out {counts}: the model translates from {language}"
        yield text, {"left out": dict(left_out)}
    # Score with context, then without, to show its effect.
    search = GenerationConfig(score_reference=True, batch_size=options.batch_size)
    generator = translator.generator(search)
    total = sum(1 + len(contrast.contrasts) for contrast in contrasts)
    for context, size in ((None, "all"), (0, "0")):
        with progress_bar(f"score with context {size}", total, "translations") as advance:
            scores = contrast_scores(translator.task, generator, contrasts, context, advance)
        # A tie counts as wrong, since the model does not prefer the right translation.
        is_right = [bool(right > max(wrong)) for right, *wrong in scores]
        version = f"relu_nmt-{relu_nmt.__version__}"
        signature = f"context:{size}|score:logprob-sum|ties:wrong|version:{version}"
        for category in accuracies(contrasts, is_right):
            name = f"accuracy[{category['category']}]"
            part = f"{category['right']}/{category['contrasts']}"
            score = f"{category['score']:.2f} ({part}) chance = {category['chance']:.2f}"
            text = f"{name} = {score} context = {size} signature: {signature}"
            yield text, {"name": "accuracy", **category, "context": size, "signature": signature}
