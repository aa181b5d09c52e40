"""The manifest of a new data folder."""

import importlib.metadata
from collections.abc import Mapping
from typing import Any

import relu_nmt
from relu_nmt.config import to_dict
from relu_nmt.data import data_folder
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.jobs.preprocess.inputs import Inputs, Job, SideKey
from relu_nmt.jobs.preprocess.text import TokenizedText
from relu_nmt.tokenization.base import subword_models, tokenizers


def describe_folder(
    job: Job,
    key: str,
    tokenized: TokenizedText,
    dictionaries: Mapping[str, Dictionary],
    counts: Mapping[SideKey, Mapping[str, int]],
    alignments: Mapping[str, Mapping[str, int]],
) -> dict[str, Any]:
    """Return the manifest. Counts and alignments are the results of binarizing."""
    config = job.config
    symbols = {}
    for language, dictionary in dictionaries.items():
        name = data_folder.dictionary_path("", language).name
        symbols[language] = {"file": name, "symbols": len(dictionary)}
    splits = {}
    for split in config.splits():
        splits[split] = _describe_split(job, tokenized.inputs, split, counts)
        if split in tokenized.documents:
            splits[split]["documents"] = tokenized.documents[split].number
            splits[split]["documents_file"] = job.path(split, "documents").name
        if split in alignments:
            text = tokenized.inputs.alignments[split]
            record = {"input": text.path, "input_sha256": text.sha256}
            splits[split]["alignments"] = {**record, "pairs": alignments[split]["pairs"]}
    files = {}
    for path in sorted(job.new_files.glob("[!.]*")):
        if path.name != data_folder.MANIFEST_NAME:  # of a run that was stopped at its end
            files[path.name] = data_folder.file_record(path)
    return {
        "key": key,
        "source_lang": config.source_lang,
        "target_lang": config.target_lang,
        "joined_dictionary": config.joined_dictionary,
        "versions": versions(job),
        "settings": to_dict(config),
        "text": _describe_texts(job, tokenized),
        "dictionaries": symbols,
        "splits": splits,
        "files": files,
    }


def _describe_texts(job: Job, tokenized: TokenizedText) -> dict[str, dict[str, Any]]:
    """Return the text steps of each language, from which models start."""
    texts: dict[str, dict[str, Any]] = {}
    for language, pipeline in tokenized.pipelines.items():
        path = tokenized.model_paths.get(language)
        texts[language] = {
            "tokenizer": pipeline.tokenizer,
            "tokenizer_version": pipeline.tokenizer_version,
            "lowercase": pipeline.lowercase,
            "subword": job.config.subword,
            "subword_file": None if path is None else path.name,
        }
        if pipeline.first_symbol is not None:
            texts[language]["first_symbol"] = pipeline.first_symbol
    return texts


def _describe_split(
    job: Job, inputs: Inputs, split: str, counts: Mapping[SideKey, Mapping[str, int]]
) -> dict[str, Any]:
    """Return the sides of a split, which has no documents yet."""
    sides = {}
    for language in job.config.languages:
        text = inputs.texts[split, language]
        sides[language] = {
            "input": text.path,
            "input_sha256": text.sha256,
            "tokens": counts[split, language]["tokens"],
            "unknown": counts[split, language]["unknown"],
        }
    sentences = counts[split, job.config.languages[0]]["sentences"]
    return {"sentences": sentences, "documents": None, "documents_file": None, "sides": sides}


def versions(job: Job) -> dict[str, str]:
    """Return the versions of the packages on which tokens depend."""
    versions = {"relu_nmt": relu_nmt.__version__}
    kinds = (tokenizers.get(job.config.tokenizer), subword_models.get(job.config.subword))
    for name in sorted(kind.package for kind in kinds if kind.package is not None):
        versions[name] = importlib.metadata.version(name)
    return versions
