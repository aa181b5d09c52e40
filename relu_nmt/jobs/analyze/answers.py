"""Answers to the questions of an analysis: sentences made of its numbers.

They claim no more than the numbers show. A difference whose interval contains 0 is no difference,
and answers say if the sentences are few. The intervals hold 95% of resamples of the sentences.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from relu_nmt.applications.weight_statistics import Record, Records
from relu_nmt.drawing.pages import number
from relu_nmt.evaluation.significance import (
    SegmentStatistics,
    resampled_scores,
    resamples,
    resampling_bounds,
)
from relu_nmt.modules.config import SLOTS

FEW = 100  # fewer sentences or groups than this are few
DEAD = 0.99  # a head is dead if so many of its rows are null
WEAK = 0.01  # a head is weak if it adds less than this fraction of the variance of the states
NEGLIGIBLE = 0.02  # in bits per token: a smaller rise of the loss does not count
MOST_SEGMENTS = 10_000  # most sentences or groups to resample one by one
MAJORITY = 0.5  # a head looks at a place that has more than this share of its weight
MOST_NAMES = 6  # up to this many heads are named, more are counted
SPREAD = "spread"
SIDES = {"encoder": "in the encoder", "decoder": "in the decoder", "cross": "in cross-attention"}


class Answer(NamedTuple):
    """A question, and its answer in sentences, the most important first."""

    question: str
    sentences: list[str]


class Interval(NamedTuple):
    """A value, and the ends of its interval."""

    value: float
    low: float
    high: float

    def contains_zero(self, decimals: int) -> bool:
        """Return whether the interval contains 0, with the ends as they are printed."""
        return round(self.low, decimals) <= 0 <= round(self.high, decimals)

    def text(self, decimals: int, signed: bool = False) -> str:
        """Return the value with its interval in brackets.

        Example:
            >>> Interval(-0.5, -0.75, -0.25).text(2)
            '−0.50 (−0.75 to −0.25)'
        """
        value, low, high = (number(part, decimals, signed) for part in self)
        return f"{value} ({low} to {high})"


@dataclass(frozen=True)
class Losses:
    """The losses of N sentences or groups: bits, and the tokens that have them, both [N]."""

    bits: np.ndarray
    tokens: np.ndarray

    def joined(self, first: Sequence[int]) -> "Losses":
        """Return the losses of groups of sentences that begin at these indices."""
        return Losses(np.add.reduceat(self.bits, first), np.add.reduceat(self.tokens, first))

    def resampled(self) -> np.ndarray:
        """Return the bits per token of the sentences, then of each resample."""
        # Draw blocks of neighboring sentences if counts of single ones would need much memory.
        if len(self.bits) > MOST_SEGMENTS:
            size = -(-len(self.bits) // MOST_SEGMENTS)
            return self.joined(range(0, len(self.bits), size)).resampled()
        times = np.concatenate([np.ones((1, len(self.bits)), np.int64), resamples(len(self.bits))])
        return (times @ self.bits) / np.maximum(1, times @ self.tokens)


def interval(values: np.ndarray) -> Interval:
    """Return the first value, with the interval of the further values, which are of resamples."""
    return Interval(float(values[0]), *resampling_bounds(values[1:]))


# ------------------------------------------------------------------- quality


def which_translates_better(
    losses: Mapping[str, Losses],
    bleu: Mapping[str, SegmentStatistics],
    bleu_of_training: Mapping[str, float],
    unit: str,
) -> Answer:
    """Compare models by the loss of the references, and by the BLEU of training if known."""
    question = "Which model translates better?"
    if len(losses) == 1:
        question = "How well does it translate?"
    resampled = {name: of_model.resampled() for name, of_model in losses.items()}
    count = len(next(iter(losses.values())).bits)
    where = f"the same {count:,} {unit}" if len(losses) > 1 else f"{count:,} {unit}"
    sentences = _compared("loss", "bits per token", resampled, -1, 3)
    sentences[-1] = f"{sentences[-1][:-1]}, on {where}."
    if bleu:
        scores = {}
        for name, translations in bleu.items():
            resampled_bleu = resampled_scores([translations])[0]
            scores[name] = np.append(translations.score(), resampled_bleu)
        sentences += _compared("BLEU", "BLEU", scores, 1, 1)
    elif bleu_of_training:
        values = [f"{name} {number(value, 1)}" for name, value in bleu_of_training.items()]
        sentences.append(f"Last BLEU of validation, without interval: {', '.join(values)}.")
    if count < FEW:
        sentences.append(f"{count:,} {unit} are few: others may give another answer.")
    if len(losses) > 1:
        sentences.append("Other seeds of the trainings are not in the intervals.")
    return Answer(question, sentences)


def _compared(
    measure: str, unit: str, resampled: Mapping[str, np.ndarray], sign: int, decimals: int
) -> list[str]:
    """Compare resampled values [1 + samples], the best model by ``sign`` with all other models."""
    best = max(resampled, key=lambda name: sign * resampled[name][0])
    worse: list[str] = []
    equal: list[str] = []
    for name, of_model in resampled.items():
        if name != best:
            lead = interval(sign * (resampled[best] - of_model))
            text = f"{name}, by {lead.text(decimals)} {unit}"
            if lead.contains_zero(decimals):
                equal.append(text)
            else:
                worse.append(text)
    sentences = []
    if worse:
        sentences.append(f"{best} is better in {measure} than {'; than '.join(worse)}.")
    if equal:
        equals = "; from ".join(equal)
        sentences.append(f"In {measure} {best} cannot be told apart from {equals}.")
    values = [f"{name} {interval(of_model).text(decimals)}" for name, of_model in resampled.items()]
    title = f"{measure[0].upper()}{measure[1:]}"
    sentences.append(f"{title} with 95% intervals: {'; '.join(values)}.")
    return sentences


def does_context_count(together: Mapping[str, Losses], alone: Mapping[str, Losses]) -> Answer:
    """Compare the losses of the same sentences, read in groups and one by one."""
    sentences = []
    for name, in_group in together.items():
        difference = interval(in_group.resampled() - alone[name].resampled())
        text = f"{difference.text(3, signed=True)} bits per token"
        if difference.contains_zero(3):
            sentences.append(f"{name}: it cannot be told; the loss changes by {text}.")
        elif difference.value < 0:
            sentences.append(f"{name}: yes, it changes the loss by {text}.")
        else:
            sentences.append(f"{name}: it harms, and changes the loss by {text}.")
    sentences.append("Compared with the same sentences one by one, without the ends of sentences.")
    return Answer("Does the context count?", sentences)


# ------------------------------------------------------------------- heads and weights


def where_heads_look(series: Mapping[str, Records]) -> Answer:
    """Count the heads of each slot by the place with most of their weight."""
    sentences = []
    for name, records in series.items():
        slots = []
        for slot in SLOTS:
            by_place: dict[str, list[str]] = {}
            for record in _heads(records, slot):
                by_place.setdefault(place_of(record), []).append(head_name(record))
            if by_place:
                places = sorted(by_place.items(), key=lambda place: place[0] == SPREAD)
                slots.append(f"{SIDES[slot]} {', '.join(map(_counted, places))}")
        sentences.append(f"{name}: {'; '.join(slots)}.")
    sentences.append(
        "A head looks where more than half of its weight is, else it is spread. Neighbors are up "
        "to two tokens away. In brackets: layer.head."
    )
    return Answer("Where do the heads look?", sentences)


def place_of(record: Record) -> str:
    """Return the place with more than half of the weight of a head, or ``SPREAD``."""
    near = record.get("diagonal", 0.0) + record.get("neighbors", 0.0)
    own_place = "at the diagonal" if record["slot"] == "cross" else "at the token itself"
    if record["slot"] == "decoder":
        own_place = "at the last token"
    places = {
        "dead": record.get("null_fraction", 0.0) * MAJORITY / DEAD,
        own_place: record.get("diagonal", 0.0),
        "at neighbors": near,
        "at ends of sentences": record.get("ends", 0.0),
        "at the first token": record.get("first", 0.0),
        "at punctuation": record.get("punctuation", 0.0),
    }
    for place, share in places.items():
        if share > MAJORITY:
            return place
    return SPREAD


def how_many_zeros(series: Mapping[str, Records]) -> Answer:
    """Return the shares of weights that are exactly zero, by slot."""
    sentences = []
    for name, records in series.items():
        shares = []
        for record in records:
            if record["layer"] == "mean":
                share = record["zero_fraction"]
                text = f"{number(100 * share, 1)}%" if share else "none"
                shares.append(f"{SIDES[record['slot']]} {text}")
        sentences.append(f"{name}: {', '.join(shares)}.")
    return Answer("How many weights are exactly zero?", sentences)


def which_heads_could_go(
    records: Mapping[str, Records], losses: Mapping[str, Losses], removals: Mapping[str, "Removal"]
) -> Answer:
    """Name dead heads, and weak heads with the loss without them, by model."""
    sentences = []
    for name, of_model in records.items():
        dead = dead_heads(of_model)
        texts = ["no head is dead"]
        if dead:
            texts = [f"dead: {named(dead)}"]
        if name in removals:
            texts.append(_without(removals[name], losses[name]))
        elif not weak_heads(of_model):
            texts.append(f"none adds less than {WEAK:.0%} to the states")
        sentences.append(f"{name}: {'; '.join(texts)}.")
    return Answer("Which heads are dead, or could go?", sentences)


class Removal(NamedTuple):
    """Names of weak heads, and the losses without all of them."""

    heads: Sequence[str]
    losses: Losses

    def is_harmless(self, of_all: Losses) -> bool:
        """Return True if the loss rises at most negligibly above ``of_all``, the whole model's."""
        return self.change(of_all).high <= NEGLIGIBLE

    def change(self, of_all: Losses) -> Interval:
        """Return the change of the loss of the whole model in bits per token."""
        return interval(self.losses.resampled() - of_all.resampled())


def _without(removal: Removal, of_all: Losses) -> str:
    change = f"the loss changes by {removal.change(of_all).text(3, signed=True)} bits per token"
    heads = named(removal.heads)
    if removal.is_harmless(of_all):
        return f"{heads} could go, without which {change}"
    if len(removal.heads) == 1:
        return f"none could go: even without {heads}, the weakest, {change}"
    return f"it is unknown whether any could go: without {heads} {change}"


def dead_heads(records: Records) -> list[str]:
    """Return the names of heads that give nearly no query any weight."""
    heads: dict[str, bool] = {}
    for record in _heads(records):
        # A head may have two records, one for the sentence and one for the document.
        is_null = record.get("null_fraction", 0.0) >= DEAD
        heads[head_name(record)] = is_null and heads.get(head_name(record), True)
    return [name for name, is_dead in heads.items() if is_dead]


def weak_heads(records: Records) -> list[str]:
    """Return the names of heads that add little to the states, the weakest first."""
    added = dict.fromkeys(dead_heads(records), 0.0)
    for record in _heads(records):
        variance = record.get("added_variance")
        if variance is not None and variance < WEAK:
            added.setdefault(head_name(record), variance)
    return sorted(added, key=lambda name: added[name])


def head_name(record: Record) -> str:
    """Return the place of a head as ``--places`` has it."""
    return f"{record['slot']}.{record['layer']}.{record['head']}"


def named(heads: Sequence[str]) -> str:
    """Return the names of some heads, or the number of many."""
    return ", ".join(heads) if len(heads) <= MOST_NAMES else f"{len(heads)} heads"


def _counted(place: tuple[str, list[str]]) -> str:
    name, heads = place
    if name == SPREAD or len(heads) > MOST_NAMES:
        return f"{len(heads)} {name}"
    return f"{len(heads)} {name} ({', '.join(head.partition('.')[2] for head in heads)})"


def _heads(records: Records, slot: str | None = None) -> list[Record]:
    """Return the records of single heads, of all slots or of one."""
    return [r for r in records if r["head"] != "mean" and slot in (None, r["slot"])]
