"""The studies: each compares variants, sets of flags of relu-nmt-vision-train, in two settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Variant:
    """A variant: one training for each seed.

    Args:
        flags: its own flags of relu-nmt-vision-train.
        model: name of one of the setting's models.
        published: the paper's top-1 in percent, and the name of the paper's model.
        line: its line in the plot over the study's axis.
        x: its value on the axis; None for a variant outside the axis.
    """

    flags: str
    model: str = "ViT"
    published: str = ""
    line: str = ""
    x: float | None = None


@dataclass(frozen=True)
class Setting:
    """The models and flags of all variants in one setting.

    Args:
        models: flags by the name of a model; variants of other models are not in this setting.
        flags: flags of all variants; ``paper`` has the papers' images per update and learning rate
            with four processes.
        updates: updates of a training; None for the epochs of a recipe.
        valid_fraction: share of the training images held out for the curves.
    """

    models: Mapping[str, str]
    flags: str
    updates: int | None = None
    valid_fraction: float = 0.02


@dataclass(frozen=True)
class Study:
    """A question, and the trainings that answer it.

    Args:
        title: title of the report.
        question: the question in one or two sentences.
        source: paper and its tables or figures.
        variants: variants by their names in the report.
        settings: ``small`` and ``paper``.
        baselines: baseline variant by the name of a model.
        axis: name of a quantity by which the variants differ, if any; the report has plots over it.
        log_axis: whether the axis is logarithmic.
        norms: also measure norms of attention in the last ten checkpoints.
    """

    title: str
    question: str
    source: str
    variants: Mapping[str, Variant]
    settings: Mapping[str, Setting]
    baselines: Mapping[str, str] = field(default_factory=lambda: {"ViT": "softmax"})
    axis: str = ""
    log_axis: bool = False
    norms: bool = False

    def names(self, setting: str) -> tuple[str, ...]:
        """Return the variants of a setting."""
        models = self.settings[setting].models
        return tuple(name for name, variant in self.variants.items() if variant.model in models)


_SMALL = "--image-size 32 --patch-size 8"
_COMPARISON = Study(
    "Attentions of the vision papers, one recipe",
    "Do the papers' replacements of softmax learn as well as softmax in the same ViT, and SimA as "
    "well as cross-covariance attention in XCiT? Are the unscaled forms worse, as the papers say?",
    "Wortsman et al. 2023; Saratchandran et al. 2024, Tables 1 and 2; Koohpayegani and "
    "Pirsiavash 2024, Table 1",
    {
        "softmax": Variant("--attention softmax", published="79.8, DeiT-S; 81.5, DeiT-B"),
        "softmax qk-norm": Variant(
            "--attention softmax:qk_norm=true"
        ),  # the learning rate of relu/L
        "relu/L": Variant("--attention pointwise:h=relu,alpha=1"),
        "relu unscaled": Variant("--attention pointwise:h=relu,alpha=0"),
        "x^3 fixed": Variant("--attention polynomial:scale=fixed", published="81.4, DeiT-B"),
        "x^3 dynamic": Variant("--attention polynomial:scale=dynamic", published="81.6, DeiT-B"),
        "x^3 unscaled": Variant("--attention polynomial:scale=none", published="78.5, DeiT-B"),
        "SimA": Variant("--attention sima", published="79.8, DeiT-S"),
        "XCiT XCA": Variant("--attention xca", "XCiT", "82.0, XCiT-S12/16"),
        "XCiT SimA": Variant(
            "--attention sima --class-attention sima", "XCiT", "82.1, XCiT-S12/16"
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
_SHORT = "--batch-size 64 --lr 1e-3 --clip-norm 1.0 --layers 4"

MAPS = ("relu", "relu2", "gelu", "softplus", "relu6", "sigmoid", "identity")
ALPHAS = (0.0, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)


_NORMED = {"softmax qk-norm": "softmax:qk_norm=true"}


def _alpha(title: str, options: str, softmax: Mapping[str, str]) -> Study:
    """Return the study of the exponent of the length for all maps.

    Args:
        title: second half of the title.
        options: options of all pointwise attentions.
        softmax: specs to compare with by name; the first one is the baseline.
    """
    variants = {name: Variant(f"--attention {spec}") for name, spec in softmax.items()}
    for h in MAPS:
        for alpha in ALPHAS:
            flags = f"--attention pointwise:h={h},alpha={alpha:g},{options}"
            variants[f"{h} / L^{alpha:g}"] = Variant(flags, line=h, x=alpha)
    return Study(
        f"The power of the length, {title}",
        "Maps of the scores h in place of softmax, divided by L^alpha: is alpha near 1 the best "
        "for every h, and identity worse than the others?",
        "Wortsman et al. 2023, Figures 2 to 4",
        variants,
        {
            "small": Setting({"ViT": f"--arch vit_ti {_SMALL}"}, _SHORT, updates=400),
            "paper": Setting(
                {"ViT": "--arch vit_small_bigvision_i21k --recipe bigvision_i21k"},
                # Use the values of the paper's code for S/16; the recipe has those of B/16.
                "--rand-augment-magnitude 0 --mixup 0 --update-freq 2 --bf16 --num-workers 8",
                valid_fraction=0.001,
            ),
        },
        {"ViT": next(iter(softmax))},
        axis="alpha",
    )


_TINY_IMAGENET = "--recipe tiny_imagenet --batch-size 128 --bf16 --num-workers 8"
DIVISORS = (1, 2, 4, 8, 16, 32)


def _patches(arch: str, sides: Mapping[int, str]) -> dict[str, str]:
    """Return the flags of models by their number of patches."""
    return {f"N = {count}": f"{arch} --patch-size {side}" for count, side in sides.items()}


def _scale() -> Study:
    """Return the study of the cube's constant divisor for several numbers of patches."""
    small = _patches("--arch vit_ti --image-size 32", {64: "4", 16: "8", 8: "8x16", 4: "16"})
    # Leave 256 patches to the paper's setting: in the small one they would take too long.
    sides = {256: "4", 64: "8", 16: "16", 8: "16x32", 4: "32"}
    large = _patches("--arch vit_ti --image-size 64", sides)
    variants = {}
    for model in large:
        variants[f"softmax, {model}"] = Variant("--attention softmax", model)
        for k in DIVISORS:
            flags = f"--attention polynomial:scale=fixed,length={k * k}"
            variants[f"x^3/{k}, {model}"] = Variant(flags, model, line=model, x=k)
    return Study(
        "The cube's divisor",
        "Attention weights x^3/k: is the best k near the root of the number of patches N?",
        "Saratchandran et al. 2024, Figure 1",
        variants,
        {
            "small": Setting(small, _SHORT, updates=300),
            "paper": Setting(large, _TINY_IMAGENET),
        },
        {model: f"softmax, {model}" for model in large},
        axis="k",
        log_axis=True,
    )


POWERS = range(1, 7)
_SCALES = ("fixed", "dynamic", "none")
_TABLE_5 = {  # top-1 of softmax, then by power and scale
    "DeiT-B": "81.5 79.4/79.5/77.9 81.5/81.6/78.2 81.4/81.6/78.5 81.5/81.6/78.6 81.4/81.5/78.0",
    "ViT-B": "80.3 78.4/78.7/74.1 80.1/80.3/77.8 80.2/80.3/78.1 80.3/80.3/77.9 80.3/80.3/77.7",
    "Swin-B": "83.5 80.6/80.7/78.3 83.4/83.5/79.8 83.6/83.6/79.9 83.7/83.7/79.9 83.4/83.4/79.4",
    "XCiT-M": "82.7 80.2/80.4/78.1 82.5/82.7/79.4 82.8/82.9/79.5 82.7/82.8/79.6 82.5/82.6/79.5",
}
_CERTAIN_POWERS = (1, 3)


def _table_5(whose: Sequence[str], power: int | None = None, scale: str = "") -> str:
    """Return the published top-1 of some models; None for softmax."""
    found = []
    for name in whose:
        softmax, *powers = _TABLE_5[name].split()
        if power is None:
            found.append(f"{softmax}, {name}")
        elif power <= len(powers):
            mark = "" if power in _CERTAIN_POWERS else "?"
            number = powers[power - 1].split("/")[_SCALES.index(scale)]
            found.append(f"{number}{mark}, {name}")
    return "; ".join(found)


def _degrees() -> Study:
    """Return the study of the power of the scores, with each kind of scale, in three families."""
    # The paper's scale is 1/14 in Swin too, although its windows have 49 patches, not 196.
    models = {  # replaced attention, its polynomial, and the source of the numbers
        "ViT": ("softmax", "polynomial:", "", ("DeiT-B", "ViT-B")),
        "Swin": ("softmax", "polynomial:", "", ()),
        "Swin-B": ("softmax", "polynomial:", ",length=196", ("Swin-B",)),
        "XCiT": ("xca", "xca:kernel=polynomial,", "", ("XCiT-M",)),
    }
    variants = {}
    for model, (softmax, spec, length, whose) in models.items():
        flags = f"--attention {softmax}"
        variants[f"{model} softmax"] = Variant(flags, model, _table_5(whose))
        for scale in _SCALES:
            options = f"scale={scale}" + (length if scale != "none" else "")
            for power in POWERS:
                variants[f"{model} x^{power} {scale}"] = Variant(
                    f"--attention {spec}power={power},{options}",
                    model,
                    _table_5(whose, power, scale),
                    line=f"{model}, scale {scale}",
                    x=power,
                )
    small = "--image-size 32"
    return Study(
        "Degrees of the polynomial",
        "Which powers of the scores learn as well as softmax, and with which scale: fixed "
        "(1 / sqrt(N)), learnt (dynamic), or none? Published numbers with a question mark are of "
        "the likeliest power; those of 5 may be of 6.",
        "Saratchandran et al. 2024, Tables 2 and 5",
        variants,
        {
            "small": Setting(
                {
                    "ViT": f"--arch vit_ti {small} --patch-size 8 --layers 4",
                    "Swin": f"--arch swin_tiny {small} --embed-dim 48 --patch-size 4 "
                    "--window-size 4 --stage-layers 2,2 --stage-heads 3,6",
                    "XCiT": f"--arch xcit_nano_12 {small} --patch-size 8 --layers 4",
                },
                "--batch-size 64 --lr 1e-3 --clip-norm 1.0",
                updates=300,
            ),
            "paper": Setting(
                {
                    "ViT": "--arch deit_b --recipe deit --drop-path 0.1 --eval-crop-ratio 0.875",
                    "Swin-B": "--arch swin_base --recipe swin",
                    "XCiT": "--arch xcit_medium_24 --recipe xcit",
                },
                "--batch-size 128 --update-freq 2 --bf16 --num-workers 8",
                valid_fraction=0.01,
            ),
        },
        {model: f"{model} softmax" for model in models},
        axis="power",
    )


_NORMS = Study(
    "Norms of attention in training",
    "Does a fixed scale keep the Frobenius norms of the cubes, and of their Jacobian, where those "
    "of softmax are, and do they grow without it?",
    "Saratchandran et al. 2024, Table 1, Figures 2, 3, 6 and 7",
    {
        "softmax": Variant("--attention softmax", published="50.26, ViT-Ti on Tiny-ImageNet"),
        "x^3 fixed": Variant("--attention polynomial:scale=fixed", published="50.5 (x^3/16)"),
        "x^3 dynamic": Variant("--attention polynomial:scale=dynamic"),
        "x^3 unscaled": Variant("--attention polynomial:scale=none", published="45.3"),
    },
    {
        "small": Setting(
            {"ViT": f"--arch vit_ti {_SMALL}"},
            "--batch-size 64 --lr 1e-3 --clip-norm 1.0",
            updates=1200,
        ),
        "paper": Setting({"ViT": "--arch vit_ti_p4_64"}, f"{_TINY_IMAGENET} --save-interval 10"),
    },
    norms=True,
)


def _sima() -> Study:
    """Return the study of SimA's parts and of other attentions that are linear in the length."""
    vit = {
        "softmax": ("softmax", "79.8, DeiT-S"),
        "SimA": ("sima", "79.8, DeiT-S"),
        "SimA, l2 norm": ("sima:norm=l2", ""),
        "SimA, no norm": ("sima:norm=none", ""),
        "linear": ("linear", ""),
        "Linformer": ("linformer:length=256,rank=64", "78.2, among models of 13M"),
        "Performer": ("performer", "76.1, among models of 13M"),
        "Nystromformer": ("nystromformer:landmarks=16", "78.6, among models of 13M"),
        "efficient": ("efficient", ""),
        "cosFormer": ("cosformer:grid=true", ""),
        "cosFormer, no weighting": ("cosformer:reweight=false", "76.1"),
    }
    variants = {
        name: Variant(f"--attention {spec}", published=published)
        for name, (spec, published) in vit.items()
    }
    for model, softmax, sima in (("one head", "77.0", "79.4"), ("ReLU", "", "79.6")):
        for name, spec, published in (("softmax", "softmax", softmax), ("SimA", "sima", sima)):
            shown = f"{published}, DeiT-S" if published else ""
            variants[f"{name}, {model}"] = Variant(f"--attention {spec}", f"ViT, {model}", shown)
    # Narrow heads, as in SOFT's paper: for wider ones its kernels are too small.
    narrow = "ViT, heads of 32"
    variants["softmax, heads of 32"] = Variant("--attention softmax", narrow)
    variants["SOFT"] = Variant("--attention soft", narrow, "79.3, among models of 13M")
    variants["SOFT, normalised"] = Variant("--attention soft:normalized=true", narrow)
    xcit = {
        "XCA": ("xca", "softmax", "82.0, XCiT-S12/16"),
        "SimA": ("sima", "sima", "82.1, XCiT-S12/16"),
        "SimA, l2 norm": ("sima:norm=l2", "sima:norm=l2", "79.2, XCiT-S12/16"),
        "SimA, no norm": ("sima:norm=none", "sima:norm=none", "diverges, XCiT-S12/16"),
        "efficient": ("efficient", "softmax", "80.9"),
    }
    for name, (spec, of_class, published) in xcit.items():
        flags = f"--attention {spec} --class-attention {of_class}"
        variants[f"XCiT {name}"] = Variant(flags, "XCiT", published)
    for name in ("XCA", "SimA"):
        spec, of_class, _ = xcit[name]
        variants[f"XCiT {name}, no LPI"] = Variant(
            f"--attention {spec} --class-attention {of_class}",
            "XCiT, no LPI",
            "80.9, XCiT-S12/16" if name == "SimA" else "",
        )
    others = {  # only in the paper's setting
        "XCiT-T24/16": ("xca", "79.4", "79.8"),
        "XCiT-T12/8": ("xca", "79.7", "79.4"),
        "CvT-13": ("softmax", "81.6", "81.4"),
    }
    baselines = {}
    for model, (spec, *published) in others.items():
        of_class = "" if model == "CvT-13" else " --class-attention sima"
        baselines[model] = f"{model} {spec}"
        for name, flags, top1 in (
            (spec, f"--attention {spec}", published[0]),
            ("SimA", f"--attention sima{of_class}", published[1]),
        ):
            variants[f"{model} {name}"] = Variant(flags, model, top1)

    def models(vit: str, xcit: str, narrow: str) -> dict[str, str]:
        return {
            "ViT": vit,
            "ViT, heads of 32": f"{vit} --heads {narrow}",
            "ViT, one head": f"{vit} --heads 1",
            "ViT, ReLU": f"{vit} --feed-forward relu",
            "XCiT": xcit,
            "XCiT, no LPI": f"{xcit} --no-local-patch-interaction",
        }

    small = models(f"--arch vit_ti {_SMALL}", f"--arch xcit_nano_12 {_SMALL}", "6")
    large = models("--arch deit_s --recipe deit", "--arch xcit_small_12 --recipe xcit", "12") | {
        "XCiT-T24/16": "--arch xcit_tiny_24 --recipe xcit",
        "XCiT-T12/8": "--arch xcit_tiny_12_p8_224 --recipe xcit",
        "CvT-13": "--arch cvt_13 --recipe cvt",
    }
    return Study(
        "SimA and its parts",
        "What do the l1 norm, several heads, GELU and local patch interaction give SimA, and how "
        "do other attentions do that are linear in the length?",
        "Koohpayegani and Pirsiavash 2024, Tables 1, 2 and 6",
        variants,
        {
            "small": Setting(small, _SHORT, updates=400),
            "paper": Setting(large, "--batch-size 256 --bf16 --num-workers 8", valid_fraction=0.01),
        },
        {
            "ViT": "softmax",
            "ViT, one head": "softmax, one head",
            "ViT, heads of 32": "softmax, heads of 32",
            "ViT, ReLU": "softmax, ReLU",
            "XCiT": "XCiT XCA",
            "XCiT, no LPI": "XCiT XCA, no LPI",
            **baselines,
        },
    )


STUDIES = {
    "comparison": _COMPARISON,
    "alpha": _alpha("with query-key normalisation", "qk_norm=true", _NORMED),
    "alpha-raw": _alpha(
        "without query-key normalisation", "qk_norm=false", {**_NORMED, "softmax": "softmax"}
    ),
    "alpha-gate": _alpha("with a gate", "qk_norm=true,gate=silu", _NORMED),
    "scale": _scale(),
    "degrees": _degrees(),
    "norms": _NORMS,
    "sima": _sima(),
}
