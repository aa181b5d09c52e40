"""Convert models to other forms and from other toolkits, average them, and make shortlists."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from relu_nmt.applications.conversion import fairseq
from relu_nmt.applications.conversion.exports import save_ctranslate2, save_image_onnx, save_onnx
from relu_nmt.applications.conversion.hugging_face import read_hub_model
from relu_nmt.config import to_dict
from relu_nmt.data.data_folder import pair_name
from relu_nmt.errors import CheckpointError, ConfigError, DataError, printable, reporting
from relu_nmt.io import safe_write
from relu_nmt.jobs.convert.settings import (
    AverageSettings,
    ImportFairseqSettings,
    ImportMarianSettings,
    ShortlistSettings,
)
from relu_nmt.jobs.convert.settings import ConvertSettings as Settings
from relu_nmt.tokenization.base import load_subword
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.training.checkpoint import (
    SUFFIX,
    Checkpoint,
    average_checkpoints,
    load_checkpoint,
    load_weights,
    read_metadata,
    save_checkpoint,
)
from relu_nmt.training.save_dir import BY_EPOCHS, BY_UPDATES, last_checkpoints
from relu_nmt.translation.agreement import describe_task, fingerprint, require_same
from relu_nmt.translation.building import build_model, load_model
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.search.shortlist import Shortlist
from relu_nmt.translation.task import TASK_NAME as TRANSLATION
from relu_nmt.translation.task import TranslationTask
from relu_nmt.vision.loading import TASK_NAME, ImageClassifier

ONE_MODEL = "only checkpoints of one model on one data folder can be averaged"
MOST_SHOWN = 60  # characters of a value that a message repeats


def run(settings: Settings, *, progress: bool = True) -> Path:
    """Write a checkpoint in another form. Return the path of the output."""
    output = Path(settings.output)
    if settings.to == "checkpoint":
        output = output_path(settings.output, _kind(read_metadata(settings.checkpoint)))
        checkpoint = load_checkpoint(settings.checkpoint)
        checkpoint.metadata.pop("training_state", None)
        save_checkpoint(safe_write.target_of(output), checkpoint)
    else:
        with new_folder(output) as folder:
            if settings.to == "ctranslate2":
                save_ctranslate2(*load_model(settings.checkpoint)[:2], folder)
            elif _kind(read_metadata(settings.checkpoint)) == TASK_NAME:
                classifier = ImageClassifier.from_checkpoint(settings.checkpoint, "cpu")
                save_image_onnx(classifier, folder)
            else:
                save_onnx(*load_model(settings.checkpoint)[:2], folder)
    if progress:
        # Add up the sizes of all files, since some forms are folders.
        files = [output] if output.is_file() else list(output.iterdir())
        size = sum(file.stat().st_size for file in files)
        print(f"written: {output} ({size:,} bytes)")
    return output


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to ``path`` when the block succeeds."""
    # Remove temporary folders of killed runs.
    if path.parent.is_dir():
        safe_write.remove_abandoned(path.parent)
    if path.exists():
        raise ConfigError(f"--output {path}: is there already; give the name of a new folder")
    with reporting(f"--output {path}: cannot write it"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with safe_write.replacing(path) as temporary:
            temporary.mkdir()
            yield temporary


def import_fairseq(settings: ImportFairseqSettings, *, progress: bool = True) -> Path:
    """Write a checkpoint with the weights, dictionaries and tokenization of a model of fairseq."""
    output = output_path(settings.output)
    arguments, tensors = fairseq.read_fairseq(settings.checkpoint)
    task = TranslationTask.from_data_folder(
        settings.data, arguments.get("source_lang"), arguments.get("target_lang")
    )
    task = replace(
        task,
        source_text=_pipeline(task.source_text, settings),
        target_text=_pipeline(task.target_text, settings),
    )
    config = fairseq.transformer_config(arguments, settings.checkpoint)
    try:
        weights = fairseq.transformer_tensors(tensors, config)
    except (RuntimeError, IndexError, ValueError) as error:  # from tensors of a wrong shape
        raise CheckpointError(f"{settings.checkpoint}: damaged weights ({error})") from error
    return save_model(output, config, task, weights, settings.checkpoint, progress)


def _pipeline(stored: TextPipeline, settings: ImportFairseqSettings) -> TextPipeline:
    """Return the text pipeline from the flags, or the one that the data folder stores."""
    if settings.tokenizer == settings.subword == "none" and not settings.lowercase:
        return stored
    if not stored.keeps_text:
        raise ConfigError(
            f"{settings.data}: stores the preparation of its text; leave out --tokenizer, "
            "--lowercase and --subword"
        )
    subword = load_subword(settings.subword, settings.subword_model)
    return TextPipeline(  # users of fairseq have the first version of each tokenizer
        stored.language, settings.tokenizer, settings.lowercase, subword, tokenizer_version=1
    )


def import_marian(settings: ImportMarianSettings, *, progress: bool = True) -> Path:
    """Write a checkpoint with the weights, dictionary and SentencePiece models of a folder."""
    output = output_path(settings.output)
    config, task, tensors = read_hub_model(
        settings.folder, settings.source_lang, settings.target_lang
    )
    return save_model(output, config, task, tensors, settings.folder, progress)


def save_model(
    path: Path,
    config: TransformerConfig,
    task: TranslationTask,
    tensors: Mapping[str, Tensor],
    origin: str,
    progress: bool,
) -> Path:
    """Write a model of another toolkit as a checkpoint. Return the path."""
    # Compare the embeddings with the dictionaries, then all weights with a new model's.
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
    load_weights(model, tensors, origin, advice="relu_nmt's transformer has other weights")
    # Store settings and task, from which the model is built again. --config takes the model with
    # --arch transformer: the default --arch would add the weights of a regularizer.
    metadata: dict[str, Any] = {"model_config": to_dict(config), "task": task.to_state()}
    metadata["args"] = {"model": to_dict(config), "task": {"arch": "transformer"}}
    save_checkpoint(safe_write.target_of(path), Checkpoint(dict(model.state_dict()), metadata))
    if progress:
        pair = f"{task.source_lang}-{task.target_lang}"
        print(printable(f"written: {path} ({pair}, {path.stat().st_size:,} bytes)"))
    return path


def output_path(text: str, kind: str | None = TRANSLATION) -> Path:
    """Return the checkpoint path that ``--output`` gives. Its name must end like a checkpoint's."""
    if not text.endswith(SUFFIX):
        raise ConfigError(f"--output {text}: give the name of a checkpoint, ending in {SUFFIX}")
    check_replaceable(text, kind)
    return Path(text)


def check_replaceable(path: str, kind: str | None) -> None:
    """Check that ``--output`` can be written, and replaces nothing but weights of this kind."""
    safe_write.check_writable("--output", path)
    if not Path(path).exists():
        return
    try:
        earlier = read_metadata(path)
    except CheckpointError as error:
        raise DataError(
            f"--output {path}: is there already; give another name ({error})"
        ) from error
    # Weights of the same task may be replaced, but not the state of a training.
    other = _kind(earlier)
    if "training_state" in earlier:
        reason = "holds the state that a training goes on from"
    elif other != kind:
        reason = f"is there already, a checkpoint of {other}, not of {kind}"
    else:
        return
    raise DataError(f"--output {path}: {reason}, and would be lost; give another name")


def _kind(metadata: Mapping[str, Any]) -> str | None:
    """Return the task of a checkpoint with this metadata, if it is known."""
    name: str | None = metadata.get("task", {}).get("name")
    return name


def average(settings: AverageSettings, *, progress: bool = True) -> Path:
    """Write a checkpoint with the mean weights of several models. Return its path."""
    safe_write.check_writable("--output", settings.output)  # before anything is read
    inputs = [Path(path) for path in settings.inputs]
    for count, pattern in (
        (settings.num_epoch_checkpoints, BY_EPOCHS),
        (settings.num_update_checkpoints, BY_UPDATES),
    ):
        if count is not None:
            inputs = last_checkpoints(inputs[0], count, pattern, settings.checkpoint_upper_bound)
    check_replaceable(settings.output, _kind(read_metadata(inputs[0])))
    if progress:
        print(f"averaging {len(inputs)}: {', '.join(map(str, inputs))}")
    save_checkpoint(
        safe_write.target_of(settings.output), average_checkpoints(inputs, require_same_model)
    )
    if progress:
        print(f"written: {settings.output}")
    return Path(settings.output)


def require_same_model(first: Checkpoint, first_path: Path, other: Checkpoint, path: Path) -> None:
    """Refuse a checkpoint whose model or task has other settings than the first one's."""
    require_same(_described(first), first_path, _described(other), path, ONE_MODEL)


def _described(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the settings of a model and of its task in words, by name."""
    task = checkpoint.metadata.get("task") or {}
    model = {"model setting": checkpoint.metadata.get("model_config") or {}}
    if task.get("name") == TRANSLATION:
        return _leaves(model) | describe_task(TranslationTask.from_state(task))
    return _leaves(model) | _leaves({"task": task})


def _leaves(values: Mapping[str, Any], name: str = "") -> dict[str, str]:
    """Return nested values in words, named by the path to each."""
    leaves: dict[str, str] = {}
    for key, value in values.items():
        path = f"{name} {key}".strip()
        if isinstance(value, Mapping):
            leaves |= _leaves(value, path)
        else:
            text = json.dumps(value)
            is_short = len(text) <= MOST_SHOWN
            leaves[path] = text if is_short else f"{len(text):,} bytes {fingerprint(text)}"
    return leaves


def shortlist(settings: ShortlistSettings, *, progress: bool = True) -> Path:
    """Write a shortlist of target symbols for each source symbol. Return its path."""
    safe_write.check_writable("--output", settings.output)
    task = TranslationTask.from_data_folder(
        settings.data, settings.source_lang, settings.target_lang
    )
    split = task.load_split(settings.gen_subset)
    if split.target is None:
        raise DataError(f"{split.stem}: has no target side, from which translations are learned")
    # Choose pairs at equal distances, or each pair once if the split is small.
    chosen = np.unique(
        np.linspace(0, len(split) - 1, min(settings.pairs, len(split))).round().astype(int)
    )
    pairs = (split.pair(int(i)) for i in chosen[chosen >= 0])
    sizes = (len(task.source_dictionary), len(task.target_dictionary))
    # Leave out the end symbols, which are no translations.
    ends_off = ((source[:-1], target[:-1]) for source, target in pairs if target is not None)
    learned = Shortlist.learn(ends_off, sizes, settings.candidates, settings.common)
    pair = pair_name(task.source_lang, task.target_lang)
    text = learned.to_text(task.source_dictionary, task.target_dictionary, pair)
    safe_write.write_output("--output", settings.output, text)
    if progress:
        print(f"written: {settings.output}")
    return Path(settings.output)
