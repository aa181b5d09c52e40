"""A shortlist of target symbols for each source symbol, learnt from a data folder."""

from pathlib import Path

import numpy as np

from relu_nmt.cli.shortlist import ShortlistSettings as Settings
from relu_nmt.data.data_folder import pair_name
from relu_nmt.errors import DataError
from relu_nmt.io.safe_write import check_writable, write_file
from relu_nmt.translation.search.shortlist import Shortlist
from relu_nmt.translation.task import TranslationTask


def run(settings: Settings, *, progress: bool = True) -> Path:
    """Write the shortlist.

    Returns:
        the file.

    Raises:
        DataError: the folder is missing or damaged or has no target side, or the file cannot be
            written.
    """
    check_writable("--output", settings.output)
    task = TranslationTask.from_data_folder(
        settings.data, settings.source_lang, settings.target_lang
    )
    split = task.load_split(settings.gen_subset)
    if split.target is None:
        raise DataError(f"{split.stem}: has no target side, from which translations are learnt")
    # Choose pairs at equal distances; a small split gives each pair once.
    chosen = np.unique(np.linspace(0, len(split) - 1, settings.pairs).round().astype(int))
    pairs = (split.pair(int(i)) for i in chosen[chosen >= 0])
    dictionaries = task.source_dictionary, task.target_dictionary
    source_size, target_size = map(len, dictionaries)
    # Leave out the end symbols, which are no translations.
    ends_off = ((source[:-1], target[:-1]) for source, target in pairs if target is not None)
    shortlist = Shortlist.learn(
        ends_off, (source_size, target_size), settings.candidates, settings.common
    )
    pair = pair_name(task.source_lang, task.target_lang)
    write_file("--output", settings.output, shortlist.to_text(*dictionaries, pair))
    if progress:
        print(f"written: {settings.output}")
    return Path(settings.output)
