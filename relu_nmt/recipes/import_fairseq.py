"""Convert a transformer trained by fairseq into a checkpoint."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from relu_nmt.applications.conversion.fairseq import (
    read_fairseq,
    transformer_config,
    transformer_tensors,
)
from relu_nmt.cli.import_fairseq import ImportFairseqSettings as Settings
from relu_nmt.config import to_dict
from relu_nmt.errors import CheckpointError, ConfigError
from relu_nmt.recipes.output_files import output_path, target_of
from relu_nmt.tokenization.base import load_subword
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.training.checkpoint import Checkpoint, save_checkpoint
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.loading import build_model
from relu_nmt.translation.task import TranslationTask


def run(settings: Settings, *, progress: bool = True) -> Path:
    """Write a checkpoint with the weights, dictionaries and tokenisation of a model of fairseq.

    Raises:
        CheckpointError: the file is damaged or no fairseq checkpoint, or relu_nmt has no such
            model.
        DataError: a dictionary or a subword model is missing or damaged.
    """
    output = output_path(settings.output)
    # Read weights and settings, then the dictionaries from the data folder.
    theirs, tensors = read_fairseq(settings.checkpoint)
    task = TranslationTask.from_data_folder(
        settings.data, theirs.get("source_lang"), theirs.get("target_lang")
    )
    # Add tokeniser and subwords from the flags or the data folder.
    task = replace(
        task,
        source_text=_pipeline(task.source_text, settings),
        target_text=_pipeline(task.target_text, settings),
    )
    # Translate settings and names of weights.
    config = transformer_config(theirs, settings.checkpoint)
    try:
        ours = transformer_tensors(tensors, config)
    except (RuntimeError, IndexError, ValueError) as error:  # from tensors of a wrong shape
        raise CheckpointError(f"{settings.checkpoint}: damaged weights ({error})") from error
    return save_model(output, config, task, ours, settings.checkpoint, progress)


def _pipeline(known: TextPipeline, settings: Settings) -> TextPipeline:
    """Return the text pipeline from the flags, or the one that the data folder stores."""
    # Without flags, keep the pipeline of the data folder.
    if settings.tokenizer == settings.subword == "none" and not settings.lowercase:
        return known
    if not known.keeps_text:
        raise ConfigError(
            f"{settings.data}: stores the preparation of its text; leave out --tokenizer, "
            "--lowercase and --subword"
        )
    subword = load_subword(settings.subword, settings.subword_model)
    return TextPipeline(  # users of fairseq have the first version of each tokeniser
        known.language, settings.tokenizer, settings.lowercase, subword, tokenizer_version=1
    )


def save_model(
    path: Path,
    config: TransformerConfig,
    task: TranslationTask,
    tensors: Mapping[str, Tensor],
    origin: str,
    progress: bool,
) -> Path:
    """Write a model of another toolkit as a checkpoint; return the path.

    Args:
        path: the checkpoint to write.
        config: settings of the model.
        task: pipelines and dictionaries of the model.
        tensors: weights of the model under relu_nmt's names.
        origin: path of the original model, for messages.
        progress: print the path and the size of the checkpoint.

    Raises:
        CheckpointError: the weights do not fit the settings or the dictionaries, or the file
            cannot be written.
    """
    # Compare the embeddings with the dictionaries, and the names with those of the built model.
    for side, dictionary in (
        ("encoder", task.source_dictionary),
        ("decoder", task.target_dictionary),
    ):
        table = tensors.get(f"{side}.embedding.tokens.weight")
        if table is not None and len(table) != len(dictionary):
            raise CheckpointError(
                f"{origin}: its {side} knows {len(table):,} symbols, but the dictionary has "
                f"{len(dictionary):,}; give the data folder that it was trained on"
            )
    model = build_model(config, task)
    own = model.state_dict()
    for verb, names in (("lacks", own.keys() - tensors), ("also has", tensors.keys() - own)):
        if names:
            shown = ", ".join(sorted(names)[:3])
            raise CheckpointError(
                f"{origin}: relu_nmt's transformer has other weights: the file {verb} {shown}"
            )
    # Load the weights, and write the checkpoint.
    try:
        model.load_state_dict(dict(tensors))
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise CheckpointError(f"{origin}: does not fit its settings: {reason}") from error
    # Store settings and task, from which the model is built again.
    metadata: dict[str, Any] = {"model_config": to_dict(config), "task": task.to_state()}
    metadata["args"] = {"model": to_dict(config)}
    save_checkpoint(target_of(path), Checkpoint(dict(model.state_dict()), metadata))
    if progress:
        pair = f"{task.source_lang}-{task.target_lang}"
        print(f"written: {path} ({pair}, {path.stat().st_size:,} bytes)")
    return path
