import random

import pytest
from prep_tools.letters import letters
from prep_tools.near_duplicates import SeenLines, shingles

# A line of training, near copies of it, and lines that are none.
LINES = {
    "de": (
        "Der Ausschuss hat den neuen Vorschlag gestern Abend beraten.",
        ["Der Ausschuss hat den alten Vorschlag gestern Abend beraten."],
        ["Der Verein hat seinen alten Vorstand heute früh entlassen."],
    ),
    "zh": (
        "他昨天在图书馆借了三本关于历史的书。",
        [
            "他昨天在图书馆借了五本关于历史的书。",
            "他昨天，在图书馆，借了三本关于历史的书！",
            "他 昨天 在 图书馆 借 了 三 本 关于 历史 的 小说 。",
        ],
        ["他明天在火车站等一个从上海来的朋友。", "我们昨天在公园里看了一场足球比赛。"],
    ),
    "ja": (
        "昨日、駅の前で古い友達に会いました。",
        [
            "昨日、駅の前で古い友人に会いました。",
            "昨日駅の前で、古い友達と会いました。",
            "昨日、駅の前で古い友達に会いましたよ。",
        ],
        ["明日、家の中で新しい料理を作ります。", "昨日、雨が降ったので出かけませんでした。"],
    ),
    "th": (
        "ฉันชอบอ่านหนังสือในห้องสมุดของมหาวิทยาลัยทุกวันเสาร์",
        ["ผมชอบอ่านหนังสือในห้องสมุดของมหาวิทยาลัยทุกวันเสาร์", "ฉันชอบอ่านหนังสือ ในห้องสมุดของมหาวิทยาลัย ทุกวันศุกร์"],
        ["ฉันชอบเล่นฟุตบอลกับเพื่อนที่สนามหลังโรงเรียนทุกเย็น"],
    ),
    "ar": (
        "ذهب الولد إلى المدرسة مع أخيه الصغير في الصباح الباكر",
        [
            "ذَهَبَ الوَلَدُ إلى المَدْرَسَةِ مع أخيه الصغيرِ في الصباحِ الباكرِ.",
            "ذهب الولـــد الى المدرسة مع اخيه الصغير في الصباح الباكر",
            "ذهب الولد إلى المدرسة مع أبيه الكبير في الصباح الباكر",
        ],
        ["كتب المعلم رسالة طويلة عن تاريخ المدينة القديمة إلى صديقه"],
    ),
    "fa": (
        "من هر روز صبح کتاب می‌خوانم و سپس به دانشگاه می‌روم",
        ["من هر روز صبح کتاب میخوانم و سپس به دانشگاه میروم."],
        ["او دیشب در خانه ماند و با مادرش فیلم قدیمی دید"],
    ),
    "hi": (
        "मैं हर सुबह बगीचे में चाय पीते हुए अख़बार पढ़ता हूँ।",
        ["मैं हर सुबह बगीचे में चाय पीते हुए अख़बार पढ़ती हूँ", "मैं हर सुबह बगीचे में चाय पीते हुए अख़बार पढ़ता था।"],
        ["वह हर रविवार बाज़ार में फल बेचते हुए गाना गाता है।"],
    ),
    "ko": (
        "나는 어제 도서관에서 역사에 관한 책을 세 권 빌렸다.",
        [
            "나는 어제 도서관에서 역사에 관한 책을 네 권 빌렸다.",
            "나는 어제 도서관에서 역사에관한 책을 세권 빌렸습니다.",
        ],
        ["우리는 내일 공원에서 친구들과 함께 축구를 할 것이다."],
    ),
    "my": (
        "ကျွန်တော်သည် နေ့တိုင်း နံနက်စောစော ကျောင်းသို့ လမ်းလျှောက်၍ သွားသည်။",
        ["ကျွန်မသည် နေ့တိုင်း နံနက်စောစော ကျောင်းသို့ လမ်းလျှောက်၍ သွားသည်။"],
        ["သူမသည် ညနေပိုင်းတွင် ဈေး၌ ငါးနှင့် ဟင်းသီးဟင်းရွက် ဝယ်ခဲ့သည်။"],
    ),
}


@pytest.mark.parametrize("language", LINES)
def test_near_copies_are_found_and_other_lines_are_kept(language):
    line, copies, fresh = LINES[language]
    lines = [line_of_case for line_of_case, _, _ in LINES.values() if line_of_case != line]
    known_lines = SeenLines([*lines, line], threshold=0.7)
    assert known_lines.find([*copies, *fresh]) == [True] * len(copies) + [False] * len(fresh)


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ("वह दिन में घर आया।", "वह दान में घर आयी।"),  # day and gift: a vowel sign tells them apart
        ("पिता", "पता"),
        ("स्पेसेस", "स्पेस"),
        ("ပိုက်ဆံ", "ပုစ္ဆာ"),
        ("ข้าว", "ขาว"),  # rice and white: a tone
        ("schön", "schon"),
    ],
)
def test_marks_distinguish_words(first, other):
    assert first not in SeenLines([other], threshold=0.7)


@pytest.mark.parametrize(
    ("line", "copy"),
    [
        ("Click the second button on the left.", "click THE second button, on the left"),
        ("Die Straße ist gesperrt", "DIE STRASSE IST GESPERRT!"),
        ("See page 3.", "See page 17."),
        ("Siehe Seite 1.000", "Siehe Seite 12"),
        ("Ｗｉｎｄｏｗｓ　１０ を使う", "Windows 11を使う。"),
        ("ｶﾞｲﾄﾞ", "ガイド"),
        ("पृष्ठ १२ देखें", "पृष्ठ 7 देखें।"),
        ("انظر صفحة ٣", "انظر صفحة 12"),
        ("cafe\u0301 au lait", "café au lait"),
        ("한국어", "\u1112\u1161\u11ab\u1100\u116e\u11a8\u110b\u1165"),
        ("שָׁלוֹם", "שלום"),
        ("ភាសា\u200bខ្មែរ", "ភាសាខ្មែរ"),
    ],
)
def test_lines_that_differ_only_in_their_way_of_writing_are_equal(line, copy):
    assert copy in SeenLines([line], threshold=1.0)


@pytest.mark.parametrize("threshold", [0.1, 0.7, 1.0])
def test_lines_without_letters_are_copies_only_if_they_are_equal(threshold):
    known_lines = SeenLines(["1", "...", "🙂", "2024-11-28", "1️⃣", "❤️", "5  €"], threshold)
    fresh = ["2", "", "!!!", "🚀", "2024-11-27", "2️⃣", "12", "5 $", "3.5", "See page 3."]
    assert known_lines.find(fresh) == [False] * len(fresh)
    assert all(known_lines.find(["1", "１", "…", "🙂", " 2024-11-28", "❤", "5 €"]))


def test_a_line_that_shares_too_little_is_new():
    known_lines = SeenLines(["The green house stands by the old river."], threshold=0.7)
    assert "The green tree stands by the new bridge." not in known_lines


def test_word_for_word_means_equal_letters():
    assert "ab ab ab ab ab" not in SeenLines(["ab ab ab ab"], threshold=1.0)


@pytest.mark.parametrize("alphabet", ["abcd", "天地人山", "กขคง", "कखिी"])
@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.55, 0.7, 0.9])
def test_the_search_equals_a_comparison_of_all_lines(threshold, alphabet):
    lots = random.Random(4)

    def line() -> str:
        return "".join(lots.choices(alphabet, k=lots.randint(1, 12)))

    lines = [line() for _ in range(150)]
    candidates = [line() for _ in range(200)]
    for _ in range(100):  # and copies of which some letters differ
        copy = list(lots.choice(lines))
        copy[lots.randrange(len(copy))] = lots.choice(alphabet)
        candidates.append("".join(copy))

    shingles_of_lines = [shingles(letters(line)) for line in lines]

    def by_comparing(candidate: str) -> bool:
        members = shingles(letters(candidate))
        for other in shingles_of_lines:
            if len(members & other) >= threshold * len(members | other) - 1e-9:
                return True
        return False

    results = SeenLines(lines, threshold).find(candidates)
    assert results == list(map(by_comparing, candidates))
    assert len(set(results)) == 2 or threshold == 0.3


def test_the_time_grows_linearly_with_the_text():
    lots = random.Random(1)
    words = ["".join(lots.choices("etaoinsr", k=5)) for _ in range(300)]

    def lines(number):
        return [" ".join(lots.choices(words, k=9)) for _ in range(number)]

    class Counted(frozenset):
        compared = 0

        def __and__(self, other):
            Counted.compared += 1
            return frozenset.__and__(self, other)

    held_out = lines(100)
    import prep_tools.near_duplicates as near_duplicates

    original = near_duplicates.shingles
    near_duplicates.shingles = lambda text: Counted(original(text))
    try:
        SeenLines(lines(2000), 0.7).find(held_out)
    finally:
        near_duplicates.shingles = original
    assert Counted.compared < 2000  # of 200,000 pairs
