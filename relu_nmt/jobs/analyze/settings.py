"""Settings of relu-nmt-analyze."""

from functools import partial

from relu_nmt.config import READ, REQUIRED, Files, like, option, settings
from relu_nmt.config.shared import PrecisionOptions, no_progress_bar_option, subset_option
from relu_nmt.data.data_folder import data_option
from relu_nmt.data.document_settings import DocumentConfig
from relu_nmt.errors import ConfigError
from relu_nmt.jobs.translate.settings import ModelOptions
from relu_nmt.modules.config import AttentionPlace

_of_models = partial(option, needs="path")
LAST_LAYERS = ("encoder.-1", "decoder.-1", "cross.-1")


def _places(text: str) -> tuple[str, ...]:
    return tuple(str(AttentionPlace.parse(place)) for place in filter(None, text.split(",")))


@settings
class AnalysisSettings:
    """All settings of :mod:`relu_nmt.jobs.analyze.job`."""

    data: str | None = data_option(None, "data folder")
    path: tuple[str, ...] = option(
        (),
        "checkpoints to show side by side, in this order",
        several=True,
        files=Files(beside=r"results\.json"),
    )
    names: tuple[str, ...] = _of_models(
        (),
        "names of the checkpoints (default: the parts in which their paths differ)",
        metavar="NAME,NAME,...",
    )
    cpu: bool = like(PrecisionOptions, "cpu", False, needs="path")
    bf16: bool = like(ModelOptions, "bf16", False, needs="path")
    fp16: bool = like(PrecisionOptions, "fp16", False, needs=["path", ("bf16", False)])
    no_progress_bar: bool = no_progress_bar_option()
    gen_subset: str = subset_option(help="split to analyze: test, valid...", needs="path")
    max_doc_tokens: int | None = like(
        DocumentConfig,
        "max_doc_tokens",
        None,
        "join sentences of a document up to N tokens (default: single sentences)",
        needs="path",
    )
    sample: int = _of_models(
        200, "number of sentences or groups, evenly spread over the split; 0: all", least=0
    )
    bleu: bool = _of_models(False, "translate the sentences or groups, and compare BLEU, too")
    examples: tuple[int, ...] = _of_models(
        (0,),
        "sentences or groups to draw, by their number in the split, from 0",
        metavar="N,N,...",
        least=0,
    )
    places: tuple[str, ...] = _of_models(
        LAST_LAYERS,
        "layers or heads to draw: SLOT.LAYER[.HEAD], from 0; -1 is the last",
        metavar="PLACE,PLACE,...",
        parse=_places,
    )
    log: tuple[str, ...] = option(
        (), "trainings to draw: their results.json or logs", several=True, files=READ
    )
    output: str = option(
        REQUIRED,
        "page to write, report.html, with its CSV files beside it",
        files=Files(written=True, beside=r"STEM_\w+\.csv"),
    )

    def check(self) -> None:
        """Check that there is something to show, and a name for each checkpoint."""
        paths = self.path
        names = self.names
        if not paths and not self.log:
            raise ConfigError("nothing to analyze: give --path with checkpoints, or --log")
        if paths and self.data is None:
            raise ConfigError("--path needs a data folder, whose sentences the models read")
        if self.data is not None and not paths:
            raise ConfigError(f"data {self.data}: give --path with the checkpoints to analyze")
        if names and len(names) != len(paths):
            raise ConfigError(f"--names: {len(names)} names for {len(paths)} checkpoints")
        if len(set(names)) < len(names):
            raise ConfigError(f"--names {','.join(names)}: give each another name")
