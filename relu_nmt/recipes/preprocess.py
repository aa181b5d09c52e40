"""From text files to a data folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relu_nmt.corpus.preprocess import build_data_folder
from relu_nmt.corpus.preprocess_config import PreprocessConfig as Settings
from relu_nmt.data.data_folder import read_manifest
from relu_nmt.io.progress_bar import hidden_progress


@dataclass(frozen=True)
class PreprocessResult:
    """The data folder that was made.

    Args:
        folder: where it is.
        manifest: what is in it; ``None`` if only dictionaries were asked for.
    """

    folder: Path
    manifest: dict[str, Any] | None


def run(settings: Settings, *, progress: bool = True) -> PreprocessResult:
    """Make a data folder, or finish one that was interrupted.

    Args:
        settings: what to make it of, and how.
        progress: print what was made on standard output, and progress bars on standard error.

    Raises:
        DataError: a file is missing, damaged or not parallel to its counterpart, or the folder
            holds something else already.
        ConfigError: the settings do not suit the text.
    """
    with hidden_progress(not progress):
        build_data_folder(settings, print if progress else lambda _: None)
    folder = Path(settings.destdir)
    return PreprocessResult(folder, None if settings.dict_only else read_manifest(folder))
