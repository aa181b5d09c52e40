"""The text that subword models are learnt on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from relu_nmt.data.binarize import count_words
from relu_nmt.io.progress_bar import progress_bar
from relu_nmt.io.text_lines import TextFile, read_chunk


@dataclass(frozen=True)
class TrainingText:
    """The tokenised training text of one language or of all, for learning.

    Args:
        texts: its files.
        workers: processes that count words.
    """

    texts: Sequence[TextFile]
    workers: int

    def sentences(self) -> Iterator[str]:
        """Yield the sentences that are not empty."""
        for text in self.texts:
            for chunk in text.readable_chunks():
                yield from filter(str.strip, read_chunk(chunk))

    def word_counts(self) -> Mapping[str, int]:
        """Return how often each word occurs."""
        total = sum(text.num_bytes for text in self.texts)
        with progress_bar("count words", total) as advance:
            return count_words(self.texts, self.workers, advance)
