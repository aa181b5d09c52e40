"""Settings of the scores, under fairseq's names."""

from dataclasses import dataclass

from relu_nmt.config import option


@dataclass(frozen=True)
class ScoringConfig:
    """How translations of a data folder are compared with its references."""

    scoring: str = option(
        "sacrebleu",
        "sacrebleu: BLEU of raw text; bleu: BLEU of tokenised text, subwords joined, as "
        "multi-bleu.perl; chrf: chrF2 of raw text",
        choices=("sacrebleu", "bleu", "chrf"),
    )
    sacrebleu_tokenizer: str | None = option(
        None,
        "sacreBLEU's tokeniser (13a; none for data that came tokenised)",
        metavar="NAME",
    )
    sacrebleu_lowercase: bool | None = option(
        None, "ignore case; by default where the data was lower-cased"
    )
