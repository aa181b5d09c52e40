"""Comparison of a training with the checkpoint that it starts from, or would replace."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relu_nmt.config import flag_of, from_dict, to_dict
from relu_nmt.config.classes import flat
from relu_nmt.config.fields import Option, all_options
from relu_nmt.config.registry import Spec
from relu_nmt.errors import CheckpointError, ConfigError, DataError
from relu_nmt.training.checkpoint import read_metadata
from relu_nmt.training.checkpoint_manager import CheckpointFolder
from relu_nmt.training.results import FILE_NAME as RESULTS
from relu_nmt.training.results import TrainingResult

MAY_CHANGE = (
    *("checkpoint_activations", "max_source_positions", "max_target_positions"),
    *("alignment_layer", "alignment_heads"),
)
"""Settings of a model, beside its dropout, that may change while it is trained."""
_WITHOUT_NOTE = (
    "model backend checkpoint validation logging distributed bleu arch attention_preset max_epoch "
    "max_update stop_time_hours patience num_workers cpu"
)
WITHOUT_NOTE = tuple(_WITHOUT_NOTE.split())
"""Settings, and groups of settings, that may differ between runs without a note."""

Changes = dict[str, tuple[Any, Any]]
"""Settings by name, each with its earlier and its present value."""


def refuse_other_model(path: Path, stored: Mapping[str, Any], model: Any) -> None:
    """Refuse a model that differs from a checkpoint's, except in ``MAY_CHANGE`` and dropout.

    Args:
        path: the checkpoint.
        stored: settings of its model.
        model: settings of the model that goes on.

    Raises:
        CheckpointError: the models differ; the message names the flags.
    """
    # Compare in the present form, since earlier versions named some settings otherwise.
    changes = _changes(_in_full(_of_today(stored, model)), _in_full(flat(to_dict(model))))
    found = {k: values for k, values in changes.items() if not _may_change(k)}
    if found:
        options = all_options(type(model))
        were = " ".join(f"{flag_of(k)} {_shown(options[k], was)}" for k, (was, _) in found.items())
        are = " ".join(f"{flag_of(k)} {_shown(options[k], now)}" for k, (_, now) in found.items())
        raise CheckpointError(
            f"{path}: was trained with {were}, not {are}; give the same model flags to go on, "
            "another --save-dir for a fresh start, or --finetune-from-model for its weights"
        )


def refuse_unrelated(folder: CheckpointFolder, settings: Any) -> str:
    """Refuse a new training in a folder with files of another one.

    Args:
        folder: the ``--save-dir``.
        settings: settings of the training.

    Returns:
        A note on files that the training replaces: the checkpoints of an equal training without
        ``checkpoint_last``, or results without checkpoints; empty if it replaces none.

    Raises:
        CheckpointError: ``--restore-file`` names a file that does not exist.
        ConfigError: the folder has checkpoints of another training, or a foreign results.json.
    """
    if not folder.begins_here():
        return ""
    advice = f"choose another --save-dir than {folder.path}, or move the file away"
    # Compare the settings with those in a checkpoint of the folder.
    if (path := folder.present()) is not None:
        try:
            stored = read_metadata(path)
        except CheckpointError:  # a foreign file
            stored = {}
        if "training_state" in stored and _is_equal(stored.get("args"), settings):
            return f"note: {path} is of the same training, which starts again and writes over it"
        raise ConfigError(
            f"{path}: is another training's, and might be written over; {advice}, or go on from it "
            f"with --restore-file {path.name}"
        )
    # Compare with earlier results if the folder has no checkpoint.
    results = folder.path / RESULTS
    if not results.exists():
        return ""
    try:
        earlier = TrainingResult.load(folder.path)
    except DataError as error:
        raise ConfigError(
            f"{results}: is not of a training, and would be lost; {advice}"
        ) from error
    # Allow the run with a note, since no checkpoint is lost.
    if earlier.num_updates and not _is_equal(earlier.settings, settings):
        return f"note: {results} is of another training, and is replaced"
    return ""


def _is_equal(stored: Any, settings: Any) -> bool:
    """Return True if stored settings are those of a training, except settings in WITHOUT_NOTE."""
    own = json.loads(json.dumps(to_dict(settings, stored_only=True)))
    if not isinstance(stored, dict):
        return False
    return stored.get("model") == own["model"] and _noted(stored) == _noted(own)


def change_note(stored: Mapping[str, Any], settings: Any, goes_on: bool) -> str:
    """Return a note on the settings that changed since a checkpoint; empty if none did.

    Args:
        stored: ``args`` of the checkpoint.
        settings: settings of the training that begins with its weights.
        goes_on: it is the same training, whose model :func:`refuse_other_model` has compared.
    """
    own = to_dict(settings, stored_only=True)
    changes = _changes(_noted(stored), _noted(own))
    model = _changes(_of_today(stored.get("model") or {}, settings.model), flat(own["model"]))
    # Leave out fixed settings if training goes on, since they were compared before.
    changes |= {name: values for name, values in model.items() if _may_change(name) or not goes_on}
    if not changes:
        return ""
    options = all_options(type(settings))
    changed = (
        f"{flag_of(k)} {_shown(options[k], now)} (was {_shown(options[k], was)})"
        for k, (was, now) in changes.items()
    )
    return f"note: settings are changed since the checkpoint: {', '.join(changed)}"


def _of_today(stored: Mapping[str, Any], model: Any) -> Mapping[str, Any]:
    """Return settings of a model under their present names, if this version can read them."""
    try:
        return flat(to_dict(from_dict(type(model), stored)))
    except ConfigError:
        return stored


def _may_change(name: str) -> bool:
    return name in MAY_CHANGE or "drop" in name


def _changes(stored: Mapping[str, Any], own: Mapping[str, Any]) -> Changes:
    """Return the settings with two values, among those that both versions have."""
    return {
        name: (stored[name], value)
        for name, value in own.items()
        if name in stored and _plain(stored[name]) != _plain(value)
    }


def _in_full(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's settings with the value of each slot and side in place of a common one."""
    full, common = dict(model), set()
    # Give each slot and side the common value that it falls back to.
    for name, value in model.items():
        _, _, shared = name.partition("_")
        if shared in model and shared in ("attention", "positions"):
            full[name] = model[shared] if value is None else value
            common.add(shared)
    # Write attentions in the present form, so that equal ones compare as equal.
    for name in full:
        if name.endswith("attention") and isinstance(full[name], str):
            try:
                full[name] = str(Spec.parse(full[name]))
            except ConfigError:  # as an earlier version wrote it
                continue
    # Leave out common settings, whose values the slots have now.
    return {name: value for name, value in full.items() if name not in common}


def _noted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings whose change deserves a note, by name."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in WITHOUT_NOTE:
            found |= _noted(value) if isinstance(value, Mapping) else {name: value}
    return found


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _shown(option: Option, value: Any) -> str:
    return "not given" if value is None else option.text_of(value)
