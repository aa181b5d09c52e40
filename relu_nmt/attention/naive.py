"""Every attention mechanism as its paper prints it: one short function each, written for reading.

The tests compare all faster code with these functions. Attention takes three steps:

    scores z = q k^T / sqrt(d)       how well each query matches each key
    weights w = f(z)                 softmax, or for example ReLU with a scale
    output w v                       each query gets a weighted sum of the values

Shapes: q [B, H, Nq, d], k [B, H, Nk, d], v [B, H, Nk, dv], for B sentences, H heads of width d, Nq
queries and Nk keys. mask is bool, broadcasts to [B, H, Nq, Nk], and is True where a query may see a
key. Every query sees at least one. Mechanisms that mix whole sequences have no mask: cut padding
off first. With the identity as v a function returns its weights.
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

Map = Callable[[Tensor], Tensor]
POINTWISE: dict[str, Map] = {
    "relu": lambda z: z.clamp_min(0),
    "relu2": lambda z: z.clamp_min(0) ** 2,
    "relu6": lambda z: z.clamp(0, 6),
    "gelu": lambda z: z * (1 + torch.erf(z / math.sqrt(2))) / 2,
    "softplus": lambda z: torch.logaddexp(z, torch.zeros_like(z)),
    "sigmoid": lambda z: 1 / (1 + torch.exp(-z)),
    "identity": lambda z: z,
}
"""The maps h of :func:`pointwise_attention`."""


def scores(q: Tensor, k: Tensor) -> Tensor:
    """Return z = q k^T / sqrt(d), [B, H, Nq, Nk]."""
    return q @ k.mT / math.sqrt(q.size(-1))


def visible(q: Tensor, mask: Tensor) -> Tensor:
    """Return n_i, the number of keys that each query sees, [B or 1, 1, Nq or 1, 1]."""
    return mask.sum(-1, keepdim=True).to(q.dtype)


def softmax(z: Tensor) -> Tensor:
    """Return exp(z) / sum exp(z) of each row."""
    e = torch.exp(z - z.detach().amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


# ------------------------------------------------------------------ rectified and pointwise weights


def relu_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    gamma: Tensor | float = 1.0,
    power: int = 1,
    centered: bool = False,
) -> Tensor:
    """ReLUFormer: s_ij = relu(z_ij) / (gamma sqrt(n_i / 2)), output sum_j s_ij v_j.

    n_i is the number of keys that query i sees. The divisor keeps the variance of the output the
    same at every length. Two extensions: squared weights (``power`` 2), and scores minus the mean
    of their row (``centered``).

    Reference: Shen et al. 2023, "A Study on ReLU and Softmax in Transformer", Eq. 5-6.
    """
    z = scores(q, k)
    n = visible(q, mask)
    if centered:
        z = z - (z * mask).sum(-1, keepdim=True) / n
    mean_square = {1: 1 / 2, 2: 3 / 2}[power]  # of relu(z)^power for a standard normal z
    # Rectify, hide keys, and give the output the variance 1 / gamma^2.
    s = z.relu() ** power * mask / (gamma * torch.sqrt(n * mean_square))
    return s @ v


def thresholded_relu_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, power: int = 4
) -> Tensor:
    """ReLU over a threshold: w_ij = relu((z_ij - m_i) / p - u_i)^p, output sum_j w_ij v_j.

    m_i and s_i are the mean and the standard deviation of the row's visible scores, and the
    threshold u_i is such that n_i E relu(s_i x / p - u_i)^p = 1 for a standard normal x: rows of
    normal scores sum to 1 on average. It is entmax with alpha = 1 + 1 / p, except for the
    threshold.
    """
    z = scores(q, k)
    n = visible(q, mask)
    z = z - (z * mask).sum(-1, keepdim=True) / n
    variance = ((z * mask) ** 2).sum(-1, keepdim=True) / n
    a = torch.sqrt((variance / power**2).clamp_min(1e-8))
    # Halve an interval of c = u / a, at whose ends n a^p E relu(x - c)^p is above 1 and below.
    t = torch.log(n * a**power)
    low = torch.full_like(t, -1e7)
    high = torch.full_like(t, 8.0)
    for _ in range(100):
        c = (low + high) / 2
        is_low = torch.log(rectified_moment(c, power)) > -t.detach()
        low, high = torch.where(is_low, c, low), torch.where(is_low, high, c)
    # Take one step of Newton's, which has the gradient of the solution.
    moment = rectified_moment(c, power)
    c = c + moment / (power * rectified_moment(c, power - 1)) * (t + torch.log(moment))
    return ((z / power - a * c).relu() ** power * mask) @ v


def rectified_moment(c: Tensor, power: int) -> Tensor:
    """Return E relu(x - c)^p of a standard normal x, by its recursion over p."""
    moments = [torch.erfc(c / math.sqrt(2)) / 2]
    density = torch.exp(-(c**2) / 2) / math.sqrt(2 * math.pi)
    for p in range(1, power + 1):
        before = density if p == 1 else (p - 1) * moments[p - 2]
        moments.append(before - c * moments[p - 1])
    return moments[power]


def pointwise_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, h: Map = torch.relu, alpha: float = 1.0
) -> Tensor:
    """Scaled pointwise attention: a_ij = n_i^-alpha h(z_ij), output sum_j a_ij v_j.

    Reference: Wortsman et al. 2023, "Replacing softmax with ReLU in vision transformers", sec. 3.
    """
    a = h(scores(q, k)) * mask / visible(q, mask) ** alpha
    return a @ v


def rela_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """ReLA: relu(z) v, unscaled, before :func:`rela_norm` of the joined heads.

    Reference: Zhang, Titov and Sennrich 2021, "Sparse attention with linear units", Eq. 5.
    """
    return (scores(q, k).relu() * mask) @ v


def rela_norm(o: Tensor, gain: Tensor, gate: Tensor | None = None) -> Tensor:
    """ReLA: RMSNorm(o), or with a gate RMSNorm(o) sigmoid(w o), of the joined heads o [B, Nq, D].

    Reference: Zhang, Titov and Sennrich 2021, "Sparse attention with linear units", Eq. 6-8.
    """
    y = gain * o / torch.sqrt((o**2).mean(-1, keepdim=True) + 1e-6)
    return y if gate is None else y * torch.sigmoid(gate * o)


def polynomial_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, power: int = 3, scale: Tensor | None = None
) -> Tensor:
    """Polynomial attention: A_ij = c z_ij^p, element by element, c = 1 / sqrt(n_i) by default.

    Reference: Saratchandran et al. 2024, "Rethinking Attention: Polynomial
    Alternatives to Softmax in Transformers", Theorem 4.2 and Corollary 4.3.
    """
    c = 1 / torch.sqrt(visible(q, mask)) if scale is None else scale
    return (c * scores(q, k) ** power * mask) @ v


# ------------------------------------------------------------------------- rows that sum to 1


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Softmax attention: softmax(z) v.

    Reference: Vaswani et al. 2017, "Attention is all you need", Eq. 1.
    """
    return softmax(scores(q, k).masked_fill(~mask, -math.inf)) @ v


def sparsemax(z: Tensor) -> Tensor:
    """Return [z - t]_+ of each row, with the t that makes the sum 1.

    Reference: Martins and Astudillo 2016, "From softmax to sparsemax", algorithm 1.
    """
    largest = z.sort(-1, descending=True).values
    sums = largest.cumsum(-1)
    k = torch.arange(1, z.size(-1) + 1)
    size = (1 + k * largest > sums).sum(-1, keepdim=True)  # of the support
    t = (sums.gather(-1, size - 1) - 1) / size
    return (z - t).clamp_min(0)


def entmax(z: Tensor, alpha: float) -> Tensor:
    """Return p = [(alpha - 1) z - t]_+^(1 / (alpha - 1)) of each row, t such that the sum is 1.

    Reference: Peters, Niculae and Martins 2019, "Sparse sequence-to-sequence models", Eq. 10 and
    algorithm 1. The last step is Newton's, which has the gradient of the solution.
    """
    x = (alpha - 1) * z
    # Enclose the threshold: at max - 1 the sum is at least 1.
    high = x.detach().amax(-1, keepdim=True)
    low = high - 1
    # Halve the interval until only rounding is left.
    for _ in range(100):
        t = (low + high) / 2
        is_low = ((x.detach() - t).clamp_min(0) ** (1 / (alpha - 1))).sum(-1, keepdim=True) > 1
        low, high = torch.where(is_low, t, low), torch.where(is_low, high, t)
    # Correct the threshold by one step that gradients pass through.
    p = (x - low).clamp_min(0) ** (1 / (alpha - 1))
    slope = ((p > 0) * p.detach() ** (2 - alpha)).sum(-1, keepdim=True) / (alpha - 1)
    t = low + (p.sum(-1, keepdim=True) - 1) / slope
    return (x - t).clamp_min(0) ** (1 / (alpha - 1))


def sparsemax_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Sparsemax attention: sparsemax(z) v, see :func:`sparsemax`."""
    return sparsemax(scores(q, k).masked_fill(~mask, -1e9)) @ v


def entmax_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, alpha: float = 1.5) -> Tensor:
    """Entmax attention: entmax(z) v, see :func:`entmax`. entmax15 has alpha 1.5."""
    return entmax(scores(q, k).masked_fill(~mask, -1e9), alpha) @ v


# ------------------------------------------------------------------------------- feature maps


def linear_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Linear attention: w v / (sum_j w_ij + 1e-6), w_ij = f(q_i) f(k_j), f(x) = elu(x) + 1.

    Reference: Katharopoulos et al. 2020, "Transformers are RNNs", Eq. 4 and 7.
    """
    w = (F.elu(q) + 1) @ (F.elu(k) + 1).mT * mask
    return w / (w.sum(-1, keepdim=True) + 1e-6) @ v


def cosformer_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    horizon: int | None = None,
    axes: Sequence[Tensor] | None = None,
) -> Tensor:
    """CosFormer: w_ij = relu(q_i) relu(k_j) cos(pi (i - j) / (2 M)), w v / sum_j w_ij.

    M is ``horizon``, by default the number of tokens. The queries are the last Nq tokens. Each of
    ``axes``, [N], replaces the positions i / M in a separate cosine.

    Reference: Qin et al. 2022, "cosFormer: Rethinking Softmax in Attention", Eq. 9-10.
    """
    if axes is None:
        real = mask.any(-2).to(q.dtype)
        axes = [real.cumsum(-1) / (horizon or real.sum(-1, keepdim=True))]
    w = q.relu() @ k.relu().mT * mask
    for x in axes:
        w = w * torch.cos(math.pi / 2 * (x[..., -q.size(-2) :, None] - x[..., None, :]))
    return w / w.sum(-1, keepdim=True).clamp_min(1e-6) @ v


def performer_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, w: Tensor, kernel: str = "softmax"
) -> Tensor:
    """Performer: a v / sum_j a_ij, with a_ij = f(q_i) f(k_j).

    f_r(x) = exp(w_r x - |x|^2 / 2 - c) + 1e-4. x is q or k times d^(-1/4), w [m, d] are random
    directions, and c is the largest w_r x of the query, or of its visible keys. The kernel ``relu``
    has f_r(x) = relu(w_r x) + 1e-3.

    Reference: Choromanski et al. 2021, "Rethinking Attention with Performers", Lemma 1.
    """
    q, k = q / q.size(-1) ** 0.25, k / k.size(-1) ** 0.25
    to_q, to_k = q @ w.mT, k @ w.mT
    if kernel == "relu":
        a = (to_q.relu() + 1e-3) @ (to_k.relu() + 1e-3).mT * mask
    else:
        # Find the largest product among the visible keys of each query.
        largest = to_k.amax(-1)[..., None, :].masked_fill(~mask, -math.inf).amax(-1, keepdim=True)
        to_k = to_k - (k**2).sum(-1, keepdim=True) / 2
        f_q = torch.exp(to_q - (q**2).sum(-1, keepdim=True) / 2 - to_q.amax(-1, True)) + 1e-4
        f_k = torch.exp(to_k[..., None, :, :] - largest[..., None]) + 1e-4  # [B, H, Nq, Nk, m]
        a = (f_q[..., None, :] * f_k).sum(-1) * mask
    return a / a.sum(-1, keepdim=True) @ v


# ------------------------------------------------------------------ whole sequences, without a mask


def efficient_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Efficient attention: softmax of q over channels, times softmax of k over tokens, times v.

    Reference: Shen et al. 2021, "Efficient Attention: Attention with Linear Complexities", Eq. 4-5.
    """
    return softmax(q) @ softmax(k.mT) @ v


def linformer_attention(q: Tensor, k: Tensor, v: Tensor, e: Tensor, f: Tensor) -> Tensor:
    """Linformer: softmax(q (E k)^T / sqrt(d)) F v, with learned E and F [rank, Nk].

    Reference: Wang et al. 2020, "Linformer: Self-Attention with Linear Complexity", Eq. 7.
    """
    return softmax(scores(q, e @ k)) @ (f @ v)


def sima_attention(q: Tensor, k: Tensor, v: Tensor, order: int = 1) -> Tensor:
    """SimA: q' k'^T v, each channel of q and k divided by its l1 norm over the tokens.

    The l2 norm (``order`` 2) and none (0) are the paper's ablations.

    Reference: Koohpayegani and Pirsiavash 2024, "SimA", Eq. 4-6.
    """
    if order > 0:
        q, k = (x / (x.abs() ** order).sum(-2, keepdim=True) ** (1 / order) for x in (q, k))
    return q @ k.mT @ v


def xca_attention(
    q: Tensor, k: Tensor, v: Tensor, t: Tensor, kernel: Map = softmax, unit_norm: bool = True
) -> Tensor:
    """XCA: (softmax(t q'^T k') v^T)^T, channels of q' and k' of l2 norm 1 over the tokens.

    t [H, 1, 1] is the inverse of the paper's temperature. Other kernels and z = q^T k / sqrt(n)
    belong to polynomial attention.

    Reference: El-Nouby et al. 2021, "XCiT: Cross-Covariance Image Transformers", Eq. 2.
    """
    z = q.mT @ k
    if unit_norm:
        # Divide by the norms of both channels, so that entries are cosines.
        z = z / (q.norm(dim=-2)[..., :, None] * k.norm(dim=-2)[..., None, :])
    else:
        z = z / math.sqrt(q.size(-2))
    return (kernel(t * z) @ v.mT).mT


def nystromformer_attention(
    q: Tensor, k: Tensor, v: Tensor, landmarks: int, kernel: Map = softmax, steps: int = 6
) -> Tensor:
    """Nystromformer: K(q, k') K(q', k')^+ K(q', k) v, q' and k' the means of segments of tokens.

    K is softmax(x y^T), with q and k times d^(-1/4). If each token is its own landmark, it is
    K(q, k) v.

    Reference: Xiong et al. 2021, "Nystromformer", Eq. 11, 13-14. |A| makes signed kernels valid.
    """
    q, k = q / q.size(-1) ** 0.25, k / k.size(-1) ** 0.25
    size = -(-k.size(-2) // landmarks)
    if size == 1:
        return kernel(q @ k.mT) @ v
    # Average each segment, [B, H, m, d].
    few_q, few_k = (torch.stack([s.mean(-2) for s in x.split(size, -2)], -2) for x in (q, k))
    a = kernel(few_q @ few_k.mT)
    identity = torch.eye(few_q.size(-2), dtype=q.dtype)
    # Start the inverse from A^T over the product of both norms.
    norms = a.abs().sum(-2).amax(-1) * a.abs().sum(-1).amax(-1)
    z = a.mT / norms[..., None, None]
    for _ in range(steps):
        z = z @ (13 * identity - a @ z @ (15 * identity - a @ z @ (7 * identity - a @ z))) / 4
    return kernel(q @ few_k.mT) @ z @ kernel(few_q @ k.mT) @ v


def soft_attention(
    q: Tensor, k: Tensor, v: Tensor, landmarks: Tensor, steps: int = 20, normalized: bool = False
) -> Tensor:
    """SOFT: g(q, l) g(l, l)^-1 g(l, k) v, g(x, y) = exp(-|x - y|^2 / 2), k = q times d^(-1/4).

    Newton's steps invert g(l, l). l [B, H, m, d] are :func:`soft_landmarks`. The extended version
    divides the inverse by the root of the row sums on both sides (``normalized``).

    Reference: Lu et al. 2021, "SOFT: Softmax-free Transformer with Linear Complexity", Eq. 6-9,
    algorithm 2, from A / |A|_1^2 on.
    """
    q, k = q / q.size(-1) ** 0.25, k / k.size(-1) ** 0.25
    # Compare queries, keys and landmarks with the landmarks.
    from_q, from_k, a = (
        torch.exp(-(x[..., :, None, :] - landmarks[..., None, :, :]).square().sum(-1) / 2)
        for x in (q, k, landmarks)
    )
    inverse = a / a.sum(-2).amax(-1)[..., None, None] ** 2
    for _ in range(steps):
        inverse = 2 * inverse - inverse @ a @ inverse
    if normalized:
        inverse = inverse / torch.sqrt(a.sum(-1)[..., :, None] * a.sum(-1)[..., None, :])
    return from_q @ inverse @ from_k.mT @ v


def soft_landmarks(q: Tensor, weight: Tensor, bias: Tensor, norm: Map) -> Tensor:
    """SOFT: gelu(norm(convolution(q))) [B, H, m, d] of windows of tokens, zeros beyond the end.

    The weight [d, stride d] maps the tokens of a window, q times d^(-1/4).

    Reference: Lu et al. 2021, "SOFT", section 3.2.
    """
    q = q / q.size(-1) ** 0.25
    stride = weight.size(1) // q.size(-1)
    windows = F.pad(q, (0, 0, 0, -q.size(-2) % stride)).unflatten(-2, (-1, stride)).flatten(-2)
    return POINTWISE["gelu"](norm(windows @ weight.mT + bias))


def token_convolution(v: Tensor, weight: Tensor) -> Tensor:
    """Return sums of neighboring values, out_i = sum_t w_t v_(i + t), with weights [H, odd width].

    An option of Nystromformer and SOFT adds it to the outputs.

    Reference: Xiong et al. 2021, "Nystromformer", section 3.2.
    """
    width = weight.size(1)
    n = v.size(-2)
    padded = F.pad(v, (0, 0, width // 2, width // 2))
    shifted = [weight[:, t, None, None] * padded[..., t : t + n, :] for t in range(width)]
    return torch.stack(shifted).sum(0)
