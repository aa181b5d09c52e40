"""Translation models that are made for a task, or loaded from a checkpoint."""

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from relu_nmt.config import from_dict
from relu_nmt.config.fields import known_fields
from relu_nmt.config.parts import chosen_part
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.document_settings import DocumentConfig
from relu_nmt.errors import CheckpointError, ConfigError, OutOfMemoryError, reporting
from relu_nmt.modules.building import build_in_memory
from relu_nmt.modules.positions import LearnedPositions
from relu_nmt.training.checkpoint import Checkpoint, load_checkpoint, load_weights, read_metadata
from relu_nmt.translation.aligned import SENTENCE_BIAS, DocumentGate
from relu_nmt.translation.base import TranslationModel
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.task import TranslationTask

EMBEDDINGS = ("encoder.embedding.tokens", "decoder.embedding.tokens", "output_projection")


def build_model(config: TransformerConfig, task: TranslationTask) -> TranslationModel:
    """Return a new model for the task's dictionaries (ConfigError, OutOfMemoryError)."""
    make, options = chosen_part(config, "translation_model")
    arguments = [
        config,
        len(task.source_dictionary),
        len(task.target_dictionary),
        # Pass the target's padding symbol for both sides: special symbols have equal ids.
        task.target_dictionary.pad_index,
        task.separators,
    ]
    if options is not None:
        arguments.append(options)
    return build_in_memory(lambda: make(*arguments))


def start_weights(model: TranslationModel, checkpoint: Checkpoint) -> Mapping[str, Tensor]:
    """Return the weights of another model as initial weights of this one.

    A document model can start from a sentence model. At first it then translates single sentences
    exactly as the sentence model does:

    - The gates of aligned attention start near 1, the part inside a sentence. In a document of one
      sentence they have no effect.
    - The separator, if it is a new last symbol, becomes a copy of ``</s>``, so that the model ends
      each sentence of a document as it ended single ones.
    - A longer table of learned positions repeats the rows of the stored table.

    Reference: Beltagy et al. 2020, "Longformer", section 5, for the positions.
    """
    start = dict(checkpoint.model_tensors)
    kinds = {name: type(part) for name, part in model.named_modules(remove_duplicate=False)}
    for name, tensor in model.state_dict().items():
        part = name.rpartition(".")[0]
        if kinds[part] is DocumentGate and name not in start:
            is_bias = name.endswith(".bias")
            start[name] = torch.full_like(tensor, SENTENCE_BIAS) if is_bias else tensor
        # Add the missing rows of tables.
        if name not in start or start[name].shape[:1] >= tensor.shape[:1]:
            continue
        if kinds[part] is LearnedPositions:
            times = -(-len(tensor) // len(start[name]))
            start[name] = start[name].repeat(times, 1)[: len(tensor)]
        elif part in EMBEDDINGS and len(tensor) == len(start[name]) + 1:
            start[name] = torch.cat([start[name], start[name][[Dictionary.eos_index]]])
    return start


def load_model(
    path: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None
) -> tuple[TranslationModel, TranslationTask, int]:
    """Return a checkpoint's model on the CPU in evaluation mode, its task and its group limit.

    The group limit is the most tokens of a group of sentences in training. 1 stands for single
    sentences. ``overrides`` replace stored settings of the model.
    """
    checkpoint = load_checkpoint(path)
    refuse_images(path, checkpoint.metadata)
    missing = {"model_config", "task"} - checkpoint.metadata.keys()
    if missing:
        raise CheckpointError(
            f"{path}: no {' and no '.join(sorted(missing))} in it; "
            "it is not the checkpoint of a translation model"
        )
    task = TranslationTask.from_state(checkpoint.metadata["task"])
    with reporting("--model-overrides", ConfigError, ConfigError):
        changed = known_fields(TransformerConfig, overrides or {})
    stored = checkpoint.metadata["model_config"]
    where = f"{path} with --model-overrides {overrides}" if changed else path
    unfit = ConfigError, OutOfMemoryError  # such as an attention from a user's file
    with reporting(where, CheckpointError, unfit):
        model = build_model(from_dict(TransformerConfig, {**stored, **changed}), task)
    advice = f"leave out what changes its shapes: --model-overrides {overrides}" if changed else ""
    load_weights(model, checkpoint.model_tensors, path, advice=advice)
    return model.eval(), task, _max_doc_tokens(checkpoint.metadata, path)


def stored_task(path: str | os.PathLike[str]) -> TranslationTask | None:
    """Return the task of a checkpoint. None if it has none."""
    metadata = read_metadata(path)
    refuse_images(path, metadata)
    return TranslationTask.from_state(metadata["task"]) if "task" in metadata else None


def refuse_images(path: str | os.PathLike[str], metadata: Mapping[str, Any]) -> None:
    """Raise a CheckpointError for the checkpoint of an image classifier."""
    if metadata.get("task", {}).get("name") == "image_classification":
        raise CheckpointError(
            f"{path}: the checkpoint of an image classifier; expected that of a translation model"
        )


def _max_doc_tokens(metadata: Mapping[str, Any], path: str | os.PathLike[str]) -> int:
    """Return the limit of tokens in a group of sentences from the settings of the training."""
    settings = metadata.get("args") or {}
    wrong = ConfigError, AttributeError, TypeError
    with reporting(f"{path}: its settings of documents are damaged", CheckpointError, wrong):
        documents = from_dict(DocumentConfig, settings.get("documents") or {})
    return documents.longest_in_training
