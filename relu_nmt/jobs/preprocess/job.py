"""Make a data folder from text files: dictionaries, binarized data and a manifest.

The steps scan all files, convert raw text to tokens (:mod:`relu_nmt.jobs.preprocess.text`),
build the dictionaries, binarize, and write the manifest. A journal records each finished step, so
that an interrupted run continues where it stopped. The files move into the data folder when all
are complete.
"""

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import relu_nmt
from relu_nmt.config import flag_of, to_dict
from relu_nmt.data import data_folder
from relu_nmt.data.binarize import binarize, binarize_alignments, count_words
from relu_nmt.data.data_folder import Journal
from relu_nmt.data.dictionary import UNK, Dictionary
from relu_nmt.data.indexed_dataset import IndexedDataset
from relu_nmt.errors import DataError, printable
from relu_nmt.io.cluster import ClusterJob, cluster_queue, result_of
from relu_nmt.io.progress import hidden_progress, progress_bar
from relu_nmt.io.safe_write import folder_locked, remove_abandoned
from relu_nmt.io.text_lines import TextFile
from relu_nmt.jobs.preprocess.inputs import Inputs, NewFolder, SideKey, scan_inputs
from relu_nmt.jobs.preprocess.settings import PreprocessSettings as Settings
from relu_nmt.jobs.preprocess.text import TokenizedText, describe_round_trip, tokenize
from relu_nmt.tokenization.base import subword_models, tokenizers

CLUSTER_FOLDER = "jobs"
GIVEN_FILES = ("srcdict", "tgtdict", "subword_model", "target_subword_model")
# Settings that are not in the key: they do not change the result, or name files, whose contents are
# in the key.
NOT_IN_KEY = (
    *("workers", "overwrite", "destdir", "task", "dataset_impl", "no_progress_bar"),
    *("cluster", "cluster_parameters", "like"),
    *("trainpref", "validpref", "testpref", "align_suffix", *GIVEN_FILES),
)
SIDE_COUNTS = {"sentences": int, "tokens": int, "unknown": int}


def run(settings: Settings, *, progress: bool = True) -> dict[str, Any]:
    """Make a data folder, or one for each shard, or finish an interrupted one.

    Returns the manifest. With several shards it is the first one's, which has dictionaries and
    subwords. With ``dict_only`` it is empty.
    """
    settings.refuse_idle_limits()
    # Make the first folder, which gives further ones dictionaries and subwords.
    if len(settings.training_texts) < 2:
        return _run_one(settings, progress)
    first, *further = settings.shards()
    result = _run_one(first, progress)
    if settings.cluster is None:
        for shard in further:
            _run_one(shard, progress)
        return result
    folder = Path(settings.destdir).absolute()
    submit = cluster_queue(settings.cluster, settings.asked_for, folder / CLUSTER_FOLDER)
    jobs = {}
    for shard in further:
        name = Path(shard.destdir).name
        jobs[name] = submit(ClusterJob(partial(_run_one, progress=False), shard), name)
    for name, job in jobs.items():
        result_of(job)
        if progress:
            print(f"{name}: made by job {job.job_id}")
    return result


def _run_one(settings: Settings, progress: bool) -> dict[str, Any]:
    """Make one data folder, see :func:`run`."""

    def say(line: str) -> None:
        if progress:
            print(printable(line))

    try:
        if settings.like is None:
            folder = NewFolder(settings, say, settings.by_language(settings.languages))
        else:
            # Import late what needs PyTorch.
            from relu_nmt.jobs.preprocess.like import folder_like

            folder = folder_like(settings, settings.like, say)
        hides_progress = settings.no_progress_bar or not progress
        with hidden_progress(hides_progress), ExitStack() as open_files:
            return _make_folder(folder, open_files)
    except BrokenPipeError:  # the reader of standard output has ended, and no file is at fault
        raise
    except OSError as error:
        path = error.filename or settings.destdir
        raise DataError(
            f"{path}: cannot write: {error.strerror}; the data folder is not complete"
        ) from error


def _make_folder(folder: NewFolder, open_files: ExitStack) -> dict[str, Any]:
    """Do all unfinished steps in the locked folder. Return the manifest."""
    # Read through all inputs first, for the key, so that mistakes are reported early.
    inputs = scan_inputs(folder, open_files)
    key = _key(folder, inputs)
    folder.path.mkdir(parents=True, exist_ok=True)
    # Lock the folder, since two runs would mix their files.
    with folder_locked(folder.path) as is_free:
        if not is_free:
            raise DataError(
                f"{folder.config.destdir}: another relu-nmt-preprocess is writing to it; wait "
                "for that one, or give another --destdir"
            )
        remove_abandoned(folder.path)
        data_folder.move_complete_files(folder.path)
        manifest = _check_folder(folder, key)
        if manifest is not None:
            folder.say(f"{folder.config.destdir}: complete already, nothing to do")
            return manifest
        return _build(folder, inputs, key)


def _build(folder: NewFolder, inputs: Inputs, key: str) -> dict[str, Any]:
    """Do all unfinished steps. The journal skips finished ones."""
    journal = Journal(folder.work, key)
    tokenized = tokenize(folder, inputs, journal)
    # Test on a sample that tokens decode to the original text.
    for language, pipeline in tokenized.pipelines.items():
        if not pipeline.keeps_text:
            text = next(text for (_, side), text in inputs.texts.items() if side == language)
            report = describe_round_trip(pipeline, text, folder.config.document_separator)
            folder.say(f"[{language}] {report}")
    dictionaries = _make_dictionaries(folder, journal, tokenized)
    manifest = {}
    # Write the manifest last, since it marks the folder as complete.
    if not folder.config.dict_only:
        counts = _binarize(folder, journal, tokenized, dictionaries)
        alignments = _binarize_alignments(folder, journal, tokenized)
        content = _describe(folder, key, tokenized, dictionaries, counts, alignments)
        manifest = data_folder.write_manifest(folder.new_files, content)
    folder.new_files.rename(folder.path / data_folder.COMPLETE_FOLDER)
    data_folder.move_complete_files(folder.path)
    return manifest


def _key(folder: NewFolder, inputs: Inputs) -> str:
    """Return a hash of a folder's settings and of the contents of its input files."""
    settings = to_dict(folder.config)
    for name in NOT_IN_KEY:
        settings.pop(name, None)
    if not folder.config.subword_sampling:  # keep the keys of folders of earlier versions
        del settings["subword_sampling"]
    for language, pipeline in folder.model_pipelines.items():
        settings[f"text {language}"] = pipeline.to_state()
    for language, dictionary in folder.model_dictionaries.items():
        settings[f"words {language}"] = dictionary.to_text()
    contents: dict[str, Any] = {}
    for (split, language), text in inputs.texts.items():
        contents[f"{split}.{language}"] = text.sha256
    for split, text in inputs.alignments.items():
        contents[f"{split} alignments"] = text.sha256
    for name, path in _given_files(folder).items():
        if not path.is_file():
            reason = "is a folder" if path.is_dir() else "no such file"
            raise DataError(f"{getattr(folder.config, name)}: {reason} ({flag_of(name)})")
        contents[name] = data_folder.file_record(path)["sha256"]
    # Add versions, on which tokens depend.
    hashed: dict[str, Any] = {"settings": settings, "contents": contents}
    hashed["versions"] = _versions(folder)
    # Add tokenizer versions above 1 only, so that old folders keep their keys.
    version = tokenizers.get(folder.config.tokenizer).version()
    if version > 1:
        hashed["tokenizer_version"] = version
    return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()


def _given_files(folder: NewFolder) -> dict[str, Path]:
    """Return the paths of given dictionaries and subword models by the setting's name."""
    paths = {name: getattr(folder.config, name) for name in GIVEN_FILES}
    return {name: Path(path).absolute() for name, path in paths.items() if path is not None}


def _check_folder(folder: NewFolder, key: str) -> dict[str, Any] | None:
    """Return the manifest if the folder is complete. Refuse to replace another folder."""
    # Read the manifest. Remove a damaged one only with --overwrite.
    manifest_path = folder.path / data_folder.MANIFEST_NAME
    advice = "give another --destdir, or --overwrite to replace it"
    try:
        manifest = data_folder.manifest_content(folder.path, advice)
    except DataError:
        if not folder.config.overwrite:
            raise
        manifest_path.unlink()
        return None
    if manifest is None:
        # Refuse to replace present dictionaries, unless an unfinished run explains them.
        if not folder.config.overwrite and not folder.work.exists():
            _refuse_dictionaries(folder.config)
        return None
    # A complete folder with the same key needs no work, unless a file was damaged.
    if manifest.get("key") == key:
        try:
            return data_folder.read_manifest(folder.path, with_checksums=True)
        except DataError as damage:
            folder.say(f"{damage}: making the folder again")
            manifest_path.unlink()
            return None
    if not folder.config.overwrite:
        raise DataError(
            f"{folder.config.destdir}: holds data made from other text or settings; {advice}"
        )
    # Remove all files of the old folder, so that no old file is taken for a new one.
    manifest_path.unlink()
    given = [path.resolve() for path in _given_files(folder).values()]
    for name in manifest["files"]:
        path = folder.path / name
        if os.path.isfile(path) and path.resolve() not in given:
            path.unlink()
    return None


def _refuse_dictionaries(config: Settings) -> None:
    """Refuse a folder with dictionaries that were not given."""
    for language, given_path in config.by_language((config.srcdict, config.tgtdict)).items():
        path = data_folder.dictionary_path(config.destdir, language)
        if path.exists() and not given_path:
            raise DataError(
                f"{path}: exists already; give another --destdir, --overwrite to replace "
                "it, or the dictionary to use (--srcdict, --tgtdict)"
            )


def _make_dictionaries(
    folder: NewFolder, journal: Journal, tokenized: TokenizedText
) -> dict[str, Dictionary]:
    """Build the dictionaries of all languages in the folder, or copy given ones."""
    config = folder.config
    paths = {lang: data_folder.dictionary_path(folder.new_files, lang) for lang in config.languages}

    def make() -> None:
        for languages, side in zip(config.sharing, ("src", "tgt"), strict=False):
            dictionary = _dictionary(folder, tokenized, languages, side)
            for language in languages:
                dictionary.save(paths[language])

    # Read the files back, so that new dictionaries equal the dictionaries of a finished step.
    journal.finish(make, [*paths.values()])
    dictionaries = {language: Dictionary.load(path) for language, path in paths.items()}
    for language, dictionary in dictionaries.items():
        folder.say(f"[{language}] Dictionary: {len(dictionary)} types")
    return dictionaries


def _dictionary(
    folder: NewFolder, tokenized: TokenizedText, languages: tuple[str, ...], side: str
) -> Dictionary:
    """Return the dictionary of these languages, by the settings of ``side``: src or tgt."""
    config = folder.config
    # Take a model's or a given dictionary. A joined one may come from either flag.
    if folder.model_dictionaries:
        return folder.model_dictionaries[languages[0]]
    path = getattr(config, f"{side}dict") or (config.joined_dictionary and config.tgtdict)
    if path:
        return Dictionary.load(path)
    files = [tokenized.texts["train", language] for language in languages]
    label = f"count {'+'.join(languages)}"
    with progress_bar(label, sum(file.num_bytes for file in files)) as advance:
        counts = count_words(files, folder.workers, advance)
    threshold = getattr(config, f"threshold{side}")
    nwords = getattr(config, f"nwords{side}")
    dictionary = Dictionary.from_counts(counts, threshold, nwords, config.padding_factor)
    if not dictionary.num_words:
        inputs = [tokenized.inputs.texts["train", language].path for language in languages]
        reason = f"--threshold{side} {threshold} and --nwords{side} {nwords} leave no word of"
        raise DataError(f"{' and '.join(inputs)}: {reason if counts else 'no words in'} the text")
    return dictionary


def _binarize(
    folder: NewFolder,
    journal: Journal,
    tokenized: TokenizedText,
    dictionaries: dict[str, Dictionary],
) -> dict[SideKey, dict[str, int]]:
    """Write the ``.bin`` and ``.idx`` files. Return the counts of each side."""

    def binarize_missing(sides: list[SideKey]) -> Iterator[dict[str, int]]:
        todo = [((side[1], folder.file(*side)), tokenized.texts[side]) for side in sides]
        with progress_bar("binarize", sum(text.num_bytes for _, text in todo)) as advance:
            yield from binarize(todo, dictionaries, folder.workers, advance)

    files = {side: data_folder.paths_of(folder.file(*side)) for side in tokenized.texts}
    finished = journal.finish_all(files, binarize_missing, SIDE_COUNTS)
    for (split, language), result in finished.items():
        share = 100 * result["unknown"] / max(1, result["tokens"])
        path = tokenized.inputs.texts[split, language].path
        folder.say(
            f"[{language}] {path}: {result['sentences']} sents, "
            f"{result['tokens']} tokens, {share:.3}% replaced (by {UNK})"
        )
    return finished


def _binarize_alignments(
    folder: NewFolder, journal: Journal, tokenized: TokenizedText
) -> dict[str, dict[str, int]]:
    """Write the word alignments. Return the counts of each split with alignments."""
    finished = {}
    for split, text in tokenized.inputs.alignments.items():
        # Leave out separator lines of the text, which have no sentences.
        documents = tokenized.documents.get(split)
        separators = [] if documents is None else documents.separator_lines
        prefix = data_folder.alignment_path(folder.new_files, split, folder.config.pair)
        counts = journal.finish(
            partial(_align, folder, split, text, separators, prefix),
            data_folder.paths_of(prefix),
            {"sentences": int, "pairs": int},
        )
        finished[split] = counts
        folder.say(
            f"[alignments] {text.path}: {counts['sentences']} sents, {counts['pairs']} pairs"
        )
    return finished


def _align(
    folder: NewFolder, split: str, text: TextFile, separators: list[int], prefix: Path
) -> dict[str, int]:
    """Write the word alignments of a split, compared with its binarized sentences."""
    sides = [IndexedDataset(folder.file(split, language)) for language in folder.config.languages]
    with progress_bar("alignments", text.num_bytes) as advance:
        return binarize_alignments(text, prefix, sides, separators, folder.workers, advance)


def _describe(
    folder: NewFolder,
    key: str,
    tokenized: TokenizedText,
    dictionaries: Mapping[str, Dictionary],
    counts: Mapping[SideKey, Mapping[str, int]],
    alignments: Mapping[str, Mapping[str, int]],
) -> dict[str, Any]:
    """Return the manifest. Counts and alignments are the results of binarizing."""
    config = folder.config
    symbols = {}
    for language, dictionary in dictionaries.items():
        name = data_folder.dictionary_path("", language).name
        symbols[language] = {"file": name, "symbols": len(dictionary)}
    splits = {}
    for split in config.splits():
        splits[split] = _describe_split(folder, tokenized.inputs, split, counts)
        if split in tokenized.documents:
            splits[split]["documents"] = tokenized.documents[split].number
            splits[split]["documents_file"] = folder.file(split, "documents").name
        if split in alignments:
            text = tokenized.inputs.alignments[split]
            record = {"input": text.path, "input_sha256": text.sha256}
            splits[split]["alignments"] = {**record, "pairs": alignments[split]["pairs"]}
    files = {}
    for path in sorted(folder.new_files.glob("[!.]*")):
        if path.name != data_folder.MANIFEST_NAME:  # of a run that was stopped at its end
            files[path.name] = data_folder.file_record(path)
    return {
        "key": key,
        "source_lang": config.source_lang,
        "target_lang": config.target_lang,
        "joined_dictionary": config.joined_dictionary,
        "versions": _versions(folder),
        "settings": to_dict(config),
        "text": _describe_texts(folder, tokenized),
        "dictionaries": symbols,
        "splits": splits,
        "files": files,
    }


def _describe_texts(folder: NewFolder, tokenized: TokenizedText) -> dict[str, dict[str, Any]]:
    """Return the text steps of each language, from which models start."""
    texts: dict[str, dict[str, Any]] = {}
    for language, pipeline in tokenized.pipelines.items():
        path = tokenized.model_paths.get(language)
        texts[language] = {
            "tokenizer": pipeline.tokenizer,
            "tokenizer_version": pipeline.tokenizer_version,
            "lowercase": pipeline.lowercase,
            "subword": folder.config.subword,
            "subword_file": None if path is None else path.name,
        }
        if pipeline.first_symbol is not None:
            texts[language]["first_symbol"] = pipeline.first_symbol
    return texts


def _describe_split(
    folder: NewFolder, inputs: Inputs, split: str, counts: Mapping[SideKey, Mapping[str, int]]
) -> dict[str, Any]:
    """Return the sides of a split, which has no documents yet."""
    sides = {}
    for language in folder.config.languages:
        text = inputs.texts[split, language]
        sides[language] = {
            "input": text.path,
            "input_sha256": text.sha256,
            "tokens": counts[split, language]["tokens"],
            "unknown": counts[split, language]["unknown"],
        }
    sentences = counts[split, folder.config.languages[0]]["sentences"]
    return {"sentences": sentences, "documents": None, "documents_file": None, "sides": sides}


def _versions(folder: NewFolder) -> dict[str, str]:
    """Return the versions of the packages on which tokens depend."""
    versions = {"relu_nmt": relu_nmt.__version__}
    kinds = (tokenizers.get(folder.config.tokenizer), subword_models.get(folder.config.subword))
    for name in sorted(kind.package for kind in kinds if kind.package is not None):
        versions[name] = importlib.metadata.version(name)
    return versions
