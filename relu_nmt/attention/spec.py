"""How an attention is written on the command line: ``NAME`` or ``NAME:option=value,...``."""

from dataclasses import dataclass, field

from relu_nmt.attention import attentions
from relu_nmt.errors import ConfigError

SLOTS = ("encoder", "decoder", "cross")
"""Where an encoder-decoder attends: source to source, target to target, target to source."""


@dataclass(frozen=True)
class AttentionSpec:
    """A mechanism's name and its options as text.

    Example:
        >>> AttentionSpec.parse("reluformer:gamma=2").options
        {'gamma': '2'}
        >>> str(AttentionSpec.parse("reluformer:gamma=2"))
        'reluformer:gamma=2'
    """

    name: str
    options: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "AttentionSpec":
        """Read ``reluformer`` or ``reluformer:gamma=2``.

        Raises:
            ConfigError: an option is not of the form ``name=value``.
        """
        name, _, rest = text.partition(":")
        options = {}
        for item in filter(None, rest.split(",")):
            key, equals, value = item.partition("=")
            if not (key and equals and value):
                raise ConfigError(
                    f"attention '{text}': expected NAME or NAME:option=value,option=value"
                )
            options[key] = value
        return cls(name, options)

    def __str__(self) -> str:
        options = ",".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.name}:{options}" if options else self.name


def known_attention(text: str) -> str:
    """Return ``text`` if it names a registered attention (for the command line's parser).

    Raises:
        ConfigError: it does not.
    """
    attentions.check(AttentionSpec.parse(text).name)
    return text
