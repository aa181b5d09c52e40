"""Agreement in German and English: articles, adjectives, nouns, pronouns, numerals.

Cases are ``nom``, ``acc`` and ``dat``. A German gender is ``m``, ``f`` or ``n``. The column of a
table is the gender, or ``p`` for the plural, which has no genders.
"""

CASES = ("nom", "acc", "dat")
GENDERS = ("m", "f", "n")
COLUMNS = (*GENDERS, "p")


def _table(**rows: str) -> dict[str, dict[str, str]]:
    """Return the form by case and column. ``-`` stands for the empty ending."""
    table = {}
    for case, row in rows.items():
        forms = [form.replace("-", "") for form in row.split()]
        table[case] = dict(zip(COLUMNS, forms, strict=True))
    return table


DEFINITE = _table(nom="der die das die", acc="den die das die", dat="dem der dem den")
# Endings of ein, kein, mein, dein, sein, ihr, Ihr, unser ("ein" itself has no plural).
EIN_ENDINGS = _table(nom="- e - e", acc="en e - e", dat="em er em en")
# Adjectives after der/die/das, after ein-words, and without an article (also after numerals).
WEAK = _table(nom="e e e en", acc="en e e en", dat="en en en en")
MIXED = _table(nom="er e es en", acc="en e es en", dat="en en en en")
STRONG = _table(nom="er e es e", acc="en e es e", dat="em er em en")
RELATIVE = _table(nom="der die das die", acc="den die das die", dat="dem der dem denen")
THIRD_PERSON = _table(nom="er sie es sie", acc="ihn sie es sie", dat="ihm ihr ihm ihnen")

# Pronouns of the people who speak. "Sie" is the polite you, used for one person and several.
SPEAKERS = {
    "ich": {"nom": "ich", "acc": "mich", "dat": "mir"},
    "du": {"nom": "du", "acc": "dich", "dat": "dir"},
    "Sie": {"nom": "Sie", "acc": "Sie", "dat": "Ihnen"},
    "wir": {"nom": "wir", "acc": "uns", "dat": "uns"},
}
SPEAKER_POSSESSIVES = {"ich": "mein", "du": "dein", "Sie": "Ihr", "wir": "unser"}
# Possessives by the gender of the owner: der Tisch - seine Farbe, die Lampe - ihre Farbe.
THIRD_PERSON_POSSESSIVES = {"m": "sein", "f": "ihr", "n": "sein", "p": "ihr"}

ENGLISH_SPEAKERS = {
    "ich": ("I", "me", "my"),
    "du": ("you", "you", "your"),
    "Sie": ("you", "you", "your"),
    "wir": ("we", "us", "our"),
}
# Subject, object and possessive forms of the third person.
ENGLISH_THIRD = {
    "man": ("he", "him", "his"),
    "woman": ("she", "her", "her"),
    "thing": ("it", "it", "its"),
    "several": ("they", "them", "their"),
}

_GERMAN_UNITS = (
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn "
    "fünfzehn sechzehn siebzehn achtzehn neunzehn"
)
_GERMAN_TENS = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig"
_ENGLISH_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
)
_ENGLISH_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"


def german_number(number: int) -> str:
    """Return the numeral for 0 to 99.

    Example:
        >>> german_number(3), german_number(21), german_number(40)
        ('drei', 'einundzwanzig', 'vierzig')
    """
    units = _GERMAN_UNITS.split()
    tens = _GERMAN_TENS.split()
    if number < 20:
        return units[number]
    unit = number % 10
    ending = tens[number // 10 - 2]
    if unit == 0:
        return ending
    return ("ein" if unit == 1 else units[unit]) + "und" + ending


def english_number(number: int) -> str:
    """Return the numeral for 0 to 99.

    Example:
        >>> english_number(3), english_number(21), english_number(40)
        ('three', 'twenty-one', 'forty')
    """
    units = _ENGLISH_UNITS.split()
    tens = _ENGLISH_TENS.split()
    if number < 20:
        return units[number]
    ending = tens[number // 10 - 2]
    if number % 10 == 0:
        return ending
    return f"{ending}-{units[number % 10]}"


def ein_word(stem: str, case: str, column: str) -> str:
    """Return ein, kein or a possessive with its ending.

    Example:
        >>> ein_word("ein", "acc", "m"), ein_word("unser", "dat", "f")
        ('einen', 'unserer')
    """
    return stem + EIN_ENDINGS[case][column]


def dative_plural(plural: str) -> str:
    """Return the dative of a plural noun: it adds n, unless it ends in n or s."""
    return plural if plural.endswith(("n", "s")) else plural + "n"


def indefinite_article(following: str) -> str:
    """Return "a" or "an" by the sound that the lexicon's words begin with."""
    return "an" if following[0].lower() in "aeiou" else "a"
