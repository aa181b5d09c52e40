"""Documents in which two people talk. Every sentence is a turn."""

import dataclasses

from bilingual_grammar import clauses as c
from bilingual_grammar import lexicon as lex
from bilingual_grammar.story import Story, rests

_GREETINGS = {
    "du": (("Hallo, {}!", "Hello, {}!"), ("Guten Morgen, {}!", "Good morning, {}!")),
    "Sie": (("Guten Tag, {}!", "Hello, {}!"), ("Guten Morgen, {}!", "Good morning, {}!")),
}
_FAREWELLS = {
    "du": (("Bis morgen, {}!", "See you tomorrow, {}!"), ("Tschüss, {}!", "Goodbye, {}!")),
    "Sie": (("Bis morgen, {}!", "See you tomorrow, {}!"), ("Auf Wiedersehen, {}!", "Goodbye, {}!")),
}


class Dialogue:
    """Two people talk, both with "du" or both with "Sie". Every sentence is a turn."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.address = story.lots.choice(("du", "Sie"))
        self.i = story.speaker("ich")
        self.you = story.speaker(self.address)
        self.thing = story.thing(lex.PORTABLE)

    def talk(self, exchanges: int) -> None:
        """Greet, talk of some things, and say goodbye."""
        listener = self._listener()
        self.story.say(c.Greeting(self.story.lots.choice(_GREETINGS[self.address]), listener))
        exchange_kinds = (
            self._ask_for_lost,
            self._ask_to_lend,
            self._ask_to_see,
            self._offer,
            self._ask_about,
            self._chat,
        )
        for _ in range(exchanges):
            self.story.lots.choice(exchange_kinds)()
        self.story.say(c.Greeting(self.story.lots.choice(_FAREWELLS[self.address]), listener))

    def _listener(self) -> c.Entity:
        if self.address == "du":
            return self.story.person()
        kind = self.story.lots.choice(("man", "woman"))
        person = self.story.person(self.story.lots.choice(lex.SURNAMES), kind)
        return dataclasses.replace(person, title="Herr" if kind == "man" else "Frau")

    def _it(self) -> c.Phrase:
        return c.Phrase(self.thing, "pronoun")

    def _new(self, form: str, owner: c.Entity | None = None) -> c.Phrase:
        self.thing = self.story.thing((*lex.PORTABLE, *lex.MACHINES))
        adjective = self.story.choice_or_none(lex.ADJECTIVES, 0.4)
        return c.Phrase(self.thing, form, adjective, owner)

    def _is(self, reply: str = "") -> None:
        words = self.story.lots.choice((lex.ADJECTIVES, lex.STATES))
        predicate = c.Predicate(self.story.lots.choice(words))
        negated = self.story.chance(0.2)
        clause = c.Clause(self._it(), lex.BE, predicate=predicate, negated=negated)
        self.story.say(c.Statement(clause, reply=reply))

    def _ask_for_lost(self) -> None:
        owner = self.story.lots.choice((self.i, self.you))
        verb = self.story.lots.choice([verb for verb in lex.TREAT if verb.english[0] == "see"])
        lost = self._new("possessive", owner.entity)
        self.story.say(c.Question(c.Clause(self.you, verb, "past", lost)))
        location = self.story.lots.choice(lex.PLACES)
        if self.story.chance(0.5):
            where = c.Clause(self._it(), rests(self.thing), place=location)
            self.story.say(c.Statement(where, reply="yes"))
        else:
            denial = c.Clause(self.i, verb, "past", self._it(), negated=True)
            self.story.say(c.Statement(denial, reply="no"))
            self.story.say(c.WhereQuestion(self._it()))
            where = c.Clause(self._it(), rests(self.thing), place=location)
            self.story.say(c.Statement(where))
        if self.story.chance(0.5):
            self._is()

    def _ask_to_lend(self) -> None:
        verb = self.story.lots.choice(lex.GIVE)
        request = self._new("possessive", self.you.entity)
        modal = lex.CAN
        self.story.say(
            c.Question(c.Clause(self.you, verb, "present", request, self.i, modal=modal))
        )
        if self.story.chance(0.5):
            need = self.story.lots.choice([v for v in lex.TREAT if v.english[0] in ("need", "use")])
            time = self.story.lots.choice(lex.PRESENT_TIMES)
            clause = c.Clause(self.i, need, "present", self._it(), time=time)
            self.story.say(c.Statement(clause, reply="no"))
        else:
            self._is("yes")
            tense_time = self.story.lots.choice(lex.FUTURE_TIMES)
            clause = c.Clause(self.i, verb, "future", self._it(), self.you, time=tense_time)
            self.story.say(c.Statement(clause, time_first=self.story.chance(0.4)))

    def _ask_to_see(self) -> None:
        bought = self._new("indefinite")
        time = self.story.lots.choice(lex.PAST_TIMES)
        got = self.story.lots.choice(lex.GET)
        self.story.say(c.Question(c.Clause(self.you, got, "past", bought, time=time)))
        self._is("yes")
        verb = self.story.lots.choice(lex.GIVE)
        self.story.say(c.Command(self.you.entity, verb, self.i, self._it()))

    def _offer(self) -> None:
        time = self.story.lots.choice(lex.PAST_TIMES)
        got = self.story.lots.choice(lex.GET)
        clause = c.Clause(self.i, got, "past", self._new("indefinite"), time=time)
        self.story.say(c.Statement(clause, time_first=self.story.chance(0.4)))
        self._is()
        modal = self.story.lots.choice((lex.CAN, lex.WANT))
        use = self.story.lots.choice(lex.TREAT)
        self.story.say(c.Question(c.Clause(self.you, use, "present", self._it(), modal=modal)))

    def _ask_about(self) -> None:
        possession = self._new("possessive", self.you.entity)
        predicate = c.Predicate(self.story.lots.choice(lex.STATES))
        possession = dataclasses.replace(possession, adjective=None)
        self.story.say(c.Question(c.Clause(possession, lex.BE, predicate=predicate)))
        self._is(self.story.lots.choice(("yes", "no")))
        treat = self.story.lots.choice((lex.REPAIR, *lex.TREAT))
        modal = self.story.lots.choice(lex.MODALS)
        who = self.story.lots.choice((self.i, self.you))
        self.story.say(c.Statement(c.Clause(who, treat, "present", self._it(), modal=modal)))

    def _chat(self) -> None:
        feeling = self.story.lots.choice(lex.FEELINGS)
        self.story.say(c.Question(c.Clause(self.you, lex.BE, predicate=c.Predicate(feeling))))
        answer = c.Clause(self.i, lex.BE, predicate=c.Predicate(feeling, "very"))
        self.story.say(c.Statement(answer, reply="yes"))
        past = self.story.lots.choice(lex.PAST_TIMES)
        acted = c.Clause(self.i, self.story.lots.choice(lex.ACT), "past", time=past)
        self.story.say(c.Statement(acted, time_first=self.story.chance(0.4)))
        future = self.story.lots.choice(lex.FUTURE_TIMES)
        relative = c.Phrase(self.story.people(lex.RELATIVES), "possessive", owner=self.you.entity)
        meet = self.story.lots.choice(lex.MEET_ACCUSATIVE)
        self.story.say(c.Question(c.Clause(self.you, meet, "future", relative, time=future)))
