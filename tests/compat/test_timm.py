"""Public weights as timm stores them: models here make the same of images as timm does.

timm_files/make_files.py made the small files. Where timm is installed, it is asked itself.
"""

import pytest
import torch
from safetensors.torch import load_file, save_file

from relu_nmt.config.yaml_text import parse_yaml
from relu_nmt.errors import CheckpointError
from relu_nmt.vision.base import Grid, build_vision_model, resize_positions
from relu_nmt.vision.config import VisionTransformerConfig, architectures
from relu_nmt.vision.timm_weights import TIMM_NAMES, load_timm_weights
from tests.compat.timm_files import make_files
from tests.compat.timm_files.make_files import FILES, MODELS

CVT = {"family": "cvt", "embed_dim": 8, "stage_layers": (1, 1), "stage_heads": (1, 2)}
"""timm has none."""


def our_model(name, classes=make_files.CLASSES, **settings):
    shape = {"image_size": MODELS[name]["image"], **MODELS[name]["ours"]} if name in MODELS else CVT
    values = {**shape, **settings}
    return build_vision_model(VisionTransformerConfig.of(**values), classes).eval()


@pytest.mark.parametrize("name", MODELS)
def test_stored_weights_give_the_stored_outputs(name):
    model = our_model(name)
    assert load_timm_weights(model, FILES / f"{name}.safetensors") == []
    stored = load_file(FILES / f"{name}-logits.safetensors")
    assert len(stored) == 1 + len(MODELS[name]["others"])
    for size, logits in stored.items():
        height, width = map(int, size.split("x"))
        with torch.no_grad():
            outputs = model(make_files.images(height, width)).logits
        assert logits.std() > 0.05
        torch.testing.assert_close(outputs, logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "arch",
    [
        *("vit_tiny_patch16_224", "deit_small_patch16_224", "vit_base_patch32_224"),
        *("xcit_nano_12_p16_224", "xcit_tiny_12_p8_224", "swin_tiny_patch4_window7_224"),
    ],
)
def test_whole_models_of_timm_give_the_same_outputs(arch, tmp_path):
    try:
        import timm
    except Exception as error:  # torchvision of another build than PyTorch raises others
        pytest.skip(f"timm cannot be imported here: {error}")
    torch.manual_seed(0)
    theirs = timm.create_model(arch, num_classes=10).eval()
    with torch.no_grad():
        for tensor in theirs.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(0.05 * torch.rand_like(tensor))
    torch.save(theirs.state_dict(), tmp_path / "weights.pt")
    ours = build_vision_model(VisionTransformerConfig.of(**architectures[arch]), 10).eval()
    assert load_timm_weights(ours, tmp_path / "weights.pt") == []
    images = torch.randn(1, 3, 224, 224, dtype=torch.float64)
    with torch.no_grad():
        expected = theirs.double()(images).float()
        outputs = ours.double()(images).logits
    # In float64, since sums of so many weights above 0 lose digits.
    assert expected.std() > 0.01
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-5)


def test_a_head_for_other_classes_is_left_out_and_positions_are_interpolated():
    model = our_model("vit", classes=7, image_size=32)
    before = model.head.weight.clone()
    notes = load_timm_weights(model, FILES / "vit.safetensors")
    assert notes == [
        "its positions of 2 x 2 patches are interpolated to 4 x 4",
        "its head of 3 classes is left out; that of 7 starts anew",
    ]
    assert torch.equal(model.head.weight, before)
    stored = load_file(FILES / "vit.safetensors")
    assert torch.equal(model.positions[0], stored["pos_embed"][0, 0].float())
    mean = stored["pos_embed"][0, 1:].float().mean(0)
    torch.testing.assert_close(model.positions[1:].mean(0), mean, rtol=0.02, atol=0.02)
    assert torch.equal(model.norm.weight, stored["norm.weight"].float())


def test_positions_are_interpolated_to_another_grid_of_as_many_patches():
    model = our_model("vit", image_size=(8, 32))
    notes = load_timm_weights(model, FILES / "vit.safetensors")
    assert notes == ["its positions of 2 x 2 patches are interpolated to 1 x 4"]
    stored = load_file(FILES / "vit.safetensors")["pos_embed"][0]
    expected = torch.cat([stored[:1], resize_positions(stored[1:], Grid(2, 2), Grid(1, 4))])
    torch.testing.assert_close(model.positions, expected.float())


def test_files_of_the_authors_of_xcit_and_deit(tmp_path):
    """One dictionary in another. Another name of the positions. One matrix for q, k and v."""
    stored = load_file(FILES / "xcit.safetensors")
    for name in list(stored):
        if name.startswith("pos_embed."):
            stored[name.replace("pos_embed", "pos_embeder")] = stored.pop(name)
        elif ".attn.q." in name:
            parts = [stored.pop(name.replace(".q.", f".{part}.")) for part in "qkv"]
            stored[name.replace(".q.", ".qkv.")] = torch.cat(parts)
    torch.save({"model": stored, "epoch": 1}, tmp_path / "xcit.pth")
    ours, again = our_model("xcit"), our_model("xcit")
    load_timm_weights(ours, tmp_path / "xcit.pth")
    load_timm_weights(again, FILES / "xcit.safetensors")
    assert all(
        torch.equal(a, b) for a, b in zip(ours.parameters(), again.parameters(), strict=True)
    )


def test_files_of_the_authors_of_swin(tmp_path):
    """One head. Patches are merged at the end of a stage. Tables that are no weights."""
    stored = load_file(FILES / "swin.safetensors")
    authors = {"layers.0.blocks.1.attn_mask": torch.zeros(16, 9, 9)}
    for name, tensor in stored.items():
        name = name.replace("head.fc.", "head.")
        for stage in (1, 2):
            name = name.replace(f"layers.{stage}.downsample", f"layers.{stage - 1}.downsample")
        authors[name] = tensor
        if name.endswith("_bias_table"):
            authors[name.replace("bias_table", "index")] = torch.zeros(9, 9, dtype=torch.int64)
    torch.save({"model": authors}, tmp_path / "swin.pth")
    ours, again = our_model("swin"), our_model("swin")
    assert load_timm_weights(ours, tmp_path / "swin.pth") == []
    load_timm_weights(again, FILES / "swin.safetensors")
    assert all(
        torch.equal(a, b) for a, b in zip(ours.parameters(), again.parameters(), strict=True)
    )


def test_the_position_biases_of_another_window_are_interpolated():
    model = our_model("swin", window_size=5)
    notes = load_timm_weights(model, FILES / "swin.safetensors")
    assert notes == ["its position biases of windows of 3 patches are interpolated"]
    table = load_file(FILES / "swin.safetensors")[
        "layers.1.blocks.0.attn.relative_position_bias_table"
    ]
    biases = model.stages[1][0].attention.position_bias
    assert biases.shape == (81, 2)
    torch.testing.assert_close(biases.mean(0), table.float().mean(0), rtol=0.05, atol=0.05)


def test_files_of_the_authors_of_cvt(tmp_path):
    """With the names of the public code, which timm has not."""
    model = our_model("cvt")
    names = {"stage1.cls_token": "class_token"}
    for stage in (0, 1):
        embedding = f"stage{stage}.patch_embed"
        names[f"{embedding}.proj"] = f"embeddings.{stage}.convolution"
        names[f"{embedding}.norm"] = f"embeddings.{stage}.norm"
        theirs = f"stage{stage}.blocks.0"
        ours = f"stages.{stage}.0"
        for part in "qkv":
            names[f"{theirs}.attn.conv_proj_{part}.conv"] = f"{ours}.attention.{part}_convolution.0"
            names[f"{theirs}.attn.conv_proj_{part}.bn"] = f"{ours}.attention.{part}_convolution.1"
            names[f"{theirs}.attn.proj_{part}"] = f"{ours}.attention.{part}"
        names[f"{theirs}.attn.proj"] = f"{ours}.attention.out_proj"
        names[f"{theirs}.norm1"] = f"{ours}.attention_residual.norm"
        names[f"{theirs}.norm2"] = f"{ours}.feed_forward_residual.norm"
        names[f"{theirs}.mlp.fc1"] = f"{ours}.feed_forward.inner"
        names[f"{theirs}.mlp.fc2"] = f"{ours}.feed_forward.outer"
    names |= {"norm": "norm", "head": "head"}
    by_ours = {ours: theirs for theirs, ours in names.items()}

    def public(name):
        module, _, leaf = name.rpartition(".")
        return by_ours.get(name) or f"{by_ours[module]}.{leaf}"

    tensors = {
        public(name): torch.rand_like(t) if t.is_floating_point() else t
        for name, t in model.state_dict().items()
    }
    torch.save(tensors, tmp_path / "cvt.pth")
    assert load_timm_weights(model, tmp_path / "cvt.pth") == []
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, tensors[public(name)]), name


class Unsafe:
    def __reduce__(self):
        return print, ("unpickled",)


ANY_FILE = [
    (None, "no such file"),
    (b"", "cannot be read as weights"),
    (b"not a file of weights", "cannot be read as weights"),
    ({"other": torch.zeros(2)}, "holds no weights of timm's vit"),
    ({"norm.weight": torch.ones(8), "dist_token": torch.ones(1)}, "does not fit the model"),
]
PICKLES = [
    ({"norm.weight": Unsafe()}, "cannot be read as weights"),
    ([1, 2], "expected tensors by name"),
    ({1: torch.zeros(2)}, "holds no weights of timm's vit"),
    ({"norm.weight": torch.ones(8), "blocks.0.attn.q.weight": torch.ones(1)}, "does not fit"),
]


@pytest.mark.parametrize(
    ("ending", "content", "message"),
    [("pt", *case) for case in ANY_FILE + PICKLES] + [("safetensors", *case) for case in ANY_FILE],
)
def test_other_files_are_refused_and_never_unpickled(ending, content, message, tmp_path, capsys):
    path = tmp_path / f"weights.{ending}"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        (torch.save if ending == "pt" else save_file)(content, path)
    with pytest.raises(CheckpointError, match=message):
        load_timm_weights(our_model("vit"), path)
    assert "unpickled" not in capsys.readouterr().out


def test_every_name_in_the_table_is_one_of_the_models():
    for family, names in parse_yaml(TIMM_NAMES.read_text("utf-8")).items():
        tensors = our_model(family).state_dict()
        ours = {name.replace("#", "0") for name in names.values()}
        assert ours <= {*tensors, *(name.rpartition(".")[0] for name in tensors)}
