"""Translate raw text, one sentence a line.

  relu-nmt-interactive --path checkpoints/checkpoint_best.safetensors < text.de > text.en

Every line is translated on its own and gives one line. An empty line gives an empty one.
relu-nmt-translate-document joins the lines of documents.

--nbest N gives N lines of number, score and text, best first: D-0, D-0, D-1... --format fairseq
gives all of fairseq's lines (grep ^H): S- source, H- score and translation as tokens, D- score and
translation as text, P- score of each token. These scores are log-probabilities in base 2. The
scores of --format json are in nats (1 nat is 1.44 in base 2).
"""

from typing import ClassVar

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.cli.generate import NEED_REFERENCES, ModelOptions, TermOptions
from relu_nmt.config import READ, Files, group, option, settings
from relu_nmt.config.shared import no_progress_bar_option
from relu_nmt.data.data_folder import data_option
from relu_nmt.errors import ConfigError
from relu_nmt.translation.search.config import GenerationConfig


@settings
class TranslateLinesSettings(TermOptions):
    """All settings of :func:`relu_nmt.recipes.translate_text.translate_lines`."""

    data: str | None = data_option(
        None, "data folder; not needed, as the checkpoint has everything"
    )
    no_progress_bar: bool = no_progress_bar_option()
    input: str = option("-", "file to translate; - is standard input", files=READ)
    buffer_size: int = option(
        0, "translate at most N lines together; 0: all that have arrived", least=0
    )
    format: str = option(
        "text",
        "text; fairseq: its lines, scores in base 2; json: objects, scores in nats",
        choices=("text", "fairseq", "json"),
    )
    attention_pictures: str | None = option(
        None,
        "draw the cross-attention of each line as NUMBER.svg in this new folder",
        metavar="DIR",
        files=Files(written=True, names=r"\d+\.svg"),
    )
    model: ModelOptions = group("model", ModelOptions)
    search: GenerationConfig = group("search", GenerationConfig)
    refused: ClassVar = NEED_REFERENCES

    def check(self) -> None:
        """Refuse settings that are not printed, or cannot force terms."""
        self.search.resolved()
        if self.constraints:
            self.search.check_terms()
        if self.search.print_alignment is not None and self.format == "text":
            raise ConfigError(
                "--print-alignment does nothing with --format text; it needs --format fairseq or "
                "json"
            )


main = RecipeCommand(
    "relu-nmt-interactive",
    __doc__,
    TranslateLinesSettings,
    "translate_text.translate_lines",
    most_used="path input beam nbest lenpen prefixes format int8",
)

if __name__ == "__main__":
    raise SystemExit(main())
