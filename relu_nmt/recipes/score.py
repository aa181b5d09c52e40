"""BLEU, chrF, TER and COMET of files of translations, and contrastive tests of a model."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from relu_nmt.cli.score import COMET
from relu_nmt.cli.score import ScoreSettings as Settings
from relu_nmt.data.documents import DOCUMENT_TAG, SEPARATOR_TESTS, SEPARATORS, read_documents
from relu_nmt.errors import DataError
from relu_nmt.evaluation import document_scores as docs
from relu_nmt.evaluation.document_scores import bucket_scores, length_buckets
from relu_nmt.evaluation.metrics import MetricConfig, Score, choose_tokenizer, comet_score
from relu_nmt.evaluation.significance import paired_bootstrap
from relu_nmt.io.safe_write import check_writable, write_file
from relu_nmt.io.text_lines import read_input
from relu_nmt.io.work import hidden_progress

FEW_SEGMENTS = 20
"""With fewer segments, resamples differ so little that the p-value of a bootstrap says little."""


Entry = tuple[str, dict[str, Any]]
"""One result: the line to print, and the same for JSON."""


@dataclass(frozen=True)
class ScoreResult:
    """All results, in the order of printing."""

    entries: tuple[Entry, ...]

    def __getitem__(self, name: str) -> float:
        """Return the first score of that name, such as ``BLEU``, ``d-BLEU`` or ``accuracy``.

        Raises:
            KeyError: no score has this name.
        """
        for _, values in self.entries:
            if values.get("name") == name:
                return values["score"]
        raise KeyError(name)


def run(settings: Settings, *, progress: bool = True) -> ScoreResult:
    """Score translations, or run a contrastive test of a model.

    Raises:
        ConfigError: the tokeniser is unknown, or buckets do not rise.
        DataError: lines or documents of the files do not fit, or a file cannot be written.
        CheckpointError: the model of a contrastive test cannot be read.
    """
    check_writable("--results", settings.results)
    as_lines = progress and settings.format == "text"
    if settings.contrastive:
        # Import PyTorch for this alone, since that takes longer than scoring most texts.
        from relu_nmt.recipes.score_contrasts import contrast_report

        found = contrast_report(settings)
    elif settings.sentence_bleu:
        found = sentence_report(settings)
    else:
        found = text_report(settings)
    # Collect the scores, which the generators compute one at a time.
    entries = []
    with hidden_progress(not progress):
        for entry in found:
            entries.append(entry)
            if as_lines:
                print(entry[0], flush=True)
    text = json.dumps([values for _, values in entries], indent=1, ensure_ascii=False)
    if progress and not as_lines:
        print(text)
    if settings.results is not None:
        write_file("--results", settings.results, text + "\n")
    return ScoreResult(tuple(entries))


def sentence_report(options: Settings) -> Iterator[Entry]:
    """Yield the BLEU of each line, then the signature."""
    texts = _Texts(options)
    tokenizer, note = texts.tokenizer()
    metric = MetricConfig("bleu", options.ignore_case, tokenizer, options.order)
    lines = zip(texts.hypotheses, *texts.references, strict=True)
    for number, (own, *others) in enumerate(lines):
        score = metric.sentence_score(own, others)
        yield f"{number} {score.text}", {"line": number, **_values(score)}
    # Print the signature once, since all lines share it.
    if texts.hypotheses:
        yield f"signature: {score.signature}", {"signature": score.signature}
    yield from _notes(note)


def text_report(options: Settings) -> Iterator[Entry]:
    """Yield all scores of whole files."""
    # Read everything before the first score, so that mistakes are reported first.
    texts = _Texts(options)
    tokenizer, note = texts.tokenizer()
    case, orders = options.ignore_case, (options.order, options.chrf_word_order)
    metrics = [MetricConfig(m, case, tokenizer, *orders) for m in options.metrics if m != COMET]
    baseline = None if options.baseline is None else texts.baseline(options.baseline)
    # Scores of all segments, by metric.
    for metric in metrics:
        yield from texts.scores(metric)
    if "bleu" in options.metrics or options.length_buckets:
        yield from _notes(note)
    # Score with COMET, which also reads the sources.
    if COMET in options.metrics and options.src is not None:
        sources = read_input(options.src)
        if len(sources) != len(texts.hypotheses):
            raise DataError(
                f"{options.src}: {len(sources):,} lines, but {_name(options.sys)} has "
                f"{len(texts.hypotheses):,}; both need the same sentences in the same order"
            )
        score = comet_score(options.comet_model, sources, texts.hypotheses, texts.references[0])
        yield _entry(score)
    # Score the segments by the length of their references.
    if options.length_buckets:
        for metric in metrics:
            yield from _by_length(metric, texts, options.length_buckets)
    # Comparison with the baseline.
    if baseline is not None:
        if len(baseline) < FEW_SEGMENTS:
            text = f"only {len(baseline)} {texts.counted}: the p-values below say little"
            yield from _notes(text)
        for metric in metrics:
            comparison = paired_bootstrap(
                metric,
                texts.hypotheses,
                baseline,
                texts.references,
                options.paired_bs_n,
                texts.prefix,
            )
            yield str(comparison), {"paired bootstrap": dataclasses.asdict(comparison)}


class _Texts:
    """Translations and references by document; without boundaries each line is a document.

    Attributes:
        hypotheses: the translations, a segment each: a line, or a whole document.
        references: for each set, the same number of segments.
        prefix: stands before names of scores.
        counted: "documents" or "lines", the kind of segments.
    """

    def __init__(self, options: Settings) -> None:
        self._options, self._has_documents = options, options.has_documents
        self.prefix, self.counted = ("d-", "documents") if self._has_documents else ("", "lines")
        paths = options.ref.split(",")
        self._language = options.language
        self._references = [(path, self._read(path, options.documents)) for path in paths]
        # Read the translations last, since they are checked against the references.
        found = self._translations(options.sys, options.sys_documents)
        self.hypotheses = self._segments(found)
        self.references = [self._segments(own) for _, own in self._references]
        # Align the sentences of each document, for scores of sentences.
        if self._has_documents:
            references = [own for _, own in self._references]
            self._aligned = docs.AlignedDocuments(found, references, self._language)

    def _segments(self, documents: docs.Documents) -> list[str]:
        if self._has_documents:
            return docs.join_lines(documents, self._language)
        return [line for (line,) in documents]

    def _read(self, path: str, counts: str | None) -> docs.Documents:
        lines = read_input(path)
        if not self._has_documents:
            return [[line] for line in lines]
        if counts is None:
            separator = self._options.document_separator
            if separator == "tag" and lines and not any(map(SEPARATOR_TESTS["tag"], lines)):
                raise DataError(
                    f"{_name(path)}: no line {DOCUMENT_TAG} in it, but --document-separator tag "
                    "expects one before each document, in all files"
                )
            return docs.split_at_separators(lines, separator)
        # Warn if the text itself has separators, which the counts do not include.
        sizes = read_documents(counts)
        for separator in SEPARATORS[1:]:
            between = sum(map(SEPARATOR_TESTS[separator], lines))
            if between and len(lines) == sizes.sum() + between:
                raise DataError(
                    f"{_name(path)} with {counts}: there are separators in the text itself; give "
                    f"--document-separator {separator} instead of --documents, for all files"
                )
        return docs.cut_by_counts(lines, sizes, f"{_name(path)} with {counts}")

    def _translations(self, path: str, counts: str | None) -> docs.Documents:
        """Read the translations of a system, and check them against the references."""
        found = self._read(path, counts or self._options.documents)
        same = "sentences in the same order"
        if self._has_documents:
            same = (
                "documents in the same order (an empty translation looks like a blank separator: "
                "use --documents or <d> lines)"
            )
        # Require as many documents or lines as in each reference.
        for reference, documents in self._references:
            if len(documents) != len(found):
                raise DataError(
                    f"{_name(reference)}: {len(documents):,} {self.counted}, but {_name(path)} has "
                    f"{len(found):,}; both need the same {same}"
                )
        # Divide joined lines at the symbol between sentences, if one is given.
        separator = self._options.sentence_separator
        return found if separator is None else docs.split_sentences(found, separator)

    def tokenizer(self) -> tuple[str, str]:
        """Return the tokeniser of BLEU, and a note about it."""
        if given := self._options.sacrebleu_tokenizer:
            return given, ""
        return choose_tokenizer(self._options.language, self.references[0])

    def baseline(self, path: str) -> list[str]:
        """Return the segments of the other system."""
        return self._segments(self._translations(path, self._options.baseline_documents))

    def scores(self, metric: MetricConfig) -> Iterator[Entry]:
        """Yield the score of the segments; of documents also the score of their sentences."""
        if not self._has_documents:
            yield _entry(metric.score(self.hypotheses, self.references))
            return
        number, aligned = len(self.hypotheses), self._aligned
        whole = aligned.document_score(metric)
        yield _entry(whole, documents=number)
        mismatch = {"documents": number, "mismatched_documents": aligned.num_mismatched}
        # Score the sentences of documents that have as many lines as their reference.
        score = aligned.sentence_score(metric)
        if score is None:
            name = whole.name.replace("d-", "s-", 1)
            reason = "no document has as many lines as its reference"
            yield f"{name}: none, {reason}", {"name": name, "score": None, **mismatch}
            return
        yield _entry(score, **mismatch)
        if self._options.position_buckets:
            yield from self._by_position(metric, score.name)

    def _by_position(self, metric: MetricConfig, name: str) -> Iterator[Entry]:
        edges = self._options.position_buckets
        for bucket, size, score in self._aligned.position_scores(metric, edges):
            title, more = f"{name}[position {bucket}]", {"position": bucket, "segments": size}
            if score is None:
                text = f"{title}: none, no aligned document is that long"
                yield text, {"name": title, "score": None, **more}
            else:
                shown = score.labelled("s-", f"sentences = {size}")
                yield _entry(shown.of_bucket(f"position {bucket}"), **more)


def _by_length(metric: MetricConfig, texts: _Texts, edges: Sequence[int]) -> Iterator[Entry]:
    buckets = length_buckets(metric.reference_lengths(texts.references[0]), edges)
    for bucket, size, score in bucket_scores(metric, buckets, texts.hypotheses, texts.references):
        if score is not None:
            shown = score.labelled(texts.prefix, f"{texts.counted} = {size}").of_bucket(bucket)
            yield _entry(shown, bucket=bucket, segments=size)


def _notes(text: str) -> Iterator[Entry]:
    if text:
        yield f"NOTE: {text}", {"note": text}


def _entry(score: Score, **more: object) -> Entry:
    return str(score), {**_values(score), **more}


def _values(score: Score) -> dict[str, object]:
    return {
        "name": score.name,
        "score": score.value,
        "text": score.text,
        "signature": score.signature,
    }


def _name(path: str) -> str:
    return "standard input" if path == "-" else path
