import pytest
from prep_tools.sentences import split_pair, split_sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Click OK. The dialog closes! Done?", ["Click OK.", "The dialog closes!", "Done?"]),
        ("Use a mark, e.g. Fonts, here. Go on.", ["Use a mark, e.g. Fonts, here.", "Go on."]),
        ("Ein Wort (z. B. Haus) genügt. Gut so.", ["Ein Wort (z. B. Haus) genügt.", "Gut so."]),
        ("Am 3. Oktober ist frei. Danach nicht.", ["Am 3. Oktober ist frei.", "Danach nicht."]),
        ("Version 7.4 ist neu.", ["Version 7.4 ist neu."]),
        ('Er rief: "Halt!" Dann ging er.', ['Er rief: "Halt!"', "Dann ging er."]),
        ("Press the . and the , keys.", ["Press the . and the , keys."]),
        ("one. two stays together.", ["one. two stays together."]),
        ("文を書く。次に読む。", ["文を書く。", "次に読む。"]),
        ("¿Qué? ¡Nada!", ["¿Qué?", "¡Nada!"]),
        ("Und dann ... Ja.", ["Und dann ...", "Ja."]),
    ],
)
def test_sentence_boundaries(text, expected):
    assert split_sentences(text) == expected


def test_a_pair_is_split_only_where_both_sides_split_alike():
    assert split_pair("Ab cd. Ef.", "Gh ij. Kl.") == [("Ab cd.", "Gh ij."), ("Ef.", "Kl.")]
    assert split_pair("Eins zwei. Drei vier.", "One two, three four.") == [
        ("Eins zwei. Drei vier.", "One two, three four.")
    ]
