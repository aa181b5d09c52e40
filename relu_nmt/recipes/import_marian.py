"""Convert a Marian model in the format of Hugging Face's transformers into a checkpoint."""

from dataclasses import replace
from pathlib import Path

from relu_nmt.applications.conversion.marian import MarianModel
from relu_nmt.cli.import_marian import ImportMarianSettings as Settings
from relu_nmt.recipes.import_fairseq import save_model
from relu_nmt.recipes.output_files import output_path
from relu_nmt.tokenization.base import load_subword
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.translation.task import TranslationTask


def run(settings: Settings, *, progress: bool = True) -> Path:
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
