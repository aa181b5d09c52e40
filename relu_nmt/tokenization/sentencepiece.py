"""SentencePiece: pieces of the sentence itself, where ``▁`` stands for a space."""

import io
import itertools
import math
import random
import re
from collections.abc import Iterable, Iterator, Sequence

from relu_nmt.data.dictionary import SPECIAL_SYMBOLS
from relu_nmt.errors import ConfigError, DataError, needing
from relu_nmt.tokenization.base import LearningText, SubwordModel, subword_models

with needing("--subword sentencepiece needs the package sentencepiece: pip install sentencepiece"):
    import sentencepiece

SPACE_MARK = "\u2581"
# A space mark in the text becomes the first of these characters, which texts do not contain. If a
# text does contain one of them, the second stands before it.
SPACE_MARK_OF_TEXT, ESCAPE = "\ufdd0", "\ufdd1"
_TO_ESCAPE = re.compile(f"[{SPACE_MARK}{SPACE_MARK_OF_TEXT}{ESCAPE}]")
_ESCAPED = re.compile(f"{ESCAPE}(.)|{SPACE_MARK_OF_TEXT}")
_NOT_LEARNT = re.compile(f"[{SPACE_MARK}\u2585]")
"""U+2585 is SentencePiece's mark of unknown characters: it learns nothing from a line with it."""
LONGEST_LINE = 4192
"""Bytes of a line; SentencePiece learns nothing from a longer one."""
_MOST = f".{{1,{LONGEST_LINE // 4 - 1}}}"
# A part of a long line ends at a space if possible, or else at the end of a sentence.
_PART = re.compile(f"{_MOST}(?: |$)|{_MOST}[。．！？.!?]|{_MOST}", re.DOTALL)
LEAST_PIECES, MOST_PIECES = 4, 10_000_000
"""Below, SentencePiece's error does not name the number that the text needs; above, it is slow."""
LEARNING_SENTENCES = 1_000_000
# Each thread sums on its own, so that the result depends on the number of threads.
LEARNING_THREADS = 4
NUM_WAYS = 64
CACHED_WORDS = 100_000


@subword_models.register("sentencepiece")
class SentencePiece(SubwordModel):
    """Subword splitting by the bytes of a SentencePiece model.

    Raises:
        DataError: the bytes are no SentencePiece model.
    """

    file_name = "sentencepiece.model"
    package = "sentencepiece"

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        try:
            if not content:
                raise ValueError("empty")
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=content)
            self._ways_of: dict[str, tuple[list[list[str]], list[float]]] = {}
        except (ValueError, RuntimeError) as error:
            raise DataError("not a SentencePiece model: the file is damaged or another") from error

    def vocabulary(self) -> list[str]:
        """Return all pieces in the order of their ids."""
        return [self._processor.id_to_piece(i) for i in range(len(self._processor))]

    def split(self, words: Sequence[str]) -> list[str]:
        """Return the pieces of ``words``; the first of a word begins with ``▁``."""
        pieces = self._processor.encode(_escaped(" ".join(words)), out_type=str)
        return list(itertools.chain.from_iterable(map(_unlike_symbols, pieces)))

    def sample(self, words: Sequence[str], strength: float, draws: random.Random) -> list[str]:
        """Draw a split of each word with its probability to the power of ``strength``.

        Reference: Kudo 2018, "Subword regularization", section 3.3, with the 64 likeliest splits.
        """
        pieces: list[str] = []
        for word in words:
            # Find the splits of each word once, within a bound of memory.
            if word not in self._ways_of:
                if len(self._ways_of) >= CACHED_WORDS:
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
        ways = ways or [[]]  # normalisation may remove the whole word
        return ways, [sum(processor.get_score(processor.piece_to_id(p)) for p in w) for w in ways]

    def join(self, pieces: Sequence[str]) -> list[str]:
        """Return the words, decoded by the model itself; ``<unk>`` stays as it is."""
        processor, unk = self._processor, self._processor.unk_id()
        known: list[str] = []
        # Prepare the pieces, since decoding replaces unknown ones.
        for piece in pieces:
            if processor.piece_to_id(piece) != unk:
                known.append(piece)
            elif piece == processor.id_to_piece(unk):  # in halves, else decoding replaces it
                known += [piece[:1], piece[1:]]
            else:
                known.append(piece.replace(SPACE_MARK, " "))
        return _unescaped(processor.decode_pieces(known)).split()

    def letters(self, pieces: Sequence[str]) -> list[str | None]:
        """Return the pieces without ``▁``; the first byte piece of a character has all of it."""
        found: list[str | None] = []
        content, begin = b"", 0
        for piece in pieces:
            if not self._processor.is_byte(self._processor.piece_to_id(piece)):
                found.append(_unescaped(piece.replace(SPACE_MARK, "")))
                continue
            # Collect the bytes of a character; only its first byte does not begin with 10.
            byte = int(piece[3:5], 16)
            if byte & 0xC0 != 0x80:
                content, begin = b"", len(found)
            content += bytes([byte])
            found.append(None)
            # Give the character to its first byte's piece once it is complete.
            found[begin] = content.decode("utf-8", "ignore")
        return found

    @classmethod
    def learn(cls, text: LearningText, size: int, seed: int) -> bytes:
        """Learn a unigram model of at most ``size`` pieces; the characters stay as they are.

        A random sample of sentences bounds the memory, and long lines are cut, as SentencePiece
        skips them.
        """
        # Learn from a stream of sentences, and keep all characters as they are.
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

    def escape(found: re.Match[str]) -> str:
        return SPACE_MARK_OF_TEXT if found[0] == SPACE_MARK else ESCAPE + found[0]

    return _TO_ESCAPE.sub(escape, text)


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: found[1] or SPACE_MARK, text)


def _unlike_symbols(piece: str) -> tuple[str, ...]:
    """Return the piece, or two pieces if it equals a special symbol of the dictionary."""
    return (piece[:1], piece[1:]) if piece in SPECIAL_SYMBOLS else (piece,)


def _readable(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines, long ones in parts, so that SentencePiece skips none."""
    for line in lines:
        line = _NOT_LEARNT.sub(" ", line)
        if len(line.encode()) <= LONGEST_LINE:
            yield line
        else:
            yield from _PART.findall(line)


def _reason(message: str) -> str:
    """Return the message of SentencePiece in terms of our flags."""
    if needed := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return f"the characters of the text need more; give --subword-size {needed[1]} or more"
    if "sentences_.empty()" in message:
        return "the training text has nothing to learn from"
    text = re.sub(r"^\w+: \S+\(\d+\) (\[.*\])? ?", "", " ".join(message.split()))
    # Leave out sentences about SentencePiece's own flags.
    advice = (part for part in re.split(r"(?<=\.) ", text) if "_" not in part)
    return " ".join(advice) or "the training text does not suit"
