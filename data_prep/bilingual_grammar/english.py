"""English: word order, agreement, do-support, phrasal verbs."""

import dataclasses

from bilingual_grammar import clauses as c
from bilingual_grammar import inflection as i
from bilingual_grammar.lexicon import BE
from bilingual_grammar.words import Place

_REPLIES = {"yes": "Yes, ", "no": "No, ", "": ""}
_DEGREES = {"very": "very ", "too": "too ", "": ""}
_TITLES = {"Herr": "Mr", "Frau": "Mrs"}


def _forms(entity: c.Entity) -> tuple[str, str, str]:
    """Return subject, object and possessive form of the pronoun."""
    if entity.speaker:
        return i.ENGLISH_SPEAKERS[entity.speaker]
    return i.ENGLISH_THIRD["several" if entity.number > 1 else entity.kind]


def _named(entity: c.Entity) -> str:
    return f"{_TITLES[entity.title]} {entity.name}" if entity.title else entity.name


def phrase(part: c.Phrase, is_subject: bool = False) -> str:
    """Return a mention, as a subject or as an object.

    Example:
        >>> from bilingual_grammar.lexicon import ADJECTIVES, FURNITURE
        >>> table = c.Entity(1, "m", "thing", FURNITURE[0])
        >>> phrase(c.Phrase(table, "indefinite", ADJECTIVES[9]))
        'an old table'
    """
    entity = part.entity
    if part.form == "pronoun":
        return _forms(entity)[0 if is_subject else 1]
    if part.form == "name":
        return _named(entity)
    assert entity.noun is not None, "what has no name has a noun"
    noun = entity.noun.english_plural if entity.number > 1 else entity.noun.english
    noun_phrase = f"{part.adjective.english} {noun}" if part.adjective else noun
    if part.form == "definite":
        return f"the {noun_phrase}"
    if part.form == "possessive":
        assert part.owner is not None, "a possessive phrase has an owner"
        return f"{_forms(part.owner)[2]} {noun_phrase}"
    if entity.number == 1:
        return f"{i.indefinite_article(noun_phrase)} {noun_phrase}"
    return (
        f"{i.english_number(entity.number)} {noun_phrase}"
        if part.form == "numeral"
        else noun_phrase
    )


def place_words(where: Place, direction: bool) -> str:
    """Return a place as a location or a goal (in the kitchen, into the kitchen)."""
    return f"{where.english_direction if direction else where.english} the {where.noun.english}"


def _is_third_singular(subject: c.Phrase) -> bool:
    return not subject.entity.speaker and subject.entity.number == 1


def _form_of_be(subject: c.Phrase, past: bool) -> str:
    if subject.entity.speaker == "ich":
        return "was" if past else "am"
    if _is_third_singular(subject):
        return "was" if past else "is"
    return "were" if past else "are"


def _verbs(clause: c.Clause, needs_auxiliary: bool) -> tuple[str, str]:
    """Return the auxiliary (or nothing) and the rest of the verbs.

    Args:
        clause: gives subject, verb, modal and tense.
        needs_auxiliary: in questions and negations, where "do" helps out.
    """
    past = clause.tense == "past"
    third = _is_third_singular(clause.subject)
    if clause.modal and not clause.modal.link:
        return clause.modal.english[2 if past else 0], clause.verb.english[0]
    forms = clause.verb.english
    tail = ""
    if clause.modal:
        forms = clause.modal.english
        tail = f" {clause.modal.link} {clause.verb.english[0]}"
    elif clause.tense == "future":
        return "will", forms[0]
    elif clause.verb == BE:
        return _form_of_be(clause.subject, past), ""
    if needs_auxiliary:
        return ("did" if past else "does" if third else "do"), forms[0] + tail
    return "", forms[2 if past else 1 if third else 0] + tail


def _objects(clause: c.Clause) -> list[str]:
    """Return the objects with the verb's particle or preposition in its place."""
    verb = clause.verb
    direct = phrase(clause.direct) if clause.direct else ""
    indirect = phrase(clause.indirect) if clause.indirect else ""
    if clause.direct is None:
        return [indirect, verb.preposition, verb.particle]
    if clause.indirect is None:
        is_pronoun = clause.direct.form == "pronoun"
        order = [direct, verb.particle] if is_pronoun else [verb.particle, direct]
        return [verb.preposition, *order]
    if clause.indirect.form == "pronoun" and clause.direct.form != "pronoun":
        return [indirect, direct]
    return [direct, f"to {indirect}"]


def _predicate(part: c.Predicate) -> str:
    if part.like:
        return f"as {part.adjective.english} as {phrase(part.like)}"
    return _DEGREES[part.degree] + part.adjective.english


def _after_verbs(clause: c.Clause, with_time: bool = True) -> list[str]:
    parts = [
        *_objects(clause),
        f"for {i.english_number(clause.price)} euros" if clause.price else "",
        f"with {phrase(clause.companion)}" if clause.companion else "",
        place_words(clause.place, clause.direction) if clause.place else "",
        _predicate(clause.predicate) if clause.predicate else "",
        clause.time.english if clause.time and with_time else "",
    ]
    return [part for part in parts if part]


def _verb_phrase(clause: c.Clause) -> list[str]:
    auxiliary, verbs = _verbs(clause, needs_auxiliary=clause.negated)
    if clause.negated:
        auxiliary = "cannot" if auxiliary == "can" else f"{auxiliary} not"
    return [part for part in (auxiliary, verbs) if part]


def _plain(clause: c.Clause, time_first: bool = False) -> str:
    words = [phrase(clause.subject, True), *_verb_phrase(clause)]
    words.extend(_after_verbs(clause, not time_first))
    return " ".join([clause.time.english, *words] if time_first and clause.time else words)


def _question(clause: c.Clause) -> str:
    auxiliary, verbs = _verbs(clause, needs_auxiliary=True)
    words = [auxiliary, phrase(clause.subject, True), "not" if clause.negated else "", verbs]
    return " ".join([word for word in words if word] + _after_verbs(clause)) + "?"


def _complex(part: c.Complex) -> str:
    subordinate = f"{part.conjunction} {_plain(part.subordinate)}"
    if part.subordinate_first:
        return f"{subordinate}, {_plain(part.main)}."
    return f"{_plain(part.main)} {subordinate}."


def _relative(part: c.RelativeStatement) -> str:
    relative = _plain(dataclasses.replace(part.relative, direct=None))
    main = " ".join([*_verb_phrase(part.main), *_after_verbs(part.main)])
    return f"{phrase(part.main.subject, True)} that {relative} {main}."


def sentence(part: c.Sentence) -> str:
    """Return the sentence in English, capitalised and with its final mark."""
    if isinstance(part, c.Statement):
        text = _REPLIES[part.reply] + _plain(part.clause, part.time_first) + "."
    elif isinstance(part, c.Question):
        text = _question(part.clause)
    elif isinstance(part, c.WhereQuestion):
        text = f"where {_form_of_be(part.subject, False)} {phrase(part.subject, True)}?"
    elif isinstance(part, c.Existence):
        verb = _form_of_be(part.subject, False)
        text = f"there {verb} {phrase(part.subject)} {place_words(part.place, False)}."
    elif isinstance(part, c.Complex):
        text = _complex(part)
    elif isinstance(part, c.Coordination):
        text = f"{_plain(part.first)}, {part.conjunction} {_plain(part.second)}."
    elif isinstance(part, c.RelativeStatement):
        text = _relative(part)
    elif isinstance(part, c.Command):
        clause = c.Clause(part.direct, part.verb, direct=part.direct, indirect=part.indirect)
        text = " ".join(["please", part.verb.english[0], *_objects(clause)]) + "."
    else:
        text = part.words[1].format(_named(part.listener))
    return text[0].upper() + text[1:]
