"""English: word order, agreement, do-support, phrasal verbs."""

import dataclasses

from bilingual_grammar import clauses as c
from bilingual_grammar import inflection as i
from bilingual_grammar.lexicon import BE
from bilingual_grammar.words import Place

_REPLIES = {"yes": "Yes, ", "no": "No, ", "": ""}
_DEGREES = {"very": "very ", "too": "too ", "": ""}
_TITLES = {"Herr": "Mr", "Frau": "Mrs"}
_PAST_OF_BE = {"am": "was", "is": "was", "are": "were"}
# Indices into the English forms of a verb.
_BASE = 0
_THIRD_SINGULAR = 1
_PAST = 2
_FORMS_OF_DO = ("do", "does", "did")


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
    if part.form == "numeral":
        return f"{i.english_number(entity.number)} {noun_phrase}"
    return noun_phrase


def place_words(where: Place, direction: bool) -> str:
    """Return a place as a location or a goal (in the kitchen, into the kitchen)."""
    return f"{where.english_direction if direction else where.english} the {where.noun.english}"


def _is_third_singular(subject: c.Phrase) -> bool:
    return not subject.entity.speaker and subject.entity.number == 1


def _form_of_be(subject: c.Phrase, past: bool) -> str:
    form = "are"
    if subject.entity.speaker == "ich":
        form = "am"
    elif _is_third_singular(subject):
        form = "is"
    return _PAST_OF_BE[form] if past else form


def _verbs(clause: c.Clause, needs_auxiliary: bool) -> tuple[str, str]:
    """Return the auxiliary (or nothing) and the rest of the verbs.

    Args:
        clause: gives subject, verb, modal and tense.
        needs_auxiliary: in questions and negations, where "do" helps out.
    """
    form = _BASE
    if clause.tense == "past":
        form = _PAST
    elif _is_third_singular(clause.subject):
        form = _THIRD_SINGULAR
    forms = clause.verb.english
    infinitive = forms[_BASE]
    if clause.modal and not clause.modal.link:
        return clause.modal.english[form], infinitive
    tail = ""
    if clause.modal:
        forms = clause.modal.english
        tail = f" {clause.modal.link} {infinitive}"
    elif clause.tense == "future":
        return "will", infinitive
    elif clause.verb == BE:
        return _form_of_be(clause.subject, clause.tense == "past"), ""
    if needs_auxiliary:
        return _FORMS_OF_DO[form], forms[_BASE] + tail
    return "", forms[form] + tail


def _objects(clause: c.Clause) -> list[str]:
    """Return the objects with the verb's particle or preposition in its place."""
    verb = clause.verb
    if clause.direct is None:
        indirect = phrase(clause.indirect) if clause.indirect else ""
        return [indirect, verb.preposition, verb.particle]
    direct = phrase(clause.direct)
    is_pronoun = clause.direct.form == "pronoun"
    if clause.indirect is None and is_pronoun:
        return [verb.preposition, direct, verb.particle]
    if clause.indirect is None:
        return [verb.preposition, verb.particle, direct]
    indirect = phrase(clause.indirect)
    if clause.indirect.form == "pronoun" and not is_pronoun:
        return [indirect, direct]
    return [direct, f"to {indirect}"]


def _predicate(part: c.Predicate) -> str:
    if part.like:
        return f"as {part.adjective.english} as {phrase(part.like)}"
    return _DEGREES[part.degree] + part.adjective.english


def _after_verbs(clause: c.Clause, with_time: bool = True) -> list[str]:
    parts = _objects(clause)
    if clause.price:
        parts.append(f"for {i.english_number(clause.price)} euros")
    if clause.companion:
        parts.append(f"with {phrase(clause.companion)}")
    if clause.place:
        parts.append(place_words(clause.place, clause.direction))
    if clause.predicate:
        parts.append(_predicate(clause.predicate))
    if clause.time and with_time:
        parts.append(clause.time.english)
    return list(filter(None, parts))


def _verb_phrase(clause: c.Clause) -> list[str]:
    auxiliary, verbs = _verbs(clause, needs_auxiliary=clause.negated)
    if clause.negated and auxiliary == "can":
        auxiliary = "cannot"
    elif clause.negated:
        auxiliary = f"{auxiliary} not"
    return list(filter(None, (auxiliary, verbs)))


def _plain(clause: c.Clause, time_first: bool = False) -> str:
    words = [phrase(clause.subject, True), *_verb_phrase(clause)]
    words.extend(_after_verbs(clause, not time_first))
    if time_first and clause.time:
        words.insert(0, clause.time.english)
    return " ".join(words)


def _question(clause: c.Clause) -> str:
    auxiliary, verbs = _verbs(clause, needs_auxiliary=True)
    words = [auxiliary, phrase(clause.subject, True)]
    if clause.negated:
        words.append("not")
    return " ".join(filter(None, [*words, verbs, *_after_verbs(clause)])) + "?"


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
