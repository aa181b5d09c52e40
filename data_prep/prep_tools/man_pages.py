"""Blocks of manual pages in the man macros of troff.

Pages in the mdoc macros are not read, since their text is not known before formatting.

Reference: groff_man(7), groff_char(7), and groff(7) for the escape sequences.
"""

import re
import unicodedata

from prep_tools.blocks import CODE, Block
from relu_nmt.io.text_lines import split_lines

_FONTS = frozenset(("B", "I", "R", "SM", "SB", "CW"))
_ALTERNATING = frozenset(("BR", "BI", "RB", "RI", "IB", "IR"))
_NEW_PARAGRAPH = frozenset(("PP", "P", "LP", "sp", "br", "RS", "RE", "HP", "PD", "bp", "ne", "Sp"))
# Macros that begin text that is not prose, and the macros that end it.
_CODE_ENDS = {"nf": "fi", "EX": "EE", "Vb": "Ve", "TS": "TE", "EQ": "EN", "SY": "YS", "PS": "PE"}
_SKIPPED_ENDS = {"de": ".", "de1": ".", "ig": ".", "am": "."}
_LINKS = frozenset(("UR", "MT"))
_LINK_ENDS = frozenset(("UE", "ME"))
_MDOC = re.compile(r"^[.']D[dt]\b", re.MULTILINE)
_ALIAS = re.compile(r"^[.']so\s", re.MULTILINE)
_CONTROL = re.compile(r"[.'][ \t]*(?P<name>[^\s\\\"]*)(?P<rest>.*)")
_ARGUMENT = re.compile(r'"((?:[^"]|"")*)"?|((?:\\ |\\.|\S)+)')
_CHARACTERS = {
    "aq": "'", "dq": '"', "oq": "‘", "cq": "’", "lq": "“", "rq": "”", "Bq": "„", "bq": "‚",
    "Fo": "«", "Fc": "»", "fo": "‹", "fc": "›", "em": "—", "en": "–", "hy": "-", "mi": "-",
    "bu": "•", "co": "©", "rg": "®", "tm": "™", "de": "°", "mu": "×", "ti": "~", "ha": "^",
    "rs": "\\", "sl": "/", "ga": "`", "aa": "´", "+-": "±", "<=": "≤", ">=": "≥", "!=": "≠",
    "->": "→", "<-": "←", "ss": "ß", "at": "@", "sh": "#", "Do": "$", "lB": "[", "rB": "]",
    "lC": "{", "rC": "}", "la": "⟨", "ra": "⟩", "ba": "|", "or": "|", "14": "¼", "12": "½",
    "ae": "æ", "AE": "Æ", "oe": "œ", "OE": "Œ", "oa": "å", "oA": "Å", "/o": "ø", "/O": "Ø",
    "r!": "¡", "r?": "¿", "Eu": "€", "sc": "§", "dg": "†", "S2": "²", "S3": "³", "pl": "+",
    "eq": "=", "**": "*",
}  # fmt: skip
# \(:u is u with two dots: marks that join the letter before them.
_MARKS = {":": "\u0308", "'": "\u0301", "`": "\u0300", "^": "\u0302", "~": "\u0303", ",": "\u0327"}
_STRINGS = {"Aq": "'", "lq": "“", "rq": "”", "R": "®", "Tm": "™", 'L"': '"', 'R"': '"', "C'": "'"}
_ACCENTS = str.maketrans({"'": "´", "`": "`", "-": "-", "e": "\\", "\\": "\\", " ": " ", "~": " ",
                          "0": " ", "t": " ", ".": "."})  # fmt: skip
_ESCAPE = re.compile(
    r"\\(?:"
    r"f(?:\[[^]]*\]|\(..|.)"  # font
    r"|[mMF](?:\[[^]]*\]|\(..|.)"  # color, font family
    r"|s(?:\[[^]]*\]|\([+-]?\d\d|[+-]?\d)"  # size
    r"|[hvwlLDNbo]'[^']*'"  # motions, drawings, widths
    r"|[nkg](?:\[[^]]*\]|\(..|.)"  # registers
    r"|\((?P<pair>..)|\[(?P<name>[^]]*)\]"  # characters
    r"|\*(?:\[(?P<string>[^]]*)\]|\((?P<two>..)|(?P<one>.))"  # strings
    r"|(?P<plain>['`\-e\\ ~0t.])"
    r"|."  # layout: \& \% \/ \, \c \| \^ \: ...
    r")"
)


def _character(name: str) -> str:
    if re.fullmatch(r"u[0-9A-F]{4,5}", name):
        return chr(int(name[1:], 16))
    if len(name) == 2 and name[0] in _MARKS and name[1].isalpha():
        return unicodedata.normalize("NFC", name[1] + _MARKS[name[0]])
    return _CHARACTERS.get(name, "")


def plain(text: str) -> str:
    r"""Return text without its escape sequences.

    Example:
        >>> plain(r"\fBls\fP \- list, see \(lqman\(rq")
        'ls - list, see “man”'
    """

    def replace(match: re.Match[str]) -> str:
        if match["pair"] is not None or match["name"] is not None:
            return _character(match["pair"] or match["name"] or "")
        for group in ("string", "two", "one"):
            if match[group] is not None:
                return _STRINGS.get(match[group], "")
        return match["plain"].translate(_ACCENTS) if match["plain"] is not None else ""

    text = text.split('\\"', 1)[0]
    return _ESCAPE.sub(replace, text)


def arguments_of(text: str) -> list[str]:
    """Return the arguments of a macro, quotes and escape sequences removed."""
    text = text.split('\\"', 1)[0]
    matches = _ARGUMENT.findall(text.strip())
    return [plain(quoted.replace('""', '"') or word) for quoted, word in matches]


class _PageReader:
    """Reads a page line by line."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._lines: list[str] = []
        self._kind = "p"
        self._until = ""  # the macro that ends the skipped text
        self._depth = 0  # open \{ of conditions
        self._tag_follows = False
        self._heading_follows = ""
        self._link = ("", 0)

    def end_block(self) -> None:
        """Make a block of the text since the last one."""
        text = " ".join(" ".join(self._lines).split())
        self._lines.clear()
        if text:
            self.blocks.append(Block(self._kind, text))

    def _text(self, text: str) -> None:
        if self._heading_follows:
            self.blocks.append(Block(self._heading_follows, " ".join(text.split())))
            self._heading_follows = ""
        elif self._tag_follows:
            self.end_block()
            self.blocks.append(Block("tag", " ".join(text.split())))
            self._tag_follows = False
        elif text.strip():
            self._lines.append(text)
        else:
            self.end_block()

    def _heading(self, kind: str, words: list[str]) -> None:
        self.end_block()
        self._kind = "p"
        self._tag_follows = False
        self._heading_follows = kind
        if words:
            self._text(" ".join(words))

    def _labeled(self, words: list[str]) -> None:
        """Begin an indented paragraph, with a label or without (``.IP``)."""
        self.end_block()
        self._kind = "item"
        if words and any(character.isalnum() for character in words[0]):
            self.blocks.append(Block("tag", words[0]))

    def _macro(self, name: str, text: str) -> None:
        words = arguments_of(text)
        if name in _FONTS or name in _ALTERNATING:
            self._text(("" if name in _ALTERNATING else " ").join(words))
        elif name in ("SH", "SS"):
            self._heading("h1" if name == "SH" else "h2", words)
        elif name in ("TP", "TQ"):
            self.end_block()
            self._kind = "item"
            self._tag_follows = True
        elif name == "IP":
            self._labeled(words)
        elif name in _NEW_PARAGRAPH:
            self.end_block()
            self._kind = "p"
        elif name in _LINKS:
            self._link = (words[0] if words else "", len(self._lines))
        elif name in _LINK_ENDS:
            address, before = self._link
            if len(self._lines) == before:  # nothing but the address stands for the link
                self._lines.append(address)
            if words and self._lines:
                self._lines[-1] += words[0]

    def _skipped(self, line: str, name: str | None) -> bool:
        """Return whether the line is inside of code, a definition or a condition."""
        if self._depth:
            self._depth += line.count("\\{") - line.count("\\}")
            return True
        if self._until:
            if name == self._until:
                self._until = ""
            return True
        return False

    def line(self, line: str) -> None:
        """Read one line."""
        control = _CONTROL.fullmatch(line) if line[:1] in (".", "'") else None
        name = control["name"] if control else None
        if self._skipped(line, name):
            return
        if control is None:
            self._text(plain(line))
        elif name in _CODE_ENDS:
            self.end_block()
            self.blocks.append(Block(CODE, ""))
            self._until = _CODE_ENDS[name]
        elif name in _SKIPPED_ENDS:
            self._until = _SKIPPED_ENDS[name]
        elif name in ("if", "ie", "el"):
            self._depth = max(0, line.count("\\{") - line.count("\\}"))
        else:
            self._macro(name or "", control["rest"])


def is_alias(page: str) -> bool:
    """Return whether the page only names another page."""
    return len(page) < 2_000 and _ALIAS.search(page) is not None


def read_man(page: str) -> list[Block]:
    r"""Return the blocks of a manual page, or none for an alias or a page in mdoc.

    Example:
        >>> read_man(".SH NAME\nls \\- list\n.TP\n.B \\-a\nall of\n.I them\n.nf\nx\n.fi")
        [Block(kind='h1', text='NAME'), Block(kind='p', text='ls - list'), \
Block(kind='tag', text='-a'), Block(kind='item', text='all of them'), Block(kind='code', text='')]
    """
    if is_alias(page) or _MDOC.search(page):
        return []
    reader = _PageReader()
    for line in split_lines(page.replace("\r\n", "\n").replace("\\\n", "")):
        reader.line(line)
    reader.end_block()
    return reader.blocks


def without_translators(
    translation: list[Block], original: list[Block]
) -> tuple[list[Block], list[Block]]:
    """Cut the last section of a translation, which names the translators, if the original has none.

    Returns:
        Both pages.
    """
    starts = [number for number, block in enumerate(translation) if block.kind == "h1"]
    if len(starts) == 1 + sum(block.kind == "h1" for block in original):
        return translation[: starts[-1]], original
    return translation, original
