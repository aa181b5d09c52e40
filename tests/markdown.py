"""The blocks of code of a page, which tests run as readers would."""

import re
import shlex
import textwrap
from typing import NamedTuple

BLOCK = re.compile(
    r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$|((?:^ {4}[^\n]*\n)+)', re.MULTILINE | re.DOTALL
)
SIGNS = "|;<>"
FOR_DOTS = {
    "preprocess": "-s de -t en --trainpref text/train --validpref text/valid --testpref text/test "
    "--destdir data-bin --tokenizer moses --subword subword-nmt --joined-dictionary",
    "train": "--max-tokens 4096",
}
"""What '...' stands for."""


class Block(NamedTuple):
    """A block: its language, the file that it is saved as, if any, and what it says."""

    language: str
    file: str | None
    text: str


def code_blocks(page, *languages):
    """Return the blocks of a page in these languages, by default all, in order.

    An indented block has no language: "".
    """
    blocks = [
        Block(match[1] or "", match[2], match[3] or textwrap.dedent(match[4] or ""))
        for match in BLOCK.finditer(page)
    ]
    return [block for block in blocks if not languages or block.language in languages]


def cells(line):
    """Return the texts of a row of a table."""
    return list(map(str.strip, line.strip().strip("|").split("|")))


def command_lines(text):
    """Return the lines of a block of commands. One that goes on in the next is one with it."""
    return [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def parts_of_line(line):
    """Return the words between the signs of a line of commands, behind the sign before them."""
    words = shlex.shlex(line, posix=True, punctuation_chars=SIGNS)
    words.whitespace_split = True
    parts = [("", [])]
    for word in words:
        if word and set(word) <= set(SIGNS):
            parts.append((word, []))
        else:
            parts[-1][1].append(word)
    return parts


def without_dots(program, flags):
    """Return the flags with real flags for '...'."""
    if "..." not in flags:
        return flags
    at = flags.index("...")
    return [*flags[:at], *shlex.split(FOR_DOTS.get(program, "")), *flags[at + 1 :]]
