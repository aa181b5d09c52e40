"""Settings of the scores, under fairseq's names."""

from relu_nmt.config import option, settings


@settings
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
    sacrebleu: bool = option(
        False,
        "as in fairseq: --scoring sacrebleu",
        needs=("scoring", "sacrebleu"),
    )
    sacrebleu_tokenizer: str | None = option(
        None,
        "sacreBLEU's tokeniser (13a; none for data that came tokenised)",
        needs=("scoring", "sacrebleu"),
        metavar="NAME",
    )
    sacrebleu_lowercase: bool | None = option(
        None, "ignore case; by default where the data was lower-cased"
    )
