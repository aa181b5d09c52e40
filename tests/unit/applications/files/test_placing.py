import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relu_nmt.applications.files.aligned_words import (
    AlignedText,
    aligned_words,
    proportional_links,
    word_spans,
)
from relu_nmt.applications.files.segments import Protected, Segment
from tests.unit.applications.files.translators import backward, translate, upper

TAGS = re.compile(r"<(/?)(\w+)[^<>]*>")


def one_by_one(text, links):
    """Return a translator with links between the words of the source and of a text."""

    def translator(segments):
        [segment] = segments
        source, target = word_spans(segment.text), word_spans(text)
        return [AlignedText(text, [(source[i], target[j]) for i, j in links])]

    return translator


@pytest.mark.parametrize(
    ("source", "text", "links", "expected"),
    [
        # The words of a pair have changed their places.
        (
            "Das <b>rote Haus</b> steht",
            "There stands the red house",
            [(0, 2), (1, 3), (2, 4), (3, 1)],
            "There stands the <b>red house</b>",
        ),
        # A pair may become two, but a link may not.
        (
            "Er <b>ruft an</b> heute",
            "he calls today up",
            [(0, 0), (1, 1), (2, 3), (3, 2)],
            "he <b>calls</b> today <b>up</b>",
        ),
        (
            "Er <a href='x'>ruft jetzt an</a> heute",
            "he calls now today up",
            [(0, 0), (1, 1), (2, 2), (3, 4), (4, 3)],
            "he <a href='x'>calls now</a> today up",
        ),
        # A mark that is linked to a word does not belong to the word, nor a word to a mark.
        (
            "Wähle die <b>Achse</b>.",
            "Choose the axis.",
            [(0, 0), (1, 1), (2, 2), (2, 3)],
            "Choose the <b>axis</b>.",
        ),
        (
            "Neu <b>-</b> alt",
            "the new - old",
            [(1, 0), (0, 1), (1, 2), (2, 3)],
            "the new <b>-</b> old",
        ),
        # Inner tags stay within outer ones, even if their words have left them.
        (
            "aa <i id='x'>bb <b>cc</b></i> dd",
            "CC AA BB DD",
            [(2, 0), (0, 1), (1, 2), (3, 3)],
            "<i id='x'><b>CC</b></i> AA BB DD",
        ),
        (
            "aa <i>bb <b>cc</b></i> dd",
            "CC AA BB DD",
            [(2, 0), (0, 1), (1, 2), (3, 3)],
            "<i><b>CC</b></i> AA <i>BB</i> DD",
        ),
        # Empty tags stand before the word that they preceded, references behind their word.
        ("eins <img>zwei", "two one", [(0, 1), (1, 0)], "<img>two one"),
        ("eins<wbr> zwei", "two one", [(0, 1), (1, 0)], "two one<wbr>"),
        ("eins <b></b>zwei", "two one", [(0, 1), (1, 0)], "<b></b>two one"),
        ("eins<br>zwei drei", "two one three", [(0, 1), (1, 0), (2, 2)], "<br>two one three"),
        # A word that is aligned to none is in a pair if its neighbors are.
        ("a <b>b c</b>", "A B x C", [(0, 0), (1, 1), (2, 3)], "A <b>B x C</b>"),
        ("<b>Alles</b>", "all of it", [], "<b>all of it</b>"),
        ("eins <b>zwei</b> drei", "one two three", [], "one <b>two</b> three"),
        # Tags inside words stay there if the translation has the word, and only then.
        (
            "Das H<sub>2</sub>O und C<sub>6</sub>H<sub>6</sub>",
            "C6H6 and H2O",
            [(1, 2), (2, 1), (3, 0)],
            "C<sub>6</sub>H<sub>6</sub> and H<sub>2</sub>O",
        ),
        (
            "<i>a m<sup>2</sup></i> b",
            "B m2 A",
            [(0, 2), (1, 1), (2, 0)],
            "B <i>m<sup>2</sup> A</i>",
        ),
        ("<b>aa H</b><i>2O</i> b", "b aa H2O", [(0, 1), (1, 2), (2, 0)], "b <b>aa</b> H<i>2O</i>"),
        ("x <i><b>H</b></i>2O", "the H2O", [(0, 0), (1, 1)], "the <i><b>H</b></i>2O"),
        # A part of another word goes around the whole word.
        ("Aus<b>gangstür da</b>", "exit there", [(0, 0), (1, 1)], "<b>exit there</b>"),
        (
            "<i>Haus</i><b>tor</b> <u>da</u> <s>so</s>",
            "gate there so",
            [(0, 0), (1, 1), (2, 2)],
            "<i>gate</i> <b></b><u>there</u> <s>so</s>",
        ),
        ("Haus<b>tor</b> da", "there gate", [(0, 1), (1, 0)], "there <b>gate</b>"),
        ("Das Wort<wbr>teil", "the part", [(0, 0), (1, 1)], "the part<wbr>"),
        # Texts without spaces.
        ("ein <b>Haus</b> da", "那房子", [(1, 1), (1, 2)], "那<b>房子</b>"),
    ],
)
def test_tags_go_to_the_words_that_they_meant(source, text, links, expected):
    # An empty tag at the beginning of a text stays there, before the translation.
    assert translate(source, "html", one_by_one(text, links)) == expected


@pytest.mark.parametrize(
    ("source", "text", "links", "expected"),
    [
        ("Nimm <code>ls</code> jetzt", "now take ls", [(1, 2)], "now take <code>ls</code>"),
        ("Nimm <code>ls</code> jetzt", "now take lists", [(1, 2)], "now take <code>ls</code>"),
        ("Nimm <code>ls</code> jetzt", "now take", [(0, 1), (2, 0)], "now take <code>ls</code>"),
        ("Nimm <code>ls</code> da", "take ls ls", [], "take <code>ls</code>"),
        ("Nimm {x} und {x} da", "take {x} there", [(2, 1)], "take {x} {x} there"),
        ("a &copy; b", "B A", [(0, 1), (2, 0)], "B A &copy;"),
        # The same text may be an ordinary word, too.
        (
            "Der <code>ls</code> Teil von ls",
            "ls is of the part ls",
            [(1, 5), (2, 4), (4, 0)],
            "ls is of the part <code>ls</code>",
        ),
        ("Der <code>ls</code> Teil von ls", "ls of ls", [(3, 1)], "<code>ls</code> of ls"),
        # It may also be the translation of another word.
        (
            "Der Pfad ist <code>path</code>",
            "the path is path",
            [(0, 0), (1, 1), (2, 2), (3, 3)],
            "the path is <code>path</code>",
        ),
        # A symbol may be the translation of a word.
        (
            "A &amp; B und C",
            "A & B & C",
            [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)],
            "A &amp; B &amp; C",
        ),
        ("A &amp; B", "A & & B", [(0, 0), (1, 1), (1, 2), (2, 3)], "A &amp; B"),
        # A copy in a gap touches only marks, and only if it touches marks in the source.
        ("Öffne {x}.", "Open.", [(0, 0), (4, 1)], "Open {x}."),
        ("Datei {x}, dann", "File, then", [(0, 0), (4, 1), (5, 2)], "File {x}, then"),
        ("Das Ende <code>a</code>.", "The end.", [(0, 0), (1, 1)], "The end <code>a</code>."),
        ("Da „{x}“ ist", "There “” is", [(0, 0), (1, 1), (5, 2), (6, 3)], "There “{x}” is"),
        ("{x}: fehlt", ": missing", [(3, 0), (4, 1)], "{x}: missing"),
        ("Öffne {x}。", "打开。", [(0, 0), (0, 1), (4, 2)], "打开{x}。"),
        # It does not take the place of other marks that are aligned to it.
        ("Öffne {x}.", "Open.", [(0, 0), (2, 1)], "Open {x}."),
        ("Öffne {x}.", "Open {y}.", [(0, 0), (1, 1), (2, 2), (3, 3), (3, 4)], "Open {x}."),
        ("a &copy; b", "a + b", [(0, 0), (1, 1), (2, 2)], "a &copy; b"),
        # Letters may touch it.
        ("ein <code>ls</code>da", "a lsda", [(0, 0)], "a <code>ls</code>da"),
    ],
)
def test_protected_texts_are_there_once_each(source, text, links, expected):
    assert translate(source, "html", one_by_one(text, links)) == expected


words = st.sampled_from(["ein", "Haus", "T-Shirt", ".", "{x}", "groß", "<code>ls</code>"])
nodes = st.recursive(
    words | st.sampled_from(["<br>", "<img src='a'>"]),
    lambda inner: st.tuples(st.sampled_from("abi"), st.lists(inner, max_size=4)).map(
        lambda pair: f"<{pair[0]} id='x'>{' '.join(pair[1])}</{pair[0]}>"
    ),
    max_leaves=12,
)


def tag_words(markup):
    """Return the tags of a markup, sorted."""
    return sorted(match[0] for match in TAGS.finditer(markup))


def assert_well_nested(markup):
    open_tags = []
    for match in TAGS.finditer(markup):
        if match[1]:
            assert open_tags.pop() == match[2]
        elif match[2] not in ("br", "img"):
            open_tags.append(match[2])
    assert not open_tags


@given(st.lists(nodes, max_size=8).map(" ".join), st.randoms(use_true_random=False))
def test_every_tag_is_there_once_and_nests_and_is_in_no_word(markup, random):
    def shuffled(segments):
        results = []
        for segment in segments:
            target = word_spans(
                " ".join(random.choices(["Wort", "T-Shirt", "ls", ".", "{x}"], k=9))
            )
            text = " ".join(["Wort"] * len(target))
            target = word_spans(text)
            source = word_spans(segment.text)
            links = [(random.choice(source), span) for span in target if random.random() < 0.8]
            results.append(AlignedText(text, links))
        return results

    source = f"<p>Anfang {markup}</p>"
    written = translate(source, "html", shuffled)
    assert tag_words(written) == tag_words(source)
    assert_well_nested(written)
    assert written.count("{x}") == source.count("{x}")
    assert written.count("<code>ls</code>") == source.count("<code>ls</code>")
    assert not re.search(r"\w<[^<>]*>\w", written.replace("<br>", " "))
    # Backward, every word keeps its tags.
    assert tag_words(translate(source, "html", backward)) == tag_words(source)


glued_nodes = st.recursive(
    st.sampled_from(["H2O", "2", "Wort", " ", "<br>", "<img src='a'>"]),
    lambda inner: st.tuples(st.sampled_from("abi"), st.lists(inner, max_size=4)).map(
        lambda pair: f"<{pair[0]} id='x'>{''.join(pair[1])}</{pair[0]}>"
    ),
    max_leaves=12,
)


@given(st.lists(glued_nodes, max_size=8).map("".join))
def test_tags_inside_words_are_there_once_and_nest(markup):
    source = f"<p>Anfang {markup} H2O</p>"
    for translator in (upper, backward):
        written = translate(source, "html", translator)
        assert tag_words(written) == tag_words(source)
        assert_well_nested(written)


def test_links_by_position_cover_the_text():
    links = proportional_links("a b c d", "A B")
    assert links == [((0, 1), (0, 1)), ((4, 5), (2, 3))]
    assert proportional_links("", "A") == []


def test_a_protected_text_within_a_longer_word_is_not_found():
    segment = Segment("ls zeigt", (0, 8), protected=[Protected(0, 2)])
    texts = [word.text for word in aligned_words(segment, AlignedText("also shows"))]
    assert texts == ["ls", "also", "shows"]


@st.composite
def crossing_spans(draw):
    """Return a text whose pairs of marks cross each other and the elements in it."""
    num_words = draw(st.integers(2, 8))
    texts = [f"wort{number}" for number in range(num_words)]
    begins, ends = [""] * num_words, [""] * num_words
    for key in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, num_words - 1))
        begins[begin] += f'<sc id="{key}"/>'
        ends[draw(st.integers(begin, num_words - 1))] += f'<ec startRef="{key}"/>'
    for key in range(draw(st.integers(0, 2))):
        # Elements that cross each other would be no XML, so each has a word of its own or two.
        begin = draw(st.integers(0, num_words - 1))
        end = min(begin + key, num_words - 1)
        if "pc" not in "".join(begins[begin : end + 1] + ends[begin : end + 1]):
            begins[begin] = draw(st.permutations([begins[begin], f'<pc id="p{key}">']))
            begins[begin] = "".join(begins[begin])
            ends[end] = "".join(draw(st.permutations([ends[end], "</pc>"])))
    words_with_tags = [a + b + c for a, b, c in zip(begins, texts, ends, strict=True)]
    return "Anfang " + " ".join(words_with_tags)


@given(crossing_spans(), st.randoms(use_true_random=False))
def test_marks_of_crossing_spans_are_there_once_and_begin_before_they_end(text, random):
    def shuffled(segments):
        [segment] = segments
        target = " ".join(["Wort"] * random.randint(1, 10))
        source = word_spans(segment.text)
        links = [(random.choice(source), span) for span in word_spans(target)]
        return [AlignedText(target, links)]

    unit = f'<unit id="u"><segment><source>{text}</source></segment></unit>'
    source = f'<xliff version="2.0" srcLang="de"><file id="f">{unit}</file></xliff>'
    written = translate(source, "xliff", shuffled)
    target = re.search("<target>(.*)</target>", written)[1]
    assert tag_words(target) == tag_words(text)
    assert_well_nested(re.sub("<[se]c [^<>]*>", "", target))
    for key in re.findall('<sc id="(.)"', text):
        assert target.index(f'<sc id="{key}"/>') < target.index(f'<ec startRef="{key}"/>')
