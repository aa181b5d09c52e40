"""Requests to translate raw text, and their lines as token ids."""

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from relu_nmt.data.dictionary import SPECIAL_SYMBOLS
from relu_nmt.data.document_settings import SINGLE_SENTENCES, WindowConfig
from relu_nmt.errors import ConfigError, DataError, counted, refuse_unordered, reporting
from relu_nmt.io.plain_text import refuse_markup, refuse_utf16
from relu_nmt.tokenization.pipeline import LANGUAGE_CODE
from relu_nmt.tokenization.sentences import SentenceSplitter
from relu_nmt.translation.search.banned_terms import BannedTerms
from relu_nmt.translation.search.document_search import SINGLE_LINES, SourceDocuments
from relu_nmt.translation.search.forced_terms import ForcedTerms
from relu_nmt.translation.search.symbol_texts import SymbolTexts
from relu_nmt.translation.search.translations import ANY_LENGTH, SourceLimit, SourceSentence
from relu_nmt.translation.task import TranslationTask
from relu_nmt.translator.spans import Span, token_spans

T = TypeVar("T")


@dataclass
class TranslationRequest:
    """Lines to translate, one by one or as documents, and terms for their translations.

    ``prefixes``, ``forced`` and ``numbers`` have an entry for each line.

    Args:
        lines: raw sentences or paragraphs. A blank one has an empty translation.
        counts: number of lines of each document. None: each line is translated on its own.
        windows: division of the documents. None: groups of lines as long as in training.
        limit: the longest line to translate. Longer lines are cut or emptied.
        prefixes: beginning of each translation, in whole words. "" for no prefix.
        forced: terms that each translation must contain, at positions that do not overlap. [] for
            no terms. A term that is given twice occurs twice.
        ordered: force the terms of a line in their order.
        banned: terms of one or more words that no translation may contain outside forced text, in
            upper or lower case.
        match_case: allow banned terms in other capitals.
        inside_words: forced terms may be parts of words. Banned terms are banned inside words, too.
        split_sentences: translate the sentences of a line one by one, and join the translations.
            By default, do so if the model was trained on single sentences. Lines with a prefix or
            forced terms stay whole.
        numbers: line numbers for error messages, by default from 1.

    Raises:
        DataError: a list is a single text, or has another length than the lines.
    """

    lines: Sequence[str]
    counts: Sequence[int] | None = None
    windows: WindowConfig | None = None
    limit: SourceLimit = ANY_LENGTH
    prefixes: Sequence[str] | None = None
    forced: Sequence[Sequence[str]] | None = None
    ordered: bool = True
    banned: Sequence[str] = ()
    match_case: bool = False
    inside_words: bool = False
    split_sentences: bool | None = None
    numbers: Sequence[int] | None = None

    def __post_init__(self) -> None:
        self.lines = as_lines(self.lines)
        if isinstance(self.banned, set | frozenset):
            self.banned = sorted(self.banned)
        self.banned = as_lines(self.banned)
        if self.prefixes is not None:
            self.prefixes = as_lines(self.prefixes)
            _check_count(self.prefixes, self.lines, "prefix")
        if self.forced is not None:
            self.forced = list(map(as_lines, as_lines(self.forced)))
            _check_count(self.forced, self.lines, "term list")
        if self.numbers is not None:
            _check_count(self.numbers, self.lines, "number")
        if self.counts is not None:
            _check_documents(self.counts, self.lines)

    @classmethod
    def of_documents(
        cls, documents: Iterable[Iterable[str]], **options: Any
    ) -> "TranslationRequest":
        """Return a request for documents of raw text.

        ``options`` are further fields. Prefixes and forced terms are lists for each document.

        Raises:
            DataError: a list is a single text, or has another length than documents or lines.
        """
        # Read each document before the next one: groups of itertools.groupby end there.
        if isinstance(documents, str):
            raise DataError("documents are lists of lines, not one text; give [[text]] for a line")
        refuse_unordered(documents, "documents")
        texts = list(map(plain_lines, documents))
        for name, entry in (("prefixes", "prefix"), ("forced", "term list")):
            if options.get(name) is None:
                continue
            by_document = list(map(as_lines, as_lines(options[name])))
            if len(by_document) != len(texts):
                raise DataError("give prefixes and forced terms as a list for each document")
            for entries, lines in zip(by_document, texts, strict=True):
                _check_count(entries, lines, entry)
            options[name] = list(itertools.chain.from_iterable(by_document))
        numbers: list[int] = []
        for lines in texts:
            numbers += range(1, len(lines) + 1)
        lines = list(itertools.chain.from_iterable(texts))
        return cls(lines, list(map(len, texts)), numbers=numbers, **options)


def as_lines(texts: Iterable[T]) -> list[T]:
    """Return texts as a list (DataError: it is a single text, or has no order)."""
    refuse_unordered(texts, "lines")
    if isinstance(texts, str):
        raise DataError(
            f"a list of lines is wanted, not one text ({texts[:30]!r}); give [text], or "
            "text.split('\\n') for its lines"
        )
    return list(texts)


def plain_lines(lines: Iterable[str]) -> list[str]:
    """Return the lines of a text as a list (DataError: it is a single text, or no plain text)."""
    listed = as_lines(lines)
    # A line that is no text raises its error later, when it is encoded.
    texts = [line for line in listed if isinstance(line, str)]
    refuse_utf16("".join(texts).encode("utf-8", "surrogatepass"), "the text")
    refuse_markup(texts, "the text")
    return listed


TERMS = ("prefixes", "forced", "ordered", "banned", "match_case", "inside_words", "split_sentences")
"""Fields of :class:`TranslationRequest` that are options of :meth:`Translator.translate`."""


def _check_count(entries: Sequence[object], lines: Sequence[str], name: str) -> None:
    if len(entries) != len(lines):
        raise DataError(
            f"{counted(len(entries), name)}, but {counted(len(lines), 'line')}; give one for each"
        )


def _check_documents(counts: Sequence[int], lines: Sequence[str]) -> None:
    if min(counts, default=0) < 0 or sum(counts) != len(lines):
        raise DataError(
            f"documents of {list(counts)} lines, but there are {counted(len(lines), 'line')}; give "
            "the number of lines of each document"
        )


class SourceEncoder:
    """Encodes raw text as token ids. Hold ``text_lock`` for other work with the task's text."""

    def __init__(self, task: TranslationTask, max_doc_tokens: int = SINGLE_SENTENCES) -> None:
        self.task = task
        self.separators = task.separators
        self._max_doc_tokens = max_doc_tokens
        self.text_lock = threading.Lock()
        # Text steps without symbols around sentences. One tokenizer serves all terms, since making
        # one is slower than tokenizing a sentence.
        self._plain_source = replace(task.source_text, sentence_separator=None, first_symbol=None)
        self._plain_target = replace(task.target_text, sentence_separator=None, first_symbol=None)
        separator = -1
        if self.separators is not None:
            separator = self.separators.target
        with_case = replace(self._plain_target, lowercase=False)
        self._symbol_texts = SymbolTexts(with_case, task.target_dictionary, separator)
        # The last banned terms: consecutive requests of a command have the same.
        self._banned: tuple[tuple[Any, ...], BannedTerms | None] = ((), None)

    def splitter(
        self, split_sentences: bool | None = None, max_doc_tokens: int = SINGLE_SENTENCES
    ) -> SentenceSplitter | None:
        """Return the splitter that divides lines into sentences. None if lines stay whole.

        Raises:
            ConfigError: ``split_sentences`` is set, and lines are translated together.
        """
        is_required = split_sentences is True
        if split_sentences is None:
            split_sentences = self._max_doc_tokens == SINGLE_SENTENCES and self.separators is None
        if max_doc_tokens != SINGLE_SENTENCES and is_required:
            raise ConfigError(
                f"--split-sentences: lines up to {max_doc_tokens} tokens are translated together; "
                "give a line for each sentence, or --max-doc-tokens 1"
            )
        if max_doc_tokens != SINGLE_SENTENCES or not split_sentences:
            return None
        return SentenceSplitter(self._plain_source.language, is_required)

    def encode(
        self,
        request: TranslationRequest,
        read: Callable[[Iterator[SourceSentence]], list[SourceSentence]] = list,
    ) -> SourceDocuments:
        """Return the documents of a request as ids. ``read`` makes a list of their sentences."""
        counts = request.counts
        windows = request.windows
        if windows is None and counts is not None:
            windows = WindowConfig(self._max_doc_tokens, repair=True)
        windows = windows or SINGLE_LINES
        # A line may have several sentences, which are translated one by one.
        split = self.splitter(request.split_sentences, windows.max_doc_tokens)
        whole = read(self.sentences(request, split))
        sizes = np.array([len(sentence.ids) for sentence in whole], dtype=np.int64)
        limit = request.limit
        if limit.most_tokens is not None:
            sizes = np.minimum(sizes, limit.most_tokens)
        if self.separators is not None:
            # A blank line, whose only token is the end symbol, has no separator.
            sizes += self.separators.num_lacking * (sizes > 1)
        return SourceDocuments(
            list(map(limit.applied, whole)),
            counts=np.array([len(whole)] if counts is None else counts, dtype=np.int64),
            sizes=sizes,
            separators=self.separators,
            windows=windows,
            whole=whole,
            note="" if split is None else split.note,
        )

    def sentences(
        self, request: TranslationRequest, split: SentenceSplitter | None = None
    ) -> Iterator[SourceSentence]:
        """Yield the lines of a request as ids. ``split`` divides lines without prefix and terms."""
        prefixes: Iterable[str] = request.prefixes or itertools.repeat("")
        forced: Iterable[Sequence[str]] = request.forced or itertools.repeat(())
        numbers = request.numbers or itertools.count(1)
        banned = self.banned_terms(request)
        for line, prefix, terms, number in zip(
            request.lines, prefixes, forced, numbers, strict=False
        ):
            is_forced = prefix != "" or len(terms) > 0
            parts = [line]
            if split is not None and isinstance(line, str) and not is_forced:
                pieces = split(line)
                parts = pieces if len(pieces) > 1 else parts
            # Add the line's number to errors.
            with reporting(f"line {number}", caught=DataError):
                sentences = [self.sentence(part, banned) for part in parts]
                if is_forced:
                    sentences = [self.forcing(sentences[0], prefix, terms, request)]
            # Leave out a part of only invisible characters, which has no tokens.
            with_tokens = [sentence for sentence in sentences if sentence.tokens]
            if len(with_tokens) > 1:
                yield SourceSentence.of_parts(with_tokens)
            else:
                yield (with_tokens or sentences)[0]

    def sentence(self, line: str, banned: BannedTerms | None = None) -> SourceSentence:
        """Return a sentence as ids."""
        line = self._without_target_code(line)
        with self.text_lock:
            tokens = self.task.source_text.encode(line)
        return SourceSentence(self.task.source_ids(tokens), tokens, banned=banned)

    def forcing(
        self,
        source: SourceSentence,
        prefix: str,
        terms: Sequence[str],
        request: TranslationRequest,
    ) -> SourceSentence:
        """Return a sentence with the prefix and the terms of its translation, as ids.

        Raises:
            DataError: the model cannot write them, or the sentence is blank.
        """
        is_blank = not source.tokens
        ids_of_terms = []
        with self.text_lock:
            for term in terms:
                term_ids = self._forced_ids(term, "term", is_blank)
                if len(term_ids):  # leave out blank terms
                    ids_of_terms.append(tuple(term_ids.tolist()))
            beginning = self._forced_ids(self._without_any_code(prefix), "prefix", is_blank)
        forced = None
        if ids_of_terms:
            texts = None if request.inside_words else self._symbol_texts
            forced = ForcedTerms(tuple(ids_of_terms), request.ordered, texts=texts)
        return replace(source, prefix=beginning, forced=forced)

    def _without_target_code(self, line: str) -> str:
        """Return a line without the code of the target language (DataError: the code is wrong)."""
        code = LANGUAGE_CODE.match(line.lstrip()) if isinstance(line, str) else None
        if code is None:
            return line
        if code[1] == self.task.target_text.first_symbol:
            return line.lstrip()[code.end() :]
        # Letters between angle brackets are a code, unless the model has learned them as a word.
        is_symbol = self.task.source_text.first_symbol or code[1] in self.task.source_dictionary
        if code[1].startswith(">>") and not is_symbol:
            raise DataError(
                f"the text begins with {code[1]}, but the model translates into a single language "
                f"({self.task.target_lang}); leave the code out"
            )
        return line

    def _without_any_code(self, prefix: str) -> str:
        """Return a prefix without the model's language code, which the search or source adds."""
        for text in (self.task.target_text, self.task.source_text):
            if isinstance(prefix, str) and text.first_symbol is not None:
                prefix = text.without_code(prefix.lstrip())
        return prefix

    def banned_terms(self, request: TranslationRequest) -> BannedTerms | None:
        """Return the banned terms of a request for the search. None: no terms are banned."""
        if not request.banned:
            return None
        with self.text_lock:
            key = tuple(request.banned), request.match_case, request.inside_words
            if key != self._banned[0]:
                terms = BannedTerms(
                    self._symbol_texts, request.banned, request.match_case, request.inside_words
                )
                self._banned = key, terms or None
            return self._banned[1]

    def token_spans(self, text: str, tokens: Sequence[str], is_source: bool) -> list[Span]:
        """Return the span of each token of a text. Symbols that are no text have an empty span."""
        words = self._plain_source if is_source else self._plain_target
        pipeline = self.task.source_text if is_source else self.task.target_text
        plain = list(tokens)
        is_symbol_first = plain[:1] == [pipeline.first_symbol]
        is_separator_last = plain[-1:] == [pipeline.sentence_separator]
        if is_symbol_first:
            plain.pop(0)
        if is_separator_last:
            plain.pop()
        with self.text_lock:
            spans = token_spans(text, plain, words)
        if is_symbol_first:
            spans.insert(0, (0, 0))
        if is_separator_last:
            end = spans[-1][1] if spans else 0
            spans.append((end, end))
        return spans

    def _target_ids(self, text: str) -> np.ndarray:
        """Return the token ids of whole target words, without separator and ``</s>``."""
        # Use marks of unusual spaces around words only if the dictionary has the marked words.
        dictionary = self.task.target_dictionary
        for marks in (True, False):
            ids = dictionary.encode(self._plain_target.encode(text, marks), append_eos=False)
            if dictionary.unk_index not in ids:
                break
        # Treat a separator in the text as unknown, since it ends no sentence.
        if self.separators is not None:
            ids[ids == self.separators.target] = dictionary.unk_index
        return ids

    def _forced_ids(self, text: str, kind: str, is_blank: bool) -> np.ndarray:
        """Return the token ids of a forced term or prefix. A blank text has no ids."""
        ids = self._target_ids(text)
        # Refuse terms in blank lines, whose translation stays empty.
        if text.split() and is_blank:
            raise DataError(
                f"the {kind} {text!r} cannot be forced: the line is blank, and so is its "
                "translation; leave it out"
            )
        # Refuse text with unknown words or other special symbols.
        if text.split() and (not len(ids) or ids.min() < len(SPECIAL_SYMBOLS)):
            raise DataError(
                f"the {kind} {text!r} cannot be forced: the model has no symbols for all of it; "
                "give another"
            )
        return ids
