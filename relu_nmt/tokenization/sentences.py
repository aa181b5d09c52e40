"""Paragraphs to sentences, by a library that is installed apart."""

from collections.abc import Callable

from relu_nmt.errors import MissingExtraError


def sentence_splitter(language: str) -> Callable[[str], list[str]]:
    """Return what cuts a paragraph into its sentences; of a blank one it returns none.

    Abbreviations, dates and quotes are those of the language; one that the library does not know
    is cut by rules that suit many.

    Args:
        language: as in the file names ("de").

    Raises:
        MissingExtraError: the package is not installed.
    """
    try:
        import sentencex
    except ImportError as missing:
        raise MissingExtraError(
            '--split-sentences needs the package sentencex: pip install "relu-nmt[sentences]"'
        ) from missing

    def split(paragraph: str) -> list[str]:
        sentences = (sentence.strip() for sentence in sentencex.segment(language, paragraph))
        return [sentence for sentence in sentences if sentence]

    return split
