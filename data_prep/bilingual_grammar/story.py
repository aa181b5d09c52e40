"""A document in the making: its sentences, and their references to earlier sentences.

A noun introduces a thing, and pronouns in later sentences refer to it. So an earlier sentence
decides the gender of a German pronoun, and whether "er" is he or it. In a dialogue the greeting
decides between "du" and "Sie". If a sentence cannot be translated without an earlier one, it gets
a :class:`Reference` with the number of that sentence and the wrong translations.
"""

import dataclasses
import itertools
import random
from collections.abc import Sequence
from typing import TypeVar

from bilingual_grammar import clauses as c
from bilingual_grammar import english, german
from bilingual_grammar import inflection as i
from bilingual_grammar import lexicon as lex
from bilingual_grammar.words import Noun, Verb

Option = TypeVar("Option")
THING = "thing pronoun"
PERSON = "person pronoun"
ADDRESS = "form of address"
_OTHER_ADDRESS = {"du": "Sie", "Sie": "du"}
_KINDS = {"m": "man", "f": "woman", "n": ""}
_GENDERS = {"man": "m", "woman": "f"}
_NAMES = {"man": lex.MEN, "woman": lex.WOMEN}


@dataclasses.dataclass(frozen=True)
class Reference:
    """A sentence that cannot be translated without an earlier one.

    Attributes:
        sentence: its number in the document, from 0.
        antecedent: number of the earlier sentence that decides.
        phenomenon: ``thing pronoun``, ``person pronoun`` or ``form of address``.
        source_language: language in which the sentence is ambiguous, ``en`` or ``de``.
        contrasts: the sentence in the other language as it would read with another antecedent.
            All of them are wrong here.
    """

    sentence: int
    antecedent: int
    phenomenon: str
    source_language: str
    contrasts: tuple[str, ...]

    @property
    def distance(self) -> int:
        """Number of sentences back to the antecedent, at least 1."""
        return self.sentence - self.antecedent


@dataclasses.dataclass(frozen=True)
class StoryDocument:
    """A document: its sentences, (German, English), and their references to earlier ones."""

    pairs: tuple[tuple[str, str], ...]
    references: tuple[Reference, ...]


class Story:
    """The sentences of a document so far, and the place of each mentioned person and thing."""

    def __init__(self, lots: random.Random) -> None:
        self.lots = lots
        self.pairs: list[tuple[str, str]] = []
        self.references: list[Reference] = []
        self._named_at: dict[int, int] = {}
        self._kind_named_at: dict[tuple[str, str], int] = {}
        self._keys = itertools.count()

    # ------------------------------------------------------------------------- entities

    def person(self, name: str = "", kind: str = "") -> c.Entity:
        """Return a person with a name."""
        kind = kind or self.lots.choice(("man", "woman"))
        name = name or self.lots.choice(_NAMES[kind])
        return c.Entity(next(self._keys), _GENDERS[kind], kind, name=name)

    def people(self, nouns: Sequence[Noun]) -> c.Entity:
        """Return a person with a noun (brother, customer)."""
        noun = self.lots.choice(nouns)
        return c.Entity(next(self._keys), noun.gender, _KINDS[noun.gender], noun)

    def speaker(self, word: str) -> c.Phrase:
        """Return the pronoun of a speaker."""
        return c.Phrase(c.Entity(next(self._keys), "m", "man", speaker=word), "pronoun")

    def thing(self, nouns: Sequence[Noun], number: int = 1) -> c.Entity:
        """Return a new thing or several of a kind."""
        noun = self.lots.choice(nouns)
        return c.Entity(next(self._keys), noun.gender, "thing", noun, number=number)

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.lots.random() < probability

    def choice_or_none(self, options: Sequence[Option], probability: float) -> Option | None:
        """Return one of the options with this probability, otherwise None."""
        return self.lots.choice(options) if self.chance(probability) else None

    # ------------------------------------------------------------------------ sentences

    def say(self, sentence: c.Sentence, of_either: bool = False) -> None:
        """Add a sentence and its references to earlier ones.

        Args:
            sentence: the sentence.
            of_either: the sentence fits a person as well as a thing.
        """
        number = len(self.pairs)
        mentions = c.phrases_in(sentence)
        named = {p.entity for p in mentions if p.form != "pronoun"}
        spoken_of = {p.entity for p in mentions if p.form == "pronoun"}
        spoken_of |= {p.owner for p in mentions if p.owner is not None}
        for entity in sorted(spoken_of - named, key=lambda entity: entity.key):
            if entity.speaker in _OTHER_ADDRESS:
                other = dataclasses.replace(entity, speaker=_OTHER_ADDRESS[entity.speaker])
                self._refer(sentence, entity, ADDRESS, "en", [other])
            elif entity.number == 1 and entity.key in self._named_at:
                self._refer_to_named(sentence, entity, of_either)
        self._named_at.update({entity.key: number for entity in named})
        self._kind_named_at.update({(e.kind, e.gender): number for e in named if e.number == 1})
        self.pairs.append((german.sentence(sentence), english.sentence(sentence)))

    def _refer_to_named(self, sentence: c.Sentence, entity: c.Entity, of_either: bool) -> None:
        """Add references for the German gender, and for the English choice of he or it."""
        phenomenon = PERSON
        other_kind = "thing"
        if entity.kind == "thing":
            phenomenon = THING
            other_kind = _KINDS[entity.gender]
            alternatives = [dataclasses.replace(entity, gender=gender) for gender in i.GENDERS]
            self._refer(sentence, entity, THING, "en", alternatives)
        # "er" may be he or it, "sie" she or it. If another person or thing that fits was named
        # since, the German is ambiguous and gets no reference.
        other_at = self._kind_named_at.get((other_kind, entity.gender), -1)
        if of_either and other_kind and other_at < self._named_at[entity.key]:
            other = dataclasses.replace(entity, kind=other_kind)
            self._refer(sentence, entity, phenomenon, "de", [other])

    def _refer(
        self,
        sentence: c.Sentence,
        entity: c.Entity,
        phenomenon: str,
        source_language: str,
        alternatives: Sequence[c.Entity],
    ) -> None:
        """Add a reference with the translations that mean one of ``alternatives``."""
        write = german.sentence if source_language == "en" else english.sentence
        wrong = {write(c.with_pronouns_of(sentence, entity, other)) for other in alternatives}
        wrong -= {write(sentence)}
        # The greeting (sentence 0) decides on the form of address.
        antecedent = self._named_at.get(entity.key, 0)
        number = len(self.pairs)
        if wrong and number:
            self.references.append(
                Reference(number, antecedent, phenomenon, source_language, tuple(sorted(wrong)))
            )

    def document(self) -> StoryDocument:
        """Return the finished document."""
        return StoryDocument(tuple(self.pairs), tuple(self.references))


def rests(entity: c.Entity) -> Verb:
    """Return the verb for being somewhere: small things lie, all others stand."""
    return lex.LIE if entity.noun in lex.PORTABLE else lex.STAND
