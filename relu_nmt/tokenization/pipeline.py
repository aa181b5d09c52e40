"""From raw sentences to the tokens of the dictionary and back."""

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from relu_nmt.config.stored import checked
from relu_nmt.data.data_folder import AGAIN, file_record
from relu_nmt.data.separators import sentence_slices
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.tokenization import base
from relu_nmt.tokenization.sentences import join_texts

LANGUAGE_CODE = re.compile(r"(>>[^<>\s]+<<|__[a-z]{2,3}__|[a-z]{3}_[A-Z][a-z]{3}\b) ?")
"""A code of a language before a sentence, as in text for Marian's models, M2M100 and NLLB."""


@dataclass(eq=False)
class TextPipeline:
    """All text steps of one language: tokenize, lower-case, split into subwords, and their inverse.

    White space is normalized first, so that every sentence is one line of tokens. Decoding undoes
    all steps but lower-casing.

    Example:
        >>> pipeline = TextPipeline("en", tokenizer="moses", lowercase=True)
        >>> pipeline.encode("It's  a dog.")
        ['it', '&apos;s', 'a', 'dog', '.']
        >>> pipeline.decode(['it', '&apos;s', 'a', 'dog', '.'])
        "it's a dog."
    """

    language: str  # as in the file names ("de")
    tokenizer: str = "none"  # name of the tokenizer
    lowercase: bool = False  # lower-case the words after tokenizing
    subword: base.SubwordModel = field(default_factory=base.WholeWords)
    # Name of the tokenizer that joins words, if text arrives tokenized. ``tokenizer`` by default.
    detokenizer: str = ""
    # A token that ends each sentence, for models of documents: encoding adds it, decoding drops it.
    sentence_separator: str | None = None
    # A token that begins each sentence, as >>fra<<, the target language of a multilingual model.
    first_symbol: str | None = None
    tokenizer_version: int | None = None  # see :func:`make_tokenizer`. By default the latest
    separates_alone: bool = True  # False: only sentences of groups end in the separator

    def __post_init__(self) -> None:
        self.detokenizer = self.detokenizer or self.tokenizer
        if self.tokenizer_version is None:
            self.tokenizer_version = base.tokenizers.get(self.tokenizer).version()
        self._tokenizer = base.make_tokenizer(self.tokenizer, self.language, self.tokenizer_version)
        self._detokenizer = self._tokenizer
        if self.detokenizer != self.tokenizer:
            # Text that arrives tokenized has the words of the first version.
            version = min(self.tokenizer_version, base.tokenizers.get(self.detokenizer).version())
            self._detokenizer = base.make_tokenizer(self.detokenizer, self.language, version)

    @property
    def tokenizers(self) -> tuple[type[base.Tokenizer], type[base.Tokenizer]]:
        """Classes of the tokenizer and the detokenizer."""
        return type(self._tokenizer), type(self._detokenizer)

    @property
    def keeps_text(self) -> bool:
        """Return whether the text arrives prepared, its tokens between spaces."""
        is_whole = isinstance(self.subword, base.WholeWords)
        return self.tokenizer == "none" and not self.lowercase and is_whole

    def words(self, raw: str) -> list[str]:
        """Return the words of a raw sentence (DataError: it is no text), before subwords."""
        if not isinstance(raw, str):
            raise DataError(f"expected a text, not {raw!r:.30} ({type(raw).__name__})")
        if base.SURROGATE.search(raw):
            raise DataError(f"{raw[:30]!r} is no text that UTF-8 can hold: it has surrogates")
        words = self._tokenizer.split(self.without_code(" ".join(raw.split())))
        return " ".join(words).lower().split() if self.lowercase else words

    def without_code(self, raw: str) -> str:
        """Return a sentence without its language code (DataError: the code of another language)."""
        code = LANGUAGE_CODE.match(raw)
        if code is None or self.first_symbol is None:
            return raw
        if code[1] == self.first_symbol:
            return raw[code.end() :]
        flag = "--target-lang" if code[1].startswith(">>") else "--source-lang or --target-lang"
        raise DataError(
            f"the text begins with {code[1]}, but the model is for {self.first_symbol}; leave the "
            f"code out, or import a model with {flag} {code[1].strip('<>_')}"
        )

    def encode(self, raw: str, marks: bool = True) -> list[str]:
        """Return the tokens of a sentence, none if it is blank. ``marks`` keeps unusual spaces."""
        words = self.words(raw)
        if not marks:
            words = self._tokenizer.without_marks(words)
        return self.between_symbols(self.subword.split(words))

    def between_symbols(self, tokens: list[str]) -> list[str]:
        """Return the tokens of a sentence with the symbols around it, [] if there are no tokens."""
        if not tokens:
            return tokens
        if self.first_symbol is not None:
            tokens = [self.first_symbol, *tokens]
        if self.sentence_separator is not None and self.separates_alone:
            tokens = [*tokens, self.sentence_separator]
        return tokens

    def characters_of_text(self, raw: str) -> list[str]:
        """Return each character of a raw sentence in the form it has in tokens, with its case."""
        characters = []
        for character in self._tokenizer.characters(raw):
            in_pieces = self.subword.characters(list(character))
            characters.append("".join(filter(None, in_pieces)))
        return characters

    def characters_of_tokens(self, tokens: Sequence[str]) -> list[str | None]:
        """Return the characters of each token without marks, "" for symbols.

        None stands for later bytes of a character, see :meth:`SubwordModel.characters`.
        """
        if not tokens:
            return []
        begin = int(self.first_symbol is not None)
        last = int(tokens[-1] == self.sentence_separator)
        inner = self.subword.characters(tokens[begin : len(tokens) - last])
        return [*[""] * begin, *inner, *[""] * last]

    def join_words(self, tokens: Sequence[str]) -> list[str]:
        """Join the tokens to tokenized words, without the symbols around sentences."""
        return list(itertools.chain.from_iterable(map(self.subword.join, self.sentences(tokens))))

    def sentences(self, tokens: Sequence[str]) -> list[list[str]]:
        """Cut the tokens into sentences at separators, if any, without the symbols around them."""
        parts = [slice(0, len(tokens))]
        if self.sentence_separator is not None:
            parts = sentence_slices(tokens, self.sentence_separator)
        sentences = []
        for part in parts:
            sentence = list(tokens[part])
            if self.first_symbol is not None and sentence[:1] == [self.first_symbol]:
                del sentence[0]
            sentences.append(sentence)
        return sentences

    def decode(self, tokens: Sequence[str]) -> str:
        """Return the raw text of ``tokens``, the inverse of :meth:`encode`.

        Sentences with separators are detokenized one by one and joined by the rules of the
        language. Without separators a group is detokenized as one, where an open quote, which Moses
        remembers, may change the spaces in a later sentence.
        """
        texts = []
        for sentence in self.sentences(tokens):
            texts.append(self._detokenizer.join(self.subword.join(sentence)))
        return texts[0] if len(texts) == 1 else join_texts(texts, self.language)

    def with_post_processing(
        self, remove_bpe: str | None, detokenizer: str | None
    ) -> "TextPipeline":
        """Return a pipeline for text in pieces, which ``remove_bpe`` and a detokenizer join."""
        subword = self.subword
        if remove_bpe is not None:
            # Join pieces only where no subword model does it already.
            subword = base.JoinedPieces(remove_bpe)
            if not isinstance(self.subword, base.WholeWords):
                raise ConfigError(
                    f"--remove-bpe {remove_bpe!r}: the data was split by "
                    f"{self.subword.to_state()['name']}, which is undone anyway; leave the flag out"
                )
        if detokenizer == "space":
            detokenizer = "none"
        return replace(self, subword=subword, detokenizer=detokenizer or self.detokenizer)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the state for pickle, which cannot hold the functions of a tokenizer."""
        return type(self).from_state, (self.to_state(),)

    def to_state(self) -> dict[str, Any]:
        """Return the whole pipeline, subword model included, as JSON values."""
        state = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**state, "subword": self.subword.to_state()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "TextPipeline":
        """Return the pipeline of a state, also of older releases (ValueError: a wrong type)."""
        values: dict[str, Any] = {"tokenizer_version": 1}
        for name, kind in {**get_type_hints(cls), "subword": dict[str, Any]}.items():
            if name in state:
                values[name] = checked(kind, state[name], name)
        values["subword"] = base.subword_of_state(values["subword"])
        return cls(**values)


def load_pipeline(
    folder: str | os.PathLike[str], manifest: Mapping[str, Any], language: str
) -> TextPipeline:
    """Return the pipeline of one language of a data folder (DataError: it is damaged)."""
    description = manifest["text"].get(language)
    if description is None:
        languages = ", ".join(manifest["text"])
        raise DataError(f"{folder}: the data is in {languages}, not in '{language}'")
    name = description["subword"]
    file_name = description["subword_file"]
    if (base.subword_models.get(name).file_name is None) != (file_name is None):
        raise DataError(
            f"{folder}: the manifest's subword model of '{language}' is damaged ('{name}' in "
            f"{file_name!r}); {AGAIN}"
        )
    path = None
    if file_name is not None:
        path = Path(folder) / file_name
        if file_name not in manifest["files"] or file_record(path) != manifest["files"][file_name]:
            raise DataError(f"{path}: changed since it was made; {AGAIN}")
    return TextPipeline(
        language,
        description["tokenizer"],
        description["lowercase"],
        base.load_subword(name, path),
        first_symbol=description.get("first_symbol"),
        tokenizer_version=description.get("tokenizer_version", 1),
    )
