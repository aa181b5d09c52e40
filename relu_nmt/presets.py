"""Named groups of settings, chosen by ``--arch``."""

from collections.abc import Mapping
from typing import Any

from relu_nmt.errors import ConfigError


class Presets:
    """The presets of a family of models: by name, the settings that differ from the defaults.

    Example:
        >>> presets = Presets({"small": {"layers": 2}, "base": {"layers": 6}})
        >>> presets.names()
        ['base', 'small']
        >>> presets["base"]
        {'layers': 6}
    """

    def __init__(self, settings: Mapping[str, Mapping[str, Any]]) -> None:
        self._settings = settings

    def names(self) -> list[str]:
        """Return the names of all presets, sorted."""
        return sorted(self._settings)

    def __getitem__(self, name: str) -> dict[str, Any]:
        """Return the settings of a preset.

        Raises:
            ConfigError: no such preset.
        """
        if name not in self._settings:
            raise ConfigError(f"--arch {name}: choose one of {', '.join(self.names())}")
        return dict(self._settings[name])
