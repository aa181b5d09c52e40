"""Dictionaries, binarized corpora and batches, and the readers of files with both sides."""

from collections.abc import Callable, Iterator, Sequence

from relu_nmt.config.registry import Registry

Unit = tuple[str, dict[str, str]]
"""The document of a pair ("" if it is not known), and its texts by language."""

pair_formats: Registry[Callable[[str, Sequence[str]], Iterator[Unit]]] = Registry(
    "ending of a file with both sides", dict.fromkeys((".tmx", ".tsv"), "relu_nmt.data.pair_files")
)
"""Readers by the ending of the file's name, called with (path, languages to read).

The text may have more languages. The file may be compressed: see :mod:`relu_nmt.io.text_lines`.
"""
