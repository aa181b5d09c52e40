"""Train a translation model on a data folder, or go on with its training."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from relu_nmt.attention.base import use_backend
from relu_nmt.config import split_paths
from relu_nmt.config.shared import AUTO_TOKENS
from relu_nmt.data.translation_batches import ShardedBatches, TranslationBatches
from relu_nmt.engine import install
from relu_nmt.errors import CheckpointError, ConfigError
from relu_nmt.evaluation.metrics import ScoringConfig
from relu_nmt.evaluation.validation_bleu import ValidationBleu
from relu_nmt.jobs.budget import Pace, measured_pace, within_budget
from relu_nmt.jobs.train.budget import KEPT, LEAST_WARMUP, Chooser
from relu_nmt.jobs.train.corpora import Corpora
from relu_nmt.jobs.train.settings import TranslationTrainingSettings as Settings
from relu_nmt.jobs.train.settings import detokenizer_settings, search_settings
from relu_nmt.jobs.training import TrainingRun, training_run
from relu_nmt.training.batches import TrainingData
from relu_nmt.training.checkpoint import (
    load_checkpoint,
    load_weights,
    read_metadata,
    same_model_advice,
)
from relu_nmt.training.config import FULLY_SHARDED
from relu_nmt.training.distributed import ProcessGroup
from relu_nmt.training.learner import Learner
from relu_nmt.training.log import be_silent
from relu_nmt.training.precision import stated_dtype
from relu_nmt.training.preflight import fitting_tokens
from relu_nmt.training.save_dir import TrainingResult
from relu_nmt.translation import calibration
from relu_nmt.translation.agreement import LIKE, WITH_SEPARATOR, compare_with_data
from relu_nmt.translation.base import Ensemble, StepDecoder, TranslationModel
from relu_nmt.translation.building import build_model, start_weights, stored_task
from relu_nmt.translation.loss import TranslationObjective
from relu_nmt.translation.search.generator import Generator
from relu_nmt.translation.task import TranslationTask
from relu_nmt.translation.teacher import TaughtObjective
from relu_nmt.translator.models import load_models


def run(settings: Settings, *, progress: bool = True) -> TrainingResult:
    """Train up to a limit or a signal, from a checkpoint if the folder has one."""
    with training_run(settings, progress) as training:
        # Open the task: the languages, the dictionaries, and the way from text to tokens.
        folders = split_paths(settings.data, ":")
        checkpoint = training.checkpoint
        earlier_task = None
        if checkpoint is not None:
            earlier_task = stored_task(checkpoint)
        task = open_task(settings, folders[0], checkpoint, earlier_task)
        # Complete the settings if there is a --budget.
        if settings.trainer.budget is not None:
            trial = partial(pace_of, task=task, folders=folders, training=training)
            chooser = Chooser(settings, task, training, trial)
            settings = within_budget(settings, training, trial, chooser.choose, KEPT, LEAST_WARMUP)
        # Build the model and the loss.
        model = new_model(settings, task, training)
        if checkpoint is not None and earlier_task is not None:
            notes = compare_with_data(
                checkpoint, earlier_task, task, folders[0], training.goes_on, training.fresh_start
            )
            for note in notes:
                training.say(f"note: {note}")
        teachers = load_teachers(settings, task, training.process, training.say)
        objective = new_objective(settings, model, teachers)
        # Open the batches, and complete the settings by their size.
        corpora = Corpora(settings, task, folders, [model, *teachers], training.say)
        train, settings = sized_batches(settings, corpora, objective, training)
        valid = corpora.validation_batches(settings.batching.validation_limits)
        if training.process.is_first and not settings.trainer.no_save:
            corpora.write_lengths([train.batches, *valid.values()])
        scorer = None
        if settings.eval_bleu and valid:
            first = next(iter(valid.values()))
            scorer = bleu_scorer(settings, task, model, first, corpora.longest[0], training)
        # Train.
        trainer = training.trainer(
            objective,
            TrainingData(train, valid, scorer),
            settings,
            f"max tokens per device = {settings.batching.max_tokens} and max sentences per "
            f"device = {settings.batching.batch_size}",
            task.to_state(),
            initial_weights=initial_weights(settings, task, model, train.batches, training),
        )
        return trainer.train()


def pace_of(
    settings: Settings, task: TranslationTask, folders: list[str], training: TrainingRun
) -> Pace:
    """Return the pace of a training with these settings, measured with a new model."""
    training.settings = settings
    model = training.new_model(lambda: build_model(settings.model, task), settings.trainer)
    # Measure with the teachers, but without a cache, which one trial would fill for the next. A
    # teacher of attention fits one shape only, so that others could not be tried.
    teachers: list[TranslationModel] = []
    if not settings.teacher.teacher_attention_weight:
        settings = replace(settings, teacher=replace(settings.teacher, teacher_cache=None))
        teachers = load_teachers(settings, task, training.process, say=be_silent)
    objective = new_objective(settings, model, teachers)
    corpora = Corpora(settings, task, folders[:1], [model, *teachers], say=be_silent)
    train, settings = sized_batches(settings, corpora, objective, training)
    valid = corpora.validation_batches(settings.batching.validation_limits)
    pace = measured_pace(objective, train, valid, settings.trainer, training.process)
    return replace(pace, samples=len(train.batches.split))


def open_task(
    settings: Settings, folder: str, checkpoint: Path | None, earlier_task: TranslationTask | None
) -> TranslationTask:
    """Return the task of a data folder. The checkpoint's ``earlier_task`` gives the separator."""
    task = TranslationTask.from_data_folder(folder, settings.source_lang, settings.target_lang)
    languages = {"source_lang": task.source_lang, "target_lang": task.target_lang}
    for name, language in detokenizer_settings(settings.eval_bleu_detok_args).items():
        if language != languages[name]:
            raise ConfigError(
                f"--eval-bleu-detok-args: {name} is {language}, but the data folder's is "
                f"{languages[name]}, which is used; leave the flag out"
            )
    # For BLEU, undo the text steps of data that came prepared.
    if task.target_text.keeps_text:
        task = task.with_post_processing(settings.eval_bleu_remove_bpe, settings.eval_bleu_detok)
    # Add the separator, with its id in the model that training starts from, or a teacher's.
    if settings.documents.sentence_separator:
        teacher = settings.teacher.teacher
        if checkpoint is None and teacher is not None:
            earlier_task = stored_task(split_paths(teacher, ":")[0])
            if earlier_task is not None and earlier_task.separators is None:
                earlier_task = None
        task = task.with_sentence_separator(earlier_task)
    return task


def new_model(settings: Settings, task: TranslationTask, training: TrainingRun) -> TranslationModel:
    """Return a new model, and print its size."""
    config = settings.model
    training.say(f"[{task.source_lang}] dictionary: {len(task.source_dictionary)} types")
    training.say(f"[{task.target_lang}] dictionary: {len(task.target_dictionary)} types")
    # Refuse to share embeddings of symbols that two dictionaries number differently.
    if config.share_all_embeddings and not task.joined_dictionary:
        raise ConfigError(
            f"--share-all-embeddings: {settings.data} has two dictionaries; preprocess "
            "with --joined-dictionary, or give --share-decoder-input-output-embed in its place"
        )
    model = training.new_model(lambda: build_model(config, task), settings.trainer)
    training.say(f"model: {settings.arch}, attention {config.attention_names}")
    training.say_size(model)
    return model


def load_teachers(
    settings: Settings,
    task: TranslationTask,
    process: ProcessGroup,
    say: Callable[[str], None],
) -> list[TranslationModel]:
    """Return the models of ``--teacher`` on the device, or [] without the flag."""
    path = settings.teacher.teacher
    if path is None:
        return []
    models, teacher_task, _ = load_models(path, "auto", None)
    # Compare separators first, since they make dictionaries differ.
    if (teacher_task.separators is None) != (task.separators is None):
        how = "without --sentence-separator; take a teacher with it, or leave it out here"
        if teacher_task.separators is not None:
            how = f"with --sentence-separator; {WITH_SEPARATOR}"
        raise CheckpointError(f"--teacher {path}: trained {how}")
    for side in ("source", "target"):
        if getattr(teacher_task, f"{side}_dictionary") != getattr(task, f"{side}_dictionary"):
            folder = split_paths(settings.data, ":")[0]
            raise CheckpointError(
                f"--teacher {path}: has another {side} dictionary than that of "
                f"{folder}; {LIKE} {split_paths(path, ':')[0]}, or train a teacher "
                "on this data"
            )
    say(f"teacher: {len(models)} model(s), {path}")
    # Prepare them to compute only, with packed weights on a CPU.
    for model in models:
        install(model.to(process.device), stated_dtype(settings.trainer))
    return models


def new_objective(
    settings: Settings, model: TranslationModel, teachers: list[TranslationModel]
) -> TranslationObjective:
    """Return the loss of a model. ``teachers`` add the distance from their probabilities."""
    alignment_lambda = 0.0
    if settings.load_alignments:
        alignment_lambda = settings.alignment_lambda
    arguments: dict[str, Any] = {
        "label_smoothing": settings.smoothing,
        "regularizer": settings.regularizer,
        "report_accuracy": settings.report_accuracy,
        "alignment_lambda": alignment_lambda,
    }
    if teachers:
        return TaughtObjective(teachers, settings.teacher, model, **arguments)
    return TranslationObjective(model, **arguments)


def sized_batches(
    settings: Settings, corpora: Corpora, objective: nn.Module, training: TrainingRun
) -> tuple[ShardedBatches, Settings]:
    """Return the batches of the training, and the settings that depend on them.

    These are the numbers of ``--max-tokens auto`` and of ``--update-tokens``.
    """
    batching = settings.batching
    config = settings.trainer
    tokens = batching.max_tokens
    is_auto = tokens == AUTO_TOKENS
    # Go on with the number of the checkpoint.
    stored: int | None = None
    if is_auto and training.goes_on and training.checkpoint is not None:
        arguments = read_metadata(training.checkpoint).get("args", {})
        stored = arguments.get("batching", {}).get("max_tokens")
    limits = replace(batching.training_limits, max_tokens=stored or tokens)
    train = ShardedBatches(corpora.folders, limits, corpora.training_batches)
    notes: list[str] = []
    if is_auto:
        tokens = stored
        if not stored or config.preflight:
            tokens = tokens_in_memory(settings, objective, train, training, stored)
        note = f"--max-tokens auto: {tokens:,}"
        if stored:
            note += f", as in {training.checkpoint}"
        notes.append(note)
    if batching.update_tokens:
        assert tokens is not None, "--update-tokens needs --max-tokens"
        # Take the number of batches whose tokens come closest.
        together = tokens * training.process.world_size
        count = max(1, round(batching.update_tokens / together))
        config = replace(config, update_freq=(count,))
        notes.append(f"--update-freq {count} for updates of {count * together:,} tokens")
    if notes:
        corpora.say("; ".join(notes))
    if tokens is not None:
        train.limit_tokens(tokens)
    batching = replace(batching, max_tokens=tokens, update_tokens=None)
    return train, replace(settings, batching=batching, trainer=config)


def tokens_in_memory(
    settings: Settings,
    objective: nn.Module,
    train: ShardedBatches,
    training: TrainingRun,
    stored: int | None,
) -> int:
    """Return the most tokens of a batch that the memory holds, after trial updates."""
    config = settings.trainer
    process = training.process
    # Move the model, or this process's part of it, to the device as the trainer does.
    if config.ddp_backend == FULLY_SHARDED:
        process.wrap(objective, FULLY_SHARDED)
    learner = Learner(objective.to(process.device).train(), config, process)
    share = None
    if settings.batching.update_tokens:
        share = -(-settings.batching.update_tokens // process.world_size)
    longest = max(train.longest_group, settings.documents.longest_in_training)
    tokens = fitting_tokens(learner, train.batches.largest_within, longest, share, stored)
    if isinstance(objective, TaughtObjective):
        objective.forget_largest()
    return tokens


def bleu_scorer(
    settings: Settings,
    task: TranslationTask,
    model: TranslationModel,
    batches: TranslationBatches,
    longest: int | None,
    training: TrainingRun,
) -> ValidationBleu:
    """Return the scorer of a validation set. ``longest`` is the longest source in tokens."""
    generator = Generator(
        Ensemble([StepDecoder(model)], stated_dtype(settings.trainer)),
        search_settings(settings.eval_bleu_args),
        task.target_dictionary,
        task.separators,
        first_symbol=task.target_text.first_symbol,
    )
    # Score dictionary tokens or detokenized text.
    scoring = ScoringConfig(
        scoring="bleu" if settings.eval_tokenized_bleu else "sacrebleu",
        sacrebleu_tokenizer=settings.sacrebleu_tokenizer,
    )
    bleu = ValidationBleu(
        generator,
        task,
        batches,
        scoring,
        training.process,
        training.say,
        of_documents=settings.documents.active,
        longest=longest,
        prints_samples=settings.eval_bleu_print_samples,
    )
    if bleu.scorer.note:
        training.say(f"note: {bleu.scorer.note}")
    return bleu


def initial_weights(
    settings: Settings,
    task: TranslationTask,
    model: TranslationModel,
    batches: TranslationBatches,
    training: TrainingRun,
) -> Mapping[str, Tensor] | None:
    """Return the initial weights from another model, calibrated where attentions differ.

    None if there is no other model, or if the training goes on.
    """
    path = training.checkpoint
    if path is None or training.goes_on:
        return None
    checkpoint = load_checkpoint(path)
    weights = start_weights(model, checkpoint)
    slots = calibration.changed_slots(checkpoint.metadata.get("model_config", {}), settings.model)
    if not slots:
        return weights
    # Calibrate a copy on the CPU, since the model itself may be sharded.
    copy = training.new_model(lambda: build_model(settings.model, task), settings.trainer)
    use_backend(copy, "auto")  # the named back end may need a GPU
    weights = calibration.fit_mechanisms(copy, weights, slots)
    load_weights(copy, weights, path, advice=same_model_advice(training.fresh_start))
    measured = None
    if training.process.is_first:
        measured = calibration.calibrate(copy, batches.sample(calibration.SAMPLE_TOKENS), slots)
    # Give every process the same factors, since sums may differ in their last digits.
    factors = training.process.gather(measured)[0]
    for factors_of_slot in factors.values():
        for name, factor in factors_of_slot.items():
            calibration.scale_queries(weights, name, factor)
    for line in calibration.describe(slots, factors):
        training.say(line)
    return weights
