"""Settings of documents: how many tokens of a document a model reads at once."""

from dataclasses import dataclass

from relu_nmt.config import like, option, settings
from relu_nmt.errors import ConfigError

SINGLE_SENTENCES = 1  # the limit that stands for single sentences of any length


@settings
class DocumentConfig:
    """Settings that join consecutive sentences of a document."""

    max_doc_tokens: int | None = option(
        None, f"join sentences of a document up to N tokens ({SINGLE_SENTENCES}: do not)", least=1
    )
    doc_mixture: tuple[int, ...] = option(
        (), "train on several such lengths at once, as 1,128,512", metavar="N,N,...", least=1
    )
    sentence_separator: bool = option(False, "end each sentence of both sides with <sep>")

    def check(self) -> None:
        """Compare the settings with each other."""
        if self.sentence_separator and not self.active:
            raise ConfigError(
                "--sentence-separator is for documents: give --max-doc-tokens or --doc-mixture "
                f"too (--max-doc-tokens {SINGLE_SENTENCES} for single sentences)"
            )

    @property
    def active(self) -> bool:
        """True if a limit is given."""
        return self.max_doc_tokens is not None or bool(self.doc_mixture)

    @property
    def training_lengths(self) -> tuple[int, ...]:
        """The limits of training in tokens. Each gets an equal share."""
        if self.doc_mixture or self.max_doc_tokens is None:
            return self.doc_mixture
        return (self.max_doc_tokens,)

    @property
    def longest_in_training(self) -> int:
        """The largest limit of training in tokens. 1 stands for single sentences."""
        return max(self.training_lengths, default=SINGLE_SENTENCES)

    @property
    def validation_length(self) -> int:
        """The limit of validation in tokens, by default the longest of training."""
        assert self.active
        return self.max_doc_tokens or max(self.doc_mixture)

    def check_fits(self, max_tokens: int | None) -> None:
        """Refuse lengths above ``max_tokens`` of a training batch. None is no limit."""
        longest = self.longest_in_training
        if max_tokens is not None and longest > max_tokens:
            flag = "--doc-mixture" if self.doc_mixture else "--max-doc-tokens"
            raise ConfigError(
                f"{flag} {longest} is more than --max-tokens {max_tokens}: such a group does not "
                f"fit into a batch; raise --max-tokens to {longest} or more"
            )


@settings
class WindowOptions:
    """Size of the parts of a document that are translated at once."""

    max_doc_tokens: int | None = like(
        DocumentConfig,
        "max_doc_tokens",
        help="join lines of a document up to N source tokens (default: as in training)",
    )
    window_overlap: int = option(
        0, "sentences before a window to give as context", metavar="SENTENCES", least=0
    )

    def check(self) -> None:
        """Compare overlap and limit."""
        if self.window_overlap and self.max_doc_tokens == SINGLE_SENTENCES:
            raise ConfigError(
                f"--window-overlap {self.window_overlap}: --max-doc-tokens {SINGLE_SENTENCES} "
                "translates single sentences, without context; give more tokens"
            )

    def windows(self, trained: int, repair: bool = True) -> "WindowConfig":
        """Return the division of documents, by default into groups of ``trained`` tokens."""
        return WindowConfig(self.max_doc_tokens or trained, self.window_overlap, repair)


@dataclass(frozen=True)
class WindowConfig:
    """Division of documents for decoding. Single sentences cannot overlap (ConfigError)."""

    max_doc_tokens: int = SINGLE_SENTENCES  # most tokens of a window with its context
    window_overlap: int = 0  # number of sentences before a window that it gets as context
    # Translate a window once more, in halves, if its translation cannot be cut into sentences.
    repair: bool = False

    def __post_init__(self) -> None:
        WindowOptions(self.max_doc_tokens, self.window_overlap)  # checks the numbers
