"""Settings: one declaration of a field for its flag, presets, files, JSON and Python keywords.

A component's settings are a class made by :func:`settings`, its fields by :func:`option`. A
command's are a class of groups of them (:func:`group`). ``fields.py`` checks a value,
``classes.py`` makes instances from values by name, and ``command_line.py`` from flags and files.
``registry.py`` has what values name: files, and registered parts, whose options :func:`build_part`
reads.
"""

from relu_nmt.config.classes import (
    build_part,
    from_dict,
    from_flat,
    group,
    refuse_given,
    settings,
    to_dict,
)
from relu_nmt.config.command_line import add_settings, read_settings, read_settings_file, to_yaml
from relu_nmt.config.fields import MOST_SIZE, REQUIRED, checked_by, flag_of, like, option, shown
from relu_nmt.config.registry import CHECKPOINTS, READ, WRITTEN, Files, split_paths

__all__ = [
    "CHECKPOINTS",
    "MOST_SIZE",
    "READ",
    "REQUIRED",
    "WRITTEN",
    "Files",
    "add_settings",
    "build_part",
    "checked_by",
    "flag_of",
    "from_dict",
    "from_flat",
    "group",
    "like",
    "option",
    "read_settings",
    "read_settings_file",
    "refuse_given",
    "settings",
    "shown",
    "split_paths",
    "to_dict",
    "to_yaml",
]
