"""Settings of the scores, under fairseq's names."""

from dataclasses import dataclass

from relu_nmt.config import option
from relu_nmt.errors import ConfigError


@dataclass(frozen=True)
class ScoringConfig:
    """How translations of a data folder are compared with its references.

    Raises:
        ConfigError: settings that contradict each other.
    """

    scoring: str = option(
        "sacrebleu",
        "sacrebleu: BLEU of raw text; bleu: BLEU of tokenised text, subwords joined, as "
        "multi-bleu.perl; chrf: chrF2 of raw text",
        choices=("sacrebleu", "bleu", "chrf"),
    )
    sacrebleu: bool = option(False, "as in fairseq; it is --scoring sacrebleu, the default")
    sacrebleu_tokenizer: str | None = option(
        None,
        "sacreBLEU's tokeniser (13a; none for data that came tokenised)",
        metavar="NAME",
    )
    sacrebleu_lowercase: bool | None = option(
        None, "ignore case; by default where the data was lower-cased"
    )

    def __post_init__(self) -> None:
        if self.scoring != "sacrebleu" and (self.sacrebleu or self.sacrebleu_tokenizer):
            raise ConfigError(
                f"--scoring {self.scoring} goes with neither --sacrebleu nor --sacrebleu-tokenizer"
            )
