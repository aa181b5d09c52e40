"""Raw text to translate, and what users ask of its translation, as the model reads them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from relu_nmt.data.dictionary import SPECIAL_SYMBOLS
from relu_nmt.errors import DataError
from relu_nmt.translation.search.document_search import SourceDocuments
from relu_nmt.translation.search.forced_terms import ForcedTerms, Term
from relu_nmt.translation.search.translations import SourceSentence, as_lines
from relu_nmt.translation.task import TranslationTask


class SourceEncoder:
    """Makes token ids of sentences and documents, and of prefixes and terms of the target.

    Args:
        task: tokenisation and dictionaries.

    Example:
        >>> from relu_nmt.data.dictionary import Dictionary
        >>> from relu_nmt.tokenization.pipeline import TextPipeline
        >>> words = Dictionary(["ein", "Haus"])
        >>> task = TranslationTask(TextPipeline("de"), TextPipeline("en"), words, words)
        >>> SourceEncoder(task).sentence("ein Haus", prefix="Haus").prefix.tolist()
        [5]
    """

    def __init__(self, task: TranslationTask) -> None:
        self.task = task
        # Made once: a tokenizer takes longer to make than most sentences take to split.
        self._target_words = replace(task.target_text, sentence_separator=None)

    def sentence(
        self,
        line: str,
        prefix: str = "",
        banned: tuple[Term, ...] = (),
        forced: Iterable[str] = (),
        ordered: bool = True,
    ) -> SourceSentence:
        """Return a raw sentence, and what its translation must have, as token ids.

        Args:
            line: the sentence.
            prefix: what the translation begins with.
            banned: what it may not have, by :meth:`banned_ids`.
            forced: terms that it must have; blank ones are left out.
            ordered: whether in this order.

        Raises:
            DataError: the model cannot write a term or the prefix, or the sentence is blank.
        """
        tokens = self.task.source_text.encode(line)
        ids = self.task.source_dictionary.encode(tokens)
        if self.task.separators is not None:
            # What looks like a separator in the text itself ends no sentence.
            words = ids[:-2]
            words[words == self.task.separators[0]] = self.task.source_dictionary.unk_index
        is_blank = not tokens
        ids_of_terms = (self._forced_ids(term, "term", is_blank) for term in forced)
        terms = tuple(tuple(term.tolist()) for term in ids_of_terms if len(term))
        beginning = self._forced_ids(prefix, "prefix", is_blank)
        required = ForcedTerms(terms, ordered)
        return SourceSentence(ids, tokens, prefix=beginning, forced=required, banned=banned)

    def sentences(
        self,
        lines: Iterable[str],
        prefixes: Iterable[str] | None = None,
        banned: tuple[Term, ...] = (),
        forced: Iterable[Iterable[str]] | None = None,
        ordered: bool = True,
        numbers: Iterable[int] | None = None,
    ) -> list[SourceSentence]:
        """Return lines as token ids.

        Args:
            lines: raw sentences.
            prefixes: what the translation of each begins with.
            banned: what none may have, by :meth:`banned_ids`.
            forced: terms that the translation of each must have.
            ordered: whether in this order.
            numbers: of the lines, for messages; by default from 1.

        Raises:
            DataError: a list is one text or has not one entry for each line, the model cannot
                write a term, or it is forced in a blank line.
        """
        texts = as_lines(lines)
        beginnings = [""] * len(texts) if prefixes is None else as_lines(prefixes)
        terms = [[]] * len(texts) if forced is None else [as_lines(own) for own in forced]
        for name, given in (("prefixes", beginnings), ("lists of forced terms", terms)):
            if len(given) != len(texts):
                raise DataError(f"{len(given)} {name}, but {len(texts)} lines; give one for each")
        places = range(1, len(texts) + 1) if numbers is None else numbers
        sentences = []
        for number, text, prefix, own in zip(places, texts, beginnings, terms, strict=True):
            try:
                sentences.append(self.sentence(text, prefix, banned, own, ordered))
            except DataError as error:
                raise DataError(f"line {number}: {error}") from error
        return sentences

    def documents(
        self,
        documents: Sequence[Sequence[str]],
        prefixes: Iterable[Iterable[str]] | None = None,
        banned: tuple[Term, ...] = (),
        forced: Iterable[Iterable[Iterable[str]]] | None = None,
        ordered: bool = True,
        numbers: Sequence[Iterable[int]] | None = None,
    ) -> SourceDocuments:
        """Return the lines of documents as token ids.

        Args:
            documents: the lines of each.
            prefixes: as in :meth:`sentences`, a list for each document.
            banned: as in :meth:`sentences`.
            forced: as in :meth:`sentences`, a list for each document.
            ordered: as in :meth:`sentences`.
            numbers: as in :meth:`sentences`, for each document.

        Raises:
            DataError: as in :meth:`sentences`.
        """
        nothing = [None] * len(documents)
        beginnings = nothing if prefixes is None else list(prefixes)
        terms = nothing if forced is None else list(forced)
        if not len(documents) == len(beginnings) == len(terms):
            raise DataError("give prefixes and forced terms as a list for each document")
        places = nothing if numbers is None else numbers
        sentences = [
            sentence
            for texts, own, wanted, lines in zip(documents, beginnings, terms, places, strict=True)
            for sentence in self.sentences(texts, own, banned, wanted, ordered, lines)
        ]
        counts = np.array([len(lines) for lines in documents], dtype=np.int64)
        sizes = np.array([len(sentence.ids) for sentence in sentences], dtype=np.int64)
        return SourceDocuments(sentences, counts, sizes, self.task.separators)

    def banned_ids(self, terms: Iterable[str]) -> tuple[Term, ...]:
        """Return terms, one or more words each, as token ids, for the methods above."""
        unk_index = self.task.target_dictionary.unk_index
        ids = (tuple(self._target_ids(term).tolist()) for term in as_lines(terms))
        # What the model has no symbols for it cannot write.
        return tuple(term for term in ids if term and unk_index not in term)

    def _target_ids(self, text: str) -> np.ndarray:
        """Return the token ids of whole words of the target, with no end of any kind.

        Unusual spaces around words count only if the model knows such words.
        """
        dictionary = self.task.target_dictionary
        for marks in (True, False):
            ids = dictionary.encode(self._target_words.encode(text, marks), append_eos=False)
            if dictionary.unk_index not in ids:
                break
        if self.task.separators is not None:
            ids[ids == self.task.separators[1]] = self.task.target_dictionary.unk_index
        return ids

    def _forced_ids(self, text: str, what: str, is_blank: bool) -> np.ndarray:
        """Return the token ids of what is forced; none of a blank text.

        Raises:
            DataError: the model cannot write it, or the source is blank.
        """
        ids = self._target_ids(text)
        if text.split() and is_blank:
            raise DataError(
                f"the {what} {text!r} cannot be forced: the line is blank, and so is its "
                "translation; leave it out"
            )
        if text.split() and (not len(ids) or ids.min() < len(SPECIAL_SYMBOLS)):
            raise DataError(
                f"the {what} {text!r} cannot be forced: the model has no symbols for all of it; "
                "give another"
            )
        return ids
