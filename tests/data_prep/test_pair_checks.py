import pytest
from prep_tools.pair_checks import reason_to_drop


@pytest.mark.parametrize(
    ("translation", "english", "reason"),
    [
        ("Öffnen Sie die Datei.", "Open the file.", None),
        ("Datei", "File", None),
        ("GIMP", "GIMP", "equal on both sides"),
        ("1,5", "1.5", "without letters"),
        ("Ein langer Satz, der viel mehr sagt als das Wort im Original.", "Word", "lengths"),
        ("If you want, use the „Crop“ tool.", "If you want, use the “Crop” tool.", "still in"),
        ("systemd verwendet Units", "systemd uses units", None),
        ("Seit 1.000 Jahren, seit 2012", "For 1,000 years, since 2012", None),
        ("Seit 2011", "Since 2012", "numbers differ"),
        ("Nach 2 Tagen", "After two days", None),
        ("Die Option --all hilft.", "The option --any helps.", "options or identifiers differ"),
        ("Das „Neu“-Menü und Ein-/Ausgabe", "The “New” menu and input/output", None),
        ("Mit -a oder -b", "With -a or -b", None),
        ("Mit -a", "With -b", "options or identifiers differ"),
        ("Siehe open(2) und O_APPEND", "See open(2) and O_APPEND", None),
        ("Siehe open(2)", "See close(2)", "options or identifiers differ"),
        (
            "比标准的接口更容易学习和使用。",
            "Easier to learn and to use than the standard interface.",
            None,
        ),
        ("文件", "A very long sentence that says much more than the word.", "lengths"),
        ("변수의 명명 규칙", "Naming Conventions for Variable Identifiers", None),
        ("使用选项--all或-a。", "Use the option --all or -a.", None),
        ("使用选项--all。", "Use the option --any.", "options or identifiers differ"),
        ("参见open(2)和O_APPEND标志。", "See open(2) and the flag O_APPEND.", None),
        ("उम्र २५ वर्ष है।", "The age is 25 years.", None),
        ("उम्र २६ वर्ष है।", "The age is 25 years.", "numbers differ"),
        ("السعر ١٬٢٥٠ دينار", "The price is 1,250 dinars", None),
        ("价格是２５元。", "The price is 25 yuan.", None),
        (
            "在“the of”菜单中选择相应的命令并按下回车键。",
            "Choose the command in “the of”, then Enter.",
            None,
        ),
    ],
)
def test_bad_pairs_are_dropped_with_a_reason(translation, english, reason):
    actual = reason_to_drop(translation, english)
    assert actual is None if reason is None else actual is not None and actual.startswith(reason)
