"""The share of the lines of a text that come back from their tokens as they were."""

from collections.abc import Iterator

from relu_nmt.data.groups import SEPARATOR_TESTS
from relu_nmt.io.text_lines import TextFile, read_chunk
from relu_nmt.tokenization.pipeline import TextPipeline

SAMPLED_LINES, SAMPLED_CHUNKS = 1000, 20
SAMPLED_CHARACTERS = 1_000_000
SMALL_SHARE = 0.01
"""Share of changed lines that is not worth advice."""


def describe_round_trip(pipeline: TextPipeline, text: TextFile, separator: str) -> str:
    """Return one line that tells how many lines come back, and what to do if many do not.

    White space does not count, nor does case if the text is lower-cased.

    Args:
        pipeline: the text steps.
        text: a scanned text; some lines of all its parts are tried.
        separator: which lines are separators, see :data:`relu_nmt.data.groups.SEPARATOR_TESTS`.
    """
    total = kept = length = 0
    for line in _sample(text, separator):
        expected = " ".join(line.split())
        if pipeline.lowercase:
            expected = expected.lower()
        total, length = total + 1, length + len(line)
        kept += pipeline.decode(pipeline.encode(line)) == expected
        if length > SAMPLED_CHARACTERS:
            break
    share = f"{kept / max(1, total):.1%}"
    told = f"{kept:,} of {total:,} sampled lines ({share}) come back from their tokens unchanged"
    if total - kept > SMALL_SHARE * total and pipeline.tokenizer != "none":
        told += "; --subword sentencepiece without --tokenizer changes none"
    return told


def _sample(text: TextFile, separator: str) -> Iterator[str]:
    """Yield lines of parts that are spread over the text."""
    separates = SEPARATOR_TESTS[separator]
    every = max(1, len(text.chunks) // SAMPLED_CHUNKS)
    share = SAMPLED_LINES // min(len(text.chunks), SAMPLED_CHUNKS)
    for number, chunk in enumerate(text.readable_chunks()):
        if number % every == 0 and number < every * SAMPLED_CHUNKS:
            lines = [line for line in read_chunk(chunk) if line.strip() and not separates(line)]
            yield from lines[:: max(1, len(lines) // share)][:share]
