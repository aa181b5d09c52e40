"""Attention through a few vectors in place of all tokens: Linformer, Nystromformer and SOFT.

Linformer has learned mixtures of the tokens. Nystromformer and SOFT have landmarks.
"""

import math
from collections import OrderedDict
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention import attentions
from relu_nmt.attention.base import (
    MIXES_TOKENS,
    Attention,
    AttentionConfig,
    AttentionOutput,
    AttentionProblem,
    without_decay,
)
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.polynomial import SCALES
from relu_nmt.config import MOST_SIZE, option, settings
from relu_nmt.errors import ConfigError

POLYNOMIAL_POWER = 3
SMALLEST = 1e-30
"""If the largest weight between landmarks is below this, it counts as 0."""


@attentions.register("linformer")
class LinformerAttention(Attention):
    """out = softmax(q (E k)^T / sqrt(d)) (F v), with learned E and F, [rank, length].

    The heads of a layer share E and F. Padded rows of k and v are 0, so they add nothing to the
    mixtures.

    Reference: Wang et al. 2020, "Linformer: Self-Attention with Linear Complexity", Eq. 7
    (head-wise sharing). The start of E and F, normal with variance 1 / length, is ours: the paper
    gives none.
    """

    @settings(flags=False)
    class Config(AttentionConfig):
        """Options of ``--attention linformer:rank=64``."""

        length: int = option(
            1024, "most keys (shorter sentences use the first columns)", least=1, most=MOST_SIZE
        )
        rank: int = option(256, "number of mixtures k", least=1, most=MOST_SIZE)

    exact = True
    capabilities = replace(
        MIXES_TOKENS,
        cross=True,
        fixed_length=True,
        reason="its keys and values are mixtures of all tokens",
    )

    def __init__(self, config: Config, num_heads: int, head_dim: int, dropout: float) -> None:
        super().__init__(config, num_heads, head_dim, dropout)
        self.keys_projection = nn.Parameter(torch.empty(config.rank, config.length))  # E
        self.values_projection = nn.Parameter(torch.empty(config.rank, config.length))  # F
        nn.init.normal_(self.keys_projection, std=config.length**-0.5)
        nn.init.normal_(self.values_projection, std=config.length**-0.5)

    def most_keys(self, causal: bool) -> int | None:
        """Return ``length``."""
        return self.config.length

    def attend(self, problem: AttentionProblem) -> AttentionOutput:
        """Return the outputs (ConfigError: more keys than ``length``)."""
        num_keys = problem.k.size(2)
        if num_keys > self.config.length:
            raise ConfigError(
                f"linformer: {num_keys} keys, but it was made for length={self.config.length}; "
                f"train with the attention option length={num_keys} or more"
            )
        k, v = map(problem.visibility.without_padding, (problem.k, problem.v))
        keys = self.keys_projection[:, :num_keys] @ k  # [B, H, rank, d]
        mixtures = self.values_projection[:, :num_keys] @ v
        scores = problem.q @ keys.transpose(-1, -2) / math.sqrt(self.head_dim)
        # Without keys all mixtures are 0, and so is the output.
        return AttentionOutput(scores.softmax(-1) @ mixtures)


def check_width(width: int) -> None:
    """Raise a ConfigError unless ``width`` is odd, or 0 for no convolution."""
    if width < 0 or (width > 0 and width % 2 == 0):
        raise ConfigError(f"conv={width}: expected 0 (none) or an odd number of tokens")


def token_convolution(num_heads: int, width: int) -> nn.Module | None:
    """Return a convolution of values [B, H, N, d] over ``width`` tokens: one kernel a head.

    Reference: Nystromformer, section 3.2 (skip connection of the values). Its LRA experiments use
    35 tokens.
    """
    if width == 0:
        return None
    convolution = nn.Conv2d(
        num_heads, num_heads, (width, 1), padding=(width // 2, 0), groups=num_heads, bias=False
    )
    return nn.Sequential(OrderedDict(convolution=convolution))  # checkpoints have the name


def scaled_tokens(problem: AttentionProblem) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v with 0 where padding, q and k times d^(-1/4), [B, H, N, d] each."""
    q, k, v = map(problem.visibility.without_padding, (problem.q, problem.k, problem.v))
    scale = q.size(-1) ** -0.25
    return q * scale, k * scale, v


def landmark_output(
    values: Tensor, v: Tensor, convolution: nn.Module | None, visibility: Visibility
) -> AttentionOutput:
    """Return the outputs plus the convolution of v [B, H, N, d], 0 in samples without tokens."""
    if convolution is not None:
        values = values + convolution(v)
    return AttentionOutput(visibility.without_empty_rows(values))


@attentions.register("nystromformer")
class NystromformerAttention(Attention):
    """out = K(q, k_l) K(q_l, k_l)^+ K(q_l, k) v, q and k each times d^(-1/4). l are landmarks.

    A landmark is the mean of ceil(n / m) consecutive queries, or keys, of the n real tokens. So
    padding does not move it. K is softmax(x y^T) by rows, or n^(-1/2) (x y^T)^3. ``scale`` may
    replace n^(-1/2) by 1, or by g n^(-1/2) with a learned g a layer, which starts at 1 and has no
    weight decay. The output has this factor once. ``length=N`` puts a constant N in the place of n,
    as in the paper. If every token is its own landmark (n <= m), the result is full attention, K(q,
    k) v. A convolution of v may be added. Outputs of the polynomial kernel grow with the length of
    the segments. With thousands of tokens in each they overflow float16, but not bfloat16.

    Reference: Xiong et al. 2021, "Nystromformer", Eq. 13-14 and algorithm 1. The polynomial
    kernel is a reconstruction of "Rethinking Attention" (Saratchandran et al. 2024), which does not
    print the formula. Deviation: the pseudo-inverse starts from the norms of each matrix by itself.
    """

    @settings(flags=False)
    class Config(AttentionConfig):
        """Options of ``--attention nystromformer:landmarks=32``."""

        landmarks: int = option(64, "number of landmarks m", least=1, most=MOST_SIZE)
        kernel: str = option("softmax", "softmax or polynomial", choices=("softmax", "polynomial"))
        scale: str = option(
            "fixed",
            "scale of the polynomial: fixed 1/sqrt(n), dynamic (learned) or none",
            choices=SCALES,
            needs=("kernel", "polynomial"),
        )
        length: int | None = option(
            None,
            "a constant N for the polynomial's scale, else each sequence's own n",
            least=1,
            needs=[("kernel", "polynomial"), ("scale", "fixed", "dynamic")],
        )
        iterations: int = option(6, "steps toward the pseudo-inverse", least=1)
        conv: int = option(
            0, "width of the convolution of the values, odd (0: none, LRA has 35)", most=MOST_SIZE
        )

        def check(self) -> None:
            """Refuse a convolution of even width."""
            check_width(self.conv)

    exact = True
    capabilities = replace(
        MIXES_TOKENS, reason="its landmarks are means over all tokens of one sequence"
    )

    def __init__(self, config: Config, num_heads: int, head_dim: int, dropout: float) -> None:
        super().__init__(config, num_heads, head_dim, dropout)
        self.convolution = token_convolution(num_heads, config.conv)
        self.scale = None
        if config.scale == "dynamic":
            self.scale = without_decay(torch.ones(1))  # g

    def attend(self, problem: AttentionProblem) -> AttentionOutput:
        q, k, v = scaled_tokens(problem)
        visibility = problem.visibility
        num_tokens = k.size(2)
        num_landmarks = self.config.landmarks
        # Means of segments: landmarks of queries, keys and values.
        count = visibility.counts[..., None].to(k)  # n, [B or 1, 1, 1, 1]
        segments = segment_means(visibility, num_tokens, num_landmarks, k)
        present = segments.any(-1)[..., None, :]  # [B or 1, 1, 1, m]
        landmark_q, landmark_k, landmark_v = (segments @ x for x in (q, k, v))
        scale = torch.ones_like(count)
        if self.config.length is not None:
            scale = count.new_tensor(self.config.length).rsqrt()
        elif self.config.scale != "none":
            scale = count.clamp_min(1).rsqrt()
        if self.scale is not None:
            scale = scale * self.scale
        to_landmarks = self._kernel(q, landmark_k, present, scale)  # [B, H, N, m]
        mixed = landmark_v
        # An exported graph, which serves any N, takes the general way. The result is the same.
        if not isinstance(num_tokens, int) or num_tokens > num_landmarks:
            core = self._kernel(landmark_q, landmark_k, present, scale)  # [B, H, m, m]
            # Zero the rows and columns of landmarks without tokens. The inverse keeps them zero.
            core = core * (present.transpose(-1, -2) & present)
            from_tokens = self._kernel(landmark_q, k, visibility.mask, scale)  # [B, H, m, N]
            mixed = pseudo_inverse(core, self.config.iterations) @ (from_tokens @ v)
            # Use full attention where each token is its own landmark.
            mixed = torch.where(count <= num_landmarks, landmark_v, mixed)
        return landmark_output(to_landmarks @ mixed, v, self.convolution, visibility)

    def _kernel(self, x: Tensor, y: Tensor, visible: Tensor | None, scale: Tensor) -> Tensor:
        """Return K(x, y) [B, H, Nx, Ny] over the ``visible`` [B or 1, 1, 1, Ny]."""
        scores = x @ y.transpose(-1, -2)
        if self.config.kernel == "polynomial":
            weights = scale * scores.pow(POLYNOMIAL_POWER)
            if visible is not None:
                weights = weights.masked_fill(~visible, 0.0)
            return weights
        if visible is not None:
            # Let a sample without tokens see all of its zeros: its softmax would be NaN.
            visible = visible | ~visible.any(-1, keepdim=True)
            scores = scores.masked_fill(~visible, -torch.inf)
        return scores.softmax(-1)


def segment_means(visibility: Visibility, num_tokens: int, count: int, like: Tensor) -> Tensor:
    """Return [B or 1, 1, m, N], the matrix that averages segments of tokens.

    Segments have ceil(n / count) of the n real tokens of a sample, the last one perhaps fewer.
    Segments that begin after the last token have rows of zeros. m is the smaller of ``count`` and
    N, or always ``count`` in an exported graph for any N. ``like`` has the wanted dtype and device.
    """
    real_tokens = visibility.counts[:, 0].to(like.device, torch.int64)  # [B or 1, 1]
    size = ((real_tokens + count - 1) // count).clamp_min(1)
    segment = visibility.positions_without_padding().to(like.device) // size  # [B or 1, N]
    num_segments = min(count, num_tokens) if isinstance(num_tokens, int) else count
    numbers = torch.arange(num_segments, device=like.device)
    member = segment[:, None, :] == numbers[:, None]  # [B or 1, m, N]
    if visibility.key_mask is not None:
        member = member & visibility.key_mask[:, None, :]
    sizes = member.sum(-1, keepdim=True).clamp_min(1)
    return (member.to(like.dtype) / sizes)[:, None]


def pseudo_inverse(matrix: Tensor, iterations: int) -> Tensor:
    """Return an approximate pseudo-inverse of each [m, m] matrix, by third-order steps.

    Rows and columns of zeros stay zero. Absolute values make the start valid for signed matrices.

    Reference: Nystromformer, Eq. 11 (Razavi et al. 2014).
    """
    absolute = matrix.abs()
    # Scale the matrix: cubes of small scores have norms whose product would be 0 in float32.
    largest = absolute.detach().amax((-2, -1), keepdim=True)
    largest = largest.masked_fill(largest < SMALLEST, 1.0)
    matrix = matrix / largest
    absolute = absolute / largest
    # Start from A^T / (|A|_1 |A|_inf), then take the steps.
    norms = absolute.sum(-2).amax(-1) * absolute.sum(-1).amax(-1)  # |A|_1 |A|_inf
    norms = norms.masked_fill(norms == 0, 1.0)[..., None, None]
    inverse = matrix.transpose(-1, -2) / norms
    identity = torch.eye(matrix.size(-1), dtype=matrix.dtype, device=matrix.device)
    for _ in range(iterations):
        product = matrix @ inverse
        inner = 15 * identity - product @ (7 * identity - product)
        inverse = 0.25 * inverse @ (13 * identity - product @ inner)
    # Undo the scaling, which multiplied the inverse.
    return inverse / largest


@attentions.register("soft")
class SOFTAttention(Attention):
    """out = g(q, l) g(l, l)^(-1) g(k, l)^T v, g(x, y) = exp(-|x - y|^2 / 2), k = q, times d^(-1/4).

    The landmarks l are GELU(LayerNorm(convolution(q))) of each ``stride`` tokens, with the same
    parameters for all heads. Newton's steps invert g(l, l). The paper is for images. Here the
    tokens lie in one line, with zeros for padding and beyond the end.

    The squared length of a landmark is about 0.43 d at first, so g of a query and a landmark is
    about exp(-0.21 d): 1e-3 in the paper's heads of 32, 1e-6 in heads of 64, where gradients
    vanish.

    Reference: Lu et al. 2021, "SOFT: Softmax-free Transformer with Linear Complexity", Eq. 6-9 and
    algorithm 2. ``normalized`` comes from its extended version. Deviation: the steps start from A /
    |A|_1^2. The paper starts from twice this matrix, which converges to 0 if all landmarks are
    equal or there is only one. The smaller start takes one more step.
    """

    @settings(flags=False)
    class Config(AttentionConfig):
        """Options of ``--attention soft:stride=4``."""

        stride: int = option(8, "tokens per landmark", least=1)
        iterations: int = option(20, "Newton steps toward the inverse", least=1)
        normalized: bool = option(
            False, "divide the inverse by the root of the row sums on both sides"
        )
        conv: int = option(
            0, "width of the convolution of the values, odd (0: none)", most=MOST_SIZE
        )

        def check(self) -> None:
            """Refuse a convolution of even width."""
            check_width(self.conv)

    shares_queries_and_keys = True
    exact = True
    capabilities = replace(
        MIXES_TOKENS, reason="queries and keys are the same and its landmarks come from all tokens"
    )

    def __init__(self, config: Config, num_heads: int, head_dim: int, dropout: float) -> None:
        super().__init__(config, num_heads, head_dim, dropout)
        # A convolution whose stride is its width is a linear map of windows.
        self.window = nn.Linear(config.stride * head_dim, head_dim)
        self.norm = nn.LayerNorm(head_dim)
        self.convolution = token_convolution(num_heads, config.conv)

    def attend(self, problem: AttentionProblem) -> AttentionOutput:
        q, k, v = scaled_tokens(problem)
        visibility = problem.visibility
        stride = self.config.stride
        landmarks = F.gelu(self.norm(self.window(in_windows(q, stride))))  # [B, H, m, d]
        from_queries = gaussian(q, landmarks)  # [B, H, N, m]
        from_keys = gaussian(k, landmarks)
        core = gaussian(landmarks, landmarks)  # [B, H, m, m]
        # Remove the rows and columns of landmarks of padding alone.
        if visibility.key_column is not None:
            windows = in_windows(visibility.key_column, stride)
            present = windows.any(-1)[:, :, None, :]  # [B, 1, 1, m]
            from_queries = from_queries * present
            core = core * (present & present.transpose(-1, -2))
        inverse = newton_inverse(core, self.config.iterations)
        if self.config.normalized:
            # Take row sums of landmarks. Rows of zeros keep the factor 1.
            totals = core.sum(-1)
            roots = totals.masked_fill(totals == 0, 1.0).rsqrt()
            inverse = roots[..., :, None] * inverse * roots[..., None, :]
        # Multiply from the right, which is linear in N.
        values = from_queries @ (inverse @ (from_keys.transpose(-1, -2) @ v))
        return landmark_output(values, v, self.convolution, visibility)


def in_windows(x: Tensor, stride: int) -> Tensor:
    """Return x [B, H, N, d] as [B, H, m, stride * d], with zeros behind the last token.

    In an exported graph for any N the last window holds zeros only.
    """
    num_tokens = x.size(2)
    # Pad to whole windows where the length is a plain number.
    if isinstance(num_tokens, int):
        filled = F.pad(x, (0, 0, 0, -num_tokens % stride))
        return filled.unflatten(2, (-1, stride)).flatten(3)
    # torch.export would fix whether m is 1, and cannot divide by the stride.
    count = (num_tokens + 2 * stride - 1) // stride
    offsets = torch.arange(stride, device=x.device)
    tokens = torch.arange(count, device=x.device)[:, None] * stride + offsets
    return F.pad(x, (0, 0, 0, 2 * stride - 1))[:, :, tokens].flatten(3)


def gaussian(x: Tensor, y: Tensor) -> Tensor:
    """Return exp(-|x_i - y_j|^2 / 2), [..., Nx, Ny]."""
    lengths = x.square().sum(-1)[..., :, None] + y.square().sum(-1)[..., None, :]
    return (x @ y.transpose(-1, -2) - lengths / 2).exp()


def newton_inverse(matrix: Tensor, iterations: int) -> Tensor:
    """Return an approximate inverse of each symmetric non-negative [m, m], by Newton's steps.

    Rows and columns of zeros stay zero. See :class:`SOFTAttention` for the start.
    """
    norms = matrix.sum(-2).amax(-1)  # |A|_1
    norms = norms.masked_fill(norms == 0, 1.0)[..., None, None]
    inverse = matrix / norms.square()
    for _ in range(iterations):
        inverse = 2 * inverse - inverse @ matrix @ inverse
    return inverse
