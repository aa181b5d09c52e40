"""The last lines and the files of the job that translates a split."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from relu_nmt.data.document_settings import SINGLE_SENTENCES
from relu_nmt.data.documents import DOCUMENT_TAG
from relu_nmt.data.groups import lengths_in_words
from relu_nmt.evaluation.split_scorer import SplitScorer
from relu_nmt.io.memory import peak_gpu_bytes, peak_resident_bytes
from relu_nmt.io.safe_write import json_text, write_output
from relu_nmt.jobs.translate.notes import length_note, limit_note, share
from relu_nmt.jobs.translate.settings import TranslateSplitSettings
from relu_nmt.jobs.translate.split_plan import SplitPlan, SplitTranslation
from relu_nmt.translation.search.translations import Line

DOCUMENT_SCORES = ("d_bleu", "s_bleu", "group_bleu", "chrf")


@dataclass(frozen=True)
class SplitSummary:
    """The last lines and the files about the translation of a split."""

    settings: TranslateSplitSettings
    plan: SplitPlan
    result: SplitTranslation
    scorer: SplitScorer | None  # compares with the references. None: there are none
    trained: int  # the longest group of the model's training, in tokens

    def lines(self) -> Iterator[str]:
        """Yield the last lines: notes, speed and scores."""
        result = self.result
        yield self._length_note()
        yield "NOTE: hypothesis and token scores are output in base 2"
        if result.lengths is not None:
            yield f"{self.plan.split.name}: {lengths_in_words(result.lengths)}"
            yield self._mismatch_line()
        yield limit_note(result.num_at_limit, self.plan.config)
        # Print the speed as fairseq does.
        sentences = sum(result.counts)
        sentences_per_second = sentences / max(result.seconds, 1e-9)
        yield (
            f"| Translated {sentences:,} sentences ({result.num_tokens:,} tokens) in "
            f"{result.seconds:.1f}s ({sentences_per_second:.2f} sentences/s, "
            f"{result.tokens_per_second:.2f} tokens/s)"
        )
        yield from self._score_lines()

    def _length_note(self) -> str:
        """Return a note on the length of the windows. "" for a model of sentences by default."""
        limit = self.settings.max_doc_tokens
        trained = self.trained
        is_divided = self.plan.split.documents is not None
        if limit is None and trained == SINGLE_SENTENCES and not is_divided:
            return ""
        return length_note(limit, trained, is_divided)

    def _mismatch_line(self) -> str:
        """Return the line that counts groups with another number of sentences."""
        result = self.result
        num_groups = len(result.groups)
        if result.num_mismatched is None:
            return (
                f"Groups: {num_groups:,}; the model was trained without --sentence-separator, so "
                f"that {result.num_undivided:,} of them are not cut into sentences"
            )
        wrong = share(result.num_mismatched, num_groups)
        return f"Groups: {num_groups:,}; mismatch of the number of sentences: {wrong}"

    def _score_lines(self) -> Iterator[str]:
        """Yield a line for each score, after notes on the references."""
        options = self.settings
        split = self.plan.split
        scores = self.result.scores
        if scores and split.raw_target is None:
            yield "NOTE: the folder keeps no raw references; scored on its dictionary's tokens"
        if self.scorer is not None and self.scorer.note and scores.keys() - {"chrf"}:
            yield f"NOTE: {self.scorer.note}"
        part = ""
        if options.num_shards > 1:
            part = f", shard {options.shard_id} of {options.num_shards},"
        beginning = f"Generate {split.name}{part} with beam={self.plan.config.beam}"
        for score in scores.values():
            yield f"{beginning}: {score}"
        # Give the reason if the score of sentences is missing.
        cut = self.plan.has_documents and self.result.num_mismatched is not None
        if cut and scores and "s_bleu" not in scores:
            reason = "no document has as many sentences as its reference"
            yield f"{beginning}: s-BLEU: none, {reason}"

    def write(self) -> list[str]:
        """Write the files of ``--output`` and ``--results``. Return notes on the output."""
        options = self.settings
        notes: list[str] = []
        if options.output is not None:
            documents = self.result.documents
            text, notes = documents_text(documents, options.output_separator, options.output)
            write_output("--output", options.output, text)
        if options.results is not None:
            write_output("--results", options.results, json_text(self._values()))
        return notes

    def _values(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        plan = self.plan
        result = self.result
        num_mismatched = result.num_mismatched
        num_groups = len(result.groups)
        scorer = self.scorer
        mismatch_rate = None
        if num_mismatched is not None:
            mismatch_rate = num_mismatched / max(1, num_groups)
        # Store null for scores that were not computed.
        scores: dict[str, dict[str, Any] | None] = dict.fromkeys(DOCUMENT_SCORES)
        for name, score in result.scores.items():
            scores[name] = {"score": score.value, "signature": score.signature}
        # Count n-grams by document, and score sentences by position.
        statistics = None
        by_position = None
        if scorer is not None and result.groups:
            statistics = scorer.document_statistics(result.documents).to_json()
            if num_mismatched is not None:
                by_position = scorer.scores_by_position(result.aligned)
        return {
            "split": plan.split.name,
            "max_doc_tokens": plan.windows.max_doc_tokens,
            "window_overlap": plan.windows.window_overlap,
            "count_source_only": plan.counts_source_only,
            "beam": plan.config.beam,
            "documents": len(plan.document_sizes),
            "sentences": len(plan.split),
            "groups": num_groups,
            "tokens": result.num_tokens,
            "seconds": result.seconds,
            "tokens_per_second": result.tokens_per_second,
            "mismatches": num_mismatched,
            "mismatch_rate": mismatch_rate,
            "at_limit": result.num_at_limit,
            "memory_bytes": peak_resident_bytes(),
            "gpu_memory_bytes": peak_gpu_bytes(),
            **scores,
            "s_bleu_by_position": by_position,
            "lengths": result.lengths,
            "document_statistics": statistics,
        }


def documents_text(
    documents: Sequence[Sequence[Line]], separator: str, path: str
) -> tuple[str, list[str]]:
    """Return the documents as text, and notes on empty lines that the text leaves out."""
    lines = [[line.text for line in document] for document in documents]
    if separator == "tag":
        return "".join("\n".join([DOCUMENT_TAG, *texts, ""]) for texts in lines), []
    # Leave out empty lines, each of which would end the document.
    filled = [list(filter(str.strip, texts)) for texts in lines]
    num_lines = sum(map(len, lines))
    num_empty = num_lines - sum(map(len, filled))
    num_empty_documents = filled.count([])
    # Count a document that is one empty line as a document, not as a line.
    shares: list[str] = []
    if num_empty > num_empty_documents:
        shares.append(f"{share(num_empty, num_lines)} lines")
    if num_empty_documents:
        shares.append(f"{share(num_empty_documents, len(documents))} documents")
    ending = f"have an empty translation and are not in {path}; --output-separator tag keeps them"
    text = "\n".join("\n".join([*texts, ""]) for texts in filled if texts)
    return text, [f"NOTE: {part} {ending}" for part in shares]
