"""The blocks of code of a page, which tests run as readers would."""

import re
from typing import NamedTuple

BLOCK = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block: its language, the file that it is saved as, if any, and what it says."""

    language: str
    file: str | None
    text: str


def code_blocks(page, *languages):
    """Return the blocks of a page that are in these languages, in order."""
    found = [Block(*match.groups()) for match in BLOCK.finditer(page)]
    return [block for block in found if block.language in languages]
