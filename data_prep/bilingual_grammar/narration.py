"""Documents about one person and, one after the other, some of the person's things."""

from collections.abc import Callable

from bilingual_grammar import clauses as c
from bilingual_grammar import lexicon as lex
from bilingual_grammar.story import Story, rests
from bilingual_grammar.words import Time


class Narrator:
    """Writer of a document about one person and, one after the other, some things."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.hero = story.person()
        self.thing = story.thing(lex.THINGS)
        self.hero_is_known = False
        self._followers: tuple[Callable[[], None], ...] = (
            *[self._is_like] * 5,
            self._is_and_is_not,
            self._has_feature,
            *[self._is_somewhere] * 3,
            self._puts_somewhere,
            self._treats,
            self._treats,
            self._must_repair,
            self._gives_to,
            self._sells,
            self._because,
            self._says_that,
            *[self._compares] * 2,
            self._relative,
            self._feels,
            self._acts,
            self._meets,
        )

    def tell(self, num_things: int, sentences: int) -> None:
        """Write up to ``sentences`` sentences about each of ``num_things`` things."""
        for _ in range(num_things):
            self._introduce()
            for _ in range(self.story.lots.randint(2, sentences)):
                self.story.lots.choice(self._followers)()

    # ---- mentions

    def _hero(self) -> c.Phrase:
        """The person: by name at first and sometimes later."""
        if self.hero_is_known and self.story.chance(0.5):
            return c.Phrase(self.hero, "pronoun")
        self.hero_is_known = True
        return c.Phrase(self.hero, "name")

    def _it(self, pronoun: float = 0.75) -> c.Phrase:
        """The thing: mostly a pronoun."""
        form = "pronoun" if self.story.chance(pronoun) else "definite"
        return c.Phrase(self.thing, form)

    def _beside(self, person: c.Phrase) -> c.Phrase:
        """The thing as subject beside a clause about the person. A pronoun must not fit both."""
        return self._it(0.0 if person.entity.gender == self.thing.gender else 0.8)

    def _either(self) -> c.Phrase:
        """Return the thing or the person as a subject that fits both.

        A pronoun is never ambiguous. The thing is the subject twice as often as the person, because
        it may be neuter. So "er" and "sie" mean either equally often, and only context decides.
        """
        if self.story.chance(2 / 3):
            return self._beside(c.Phrase(self.hero, "name"))
        is_clear = self.hero.gender != self.thing.gender
        return c.Phrase(self.hero, "pronoun" if is_clear and self.story.chance(0.8) else "name")

    def _relative_of_hero(self) -> c.Phrase:
        return c.Phrase(self.story.people(lex.RELATIVES), "possessive", owner=self.hero)

    def _somebody(self) -> c.Phrase:
        if self.story.chance(0.5):
            return self._relative_of_hero()
        return c.Phrase(self.story.people(lex.STRANGERS), "definite")

    def _time(self, tense: str, probability: float = 0.6) -> Time | None:
        # The German present tense means the future only beside a time.
        if tense == "future":
            return self.story.lots.choice(lex.FUTURE_TIMES)
        times = {"past": lex.PAST_TIMES, "present": lex.PRESENT_TIMES}[tense]
        return self.story.choice_or_none(times, probability)

    def _state(self, clause: c.Clause, of_either: bool = False) -> None:
        """Say the clause, now and then with its time first."""
        time_first = clause.time is not None and self.story.chance(0.4)
        self.story.say(c.Statement(clause, time_first), of_either)

    # ---- a new thing

    def _introduce(self) -> None:
        number = 1
        form = "indefinite"
        if self.story.chance(0.15):
            number = self.story.lots.randint(2, 30)
            form = "numeral"
        self.thing = self.story.thing(lex.THINGS, number)
        adjective = self.story.choice_or_none(lex.ADJECTIVES, 0.6)
        new = c.Phrase(self.thing, form, adjective)
        if self.hero_is_known and self.story.chance(0.3):
            verb = rests(self.thing)
            self.story.say(c.Existence(self.story.lots.choice(lex.ROOMS), verb, new))
            return
        tense = self.story.lots.choice(("past", "past", "future"))
        if self.story.chance(0.3):
            price = self.story.lots.randint(2, 99)
            verb = lex.GET[0]
        else:
            price = 0
            verb = self.story.lots.choice(lex.GET)
        self._state(
            c.Clause(self._hero(), verb, tense, new, price=price, time=self._time(tense, 0.8))
        )

    # ---- sentences about the thing

    def _is_like(self) -> None:
        kinds = (lex.STATES, lex.COLORS, lex.QUALITIES, lex.COMMON_QUALITIES)
        quality = self.story.lots.choice(self.story.lots.choice(kinds))
        degree = ""
        if quality in lex.QUALITIES:
            degree = self.story.lots.choice(("", "very", "too"))
        tense = self.story.lots.choice(("present", "present", "past"))
        is_common = quality in lex.COMMON_QUALITIES
        clause = c.Clause(
            self._either() if is_common else self._it(0.85),
            lex.BE,
            tense,
            predicate=c.Predicate(quality, degree),
            negated=self.story.chance(0.2),
        )
        self.story.say(c.Statement(clause), of_either=is_common)

    def _is_and_is_not(self) -> None:
        color = self.story.lots.choice(lex.COLORS)
        quality = self.story.lots.choice(lex.QUALITIES)
        first = c.Clause(self._it(), lex.BE, predicate=c.Predicate(color))
        second = c.Clause(
            c.Phrase(self.thing, "pronoun"),
            lex.BE,
            predicate=c.Predicate(quality),
            negated=self.story.chance(0.4),
        )
        self.story.say(c.Coordination(first, self.story.lots.choice(("and", "but")), second))

    def _has_feature(self) -> None:
        feature = self.story.thing(lex.FEATURES)
        subject = c.Phrase(feature, "possessive", owner=self.thing)
        predicate = c.Predicate(self.story.lots.choice(lex.FEATURE_QUALITIES))
        self.story.say(c.Statement(c.Clause(subject, lex.BE, predicate=predicate)))

    def _is_somewhere(self) -> None:
        verb = rests(self.thing)
        location = self.story.lots.choice(lex.PLACES)
        time = self._time("present", 0.3)
        self._state(c.Clause(self._either(), verb, place=location, time=time), of_either=True)

    def _puts_somewhere(self) -> None:
        verb = lex.LAY if rests(self.thing) == lex.LIE else lex.PUT_UPRIGHT
        tense = self.story.lots.choice(("past", "present", "future"))
        self._state(
            c.Clause(
                self._hero(),
                verb,
                tense,
                self._it(),
                place=self.story.lots.choice(lex.PLACES),
                direction=True,
                time=self._time(tense),
            )
        )

    def _treats(self) -> None:
        tense = self.story.lots.choice(("past", "past", "present", "future"))
        modal = self.story.choice_or_none(lex.MODALS, 0.3)
        if modal and tense == "future":
            tense = "present"
        self._state(
            c.Clause(
                self._hero() if self.story.chance(0.7) else self._somebody(),
                self.story.lots.choice(lex.TREAT),
                tense,
                self._it(),
                time=self._time(tense),
                modal=modal,
                negated=self.story.chance(0.2),
            )
        )

    def _must_repair(self) -> None:
        verbs = [lex.REPAIR] if self.thing.noun in lex.MACHINES else [lex.LOSE, lex.HIDE]
        tense = self.story.lots.choice(("past", "present"))
        modal = lex.MUST if verbs == [lex.REPAIR] and self.story.chance(0.5) else None
        verb = self.story.lots.choice(verbs)
        self._state(
            c.Clause(self._hero(), verb, tense, self._it(), time=self._time(tense), modal=modal)
        )

    def _gives_to(self) -> None:
        tense = self.story.lots.choice(("past", "present", "future"))
        self._state(
            c.Clause(
                self._hero(),
                self.story.lots.choice(lex.GIVE),
                tense,
                self._it(),
                self._somebody(),
                time=self._time(tense),
            )
        )

    def _sells(self) -> None:
        tense = self.story.lots.choice(("past", "future"))
        verb = self.story.lots.choice([verb for verb in lex.TREAT if verb.english[0] == "sell"])
        price = self.story.lots.randint(2, 99)
        self._state(
            c.Clause(self._hero(), verb, tense, self._it(), price=price, time=self._time(tense))
        )

    def _because(self) -> None:
        tense = self.story.lots.choice(("past", "present"))
        hero = self._hero()
        verb = self.story.lots.choice(lex.TREAT)
        main = c.Clause(hero, verb, tense, self._it(), negated=self.story.chance(0.2))
        quality = self.story.lots.choice(lex.QUALITIES)
        predicate = c.Predicate(quality, self.story.lots.choice(("", "very", "too")))
        reason = c.Clause(c.Phrase(self.thing, "pronoun"), lex.BE, tense, predicate=predicate)
        conjunction = self.story.lots.choice(("because", "although"))
        first = main.direct == c.Phrase(self.thing, "pronoun") and self.story.chance(0.4)
        self.story.say(c.Complex(main, conjunction, reason, first))

    def _says_that(self) -> None:
        somebody = self._somebody() if self.story.chance(0.5) else self._hero()
        main = c.Clause(
            somebody, self.story.lots.choice(lex.SAY), self.story.lots.choice(("past", "present"))
        )
        words = self.story.lots.choice((lex.ADJECTIVES, lex.STATES))
        content = c.Clause(
            self._beside(somebody),
            lex.BE,
            main.tense,
            predicate=c.Predicate(self.story.lots.choice(words)),
        )
        self.story.say(c.Complex(main, "that", content))

    def _compares(self) -> None:
        other = c.Phrase(self.story.thing(lex.THINGS), "indefinite")
        predicate = c.Predicate(self.story.lots.choice(lex.COMMON_QUALITIES), like=other)
        negated = self.story.chance(0.4)
        clause = c.Clause(self._either(), lex.BE, predicate=predicate, negated=negated)
        self.story.say(c.Statement(clause), of_either=True)

    def _relative(self) -> None:
        subject = c.Phrase(self.thing, "definite")
        verb = self.story.lots.choice((*lex.GET, *lex.TREAT))
        relative = c.Clause(self._hero(), verb, "past", subject, time=self._time("past"))
        words = self.story.lots.choice((lex.ADJECTIVES, lex.STATES))
        predicate = c.Predicate(self.story.lots.choice(words))
        self.story.say(
            c.RelativeStatement(c.Clause(subject, lex.BE, predicate=predicate), relative)
        )

    # ---- sentences about the person alone

    def _feels(self) -> None:
        tense = self.story.lots.choice(("past", "present"))
        predicate = c.Predicate(
            self.story.lots.choice(lex.FEELINGS), self.story.lots.choice(("", "very"))
        )
        self._state(
            c.Clause(self._hero(), lex.BE, tense, predicate=predicate, time=self._time(tense, 0.4))
        )

    def _acts(self) -> None:
        tense = self.story.lots.choice(("past", "present", "future"))
        location = self.story.choice_or_none(lex.ROOMS, 0.5)
        verb = self.story.lots.choice(lex.ACT)
        if verb.english[0] in ("arrive", "return"):
            location = None
        companion = self._somebody() if self.story.chance(0.4) else None
        if verb.english[0] == "sleep":
            companion = None
        self._state(
            c.Clause(
                self._hero(),
                verb,
                tense,
                place=location,
                companion=companion,
                time=self._time(tense),
            )
        )

    def _meets(self) -> None:
        tense = self.story.lots.choice(("past", "present", "future"))
        somebody = self._somebody()
        if self.story.chance(0.4):
            verb = self.story.lots.choice(lex.HELP_DATIVE)
            objects = {"indirect": somebody}
        else:
            verb = self.story.lots.choice(lex.MEET_ACCUSATIVE)
            objects = {"direct": somebody}
        self._state(
            c.Clause(
                self._hero(),
                verb,
                tense,
                **objects,
                time=self._time(tense),
                negated=self.story.chance(0.15),
            )
        )
