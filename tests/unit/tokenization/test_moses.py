import pytest
import sacremoses
from hypothesis import given
from hypothesis import strategies as st

from relu_nmt.errors import DataError
from relu_nmt.tokenization.base import make_tokenizer
from relu_nmt.tokenization.moses import MosesTokenizer, ReversibleMosesTokenizer

SENTENCES = [
    "It's a dog, isn't it?",
    'He said "yes" (twice).',
    "C'est l'été.",
    "Dr. Müller kam z.B. am 3. Mai.",
    "Das kostet 1.000,50 Euro!",
    "A & B <c> | [d]",
]


@pytest.mark.parametrize("language", ["de", "en", "fr"])
@pytest.mark.parametrize("text", SENTENCES)
def test_words_equal_those_of_sacremoses(language, text):
    assert MosesTokenizer(language).split(text) == (
        sacremoses.MosesTokenizer(language).tokenize(text)
    )


@given(st.text(st.sampled_from("aZ.é1 ,'\"-日ß&|"), max_size=30))
def test_words_of_odd_text_equal_those_of_sacremoses(text):
    assert MosesTokenizer("en").split(text) == sacremoses.MosesTokenizer("en").tokenize(text)


@pytest.mark.parametrize("text", ["It's a dog, isn't it?", "A & B | [d]", "3.5 is 1,000."])
def test_moses_join_undoes_split(text):
    moses = MosesTokenizer("en")
    assert moses.join(moses.split(text)) == text


def test_aggressive_mode_splits_hyphens():
    moses = MosesTokenizer("en", aggressive=True)
    assert moses.split("a well-known dog") == ["a", "well", "@-@", "known", "dog"]
    assert moses.join(["a", "well", "@-@", "known", "dog"]) == "a well-known dog"


def test_unknown_language_is_treated_as_english():
    assert MosesTokenizer("xx").split("A dog.") == ["A", "dog", "."]


HARD = [
    ("de", "Um 10:30 Uhr: »Ja«, sagte er (http://www.example.org/a_b/c?d=1&e=2)."),
    ("de", "„Gut“, rief sie ,und ging ; ‚so‘ -- a.b@example.org, C:\\temp\\x, /usr/bin/x"),
    ("de", "Donau\u00addampf 50 % 50% 5€ € 5 1/2 und/oder *x* #tag @name a@b f_g"),
    ("fr", "L’homme d’aujourd’hui dit : « Bonjour ! » “Oui”, c'est l'été ; 10:30."),
    ("en", "It’s the dogs’ “bone”, isn’t it? ' \"a\" 'b' \" c [d] {e} a ,b"),
    (
        "cs",
        "Pr\u030ci\u0301lis\u030c z\u030clut\u030couc\u030cky\u0301 ku\u030an\u030c, „ano“ 3 , 5",
    ),
    ("hi", "नमस्ते दुनिया, यह क्ष और ज़ है।"),
    ("th", "สวัสดีครับ ผมชื่อ จอห์น"),
    ("my", "မြန်မာဘာသာ စကား။"),
    ("ar", "مرحبًا بالعالم، كيف حالُكَ؟"),
    ("fa", "می\u200cخواهم کتاب‌ها را"),
    ("ja", "今日 は いい 天気 です 。ABC（笑）10:30"),
    ("zh", "他说：“你好。” 10：30"),
    ("fi", "EU:n ja USA:ssa 20:een"),
    ("en", "👩\u200d👩\u200d👧 ❤️ 🇩🇪 &amp; &#64; @ _ @@ __ @-@ _@ ... DOTMULTI DOTDOTMULTI"),
]


@pytest.mark.parametrize(("language", "text"), HARD)
@pytest.mark.parametrize("aggressive", [False, True])
def test_joining_restores_the_text(aggressive, language, text):
    moses = ReversibleMosesTokenizer(language, aggressive)
    words = moses.split(text)
    assert moses.join(words) == text
    assert " ".join(words).split() == words


CHARACTERS = st.one_of(
    st.sampled_from("aZé1 ,.:'\"’»«„“@_-/&;()[]<>|日가ก\u0301\u0e31\u200d\u00ad👩"),
    st.characters(exclude_categories=["Cs", "Cc"]),
)


@pytest.mark.parametrize("language", ["en", "fr", "cs", "fi", "zh"])
@given(text=st.text(CHARACTERS, max_size=30))
def test_joining_restores_any_text(language, text):
    moses = ReversibleMosesTokenizer(language)
    assert moses.join(moses.split(text)) == " ".join(text.split())


@pytest.mark.parametrize("language", ["de", "en", "fr"])
@pytest.mark.parametrize("text", SENTENCES)
def test_words_in_usual_spacing_are_those_of_sacremoses(language, text):
    theirs = sacremoses.MosesTokenizer(language), sacremoses.MosesDetokenizer(language)
    words = theirs[0].tokenize(text)
    if theirs[1].detokenize(words) == text:
        assert ReversibleMosesTokenizer(language).split(text) == words


def test_words_keep_combining_marks_and_apostrophes():
    assert ReversibleMosesTokenizer("cs").split("z\u030cluty\u0301 ku\u030an\u030c") == (
        ["z\u030cluty\u0301", "ku\u030an\u030c"]
    )
    assert ReversibleMosesTokenizer("hi").split("क्षमा") == ["क्षमा"]
    assert ReversibleMosesTokenizer("fr").split("l’homme") == ["l’", "homme"]
    assert ReversibleMosesTokenizer("en").split("don’t") == ["don", "’t"]


def test_marks_beside_unusual_spaces():
    moses = ReversibleMosesTokenizer("de")
    assert moses.split("»Ja« um 10:30") == ["»@", "Ja", "@«", "um", "10", ":@", "30"]
    assert moses.split("a , b") == ["a", "_,", "b"]
    assert moses.without_marks(moses.split("a@b , @")) == ["a", "@", "b", ",", "@"]


def test_versions_keep_their_words():
    text = "a well-known 10:30"
    first = make_tokenizer("moses-aggressive", "en", 1)
    second = make_tokenizer("moses-aggressive", "en", 2)
    assert first.split(text) == ["a", "well", "@-@", "known", "10", ":", "30"]
    assert second.split(text) == ["a", "well", "@-@", "known", "10", ":@", "30"]
    assert make_tokenizer("moses", "en", 2).split(text) == ["a", "well-known", "10", ":@", "30"]
    for version in (0, 3):
        message = f"version {version} of the tokenizer moses-aggressive"
        with pytest.raises(DataError, match=message):
            make_tokenizer("moses-aggressive", "en", version)
