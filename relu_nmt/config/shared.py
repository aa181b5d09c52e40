"""Options that several components and commands have, each declared once."""

from dataclasses import dataclass
from functools import partial

from relu_nmt.config.classes import settings
from relu_nmt.config.fields import checked_by, option
from relu_nmt.errors import ConfigError

RIGHT_PADDING = "padding stands on the right, and changes no translation"
VALIDATES = ("disable_validation", False)  # the condition of options that only a validation reads
AUTO_TOKENS = 10**15  # the value of --max-tokens auto: the memory is the limit
_valid = partial(option, None, least=1, needs=VALIDATES)

# Options of several commands, which change their defaults or help texts by keywords.
_lang_option = partial(option, default=None)
source_lang_option = partial(
    _lang_option, help="source language (default: as binarized)", flags=("-s",), metavar="SRC"
)
target_lang_option = partial(
    _lang_option, help="target language (default: as binarized)", flags=("-t",), metavar="TGT"
)
subset_option = partial(
    option, default="test", help="split to translate: test, valid, train...", metavar="SPLIT"
)
max_tokens_option = partial(
    option,
    default=None,
    least=1,
    help="most tokens in a batch: sentences x longest side, padding counted",
)
batch_size_option = partial(
    option, default=None, help="most sentences in a batch", least=1, flags=("--max-sentences",)
)
seed_option = partial(
    option,
    default=1,
    help="seed of weights, dropout and order of the data",
    least=0,
    most=2**63 - 1,
)
no_progress_bar_option = partial(option, default=False, help="no progress bar on a terminal")
split_sentences_option = partial(
    option,
    default=None,
    help="translate sentences of a line one by one (default: if trained on single sentences)",
)


def _no_left_padding(text: str) -> str:
    if text.lower() not in ("false", "0", "no"):
        raise ValueError(f"expected False, or leave it out: {RIGHT_PADDING}")
    return "False"


@settings
class FairseqOptions:
    """Flags of fairseq that have one possible value here."""

    task: str = option(
        "translation", "as in fairseq", choices=("translation",), no_effect="there is one task"
    )
    dataset_impl: str = option(
        "mmap", "as in fairseq", choices=("mmap",), no_effect="there is one format of data"
    )
    left_pad_source: str = option(
        "False", "as in fairseq", parse=_no_left_padding, metavar="False", no_effect=RIGHT_PADDING
    )
    left_pad_target: str = option(
        "False", "as in fairseq", parse=_no_left_padding, metavar="False", no_effect=RIGHT_PADDING
    )


@dataclass(frozen=True)
class BatchLimits:
    """The limits of a batch. None is no limit."""

    max_tokens: int | None = None  # longest sentence of the batch (either side) x sentences
    max_sentences: int | None = None
    multiple: int = 1  # larger batches have a multiple of this number of sentences


def _tokens_or_auto(text: str) -> str | int:
    """Return AUTO_TOKENS for ``auto``, and any other text as it is."""
    if text == "auto":
        return AUTO_TOKENS
    if not text.isdecimal():
        raise ValueError(f"'{text}' is no number of tokens; expected a whole number, or auto")
    return text


@settings
class BatchingConfig:
    """Limits of a batch, per process and accumulation step, and the size of an update."""

    max_tokens: int | None = max_tokens_option(
        help="most tokens in a batch, longest side x sentences, or auto: as the memory allows",
        metavar="N|auto",
        parse=_tokens_or_auto,
        show=lambda tokens: "auto" if tokens == AUTO_TOKENS else str(tokens),
    )
    update_tokens: int | None = option(
        None,
        "tokens of an update, over all processes. Sets --update-freq",
        least=1,
        needs="max_tokens",
    )
    batch_size: int | None = batch_size_option()
    required_batch_size_multiple: int = option(
        1, "make the size of larger batches a multiple of N", least=1
    )
    max_tokens_valid: int | None = _valid("--max-tokens for validation (default: the same)")
    batch_size_valid: int | None = _valid(
        "--batch-size for validation (default: the same)", flags=("--max-sentences-valid",)
    )
    skip_invalid_size_inputs: bool = option(
        False,
        "skip sentences that are too long, instead of stopping",
        flags=("--skip-invalid-size-inputs-valid-test",),
    )

    def check(self) -> None:
        """Refuse batches without a limit."""
        if self.max_tokens is None and self.batch_size is None:
            raise ConfigError("give --max-tokens or --batch-size (or both): the size of a batch")

    @property
    def training_limits(self) -> BatchLimits:
        """The limits of a training batch."""
        return BatchLimits(self.max_tokens, self.batch_size, self.required_batch_size_multiple)

    @property
    def validation_limits(self) -> BatchLimits:
        """The limits of a validation batch."""
        return BatchLimits(
            self.max_tokens_valid or self.max_tokens, self.batch_size_valid or self.batch_size
        )


@settings
class PrecisionOptions:
    """The device, the dtype and the code of the computation."""

    cpu: bool = option(False, "use the CPU even if there is a GPU")
    bf16: bool = option(False, "compute in bfloat16, also on the CPU")
    fp16: bool = option(
        False,
        "compute in float16 on a CUDA GPU, with weights in 32 bits",
        flags=("--amp", "--memory-efficient-fp16"),
        needs=("bf16", False),
    )
    attention_backend: str = option(
        "auto", "code that computes attention (auto: the fastest)", metavar="NAME", stored=False
    )


def _parameters(text: str) -> dict[str, int | str]:
    """Read ``gpus_per_node=4,slurm_partition=long``."""
    parameters: dict[str, int | str] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not name.isidentifier() or not equals:
            raise ValueError(f"'{part}': expected NAME=VALUE, as gpus_per_node=4")
        parameters[name] = value
        if value.lstrip("-").isdigit():
            parameters[name] = int(value)
    return parameters


@settings
class ClusterOptions:
    """The machines on which the parts of a large job run."""

    cluster: str | None = option(
        None,
        "run the parts as jobs, by submitit: slurm, or local to try it",
        choices=("slurm", "local"),
    )
    cluster_parameters: str | None = option(
        None,
        "resources of a job, by submitit's names: timeout_min=600,cpus_per_task=8",
        needs="cluster",
        metavar="NAME=VALUE,...",
        parse=checked_by(_parameters),
    )

    @property
    def asked_for(self) -> dict[str, int | str]:
        """The parameters by name."""
        if not self.cluster_parameters:
            return {}
        return _parameters(self.cluster_parameters)
