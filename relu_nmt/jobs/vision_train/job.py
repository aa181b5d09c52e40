"""Train an image classifier on class folders, or resume its training."""

import dataclasses
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from relu_nmt.config import flag_of, shown, split_paths, to_dict
from relu_nmt.config.classes import flat
from relu_nmt.errors import CheckpointError, ConfigError, DataError, counted, some_of
from relu_nmt.io.progress import progress_bar
from relu_nmt.jobs.budget import Choices, Pace, faster_dtype, measured_pace, within_budget
from relu_nmt.jobs.training import TrainingRun, training_run
from relu_nmt.jobs.vision_train.settings import RECIPES, VisionScheduleConfig, VisionTrainerConfig
from relu_nmt.jobs.vision_train.settings import ImageTrainingSettings as Settings
from relu_nmt.training.batches import TrainingData, load_ahead
from relu_nmt.training.checkpoint import load_checkpoint, read_metadata
from relu_nmt.training.config import TrainerConfig
from relu_nmt.training.save_dir import TrainingResult
from relu_nmt.vision import loading
from relu_nmt.vision.base import ImageObjective, VisionModel, build_vision_model
from relu_nmt.vision.config import shown_sides
from relu_nmt.vision.image_files import composed
from relu_nmt.vision.images import (
    SKIP_FLAG,
    ImageBatches,
    ImageSet,
    add_set,
    hold_out,
    open_images,
    reporter_of_damaged,
    sets_besides_train,
    with_classes_of,
)
from relu_nmt.vision.timm_weights import load_timm_weights
from relu_nmt.vision.transforms import ImageTransform

OTHER_RATES = ("warmup_init_lr", "min_lr", "end_learning_rate")
"""The rates that ``--lr-batch-size`` scales besides ``--lr``."""
CHECK_SECONDS = 10.0  # most seconds of the check of images before the training
SAMPLED_IMAGES = 8  # number of images whose size is read before the training
ENLARGED = 2  # warn if the sides of images grow by this factor or more


@dataclasses.dataclass(frozen=True)
class ImageSets:
    """The images to train and to validate on."""

    train: ImageSet
    valid: Mapping[str, ImageSet]  # by name
    report: Callable[[DataError], None] | None  # called for damaged images. None: they are errors

    def batches(self, settings: Settings) -> tuple[ImageBatches, dict[str, ImageBatches]]:
        """Return the batches of the training, and of each validation set by its name."""
        augmentation = settings.augmentation
        transform = ImageTransform(settings.preprocessing, settings.model.image_size, augmentation)
        seed = settings.trainer.seed
        train = ImageBatches(
            self.train, transform, settings.batch_size, seed, augmentation, self.report
        )
        batch_size = settings.batch_size_valid or settings.batch_size
        valid = {}
        for name, images in self.valid.items():
            valid[name] = ImageBatches(images, transform, batch_size, report_damaged=self.report)
        return train, valid


def run(settings: Settings, *, progress: bool = True) -> TrainingResult:
    """Train until a limit or a signal. Resume from the last checkpoint of the folder, if any."""
    with training_run(settings, progress) as training:
        say_recipe(settings, training.say)
        training.say("losses are in bits per image")
        images = open_sets(settings, training)
        note_enlarged(settings, images.train, training.say)
        # Complete the settings if there is a --budget.
        if settings.trainer.budget is not None:
            trial = partial(pace_of, images=images, training=training)
            choose = partial(choose_dtype, settings, training, trial)
            settings = within_budget(
                settings, training, trial, choose, kept_names=frozenset({"bf16"})
            )
        classes = images.train.classes
        model = new_model(settings, len(classes), training)
        objective = new_objective(settings, model)
        train, valid = images.batches(settings)
        # Train, at rates that depend on the number of batches.
        config = config_for_data(
            settings.trainer,
            settings.batch_size,
            train.num_batches,
            training.process.world_size,
            training.say,
        )
        task = loading.describe_task(classes, settings.preprocessing, settings.criterion)
        trainer = training.trainer(
            objective,
            TrainingData(train, valid),
            settings,
            f"images per device = {settings.batch_size}",
            task,
            config=config,
            initial_weights=initial_weights(model, images.train, training),
        )
        return trainer.train()


def initial_weights(
    model: VisionModel, images: ImageSet, training: TrainingRun
) -> Mapping[str, Tensor] | None:
    """Return the initial weights from another model. None if there is none, or training goes on."""
    path = training.checkpoint
    if path is None or training.goes_on:
        return None
    return loading.fitted_weights(model, load_checkpoint(path), images.classes, training.say)


def choose_dtype(
    settings: Settings, training: TrainingRun, trial: Callable[[Settings], Pace]
) -> Choices:
    """Choose bfloat16 if it is faster. Print what a budget changes."""
    budget = settings.trainer.budget
    if settings.trainer.max_epoch:
        training.say(
            f"budget {budget}: in place of the {settings.trainer.max_epoch} epochs of --recipe "
            f"{settings.recipe}"
        )
    choices = faster_dtype(settings, training.process, trial, Choices({}, trial(settings)))
    training.say(
        f"budget {budget}: batches of {settings.batch_size} images in "
        f"{'bfloat16' if choices.values.get('bf16') else 'float32'}; a tenth of warm-up, then "
        f"--lr-scheduler {settings.trainer.schedule.lr_scheduler} to the end"
    )
    return choices


def pace_of(settings: Settings, images: ImageSets, training: TrainingRun) -> Pace:
    """Return the pace of a training with these settings, measured with a new model."""
    num_classes = len(images.train.classes)
    model = training.new_model(
        lambda: build_vision_model(settings.model, num_classes), settings.trainer
    )
    train, valid = images.batches(settings)
    objective = new_objective(settings, model)
    return measured_pace(objective, train, valid, settings.trainer, training.process)


def new_objective(settings: Settings, model: VisionModel) -> ImageObjective:
    """Return the loss of a model."""
    return ImageObjective(model, settings.label_smoothing, settings.regularizer, settings.criterion)


def say_recipe(settings: Settings, say: Callable[[str], None]) -> None:
    """Print the settings of the recipe as flags, except those that a flag overrides."""
    values = flat(to_dict(settings))
    flags = []
    for name, value in RECIPES[settings.recipe].items():
        if values[name] == value:
            flags.append(f"{flag_of(name)} {shown(value)}")
    if flags:
        say(f"--recipe {settings.recipe}: {' '.join(flags)}")


def open_sets(settings: Settings, training: TrainingRun) -> ImageSets:
    """Return the images to train and to validate on. Check some, and print their numbers."""
    train, *valid = open_images(settings.data).values()
    train = numbered_as_before(settings, train, training)
    held_out = []
    if settings.valid_fraction:
        train, images = hold_out(train, settings.valid_fraction)
        held_out = [images]
    if settings.valid_data is None:
        valid = valid[:1]
    else:
        valid = []
        for path in split_paths(settings.valid_data, ","):
            valid.append(sets_besides_train(path)[0])
    # Reserve the name train for the training set, as the log has lines called train.
    sets = add_set({}, dataclasses.replace(train, name="train"))
    say_images(sets["train"], training.say)
    if not settings.trainer.disable_validation:
        # Validate on held-out images and all sets of --valid-data, else on the first other set.
        for images in held_out + valid:
            images = with_classes_of(images, train.classes, str(train.origin))
            sets = add_set(sets, images)
            say_images(list(sets.values())[-1], training.say)
        if len(sets) == 1:
            raise ConfigError(
                f"{settings.data}: no images to validate on; give --valid-data PATH, "
                "--valid-fraction 0.1, or --disable-validation"
            )
    report = reporter(settings, list(sets.values()), training)
    return ImageSets(sets.pop("train"), sets, report)


def say_images(images: ImageSet, say: Callable[[str], None]) -> None:
    """Print the size of a set, the files left out of it, and the classes without images."""
    name = f"{images.origin}: {images.name}"
    num_classes = len(images.classes) - len(images.absent)
    say(f"{name}: {counted(len(images), 'image')} of {counted(num_classes, 'class')}")
    for text in images.left_out():
        say(text)
    if images.absent:
        say(f"NOTE: {name} has no images of the classes {some_of(images.absent)}")


def note_enlarged(settings: Settings, images: ImageSet, say: Callable[[str], None]) -> None:
    """Warn if images have far fewer pixels than the model's input: large inputs then waste time."""
    chosen = np.linspace(0, len(images) - 1, min(len(images), SAMPLED_IMAGES)).astype(int)
    try:
        longest = max(max(images.read(number).size) for number in chosen.tolist())
    except DataError:  # damaged images are reported elsewhere
        return
    sides = settings.model.image_sides
    if ENLARGED * longest <= max(sides):
        pixels = sides[0] * sides[1] / longest**2
        say(
            f"NOTE: images of {longest} pixels a side are enlarged to {shown_sides(sides)}: "
            f"{pixels:,.0f} times as many pixels to compute with; --image-size {longest}, with "
            "a smaller --patch-size, keeps theirs"
        )


def new_model(settings: Settings, num_classes: int, training: TrainingRun) -> VisionModel:
    """Return a new model, and print its size."""
    model = training.new_model(
        lambda: build_vision_model(settings.model, num_classes), settings.trainer
    )
    training.say(
        f"model: {settings.arch}, attention {settings.model.attention}, "
        f"{model.num_tokens} tokens an image"
    )
    training.say_size(model)
    # Load public weights, except into a training that is resumed.
    if settings.init and training.checkpoint is None:
        notes = load_timm_weights(model, settings.init)
        training.say("; ".join([f"start from the weights of {settings.init}", *notes]))
    return model


def reporter(
    settings: Settings, sets: Sequence[ImageSet], training: TrainingRun
) -> Callable[[DataError], None] | None:
    """Check images before the training. Return a function that reports skipped ones."""
    is_first = training.process.is_first
    report = reporter_of_damaged(training.say if is_first else partial(print, file=sys.stderr))
    # Check images in one process, for a limited time.
    if settings.trainer.preflight and is_first:
        errors = check_images(sets, settings.trainer.num_workers)
        if errors and not settings.skip_damaged_images:
            raise DataError(f"{some_of(list(map(str, errors)), between='; ')}, or give {SKIP_FLAG}")
        for error in errors:
            report(error)
    return report if settings.skip_damaged_images else None


def check_images(sets: Iterable[ImageSet], num_workers: int) -> list[DataError]:
    """Decode as many images of sets as the time allows, and return their errors."""
    files = [images for images in sets if images.encoded]
    end = time.monotonic() + CHECK_SECONDS
    errors: list[DataError] = []

    def problem(images: ImageSet, number: int) -> DataError | None:
        try:
            images.read(number)
        except DataError as error:
            return error
        return None

    with progress_bar("check", sum(map(len, files)), "images", only_if_slow=True) as advance:
        for images in files:
            read = partial(problem, images)
            for error in load_ahead(read, range(len(images)), num_workers, pin_memory=False):
                if error is not None:
                    errors.append(error)
                advance(1)
                if time.monotonic() > end:
                    return errors
    return errors


def numbered_as_before(settings: Settings, images: ImageSet, training: TrainingRun) -> ImageSet:
    """Return images with the class indices of the checkpoint to resume from, if any."""
    path = training.checkpoint
    if path is None:
        return images
    # Read the classes in any case, to refuse a model of another task.
    classes = loading.classifier_metadata(read_metadata(path), path)["task"]["classes"]
    # Keep the new numbers if the checkpoint only gives weights to start from.
    if not training.goes_on:
        return images
    if set(map(composed, classes)) != set(images.classes):
        raise CheckpointError(
            f"{path}: trained with other classes than those of {settings.data}; "
            f"{training.fresh_start}"
        )
    return with_classes_of(images, classes, str(path))


def config_for_data(
    config: VisionTrainerConfig,
    batch_size: int,
    batches: int,
    processes: int,
    say: Callable[[str], None],
) -> TrainerConfig:
    """Return the trainer's settings with rates, warm-up and period computed from the data."""
    schedule = config.schedule
    if config.lr_batch_size:
        images = batch_size * processes * config.update_freq_of(1)
        schedule = scaled_rates(schedule, images, config.lr_batch_size, say)
    if config.warmup_epochs:
        # Round up, since the last update of an epoch may be smaller.
        updates = -(-batches // (config.update_freq_of(1) * processes))
        warmup = round(config.warmup_epochs * updates)
        say(f"{warmup:,} updates of warm-up ({config.warmup_epochs:g} epochs)")
        schedule = dataclasses.replace(schedule, warmup_updates=warmup)
    config = dataclasses.replace(config, schedule=schedule, warmup_epochs=0.0)
    return with_cosine_period(config, batches, processes)


def scaled_rates(
    schedule: VisionScheduleConfig, images: int, given_for: int, say: Callable[[str], None]
) -> VisionScheduleConfig:
    """Return the schedule with all its rates scaled to updates of so many images."""
    # Scale all rates that are set: if only the peak were scaled, it could fall below the lowest.
    factor = images / given_for
    rates = {name: getattr(schedule, name) for name in OTHER_RATES}
    original: dict[str, Any] = {"lr": schedule.lr} | {n: r for n, r in rates.items() if r > 0}
    scaled = {name: rate * factor for name, rate in original.items() if name != "lr"}
    scaled["lr"] = tuple(rate * factor for rate in schedule.lr)
    were = " ".join(f"{flag_of(name)} {shown(rate)}" for name, rate in original.items())
    are = " ".join(f"{flag_of(name)} {shown(scaled[name])}" for name in original)
    say(f"learning rates {are}: {were} for {given_for} images, of which an update has {images:,}")
    return dataclasses.replace(schedule, **scaled)


def with_cosine_period(config: TrainerConfig, batches: int, processes: int) -> TrainerConfig:
    """End the cosine schedule with the training, after ``--max-epoch`` or ``--max-update``."""
    # The training ends at the first of its limits, in updates.
    schedule = config.schedule
    limits = [config.max_update] if config.max_update else []
    if config.max_epoch:
        limits.append(updates_of_epochs(config, batches, processes))
    if schedule.lr_scheduler != "cosine" or schedule.lr_period_updates > 0 or not limits:
        return config
    # The period ends one update after the last one of the training.
    period = float(max(1, min(limits) + 1 - schedule.warmup))
    return dataclasses.replace(
        config, schedule=dataclasses.replace(schedule, lr_period_updates=period)
    )


def updates_of_epochs(config: TrainerConfig, batches: int, processes: int) -> int:
    """Return the number of updates in ``--max-epoch`` epochs of ``batches`` batches each."""
    by_epoch = [-(-batches // (count * processes)) for count in config.update_freq]
    # The last of --update-freq holds for all further epochs, which may be very many.
    num_further = max(0, config.max_epoch - len(by_epoch))
    return sum(by_epoch[: config.max_epoch]) + num_further * by_epoch[-1]
