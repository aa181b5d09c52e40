"""Subword models: byte-pair encoding of subword-nmt, and SentencePiece.

subword-nmt marks all but the last piece of a word: ``Haus@@ boot``. SentencePiece divides the
sentence itself, where ``▁`` stands for a space.
"""

import codecs
import contextlib
import io
import itertools
import math
import random
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from relu_nmt.data.dictionary import SPECIAL_SYMBOLS
from relu_nmt.errors import ConfigError, DataError, needing
from relu_nmt.io.progress import bars_are_drawn
from relu_nmt.tokenization.base import LearningText, SubwordModel, subword_models, with_bytes

with needing("--subword needs the package {}: pip install subword-nmt sentencepiece"):
    import sentencepiece
    from subword_nmt import apply_bpe, learn_bpe

SEPARATOR = "@@"
VERSION_MARK = "#version:"
VERSIONS = ((0, 1), (0, 2))
MOST_MERGED_WORDS = 500_000  # words whose pieces SubwordNmt keeps

SPACE_MARK = "\u2581"
# A space mark in the text becomes the first of these characters, which texts do not contain. If a
# text does contain one of them, the second stands before it.
SPACE_MARK_OF_TEXT = "\ufdd0"
ESCAPE = "\ufdd1"
_TO_ESCAPE = re.compile(f"[{SPACE_MARK}{SPACE_MARK_OF_TEXT}{ESCAPE}]")
_ESCAPED = re.compile(f"{ESCAPE}(.)|{SPACE_MARK_OF_TEXT}")
# U+2585 is SentencePiece's mark of unknown characters: it learns nothing from a line with it.
_NOT_LEARNED = re.compile(f"[{SPACE_MARK}\u2585]")
LONGEST_LINE = 4192  # bytes of a line: SentencePiece learns nothing from a longer one
_MOST = f".{{1,{LONGEST_LINE // 4 - 1}}}"
# A part of a long line ends at a space if possible, or else at the end of a sentence.
_PART = re.compile(f"{_MOST}(?: |$)|{_MOST}[。．！？.!?]|{_MOST}", re.DOTALL)
# With fewer pieces SentencePiece's error does not say how many the text needs. With more it is
# slow.
LEAST_PIECES = 4
MOST_PIECES = 10_000_000
LEARNING_SENTENCES = 1_000_000
# Each thread sums on its own, so that the result depends on the number of threads.
LEARNING_THREADS = 4
# Likeliest splits of a word to draw from, and the words for which SentencePiece keeps them.
NUM_WAYS = 64
MOST_SAMPLED_WORDS = 100_000


@subword_models.register("subword-nmt")
class SubwordNmt(SubwordModel):
    r"""Subword splitting by a list of merges, the codes file of subword-nmt.

    Example:
        >>> model = SubwordNmt(b"#version: 0.2\nH a\nHa u\nHau s</w>\n")
        >>> model.split(["Haus", "Hau"])
        ['Haus', 'Ha@@', 'u']
        >>> model.join(['Haus', 'Ha@@', 'u'])
        ['Haus', 'Hau']
    """

    file_name = "subword.codes"
    package = "subword-nmt"

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        try:
            self._codes = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(str(error)) from error
        lines = self._codes.rstrip("\n").split("\n")
        # Check the lines here, since subword-nmt ends the program at a mistake.
        for number, line in enumerate(lines, 1):
            if len(line.strip("\r\n ").split(" ")) != 2:
                raise DataError(f"line {number}: expected two symbols, found {line[:40]!r}")
        if len(lines) == 1 and lines[0].startswith(VERSION_MARK):
            raise DataError("no merges in it")
        try:
            self._bpe = apply_bpe.BPE(io.StringIO(self._codes), separator=SEPARATOR)
        except ValueError as error:
            raise DataError(f"line 1: no version number in {lines[0][:40]!r}") from error
        if self._bpe.version not in VERSIONS:
            raise DataError(
                f"line 1: {lines[0][:40]!r}, but subword-nmt reads versions 0.1 and 0.2; learn the "
                "codes again"
            )
        self._pieces_of: dict[str, list[str]] = {}
        self._dropping: apply_bpe.BPE | None = None

    @classmethod
    def load(cls, content: bytes) -> "SubwordNmt":
        """Return the model of a file's bytes, without a byte-order mark."""
        # Models of checkpoints keep a mark, since their text was split with it.
        return cls(content.removeprefix(codecs.BOM_UTF8))

    @property
    def num_learned(self) -> int:
        """The number of merges."""
        return len(self._bpe.bpe_codes)

    def split(self, words: Sequence[str]) -> list[str]:
        """Return the pieces of ``words``. All but the last of a word end in ``@@``."""
        pieces_of = self._pieces_of
        pieces = []
        for word in words:
            if word not in pieces_of:
                # Empty both caches when full, which bounds the memory.
                if len(pieces_of) >= MOST_MERGED_WORDS:
                    pieces_of.clear()
                    self._bpe.cache.clear()
                pieces_of[word] = _recoverable(self._bpe.segment_tokens([word]))
            pieces += pieces_of[word]
        return pieces

    def sample(self, words: Sequence[str], strength: float, draws: random.Random) -> list[str]:
        """Drop each merge with probability ``strength``.

        Reference: Provilkov et al. 2020, "BPE-dropout: simple and effective subword
        regularization", section 3.
        """
        if self._dropping is None:  # a second object, since the first caches its splits
            self._dropping = apply_bpe.BPE(io.StringIO(self._codes), separator=SEPARATOR)
        before = random.getstate()  # subword-nmt draws from the module's generator
        random.seed(draws.getrandbits(64))
        try:
            pieces = []
            for word in words:
                pieces += _recoverable(self._dropping.segment_tokens([word], dropout=strength))
            return pieces
        finally:
            random.setstate(before)

    def join(self, pieces: Sequence[str]) -> list[str]:
        return (" ".join(pieces) + " ").replace(f"{SEPARATOR} ", "").split()

    def characters(self, pieces: Sequence[str]) -> list[str | None]:
        """Return the pieces without ``@@`` at the end."""
        return [piece.removesuffix(SEPARATOR) or piece for piece in pieces]

    @classmethod
    def learn(cls, text: LearningText, size: int, seed: int) -> bytes:
        """Learn ``size`` merges, fewer if no pair of symbols occurs twice. Nothing is random."""
        counts = text.word_counts()
        codes = io.StringIO()
        if any(len(word) > 1 for word in counts):
            # Sort the words, so that ties between merges do not depend on the order of the text.
            entries = (f"{word} {count}\n" for word, count in sorted(counts.items()))
            progress = sys.stderr if bars_are_drawn() else io.StringIO()
            with contextlib.redirect_stderr(progress):
                learn_bpe.learn_bpe(entries, codes, size, is_dict=True)
        # Refuse a model without merges, with the version line alone.
        if codes.getvalue().count("\n") < 2:
            raise ConfigError(
                "--subword subword-nmt: in the training text no two letters occur together twice"
            )
        return codes.getvalue().encode("utf-8")

    def to_state(self) -> dict[str, Any]:
        """Return the name of the model and its codes as text."""
        return {"name": "subword-nmt", "codes": self._codes}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "SubwordNmt":
        return cls(state["codes"].encode("utf-8"))


def _recoverable(pieces: list[str]) -> list[str]:
    """Split a last piece that looks like a mark or symbol, so that ``join`` keeps its text."""
    if pieces and (pieces[-1].endswith(SEPARATOR) or pieces[-1] in SPECIAL_SYMBOLS):
        return [*pieces[:-1], pieces[-1][:-1] + SEPARATOR, pieces[-1][-1]]
    return pieces


@subword_models.register("sentencepiece")
class SentencePiece(SubwordModel):
    """Subword splitting by the bytes of a SentencePiece model."""

    file_name = "sentencepiece.model"
    package = "sentencepiece"

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=content)
            if not self.vocabulary():  # reads every piece, which is to be UTF-8
                raise ValueError("empty")
            self._ways_of: dict[str, tuple[list[list[str]], list[float]]] = {}
        except (ValueError, RuntimeError) as error:
            raise DataError("not a SentencePiece model: the file is damaged or another") from error

    @property
    def num_learned(self) -> int:
        """The number of pieces."""
        return len(self._processor)

    def vocabulary(self) -> list[str]:
        """Return all pieces in the order of their ids."""
        return [self._processor.id_to_piece(i) for i in range(len(self._processor))]

    def split(self, words: Sequence[str]) -> list[str]:
        """Return the pieces of ``words``. The first of a word begins with ``▁``."""
        pieces = self._processor.encode(_escaped(" ".join(words)), out_type=str)
        return list(itertools.chain.from_iterable(map(_unlike_symbols, pieces)))

    def sample(self, words: Sequence[str], strength: float, draws: random.Random) -> list[str]:
        """Draw a split of each word in proportion to its probability to the power of ``strength``.

        Reference: Kudo 2018, "Subword regularization", section 3.3, with the 64 likeliest splits.
        """
        pieces: list[str] = []
        for word in words:
            if word not in self._ways_of:
                if len(self._ways_of) >= MOST_SAMPLED_WORDS:
                    self._ways_of.clear()
                self._ways_of[word] = self._ways(word)
            ways, scores = self._ways_of[word]
            # Weigh the splits relative to the likeliest, so that nothing overflows.
            shares = [math.exp(strength * (score - scores[0])) for score in scores]
            for piece in draws.choices(ways, shares)[0]:
                pieces += _unlike_symbols(piece)
        return pieces

    def _ways(self, word: str) -> tuple[list[list[str]], list[float]]:
        """Return the likeliest splits of a word, and their log-probabilities."""
        processor = self._processor
        try:
            ways = processor.nbest_encode(_escaped(word), nbest_size=NUM_WAYS, out_type=str)
        except RuntimeError as error:
            raise ConfigError(
                "--subword-sampling: SentencePiece samples from unigram models only"
            ) from error
        ways = ways or [[]]  # normalization may remove the whole word
        scores = []
        for pieces in ways:
            scores.append(sum(map(processor.get_score, map(processor.piece_to_id, pieces))))
        return ways, scores

    def join(self, pieces: Sequence[str]) -> list[str]:
        """Return the words, decoded by the model itself. ``<unk>`` stays as it is."""
        processor = self._processor
        unk = self._processor.unk_id()
        escaped: list[str] = []
        # Prepare the pieces, since decoding replaces unknown ones.
        for piece in pieces:
            if processor.piece_to_id(piece) != unk:
                escaped.append(piece)
            elif piece == processor.id_to_piece(unk):  # in halves, else decoding replaces it
                escaped += [piece[:1], piece[1:]]
            else:
                escaped.append(piece.replace(SPACE_MARK, " "))
        return _unescaped(processor.decode_pieces(escaped)).split()

    def characters(self, pieces: Sequence[str]) -> list[str | None]:
        """Return the pieces without ``▁``. The first byte piece of a character gets all of it."""
        letters: list[str | None] = []
        content = b""
        begin = 0
        for piece in pieces:
            if not self._processor.is_byte(self._processor.piece_to_id(piece)):
                letters.append(_unescaped(piece.replace(SPACE_MARK, "")))
                continue
            # Collect the bytes of a character. Only its first byte does not begin with 10.
            byte = int(piece[3:5], 16)
            if byte & 0xC0 != 0x80:
                content = b""
                begin = len(letters)
            content += bytes([byte])
            letters.append(None)
            # Give the character to its first byte's piece once it is complete.
            letters[begin] = content.decode("utf-8", "ignore")
        return letters

    def text_of(self, piece: str) -> str:
        """Return the text that a piece adds, with a space for ``▁``."""
        return _unescaped(with_bytes(piece).replace(SPACE_MARK, " "))

    @classmethod
    def learn(cls, text: LearningText, size: int, seed: int) -> bytes:
        """Learn a unigram model of at most ``size`` pieces from a sample. Keep all characters."""
        model = io.BytesIO()
        # Seed the sample of sentences, which is drawn at random.
        sentencepiece.set_random_generator_seed(seed)
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=_readable(text.sentences()),
                model_writer=model,
                vocab_size=min(max(size, LEAST_PIECES), MOST_PIECES),
                model_type="unigram",
                character_coverage=1.0,
                normalization_rule_name="identity",
                hard_vocab_limit=False,
                max_sentence_length=LONGEST_LINE,
                input_sentence_size=LEARNING_SENTENCES,
                shuffle_input_sentence=True,
                num_threads=LEARNING_THREADS,
                minloglevel=2,
            )
        except RuntimeError as error:
            raise ConfigError(
                f"--subword-size {size}: SentencePiece refuses it: {_reason(str(error))}"
            ) from error
        return model.getvalue()


def _escaped(text: str) -> str:
    """Escape ``▁`` in the text, which would become a space."""
    escapes = {SPACE_MARK: SPACE_MARK_OF_TEXT}
    return _TO_ESCAPE.sub(lambda match: escapes.get(match[0], ESCAPE + match[0]), text)


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: match[1] or SPACE_MARK, text)


def _unlike_symbols(piece: str) -> tuple[str, ...]:
    """Return the piece, or two pieces if it equals a special symbol of the dictionary."""
    return (piece[:1], piece[1:]) if piece in SPECIAL_SYMBOLS else (piece,)


def _readable(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines, long ones in parts, so that SentencePiece skips none."""
    for line in lines:
        line = _NOT_LEARNED.sub(" ", line)
        if len(line.encode()) <= LONGEST_LINE:
            yield line
        else:
            yield from _PART.findall(line)


def _reason(message: str) -> str:
    """Return the message of SentencePiece in terms of our flags."""
    needed = re.search(r"required_chars\. \d+ vs (\d+)", message)
    if needed is not None:
        return f"the characters of the text need more; give --subword-size {needed[1]} or more"
    if "sentences_.empty()" in message:
        return "the training text has nothing to learn from"
    text = re.sub(r"^\w+: \S+\(\d+\) (\[.*\])? ?", "", " ".join(message.split()))
    # Leave out sentences about SentencePiece's own flags.
    advice = (part for part in re.split(r"(?<=\.) ", text) if "_" not in part)
    return " ".join(advice) or "the training text does not suit"
