"""SentencePiece: pieces of the sentence itself, where ``▁`` stands for a space."""

import io
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
        except (ValueError, RuntimeError) as error:
            raise DataError("not a SentencePiece model: the file is damaged or another") from error

    def split(self, words: Sequence[str]) -> list[str]:
        """Return the pieces of ``words``; the first of a word begins with ``▁``."""
        return self._processor.encode(" ".join(words), out_type=str)

    def join(self, pieces: Sequence[str]) -> list[str]:
        """Return the words."""
        return "".join(pieces).replace(SPACE_MARK, " ").split()

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
