"""Raw text to translate, with its prefixes and terms, as token ids."""

import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from relu_nmt.data.dictionary import SPECIAL_SYMBOLS
from relu_nmt.data.documents import SINGLE_SENTENCES
from relu_nmt.errors import DataError, counted, refuse_unordered, reporting
from relu_nmt.tokenization.base import SentenceSplitter
from relu_nmt.tokenization.pipeline import LANGUAGE_CODE
from relu_nmt.translation.search.banned_terms import BannedTerms
from relu_nmt.translation.search.forced_terms import NO_TERMS, ForcedTerms
from relu_nmt.translation.search.symbol_texts import SymbolTexts
from relu_nmt.translation.search.translations import SourceDocuments, SourceSentence, as_lines
from relu_nmt.translation.task import TranslationTask


class SourceEncoder:
    """Encodes raw text as token ids. ``separators`` are the symbols that end sentences, if any.

    Hold ``text_lock`` for other work with the task's text, since tokenizers keep state.
    """

    def __init__(self, task: TranslationTask, max_doc_tokens: int = SINGLE_SENTENCES) -> None:
        self.task = task
        self.separators = task.separators
        self._is_of_sentences = max_doc_tokens == SINGLE_SENTENCES and task.separators is None
        self.text_lock = threading.Lock()
        # One tokenizer for all terms: making one is slower than tokenizing a sentence.
        self._target_words = replace(task.target_text, sentence_separator=None, first_symbol=None)
        separator = -1 if self.separators is None else self.separators[1]
        cased = replace(self._target_words, lowercase=False)
        self._texts = SymbolTexts(cased, task.target_dictionary, separator)
        # The last banned terms: consecutive requests of a command have the same.
        self._banned: tuple[tuple[Any, ...], BannedTerms | None] = ((), None)

    def splitter(
        self, split_sentences: bool | None = None, max_doc_tokens: int = SINGLE_SENTENCES
    ) -> SentenceSplitter | None:
        """Return the splitter that cuts lines into sentences. None if lines stay whole.

        By default a model that was trained on single sentences translates single sentences.

        Raises:
            MissingExtraError: splitting is asked for, but its library is not installed.
        """
        is_cut = self._is_of_sentences if split_sentences is None else split_sentences
        if max_doc_tokens != SINGLE_SENTENCES or not is_cut:
            return None
        return SentenceSplitter(self.task.source_lang, is_required=split_sentences is True)

    def encode_lines(self, lines: Iterable[str], **arguments: Any) -> SourceDocuments:
        """Return lines as one document of token ids. See :meth:`sentences` for the arguments."""
        sentences = list(self.sentences(lines, **arguments))
        return self.documents(sentences, [len(sentences)])

    def encode_documents(
        self,
        documents: Iterable[Iterable[str]],
        prefixes: Iterable[Iterable[str]] | None = None,
        forced: Iterable[Iterable[Iterable[str]]] | None = None,
        numbers: Iterable[Iterable[int]] | None = None,
        banned: Iterable[str] = (),
        **arguments: Any,
    ) -> SourceDocuments:
        """Return documents as token ids, from the arguments of :meth:`sentences` for each one."""
        # Read each document before the next one: groups of itertools.groupby end there.
        if isinstance(documents, str):
            raise DataError("documents are lists of lines, not one text; give [[text]] for a line")
        refuse_unordered(documents, "documents")
        documents = [as_lines(lines) for lines in documents]
        banned = _terms(banned)
        # Pass each document its prefixes, terms and line numbers, if they are set.
        by_document: dict[str, list[Any]] = {}
        for name, lists in (("prefixes", prefixes), ("forced", forced), ("numbers", numbers)):
            if lists is not None:
                by_document[name] = as_lines(lists)
        if any(len(lists) != len(documents) for lists in by_document.values()):
            raise DataError("give prefixes, forced terms and numbers as a list for each document")
        sentences: list[SourceSentence] = []
        counts = []
        for number, lines in enumerate(documents):
            by_line = {name: lists[number] for name, lists in by_document.items()}
            document = list(self.sentences(lines, banned=banned, **by_line, **arguments))
            sentences += document
            counts.append(len(document))
        return self.documents(sentences, counts)

    def documents(
        self, sentences: Sequence[SourceSentence], counts: Sequence[int]
    ) -> SourceDocuments:
        """Return consecutive sentences as documents of ``counts`` sentences."""
        sizes = np.array([len(sentence.ids) for sentence in sentences], dtype=np.int64)
        num_sentences = np.array(counts, dtype=np.int64)
        return SourceDocuments(sentences, num_sentences, sizes, self.separators)

    def sentences(
        self,
        lines: Iterable[str],
        prefixes: Iterable[str] | None = None,
        forced: Iterable[Iterable[str]] | None = None,
        ordered: bool = True,
        banned: Iterable[str] = (),
        match_case: bool = False,
        inside_words: bool = False,
        numbers: Iterable[int] | None = None,
        split: SentenceSplitter | None = None,
    ) -> Iterator[SourceSentence]:
        """Yield the lines of a document as token ids.

        Args:
            lines: raw sentences.
            prefixes: the beginning of each line's translation, in whole words. "" for none.
            forced: terms that each line's translation must contain, at positions that do not
                overlap.
            ordered: force the terms of a line in their order.
            banned: terms of one or more words that no translation may contain outside forced text.
            match_case: allow banned terms in other capitals.
            inside_words: forced terms may be parts of words, and banned terms are banned there too.
            numbers: line numbers for error messages. By default from 1.
            split: cuts lines without prefix and forced terms into sentences, which become parts of
                the line. By default a line is a sentence.

        Raises:
            DataError: a list is a single text or its length differs from the number of lines, the
                model cannot write a term or prefix, or one is forced in a blank line.
        """
        lines = as_lines(lines)
        beginnings = [""] * len(lines) if prefixes is None else as_lines(prefixes)
        terms = [[]] * len(lines) if forced is None else list(map(as_lines, as_lines(forced)))
        # Compare the lengths before the first line is encoded.
        for name, count in (("prefix", len(beginnings)), ("term list", len(terms))):
            if count != len(lines):
                raise DataError(
                    f"{counted(count, name)}, but {counted(len(lines), 'line')}; give one for each"
                )
        banned_terms = self.banned_terms(banned, match_case, inside_words)
        # Add the line's number to errors.
        for number, line, prefix, required in zip(
            numbers or itertools.count(1), lines, beginnings, terms, strict=False
        ):
            parts = [line]
            if split is not None and isinstance(line, str) and not prefix and not required:
                parts = split(line)
            if len(parts) < 2:
                parts = [line]
            with reporting(f"line {number}", caught=DataError):
                sentences = [
                    self.sentence(part, prefix, required, ordered, banned_terms, inside_words)
                    for part in parts
                ]
            yield sentences[0] if len(sentences) == 1 else SourceSentence.of_parts(sentences)

    def sentence(
        self,
        line: str,
        prefix: str = "",
        forced: Iterable[str] = (),
        ordered: bool = True,
        banned: BannedTerms | None = None,
        inside_words: bool = False,
    ) -> SourceSentence:
        """Return a raw sentence, its prefix and its terms as token ids.

        See :meth:`sentences` for the arguments. Blank terms are ignored.

        Raises:
            DataError: the model cannot write a term or the prefix, or the sentence is blank.
        """
        line = self._without_target_code(line)
        with self.text_lock:
            tokens = self.task.source_text.encode(line)
            # Encode the terms, leaving out blank ones, and the prefix.
            is_blank = not tokens
            encoded = [self._forced_ids(term, "term", is_blank) for term in as_lines(forced)]
            beginning = self._forced_ids(prefix, "prefix", is_blank)
        required = NO_TERMS
        if encoded:
            texts = None if inside_words else self._texts
            terms = tuple(tuple(ids.tolist()) for ids in encoded if len(ids))
            required = ForcedTerms(terms, ordered, texts=texts)
        ids = self.task.source_dictionary.encode(tokens)
        if self.separators is not None:
            # A separator in the raw text is an unknown word: it ends no sentence.
            words = ids[:-2]
            words[words == self.separators[0]] = self.task.source_dictionary.unk_index
        return SourceSentence(ids, tokens, prefix=beginning, forced=required, banned=banned)

    def _without_target_code(self, line: str) -> str:
        """Return a sentence without a code that asks for the model's target language.

        Raises:
            DataError: the model has no symbol for such a code.
        """
        code = LANGUAGE_CODE.match(line.lstrip()) if isinstance(line, str) else None
        if code is None:
            return line
        if code[1] == self.task.target_text.first_symbol:
            return line.lstrip()[code.end() :]
        # Letters between angle brackets are no text, unless the model has learned them as a word.
        is_symbol = self.task.source_text.first_symbol or code[1] in self.task.source_dictionary
        if code[1].startswith(">>") and not is_symbol:
            raise DataError(
                f"the text begins with {code[1]}, but the model translates into a single language "
                f"({self.task.target_lang}); leave the code out"
            )
        return line

    def banned_terms(
        self, terms: Iterable[str], match_case: bool = False, inside_words: bool = False
    ) -> BannedTerms | None:
        """Return banned terms for the search. None for none."""
        terms = tuple(_terms(terms))
        key = terms, match_case, inside_words
        with self.text_lock:
            if key != self._banned[0]:
                banned = BannedTerms(self._texts, terms, match_case, inside_words)
                self._banned = key, banned or None
            return self._banned[1]

    def _target_ids(self, text: str) -> np.ndarray:
        """Return the token ids of whole target words, without separator and ``</s>``.

        Marks of unusual spaces around words are used only if the dictionary knows such words.
        """
        dictionary = self.task.target_dictionary
        for marks in (True, False):
            ids = dictionary.encode(self._target_words.encode(text, marks), append_eos=False)
            if dictionary.unk_index not in ids:
                break
        # Treat a separator in the text as unknown, since it ends no sentence.
        if self.separators is not None:
            ids[ids == self.separators[1]] = dictionary.unk_index
        return ids

    def _forced_ids(self, text: str, kind: str, is_blank: bool) -> np.ndarray:
        """Return the token ids of a forced term or prefix, [] for a blank text."""
        ids = self._target_ids(text)
        # Refuse terms in blank lines, whose translation stays empty.
        if text.split() and is_blank:
            raise DataError(
                f"the {kind} {text!r} cannot be forced: the line is blank, and so is its "
                "translation; leave it out"
            )
        # Refuse unknown words and other special symbols, which no forced text may contain.
        if text.split() and (not len(ids) or ids.min() < len(SPECIAL_SYMBOLS)):
            raise DataError(
                f"the {kind} {text!r} cannot be forced: the model has no symbols for all of it; "
                "give another"
            )
        return ids


def _terms(terms: Iterable[str]) -> list[str]:
    """Return banned terms as a list. They may come in any order."""
    return sorted(terms) if isinstance(terms, set | frozenset) else as_lines(terms)
