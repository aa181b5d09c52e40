"""The settings of a training, compared with a checkpoint's and with the files of its folder."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relu_nmt.config import flag_of, from_dict, to_dict
from relu_nmt.config.classes import flat
from relu_nmt.config.fields import Option, all_options
from relu_nmt.config.registry import Spec
from relu_nmt.config.shared import AUTO_TOKENS
from relu_nmt.errors import CheckpointError, ConfigError, DataError
from relu_nmt.training import OPTIMIZERS
from relu_nmt.training.checkpoint import read_metadata, weights_alone_advice
from relu_nmt.training.config import RESULTS_FILE, TrainerConfig
from relu_nmt.training.save_dir import CheckpointFolder, TrainingResult

MAY_CHANGE = (
    *("checkpoint_activations", "max_source_positions", "max_target_positions"),
    *("alignment_layer", "alignment_heads"),
)
"""Settings of a model, beside its dropout, that may change while it is trained."""
WITHOUT_NOTE = {
    *("validation and checkpoints", "log", "BLEU in validation"),
    *("arch", "attention_preset", "max_epoch", "max_update", "stop_time_hours", "patience"),
    *("num_workers", "cpu"),
}
"""Headings and names of settings that may differ between runs without a note."""


@dataclass(frozen=True)
class Change:
    """A setting with another value than before. The values are shown as in a command."""

    name: str
    earlier: str
    present: str

    @property
    def may_change(self) -> bool:
        """True for settings of a model that may change while it is trained."""
        return self.name in MAY_CHANGE or "drop" in self.name


def compare_with(
    path: Path, settings: Any, config: TrainerConfig, goes_on: bool, fresh_start: str
) -> str:
    """Compare with the settings in a checkpoint. Return a note on those that changed, or "".

    A model or an optimizer that cannot go on from the checkpoint is a CheckpointError, which
    advises ``fresh_start``.
    """
    stored = read_metadata(path)
    arguments = stored.get("args") or {}
    if goes_on:
        refuse_other_model(path, stored.get("model_config") or {}, settings.model, fresh_start)
        refuse_other_optimizer(path, arguments, config, fresh_start)
    return change_note(arguments, settings, goes_on)


def refuse_other_model(path: Path, stored: Mapping[str, Any], model: Any, fresh_start: str) -> None:
    """Refuse a model that differs from a checkpoint's, except in ``MAY_CHANGE`` and dropout."""
    # Compare in the present form, since earlier versions named some settings otherwise.
    earlier = _by_slot_and_side(_under_present_names(stored, model))
    changes = _changes(earlier, _by_slot_and_side(_as_stored(model)), type(model))
    changes = [change for change in changes if not change.may_change]
    if changes:
        were = " ".join(f"{flag_of(change.name)} {change.earlier}" for change in changes)
        are = " ".join(f"{flag_of(change.name)} {change.present}" for change in changes)
        raise CheckpointError(
            f"{path}: was trained with {were}, not {are}; give the same model flags to go on, or "
            f"{fresh_start}; if the weights fit, {weights_alone_advice(path)}"
        )


def refuse_other_optimizer(
    path: Path, stored: Mapping[str, Any], config: TrainerConfig, fresh_start: str
) -> None:
    """Refuse to go on with an optimizer that cannot use the state in the checkpoint."""
    present = config.optimizer.optimizer
    earlier = str(flat(stored).get("optimizer", present))
    # Compare the classes, since a class may have several names, such as adam and adamw.
    name = Spec.parse(earlier).name
    present_class = OPTIMIZERS.get(Spec.parse(present).name)
    is_same = name in OPTIMIZERS.names() and OPTIMIZERS.get(name) is present_class
    if not is_same and not config.reset_optimizer:
        raise CheckpointError(
            f"{path}: has the state of --optimizer {earlier}, which {present} cannot use; give "
            f"--optimizer {earlier} to go on, --reset-optimizer to take the weights alone, or "
            f"{fresh_start}"
        )


def refuse_unrelated(folder: CheckpointFolder, settings: Any) -> str:
    """Refuse a new training in a folder with files of another. Return a note on replaced files."""
    start = folder.restore_path()
    is_inside = start is not None and start.parent.resolve() == folder.path.resolve()
    if settings.trainer.no_save or is_inside:
        return ""
    advice = f"choose another --save-dir than {folder.path}, or move"
    # Compare the settings with the settings in a checkpoint of the folder.
    path = folder.present()
    if path is not None:
        stored = {}
        with suppress(CheckpointError):  # a foreign file
            stored = read_metadata(path)
        if "training_state" in stored and _is_equal(stored.get("args"), settings):
            return f"note: {path} is of the same training, which starts again and writes over it"
        advice += " its checkpoints away"
        if "training_state" in stored:
            advice += f", or go on from it with --restore-file {path.name}"
            if settings.trainer.finetune_from_model:
                advice += " in place of --finetune-from-model"
        raise ConfigError(f"{path}: is another training's, and might be overwritten; {advice}")
    # Compare with earlier results if the folder has no checkpoint.
    results = folder.path / RESULTS_FILE
    if not results.exists():
        return ""
    try:
        earlier = TrainingResult.load(folder.path)
    except DataError as error:
        raise ConfigError(
            f"{results}: was not written by a training, and would be lost; {advice} the file away"
        ) from error
    # Allow the run with a note, since no checkpoint is lost.
    if earlier.num_updates and not _is_equal(earlier.settings, settings):
        return f"note: {results} is of another training, and is replaced"
    return ""


def _as_stored(config: Any) -> dict[str, Any]:
    """Return settings by name in the form that checkpoints store, without tuples."""
    return flat(json.loads(json.dumps(to_dict(config, stored_only=True))))


def _is_equal(stored: Any, settings: Any) -> bool:
    """Return True if stored settings equal a training's, except settings in WITHOUT_NOTE."""
    if not isinstance(stored, dict) or not isinstance(stored.get("model"), dict):
        return False
    earlier, present = _worth_a_note(stored, settings)
    # Leave out numbers that the program has put in place of the values of flags.
    if present.get("max_tokens") == AUTO_TOKENS or present.get("update_tokens"):
        for name in ("max_tokens", "update_tokens", "update_freq"):
            earlier.pop(name, None)
            present.pop(name)
    return earlier == present


def change_note(stored: Mapping[str, Any], settings: Any, goes_on: bool) -> str:
    """Return a note on the settings that changed since a checkpoint, empty if none did."""
    of_model = all_options(type(settings.model))
    texts = []
    for change in _changes(*_worth_a_note(stored, settings), type(settings)):
        # If training goes on, fixed settings of the model were compared before.
        if not goes_on or change.may_change or change.name not in of_model:
            texts.append(f"{flag_of(change.name)} {change.present} (was {change.earlier})")
    if not texts:
        return ""
    return f"note: settings are changed since the checkpoint: {', '.join(texts)}"


def _under_present_names(stored: Mapping[str, Any], model: Any) -> Mapping[str, Any]:
    """Return settings of a model under their present names, if this version can read them."""
    try:
        return _as_stored(from_dict(type(model), stored))
    except ConfigError:
        return stored


def _changes(
    stored: Mapping[str, Any], present: Mapping[str, Any], settings_class: type
) -> list[Change]:
    """Return the settings that both have, with other values."""
    options = all_options(settings_class)
    changes = []
    for name, value in present.items():
        if name in stored and stored[name] != value:
            option = options[name]
            changes.append(Change(name, _shown(option, stored[name]), _shown(option, value)))
    return changes


def _by_slot_and_side(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's settings with a value for each slot and side instead of common values."""
    full = dict(model)
    # Give each slot and side the common value that it falls back to.
    for name, value in model.items():
        _, _, shared = name.partition("_")
        if value is None and shared in ("attention", "positions"):
            full[name] = model.get(shared)
        # Write attentions in the present form, so that equal ones compare as equal.
        if name.endswith("attention") and isinstance(full[name], str):
            with suppress(ConfigError):  # as an earlier version wrote it
                full[name] = str(Spec.parse(full[name]))
    # Leave out the common values. An image model has its common attention in the blocks themselves.
    for shared in ("attention", "positions"):
        if f"encoder_{shared}" in model:
            full.pop(shared, None)
    return full


def _worth_a_note(
    stored: Mapping[str, Any], settings: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the stored and the present values whose change deserves a note, by name."""
    names = set()
    of_model = all_options(type(settings.model))
    for name, option in all_options(type(settings)).items():
        if name not in of_model and WITHOUT_NOTE.isdisjoint((name, option.heading)):
            names.add(name)
    earlier = {name: value for name, value in flat(stored).items() if name in names}
    present = {name: value for name, value in _as_stored(settings).items() if name in names}
    # Compare models in the present form, since earlier versions had fewer settings.
    model = _under_present_names(stored.get("model") or {}, settings.model)
    return earlier | dict(model), present | _as_stored(settings.model)


def _shown(option: Option, value: Any) -> str:
    return "not given" if value is None else option.text_of(value)
