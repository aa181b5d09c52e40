"""Agreement, word order and tenses of the two languages, against forms written out by hand."""

import dataclasses

import pytest
from bilingual_grammar import clauses as c
from bilingual_grammar import english, german, inflection
from bilingual_grammar import lexicon as lex

VERBS = {
    verb.infinitive: verb
    for verb in (
        *(*lex.GET, *lex.TREAT, *lex.GIVE, *lex.HELP_DATIVE, *lex.MEET_ACCUSATIVE, *lex.ACT),
        *(*lex.SAY, lex.STAND, lex.LIE, lex.LAY, lex.REPAIR),
    )
}
NOUNS = (*lex.THINGS, *lex.FEATURES, *lex.RELATIVES, *lex.STRANGERS)


def find(entries, german_word):
    return next(entry for entry in entries if entry.german == german_word)


RED = find(lex.ADJECTIVES, "rot")
DEAR = find(lex.ADJECTIVES, "teuer")


def entity(word, number=1, key=1):
    n = find(NOUNS, word)
    people = (*lex.RELATIVES, *lex.STRANGERS)
    kind = {"m": "man", "f": "woman"}.get(n.gender) if n in people else "thing"
    return c.Entity(key, n.gender, kind, n, number=number)


def the(word, number=1, adjective=None):
    return c.Phrase(entity(word, number), "definite", adjective)


def it(word, number=1):
    return c.Phrase(entity(word, number), "pronoun")


ANNA = c.Entity(8, "f", "woman", name="Anna")
PETER = c.Entity(9, "m", "man", name="Peter")
NAME = c.Phrase(ANNA, "name")
PRONOUN = c.Phrase(ANNA, "pronoun")


def in_all_cases(phrase):
    return tuple(german.phrase(phrase, case) for case in inflection.CASES)


def speaker(word):
    return c.Phrase(c.Entity(7, "m", "man", speaker=word), "pronoun")


@pytest.mark.parametrize(
    ("form", "word", "forms"),
    [
        ("definite", "Tisch", ("der rote Tisch", "den roten Tisch", "dem roten Tisch")),
        ("definite", "Lampe", ("die rote Lampe", "die rote Lampe", "der roten Lampe")),
        ("definite", "Buch", ("das rote Buch", "das rote Buch", "dem roten Buch")),
        ("indefinite", "Tisch", ("ein roter Tisch", "einen roten Tisch", "einem roten Tisch")),
        ("indefinite", "Lampe", ("eine rote Lampe", "eine rote Lampe", "einer roten Lampe")),
        ("indefinite", "Buch", ("ein rotes Buch", "ein rotes Buch", "einem roten Buch")),
        ("definite", "Junge", ("der rote Junge", "den roten Jungen", "dem roten Jungen")),
    ],
)
def test_articles_adjectives_and_nouns_agree(form, word, forms):
    assert in_all_cases(c.Phrase(entity(word), form, RED)) == forms


@pytest.mark.parametrize(
    ("form", "word", "forms"),
    [
        ("definite", "Stuhl", ("die teuren Stühle", "die teuren Stühle", "den teuren Stühlen")),
        ("numeral", "Stuhl", ("drei teure Stühle", "drei teure Stühle", "drei teuren Stühlen")),
        ("indefinite", "Uhr", ("teure Uhren", "teure Uhren", "teuren Uhren")),
        ("definite", "Radio", ("die teuren Radios", "die teuren Radios", "den teuren Radios")),
    ],
)
def test_plurals_agree(form, word, forms):
    assert in_all_cases(c.Phrase(entity(word, 3), form, DEAR)) == forms


@pytest.mark.parametrize(
    ("owner", "word", "expected"),
    [
        (ANNA, "Bruder", ("ihr Bruder", "ihren Bruder", "ihrem Bruder")),
        (PETER, "Tante", ("seine Tante", "seine Tante", "seiner Tante")),
        (speaker("Sie").entity, "Buch", ("Ihr Buch", "Ihr Buch", "Ihrem Buch")),
        (speaker("du").entity, "Neffe", ("dein Neffe", "deinen Neffen", "deinem Neffen")),
        (entity("Lampe"), "Preis", ("ihr Preis", "ihren Preis", "ihrem Preis")),
        (entity("Buch"), "Farbe", ("seine Farbe", "seine Farbe", "seiner Farbe")),
        (entity("Tisch", 2), "Form", ("ihre Form", "ihre Form", "ihrer Form")),
    ],
)
def test_possessives_agree_with_owner_and_possession(owner, word, expected):
    phrase = c.Phrase(entity(word, key=5), "possessive", owner=owner)
    assert in_all_cases(phrase) == expected


@pytest.mark.parametrize(
    ("word", "number", "forms"),
    [
        ("Tisch", 1, ("er", "ihn", "ihm")),
        ("Lampe", 1, ("sie", "sie", "ihr")),
        ("Buch", 1, ("es", "es", "ihm")),
        ("Buch", 2, ("sie", "sie", "ihnen")),
    ],
)
def test_pronouns_follow_the_gender_of_the_noun(word, number, forms):
    assert in_all_cases(it(word, number)) == forms
    assert english.phrase(it(word, number)) == ("it" if number == 1 else "them")


def test_a_title_is_inflected():
    weber = c.Phrase(c.Entity(1, "m", "man", name="Weber", title="Herr"), "name")
    assert in_all_cases(weber) == ("Herr Weber", "Herrn Weber", "Herrn Weber")
    assert english.phrase(weber) == "Mr Weber"


def where(word):
    return next(p for p in lex.PLACES if p.noun.german == word)


@pytest.mark.parametrize(
    ("word", "location", "goal"),
    [
        ("Flur", "im Flur", "in den Flur"),
        ("Küche", "in der Küche", "in die Küche"),
        ("Zimmer", "im Zimmer", "ins Zimmer"),
        ("Boden", "auf dem Boden", "auf den Boden"),
        ("Dach", "auf dem Dach", "auf das Dach"),
        ("Wand", "neben der Wand", "neben die Wand"),
    ],
)
def test_places_take_dative_and_goals_accusative(word, location, goal):
    assert german.place_words(where(word), direction=False) == location
    assert german.place_words(where(word), direction=True) == goal


YESTERDAY = find(lex.PAST_TIMES, "gestern")
TOMORROW = find(lex.FUTURE_TIMES, "morgen")
CASES = [
    (
        c.Statement(c.Clause(NAME, VERBS["kaufen"], "past", the("Tisch"), time=YESTERDAY)),
        "Anna hat gestern den Tisch gekauft.",
        "Anna bought the table yesterday.",
    ),
    (
        c.Statement(c.Clause(NAME, VERBS["kaufen"], "past", it("Tisch"), time=YESTERDAY), True),
        "Gestern hat Anna ihn gekauft.",
        "Yesterday Anna bought it.",
    ),
    (
        c.Statement(c.Clause(NAME, VERBS["mitbringen"], "future", it("Buch"), time=TOMORROW)),
        "Anna bringt es morgen mit.",
        "Anna will bring it along tomorrow.",
    ),
    (
        c.Statement(c.Clause(NAME, VERBS["wegwerfen"], "present", the("Lampe"), negated=True)),
        "Anna wirft die Lampe nicht weg.",
        "Anna does not throw away the lamp.",
    ),
    (
        c.Statement(c.Clause(speaker("du"), VERBS["suchen"], "past", it("Lampe"), modal=lex.MUST)),
        "Du musstest sie suchen.",
        "You had to look for it.",
    ),
    (
        c.Statement(
            c.Clause(NAME, VERBS["abholen"], direct=it("Buch", 2), modal=lex.CAN, negated=True)
        ),
        "Anna kann sie nicht abholen.",
        "Anna cannot pick them up.",
    ),
    (
        c.Statement(
            c.Clause(NAME, VERBS["putzen"], direct=it("Buch"), modal=lex.WANT, negated=True)
        ),
        "Anna will es nicht putzen.",
        "Anna does not want to clean it.",
    ),
    (
        c.Statement(c.Clause(NAME, VERBS["ankommen"], "past", time=YESTERDAY)),
        "Anna ist gestern angekommen.",
        "Anna arrived yesterday.",
    ),
    (
        c.Statement(c.Clause(NAME, VERBS["geben"], "past", it("Tisch"), the("Junge"))),
        "Anna hat ihn dem Jungen gegeben.",
        "Anna gave it to the boy.",
    ),
    (
        c.Statement(
            c.Clause(
                c.Phrase(PETER, "pronoun"), VERBS["geben"], "past", the("Buch"), speaker("Sie")
            )
        ),
        "Er hat Ihnen das Buch gegeben.",
        "He gave you the book.",
    ),
    (
        c.Statement(c.Clause(NAME, VERBS["helfen"], "past", indirect=the("Nachbar"))),
        "Anna hat dem Nachbarn geholfen.",
        "Anna helped the neighbour.",
    ),
    (
        c.Statement(
            c.Clause(it("Uhr"), lex.BE, "past", predicate=c.Predicate(DEAR, "too"), negated=True)
        ),
        "Sie war nicht zu teuer.",
        "It was not too expensive.",
    ),
    (
        c.Statement(
            c.Clause(NAME, lex.LAY, direct=it("Buch"), place=where("Flur"), direction=True)
        ),
        "Anna legt es in den Flur.",
        "Anna puts it into the corridor.",
    ),
    (
        c.Statement(
            c.Clause(
                NAME,
                VERBS["arbeiten"],
                companion=c.Phrase(entity("Bruder"), "possessive", owner=ANNA),
                place=where("Garten"),
            )
        ),
        "Anna arbeitet mit ihrem Bruder im Garten.",
        "Anna works with her brother in the garden.",
    ),
    (
        c.Statement(
            c.Clause(NAME, VERBS["kaufen"], "past", c.Phrase(entity("Uhr"), "indefinite"), price=21)
        ),
        "Anna hat eine Uhr für einundzwanzig Euro gekauft.",
        "Anna bought a clock for twenty-one euros.",
    ),
    (
        c.Question(c.Clause(speaker("Sie"), VERBS["sehen"], "past", the("Schlüssel"))),
        "Haben Sie den Schlüssel gesehen?",
        "Did you see the key?",
    ),
    (
        c.Question(
            c.Clause(
                speaker("du"),
                VERBS["leihen"],
                direct=it("Tasche"),
                indirect=speaker("ich"),
                modal=lex.CAN,
            )
        ),
        "Kannst du sie mir leihen?",
        "Can you lend it to me?",
    ),
    (
        c.Question(c.Clause(it("Uhr", 2), lex.BE, predicate=c.Predicate(DEAR))),
        "Sind sie teuer?",
        "Are they expensive?",
    ),
    (c.WhereQuestion(it("Ball")), "Wo ist er?", "Where is it?"),
    (
        c.Existence(where("Küche"), lex.STAND, c.Phrase(entity("Schrank", 3), "numeral", RED)),
        "In der Küche stehen drei rote Schränke.",
        "There are three red cupboards in the kitchen.",
    ),
    (
        c.Complex(
            c.Clause(NAME, VERBS["zurückgeben"], "present", it("Lampe")),
            "because",
            c.Clause(it("Lampe"), lex.BE, predicate=c.Predicate(RED)),
            subordinate_first=True,
        ),
        "Weil sie rot ist, gibt Anna sie zurück.",
        "Because it is red, Anna gives it back.",
    ),
    (
        c.Complex(
            c.Clause(NAME, VERBS["wissen"]),
            "that",
            c.Clause(c.Phrase(PETER, "name"), VERBS["mitbringen"], "present", it("Ball")),
        ),
        "Anna weiß, dass Peter ihn mitbringt.",
        "Anna knows that Peter brings it along.",
    ),
    (
        c.Complex(
            c.Clause(NAME, VERBS["lachen"], "past"),
            "although",
            c.Clause(PRONOUN, VERBS["reparieren"], "past", it("Ball"), modal=lex.MUST),
        ),
        "Anna hat gelacht, obwohl sie ihn reparieren musste.",
        "Anna laughed although she had to repair it.",
    ),
    (
        c.Coordination(
            c.Clause(the("Ball"), lex.BE, predicate=c.Predicate(RED)),
            "but",
            c.Clause(it("Ball"), lex.BE, predicate=c.Predicate(DEAR), negated=True),
        ),
        "Der Ball ist rot, aber er ist nicht teuer.",
        "The ball is red, but it is not expensive.",
    ),
    (
        c.RelativeStatement(
            c.Clause(the("Ball"), lex.BE, predicate=c.Predicate(RED)),
            c.Clause(NAME, VERBS["abholen"], "past", the("Ball"), time=YESTERDAY),
        ),
        "Der Ball, den Anna gestern abgeholt hat, ist rot.",
        "The ball that Anna picked up yesterday is red.",
    ),
    (
        c.Command(speaker("Sie").entity, VERBS["zeigen"], speaker("ich"), it("Bild")),
        "Zeigen Sie es mir bitte.",
        "Please show it to me.",
    ),
    (
        c.Command(speaker("du").entity, VERBS["geben"], speaker("ich"), the("Bild")),
        "Gib mir bitte das Bild.",
        "Please give me the picture.",
    ),
    (
        c.Greeting(
            ("Guten Tag, {}!", "Hello, {}!"), c.Entity(1, "f", "woman", name="Koch", title="Frau")
        ),
        "Guten Tag, Frau Koch!",
        "Hello, Mrs Koch!",
    ),
    (
        c.Statement(
            c.Clause(
                it("Uhr"),
                lex.BE,
                predicate=c.Predicate(DEAR, like=c.Phrase(entity("Ring", key=2), "indefinite")),
            ),
            reply="no",
        ),
        "Nein, sie ist so teuer wie ein Ring.",
        "No, it is as expensive as a ring.",
    ),
]


@pytest.mark.parametrize(("sentence", "in_german", "in_english"), CASES)
def test_sentences_are_right_in_both_languages(sentence, in_german, in_english):
    assert german.sentence(sentence) == in_german
    assert english.sentence(sentence) == in_english


def test_numerals_are_written_in_both_languages():
    for number, in_german, in_english in (
        (1, "eins", "one"),
        (12, "zwölf", "twelve"),
        (17, "siebzehn", "seventeen"),
        (20, "zwanzig", "twenty"),
        (21, "einundzwanzig", "twenty-one"),
        (66, "sechsundsechzig", "sixty-six"),
        (99, "neunundneunzig", "ninety-nine"),
    ):
        assert inflection.german_number(number) == in_german
        assert inflection.english_number(number) == in_english


def test_another_antecedent_changes_the_pronouns_and_not_the_nouns():
    sentence = CASES[-6][0]
    ball = entity("Ball")
    other = c.with_pronouns_of(sentence, ball, dataclasses.replace(ball, gender="f"))
    assert german.sentence(other) == "Der Ball ist rot, aber sie ist nicht teuer."


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
def test_the_forms_of_a_verb_fit_together(verb):
    ich, du, er, wir = verb.present
    assert verb.prefix + wir == verb.infinitive
    assert du.endswith(("st", "zt", "ßt"))
    assert er.endswith("t") or er == "weiß"
    assert ich.endswith("e") or ich == "weiß"
    assert verb.participle.startswith(verb.prefix)
    assert verb.participle.endswith(("t", "en"))
    assert len(verb.english) == 3 and verb.english[1].endswith("s")


def test_no_word_is_listed_twice_and_no_english_noun_has_two_genders():
    assert len({noun.german for noun in NOUNS}) == len(NOUNS)
    assert len({noun.english for noun in NOUNS}) == len(NOUNS)
    assert len({adjective.english for adjective in lex.ADJECTIVES}) == len(lex.ADJECTIVES)
