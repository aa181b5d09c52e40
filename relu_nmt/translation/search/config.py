"""Settings of the search, under fairseq's names."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from relu_nmt.config import MOST_SIZE, READ, checked_by, from_flat, option, settings
from relu_nmt.config.shared import batch_size_option, max_tokens_option, seed_option
from relu_nmt.errors import ConfigError
from relu_nmt.translation.search import scorers, step_scores

SENTENCE_LENGTHS = (0.0, 200)
"""Defaults of ``max_len_a`` and ``max_len_b`` for sentences, as in fairseq."""
DOCUMENT_LENGTHS = (1.5, 50)  # defaults for documents, whose translations grow with the source
SEARCHED = ("score_reference", False)  # ``needs`` of options that only a search uses
PRINTED = ("quiet", False)
"""``needs`` of options for printed translations, in commands that have ``--quiet``."""
MOST_BEAMS = 100_000
"""Limit far above any sensible value. It refuses a typing error before memory is full."""
_searched = partial(option, needs=SEARCHED)


@settings
class GenerationConfig:
    """Settings of the search. The defaults are fairseq's.

    The length limit of each sentence depends on its own source only, so the result does not depend
    on the other sentences of the batch. Options that are None depend on the use:
    :meth:`resolved` sets them.
    """

    batch_size: int | None = batch_size_option()
    beam: int = _searched(5, "beam size; 1 is greedy search", least=1, most=MOST_BEAMS, metavar="K")
    nbest: int = option(
        1,
        "hypotheses to output for each sentence",
        least=1,
        most=MOST_BEAMS,
        needs=[SEARCHED, PRINTED],
    )
    scorer: str = option(
        "length",
        "score that ranks hypotheses: length, coverage:beta=B or your own",
        parse=checked_by(scorers.check),
        metavar="NAME",
    )
    step_score: str | None = _searched(
        None,
        "your own bonus or penalty of each token",
        parse=checked_by(step_scores.check),
        metavar="NAME",
    )
    lenpen: float = option(
        1.0,
        "length penalty: below 1 favors short outputs, above 1 long ones",
        least=-5,
        most=5,  # with more, the scores of very long outputs overflow float32
        needs=("unnormalized", False),
        metavar="L",
    )
    lenpen_form: str = option(
        "power",
        "score of T tokens: power is s/T^lenpen, gnmt s/((5+T)/6)^lenpen",
        choices=("power", "gnmt"),
        needs=("unnormalized", False),
    )
    unnormalized: bool = option(False, "rank hypotheses by s, without a length penalty")
    unkpen: float = _searched(
        0.0,
        "subtract this from the log-probability of <unk>; inf forbids it",
        above=-math.inf,
        most=math.inf,
        metavar="U",
    )
    min_len: int = _searched(
        1, "fewest output tokens before the end symbol", least=0, most=MOST_SIZE
    )
    no_repeat_ngram_size: int = _searched(
        0, "forbid an n-gram of this size to occur twice; 0 allows all", least=0, most=MOST_SIZE
    )
    free_sentence_count: bool = _searched(
        False, "a translation may have another number of sentences than its source"
    )
    stop_rule: str = _searched(
        "ahead",
        "stop at K ended hypotheses (full), if no open one leads (ahead) or can win (exact)",
        choices=("ahead", "full", "exact"),
        constants={"--no-early-stop": "exact"},
    )
    beam_threshold: float | None = option(
        None,
        "drop hypotheses this many nats behind the best: faster",
        above=0,
        metavar="NATS",
        needs=[SEARCHED, ("sampling", False)],
    )
    sampling: bool = _searched(False, "draw K hypotheses from the model instead of beam search")
    sampling_topk: int = option(
        -1,
        "draw from the k likeliest tokens (-1: from all)",
        least=-1,
        needs="sampling",
        metavar="K",
    )
    sampling_topp: float = option(
        -1.0,
        "draw from the likeliest tokens with this total probability (-1: all)",
        least=-1,
        most=1,
        needs="sampling",
        metavar="P",
    )
    temperature: float = _searched(
        1.0, "divides the logits; below 1 is sharper", above=0, metavar="T"
    )
    diverse_beam_groups: int = _searched(
        -1, "groups of diverse beam search; -1: plain beam search", least=-1, most=MOST_BEAMS
    )
    diverse_beam_strength: float = option(
        0.5,
        "penalty for a token for each earlier group that chose it",
        needs="diverse_beam_groups",
        metavar="S",
    )
    prefix_size: int = _searched(
        0, "begin with so many tokens of the reference", least=0, most=MOST_SIZE
    )
    score_reference: bool = option(False, "do not search, score the reference")
    replace_unk: str | None = _searched(
        None,
        "replace <unk> by its source word, or by that word's entry in FILE",
        bare="",
        files=READ,
    )
    print_alignment: str | None = option(
        None,
        "also give the source position that each token attends to most",
        choices=("hard",),
        bare="hard",
        needs=[SEARCHED, PRINTED],
    )
    seed: int = seed_option(help="seed of the draws, with each sentence's number", needs="sampling")
    workers: int | None = option(
        None,
        "processes that translate on a CPU, 0: one per thread (default: 0, server: 1)",
        least=0,
        most=1024,
    )
    max_tokens: int | None = max_tokens_option(
        help="most source tokens in a batch, padding counted (default: by device)"
    )
    max_len_a: float | None = _searched(
        None,
        "longest output: a * source + b "
        f"(default: {SENTENCE_LENGTHS[0]:g}, of documents {DOCUMENT_LENGTHS[0]})",
        least=0,
        most=10**6,
        metavar="A",
    )
    max_len_b: int | None = _searched(
        None,
        "longest output: a * source + b "
        f"(default: {SENTENCE_LENGTHS[1]}, of documents {DOCUMENT_LENGTHS[1]})",
        least=0,
        most=MOST_SIZE,
        metavar="B",
    )

    def check(self) -> None:
        """Compare the settings with each other."""
        if self.nbest > self.beam:
            raise ConfigError(f"--nbest {self.nbest} is more than --beam {self.beam}")
        if self.sampling_topk == 0 or -1 < self.sampling_topp <= 0:
            raise ConfigError(
                f"--sampling-topk {self.sampling_topk} --sampling-topp {self.sampling_topp}: "
                "expected k >= 1 and 0 < p <= 1, or -1 for all tokens"
            )
        if self.beam_threshold is not None and self.beam == 1:
            raise ConfigError(
                f"--beam-threshold {self.beam_threshold:g} does nothing with --beam 1; leave it out"
            )
        groups = self.diverse_beam_groups
        if groups > 0 and (self.beam % groups or self.sampling):
            raise ConfigError(
                f"--diverse-beam-groups {groups}: --beam {self.beam} must be a multiple of it, "
                "and --sampling off"
            )
        # With a = 0 the longest output does not grow with the source.
        if self.max_len_a == 0 and self.max_len_b is not None and self.max_len_b < self.min_len:
            raise ConfigError(
                f"--min-len {self.min_len} is more than --max-len-b {self.max_len_b} allows"
            )

    def resolved(self, documents: bool = False, workers: int = 1) -> "GenerationConfig":
        """Return the settings with a value for every option. Documents may have longer outputs."""
        defaults: dict[str, Any] = {"workers": workers}
        if not self.score_reference:  # a reference has its length
            a, b = DOCUMENT_LENGTHS if documents else SENTENCE_LENGTHS
            defaults |= {"max_len_a": a, "max_len_b": b}
        missing = {name: value for name, value in defaults.items() if getattr(self, name) is None}
        return replace(self, **missing)

    @property
    def longest_output(self) -> tuple[float, int]:
        """The factor a and the constant b of the longest output, a * (source tokens) + b."""
        a, b = SENTENCE_LENGTHS
        a = a if self.max_len_a is None else self.max_len_a
        return a, b if self.max_len_b is None else self.max_len_b

    def describe_longest_output(self, max_positions: int | None) -> str:
        """Return the longest output of these settings and the models as words for a warning."""
        a, b = self.longest_output
        longest = "1 token" if b == 1 else f"{b} tokens"
        if a:
            longest = f"{a:g} * source + {longest}"
        if max_positions is not None:
            longest += f", and {max_positions - 1} at most"
        return longest

    def length_limits(
        self, source_lengths: np.ndarray, max_positions: int | None = None
    ) -> np.ndarray:
        """Return the most tokens before the end symbol for each sentence, int64 [B].

        ``max_positions`` is the longest target of the models (None: any length). It counts the end
        symbol, and so do ``source_lengths`` [B].

        Raises:
            ConfigError: the models cannot write ``--min-len`` tokens.
        """
        a, b = self.longest_output
        # Scale with the source, but always leave room for the fewest tokens.
        limits = np.maximum((a * source_lengths + b).astype(np.int64), self.min_len)
        if max_positions is None:
            return limits
        if self.min_len >= max_positions:
            raise ConfigError(
                f"--min-len {self.min_len}: the model can write {max_positions - 1} tokens and "
                "the end symbol at most"
            )
        # Leave one position of the model for the end symbol.
        return np.minimum(limits, max_positions - 1)

    def check_terms(self) -> None:
        """Check that the search can force terms (ConfigError: it is not plain beam search)."""
        flag = self.not_for_terms
        if flag:
            raise ConfigError(f"{flag}: terms can be forced in plain beam search; leave it out")

    @property
    def not_for_terms(self) -> str:
        """The flag of a search that cannot force terms. Empty for plain beam search."""
        if self.sampling:
            return "--sampling"
        if self.diverse_beam_groups > 1:
            return "--diverse-beam-groups"
        return "" if self.beam_threshold is None else "--beam-threshold"

    @property
    def wants_alignment(self) -> bool:
        """Return whether hypotheses need their alignment."""
        return self.print_alignment is not None or self.replace_unk is not None


def generation_config(config: GenerationConfig | None, fields: dict[str, Any]) -> GenerationConfig:
    """Return ``config``, or the settings with these fields (ConfigError: both are given)."""
    if config is None:
        return from_flat(GenerationConfig, fields)
    if fields:
        raise ConfigError(f"give either config or settings ({', '.join(fields)}), not both")
    return config
