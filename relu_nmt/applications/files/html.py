"""Web pages: text between block elements, with inline elements as tags."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from relu_nmt.applications.files import formats
from relu_nmt.applications.files.markup import (
    CDATA,
    MarkupFormat,
    MarkupReader,
    Piece,
    Vocabulary,
    names,
)
from relu_nmt.applications.files.segments import Span, add_tag, split_at

REPEATING = names("b bdi bdo big cite del dfn em font i ins mark q s small span strike strong sub")
REPEATING |= names("sup u")
_VISIBLE = names("img picture input svg math audio video object iframe canvas")
HTML = Vocabulary(
    inline=REPEATING | names("a abbr acronym data label rb rp rt ruby time"),
    repeating=REPEATING,
    empty=_VISIBLE | names("br wbr"),
    spaces=names("br"),
    dividing=_VISIBLE | names("label"),
    protected=names("code kbd samp tt var"),
    skipped=names("script style textarea template math"),
    attributes={
        "*": names("alt title placeholder aria-label summary"),
        "track": names("label"),
        "option": names("label"),
        "optgroup": names("label"),
    },
    raw=names("script style textarea xmp"),
    preformatted=names("pre"),
    is_html=True,
)
_BLOCKS = names(
    "p div h1 h2 h3 h4 h5 h6 hr ul ol li dl dt dd table caption "
    "colgroup col thead tbody tfoot tr td th pre blockquote section article aside header footer "
    "main nav figure figcaption details summary fieldset legend form center address"
)
_CHOICES = names("select optgroup option")
"""Elements that divide words, as blocks do, but are tags only in pairs."""
_ALONE = names("br hr img input wbr col meta")  # elements without a closing tag
_OTHERS = names("html head body meta link script button")
_VALUES = (
    r'""(?:[^\s"<>][^"<>]*)?""',
    r'"[^"<>]*"',
    r"'[^'<>]*'",
    r"&quot;(?:(?!&quot;)[^<>])*&quot;",
    r"&apos;(?:(?!&apos;)[^<>])*&apos;",
    r"""[^\s"'<>&]+""",
)
"""Values in quotes, in doubled quotes (tables), in escaped quotes, or without quotes."""
_MOST_WITHIN = 1_000
"""Most characters, or else most marks, between a mark of markup and the mark that ends it."""
_LATIN_1 = names("iso-8859-1 iso8859-1 latin1 ascii us-ascii")
_UNUSED = re.compile(rb"[\x81\x8d\x8f\x90\x9d]")
"""Bytes without a character in the code page of Windows."""
_OPENING = re.compile(r"<(?!(?:br|hr|img|input|link|meta|wbr)\b)[a-z][^<>]*(?<!/)>", re.IGNORECASE)
_CODE = re.compile(
    r"""\sclass\s*=\s*[^>]*(?:cmd|code|console|example|fragment|hilite|highlight|idl|lang-|language-
    |lisp|listing|literal-block|prettyprint|program|screen|shell|source|synopsis|terminal|verbatim)""",
    re.IGNORECASE | re.VERBOSE,
)
"""A class that marks a preformatted text, or the element around it, as code."""
_MOST_JOINED = 2_000
"""After this many characters of preformatted text, a line end divides it as a blank line does."""
_DESCRIPTION = re.compile(r"(?:og:|twitter:)?(?:description|title)|keywords", re.IGNORECASE)


class HtmlReader(MarkupReader):
    """Finds the segments of a page, including the description in its head."""

    def is_skipped(self, piece: Piece) -> bool:
        if piece.name == "pre":
            # Look at the classes of this element, and of one that begins just before it.
            begin = self.source.rfind("<", 0, piece.begin)
            if begin < 0 or not _OPENING.match(self.source, begin, piece.begin):
                begin = piece.begin
            if _CODE.search(self.source, begin, piece.end):
                return True
        return super().is_skipped(piece)

    def add_space(self, match: re.Match[str]) -> None:
        """Add white space of a preformatted text. A blank line ends a paragraph."""
        num_lines = match[0].count("\n")
        if num_lines > 1 or (num_lines and len(self.builder.text) > _MOST_JOINED):
            self.end_segment()
        else:
            super().add_space(match)

    def text_attributes(self, piece: Piece) -> frozenset[str]:
        text_names = super().text_attributes(piece)
        if piece.name == "meta":
            kind = piece.attribute("name") + piece.attribute("property")
            if _DESCRIPTION.fullmatch(kind):
                return text_names | {"content"}
        if piece.name == "input":
            kind = piece.attribute("type").lower()
            if kind in ("submit", "reset", "button"):
                return text_names | {"value"}
        return text_names


def tag_pattern(opening: str, closing: str) -> str:
    """Return an expression for the tags of a text, whose marks are these.

    Names of HTML elements are tags. Other names are tags only in pairs or with a slash, so that
    ``List<String>`` is text. Its groups are for :func:`~segments.add_tag`.
    """
    elements = _BLOCKS | HTML.inline | HTML.empty | HTML.protected | _OTHERS
    divides = f"(?=(?P<divides>{_any_of(_BLOCKS | _CHOICES | HTML.dividing)})?)"
    is_alone = f"(?=(?P<alone>{_any_of(_ALONE)})?)"
    name = rf"{divides}{is_alone}(?P<name>(?P<element>{_any_of(elements)})|[A-Za-z][\w-]*)"
    # An attribute has a value, or is a placeholder such as {x}. Names alone may follow it.
    valued = rf"[\w:.-]+\s*=\s*(?:{'|'.join(_VALUES)})"
    first = rf"(?:{valued}|[%{{][^\s<>&]*)"
    attributes = rf"(?:\s+{first}(?:\s+(?:{first}|[\w-]+|…|\.{{3}}))*)?"
    tag = rf"{opening}(?P<slash>/)?{name}{attributes}\s*(?P<end>/)?{closing}"
    # A tag that is no element and has no slash needs its closing tag behind it.
    closing_tag = rf"{opening}/(?P=name)\s*{closing}"
    is_pair = rf"(?=(?s:.{{0,{_MOST_WITHIN}}}?){closing_tag})"
    tag += rf"(?(element)|(?(slash)|(?(end)|{is_pair})))"
    return f"{untranslated_pattern(opening, closing)}|{tag}"


def untranslated_pattern(opening: str, closing: str) -> str:
    """Return an expression for comments, elements without text, and tags of untranslated text.

    ``opening`` and ``closing`` are the marks of tags. The group ``kept`` is the name of an element,
    such as code, whose text belongs to the words around it, but is not translated.
    """
    first = opening[0]
    times = f"{{0,{_MOST_WITHIN}}}"
    within_tag = rf"(?:(?!{opening}|{closing})[^<>]){times}"
    end_of_tag = rf"{within_tag}(?<!/){closing}"
    # A further opening mark ends the search, so that many of them take no more time than one.
    comment = rf"[^{first}-]*(?:(?!{opening}!--|--{closing})[{first}-][^{first}-]*){times}"
    same_name = r"(?i:(?P=skipped))(?![\w-])"
    text = rf"[^{first}]*(?:(?!{opening}/?{same_name}){first}[^{first}]*){times}"
    skipped = rf"(?P<skipped>{_any_of(HTML.skipped)}){end_of_tag}{text}{opening}/{same_name}\s*"
    forbids = r"""(?<![\w-])(?:translate\s*=\s*(?:["']|&\w+;)*no|notranslate)(?![\w-])"""
    forbidden = rf"(?!{_any_of(_ALONE)})[A-Za-z][\w-]*(?![\w-])(?={within_tag}?{forbids})"
    kept = rf"(?P<kept>{_any_of(HTML.protected)}|{forbidden}){end_of_tag}"
    return f"{opening}(?:!--{comment}--{closing}|{skipped}{closing}|{kept})"


def _any_of(elements: Iterable[str]) -> str:
    """Return an expression for the names of elements."""
    return rf"(?i:{'|'.join(sorted(elements))})(?![\w-])"


_ESCAPED_TAG = re.compile(rf"(?P<letter>&)amp;(?=#?\w+;)|{tag_pattern('&lt;', '(?:&gt;|>)')}")
"""A tag, or the mark of a reference in escaped HTML."""
_RAW_TAG = re.compile(tag_pattern("<", ">"))


class MarkedTextReader(MarkupReader):
    """Finds the segments of XML whose texts are HTML, escaped or in CDATA."""

    def add_text(self, piece: Piece) -> None:
        """Add text. Escaped HTML tags in it become tags."""
        for (begin, end), match in split_at(_ESCAPED_TAG, self.source, piece.span):
            super().add_text(replace(piece, begin=begin, end=end))
            if match is not None:
                add_tag(self.builder, match, [match.span()], is_in_xml=True)

    def add_part(self, piece: Piece) -> None:
        """Add a text, a closing tag or a comment. HTML tags in unparsed text become tags."""
        if piece.kind != "cdata":
            super().add_part(piece)
            return
        begin = piece.begin + len(CDATA)
        end = piece.end - len("]]>")
        for span, match in split_at(_RAW_TAG, self.source, (begin, end)):
            self.builder.add_text(self.source[slice(*span)], piece.span, is_whole=True)
            if match is not None:
                source = [(piece.begin, begin), match.span(), (end, piece.end)]
                add_tag(self.builder, match, source, is_in_xml=True)


@formats.register("html")
class HtmlFormat(MarkupFormat):
    """Web pages."""

    vocabulary = HTML
    reader = HtmlReader
    declaration = re.compile(rb"""<meta\b[^>]*?\bcharset\s*=\s*["']?([\w.-]+)""", re.IGNORECASE)

    def encoding(self, content: bytes) -> str:
        """Return the encoding that the page declares, as browsers understand it."""
        declared = super().encoding(content)
        # A declaration that can be read is not in UTF-16.
        if declared.lower().startswith("utf-16"):
            return "utf-8"
        # Browsers read Latin 1 as the code page of Windows, which has all its letters.
        if declared.lower() in _LATIN_1 and not _UNUSED.search(content):
            return "cp1252"
        return declared

    def further_edits(self, tag: Piece, is_renamed: bool) -> Iterator[tuple[Span, str]]:
        """Yield the direction of an element, and the language of the page in its head.

        An element with a new language, or the page, has its direction. A block without a language
        changes the direction of the source.
        """
        vocabulary = self.vocabulary
        keeping = vocabulary.inline | vocabulary.empty | vocabulary.preformatted
        new = self.languages.new_direction
        if new and tag.name != "bdo" and (is_renamed or tag.name not in keeping):
            name = next((name for name, _ in tag.attributes() if name.lower() == "dir"), "dir")
            old = tag.attribute(name).lower()
            is_named = is_renamed or tag.name == "html"
            if {old, new} == {"ltr", "rtl"} or (is_named and (old, new) == ("", "rtl")):
                yield tag.attribute_edit(name, new)
        if tag.name == "meta":
            yield from self._locale_edits(tag)

    def _locale_edits(self, tag: Piece) -> Iterator[tuple[Span, str]]:
        """Yield the language of the page in its head."""
        is_locale = tag.attribute("property") == "og:locale"
        if is_locale or tag.attribute("http-equiv").lower() == "content-language":
            content = tag.attribute("content")
            language = self.languages.after_translation(content)
            if language != content:
                language = language.replace("-", "_") if is_locale else language
                yield tag.attribute_edit("content", language)
