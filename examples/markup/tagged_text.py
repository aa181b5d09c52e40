"""Texts with inline tags: read, cut into sentences, and written as markup or as words."""

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from html import escape, unescape
from operator import attrgetter, itemgetter

_TAG = re.compile(r"<(/?)([A-Za-z][\w-]*)([^<>]*)>")
_CLASS = re.compile(r"""class=["']?([\w-]+)""")
_SPACES = re.compile(r"\s+")
_SPACE_BEHIND_TAG = re.compile(r"(</[^<>]*>) (?=[.,;:!?)\]])")
_SPACE_BEFORE_TAG = re.compile(r"(?<=[(\[]) (<[^/<>][^<>]*>)")
FIRST_SYMBOL = 0x25A0
MOST_SYMBOLS = 64
"""Geometric shapes that stand for tags in a text of words. Texts have no such shapes."""


@dataclasses.dataclass(frozen=True)
class Inline:
    """A pair of tags around ``text[begin:end]``. The name is ``b`` or, with a class, ``b.key``."""

    name: str
    begin: int
    end: int

    @property
    def opening(self) -> str:
        """The opening tag as markup."""
        element, _, kind = self.name.partition(".")
        return f'<{element} class="{kind}">' if kind else f"<{element}>"

    @property
    def closing(self) -> str:
        """The closing tag as markup."""
        return f"</{self.name.partition('.')[0]}>"


@dataclasses.dataclass(frozen=True)
class TaggedText:
    """A text and its tags in the order of their opening tags.

    Attributes:
        text: the text without tags, with single spaces.
        tags: pairs of tags. Outer pairs stand before the pairs within them.
        is_nested: every tag of the markup had a partner, and no two pairs overlapped.
    """

    text: str
    tags: tuple[Inline, ...] = ()
    is_nested: bool = True

    @classmethod
    def of_markup(cls, markup: str) -> "TaggedText":
        """Read markup. Tags without a partner are dropped.

        Example:
            >>> TaggedText.of_markup('Choose <b class="key">File </b>.').tags
            (Inline(name='b.key', begin=7, end=11),)
        """
        text = ""
        closed: list[tuple[int, Inline]] = []
        waiting: list[tuple[int, str, int]] = []
        is_nested = True
        position = 0
        for number, match in enumerate(_TAG.finditer(markup)):
            text = _joined(text, markup[position : match.start()])
            position = match.end()
            element = match[2]
            if not match[1]:
                kind = _CLASS.search(match[3])
                name = f"{element}.{kind[1]}" if kind else element
                waiting.append((number, name, len(text)))
                continue
            elements = [name.partition(".")[0] for _, name, _ in waiting]
            if element not in elements:
                is_nested = False
                continue
            index = len(elements) - 1 - elements[::-1].index(element)
            is_nested &= index == len(elements) - 1
            opened, name, begin = waiting.pop(index)
            closed.append((opened, Inline(name, begin, len(text))))
        text = _joined(text, markup[position:]).rstrip()
        tags = []
        for _, tag in sorted(closed, key=itemgetter(0)):
            tags.append(_without_spaces(tag, text))
        return cls(text, tuple(tags), is_nested and not waiting)

    def part(self, begin: int, end: int) -> "TaggedText | None":
        """Return a part of the text with the tags in it. None: a tag crosses its border."""
        tags = []
        for tag in self.tags:
            if begin <= tag.begin and tag.end <= end:
                tags.append(Inline(tag.name, tag.begin - begin, tag.end - begin))
            elif tag.begin < end and begin < tag.end:
                return None
        return TaggedText(self.text[begin:end], tuple(tags))

    def without_trivial_tags(self) -> "TaggedText":
        """Return the text without tags around nothing or around the whole text."""
        tags = []
        for tag in self.tags:
            if 0 < tag.end - tag.begin < len(self.text):
                tags.append(tag)
        return TaggedText(self.text, tuple(tags), self.is_nested)

    def names(self) -> Counter[str]:
        """Return the number of tags of each name."""
        return Counter(tag.name for tag in self.tags)

    def markup(self) -> str:
        """Return the text with its tags as markup."""
        return self._written(attrgetter("opening"), attrgetter("closing"))

    def words(self, symbols: Mapping[str, tuple[str, str]]) -> str:
        """Return the text with tags as words. Tags without symbols are left out."""
        written = self._written(
            lambda tag: f" {symbols.get(tag.name, ('', ''))[0]} ",
            lambda tag: f" {symbols.get(tag.name, ('', ''))[1]} ",
        )
        return " ".join(unescape(written).split())

    def _written(self, opening: Callable[[Inline], str], closing: Callable[[Inline], str]) -> str:
        parts: list[str] = []
        waiting: list[Inline] = []
        position = 0
        for tag in [*self.tags, Inline("", len(self.text), len(self.text))]:
            # Close the tags that end before this one begins.
            while waiting and waiting[-1].end <= tag.begin:
                last = waiting.pop()
                parts += [escape(self.text[position : last.end], quote=False), closing(last)]
                position = last.end
            parts.append(escape(self.text[position : tag.begin], quote=False))
            position = tag.begin
            if tag.name:
                parts.append(opening(tag))
                waiting.append(tag)
        return "".join(parts)


def _joined(text: str, markup: str) -> str:
    """Return a text and the next piece of markup without tags, with single spaces."""
    piece = _SPACES.sub(" ", unescape(markup))
    if not text or text.endswith(" "):
        piece = piece.lstrip()
    return text + piece


def _without_spaces(tag: Inline, text: str) -> Inline:
    """Return a tag that begins and ends with a letter or mark."""
    content = text[tag.begin : tag.end]
    begin = tag.begin + len(content) - len(content.lstrip())
    return Inline(tag.name, begin, max(begin, begin + len(content.strip())))


def tag_symbols(texts: Iterable[TaggedText]) -> dict[str, tuple[str, str]]:
    """Return two words for each name of a tag, for its opening and its closing tag."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts += text.names()
    symbols = {}
    for number, (name, _) in enumerate(counts.most_common(MOST_SYMBOLS // 2)):
        code = FIRST_SYMBOL + 2 * number
        symbols[name] = chr(code), chr(code + 1)
    return symbols


def of_words(line: str, symbols: Mapping[str, tuple[str, str]]) -> TaggedText:
    """Read a text with tags as words. Marks stand behind their word, as in other texts."""
    markup = escape(line, quote=False)
    for name, (opening, closing) in symbols.items():
        tag = Inline(name, 0, 0)
        markup = markup.replace(f"{opening} ", tag.opening).replace(opening, tag.opening)
        markup = markup.replace(f" {closing}", tag.closing).replace(closing, tag.closing)
    markup = _SPACE_BEHIND_TAG.sub(r"\1", markup)
    return TaggedText.of_markup(_SPACE_BEFORE_TAG.sub(r"\1", markup))
