"""Parts of the jobs that translate: the model, the printed lines, the options, the notes."""

import json
import math
import sys
from collections.abc import Sequence
from typing import Any

import torch

from relu_nmt.config import split_paths
from relu_nmt.data.data_folder import pair_name
from relu_nmt.data.documents import SINGLE_SENTENCES
from relu_nmt.data.translation_batches import least_limit
from relu_nmt.errors import ConfigError, printable
from relu_nmt.io.text_lines import read_lines
from relu_nmt.jobs.translate.settings import (
    BannedTermOptions,
    ModelOptions,
    TermOptions,
    model_overrides,
)
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.training.distributed import keep_freed_memory
from relu_nmt.training.precision import autocast_dtype
from relu_nmt.translation.agreement import at_folder
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.shortlist import Shortlist
from relu_nmt.translation.search.translations import SourceLimit, SourceSentence, Translation
from relu_nmt.translation.task import ESCAPED_UNK, TranslationTask
from relu_nmt.translator import Translator
from relu_nmt.translator.models import load_models


def load_translator(options: ModelOptions, data: str | None = None) -> Translator:
    """Load the translator that the options describe."""
    device = "cuda" if torch.cuda.is_available() and not options.cpu else "cpu"
    if device == "cpu":
        keep_freed_memory()
    dtype = autocast_dtype(options, torch.device(device))
    if options.int8:
        dtype = torch.int8
    overrides = model_overrides(options.model_overrides)
    models, task, max_doc_tokens = load_models(options.path, options.attention_backend, overrides)
    task = _adapted_task(task, options, data)
    shortlist = None
    if options.shortlist is not None:
        shortlist = Shortlist.load(
            options.shortlist,
            task.source_dictionary,
            task.target_dictionary,
            pair_name(task.source_lang, task.target_lang),
        )
    return Translator(models, task, device, dtype, max_doc_tokens, packed=True, shortlist=shortlist)


def _adapted_task(
    task: TranslationTask, options: ModelOptions, data: str | None
) -> TranslationTask:
    for side in ("source", "target"):
        language = getattr(options, f"{side}_lang")
        task_language = getattr(task, f"{side}_lang")
        if language not in (None, task_language):
            raise ConfigError(f"--{side}-lang {language}: the checkpoint's is {task_language}")
    if data is not None:
        # Use the first folder. Only training reads several, as in fairseq.
        task = at_folder(task, split_paths(data, ":")[0], options.path)
    # Text that this package has split is joined anyway. The flag then only changes printed tokens.
    symbol = None
    if task.target_text.keeps_text:
        symbol = options.post_process
    return task.with_post_processing(symbol, options.tokenizer)


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


def term_options(settings: TermOptions) -> dict[str, Any]:
    """Return the fields of a request that are the same for all lines."""
    return {
        "ordered": settings.constraints != "unordered",
        "split_sentences": settings.split_sentences,
        **banned_options(settings),
    }


def banned_options(settings: BannedTermOptions) -> dict[str, Any]:
    """Return the fields of a request that ban terms."""
    banned: Sequence[str] = ()
    if settings.banned_terms is not None:
        banned = read_lines(settings.banned_terms)
    return {
        "banned": banned,
        "match_case": settings.match_case,
        "inside_words": settings.inside_words,
    }


def source_limit(options: ModelOptions, translator: Translator) -> SourceLimit:
    """Return the longest source to translate, and whether longer ones are cut or left out."""
    separators = translator.task.separators
    sentence_limit = translator.ensemble.max_source_sentence_positions
    if sentence_limit is not None and separators is not None:
        sentence_limit += separators.alone  # </s> follows the separator of the last sentence
    limits = (options.max_source_length, translator.max_source_positions, sentence_limit)
    separator = None if separators is None else separators.source
    return SourceLimit(least_limit(limits), options.truncate_source, separator)


def limit_note(number: int, config: GenerationConfig) -> str:
    """Return a note on translations that may be cut off, or an empty text."""
    if not number:
        return ""
    a, b = config.longest_output
    return (
        f"NOTE: {number:,} translations reached the longest output ({a:g} * source "
        f"+ {b} tokens, or what the model can write) and may be cut off; "
        "--max-len-a and --max-len-b change it"
    )


def length_note(max_doc_tokens: int | None, trained: int, has_documents: bool = True) -> str:
    """Return a note on the number of tokens that are translated at once, with the reason.

    ``max_doc_tokens`` is the flag's value or None, ``trained`` the longest group in training.

    Example:
        >>> length_note(None, 128)
        'NOTE: sentences are joined up to 128 tokens, as in training; --max-doc-tokens changes it'
    """
    # Name the length that is used. If it is not the length of training, give the reason.
    training = f"the model was trained on up to {trained} tokens"
    if trained == SINGLE_SENTENCES:
        training = "the model was trained on single sentences"
    if max_doc_tokens is not None and max_doc_tokens > trained:
        return f"NOTE: --max-doc-tokens {max_doc_tokens}, but {training}"
    limit = max_doc_tokens or trained
    if max_doc_tokens is None and not has_documents:
        limit = SINGLE_SENTENCES
    unit = f"sentences are joined up to {limit} tokens"
    if limit == SINGLE_SENTENCES:
        unit = "single sentences are translated"
    if max_doc_tokens is not None:
        return f"NOTE: {unit} (--max-doc-tokens {max_doc_tokens}); {training}"
    if limit < trained:
        return f"NOTE: {unit}, as the data has no boundaries of documents; {training}"
    return f"NOTE: {unit}, as in training; --max-doc-tokens changes it"


def print_notes(*notes: str) -> None:
    """Print the notes that are not empty on standard error."""
    for note in filter(None, notes):
        print(printable(note), file=sys.stderr)


def share(number: int, total: int) -> str:
    """Return ``3 of 40 (7.50%)``."""
    return f"{number:,} of {total:,} ({number / max(1, total):.2%})"
