"""Reading the paragraphs of a LibreOffice help page together with their ids."""

import dataclasses
import re
from collections.abc import Iterable, Iterator
from html import escape
from html.parser import HTMLParser

# Elements without an end tag.
_VOID = frozenset(("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta"))
_HIDDEN_TAGS = frozenset(("script", "style", "noscript", "pre", "nav", "header", "footer"))
# "embedded": a paragraph that belongs to another page. Then code, pictures, service lines.
_CODE = frozenset(("code", "codeintable", "bascode", "pycode", "sqlcode", "smathcode"))
_HIDDEN_CLASSES = _CODE | {"embedded", "image", "imageintable", "youtube_consent", "debug", "bug"}
_SWITCHES = frozenset({"switch", "switchinline"})
_SYSTEMS = frozenset({"MAC", "WIN", "UNIX"})
_PARAGRAPH_IDS = ("par_", "hd_")
# Inline markup that other programs than the help's own have, too: elements, and classes of spans.
_INLINE = frozenset(("a", "b", "em", "i", "strong", "sub", "sup", "u"))
_INLINE_CLASSES = frozenset(
    ("emph", "literal", "menuitem", "input", "keycode", "productname", "widget", "acronym")
)
# The space that a removed picture leaves before a full stop or comma.
_LOOSE_MARK = re.compile(r" ([.,])(?= |$)")


@dataclasses.dataclass
class Node:
    """An HTML element: its tag, attributes, and children (elements and texts)."""

    tag: str
    attributes: dict[str, str]
    children: list["Node | str"]

    @property
    def classes(self) -> set[str]:
        """The values of the ``class`` attribute."""
        return set(self.attributes.get("class", "").split())

    def is_hidden(self) -> bool:
        """Return whether nothing inside belongs to the page's own text."""
        return self.tag in _HIDDEN_TAGS or not self.classes.isdisjoint(_HIDDEN_CLASSES)


class _TreeBuilder(HTMLParser):
    """Builds the tree of elements. End tags may be missing."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Node("root", {}, [])
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {name: value or "" for name, value in attrs}, [])
        self._open[-1].children.append(node)
        if tag not in _VOID:
            self._open.append(node)

    def handle_endtag(self, tag: str) -> None:
        for depth in range(len(self._open) - 1, 0, -1):
            if self._open[depth].tag == tag:
                del self._open[depth:]
                return

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)


def parse_html(html: str) -> Node:
    """Return the root of a page's elements (or of a document in simple XML)."""
    builder = _TreeBuilder()
    builder.feed(html)
    builder.close()
    return builder.root


def join_pieces(pieces: Iterable[str]) -> str:
    """Return the text of a paragraph from its pieces, white space reduced to single spaces."""
    return _LOOSE_MARK.sub(r"\1", " ".join("".join(pieces).split()))


def _visible_children(node: Node) -> list["Node | str"]:
    """Return the children, with only one variant of a switch between systems or applications.

    This is the default variant, or the first that is not for a particular system. The list is
    empty if all variants are for particular systems.
    """
    if node.classes.isdisjoint(_SWITCHES):
        return node.children
    variants = [child for child in node.children if isinstance(child, Node)]
    for variant in variants:
        if variant.attributes.get("id", "").startswith("default"):
            return [variant]
    return [v for v in variants if v.classes.isdisjoint(_SYSTEMS)][:1]


def _text(node: Node, with_tags: bool) -> Iterator[str]:
    """Yield the pieces of text in a paragraph, escaped and with inline tags if asked for."""
    for child in _visible_children(node):
        if isinstance(child, str):
            yield escape(child, quote=False) if with_tags else child
        elif child.tag == "br":
            yield " "
        elif not child.is_hidden():
            opening, closing = _inline_tags(child) if with_tags else ("", "")
            yield opening
            yield from _text(child, with_tags)
            yield closing


def _inline_tags(node: Node) -> tuple[str, str]:
    """Return the tags of an inline element, with its class as the only attribute."""
    if node.tag in _INLINE:
        return f"<{node.tag}>", f"</{node.tag}>"
    names = sorted(node.classes & _INLINE_CLASSES)
    if node.tag == "span" and names:
        return f'<span class="{names[0]}">', "</span>"
    return "", ""


def _paragraphs(node: Node, with_tags: bool) -> Iterator[tuple[str, str]]:
    for child in _visible_children(node):
        if isinstance(child, str) or child.is_hidden():
            continue
        identifier = child.attributes.get("id", "")
        if identifier.startswith(_PARAGRAPH_IDS):
            text = join_pieces(_text(child, with_tags))
            if text:
                yield identifier, text
        else:
            yield from _paragraphs(child, with_tags)


def read_paragraphs(html: str, with_tags: bool = False) -> list[tuple[str, str]]:
    """Return the page's own paragraphs in reading order.

    Paragraphs embedded from other pages, code and pictures are left out. Of variants for different
    systems only one is kept.

    Args:
        html: the page.
        with_tags: keep inline tags, and escape the text.

    Returns:
        (id, text) pairs. The same paragraph has the same id in every language. White space is
        reduced to single spaces. No text is empty.

    Example:
        >>> read_paragraphs('<p id="par_id1">Choose <b>File</b>.</p><p id="x">no id</p>')
        [('par_id1', 'Choose File.')]
    """
    return list(_paragraphs(parse_html(html), with_tags))
