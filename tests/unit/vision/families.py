"""Small models of every family of vision transformers, and the attentions that fit each."""

import itertools

import torch

from relu_nmt.attention import attentions
from relu_nmt.vision import vision_models
from relu_nmt.vision.base import build_vision_model
from relu_nmt.vision.config import VisionTransformerConfig

SMALL = {
    "vit": {"image_size": 8, "patch_size": 4, "embed_dim": 16, "layers": 2, "heads": 2},
    "xcit": {
        **{"image_size": 8, "patch_size": 4, "embed_dim": 16, "layers": 2, "heads": 2},
        "layer_scale": 1.0,
    },
    "swin": {
        **{"image_size": 24, "patch_size": 4, "embed_dim": 8, "window_size": 3},
        **{"stage_layers": (2, 2), "stage_heads": (2, 4)},
    },
    "cvt": {"image_size": 16, "embed_dim": 8, "stage_layers": (1, 2), "stage_heads": (1, 2)},
}
GATED = {**SMALL["vit"], "family": "vit", "block": "gau"}
"""ViT of gated attention units."""
UNFIT = {"cvt": {"cosformer", "nystromformer", "soft", "xca"}}
"""The attentions that cannot work in a family: CvT has fewer keys than queries."""
FORMS = [
    "cosformer:grid=true",
    "nystromformer:landmarks=3",  # fewer than tokens, so that there is a matrix to invert
    "nystromformer:landmarks=3,conv=3,kernel=polynomial",
    "nystromformer:landmarks=3,kernel=polynomial,scale=dynamic",
    "performer:kernel=relu,features=16,redraw=2",
    "performer:features=16,redraw=2",
    "pointwise:h=softplus,gate=silu,output_norm=true",
    "polynomial:scale=dynamic,per_head=true",
    "reluformer:centered=true",
    "sima:norm=l2",
    "sima:norm=none",
    "soft:stride=2,normalized=true,conv=3",
    "softmax:qk_norm=true",
    "xca:kernel=polynomial",
    "xca:kernel=polynomial,count=channels,scale=fixed,unit_norm=false",
]
"""Options that change the computation or the state of an attention."""
PAIRS = []
for family, attention in itertools.product(vision_models.names(), [*attentions.names(), *FORMS]):
    if attention.partition(":")[0] not in UNFIT.get(family, ()):
        PAIRS.append((family, attention))
PAIRS += [("gau", "pointwise:h=relu2"), ("gau", "pointwise:h=softplus,alpha=0.5,qk_norm=false")]


def one_family_each():
    """Return each attention with one of the families that it fits, which take turns."""
    families = {}
    for family, attention in PAIRS:
        families.setdefault(attention, []).append(family)
    return [(fit[i % len(fit)], name) for i, (name, fit) in enumerate(families.items())]


def small_model(family, seed=0, **settings):
    torch.manual_seed(seed)
    shape = GATED if family == "gau" else {"family": family, **SMALL[family]}
    values = {**shape, **settings}
    return build_vision_model(VisionTransformerConfig.of(**values), num_classes=5)


def pair_model(family, attention, **settings):
    """Return a model with this attention wherever there is any."""
    everywhere = {"class_attention": attention} if family == "xcit" else {}
    return small_model(family, attention=attention, **everywhere, **settings)


def without_decay(model):
    """Return the names of the parameters that weight decay spares."""
    return {name for name, p in model.named_parameters() if hasattr(p, "no_weight_decay")}


def pictures(height=8, width=8, seed=1):
    return torch.randn(3, 3, height, width, generator=torch.Generator().manual_seed(seed))
