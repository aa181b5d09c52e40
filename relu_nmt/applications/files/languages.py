"""Source and target language of a translation, and the kinds and directions of their scripts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

_RIGHT_TO_LEFT = re.compile(
    "adlm|arab|hebr|nkoo|rohg|syrc|thaa"  # scripts
    "|ar|ara|arb|arc|azb|ckb|dv|fa|fas|he|heb|iw|ks|nqo|pes|pnb|prs|ps|sd|ug|ur|yi",
    re.IGNORECASE,
)
"""Scripts and languages that are written from right to left."""
_ASIAN = re.compile("bopo|han[ist]|hira|hrkt|jpan|kana|kore|hang|ja|ko|yue|zh", re.IGNORECASE)
_INDIC = re.compile(
    "beng|deva|gujr|guru|khmr|knda|laoo|mlym|mtei|mymr|olck|orya|sinh|taml|telu|thai|tibt"
    "|as|bn|bo|dz|gu|hi|km|kn|kok|lo|mai|ml|mni|mr|my|ne|or|pa|sa|sat|si|ta|te|th",
    re.IGNORECASE,
)
"""Further scripts and languages that office documents call complex, as they call right-to-left."""


@dataclass(frozen=True)
class Languages:
    """Source and target language of a translation, such as ``en_GB``. "" is an unknown language."""

    source: str = ""
    target: str = ""

    @property
    def tag(self) -> str:
        """The target language as most formats write it, such as ``en-GB``, or ""."""
        is_name = re.fullmatch(r"[\w-]+", self.target) is not None
        return self.target.replace("_", "-") if is_name else ""

    @cached_property
    def new_direction(self) -> str:
        """The direction of the target script, ``rtl`` or ``ltr``, or "" if the direction stays."""
        new = _direction(self.target)
        is_new = self.source and self.tag and _direction(self.source) != new
        return new if is_new else ""

    @cached_property
    def script_kind(self) -> str:
        """The kind of the target script in office documents: western, asian or complex."""
        return _script_kind(self.target)

    def after_translation(self, name: str) -> str:
        """Return the target language for a name of the source language, else the name.

        Example:
            >>> languages = Languages("de", "en")
            >>> languages.after_translation("de-AT"), languages.after_translation("fr")
            ('en', 'fr')
        """
        return self.tag if self._is_replaced(name) else name

    def in_target_script(self, names: Mapping[str, str]) -> str:
        """Return the language of texts in the target script, from ``names`` by kind of script."""
        name = names[self.script_kind]
        is_target = f"{name}-".startswith(f"{self.tag}-") and not self._is_replaced(name)
        source_names = (names["western"], names[_script_kind(self.source)])
        is_source = any(map(self._is_replaced, source_names))
        return self.tag if is_source and not is_target else name

    def _is_replaced(self, name: str) -> bool:
        """Return True for a name of the source language, if the target language is another one."""
        is_source = _main_part(name) == _main_part(self.source) != ""
        return is_source and self.source != self.target and self.tag != ""


UNKNOWN_LANGUAGES = Languages()


def _direction(language: str) -> str:
    return "rtl" if _RIGHT_TO_LEFT.fullmatch(_script_or_language(language)) else "ltr"


def _script_kind(language: str) -> str:
    script = _script_or_language(language)
    if _ASIAN.fullmatch(script):
        return "asian"
    is_complex = _RIGHT_TO_LEFT.fullmatch(script) or _INDIC.fullmatch(script)
    return "complex" if is_complex else "western"


def _script_or_language(name: str) -> str:
    """Return the script that the name of a language tells, or else the language alone."""
    parts = re.split("[-_]", name)
    scripts = [part for part in parts[1:] if len(part) == 4 and part.isalpha()]
    return [*scripts, parts[0]][0]


def _main_part(language: str) -> str:
    return re.split("[-_]", language)[0].lower()
