"""German: cases and agreement, verb second and verb last, separable verbs, perfect tense."""

import dataclasses

from bilingual_grammar import clauses as c
from bilingual_grammar import inflection as i
from bilingual_grammar.words import Place

_AUXILIARIES = {
    "haben": ("habe", "hast", "hat", "haben"),
    "sein": ("bin", "bist", "ist", "sind"),
}
_CONTRACTIONS = {("in", "dem"): "im", ("in", "das"): "ins"}
_CONJUNCTIONS = {
    "because": "weil",
    "although": "obwohl",
    "that": "dass",
    "and": "und",
    "but": "aber",
}
_REPLIES = {"yes": "Ja, ", "no": "Nein, ", "": ""}
_DEGREES = {"very": "sehr ", "too": "zu ", "": ""}


def _column(entity: c.Entity) -> str:
    return "p" if entity.number > 1 else entity.gender


def noun_form(entity: c.Entity, case: str) -> str:
    """Return the noun of an entity in its case and number."""
    noun = entity.noun
    assert noun is not None, "only called for what has a noun"
    if entity.number > 1 and case == "dat":
        return i.dative_plural(noun.plural)
    if entity.number > 1:
        return noun.plural
    if noun.weak and case != "nom":
        return noun.weak
    return noun.german


def _named(entity: c.Entity, case: str) -> str:
    if not entity.title:
        return entity.name
    if entity.title == "Herr" and case != "nom":
        return f"Herrn {entity.name}"
    return f"{entity.title} {entity.name}"


def _possessive(owner: c.Entity) -> str:
    if owner.speaker:
        return i.SPEAKER_POSSESSIVES[owner.speaker]
    return i.THIRD_PERSON_POSSESSIVES[_column(owner)]


def phrase(part: c.Phrase, case: str) -> str:
    """Return a mention in its case.

    Example:
        >>> from bilingual_grammar.lexicon import ADJECTIVES, FURNITURE
        >>> table = c.Entity(1, "m", "thing", FURNITURE[0])
        >>> phrase(c.Phrase(table, "indefinite", ADJECTIVES[0]), "acc")
        'einen roten Tisch'
    """
    entity = part.entity
    column = _column(part.entity)
    if part.form == "pronoun":
        if entity.speaker:
            return i.SPEAKERS[entity.speaker][case]
        return i.THIRD_PERSON[case][column]
    if part.form == "name":
        return _named(entity, case)
    if part.form == "definite":
        determiner = i.DEFINITE[case][column]
        endings = i.WEAK
    elif part.form == "possessive":
        assert part.owner is not None, "a possessive phrase has an owner"
        determiner = i.ein_word(_possessive(part.owner), case, column)
        endings = i.MIXED
    elif entity.number == 1:
        determiner = i.ein_word("ein", case, column)
        endings = i.MIXED
    elif part.form == "numeral":
        determiner = i.german_number(entity.number)
        endings = i.STRONG
    else:
        determiner = ""
        endings = i.STRONG
    words = [determiner]
    if part.adjective:
        words.append(part.adjective.stem + endings[case][column])
    return " ".join(filter(None, [*words, noun_form(entity, case)]))


def place_words(where: Place, direction: bool) -> str:
    """Return a place: dative for a location, accusative for a goal (im Flur, in den Flur)."""
    article = i.DEFINITE["acc" if direction else "dat"][where.noun.gender]
    contracted = _CONTRACTIONS.get((where.german, article))
    start = contracted or f"{where.german} {article}"
    return f"{start} {where.noun.german}"


def _person(subject: c.Phrase) -> int:
    """Return the index into verb forms: 0 ich, 1 du, 2 er/sie/es, 3 wir/sie/Sie."""
    if subject.entity.speaker:
        return {"ich": 0, "du": 1, "Sie": 3, "wir": 3}[subject.entity.speaker]
    return 3 if subject.entity.number > 1 else 2


def _verbs(clause: c.Clause) -> tuple[str, str, bool]:
    """Return the finite verb, the end of the sentence bracket, and whether it is a prefix."""
    verb = clause.verb
    person = _person(clause.subject)
    past = clause.tense == "past"
    if clause.modal and past:
        return clause.modal.past[person], verb.infinitive, False
    if clause.modal:
        return clause.modal.present[person], verb.infinitive, False
    if past and verb.preterite:
        return verb.preterite[person], "", False
    if past:
        return _AUXILIARIES[verb.auxiliary][person], verb.participle, False
    return verb.present[person], verb.prefix, True


def _predicate(part: c.Predicate) -> str:
    if part.like:
        return f"so {part.adjective.german} wie {phrase(part.like, 'nom')}"
    return _DEGREES[part.degree] + part.adjective.german


def _middle(clause: c.Clause, with_time: bool = True) -> list[str]:
    """Return the words between the verbs: pronouns, time, dative, accusative, nicht, the rest."""
    pronouns = []
    nouns = []
    for part, case in ((clause.direct, "acc"), (clause.indirect, "dat")):
        if part and part.form == "pronoun":
            pronouns.append(phrase(part, case))
        elif part:
            nouns.insert(0, phrase(part, case))
    parts = pronouns
    if clause.time and with_time:
        parts.append(clause.time.german)
    parts += nouns
    if clause.negated:
        parts.append("nicht")
    if clause.price:
        parts.append(f"für {i.german_number(clause.price)} Euro")
    if clause.companion:
        parts.append(f"mit {phrase(clause.companion, 'dat')}")
    if clause.place:
        parts.append(place_words(clause.place, clause.direction))
    if clause.predicate:
        parts.append(_predicate(clause.predicate))
    return parts


def _verb_second(clause: c.Clause, time_first: bool = False) -> str:
    finite, closing, _ = _verbs(clause)
    subject = phrase(clause.subject, "nom")
    start = [subject, finite]
    if time_first:
        start = [clause.time.german, finite, subject]
    return " ".join([*start, *_middle(clause, not time_first), closing]).strip()


def _verb_first(clause: c.Clause) -> str:
    finite, closing, _ = _verbs(clause)
    return " ".join([finite, phrase(clause.subject, "nom"), *_middle(clause), closing]).strip()


def _verb_last(clause: c.Clause) -> str:
    finite, closing, closing_is_prefix = _verbs(clause)
    verbs = closing + finite if closing_is_prefix else f"{closing} {finite}".strip()
    return " ".join([phrase(clause.subject, "nom"), *_middle(clause), verbs])


def _complex(part: c.Complex) -> str:
    subordinate = f"{_CONJUNCTIONS[part.conjunction]} {_verb_last(part.subordinate)}"
    if part.subordinate_first:
        # The subordinate clause takes the first place. The verb of the main one comes next.
        return f"{subordinate}, {_verb_first(part.main)}."
    return f"{_verb_second(part.main)}, {subordinate}."


def _relative(part: c.RelativeStatement) -> str:
    subject = part.main.subject
    pronoun = i.RELATIVE["acc"][_column(subject.entity)]
    finite, closing, _ = _verbs(part.main)
    relative = _verb_last(dataclasses.replace(part.relative, direct=None))
    main = " ".join([finite, *_middle(part.main), closing]).strip()
    return f"{phrase(subject, 'nom')}, {pronoun} {relative}, {main}."


def _command(part: c.Command) -> str:
    verb = part.verb.imperative
    if part.listener.speaker == "Sie":
        verb = f"{part.verb.infinitive} Sie"
    direct = phrase(part.direct, "acc")
    indirect = phrase(part.indirect, "dat")
    if part.direct.form == "pronoun":
        return f"{verb} {direct} {indirect} bitte."
    return f"{verb} {indirect} bitte {direct}."


def sentence(part: c.Sentence) -> str:
    """Return the sentence in German, capitalised and with its final mark."""
    if isinstance(part, c.Statement):
        text = _REPLIES[part.reply] + _verb_second(part.clause, part.time_first) + "."
    elif isinstance(part, c.Question):
        text = _verb_first(part.clause) + "?"
    elif isinstance(part, c.WhereQuestion):
        verb = _AUXILIARIES["sein"][_person(part.subject)]
        text = f"wo {verb} {phrase(part.subject, 'nom')}?"
    elif isinstance(part, c.Existence):
        verb = part.verb.present[_person(part.subject)]
        text = f"{place_words(part.place, False)} {verb} {phrase(part.subject, 'nom')}."
    elif isinstance(part, c.Complex):
        text = _complex(part)
    elif isinstance(part, c.Coordination):
        text = (
            f"{_verb_second(part.first)}, {_CONJUNCTIONS[part.conjunction]} "
            f"{_verb_second(part.second)}."
        )
    elif isinstance(part, c.RelativeStatement):
        text = _relative(part)
    elif isinstance(part, c.Command):
        text = _command(part)
    else:
        text = part.words[0].format(_named(part.listener, "nom"))
    return text[0].upper() + text[1:]
