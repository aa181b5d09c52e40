"""A model as plain values: the settings, and the weights as bytes of a safetensors file.

Other processes get these instead of its memory. PyTorch would move weights to memory that processes
share, under the feet of kernels that know their addresses.
"""

from collections.abc import Sequence
from typing import Any

import torch
from safetensors.torch import load, save

from relu_nmt.attention.base import Attention
from relu_nmt.config import from_dict, to_dict
from relu_nmt.config.registry import MODULE_PREFIX
from relu_nmt.engine.int8 import Int8Linear, use_int8
from relu_nmt.engine.packed_linear import PackedLinear, PanelLinear, pack_linear
from relu_nmt.errors import ConfigError
from relu_nmt.training.checkpoint import load_weights, without_aliases
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.loading import build_model
from relu_nmt.translation.task import TranslationTask

ELSEWHERE = "make a translator in each process with Translator.from_checkpoint instead"


def model_state(model: EncoderDecoder) -> dict[str, Any]:
    """Return a model as values that any process can read.

    Raises:
        ConfigError: hooks are registered on it, which no other process knows.
    """
    modules = dict(model.named_modules())
    for name, module in modules.items():
        if module._forward_hooks or module._forward_pre_hooks:
            raise ConfigError(
                f"a translator with hooks cannot be pickled or copied, and there are some on "
                f"'{name}'; remove them, or {ELSEWHERE}"
            )
    weights, tied = without_aliases(model.state_dict())
    return {
        "config": to_dict(model.config),
        "weights": save(weights),
        "tied": tied,
        "backends": {n: m.backend for n, m in modules.items() if isinstance(m, Attention)},
        "dtype": next(model.parameters()).dtype,
        "is_int8": any(isinstance(module, Int8Linear) for module in modules.values()),
        "packed": next((m.dtype for m in modules.values() if isinstance(m, PackedLinear)), None),
    }


def model_of(state: dict[str, Any], task: TranslationTask) -> EncoderDecoder:
    """Return the model that :func:`model_state` described, on the CPU, in evaluation mode.

    Args:
        state: the values.
        task: its text and dictionaries.

    Raises:
        CheckpointError: the weights do not fit: the model was changed after it was made.
    """
    with torch.random.fork_rng(devices=[]):  # new weights are drawn, and then replaced
        model = build_model(from_dict(TransformerConfig, state["config"]), task)
    model.to(state["dtype"])
    if state["is_int8"]:
        use_int8(model)
    tensors = load(state["weights"])
    tensors |= {alias: tensors[name] for alias, name in state["tied"].items()}
    load_weights(model, tensors, "the pickled translator")
    for name, backend in state["backends"].items():
        model.get_submodule(name).backend = backend
    for module in model.modules():
        if isinstance(module, PanelLinear):
            module.drop_copies()
    if state["packed"] is not None:
        pack_linear(model, state["packed"])
    return model.eval()


def foreign_classes(models: Sequence[EncoderDecoder], task: TranslationTask) -> list[type]:
    """Return the classes from outside this package that models and text are made of.

    A pickle names them. Whoever reads it imports them first, which registers them.

    Raises:
        ConfigError: one is from a file of ``--user-module``, which no other process finds.
    """
    found: set[type] = {type(module) for model in models for module in model.modules()}
    for text in (task.source_text, task.target_text):
        found |= {type(text.subword), *text.tokenizers}
    foreign = [kind for kind in found if not kind.__module__.startswith(("relu_nmt.", "torch."))]
    for kind in foreign:
        if kind.__module__.startswith(MODULE_PREFIX):
            raise ConfigError(
                f"a translator with {kind.__name__} cannot be pickled or copied: it is from a file "
                f"of --user-module, which other processes do not know; {ELSEWHERE}"
            )
    return foreign
