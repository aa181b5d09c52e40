"""From a task to its model, and from a checkpoint to both."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from relu_nmt.attention import attentions
from relu_nmt.attention.spec import SLOTS, AttentionSpec
from relu_nmt.config import from_dict
from relu_nmt.corpus.translation import TranslationTask
from relu_nmt.data.groups import SINGLE_SENTENCES, DocumentConfig
from relu_nmt.errors import CheckpointError, ConfigError
from relu_nmt.models.config import TransformerConfig
from relu_nmt.models.encoder_decoder import EncoderDecoder
from relu_nmt.training.checkpoint import load_checkpoint


def build_model(config: TransformerConfig, task: TranslationTask) -> EncoderDecoder:
    """Return a new model for the task's dictionaries.

    Raises:
        ConfigError: settings that contradict each other or the dictionaries.
    """
    return EncoderDecoder(
        config,
        len(task.source_dictionary),
        len(task.target_dictionary),
        task.target_dictionary.pad_index,
    )


@dataclasses.dataclass
class LoadedModel:
    """A model in evaluation mode and what it was trained for.

    Args:
        model: the model.
        task: its text and dictionaries.
        max_doc_tokens: the longest groups of sentences that it learnt from, in tokens; 1: single
            sentences.
    """

    model: EncoderDecoder
    task: TranslationTask
    max_doc_tokens: int = SINGLE_SENTENCES


def load_model(path: str | os.PathLike[str]) -> LoadedModel:
    """Return the model and the task of a checkpoint, on the CPU, in evaluation mode.

    Raises:
        CheckpointError: the file is missing or damaged, or its weights do not fit its settings.
    """
    checkpoint = load_checkpoint(path)
    missing = {"model_config", "task"} - checkpoint.metadata.keys()
    if missing:
        raise CheckpointError(
            f"{path}: no {' and no '.join(sorted(missing))} in it; "
            "it is not the checkpoint of a translation model"
        )
    task = TranslationTask.from_state(checkpoint.metadata["task"])
    config = from_dict(TransformerConfig, checkpoint.metadata["model_config"])
    for slot in SLOTS:
        name = AttentionSpec.parse(config.attention_of(slot)).name
        if name not in attentions.names():
            raise CheckpointError(
                f"{path}: its attention '{name}' is none of relu_nmt's; name the file that "
                "registers it: --user-module FILE (in Python: import it before loading)"
            )
    model = build_model(config, task)
    try:
        model.load_state_dict(checkpoint.model_tensors)
    except RuntimeError as error:
        # PyTorch lists every tensor on a line of its own; the first one tells what is wrong.
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{path}: the weights do not fit the settings: {reason}") from error
    return LoadedModel(model.eval(), task, _max_doc_tokens(checkpoint.metadata, path))


def _max_doc_tokens(metadata: Mapping[str, Any], path: str | os.PathLike[str]) -> int:
    """Return the longest groups that the checkpoint's settings of the training name."""
    settings = metadata.get("args") or {}
    try:
        documents = from_dict(DocumentConfig, settings.get("documents") or {})
    except (ConfigError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{path}: its settings of documents are damaged: {error}") from error
    return max(documents.training_lengths, default=SINGLE_SENTENCES)
