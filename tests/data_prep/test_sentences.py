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
        ("他来了。”她走了！你呢？", ["他来了。”", "她走了！", "你呢？"]),
        ("はい｡いいえ｡", ["はい｡", "いいえ｡"]),
        ("यह घर है। वह पेड़ है॥ठीक।", ["यह घर है।", "वह पेड़ है॥", "ठीक।"]),
        ("هل وصلت؟ نعم وصلت. شكرا!", ["هل وصلت؟", "نعم وصلت.", "شكرا!"]),
        ("یہ گھر ہے۔ وہ درخت ہے۔", ["یہ گھر ہے۔", "وہ درخت ہے۔"]),
        ("ខ្ញុំទៅផ្ទះ។ គាត់ទៅផ្សារ។", ["ខ្ញុំទៅផ្ទះ។", "គាត់ទៅផ្សារ។"]),
        ("သူသွားသည်။ ငါလာသည်။", ["သူသွားသည်။", "ငါလာသည်။"]),
        ("네. 알겠습니다. 갑니다.", ["네.", "알겠습니다.", "갑니다."]),
        ("Սա տուն է։ Նա եկավ։", ["Սա տուն է։", "Նա եկավ։"]),
    ],
)
def test_sentence_boundaries_are_found(text, expected):
    assert split_sentences(text) == expected


def test_a_pair_is_split_only_into_equal_numbers_of_sentences():
    assert split_pair("Ab cd. Ef.", "Gh ij. Kl.") == [("Ab cd.", "Gh ij."), ("Ef.", "Kl.")]
    assert split_pair("Eins zwei. Drei vier.", "One two, three four.") == [
        ("Eins zwei. Drei vier.", "One two, three four.")
    ]
