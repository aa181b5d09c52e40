"""What relu-nmt-generate and relu-nmt-interactive have in common: which model, and how to print."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relu_nmt.attention.config import BACKEND_HELP
from relu_nmt.config import option
from relu_nmt.errors import ConfigError

if TYPE_CHECKING:
    from relu_nmt.corpus.translation import TranslationTask
    from relu_nmt.decoding.config import GenerationConfig
    from relu_nmt.tokenization.pipeline import TextPipeline
    from relu_nmt.translator import Translation, Translator


@dataclass(frozen=True)
class ModelOptions:
    """Which model to translate with, and what its text looks like.

    Raises:
        ConfigError: no model, or both 16-bit formats.
    """

    path: str = option("", "checkpoint; several with colons (a:b) are an ensemble", metavar="FILE")
    source_lang: str | None = option(
        None, "source language; by default the model's", flags=("-s",), metavar="SRC"
    )
    target_lang: str | None = option(
        None, "target language; by default the model's", flags=("-t",), metavar="TGT"
    )
    task: str = option("translation", "what the model does", choices=("translation",))
    post_process: str | None = option(
        None,
        "show sentences with subwords joined. Data that came split (fairseq's folders) needs to "
        "be told how: @@ (also without a value), sentencepiece, wordpiece, letter, _EOW",
        flags=("--remove-bpe",),
        metavar="SYMBOL",
        bare="@@ ",
    )
    tokenizer: str | None = option(
        None,
        "how data that came tokenised is to be detokenised",
        choices=("moses", "space", "none"),
    )
    cpu: bool = option(False, "use the CPU even if there is a GPU")
    fp16: bool = option(False, "compute in float16; needs a GPU")
    bf16: bool = option(False, "compute in bfloat16; also on the CPU")
    attention_backend: str = option("auto", BACKEND_HELP)

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError("--path: give the checkpoint to translate with")
        if self.fp16 and self.bf16:
            raise ConfigError("--fp16 and --bf16 exclude each other")


def load_translator(options: ModelOptions, data: str | None) -> Translator:
    """Return the translator that the options describe.

    Args:
        options: the typed flags.
        data: a data folder, whose dictionaries must be the model's.

    Raises:
        ReluNmtError: a checkpoint, the folder or a flag does not fit.
    """
    import torch

    from relu_nmt.translator import Translator

    device = "cuda" if torch.cuda.is_available() and not options.cpu else "cpu"
    if options.fp16 and device == "cpu":
        raise ConfigError("--fp16 needs a GPU; on the CPU use --bf16 or neither")
    dtype = torch.float16 if options.fp16 else torch.bfloat16 if options.bf16 else None
    translator = Translator.from_checkpoint(options.path, device, dtype, options.attention_backend)
    translator.task = _adapted_task(translator.task, options, data)
    return translator


def _adapted_task(
    task: TranslationTask, options: ModelOptions, data: str | None
) -> TranslationTask:
    for side in ("source", "target"):
        asked, own = getattr(options, f"{side}_lang"), getattr(task, f"{side}_lang")
        if asked is not None and asked != own:
            raise ConfigError(f"--{side}-lang {asked}: the checkpoint's is {own}")
    if data is not None:
        task = task.at_folder(data)
    # Where the text was split here, it is joined anyway; the flag only says how to show it.
    symbol = options.post_process if task.target_text.keeps_text else None
    return task.with_post_processing(symbol, options.tokenizer)


def refuse_references(config: GenerationConfig) -> None:
    """Refuse settings that mean nothing for plain text.

    Raises:
        ConfigError: the search needs references.
    """
    if config.score_reference or config.prefix_size:
        raise ConfigError(
            "--score-reference and --prefix-size need references; use relu-nmt-generate"
        )


class LineFormat:
    """fairseq's output lines.

    Args:
        task: for the way from tokens to text.
        join_subwords: show sentences with subwords joined.
        print_alignment: also give alignments.
    """

    def __init__(self, task: TranslationTask, join_subwords: bool, print_alignment: bool) -> None:
        self._task = task
        self._join_subwords = join_subwords
        self._print_alignment = print_alignment

    def source(self, number: int, tokens: list[str]) -> str:
        """Return the ``S-`` line."""
        return f"S-{number}\t{self._shown(tokens, self._task.source_text)}"

    def target(self, number: int, tokens: list[str]) -> str:
        """Return the ``T-`` line."""
        return f"T-{number}\t{self._shown(tokens, self._task.target_text)}"

    def hypothesis(self, number: int, translation: Translation) -> list[str]:
        """Return the ``H-``, ``D-``, ``P-`` and ``A-`` lines; scores are in base 2."""
        score = translation.score / math.log(2)
        by_position = translation.hypothesis.positional_scores / math.log(2)
        lines = [
            f"H-{number}\t{score}\t{self._shown(translation.tokens, self._task.target_text)}",
            f"D-{number}\t{score}\t{translation.text}",
            f"P-{number}\t{' '.join(f'{value:.4f}' for value in by_position)}",
        ]
        alignment = translation.hypothesis.alignment
        if self._print_alignment and alignment is not None:
            # The end symbol, last, is aligned to nothing of interest.
            pairs = " ".join(f"{source}-{i}" for i, source in enumerate(alignment[:-1]))
            lines.append(f"A-{number}\t{pairs}")
        return lines

    def _shown(self, tokens: list[str], pipeline: TextPipeline) -> str:
        return " ".join(pipeline.join_words(tokens) if self._join_subwords else tokens)
