"""Checkpoints of version 1, whose projections and settings had other names."""

import json

import pytest
import torch
from safetensors.torch import save_file

from relu_nmt.config import from_dict, to_dict
from relu_nmt.training.checkpoint import load_checkpoint, read_metadata
from relu_nmt.training.optimizers import optimizer_tensors
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.vision.config import VisionTransformerConfig
from relu_nmt.vision.vision_transformer import VisionTransformer
from tests.outputs import assert_same_tensors
from tests.tiny import PAD, tiny_config

VOCAB = 12
SOURCE = torch.tensor([[4, 5, 6, 2], [7, 2, PAD, PAD]])
TARGET = torch.tensor([[2, 8], [2, 9]])
SMALL = {"embed_dim": 8, "ffn_embed_dim": 12, "layers": 2}


def make_model(seed=0, **settings):
    torch.manual_seed(seed)
    return EncoderDecoder(tiny_config(SMALL, **settings), VOCAB, VOCAB, PAD).eval()


def old_names(tensors, is_vision=False):
    """Return the tensors with the names and shapes of version 1."""
    old = {}
    for name, tensor in tensors.items():
        if is_vision:
            name = name.replace("layer.self_attention_residual", "attention_branch")
            name = name.replace("layer.feed_forward_residual", "feed_forward_branch")
            name = name.replace("layer.self_attention", "attention")
            name = name.replace("layer.feed_forward", "feed_forward")
        if ".q." in name:
            keys_values = tensors[name.replace(".q.", ".kv.")]
            tensor = torch.cat([tensor, keys_values]) if tensor.dim() else tensor
        if ".kv." in name:
            continue
        for part in (".qkv.", ".q."):
            for kind in ("weight", "bias"):
                name = name.replace(part + kind, ".in_proj_" + kind)
        old[name] = tensor
    return old


def write_old(path, tensors, **metadata):
    header = {"format": "relu_nmt checkpoint", "version": 1, "tied": {}, **metadata}
    texts = dict(zip(header, map(json.dumps, header.values()), strict=True))
    copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    save_file(copies, path, metadata=texts)


def prefixed(prefix, tensors):
    """Return the tensors with a prefix of their names."""
    return {f"{prefix}{name}": tensor for name, tensor in dict(tensors).items()}


def old_settings(model):
    """Return the settings of a translation model with the names of version 1."""
    new = to_dict(model.config)
    added = ("feed_forward", "norm", "positions", "checkpoint_activations")
    old = {k: v for k, v in new.items() if k not in added and not k.endswith("_positions")}
    old["activation_fn"] = new["feed_forward"]
    for side in ("encoder", "decoder"):
        old[f"{side}_learned_pos"] = new[f"{side}_positions"] == "learned"
    return old | {
        "max_source_positions": new["max_source_positions"],
        "max_target_positions": new["max_target_positions"],
    }


@pytest.mark.parametrize(
    "settings",
    [
        {"attention": "reluformer:gamma=2"},
        {"encoder_attention": "soft", "feed_forward": "gelu", "encoder_positions": "learned"},
        {"attention": "pointwise", "decoder_positions": "learned", "share_all_embeddings": True},
    ],
)
def test_an_old_translation_model_has_the_same_outputs(settings, tmp_path):
    model = make_model(**settings)
    path = tmp_path / "old.safetensors"
    tensors = prefixed("model.", old_names(model.state_dict()))
    assert "model.decoder.layers.0.cross_attention.in_proj_weight" in tensors
    stored = old_settings(model)
    write_old(path, tensors, model_config=stored, args={"model": stored, "data": "d"})
    checkpoint = load_checkpoint(path)
    config = from_dict(TransformerConfig, checkpoint.metadata["model_config"])
    assert config == model.config
    assert from_dict(TransformerConfig, read_metadata(path)["args"]["model"]) == config
    loaded = EncoderDecoder(config, VOCAB, VOCAB, PAD).eval()
    loaded.load_state_dict(checkpoint.model_tensors)
    torch.testing.assert_close(loaded(SOURCE, TARGET), model(SOURCE, TARGET), rtol=0, atol=0)


def test_an_old_vision_model_has_the_same_outputs(tmp_path):
    torch.manual_seed(0)
    shape = {"image_size": 8, "patch_size": 4, "embed_dim": 16, "layers": 2, "heads": 2}
    model = VisionTransformer(VisionTransformerConfig(**shape), 3).eval()
    tensors = old_names(model.state_dict(), is_vision=True)
    assert "blocks.1.attention.in_proj_bias" in tensors
    assert "blocks.0.attention_branch.norm.weight" in tensors
    path = tmp_path / "old.safetensors"
    write_old(path, prefixed("model.", tensors), model_config={})
    loaded = VisionTransformer(VisionTransformerConfig(**shape), 3).eval()
    loaded.load_state_dict(load_checkpoint(path).model_tensors)
    images = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(loaded(images).logits, model(images).logits, rtol=0, atol=0)


def train(model, optimizer, updates):
    for _ in range(updates):
        optimizer.zero_grad()
        model.logits(model(SOURCE, TARGET)).square().mean().backward()
        optimizer.step()


def test_old_optimizer_state_and_raw_weights_are_renamed_and_split(tmp_path):
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, optimizer, 3)
    state = optimizer_tensors(model, optimizer)
    raw = prefixed("train.model.", model.named_parameters())
    weights = prefixed("model.", model.state_dict())
    path = tmp_path / "old.safetensors"
    write_old(path, old_names(weights) | old_names(raw) | old_names(state))
    checkpoint = load_checkpoint(path, with_training_state=True)
    assert_same_tensors(checkpoint.training_tensors, {**raw, **state})
    steps = [t for name, t in checkpoint.training_tensors.items() if name.endswith(".step")]
    assert len({step.data_ptr() for step in steps}) == len(steps)  # each is counted in place


def test_names_of_new_checkpoints_stay(tmp_path):
    """A user's own block may use names of version 1 for its parts."""
    path = tmp_path / "new.safetensors"
    tensors = {"model.blocks.0.attention.in_proj_weight": torch.ones(6, 2)}
    write_old(path, tensors, version=2)
    assert list(load_checkpoint(path).model_tensors) == ["blocks.0.attention.in_proj_weight"]
