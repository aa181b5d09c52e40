"""The studies: each compares variants, sets of flags of relu-nmt-vision-train, in two settings."""

from collections.abc import Mapping, Sequence

from relu_studies import NORMED, alpha_study, sizes_study, unit_study
from study import ONE_CORE, SHORT, SMALL, Setting, Study, Variant, published


def _deit_b(row: str) -> str:
    return published("polynomials-table2-deit-b", row, "DeiT-B")


def _deit_s(row: str) -> str:
    return published("sima-table1-deit-s", row, "DeiT-S")


def _xcit(name: str) -> str:
    return published("sima-table1-xcit-s12", f"XCiT {name}", "XCiT-S12/16")


def _tiny(row: str) -> str:
    return published("polynomials-table1", row, "ViT-Ti on Tiny-ImageNet")


_COMPARISON = Study(
    "Attentions of the vision papers, one recipe",
    "Do the papers' replacements of softmax learn as well as softmax in the same ViT, and SimA as "
    "well as cross-covariance attention in XCiT? Are the unscaled forms worse, as the papers say?",
    "Wortsman et al. 2023; Saratchandran et al. 2024, Tables 1 and 2; Koohpayegani and "
    "Pirsiavash 2024, Table 1",
    {
        "softmax": Variant(
            "--attention softmax",
            published=f"{_deit_s('softmax')}; {_deit_b('softmax')}",
        ),
        "softmax qk-norm": Variant(
            "--attention softmax:qk_norm=true"
        ),  # the learning rate of relu/L
        "relu/L": Variant("--attention pointwise:h=relu,alpha=1"),
        "relu unscaled": Variant("--attention pointwise:h=relu,alpha=0"),
        "x^3 fixed": Variant(
            "--attention polynomial:scale=fixed",
            published=_deit_b("x^3 fixed"),
        ),
        "x^3 dynamic": Variant(
            "--attention polynomial:scale=dynamic",
            published=_deit_b("x^3 dynamic"),
        ),
        "x^3 unscaled": Variant("--attention polynomial:scale=none", published=_deit_b("x^3 none")),
        "SimA": Variant("--attention sima", published=_deit_s("SimA")),
        "XCiT XCA": Variant("--attention xca", "XCiT", _xcit("XCA")),
        "XCiT SimA": Variant("--attention sima --class-attention sima", "XCiT", _xcit("SimA")),
    },
    {
        "small": Setting(
            {"ViT": f"--arch vit_ti {SMALL}", "XCiT": f"--arch xcit_nano_12 {SMALL}"},
            ONE_CORE,
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
_TINY_IMAGENET = "--recipe tiny_imagenet --batch-size 128 --bf16 --num-workers 8"
DIVISORS = (1, 2, 4, 8, 16, 32)


def _patches(arch: str, sides: Mapping[int, str]) -> dict[str, str]:
    """Return the flags of models by their number of patches."""
    return {f"N = {count}": f"{arch} --patch-size {side}" for count, side in sides.items()}


def _scale() -> Study:
    """Return the study of the cube's constant divisor for several numbers of patches."""
    sides = {256: "2", 64: "4", 16: "8", 8: "8x16", 4: "16"}
    small = _patches("--arch vit_ti --image-size 32", sides)
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
            "small": Setting(small, SHORT, updates=300),
            "paper": Setting(large, _TINY_IMAGENET),
        },
        {model: f"softmax, {model}" for model in large},
        axis="k",
        log_axis=True,
    )


POWERS = range(1, 7)
# The authors of XCiT train XCiT-M24 with this stochastic depth.
_DEIT_B = "--arch deit_b --recipe deit --drop-path 0.1 --eval-crop-ratio 0.875"
_XCIT_M = "--arch xcit_medium_24 --recipe xcit --drop-path 0.15"
_IMAGENET = "--batch-size 128 --update-freq 2 --bf16 --num-workers 8"
_SCALES = ("fixed", "dynamic", "none")
_CERTAIN_POWERS = (1, 3)


def _table_5(paper_models: Sequence[str], power: int = 0, scale: str = "") -> str:
    """Return the published top-1 of some models. Without a power it is the top-1 of softmax."""
    table = "2" if power in (0, 3) else "5"
    row = f"x^{power} {scale}" if power else "softmax"
    # Mark the powers that the paper's table does not name.
    mark = "" if power in (0, *_CERTAIN_POWERS) else "?"
    accuracies = []
    for name in paper_models:
        number, comma, model = published(
            f"polynomials-table{table}-{name.lower()}", row, name
        ).partition(",")
        if comma:
            accuracies.append(f"{number}{mark},{model}")
    return "; ".join(accuracies)


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
    for model, (softmax, spec, length, paper_models) in models.items():
        flags = f"--attention {softmax}"
        variants[f"{model} softmax"] = Variant(flags, model, _table_5(paper_models))
        for scale in _SCALES:
            options = f"scale={scale}" + (length if scale != "none" else "")
            for power in POWERS:
                variants[f"{model} x^{power} {scale}"] = Variant(
                    f"--attention {spec}power={power},{options}",
                    model,
                    _table_5(paper_models, power, scale),
                    line=f"{model}, scale {scale}",
                    x=power,
                )
    small = "--image-size 32"
    return Study(
        "Degrees of the polynomial",
        "Which powers of the scores learn as well as softmax, and with which scale: fixed "
        "(1 / sqrt(N)), learned (dynamic), or none? Published numbers with a question mark are of "
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
                ONE_CORE,
                updates=300,
            ),
            "paper": Setting(
                {
                    "ViT": _DEIT_B,
                    "Swin-B": "--arch swin_base --recipe swin",
                    "XCiT": _XCIT_M,
                },
                _IMAGENET,
                valid_fraction=0.01,
            ),
        },
        {model: f"{model} softmax" for model in models},
        axis="power",
    )


def _bounds() -> Study:
    """Return the study of the cube's scale beside other bounds of its scores."""
    norms = {"": "false", " qk-norm": "true"}
    variants = {}
    for suffix, flag in norms.items():
        variants[f"softmax{suffix}"] = Variant(f"--attention softmax:qk_norm={flag}")
        for scale in _SCALES:
            spec = f"polynomial:scale={scale},qk_norm={flag}"
            variants[f"x^3 {scale}{suffix}"] = Variant(f"--attention {spec}")
    variants["XCiT softmax"] = Variant("--attention xca", "XCiT")
    for suffix, flag in {"": "true", " free": "false"}.items():
        for scale in _SCALES:
            spec = f"xca:kernel=polynomial,scale={scale},unit_norm={flag}"
            variants[f"XCiT x^3 {scale}{suffix}"] = Variant(f"--attention {spec}", "XCiT")
    four = f"{SMALL} --layers 4"
    return Study(
        "The cube's scale and the norm of queries and keys",
        "Does the cube need its scale if the norm of queries and keys is bounded, and does it if "
        "XCiT's is free?",
        "Saratchandran et al. 2024, Tables 1 and 2",
        variants,
        {
            "small": Setting(
                {"ViT": f"--arch vit_ti {four}", "XCiT": f"--arch xcit_nano_12 {four}"},
                ONE_CORE,
                updates=1000,
            ),
            "paper": Setting({"ViT": _DEIT_B, "XCiT": _XCIT_M}, _IMAGENET, valid_fraction=0.01),
        },
        {"ViT": "softmax", "XCiT": "XCiT softmax"},
    )


_NORMS = Study(
    "Norms of attention in training",
    "Does a fixed scale keep the Frobenius norms of the cubes, and of their Jacobian, where those "
    "of softmax are, and do they grow without it?",
    "Saratchandran et al. 2024, Table 1, Figures 2, 3, 6 and 7",
    {
        "softmax": Variant("--attention softmax", published=_tiny("softmax")),
        "x^3 fixed": Variant("--attention polynomial:scale=fixed", published=_tiny("x^3 fixed")),
        "x^3 dynamic": Variant("--attention polynomial:scale=dynamic"),
        "x^3 unscaled": Variant(
            "--attention polynomial:scale=none",
            published=_tiny("x^3 unscaled"),
        ),
    },
    {
        "small": Setting(
            {"ViT": f"--arch vit_ti {SMALL}"},
            ONE_CORE,
            updates=1200,
        ),
        "paper": Setting({"ViT": "--arch vit_ti_p4_64"}, f"{_TINY_IMAGENET} --save-interval 10"),
    },
    norms=True,
)


_SIMA_TABLES = ("table2", "table2-cosformer", "one-head", "relu")
_XCIT_TABLES = ("table1-xcit-s12", "table2-efficient", "norms", "lpi")


def _of_sima(row: str, model: str, tables: Sequence[str]) -> str:
    """Return the published top-1 of a row in the first of the tables that has it."""
    for table in tables:
        accuracy = published(f"sima-{table}", row, model)
        if accuracy:
            return accuracy
    return ""


def _sima_vit_variants() -> dict[str, Variant]:
    """Return the variants of ViT in the study of SimA."""
    specs = {
        "softmax": "softmax",
        "SimA": "sima",
        "SimA, l2 norm": "sima:norm=l2",
        "SimA, no norm": "sima:norm=none",
        "linear": "linear",
        "Linformer": "linformer:length=256,rank=64",
        "Performer": "performer",
        "Nystromformer": "nystromformer:landmarks=16",
        "efficient": "efficient",
        "cosFormer": "cosformer:grid=true",
        "cosFormer, no weighting": "cosformer:reweight=false",
    }
    # The table of linear attentions has smaller models than DeiT-S.
    variants = {}
    for name, spec in specs.items():
        accuracy = _of_sima(name, "small ViT", _SIMA_TABLES)
        variants[name] = Variant(f"--attention {spec}", published=accuracy)
    for name in ("softmax", "SimA"):
        variants[name] = Variant(f"--attention {specs[name]}", published=_deit_s(name))
    for model in ("one head", "ReLU"):
        for name, spec in (("softmax", "softmax"), ("SimA", "sima")):
            row = f"{name}, {model}"
            accuracy = _of_sima(row, "DeiT-S", _SIMA_TABLES)
            variants[row] = Variant(f"--attention {spec}", f"ViT, {model}", accuracy)
    # Narrow heads, as in SOFT's paper: for wider ones its kernels are too small.
    narrow = "ViT, heads of 32"
    variants["softmax, heads of 32"] = Variant("--attention softmax", narrow)
    variants["SOFT"] = Variant(
        "--attention soft", narrow, _of_sima("SOFT", "small ViT", _SIMA_TABLES)
    )
    variants["SOFT, normalized"] = Variant("--attention soft:normalized=true", narrow)
    return variants


def _sima_xcit_variants() -> dict[str, Variant]:
    """Return the variants of XCiT-S12/16 in the study of SimA."""
    specs = {
        "XCA": ("xca", "softmax"),
        "SimA": ("sima", "sima"),
        "SimA, l2 norm": ("sima:norm=l2", "sima:norm=l2"),
        "SimA, no norm": ("sima:norm=none", "sima:norm=none"),
        "efficient": ("efficient", "softmax"),
    }
    variants = {}
    for name, (spec, of_class) in specs.items():
        flags = f"--attention {spec} --class-attention {of_class}"
        for model in ("XCiT", "XCiT, no LPI")[: 2 if name in ("XCA", "SimA") else 1]:
            row = f"XCiT {name}{model.removeprefix('XCiT')}"
            accuracy = _of_sima(row, "XCiT-S12/16", _XCIT_TABLES)
            variants[row] = Variant(flags, model, accuracy)
    return variants


_SIMA_MODELS = {
    "XCiT-T24/16": ("xca", "table1-xcit-t24"),
    "XCiT-T20/16": ("xca", "table2-t20"),
    "XCiT-T12/8": ("xca", "table1-xcit-t12-8"),
    "CvT-13": ("softmax", "table1-cvt-13"),
}
"""Attention that SimA replaces, and the table of the published numbers, by model."""


def _sima() -> Study:
    """Return the study of SimA's parts and of other attentions that are linear in the length."""
    variants = {**_sima_vit_variants(), **_sima_xcit_variants()}
    baselines = {}
    for model, (spec, table) in _SIMA_MODELS.items():
        baselines[model] = f"{model} {spec}"
        of_class = "" if model == "CvT-13" else " --class-attention sima"
        for name, flags in ((spec, f"--attention {spec}"), ("SimA", f"--attention sima{of_class}")):
            row = f"{model} {name}"
            variants[row] = Variant(flags, model, published(f"sima-{table}", row, model))

    def models(vit: str, xcit: str, narrow: str) -> dict[str, str]:
        return {
            "ViT": vit,
            "ViT, heads of 32": f"{vit} --heads {narrow}",
            "ViT, one head": f"{vit} --heads 1",
            "ViT, ReLU": f"{vit} --feed-forward relu",
            "XCiT": xcit,
            "XCiT, no LPI": f"{xcit} --no-local-patch-interaction",
        }

    four = f"{SMALL} --layers 4"
    small = models(f"--arch vit_ti {four}", f"--arch xcit_nano_12 {four}", "6") | {
        "XCiT-T24/16": f"--arch xcit_tiny_24 {SMALL} --layers 8",
        "XCiT-T20/16": f"--arch xcit_tiny_24 {SMALL} --layers 7",
        "XCiT-T12/8": "--arch xcit_tiny_12 --image-size 32 --patch-size 4 --layers 4",
        "CvT-13": "--arch cvt_13 --image-size 32 --stage-layers 1,1,2",
    }
    large = models("--arch deit_s --recipe deit", "--arch xcit_small_12 --recipe xcit", "12") | {
        "XCiT-T24/16": "--arch xcit_tiny_24 --recipe xcit",
        "XCiT-T20/16": "--arch xcit_tiny_24 --recipe xcit --layers 20",
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
            "small": Setting(small, ONE_CORE, updates=400),
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
    "sizes": sizes_study(),
    "alpha": alpha_study(
        "with query-key normalization", "qk_norm=true", NORMED, "Figure 2", i1k=True
    ),
    "alpha-raw": alpha_study(
        "without query-key normalization",
        "qk_norm=false",
        {**NORMED, "softmax": "softmax"},
        "Figure 3",
    ),
    "alpha-gate": alpha_study("with a gate", "qk_norm=true,gate=silu", NORMED, "Figure 4"),
    "alpha-unit": unit_study(),
    "scale": _scale(),
    "degrees": _degrees(),
    "bounds": _bounds(),
    "norms": _NORMS,
    "sima": _sima(),
}
