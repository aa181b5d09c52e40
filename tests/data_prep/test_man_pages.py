import pytest
from prep_tools.man_pages import arguments_of, is_alias, plain, read_man, without_translators

PAGE = r""".\" a comment
.TH LS 1 "2026" "x"
.if n .ds Aq '
.ie \n(.g \{\
hidden
.\}
.SH "NAME"
ls \- list
.SH
OPTIONS
Sort by
.BR name (1),
then \fIend\fP.
.TP 4
.BI \-\-width= COLS
Set the
.I width
.IP \(bu 2
a point
.IP "\fBexit\fP" 4
leaves
.PP
First.

Second \(lqquoted\(rq \(aqx\(aq \fR[\fB\-a\fR].
.nf
int main;
.fi
.de XX
.SH never
..
See
.UR https://example.org
.UE ,
or
.UR https://example.org/b
the site
.UE .
.SS Notes
.TS
a	b
.TE
End.
"""


def test_a_page_becomes_blocks():
    assert [(block.kind, block.text) for block in read_man(PAGE)] == [
        ("h1", "NAME"),
        ("p", "ls - list"),
        ("h1", "OPTIONS"),
        ("p", "Sort by name(1), then end."),
        ("tag", "--width=COLS"),
        ("item", "Set the width"),
        ("item", "a point"),
        ("tag", "exit"),
        ("item", "leaves"),
        ("p", "First."),
        ("p", "Second “quoted” 'x' [-a]."),
        ("code", ""),
        ("p", "See https://example.org, or the site."),
        ("h2", "Notes"),
        ("code", ""),
        ("p", "End."),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\f[B]a\f(CWb\fRc", "abc"),
        (r"\s-1SMALL\s0 \s+2x\s0", "SMALL x"),
        (r"a\ b\~c\&d\|e\%f\:g", "a b cdefg"),
        (r"\[u00E4]\(co\[rs]\e", "ä©\\\\"),
        (r"\*(Aqx\*[Aq] \*R", "'x' ®"),
        (r"x\h'1n'y \m[blue]z\m[]", "xy z"),
        (r"f\(:ur \['e]t\[`a] \(,c \(oe", "für étà ç œ"),
        ('text \\" comment', "text "),
    ],
)
def test_escape_sequences_become_characters(text, expected):
    assert plain(text) == expected


def test_arguments_of_macros_are_divided():
    assert arguments_of(' "a b" c\\ d "say ""x""" \\-e') == ["a b", "c d", 'say "x"', "-e"]


def test_links_and_mdoc_pages_have_no_blocks():
    assert is_alias(".so man1/ls.1\n")
    assert read_man(".so man1/ls.1\n") == []
    assert read_man(".Dd today\n.Dt LS 1\n.Sh NAME\nls\n") == []


def test_the_section_on_the_translators_is_cut():
    original = read_man(".SH NAME\na\n.SH END\nb\n")
    longer = read_man(".SH NAME\na\n.SH END\nb\n.SH TRANSLATION\nc\n")
    assert without_translators(longer, original) == (longer[:4], original)
    assert without_translators(original, original) == (original, original)


def test_a_page_may_end_inside_of_code():
    assert [block.kind for block in read_man("Text\n.nf\nx\n")] == ["p", "code"]
