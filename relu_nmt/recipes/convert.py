"""Write a model in the form of another program, and read models of other toolkits."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from relu_nmt.applications.conversion.fairseq import (
    read_fairseq,
    transformer_config,
    transformer_tensors,
)
from relu_nmt.applications.conversion.marian import MarianModel
from relu_nmt.cli.convert import ConvertSettings as Settings
from relu_nmt.cli.import_fairseq import ImportFairseqSettings
from relu_nmt.cli.import_marian import ImportMarianSettings
from relu_nmt.config import to_dict
from relu_nmt.errors import CheckpointError, ConfigError, DataError
from relu_nmt.io.safe_write import check_writable, remove_abandoned, replacing, target_of
from relu_nmt.tokenization.base import load_subword
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.training.checkpoint import (
    SUFFIX,
    Checkpoint,
    load_checkpoint,
    read_metadata,
    save_checkpoint,
)
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.encoder_decoder import build_model, load_model
from relu_nmt.translation.task import TranslationTask
from relu_nmt.vision.loading import TASK_NAME, ImageClassifier

TRANSLATION = {"name": "translation"}
"""The task of translation models, see :data:`relu_nmt.translation.task.TASK_NAME`."""


def run(settings: Settings, *, progress: bool = True) -> Path:
    """Write a checkpoint in another form; return the path of the output.

    Raises:
        CheckpointError: the checkpoint is damaged, or the form does not support its model.
        ConfigError: the output is an existing folder, or has a wrong name.
        DataError: the output cannot be written, or replaces a checkpoint of another kind.
        MissingExtraError: the form needs a package that is not installed.
    """
    output = Path(settings.output)
    if settings.to == "checkpoint":
        check_writable("--output", settings.output)
        output = output_path(settings.output, read_metadata(settings.checkpoint).get("task"))
        # Leave out the state of the optimiser.
        checkpoint = load_checkpoint(settings.checkpoint)
        checkpoint.metadata.pop("training_state", None)
        save_checkpoint(target_of(output), checkpoint)
    elif settings.to == "ctranslate2":
        # Import here, since this form may need packages that are not installed.
        from relu_nmt.applications.conversion.ctranslate2 import save_ctranslate2

        with new_folder(output) as folder:
            save_ctranslate2(load_model(settings.checkpoint), folder)
    else:
        from relu_nmt.applications.conversion.onnx import save_image_onnx, save_onnx

        # The metadata name the kind of the model.
        task = read_metadata(settings.checkpoint).get("task")
        with new_folder(output) as folder:
            if isinstance(task, dict) and task.get("name") == TASK_NAME:
                classifier = ImageClassifier.from_checkpoint(settings.checkpoint, "cpu")
                save_image_onnx(classifier, folder)
            else:
                save_onnx(load_model(settings.checkpoint), folder)
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
        remove_abandoned(path.parent)
    if path.exists():
        raise ConfigError(f"--output {path}: is there already; give the name of a new folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.mkdir()
            yield temporary
    except OSError as error:
        raise DataError(f"--output {path}: cannot write it: {error.strerror}") from error


def import_fairseq(settings: ImportFairseqSettings, *, progress: bool = True) -> Path:
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


def _pipeline(known: TextPipeline, settings: ImportFairseqSettings) -> TextPipeline:
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


def import_marian(settings: ImportMarianSettings, *, progress: bool = True) -> Path:
    """Write a checkpoint with the weights, dictionary and SentencePiece models of a folder.

    Raises:
        CheckpointError: a file is damaged or missing, or relu_nmt has no such model.
        ConfigError: the model lacks the target language, or has several and none is given.
        DataError: a SentencePiece model is missing or damaged, or the checkpoint cannot be
            written.
    """
    output = output_path(settings.output)
    theirs = MarianModel.read(settings.folder, settings.target_lang)
    words = theirs.dictionary()
    # Each side has its own SentencePiece model; the target code comes first in each source.
    source, target = (
        TextPipeline(
            language, subword=load_subword("sentencepiece", Path(settings.folder, f"{side}.spm"))
        )
        for side, language in zip(("source", "target"), theirs.languages, strict=True)
    )
    source = replace(source, first_symbol=theirs.target_code)
    task = TranslationTask(source, target, words, words)
    config, tensors = theirs.config(), theirs.our_tensors()
    return save_model(output, config, task, tensors, settings.folder, progress)


def save_model(
    path: Path,
    config: TransformerConfig,
    task: TranslationTask,
    tensors: Mapping[str, Tensor],
    origin: str,
    progress: bool,
) -> Path:
    """Write a model of another toolkit as a checkpoint; return the path."""
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


def output_path(text: str, task: Mapping[str, Any] | None = TRANSLATION) -> Path:
    """Return the checkpoint path that ``--output`` gives; see :func:`check_replaceable`.

    Raises:
        ConfigError: the name does not end like a checkpoint's.
        DataError: the file cannot be written, or would replace something else.
    """
    if not text.endswith(SUFFIX):
        raise ConfigError(f"--output {text}: give the name of a checkpoint, ending in {SUFFIX}")
    check_replaceable(text, task)
    return Path(text)


def check_replaceable(path: str, task: Mapping[str, Any] | None) -> None:
    """Check that ``--output`` can be written and replaces at most weights of the same task.

    Raises:
        DataError: the file cannot be written, or would replace something else.
    """
    check_writable("--output", path)
    if not Path(path).exists():
        return
    try:
        earlier = read_metadata(path)
    except CheckpointError as error:
        raise DataError(
            f"--output {path}: is there already; give another name ({error})"
        ) from error
    # Weights of the same task may be replaced, but no state of a training.
    kind, other = (task or {}).get("name"), (earlier.get("task") or {}).get("name")
    if "training_state" in earlier:
        reason = "holds the state that a training goes on from"
    elif kind != other:
        reason = f"is there already, a checkpoint of {other}, not of {kind}"
    else:
        return
    raise DataError(f"--output {path}: {reason}, and would be lost; give another name")
