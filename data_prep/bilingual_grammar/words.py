"""Words with the forms that both languages need, and the reading of lexicon lines."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Noun:
    """A noun.

    Attributes:
        german: nominative singular.
        gender: ``m``, ``f`` or ``n``.
        plural: German nominative plural.
        english: singular.
        english_plural: plural.
        weak: form of the other singular cases in the German n-declension (den Jungen). Empty for
            all other nouns.
    """

    german: str
    gender: str
    plural: str
    english: str
    english_plural: str
    weak: str = ""


@dataclasses.dataclass(frozen=True)
class Adjective:
    """An adjective: the form after "ist", the stem that takes endings, and the English word."""

    german: str
    stem: str
    english: str


@dataclasses.dataclass(frozen=True)
class Verb:
    """A verb.

    Attributes:
        infinitive: German infinitive with its separable prefix, if any.
        present: forms for ich, du, er, wir, without the prefix.
        participle: as in "hat ... gekauft".
        english: base form, third person, past.
        prefix: separable prefix (mit|bringen).
        particle: English particle. It stands before a noun ("pick up the box") and after a pronoun
            ("pick it up").
        preposition: English preposition of the object (look for it).
        auxiliary: ``haben`` or ``sein``.
        imperative: command to a ``du``, without the prefix.
        preterite: past forms for ich, du, er, wir, of a verb that uses them and not the perfect.
    """

    infinitive: str
    present: tuple[str, ...]
    participle: str
    english: tuple[str, ...]
    prefix: str = ""
    particle: str = ""
    preposition: str = ""
    auxiliary: str = "haben"
    imperative: str = ""
    preterite: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Modal:
    """A modal verb.

    Attributes:
        present: German forms for ich, du, er, wir.
        past: the same in the past.
        english: base form, third person and past.
        link: word between the modal verb and the infinitive: "to" for "have to". Empty for verbs
            like "can", whose negation and question need no "do".
    """

    present: tuple[str, ...]
    past: tuple[str, ...]
    english: tuple[str, ...]
    link: str


@dataclasses.dataclass(frozen=True)
class Place:
    """A location or goal: preposition and noun (auf dem Tisch, auf den Tisch)."""

    german: str
    english: str
    english_direction: str
    noun: Noun


@dataclasses.dataclass(frozen=True)
class Time:
    """A time and the tense that goes with it (``past``, ``present`` or ``future``)."""

    german: str
    english: str
    tense: str


def nouns(rows: str) -> tuple[Noun, ...]:
    """Read nouns from lines of gender, German, plural, English, plural, and weak form if any.

    An underscore stands for a space.
    """
    read = []
    for row in rows.strip().splitlines():
        gender, *forms = row.split()
        german, plural, english, english_plural, *weak = (form.replace("_", " ") for form in forms)
        read.append(Noun(german, gender, plural, english, english_plural, "".join(weak)))
    return tuple(read)


def places_of(
    german: str, english: str, english_direction: str, words: tuple[Noun, ...]
) -> tuple[Place, ...]:
    """Return the place that the preposition makes with each of the nouns."""
    return tuple(Place(german, english, english_direction, noun) for noun in words)


def adjectives(rows: str) -> tuple[Adjective, ...]:
    """Read adjectives separated by commas: German, its stem if another, English."""
    read = []
    for row in rows.split(","):
        words = row.split()
        read.append(Adjective(words[0], words[-2], words[-1]))
    return tuple(read)


def verb(german: str, english: str, **details: str) -> Verb:
    """Read a verb: infinitive, ich, du, er, wir, participle, then the three English forms.

    ``details`` are further fields of :class:`Verb`.
    """
    infinitive, *present, participle = german.split()
    return Verb(infinitive, tuple(present), participle, tuple(english.split()), **details)
