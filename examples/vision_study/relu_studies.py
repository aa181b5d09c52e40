"""The studies of "Replacing softmax with ReLU in vision transformers"."""

from collections.abc import Mapping

from study import SHORT, SMALL, Setting, Study, Variant

MAPS = ("relu", "relu2", "gelu", "softplus", "relu6", "sigmoid", "identity")
ALPHAS = (0.0, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
NORMED = {"softmax qk-norm": "softmax:qk_norm=true"}

# RandAugment and mixup depend on the size of the model, as in the paper's code (see
# docs/reference/images.md). S/8 is not in the tables of the code and has the values of S/16.
_I21K = {
    "S/32": "vit_small_bigvision_i21k --patch-size 32 --rand-augment 0 --mixup 0",
    "S/16": "vit_small_bigvision_i21k --rand-augment-magnitude 0 --mixup 0",
    "S/8": "vit_small_bigvision_i21k --patch-size 8 --rand-augment-magnitude 0 --mixup 0",
    "B/32": "vit_base_bigvision_i21k --patch-size 32",
    "B/16": "vit_base_bigvision_i21k",
    "L/16": "vit_large_bigvision_i21k --rand-augment-magnitude 15 --mixup 0.5",
}
_I1K = {
    "S/32": "vit_small_bigvision_i1k --patch-size 32 --mixup 0.2",
    "S/16": "vit_small_bigvision_i1k",
    "S/8": "vit_small_bigvision_i1k --patch-size 8",
}
_ON_GPUS = "--update-freq 2 --bf16 --num-workers 8"


def _i21k(name: str) -> str:
    return f"--recipe bigvision_i21k --arch {_I21K[name]}"


def panels(i1k: bool = False, model: str = "ViT", flags: str = "") -> dict[str, Setting]:
    """Return the paper's settings by name, one for each panel of its figures.

    The setting ``paper`` is S/16 on ImageNet-21k.

    Args:
        i1k: with the panels on ImageNet-1k.
        model: name of the model.
        flags: further flags of it.
    """
    settings = {}
    for setting, name in (("paper", "S/16"), ("i21k-s32", "S/32"), ("i21k-s8", "S/8")):
        large = f"{_i21k(name)}{flags}"
        settings[setting] = Setting({model: large}, _ON_GPUS, valid_fraction=0.001)
    for name, arch in _I1K.items() if i1k else ():
        large = f"--recipe bigvision_i1k --arch {arch}{flags}"
        setting = f"i1k-{name.lower().replace('/', '')}"
        settings[setting] = Setting({model: large}, _ON_GPUS, valid_fraction=0.01)
    return settings


def alpha_study(
    title: str, options: str, softmax: Mapping[str, str], figure: str, i1k: bool = False
) -> Study:
    """Return the study of the exponent of the length for all maps.

    Args:
        title: second half of the title.
        options: options of all pointwise attentions.
        softmax: specs to compare with by name. The first one is the baseline.
        figure: the paper's figure.
        i1k: with the panels on ImageNet-1k.
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
        f"Wortsman et al. 2023, {figure}",
        variants,
        {
            "small": Setting({"ViT": f"--arch vit_ti {SMALL}"}, SHORT, updates=400),
            **panels(i1k),
        },
        {"ViT": next(iter(softmax))},
        axis="alpha",
    )


def unit_study() -> Study:
    """Return the study of the exponent of the length in gated attention units."""
    variants = {"softmax qk-norm": Variant(f"--attention {NORMED['softmax qk-norm']}", "plain")}
    for h in ("relu", "relu2"):
        for alpha in ALPHAS:
            flags = f"--attention pointwise:h={h},alpha={alpha:g},qk_norm=false"
            variants[f"{h} / L^{alpha:g}"] = Variant(flags, line=h, x=alpha)
    units = " --block gau"
    plain = panels(model="plain")
    large = {}
    for name, setting in panels(flags=units).items():
        models = {**plain[name].models, **setting.models}
        large[name] = Setting(models, setting.flags, None, 0.001)
    small = {"plain": f"--arch vit_ti {SMALL}", "ViT": f"--arch vit_ti {SMALL}{units}"}
    return Study(
        "The power of the length, in gated attention units",
        "Do units of attention and gate, which also replace the feed-forward network, need the "
        "division by L^alpha? Softmax is that of a plain ViT.",
        "Wortsman et al. 2023, Figure 4, the second reading of its gate",
        variants,
        {"small": Setting(small, SHORT, updates=400), **large},
        {"ViT": "relu2 / L^1", "plain": "softmax qk-norm"},
        axis="alpha",
    )


def sizes_study() -> Study:
    """Return the study of accuracy against time for models of several sizes."""
    widths = {}
    for heads in (1, 2, 4):
        widths[f"{64 * heads} wide"] = f"--embed-dim {64 * heads} --heads {heads}"
    specs = {"softmax": NORMED["softmax qk-norm"], "relu over L": "pointwise:h=relu,alpha=1"}
    variants = {}
    for model in (*widths, *_I21K):
        for name, spec in specs.items():
            variants[f"{name}, {model}"] = Variant(f"--attention {spec}", model)
    small = {model: f"--arch vit_ti {SMALL} {flags}" for model, flags in widths.items()}
    return Study(
        "Accuracy against time, by size of the model",
        "Does ReLU divided by the length reach the accuracy of softmax in the same time, for "
        "models of every size? Both have normalized queries and keys.",
        "Wortsman et al. 2023, Figure 1",
        variants,
        {
            "small": Setting(small, SHORT, updates=400),
            "paper": Setting({name: _i21k(name) for name in _I21K}, _ON_GPUS, None, 0.001),
        },
        {model: f"softmax, {model}" for model in (*widths, *_I21K)},
    )
