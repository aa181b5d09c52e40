"""Settings of the search, under fairseq's names, and of the windows of documents."""

import math

from relu_nmt.config import like, option, settings
from relu_nmt.config.files import READ
from relu_nmt.config.shared import CommonOptions
from relu_nmt.data.groups import SINGLE_SENTENCES, DocumentConfig
from relu_nmt.errors import ConfigError

STOP_RULES = ("ahead", "full", "exact")
LENGTH_PENALTY_FORMS = ("power", "gnmt")
SEARCHED = ("score_reference", False)
"""What options of the search need: that there is one."""


@settings
class SearchOptions:
    """How translations are searched for, but for the longest output."""

    batch_size: int | None = like(CommonOptions, "batch_size")
    beam: int = option(5, "beam size; 1 is greedy search", least=1, metavar="K", needs=SEARCHED)
    nbest: int = option(
        1, "number of hypotheses to output for each sentence", least=1, metavar="N", needs=SEARCHED
    )
    lenpen: float = option(
        1.0,
        "length penalty: below 1 favours short outputs, above 1 long ones",
        least=-5,
        most=5,  # with more, scores of very long outputs have no room in float32
        needs=("unnormalized", False),
        metavar="L",
    )
    lenpen_form: str = option(
        "power",
        "score s of T tokens: power is s/T^lenpen (fairseq), gnmt s/((5+T)/6)^lenpen",
        choices=LENGTH_PENALTY_FORMS,
        needs=("unnormalized", False),
    )
    unnormalized: bool = option(False, "compare hypotheses by s itself, whatever their length")
    unkpen: float = option(
        0.0,
        "taken from the log-probability of <unk>; below 0 gives more of them, inf forbids it but "
        "in a forced prefix",
        above=-math.inf,
        most=math.inf,
        metavar="U",
        needs=SEARCHED,
    )
    min_len: int = option(
        1, "fewest output tokens before the end symbol", least=0, metavar="N", needs=SEARCHED
    )
    no_repeat_ngram_size: int = option(
        0,
        "no n-gram of this size twice in a hypothesis; 0 allows all",
        least=0,
        metavar="N",
        needs=SEARCHED,
    )
    free_sentence_count: bool = option(
        False,
        "let a translation have more or fewer sentences than its source. By default models trained "
        "with --sentence-separator may end it only behind the last of as many, and the longest "
        "output grows if need be",
        needs=SEARCHED,
    )
    stop_rule: str = option(
        "ahead",
        "when K hypotheses have ended, stop at once (full, as fairseq) or when no open one scores "
        "better so far (ahead); exact: stop when none ever can, which took 3.5 times as long as "
        "full and translated worse (BLEU 34.35, not 35.68). A beam of 1 stops at once",
        choices=STOP_RULES,
        constants={"--no-early-stop": "exact"},
        needs=SEARCHED,
    )
    beam_threshold: float | None = option(
        None,
        "give up a hypothesis when its log-probability is more than so many nats below that of the "
        "best continuation of its sentence, which leaves less to compute, and perhaps fewer "
        "hypotheses to print; with 1.5, BLEU was the same. By default none is given up",
        above=0,
        metavar="NATS",
        needs=[SEARCHED, ("sampling", False)],
    )
    sampling: bool = option(
        False, "draw K hypotheses from the model instead of beam search", needs=SEARCHED
    )
    sampling_topk: int = option(
        -1, "draw from the k likeliest tokens; -1 from all", least=-1, needs="sampling", metavar="K"
    )
    sampling_topp: float = option(
        -1.0,
        "draw from the fewest tokens whose probabilities sum to p; -1 from all",
        least=-1,
        most=1,
        needs="sampling",
        metavar="P",
    )
    temperature: float = option(
        1.0, "divides the logits; below 1 is sharper", above=0, metavar="T", needs=SEARCHED
    )
    diverse_beam_groups: int = option(
        -1,
        "number of groups of diverse beam search; -1 is plain beam search",
        least=-1,
        metavar="N",
        needs=SEARCHED,
    )
    diverse_beam_strength: float = option(
        0.5,
        "penalty for a token for each earlier group that chose it",
        needs="diverse_beam_groups",
        metavar="S",
    )
    prefix_size: int = option(
        0, "begin with so many tokens of the reference", least=0, metavar="N", needs=SEARCHED
    )
    score_reference: bool = option(False, "do not search, score the reference")
    replace_unk: str | None = option(
        None,
        "replace <unk> by the source word it attends to, or by that word's entry in FILE (lines "
        "'source target')",
        metavar="FILE",
        bare="",
        needs=SEARCHED,
        files=READ,
    )
    print_alignment: str | None = option(
        None,
        "also give the source position that each output token attends to most",
        choices=("hard",),
        bare="hard",
        needs=SEARCHED,
    )
    seed: int = like(
        CommonOptions,
        "seed",
        1,
        "seed of the draws, for each sentence by its number",
        needs="sampling",
    )
    workers: int = option(
        1,
        "processes that translate, by one thread each; 0: as many as there would be threads",
        least=0,
        most=1024,
        metavar="N",
    )
    max_tokens: int | None = like(
        CommonOptions,
        "max_tokens",
        None,
        "most source tokens in a batch, padding included; without this and --batch-size, what "
        "suits the device (12000 at most)",
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

    @property
    def not_for_terms(self) -> str:
        """The flag of a search that cannot force terms; empty for plain beam search."""
        given = {
            "--sampling": self.sampling,
            "--diverse-beam-groups": self.diverse_beam_groups > 1,
            "--beam-threshold": self.beam_threshold is not None,
        }
        return next((flag for flag, is_given in given.items() if is_given), "")

    def check_terms(self) -> None:
        """See that terms can be forced.

        Raises:
            ConfigError: it is not plain beam search.
        """
        if flag := self.not_for_terms:
            raise ConfigError(f"{flag}: terms can be forced in plain beam search; leave it out")

    @property
    def wants_alignment(self) -> bool:
        """Return whether hypotheses need their alignment."""
        return self.print_alignment is not None or self.replace_unk is not None


@settings
class GenerationConfig(SearchOptions):
    """How translations are searched for; the defaults are fairseq's.

    A finished hypothesis with T tokens (the end symbol included) and total log-probability s
    scores s / T**lenpen. Length limits are those of each sentence's own source, so the result
    does not depend on what else is in the batch.

    Raises:
        ConfigError: a value out of range, or settings that contradict each other.
    """

    max_len_a: float = option(
        0.0,
        "longest output: a * (source tokens) + b tokens",
        least=0,
        most=10**6,
        metavar="A",
        needs=SEARCHED,
    )
    max_len_b: int = option(
        200, "longest output: a * (source tokens) + b tokens", least=0, metavar="B", needs=SEARCHED
    )

    def check(self) -> None:
        """Compare the settings with each other."""
        super().check()
        if self.max_len_a == 0 and self.max_len_b < self.min_len:
            raise ConfigError(
                f"--min-len {self.min_len} is more than --max-len-b {self.max_len_b} allows"
            )


@settings
class DocumentGenerationConfig(GenerationConfig):
    """The same where documents are translated: the longest output grows with the source."""

    max_len_a: float = like(GenerationConfig, "max_len_a", 1.5)
    max_len_b: int = like(GenerationConfig, "max_len_b", 50)


@settings
class CommandSearch(GenerationConfig):
    """The same in a command, whose process is nobody else's, so that it can be forked."""

    workers: int = like(
        GenerationConfig,
        "workers",
        0,
        "processes that translate, by one thread each: on a CPU they do not wait for each other as "
        "threads do. 0, the default: as many as there would be threads (one a core, or "
        "OMP_NUM_THREADS) where there are sentences for several; 1: threads",
    )


@settings
class CommandDocumentSearch(DocumentGenerationConfig):
    """:class:`CommandSearch` where documents are translated."""

    workers: int = like(CommandSearch, "workers", 0)


@settings
class WindowConfig:
    """How documents are divided for decoding.

    Raises:
        ConfigError: a number out of range, or an overlap of single sentences.
    """

    max_doc_tokens: int = like(
        DocumentConfig,
        "max_doc_tokens",
        SINGLE_SENTENCES,
        "most tokens of a window, context and its one </s> included; "
        f"{SINGLE_SENTENCES}: single sentences",
    )
    window_overlap: int = option(
        0,
        "give the N sentences before as context, within --max-doc-tokens, to the sentences that "
        "are translated: the source of each window begins with theirs, its translation is made to "
        "begin with what they were translated to, which no score counts. For documents longer than "
        "the model was trained on; needs a model trained with --sentence-separator",
        metavar="SENTENCES",
        least=0,
    )
    repair: bool = option(
        False,
        "translate a window again in halves, and these in halves, as long as its translation "
        "cannot be cut into its sentences or reached the longest output",
    )

    def check(self) -> None:
        """Compare overlap and limit."""
        if self.window_overlap and self.max_doc_tokens == SINGLE_SENTENCES:
            raise ConfigError(
                f"--window-overlap {self.window_overlap}: --max-doc-tokens {SINGLE_SENTENCES} "
                "translates single sentences, without context; give more tokens"
            )
