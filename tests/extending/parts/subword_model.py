"""A subword model of one's own: characters, and words that are frequent enough whole."""

import json
from collections.abc import Sequence

from relu_nmt.errors import DataError
from relu_nmt.tokenization.base import LearningText, SubwordModel, subword_models


@subword_models.register("characters")
class Characters(SubwordModel):
    """Splits all words but the most frequent ones into characters. @@ marks where one goes on."""

    file_name = "characters.json"

    @classmethod
    def learn(cls, text: LearningText, size: int, seed: int) -> bytes:
        """Return the ``size`` most frequent words."""
        counts = text.word_counts()
        frequent = sorted(counts, key=lambda word: (-counts[word], word))[:size]
        return json.dumps(frequent).encode()

    @classmethod
    def load(cls, content: bytes) -> "Characters":
        """Return the model of a file's bytes."""
        model = cls(content)
        try:
            model.whole = set(json.loads(content))
        except (ValueError, TypeError) as error:
            raise DataError(f"not a list of words: {error}") from error
        return model

    def split(self, words: Sequence[str]) -> list[str]:
        """Return the pieces of ``words``."""
        pieces = []
        for word in words:
            parts = [word] if word in self.whole else list(word)
            pieces += [*(f"{part}@@" for part in parts[:-1]), parts[-1]]
        return pieces

    def join(self, pieces: Sequence[str]) -> list[str]:
        """Return the words of which :meth:`split` made ``pieces``."""
        return " ".join(pieces).replace("@@ ", "").split()
