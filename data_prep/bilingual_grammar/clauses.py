"""The meaning of sentences, apart from any language: entities, phrases, clauses, sentences."""

import dataclasses
from typing import Any

from bilingual_grammar.words import Adjective, Modal, Noun, Place, Time, Verb


@dataclasses.dataclass(frozen=True)
class Entity:
    """A person or thing that sentences mention.

    Attributes:
        key: unique number in its document.
        gender: German gender of its pronoun, ``m``, ``f`` or ``n``.
        kind: ``man``, ``woman`` or ``thing``: decides the English pronoun.
        noun: its noun, unless it has a name.
        name: a person's name, which has no article.
        title: ``Herr``/``Frau`` before the name, or empty.
        number: number of persons or things.
        speaker: ``ich``, ``du``, ``Sie`` or ``wir`` for the speakers, empty for all others.
    """

    key: int
    gender: str
    kind: str
    noun: Noun | None = None
    name: str = ""
    title: str = ""
    number: int = 1
    speaker: str = ""


@dataclasses.dataclass(frozen=True)
class Phrase:
    """A mention of an entity.

    Attributes:
        entity: the person or thing.
        form: ``name``, ``definite``, ``indefinite``, ``numeral``, ``possessive`` or ``pronoun``.
        adjective: between article and noun.
        owner: owner in a ``possessive`` phrase (mein, sein, ihr ...).
    """

    entity: Entity
    form: str
    adjective: Adjective | None = None
    owner: Entity | None = None


@dataclasses.dataclass(frozen=True)
class Predicate:
    """The adjective after "is", with a degree (``""``, ``very``, ``too``) or a comparison.

    With ``like``, "as heavy as ...".
    """

    adjective: Adjective
    degree: str = ""
    like: Phrase | None = None


@dataclasses.dataclass(frozen=True)
class Clause:
    """A verb with its subject, objects and adverbials.

    Attributes:
        subject: nominative.
        verb: the full verb.
        tense: ``past``, ``present`` or ``future``.
        direct: accusative object.
        indirect: dative object. Without an accusative object (helfen), it is the English object.
        predicate: after a form of "sein".
        place: where, or with ``direction`` where to.
        direction: whether ``place`` is a goal (accusative) and not a location (dative).
        companion: with whom ("mit" and dative).
        price: price in euros, 0 for none.
        time: when.
        modal: before the infinitive.
        negated: with "nicht". The objects must then be definite.
    """

    subject: Phrase
    verb: Verb
    tense: str = "present"
    direct: Phrase | None = None
    indirect: Phrase | None = None
    predicate: Predicate | None = None
    place: Place | None = None
    direction: bool = False
    companion: Phrase | None = None
    price: int = 0
    time: Time | None = None
    modal: Modal | None = None
    negated: bool = False


@dataclasses.dataclass(frozen=True)
class Statement:
    """A main clause with the verb second. With ``time_first`` the time stands before the verb.

    ``reply`` is ``yes``, ``no`` or empty.
    """

    clause: Clause
    time_first: bool = False
    reply: str = ""


@dataclasses.dataclass(frozen=True)
class Question:
    """A question to be answered by yes or no."""

    clause: Clause


@dataclasses.dataclass(frozen=True)
class WhereQuestion:
    """A question for the place of something."""

    subject: Phrase


@dataclasses.dataclass(frozen=True)
class Existence:
    """There is something somewhere: the German place stands first."""

    place: Place
    verb: Verb
    subject: Phrase


@dataclasses.dataclass(frozen=True)
class Complex:
    """A main clause and a subordinate one, whose German verb stands last.

    ``conjunction`` is ``because``, ``although`` or ``that``.
    """

    main: Clause
    conjunction: str
    subordinate: Clause
    subordinate_first: bool = False


@dataclasses.dataclass(frozen=True)
class Coordination:
    """Two main clauses joined by ``and`` or ``but``."""

    first: Clause
    conjunction: str
    second: Clause


@dataclasses.dataclass(frozen=True)
class RelativeStatement:
    """A statement on a thing that a relative clause identifies.

    ``relative`` is the clause in which the thing is the direct object. Its ``direct`` is the
    phrase that the relative pronoun replaces. ``main`` has the thing as its subject.
    """

    main: Clause
    relative: Clause


@dataclasses.dataclass(frozen=True)
class Command:
    """A request to give somebody something."""

    listener: Entity
    verb: Verb
    indirect: Phrase
    direct: Phrase


@dataclasses.dataclass(frozen=True)
class Greeting:
    """A fixed expression (German, English), with ``{}`` for the name of the listener."""

    words: tuple[str, str]
    listener: Entity


Sentence = (
    Statement
    | Question
    | WhereQuestion
    | Existence
    | Complex
    | Coordination
    | RelativeStatement
    | Command
    | Greeting
)


def phrases_in(part: Any) -> list[Phrase]:
    """Return all phrases of a sentence, in the order of the fields that hold them."""
    if isinstance(part, Phrase):
        return [part]
    phrases = []
    if dataclasses.is_dataclass(part):
        for field in dataclasses.fields(part):
            phrases.extend(phrases_in(getattr(part, field.name)))
    return phrases


def with_pronouns_of(part: Any, entity: Entity, other: Entity) -> Any:
    """Return the sentence with the pronouns of ``entity`` as if they meant ``other``.

    Its nouns do not change, so that the result is a sentence with a mistaken antecedent.
    Possessives ("its colour") change with the pronouns.
    """
    if isinstance(part, Phrase):
        changes: dict[str, Entity] = {}
        if part.form == "pronoun" and part.entity == entity:
            changes["entity"] = other
        if part.owner == entity:
            changes["owner"] = other
        return dataclasses.replace(part, **changes)
    if isinstance(part, Entity):
        return other if part == entity else part
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        return dataclasses.replace(
            part,
            **{
                field.name: with_pronouns_of(getattr(part, field.name), entity, other)
                for field in dataclasses.fields(part)
            },
        )
    return part
