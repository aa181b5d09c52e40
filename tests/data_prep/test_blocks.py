from collections import Counter

import pytest
from prep_tools.blocks import Block, align_blocks, without_numbers
from prep_tools.html_blocks import read_html, read_mallard


def page(text):
    """Blocks written as ``kind:text`` divided by spaces."""
    return [Block(*word.split(":")) for word in text.split()]


def align(source, target):
    counts = Counter()
    return align_blocks(page(source), page(target), counts), counts


def test_pages_of_the_same_structure_are_aligned_block_by_block():
    pairs, counts = align("h1:A p:b li:c code: p:d", "h1:X p:y li:z code: p:w")
    assert pairs == [("A", "X"), ("b", "y"), ("c", "z"), ("d", "w")]
    assert not counts


def test_only_the_section_that_differs_is_left_out():
    pairs, counts = align("h1:A p:b h2:C p:d p:e h2:F p:g", "h1:X p:y h2:Z p:w h2:U p:v")
    assert pairs == [("A", "X"), ("b", "y"), ("C", "Z"), ("F", "U"), ("g", "v")]
    assert counts == {"blocks where the structure differs": 2}


def test_equal_blocks_on_both_sides_divide_a_section():
    source = "h1:A tag:-a p:b tag:-c p:d p:e tag:-f p:g"
    target = "h1:X tag:-a p:y tag:-c p:z tag:-n p:new tag:-f p:v"
    pairs, counts = align(source, target)
    assert pairs == [("A", "X"), ("b", "y"), ("g", "v")]
    assert counts == {"blocks where the structure differs": 2}


def test_equal_blocks_in_another_order_are_not_aligned_crosswise():
    pairs, _ = align("h1:A tag:-a p:b tag:-c p:d p:e", "h1:X tag:-c p:z tag:-a p:y")
    assert pairs == [("A", "X")]


def test_different_headings_leave_the_blocks_between_equal_ones():
    pairs, _ = align("h1:A p:b h2:C p:d h3:E", "h1:X p:y p:z")
    assert pairs == []


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("4.2. Zuschneiden", "4.2. Crop", ("Zuschneiden", "Crop")),
        ("1.4 Einrichten", "1.4 Setup", ("Einrichten", "Setup")),
        ("Anhang B. Mehr", "Appendix B. More", ("Mehr", "More")),
        ("Abbildung 14.127. Bild", "Figure 14.127. Image", ("Bild", "Image")),
        ("4.2. Zuschneiden", "4.3. Crop", ("4.2. Zuschneiden", "4.3. Crop")),
        ("Ein Rest", "A rest", ("Ein Rest", "A rest")),
        ("Debian 12 kommt", "Debian 12 comes", ("Debian 12 kommt", "Debian 12 comes")),
    ],
)
def test_numbers_are_removed_from_titles(source, target, expected):
    assert without_numbers(source, target) == expected


def test_html_pages_become_blocks():
    blocks = read_html(
        "<html><head><title>No</title></head><body>"
        '<div class="navheader"><p>No</p></div>'
        '<h2 class="title"><span class="section-number">3. </span>Heading'
        '<a class="headerlink">#</a></h2>'
        "<p>One <b>bold</b> &amp; <code>word</code>.</p><pre>No code</pre>"
        "<ul><li><p>Item</p></li><li>Other<ul><li>Inner</li></ul></li></ul>"
        '<div class="figure"><p class="title"><strong>Figure 1. Crop</strong></p></div>'
        "<table><tr><td>Cell</td></tr></table>Loose</body></html>"
    )
    assert [(block.kind, block.text) for block in blocks] == [
        ("h2", "Heading"),
        ("p", "One bold & word."),
        ("code", ""),
        ("p", "Item"),
        ("li", "Other"),
        ("li", "Inner"),
        ("title", "Figure 1. Crop"),
        ("td", "Cell"),
        ("p", "Loose"),
    ]


def test_mallard_pages_become_blocks():
    blocks = read_mallard(
        '<page id="x"><info><link type="guide" xref="y"/><desc>About.</desc>'
        "<credit><name>No</name></credit></info><title>Title</title>"
        "<p>Choose <guiseq><gui>A</gui> <gui>B</gui></guiseq> or "
        '<link xref="z">that</link>.</p><p>See <link xref="z"/>.</p>'
        '<p>Click <media type="image"><span>icon</span></media> now.</p>'
        "<comment><p>No</p></comment><steps><item><p>Step.</p></item></steps></page>"
    )
    texts = [(block.kind, block.text) for block in blocks if block.text]
    assert texts == [
        ("desc", "About."),
        ("title", "Title"),
        ("p", "Choose A ▸ B or that."),
        ("p", "Step."),
    ]
    assert [block.kind for block in blocks].count("code") == 3


def test_numbers_in_other_scripts_are_removed_from_titles():
    assert without_numbers("अध्याय ६. रखरखाव", "Chapter 6. Maintenance") == ("रखरखाव", "Maintenance")
    assert without_numbers("अध्याय ६. रखरखाव", "Chapter 7. X") == ("अध्याय ६. रखरखाव", "Chapter 7. X")
