"""Position schemes: the base class, and the schemes that add vectors to the embeddings.

A scheme can do three things: add vectors to the embeddings, rotate queries and keys, and add a bias
to the scores. The last two are for self-attention only, as the distance between a target and a
source token has no fixed meaning. Cross-attention gets positions from the states alone.

Your own scheme is a subclass of :class:`PositionScheme`, registered by name. Names joined by a plus
(``sinusoidal+t5``) are several schemes at once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from relu_nmt.attention.bias import ScoreBias
from relu_nmt.attention.masks import Visibility
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.modules import position_schemes


@dataclass(frozen=True)
class PositionConfig:
    """Properties of the model that a scheme may use.

    Args:
        embed_dim: width D of the states.
        num_heads: H.
        causal: True if tokens see only earlier ones.
        max_positions: length of the longest sequence.
        flag: the flag that sets ``max_positions``, for error messages.
    """

    embed_dim: int
    num_heads: int
    causal: bool
    max_positions: int
    flag: str = "--max-positions"


class PositionScheme(nn.Module):
    """Base class of position schemes; one scheme serves all layers of an encoder or decoder.

    Attributes:
        max_positions: length of the longest sequence; None for any.

    Example:
        >>> config = PositionConfig(embed_dim=4, num_heads=1, causal=False, max_positions=8)
        >>> tuple(position_schemes.get("sinusoidal")(config).embed(3).shape)
        (3, 4)
    """

    needs_scores: bool = False
    """True if it has ``rotation`` or ``bias``, which only mechanisms with scores can use."""
    max_positions: int | None = None

    def __init__(self, config: PositionConfig) -> None:
        super().__init__()
        self.config = config

    def embed(self, num_positions: int, start: int = 0) -> Tensor | None:
        """Return vectors [N, D] for the embeddings of N positions from ``start`` on, or None."""
        return None

    def rotation(self, positions: Tensor) -> "Rotation | None":
        """Return the rotation of queries and keys at positions [B or 1, N] int64, or None."""
        return None

    def bias(self, visibility: Visibility) -> ScoreBias | None:
        """Return the bias of the scores in self-attention, or None."""
        return None

    def relative(self, visibility: Visibility) -> "RelativePositions | None":
        """Return rotation and bias for all layers of one pass; None without both."""
        if not self.needs_scores:
            return None
        rotation = self.rotation(visibility.query_positions())
        return RelativePositions(rotation, self.bias(visibility))


@dataclass(frozen=True)
class Rotation:
    """Rotation of the planes of channels c and c + d/2 of each head, by an angle for each token.

    Args:
        cosines: [B or 1, 1, N, d], equal halves.
        sines: likewise, with the signs of the first half changed.
    """

    cosines: Tensor
    sines: Tensor

    @classmethod
    def of_angles(cls, angles: Tensor) -> "Rotation":
        """Return the rotation by angles [B or 1, N, d/2]."""
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        return cls(torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1))

    def rotate(self, x: Tensor) -> Tensor:
        """Return x [B, H, N, d] rotated, in its own dtype."""
        # Swap the halves: (a, b) becomes (a cos - b sin, b cos + a sin).
        swapped = x.roll(x.size(-1) // 2, dims=-1)
        return torch.addcmul(x * self.cosines, swapped, self.sines).to(x.dtype)

    def of_rows(self, rows: Tensor) -> "Rotation":
        """Return the rotation [1, 1, N', d] of tokens with these indices [N'] among all B N."""
        batch, _, length, width = self.cosines.shape
        # Wrap the indices if all samples share the angles.
        index = rows % length if batch == 1 else rows
        return Rotation(
            *(x.reshape(-1, width)[index][None, None] for x in (self.cosines, self.sines))
        )


@dataclass(frozen=True)
class RelativePositions:
    """Rotation of queries and keys, and bias of the scores, for all layers of one pass."""

    rotation: Rotation | None
    bias: ScoreBias | None

    def rotate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rotated queries and keys [B, H, N, d] of the same tokens."""
        if self.rotation is None:
            return q, k
        return self.rotation.rotate(q), self.rotation.rotate(k)


@position_schemes.register("none")
class NoPositions(PositionScheme):
    """No positions: without a causal mask, the order of the tokens has no effect."""


@position_schemes.register("sinusoidal")
class SinusoidalPositions(PositionScheme):
    """Fixed sine and cosine waves of any length.

    The first half of the D channels holds sines, the second cosines. The table grows on demand.

    Reference: Vaswani et al. 2017, section 3.5 (halves instead of alternating columns, which
    differs by a fixed permutation of the channels).
    """

    table: Tensor

    def __init__(self, config: PositionConfig) -> None:
        super().__init__(config)
        self.register_buffer("table", self._waves(256), persistent=False)

    def embed(self, num_positions: int, start: int = 0) -> Tensor:
        """See :meth:`PositionScheme.embed`."""
        end = start + num_positions
        if end > self.table.size(0):
            self.table = self._waves(2 * end).to(self.table.device)
        return self.table[start:end]

    def _waves(self, num_positions: int) -> Tensor:
        return sinusoids(torch.arange(num_positions), self.config.embed_dim)


@position_schemes.register("sinusoidal-fairseq")
class FairseqSinusoidalPositions(SinusoidalPositions):
    """The same waves from position 2 on, for models that fairseq trained.

    Reference: fairseq 0.12, ``make_positions``, where positions begin behind the padding index.
    """

    def embed(self, num_positions: int, start: int = 0) -> Tensor:
        """See :meth:`PositionScheme.embed`."""
        return super().embed(num_positions, start + 2)


def sinusoids(positions: Tensor, embed_dim: int) -> Tensor:
    """Return the waves [N, D] at positions [N]: sines in the first half, cosines in the second."""
    half = (embed_dim + 1) // 2
    # Lower the rates geometrically from 1 to 1/10000.
    rates = torch.arange(half, device=positions.device) * (-math.log(10000.0) / max(half - 1, 1))
    angles = positions[:, None] * rates.exp()[None, :]
    return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :embed_dim]


@position_schemes.register("learned")
class LearnedPositions(PositionScheme):
    """One learned vector for each position, up to a fixed number of positions.

    Reference: Gehring et al. 2017, "Convolutional sequence to sequence learning", section 3.1.
    """

    def __init__(self, config: PositionConfig) -> None:
        super().__init__(config)
        self.max_positions = config.max_positions
        self.weight = nn.Parameter(torch.empty(config.max_positions, config.embed_dim))
        nn.init.normal_(self.weight, std=config.embed_dim**-0.5)

    def embed(self, num_positions: int, start: int = 0) -> Tensor:
        """See :meth:`PositionScheme.embed`.

        Raises:
            DataError: the sequence is longer than the table.
        """
        end = start + num_positions
        if end > self.weight.size(0):
            raise DataError(
                f"a sequence of {end} tokens does not fit {self.config.flag} "
                f"{self.weight.size(0)} with learned positions; raise it or train with sinusoidal "
                "positions"
            )
        return self.weight[start:end]


class JoinedPositions(PositionScheme):
    """Sum of several schemes: their vectors are added.

    Raises:
        ConfigError: more than one has a bias, or more than one rotates queries and keys.
    """

    def __init__(self, schemes: Sequence[PositionScheme]) -> None:
        super().__init__(schemes[0].config)
        # Refuse two schemes that act on the same place.
        kinds = [type(scheme) for scheme in schemes]
        if sum(kind.bias is not PositionScheme.bias for kind in kinds) > 1:
            raise ConfigError("only one of several position schemes can add a bias to the scores")
        if sum(kind.rotation is not PositionScheme.rotation for kind in kinds) > 1:
            raise ConfigError("only one of several position schemes can rotate queries and keys")
        self.schemes = cast(Sequence[PositionScheme], nn.ModuleList(schemes))
        self.needs_scores = any(scheme.needs_scores for scheme in schemes)
        # The shortest limit holds.
        limits = [scheme.max_positions for scheme in schemes]
        self.max_positions = min((n for n in limits if n is not None), default=None)

    def embed(self, num_positions: int, start: int = 0) -> Tensor | None:
        """See :meth:`PositionScheme.embed`."""
        found = [scheme.embed(num_positions, start) for scheme in self.schemes]
        vectors = [one for one in found if one is not None]
        return torch.stack(vectors).sum(0) if vectors else None

    def rotation(self, positions: Tensor) -> Rotation | None:
        """See :meth:`PositionScheme.rotation`."""
        found = [scheme.rotation(positions) for scheme in self.schemes]
        return next((rotation for rotation in found if rotation is not None), None)

    def bias(self, visibility: Visibility) -> ScoreBias | None:
        """See :meth:`PositionScheme.bias`."""
        found = [scheme.bias(visibility) for scheme in self.schemes]
        return next((bias for bias in found if bias is not None), None)


def kinds_of(names: str) -> list[type[PositionScheme]]:
    """Return the schemes of a text such as ``sinusoidal+t5``.

    Raises:
        ConfigError: one is not registered.
    """
    return [position_schemes.get(name) for name in names.split("+")]


def build_positions(names: str, config: PositionConfig) -> PositionScheme:
    """Return the scheme of a name, or of a text such as ``sinusoidal+t5``.

    Raises:
        ConfigError: a scheme is not registered or does not fit, or two schemes rotate queries and
            keys or add a bias.

    Example:
        >>> config = PositionConfig(embed_dim=4, num_heads=1, causal=False, max_positions=8)
        >>> scheme = build_positions("sinusoidal+t5", config)
        >>> tuple(scheme.embed(3).shape), tuple(scheme.bias(Visibility(3, 3)).table.shape)
        ((3, 4), (1, 5))
    """
    schemes = [kind(config) for kind in kinds_of(names)]
    return schemes[0] if len(schemes) == 1 else JoinedPositions(schemes)
