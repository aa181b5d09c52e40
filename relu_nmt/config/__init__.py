"""Settings: one declaration of a field for its flag, presets, files, JSON and Python keywords.

A component's settings are a class made by :func:`settings`, its fields by :func:`option`. A
command's are a class of groups of them (:func:`group`). ``fields.py`` checks a value, ``needs.py``
finds values without an effect, ``classes.py`` makes instances from values by name, and
``command_line.py`` from flags and files. Values may name files (``files.py``) and registered parts
(``registry.py``), which have options of their own (``parts.py``).
"""

from relu_nmt.config.classes import (
    from_dict,
    from_flat,
    group,
    refuse_given,
    settings,
    to_dict,
)
from relu_nmt.config.command_line import add_settings, read_settings, read_settings_file, to_yaml
from relu_nmt.config.fields import MOST_SIZE, REQUIRED, checked_by, flag_of, like, option, shown
from relu_nmt.config.files import CHECKPOINTS, READ, WRITTEN, Files, split_paths
from relu_nmt.config.parts import build_part

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
