"""Models of a translator: loaded from checkpoints, or sent to other processes as plain values.

Plain values are the settings, and the weights as bytes of a safetensors file. Pickled modules would
move their weights to shared memory, while kernels would keep the old addresses.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from safetensors.torch import load, save

from relu_nmt.attention.base import Attention, use_backend
from relu_nmt.config import from_dict, split_paths, to_dict
from relu_nmt.config.registry import MODULE_PREFIX
from relu_nmt.engine.linear import Int8Linear, PanelLinear, use_int8
from relu_nmt.errors import ConfigError
from relu_nmt.training.checkpoint import load_weights, without_aliases
from relu_nmt.translation.agreement import describe_task, require_same
from relu_nmt.translation.base import TranslationModel
from relu_nmt.translation.building import build_model, load_model
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.task import TranslationTask

ELSEWHERE = "make a translator in each process with Translator.from_checkpoint instead"
ONE_TASK = (
    "an ensemble needs models of one language pair and of text that was prepared in one way: train "
    "them on the same data folder, with the same flags for the text"
)


def load_models(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    attention_backend: str,
    model_overrides: Mapping[str, Any] | None,
) -> tuple[list[TranslationModel], TranslationTask, int]:
    """Load models with their task, and with the smallest ``max_doc_tokens`` of all models.

    See :meth:`Translator.from_checkpoint` for the arguments and errors.
    """
    # Split joined names of checkpoints, and refuse empty names.
    if isinstance(path, str | os.PathLike):
        path = split_paths(os.fspath(path), ":")
        if "" in path:
            raise ConfigError(
                f"'{':'.join(path)}': an empty name of a checkpoint; give a file, or several with "
                "colons between them"
            )
    if not isinstance(path, Sequence):
        raise ConfigError(f"checkpoint {path!r}: expected the path of a file, or a list of paths")
    # Load the models, which must share dictionaries and text processing.
    loaded = [load_model(file, model_overrides) for file in path]
    if not loaded:
        raise ConfigError("no checkpoint given")
    models, tasks, lengths = zip(*loaded, strict=True)
    for model in models:
        use_backend(model, attention_backend)
    for file, task in zip(path[1:], tasks[1:], strict=True):
        require_same(describe_task(tasks[0]), path[0], describe_task(task), file, ONE_TASK)
    return list(models), tasks[0], min(lengths)


def model_state(model: TranslationModel) -> dict[str, Any]:
    """Return a model as values for another process (ConfigError: it has hooks)."""
    backend = "auto"
    is_int8 = False
    for name, module in model.named_modules():
        if module._forward_hooks or module._forward_pre_hooks:  # functions of this process
            raise ConfigError(
                f"a translator with hooks cannot be pickled or copied, and there are some on "
                f"'{name}'; remove them, or {ELSEWHERE}"
            )
        is_int8 |= isinstance(module, Int8Linear)
        if isinstance(module, Attention):
            backend = module.backend
    # Store tied weights once, with the names of their aliases.
    weights, tied = without_aliases(model.state_dict())
    return {
        "config": to_dict(model.config),
        "weights": save(weights),
        "tied": tied,
        "backend": backend,
        "dtype": next(model.parameters()).dtype,
        "is_int8": is_int8,
    }


def model_of(state: dict[str, Any], task: TranslationTask) -> TranslationModel:
    """Return the model of :func:`model_state` on the CPU (CheckpointError: it was modified)."""
    # Keep the random state: building a model draws weights, which are then replaced.
    with torch.random.fork_rng(devices=[]):
        model = build_model(from_dict(TransformerConfig, state["config"]), task)
    use_backend(model, state["backend"])
    model.to(state["dtype"])
    if state["is_int8"]:
        use_int8(model)
    tensors = load(state["weights"])
    for alias, name in state["tied"].items():
        tensors[alias] = tensors[name]
    load_weights(model, tensors, "the pickled translator")
    # Drop copies made of the initial weights.
    for module in model.modules():
        if isinstance(module, PanelLinear):
            module.drop_copies()
    return model.eval()


def foreign_classes(models: Sequence[TranslationModel], task: TranslationTask) -> list[type]:
    """Return the classes from other packages. A pickle lists them, so that they load first."""
    classes: set[type] = set()
    for model in models:
        classes.update(map(type, model.modules()))
    for text in (task.source_text, task.target_text):
        classes |= {type(text.subword), *text.tokenizers}
    # Leave out classes of this package and PyTorch, which every process imports.
    foreign = [kind for kind in classes if not kind.__module__.startswith(("relu_nmt.", "torch."))]
    # Refuse classes of files that other processes cannot import.
    for kind in foreign:
        if kind.__module__.startswith(MODULE_PREFIX):
            raise ConfigError(
                f"a translator with {kind.__name__} cannot be pickled or copied: it is from a file "
                f"of --user-module, which other processes do not know; {ELSEWHERE}"
            )
    return foreign
