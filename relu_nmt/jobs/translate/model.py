"""The model of the jobs that translate."""

import torch

from relu_nmt.config import split_paths
from relu_nmt.data.batch_plan import least_limit
from relu_nmt.data.data_folder import pair_name
from relu_nmt.errors import ConfigError
from relu_nmt.jobs.translate.settings import ModelOptions, model_overrides
from relu_nmt.training.distributed import keep_freed_memory
from relu_nmt.training.precision import autocast_dtype
from relu_nmt.translation.agreement import at_folder
from relu_nmt.translation.search.shortlist import Shortlist
from relu_nmt.translation.search.translations import SourceLimit
from relu_nmt.translation.task import TranslationTask
from relu_nmt.translator import Translator
from relu_nmt.translator.models import load_models


def load_translator(options: ModelOptions, data: str | None = None) -> Translator:
    """Load the translator that the options describe."""
    device = "cuda" if torch.cuda.is_available() and not options.cpu else "cpu"
    if device == "cpu":
        keep_freed_memory()
    dtype = autocast_dtype(options, torch.device(device))
    if options.int8:
        dtype = torch.int8
    overrides = model_overrides(options.model_overrides)
    models, task, max_doc_tokens = load_models(options.path, options.attention_backend, overrides)
    task = _adapted_task(task, options, data)
    shortlist = None
    if options.shortlist is not None:
        shortlist = Shortlist.load(
            options.shortlist,
            task.source_dictionary,
            task.target_dictionary,
            pair_name(task.source_lang, task.target_lang),
        )
    return Translator(models, task, device, dtype, max_doc_tokens, packed=True, shortlist=shortlist)


def _adapted_task(
    task: TranslationTask, options: ModelOptions, data: str | None
) -> TranslationTask:
    for side in ("source", "target"):
        language = getattr(options, f"{side}_lang")
        task_language = getattr(task, f"{side}_lang")
        if language not in (None, task_language):
            raise ConfigError(f"--{side}-lang {language}: the checkpoint's is {task_language}")
    if data is not None:
        # Use the first folder. Only training reads several, as in fairseq.
        task = at_folder(task, split_paths(data, ":")[0], options.path)
    # Text that this package has split is joined anyway. The flag then only changes printed tokens.
    symbol = None
    if task.target_text.keeps_text:
        symbol = options.post_process
    return task.with_post_processing(symbol, options.tokenizer)


def source_limit(options: ModelOptions, translator: Translator) -> SourceLimit:
    """Return the longest source to translate, and whether longer ones are cut or left out."""
    separators = translator.task.separators
    sentence_limit = translator.ensemble.max_source_sentence_positions
    if sentence_limit is not None and separators is not None:
        sentence_limit += separators.alone  # </s> follows the separator of the last sentence
    limits = (options.max_source_length, translator.max_source_positions, sentence_limit)
    separator = None if separators is None else separators.source
    return SourceLimit(least_limit(limits), options.truncate_source, separator)
