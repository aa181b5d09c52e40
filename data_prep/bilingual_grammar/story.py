"""A document in the making: its sentences, and what in them depends on earlier ones.

A thing is introduced with a noun and spoken of with pronouns in the sentences after it, so that
the gender of a German pronoun (and whether "er" is he or it) is decided by an earlier sentence.
In a dialogue the greeting decides between "du" and "Sie". Every such sentence gets a
:class:`Reference` that says what decided, and how it would read if that had been mistaken.
"""

import dataclasses
import itertools
import random
from collections.abc import Sequence

from bilingual_grammar import clauses as c
from bilingual_grammar import english, german
from bilingual_grammar import inflection as i
from bilingual_grammar import lexicon as lex
from bilingual_grammar.words import Noun, Verb

THING, ADDRESS = "thing pronoun", "form of address"


@dataclasses.dataclass(frozen=True)
class Reference:
    """A sentence that cannot be translated without an earlier one.

    Attributes:
        sentence: its number in the document, from 0.
        antecedent: number of the earlier sentence that decides.
        phenomenon: ``thing pronoun`` or ``form of address``.
        source_language: language in which the sentence is ambiguous, ``en`` or ``de``.
        contrasts: the sentence in the other language as it would read with another antecedent;
            all of them are wrong here.
    """

    sentence: int
    antecedent: int
    phenomenon: str
    source_language: str
    contrasts: tuple[str, ...]

    @property
    def distance(self) -> int:
        """How many sentences back the antecedent is; at least 1."""
        return self.sentence - self.antecedent


@dataclasses.dataclass(frozen=True)
class StoryDocument:
    """A document: its sentences, (German, English), and what depends on earlier ones."""

    pairs: tuple[tuple[str, str], ...]
    references: tuple[Reference, ...]


class Story:
    """The sentences of a document so far, and who and what has been mentioned where."""

    def __init__(self, lots: random.Random) -> None:
        self.lots = lots
        self.pairs: list[tuple[str, str]] = []
        self.references: list[Reference] = []
        self._named_at: dict[int, int] = {}
        self._kinds_named: set[str] = set()
        self._keys = itertools.count()

    # ------------------------------------------------------------------------- entities

    def person(self, name: str = "", kind: str = "") -> c.Entity:
        """Return somebody with a name."""
        kind = kind or self.lots.choice(("man", "woman"))
        name = name or self.lots.choice(lex.MEN if kind == "man" else lex.WOMEN)
        return c.Entity(next(self._keys), "m" if kind == "man" else "f", kind, name=name)

    def people(self, nouns: Sequence[Noun]) -> c.Entity:
        """Return somebody who is called by a noun (brother, customer)."""
        noun = self.lots.choice(nouns)
        kind = "man" if noun.gender == "m" else "woman"
        return c.Entity(next(self._keys), noun.gender, kind, noun)

    def speaker(self, word: str) -> c.Phrase:
        """Return the pronoun of one who talks."""
        return c.Phrase(c.Entity(next(self._keys), "m", "man", speaker=word), "pronoun")

    def thing(self, nouns: Sequence[Noun], number: int = 1) -> c.Entity:
        """Return a new thing or several of a kind."""
        noun = self.lots.choice(nouns)
        return c.Entity(next(self._keys), noun.gender, "thing", noun, number=number)

    def chance(self, probability: float) -> bool:
        """Return true as often as ``probability`` says."""
        return self.lots.random() < probability

    # ------------------------------------------------------------------------ sentences

    def say(self, sentence: c.Sentence) -> None:
        """Add a sentence, and the references for what it leaves to earlier ones."""
        number = len(self.pairs)
        mentions = c.phrases_in(sentence)
        named = {p.entity.key for p in mentions if p.form != "pronoun"}
        self._kinds_named |= {p.entity.kind for p in mentions}
        spoken_of = {p.entity for p in mentions if p.form == "pronoun"}
        spoken_of |= {p.owner for p in mentions if p.owner is not None}
        for entity in sorted(spoken_of, key=lambda entity: entity.key):
            is_thing = entity.kind == "thing" and entity.number == 1
            if is_thing and entity.key not in named and entity.key in self._named_at:
                self._refer(sentence, entity, self._named_at[entity.key])
            elif entity.speaker in ("du", "Sie"):
                self._refer_to_listener(sentence, entity)
        self._named_at.update(dict.fromkeys(named, number))
        self.pairs.append((german.sentence(sentence), english.sentence(sentence)))

    def _refer(self, sentence: c.Sentence, entity: c.Entity, antecedent: int) -> None:
        """Note that the gender of a thing decides on its German pronoun."""
        right = german.sentence(sentence), english.sentence(sentence)
        others = [dataclasses.replace(entity, gender=gender) for gender in i.GENDERS]
        others += [dataclasses.replace(entity, kind=kind) for kind in ("man", "woman")]
        changed = [c.with_pronouns_of(sentence, entity, other) for other in others]
        wrong_german = {german.sentence(other) for other in changed} - {right[0]}
        # "er" may be he or it, "sie" she or it; where somebody has been mentioned who could be
        # meant, the German itself leaves it open.
        fits = {{"m": "man", "f": "woman", "n": ""}[entity.gender]} - self._kinds_named
        wrong_english = {
            english.sentence(other)
            for other, e in zip(changed, others, strict=True)
            if e.kind in fits
        } - {right[1]}
        number = len(self.pairs)
        for language, wrong in (("en", wrong_german), ("de", wrong_english)):
            if wrong:
                self.references.append(
                    Reference(number, antecedent, THING, language, tuple(sorted(wrong)))
                )

    def _refer_to_listener(self, sentence: c.Sentence, entity: c.Entity) -> None:
        """Note that the greeting (sentence 0) decides on the form of address."""
        other = dataclasses.replace(entity, speaker="Sie" if entity.speaker == "du" else "du")
        wrong = german.sentence(c.with_pronouns_of(sentence, entity, other))
        if self.pairs and wrong != german.sentence(sentence):
            self.references.append(Reference(len(self.pairs), 0, ADDRESS, "en", (wrong,)))

    def document(self) -> StoryDocument:
        """Return what has been said."""
        return StoryDocument(tuple(self.pairs), tuple(self.references))


def rests(thing: c.Entity) -> Verb:
    """Return the verb for being somewhere: small things lie, all others stand."""
    return lex.LIE if thing.noun in lex.PORTABLE else lex.STAND
