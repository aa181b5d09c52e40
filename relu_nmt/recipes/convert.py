"""Write a model in the form of another program, or for decoding alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relu_nmt.cli.convert import ConvertSettings as Settings
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.io.safe_write import remove_abandoned, replacing
from relu_nmt.recipes.output_files import check_writable, output_path, target_of
from relu_nmt.training.checkpoint import load_checkpoint, read_metadata, save_checkpoint
from relu_nmt.translation.loading import load_model
from relu_nmt.vision.loading import TASK_NAME, ImageClassifier


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
    """Yield a temporary folder that is renamed to ``path`` when the block succeeds.

    Raises:
        ConfigError: ``path`` exists already.
        DataError: the folder cannot be made, or written to.
    """
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
