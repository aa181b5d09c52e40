"""What each study compares: variants, which are flags of relu-nmt-vision-train, in two settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Variant:
    """What is trained once a seed.

    Args:
        flags: of relu-nmt-vision-train, those in which it differs.
        model: which of the setting's models it is.
        published: the paper's top-1 on ImageNet-1k in percent, and of which model.
    """

    flags: str
    model: str = "ViT"
    published: str = ""


@dataclass(frozen=True)
class Setting:
    """How all variants are trained.

    Args:
        models: flags by the name of a model.
        flags: of all.
        updates: of a training; None if a recipe's epochs say it.
        valid_fraction: share of the training images that is held out for the curves.
    """

    models: Mapping[str, str]
    flags: str
    updates: int | None = None
    valid_fraction: float = 0.02


@dataclass(frozen=True)
class Study:
    """A question, and the trainings that answer it.

    Args:
        title: of the report.
        question: in a sentence or two.
        source: paper and its tables or figures.
        variants: by the names that the report has.
        settings: ``small`` and ``paper``.
        baselines: by the name of a model, the variant that its others are compared with.
    """

    title: str
    question: str
    source: str
    variants: Mapping[str, Variant]
    settings: Mapping[str, Setting]
    baselines: Mapping[str, str] = field(default_factory=lambda: {"ViT": "softmax"})


_SMALL = "--image-size 32 --patch-size 8"
_COMPARISON = Study(
    "Attentions of the vision papers, one recipe",
    "Do the papers' replacements of softmax learn as well as softmax in the same ViT, and SimA as "
    "well as cross-covariance attention in XCiT? Are the unscaled forms worse, as the papers say?",
    "Wortsman et al. 2023; Saratchandran et al. 2024, Tables 1 and 2; Koohpayegani and "
    "Pirsiavash 2024, Table 1",
    {
        "softmax": Variant("--attention softmax", published="79.8 (DeiT-S), 81.5 (DeiT-B)"),
        "relu/L": Variant("--attention pointwise:h=relu,alpha=1"),
        "relu unscaled": Variant("--attention pointwise:h=relu,alpha=0"),
        "x^3 fixed": Variant("--attention polynomial:scale=fixed", published="81.4 (DeiT-B)"),
        "x^3 dynamic": Variant("--attention polynomial:scale=dynamic", published="81.6 (DeiT-B)"),
        "x^3 unscaled": Variant("--attention polynomial:scale=none", published="78.5 (DeiT-B)"),
        "SimA": Variant("--attention sima", published="79.8 (DeiT-S)"),
        "XCiT XCA": Variant("--attention xca", "XCiT", "82.0 (XCiT-S12/16)"),
        "XCiT SimA": Variant(
            "--attention sima --class-attention sima", "XCiT", "82.1 (XCiT-S12/16)"
        ),
    },
    {
        "small": Setting(
            {"ViT": f"--arch vit_ti {_SMALL}", "XCiT": f"--arch xcit_nano_12 {_SMALL}"},
            "--batch-size 64 --lr 1e-3 --clip-norm 1.0",
            updates=500,
        ),
        "paper": Setting(
            {"ViT": "--arch deit_s --recipe deit", "XCiT": "--arch xcit_small_12 --recipe xcit"},
            "--batch-size 256 --bf16 --num-workers 8",
            valid_fraction=0.01,
        ),
    },
    {"ViT": "softmax", "XCiT": "XCiT XCA"},
)
STUDIES = {"comparison": _COMPARISON}
