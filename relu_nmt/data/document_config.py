"""Settings of training on documents: how long the groups of sentences are."""

from dataclasses import dataclass

from relu_nmt.config import option
from relu_nmt.data.document_groups import SINGLE_SENTENCES
from relu_nmt.errors import ConfigError


def parse_lengths(text: str) -> tuple[int, ...]:
    """Return the limits that ``1,128,512`` lists.

    Raises:
        ValueError: not a list of numbers.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"expected numbers with commas such as 1,128,512, not {text!r}") from None


@dataclass(frozen=True)
class DocumentConfig:
    """Whether and how consecutive sentences of a document are joined.

    Raises:
        ConfigError: a limit below 1, or separators without groups.

    Example:
        >>> config = DocumentConfig(doc_mixture=(1, 128, 512))
        >>> config.active, config.training_lengths, config.validation_length
        (True, (1, 128, 512), 512)
    """

    max_doc_tokens: int | None = option(
        None,
        "join consecutive sentences of a document while both sides have at most N tokens, </s> "
        f"included; {SINGLE_SENTENCES}: single sentences. With --doc-mixture, the N of validation",
        metavar="N",
    )
    doc_mixture: tuple[int, ...] = option(
        (),
        "train on several such lengths at once, as 1,128,512: in every epoch each of them gets an "
        "equal share of the sentences, dealt out document by document (a number given twice gets "
        "two shares); short groups help long ones to be learnt",
        metavar="N,N,...",
        parse=parse_lengths,
    )
    sentence_separator: bool = option(
        False,
        "end each sentence of both sides with <sep>, so that translated documents can be cut into "
        "sentences again; works on any data folder",
    )

    def __post_init__(self) -> None:
        if self.max_doc_tokens is not None and self.max_doc_tokens < 1:
            raise ConfigError(f"--max-doc-tokens {self.max_doc_tokens}: expected 1 or more")
        if any(length < 1 for length in self.doc_mixture):
            lengths = ",".join(map(str, self.doc_mixture))
            raise ConfigError(f"--doc-mixture {lengths}: expected numbers of 1 or more")
        if self.sentence_separator and not self.active:
            raise ConfigError(
                "--sentence-separator is for documents: give --max-doc-tokens or --doc-mixture "
                f"too (--max-doc-tokens {SINGLE_SENTENCES} for single sentences)"
            )

    @property
    def active(self) -> bool:
        """Whether documents are wanted at all."""
        return self.max_doc_tokens is not None or bool(self.doc_mixture)

    @property
    def training_lengths(self) -> tuple[int, ...]:
        """The limits to train with, in tokens; each gets an equal share."""
        if self.doc_mixture or self.max_doc_tokens is None:
            return self.doc_mixture
        return (self.max_doc_tokens,)

    @property
    def validation_length(self) -> int:
        """The limit to validate with, in tokens: the longest unless given."""
        assert self.active
        return self.max_doc_tokens or max(self.doc_mixture)

    def check_fits(self, max_tokens: int | None) -> None:
        """Check that every group fits into a training batch.

        Args:
            max_tokens: limit of a batch in tokens; None is no limit.

        Raises:
            ConfigError: one of the lengths is larger.
        """
        longest = max(self.training_lengths, default=0)
        if max_tokens is not None and longest > max_tokens:
            flag = "--doc-mixture" if self.doc_mixture else "--max-doc-tokens"
            raise ConfigError(
                f"{flag} {longest} is more than --max-tokens {max_tokens}: such a group does not "
                f"fit into a batch; raise --max-tokens to {longest} or more"
            )
