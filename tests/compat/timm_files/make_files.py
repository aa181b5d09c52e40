"""Makes the small models of timm that test_timm.py reads: weights, and what timm makes of images.

    python tests/compat/timm_files/make_files.py

It needs timm (1.0.31 made the files in the repository). Weights are random and rounded to float16,
so that the files are small.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file

FILES = Path(__file__).parent
MODELS = {
    "vit": {
        "class": "VisionTransformer",
        "image": 16,
        "others": [(24, 16)],
        "ours": {"embed_dim": 8, "layers": 2, "heads": 2, "patch_size": 8, "layer_scale": 1.0},
        "timm": {
            **{"img_size": 16, "patch_size": 8, "embed_dim": 8, "depth": 2, "num_heads": 2},
            **{"init_values": 1.0, "dynamic_img_size": True},
        },
    },
    "vit-wide": {  # images and patches that are not square, no LayerScale
        "class": "VisionTransformer",
        "image": (16, 20),
        "others": [(8, 32)],
        "ours": {"embed_dim": 8, "layers": 2, "heads": 2, "patch_size": (8, 4)},
        "timm": {
            **{"img_size": (16, 20), "patch_size": (8, 4), "embed_dim": 8, "depth": 2},
            **{"num_heads": 2, "dynamic_img_size": True},
        },
    },
    "xcit": {
        "class": "Xcit",
        "image": 32,
        "others": [(48, 16)],
        "ours": {
            **{"family": "xcit", "attention": "xca", "embed_dim": 8, "layers": 1, "heads": 2},
            **{"patch_size": 16, "layer_scale": 1.0},
        },
        "timm": {
            **{"img_size": 32, "patch_size": 16, "embed_dim": 8, "depth": 1, "num_heads": 2},
            "tokens_norm": True,
        },
    },
    "xcit-nano": {  # its form with small patches: three convolutions make them
        "class": "Xcit",
        "image": 24,
        "others": [(16, 40)],
        "ours": {
            **{"family": "xcit", "attention": "xca", "embed_dim": 8, "layers": 1, "heads": 2},
            **{"patch_size": 8, "layer_scale": 1.0, "class_layers_norm_patches": False},
        },
        "timm": {
            **{"img_size": 24, "patch_size": 8, "embed_dim": 8, "depth": 1, "num_heads": 2},
            "tokens_norm": False,
        },
    },
    "xcit-deep": {  # numbers of blocks have two digits
        "class": "Xcit",
        "image": 24,
        "others": [],
        "ours": {
            **{"family": "xcit", "attention": "xca", "embed_dim": 4, "layers": 24, "heads": 2},
            **{"patch_size": 8, "layer_scale": 1e-5},
        },
        "timm": {
            **{"img_size": 24, "patch_size": 8, "embed_dim": 4, "depth": 24, "num_heads": 2},
            **{"tokens_norm": True, "eta": 1e-5},
        },
    },
    "swin": {
        "class": "SwinTransformer",
        "image": 48,
        # 12 x 12 patches. Windows are shifted but in the last stage.
        "others": [(48, 96)],
        "ours": {
            **{"family": "swin", "embed_dim": 4, "patch_size": 4, "window_size": 3},
            **{"stage_layers": (2, 2, 1), "stage_heads": (1, 2, 4)},
        },
        "timm": {
            **{"img_size": 48, "embed_dim": 4, "patch_size": 4, "window_size": 3},
            **{"depths": (2, 2, 1), "num_heads": (1, 2, 4)},
            "strict_img_size": False,
        },
    },
}
"""Class of timm, size of the images, other sizes, and the settings here and there, by name."""
CLASSES = 3


def images(height: int, width: int) -> torch.Tensor:
    """Return two images [2, 3, height, width] that need no random numbers."""
    count = 2 * 3 * height * width
    return torch.sin(torch.arange(count) ** 1.5).view(2, 3, height, width)


def timm_model(name: str) -> torch.nn.Module:
    """Return a small model of timm with random weights, also where they would be 0 or 1."""
    from timm.models import swin_transformer, vision_transformer, xcit

    modules = {"vit": vision_transformer, "xcit": xcit, "swin": swin_transformer}
    values = MODELS[name]
    kind = getattr(modules[name.partition("-")[0]], values["class"])
    torch.manual_seed(0)
    model = kind(num_classes=CLASSES, **values["timm"]).eval()
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_((tensor + 0.3 * torch.rand_like(tensor)).half())
    return model


def main() -> None:
    """Write a file of weights and one of outputs for each model."""
    for name, values in MODELS.items():
        model = timm_model(name)
        weights = {
            n: t.half() if t.is_floating_point() else t for n, t in model.state_dict().items()
        }
        save_file(weights, FILES / f"{name}.safetensors")
        image = values["image"]
        sizes = [image if isinstance(image, tuple) else (image, image), *values["others"]]
        with torch.no_grad():
            outputs = {f"{y}x{x}": model(images(y, x)) for y, x in sizes}
        save_file(outputs, FILES / f"{name}-logits.safetensors")


if __name__ == "__main__":
    main()
