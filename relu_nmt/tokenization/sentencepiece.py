"""SentencePiece: pieces of the sentence itself, where ``▁`` stands for a space."""

import io
import math
import random
from collections.abc import Sequence

from relu_nmt.errors import ConfigError, DataError, MissingExtraError
from relu_nmt.tokenization.base import LearningText, SubwordModel, subword_models

try:
    import sentencepiece
except ImportError as missing:
    raise MissingExtraError(
        "--subword sentencepiece needs the package sentencepiece: pip install sentencepiece"
    ) from missing

SPACE_MARK = "\u2581"
LEARNING_SENTENCES = 1_000_000
# The sums of the learning steps are taken thread by thread: the result depends on their number.
LEARNING_THREADS = 4
NUM_WAYS = 64
CACHED_WORDS = 100_000


@subword_models.register("sentencepiece")
class SentencePiece(SubwordModel):
    """Splits by a SentencePiece model.

    Args:
        content: the bytes of a model file.

    Raises:
        DataError: this is no SentencePiece model.
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

    def split(self, words: Sequence[str]) -> list[str]:
        """Return the pieces of ``words``; the first of a word begins with ``▁``."""
        return self._processor.encode(" ".join(words), out_type=str)

    def sample(self, words: Sequence[str], strength: float, draws: random.Random) -> list[str]:
        """Return pieces drawn with their probabilities to the power of ``strength``, word by word.

        Raises:
            ConfigError: the model is none of the unigram kind.

        Reference: Kudo 2018, "Subword regularization", section 3.3, with the 64 likeliest ways.
        """
        pieces: list[str] = []
        for word in words:
            if word not in self._ways_of:
                if len(self._ways_of) >= CACHED_WORDS:
                    self._ways_of.clear()
                self._ways_of[word] = self._ways(word)
            ways, scores = self._ways_of[word]
            shares = [math.exp(strength * (score - scores[0])) for score in scores]
            pieces += draws.choices(ways, shares)[0]
        return pieces

    def _ways(self, word: str) -> tuple[list[list[str]], list[float]]:
        """Return the likeliest ways to split a word, and their log-probabilities."""
        processor = self._processor
        try:
            ways = processor.nbest_encode(word, nbest_size=NUM_WAYS, out_type=str)
        except RuntimeError as error:
            raise ConfigError(
                "--subword-sampling: SentencePiece samples from unigram models only"
            ) from error
        ways = ways or [[]]  # of what the model's normalisation takes away
        return ways, [sum(processor.get_score(processor.piece_to_id(p)) for p in w) for w in ways]

    def join(self, pieces: Sequence[str]) -> list[str]:
        """Return the words."""
        return "".join(pieces).replace(SPACE_MARK, " ").split()

    def letters(self, pieces: Sequence[str]) -> list[str | None]:
        """Return the pieces without ``▁``; the first byte of a character stands for all of it."""
        found: list[str | None] = []
        content, begin = b"", 0
        for piece in pieces:
            if not self._processor.is_byte(self._processor.piece_to_id(piece)):
                found.append(piece.replace(SPACE_MARK, ""))
                continue
            byte = int(piece[3:5], 16)
            if byte & 0xC0 != 0x80:
                content, begin = b"", len(found)
            content += bytes([byte])
            found.append(None)
            found[begin] = content.decode("utf-8", "ignore")
        return found

    @classmethod
    def learn(cls, text: LearningText, size: int, seed: int) -> bytes:
        """Learn a unigram model of at most ``size`` pieces; the characters stay as they are.

        Of a text of more than :data:`LEARNING_SENTENCES` sentences a random sample of so many is
        used, which bounds the memory.
        """
        model = io.BytesIO()
        sentencepiece.set_random_generator_seed(seed)
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(text.sentences()),
                model_writer=model,
                vocab_size=size,
                model_type="unigram",
                character_coverage=1.0,
                normalization_rule_name="identity",
                hard_vocab_limit=False,
                input_sentence_size=LEARNING_SENTENCES,
                shuffle_input_sentence=True,
                num_threads=LEARNING_THREADS,
                minloglevel=2,
            )
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise ConfigError(f"--subword-size {size}: SentencePiece refuses it: {reason}") from (
                error
            )
        return model.getvalue()
