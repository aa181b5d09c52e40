"""Blocks of HTML pages (DocBook, Texinfo, Sphinx) and of Mallard pages (GNOME)."""

import re

from prep_tools.blocks import CODE, Block
from prep_tools.html_paragraphs import Node, join_pieces, parse_html

_TEXT_TAGS_NAMES = (
    "p li dt dd td th h1 h2 h3 h4 h5 h6 title desc item caption figcaption blockquote"
)
_TEXT_TAGS = frozenset(_TEXT_TAGS_NAMES.split())
_BOX_TAGS_NAMES = (
    "root html body main article section div ul ol dl hr table thead tbody tfoot tr page "
    "info note list steps terms tree example figure synopsis"
)
_BOX_TAGS = frozenset(_BOX_TAGS_NAMES.split())
_CODE_TAGS = frozenset(("pre", "screen", "listing"))
_HIDDEN_TAGS_NAMES = (
    "head script style nav header footer noscript form button select credit mal:credit "
    "revision include license comment"
)
_HIDDEN_TAGS = frozenset(_HIDDEN_TAGS_NAMES.split())
# Navigation, tables of contents, and marks that stylesheets add.
_HIDDEN_CLASSES_NAMES = (
    "navheader navfooter docnav nav_table toc contents indexterm headerlink "
    "section-number sphinxsidebar related footer legalnotice copyright revhistory "
    "authorgroup"
)
_HIDDEN_CLASSES = frozenset(_HIDDEN_CLASSES_NAMES.split())
# An empty link is filled with the title of another page when the page is shown.
_EMPTY_LINK = re.compile(r"<link\s[^>]*/>")
_PICTURE = re.compile(r"<media\b[^>]*(?:/>|>.*?</media>)", re.DOTALL)
_MENU_STEP = re.compile(r"</(gui|key)>\s*(?=<\1\b)")
_HOLE = "\ufffc"


class _BlockReader:
    """Walks through a page and collects its blocks."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._pieces: list[str] = []

    def end_block(self, kind: str) -> None:
        """Make a block of the text since the last one."""
        text = join_pieces(self._pieces)
        self._pieces.clear()
        if _HOLE in text:
            self.blocks.append(Block(CODE, ""))
        elif text:
            self.blocks.append(Block(kind, text))

    def read(self, node: Node, kind: str) -> None:
        """Collect the blocks of ``node``. Text outside of paragraphs gets this kind."""
        for child in node.children:
            if isinstance(child, str):
                self._pieces.append(child)
            elif child.tag in _HIDDEN_TAGS or not child.classes.isdisjoint(_HIDDEN_CLASSES):
                continue
            elif child.tag in _CODE_TAGS:
                self.end_block(kind)
                self.blocks.append(Block(CODE, ""))
            elif child.tag == "br":
                self._pieces.append(" ")
            elif child.tag in _TEXT_TAGS or child.tag in _BOX_TAGS:
                self.end_block(kind)
                inner = child.tag if child.tag in _TEXT_TAGS else kind
                if "title" in child.classes and not inner.startswith("h"):
                    inner = "title"
                self.read(child, inner)
                self.end_block(inner)
            else:
                self.read(child, kind)


def read_html(html: str) -> list[Block]:
    """Return the blocks of a page without navigation, tables of contents and code.

    Example:
        >>> read_html("<body><h1>A</h1><ul><li>B <b>c</b><li>D</ul><pre>x</pre>")
        [Block(kind='h1', text='A'), Block(kind='li', text='B c'), Block(kind='li', text='D'), \
Block(kind='code', text='')]
    """
    reader = _BlockReader()
    reader.read(parse_html(html), "p")
    reader.end_block("p")
    return reader.blocks


def read_mallard(xml: str) -> list[Block]:
    """Return the blocks of a page in Mallard, the format of GNOME's help.

    Paragraphs with an empty link or a picture count as code: their text is not all there.
    """
    xml = _EMPTY_LINK.sub(_HOLE, _PICTURE.sub(_HOLE, xml))
    return read_html(_MENU_STEP.sub(r"</\1> ▸ ", xml))
