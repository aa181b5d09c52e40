"""Train an image classifier on class folders, or resume its training."""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from relu_nmt.config import flag_of, shown, split_paths, to_dict
from relu_nmt.config.classes import flat
from relu_nmt.errors import CheckpointError, ConfigError, DataError, counted
from relu_nmt.jobs.training import Training, run_training
from relu_nmt.jobs.vision_evaluate.job import check_images
from relu_nmt.jobs.vision_train.settings import RECIPES, VisionTrainerConfig
from relu_nmt.jobs.vision_train.settings import ImageTrainingSettings as Settings
from relu_nmt.training.batches import TrainingData
from relu_nmt.training.checkpoint import read_metadata
from relu_nmt.training.config import TrainerConfig
from relu_nmt.training.save_dir import TrainingResult
from relu_nmt.training.schedules import ScheduleConfig
from relu_nmt.training.trainer import Trainer
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
    some_of,
    with_classes_of,
)
from relu_nmt.vision.loading import (
    classifier_metadata,
    describe_task,
    load_timm_weights,
    start_weights,
)
from relu_nmt.vision.transforms import ImageTransform

OTHER_RATES = ("warmup_init_lr", "min_lr", "end_learning_rate")
"""The rates that ``--lr-batch-size`` scales besides ``--lr``."""
SAMPLED_IMAGES = 8
"""Number of images whose size is read before the training."""
ENLARGED = 2
"""Warn if the sides of images grow by this factor or more."""


def run(settings: Settings, *, progress: bool = True) -> TrainingResult:
    """Train until a limit or a signal. Resume from the last checkpoint of the folder, if any.

    Raises:
        ConfigError: settings that contradict each other, the images or the device.
        DataError: the images are missing or damaged.
        CheckpointError: a checkpoint cannot be read or written, or has other classes.
        TrainingError: the loss or the gradient is not finite.
    """
    return run_training(ImageTraining, settings, progress)


class ImageTraining(Training):
    """The parts of an image training."""

    settings: Settings

    def trainer(self) -> Trainer:
        """Return the trainer of a new training, and print its parts."""
        settings = self.settings
        augmentation, size = settings.augmentation, settings.model.image_size
        transform = ImageTransform(settings.preprocessing, size, augmentation)
        self._say_recipe()
        self.say("losses are in bits per image")
        # Open the images.
        train_set, valid_sets = self._images()
        damaged = self._damaged([train_set, *valid_sets.values()])
        self._say_enlarged(train_set)
        # Make model and batches.
        model = self._model(len(train_set.classes))
        seed = settings.trainer.seed
        train = ImageBatches(train_set, transform, settings.batch_size, seed, augmentation, damaged)
        valid_size = settings.batch_size_valid or settings.batch_size
        valid = {
            name: ImageBatches(images, transform, valid_size, damaged=damaged)
            for name, images in valid_sets.items()
        }
        return self.trainer_of(
            ImageObjective(
                model, settings.label_smoothing, settings.regularizer, settings.criterion
            ),
            TrainingData(train, valid),
            describe_task(train_set.classes, settings.preprocessing, settings.criterion),
            f"images per device = {settings.batch_size}",
            config_for_data(
                settings.trainer,
                settings.batch_size,
                train.num_batches,
                self.process.world_size,
                self.say,
            ),
            lambda checkpoint: start_weights(model, checkpoint, train_set.classes, self.say),
        )

    def _say_recipe(self) -> None:
        """Print the settings of the recipe as flags, except those that a flag overrides."""
        name, values = self.settings.recipe, flat(to_dict(self.settings))
        if flags := [
            f"{flag_of(field)} {shown(value)}"
            for field, value in RECIPES[name].items()
            if values[field] == value
        ]:
            self.say(f"--recipe {name}: {' '.join(flags)}")

    def _images(self) -> tuple[ImageSet, dict[str, ImageSet]]:
        """Return the training images and the validation sets by name."""
        # Open training and validation images.
        options, data = self.settings, self.settings.data
        train, *valid = open_images(data).values()
        train = self._numbered_as_before(train)
        held = []
        if options.valid_fraction:
            train, held_out = hold_out(train, options.valid_fraction)
            held = [held_out]
        if options.valid_data is not None:
            paths = split_paths(options.valid_data, ",")
            # A path has one set, or train and then further sets.
            sets_of_paths = [list(open_images(path).values()) for path in paths]
            valid = [images[1] if len(images) > 1 else images[0] for images in sets_of_paths]
        # Reserve the name train for the training set, as the log has lines called train.
        sets = add_set({}, dataclasses.replace(train, name="train"))
        self._say_images(sets["train"])
        if not self.settings.trainer.disable_validation:
            # Validate on held-out images and all sets of --valid-data, else on the first other set.
            for images in held + (valid[:1] if options.valid_data is None else valid):
                images = with_classes_of(images, train.classes, str(train.origin))
                sets = add_set(sets, images)
                self._say_images(list(sets.values())[-1])
            if len(sets) == 1:
                raise ConfigError(
                    f"{data}: no images to validate on; give --valid-data PATH, "
                    "--valid-fraction 0.1, or --disable-validation"
                )
        return sets.pop("train"), sets

    def _say_images(self, images: ImageSet) -> None:
        """Print the size of a set, the files left out of it, and the classes without images."""
        absent, name = images.absent, f"{images.origin}: {images.name}"
        classes = len(images.classes) - len(absent)
        self.say(f"{name}: {counted(len(images), 'image')} of {counted(classes, 'class')}")
        for text in images.left_out():
            self.say(text)
        if absent:
            self.say(f"NOTE: {name} has no images of the classes {some_of(absent)}")

    def _say_enlarged(self, images: ImageSet) -> None:
        """Warn if images have far fewer pixels than the model's input, which wastes time."""
        # Read some images that are spread over the set.
        chosen = np.linspace(0, len(images) - 1, min(len(images), SAMPLED_IMAGES)).astype(int)
        try:
            longest = max(max(images.read(number).size) for number in chosen.tolist())
        except DataError:  # damaged images are reported elsewhere
            return
        sides = self.settings.model.image_sides
        if ENLARGED * longest <= max(sides):
            pixels = sides[0] * sides[1] / longest**2
            self.say(
                f"NOTE: images of {longest} pixels a side are enlarged to {shown_sides(sides)}: "
                f"{pixels:,.0f} times as many pixels to compute with; --image-size {longest}, with "
                "a smaller --patch-size, keeps theirs"
            )

    def _model(self, num_classes: int) -> VisionModel:
        """Return a new model, and print its size."""
        # Make the model with its initial weights.
        config = self.settings.model
        model = self.new_model(lambda: build_vision_model(config, num_classes))
        self.say(
            f"model: {self.settings.arch}, attention {config.attention}, "
            f"{model.num_tokens} tokens an image"
        )
        self.say_size(model)
        # Load public weights, except into a training that is resumed.
        if (public := self.settings.init) and self.checkpoint_to_continue is None:
            notes = load_timm_weights(model, public)
            self.say("; ".join([f"start from the weights of {public}", *notes]))
        return model

    def _damaged(self, sets: Sequence[ImageSet]) -> Callable[[DataError], None] | None:
        """Check images before the training. Return a function that reports skipped ones."""
        is_first = self.process.is_first
        report = reporter_of_damaged(self.say if is_first else partial(print, file=sys.stderr))
        config, skips = self.settings.trainer, self.settings.skip_damaged_images
        # Check images in one process, for a limited time.
        if config.preflight and is_first:
            errors = check_images(sets, config.num_workers)
            if errors and not skips:
                raise DataError(f"{some_of(list(map(str, errors)), '; ')}, or give {SKIP_FLAG}")
            for error in errors:
                report(error)
        return report if skips else None

    def _numbered_as_before(self, images: ImageSet) -> ImageSet:
        """Return images with the class indices of the checkpoint to resume from, if any."""
        path = self.checkpoint_to_continue
        if path is None:
            return images
        # Read the classes in any case, to refuse a model of another task.
        classes = classifier_metadata(read_metadata(path), path)["task"]["classes"]
        # Keep the own numbers if the checkpoint only gives weights to start from.
        if not self.goes_on:
            return images
        if set(map(composed, classes)) != set(images.classes):
            raise CheckpointError(
                f"{path}: trained with other classes than those of {self.settings.data}; "
                f"{self.fresh_start}"
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
    # Scale the rates, then convert epochs of warm-up to updates.
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
    schedule: ScheduleConfig, images: int, given_for: int, say: Callable[[str], None]
) -> ScheduleConfig:
    """Return the schedule with learning rates for updates of so many images.

    All rates are multiplied by one factor, so the curve keeps its shape. If only the peak were
    scaled, a small batch could have a peak below the lowest rate.
    """
    # Scale the rates that are set.
    factor = images / given_for
    rates = {name: getattr(schedule, name) for name in OTHER_RATES}
    original: dict[str, Any] = {"lr": schedule.lr} | {n: r for n, r in rates.items() if r > 0}
    scaled = {name: rate * factor for name, rate in original.items() if name != "lr"}
    scaled["lr"] = tuple(rate * factor for rate in schedule.lr)
    # Print them before and after as flags.
    were = " ".join(f"{flag_of(name)} {shown(rate)}" for name, rate in original.items())
    are = " ".join(f"{flag_of(name)} {shown(scaled[name])}" for name in original)
    say(f"learning rates {are}: {were} for {given_for} images, of which an update has {images:,}")
    return dataclasses.replace(schedule, **scaled)


def with_cosine_period(config: TrainerConfig, batches: int, processes: int) -> TrainerConfig:
    """End the cosine schedule with the training, after ``--max-epoch`` or ``--max-update``.

    :func:`config_for_data` has the same arguments.
    """
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
    per_update = [config.update_freq_of(e + 1) * processes for e in range(config.max_epoch)]
    return sum(-(-batches // count) for count in per_update)
