"""Construction of models from a task, and loading of models from checkpoints."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from relu_nmt.config import from_dict
from relu_nmt.config.fields import known_fields
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.documents import SINGLE_SENTENCES, DocumentConfig
from relu_nmt.errors import CheckpointError, ConfigError
from relu_nmt.training.checkpoint import Checkpoint, load_checkpoint, load_weights
from relu_nmt.translation.aligned import AlignedDecoder, AlignedEncoder
from relu_nmt.translation.aligned_attention import DocumentGate
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.task import TranslationTask

EMBEDDINGS = ("encoder.embedding.tokens", "decoder.embedding.tokens", "output_projection")


def build_model(config: TransformerConfig, task: TranslationTask) -> EncoderDecoder:
    """Return a new model for the task's dictionaries.

    Raises:
        ConfigError: settings contradict each other or the dictionaries.
    """
    return EncoderDecoder(
        config,
        len(task.source_dictionary),
        len(task.target_dictionary),
        # Pass the target's padding symbol for both sides: special symbols have equal ids.
        task.target_dictionary.pad_index,
        task.separators,
    )


def start_weights(model: EncoderDecoder, checkpoint: Checkpoint) -> Mapping[str, Tensor]:
    """Return the weights of another model as initial weights of this one.

    A model with aligned attention can start from one without. Its gates, which the other model
    lacks, keep their initial weights. Unknown separators become copies of ``</s>``, so that the
    model ends each sentence as it ended single ones.

    Args:
        model: the new model.
        checkpoint: of the other model.
    """
    encoder, decoder = model.encoder, model.decoder
    if not (isinstance(encoder, AlignedEncoder) and isinstance(decoder, AlignedDecoder)):
        return checkpoint.model_tensors
    # Fill in the gates that the other model lacks.
    separators = encoder.separator, decoder.separator, decoder.separator
    own, start = model.state_dict(), dict(checkpoint.model_tensors)
    gates = {name for name, part in model.named_modules() if isinstance(part, DocumentGate)}
    for name in own:
        if name.rpartition(".")[0] in gates:
            start.setdefault(name, own[name])
    # Copy ``</s>`` to the separators, where the other model does not know them.
    if not TranslationTask.from_state(checkpoint.metadata["task"]).has_sentence_separator:
        for part, separator in zip(EMBEDDINGS, separators, strict=True):
            if (table := start.get(f"{part}.weight")) is not None:
                start[f"{part}.weight"] = table = table.clone()
                table[separator] = table[Dictionary.eos_index]
    return start


@dataclasses.dataclass
class LoadedModel:
    """A model in evaluation mode, with its task.

    Args:
        max_doc_tokens: number of tokens of the longest groups of sentences in training; 1: single
            sentences.
    """

    model: EncoderDecoder
    task: TranslationTask
    max_doc_tokens: int = SINGLE_SENTENCES


def load_model(
    path: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None
) -> LoadedModel:
    """Return the model and the task of a checkpoint, on the CPU, in evaluation mode.

    Args:
        path: the checkpoint.
        overrides: settings of the model that replace those of the checkpoint.

    Raises:
        ConfigError: a setting does not exist.
        CheckpointError: the file is missing or damaged, or its weights do not fit its settings.
    """
    # Check that it is the checkpoint of a translation model.
    checkpoint = load_checkpoint(path)
    refuse_images(path, checkpoint.metadata)
    missing = {"model_config", "task"} - checkpoint.metadata.keys()
    if missing:
        raise CheckpointError(
            f"{path}: no {' and no '.join(sorted(missing))} in it; "
            "it is not the checkpoint of a translation model"
        )
    # Combine the stored settings with the given ones.
    task = TranslationTask.from_state(checkpoint.metadata["task"])
    try:
        changed = known_fields(TransformerConfig, overrides or {})
    except ConfigError as error:
        raise ConfigError(f"--model-overrides: {error}") from error
    stored = checkpoint.metadata["model_config"]
    if not isinstance(stored, dict):
        raise CheckpointError(f"{path}: its model_config is no table of settings")
    # Build the model and load its weights.
    settings = {**stored, **changed}
    try:
        model = build_model(from_dict(TransformerConfig, settings), task)
    except ConfigError as error:  # for example an attention from a user's file
        raise CheckpointError(f"{path}: {error}") from error
    load_weights(model, checkpoint.model_tensors, path)
    return LoadedModel(model.eval(), task, _max_doc_tokens(checkpoint.metadata, path))


def refuse_images(path: str | os.PathLike[str], metadata: Mapping[str, Any]) -> None:
    """Raise a CheckpointError if a checkpoint is that of an image classifier."""
    task = metadata.get("task")
    if isinstance(task, dict) and task.get("name") == "image_classification":
        raise CheckpointError(
            f"{path}: the checkpoint of an image classifier; expected that of a translation model"
        )


def _max_doc_tokens(metadata: Mapping[str, Any], path: str | os.PathLike[str]) -> int:
    """Return the number of tokens of the longest groups in the settings of the training."""
    settings = metadata.get("args") or {}
    try:
        documents = from_dict(DocumentConfig, settings.get("documents") or {})
    except (ConfigError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{path}: its settings of documents are damaged: {error}") from error
    return max(documents.training_lengths, default=SINGLE_SENTENCES)
