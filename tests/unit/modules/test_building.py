"""Weights are counted before a model takes memory."""

import pytest
import torch

from relu_nmt.config import to_dict
from relu_nmt.errors import CheckpointError, OutOfMemoryError
from relu_nmt.io import memory
from relu_nmt.modules.building import build_in_memory
from relu_nmt.translation.building import load_model
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.vision.base import build_vision_model
from relu_nmt.vision.config import VisionTransformerConfig
from tests.tiny import save_tiny_model, tiny_config, tiny_model, tiny_task

TASK = tiny_task(["1", "2", "3"])


@pytest.mark.parametrize(
    "changes",
    [
        {"encoder_embed_dim": 400_000, "decoder_embed_dim": 400_000},
        {"encoder_layers": 9000, "encoder_embed_dim": 8192, "decoder_embed_dim": 8192},
        {"decoder_ffn_embed_dim": 10**6, "encoder_embed_dim": 9600, "decoder_embed_dim": 9600},
    ],
)
def test_dimensions_of_a_checkpoint_beyond_the_memory_are_refused(tmp_path, monkeypatch, changes):
    monkeypatch.setattr(memory, "free_memory", lambda: 2**30)
    path = tmp_path / "model.safetensors"
    settings = {**to_dict(tiny_config()), **changes}
    save_tiny_model(path, TASK, metadata={"model_config": settings})
    with pytest.raises(CheckpointError, match=r"safetensors: out of memory: the weights of this m"):
        load_model(path)


def test_images_of_many_patches_are_refused_before_the_model_is_built(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: 2**30)
    config = VisionTransformerConfig(image_size=2000, patch_size=1, layers=1, embed_dim=192)
    with pytest.raises(OutOfMemoryError, match="the weights of this model would take"):
        build_vision_model(config, 10)


@pytest.mark.parametrize("attention", ["softmax", "performer", "reluformer"])
def test_the_count_changes_no_weight_and_no_random_state(monkeypatch, attention):
    counted = tiny_model(TASK, attention=attention)
    state = torch.get_rng_state()
    torch.manual_seed(1)
    words = TASK.source_dictionary
    plain = EncoderDecoder(counted.config, len(words), len(words), words.pad_index, None)
    assert torch.equal(state, torch.get_rng_state())
    torch.testing.assert_close(plain.state_dict(), counted.state_dict(), rtol=0, atol=0)


def test_an_error_of_the_settings_is_that_of_the_real_model():
    def build():
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        build_in_memory(build)
