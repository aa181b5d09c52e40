"""The output lines of the jobs that translate: fairseq's, or JSON."""

import json
import math
from collections.abc import Sequence

from relu_nmt.jobs.translate.settings import ModelOptions
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.translations import SourceSentence, Translation
from relu_nmt.translation.task import ESCAPED_UNK, TranslationTask


class LineFormat:
    """Formatter of the output lines: fairseq's, or JSON."""

    def __init__(
        self, task: TranslationTask, model: ModelOptions, search: GenerationConfig
    ) -> None:
        self._task = task
        self._join_subwords = model.post_process is not None
        self._print_alignment = search.print_alignment is not None

    def source(self, number: int, source: SourceSentence, tokens: list[str]) -> list[str]:
        """Return the ``S-`` line, a ``C-`` line for each forced term, and a reference's ``T-``."""
        task = self._task
        symbols_of = task.target_dictionary.symbols_of
        lines = [f"S-{number}\t{self._joined(tokens, task.source_text)}"]
        if source.forced is not None:
            for term in source.forced.terms:
                lines.append(f"C-{number}\t{self._joined(symbols_of(term), task.target_text)}")
        if source.reference is not None:
            reference = symbols_of(source.reference, ESCAPED_UNK)
            lines.append(f"T-{number}\t{self._joined(reference, task.target_text)}")
        return lines

    def hypothesis(self, number: int, translation: Translation) -> list[str]:
        """Return the ``H-``, ``D-``, ``P-`` and ``A-`` lines. Scores are in base 2."""
        score = translation.score / math.log(2)
        by_position = translation.hypothesis.positional_scores / math.log(2)
        lines = [
            f"H-{number}\t{score}\t{self._joined(translation.tokens, self._task.target_text)}",
            self._text(number, translation),
            f"P-{number}\t{' '.join(map('{:.4f}'.format, by_position))}",
        ]
        alignment = translation.alignment
        if self._print_alignment and alignment is not None:
            # Leave out tokens that attend to no token of this source.
            pairs = [f"{source}-{i}" for i, source in enumerate(alignment) if source >= 0]
            lines.append(f"A-{number}\t{' '.join(pairs)}")
        return lines

    def nbest(self, number: int, translations: Sequence[Translation], count: int) -> list[str]:
        """Return ``count`` ``D-`` lines. Lines without a translation are empty and come last."""
        lines = [self._text(number, translation) for translation in translations]
        return lines + [f"D-{number}\t{-math.inf}\t"] * (count - len(lines))

    def json(
        self, number: int, line: str, source: SourceSentence, translations: Sequence[Translation]
    ) -> str:
        """Return a line and its translations as JSON. Scores are in nats, not base 2."""
        entries = []
        for translation in translations:
            scores = translation.hypothesis.positional_scores.tolist()
            entry = {
                "text": translation.text,
                "score": translation.score,
                "tokens": translation.tokens,
                "token_scores": [round(score, 6) for score in scores],
                "reached_limit": translation.reached_limit,
            }
            if not math.isfinite(translation.score):
                entry["score"] = None  # since JSON has no infinite numbers
            if self._print_alignment and translation.alignment is not None:
                entry["alignment"] = translation.alignment.tolist()
            entries.append(entry)
        record = {"id": number, "source": line, "source_tokens": source.tokens}
        record |= {"score_unit": "nats", "translations": entries}
        return json.dumps(record, ensure_ascii=False)

    def _text(self, number: int, translation: Translation) -> str:
        return f"D-{number}\t{translation.score / math.log(2)}\t{translation.text}"

    def _joined(self, tokens: list[str], pipeline: TextPipeline) -> str:
        if self._join_subwords:
            tokens = pipeline.join_words(tokens)
        return " ".join(tokens)
