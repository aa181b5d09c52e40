"""PINNsformer, a transformer that solves differential equations, with any registered attention.

Shapes: ``N`` points, ``S`` steps of the sequence of a point, ``D`` width.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from relu_nmt.attention.base import Attention, build_attention, use_backend
from relu_nmt.attention.masks import Visibility
from relu_nmt.config.registry import Spec
from relu_nmt.errors import ConfigError
from relu_nmt.modules.multihead import CrossAttention, SelfAttention

WIDTH = 32
HEADS = 2
FFN_DIM = 256
OUTPUT_DIM = 512
STEPS = 5
STEP = 1e-4
"""A point (x, t) becomes the sequence (x, t), (x, t + 1e-4) ... of 5 steps."""
LARGEST_X = 2 * torch.pi
LARGEST_T = 1.0
FIRST_BIAS = 0.01


class Wave(nn.Module):
    """w(x) = a sin x + b cos x with learned a and b, which start at 1.

    Reference: Zhao et al. 2024, "PINNsFormer", Eq. 7.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sine = nn.Parameter(torch.ones(1))
        self.cosine = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        """Map [...] to [...]."""
        return self.sine * x.sin() + self.cosine * x.cos()


def network(inner: int, last: int) -> nn.Sequential:
    """Return a network of three linear maps, D - inner - inner - last, with waves between."""
    return nn.Sequential(
        nn.Linear(WIDTH, inner), Wave(), nn.Linear(inner, inner), Wave(), nn.Linear(inner, last)
    )


class Layer(nn.Module):
    """x + attention(w(x)), then x + network(w(x)).

    Args:
        attention: self-attention, or attention to a memory.
    """

    def __init__(self, attention: SelfAttention | CrossAttention) -> None:
        super().__init__()
        self.attention = attention
        self.before_attention = Wave()
        self.before_network = Wave()
        self.network = network(FFN_DIM, WIDTH)

    def forward(self, x: Tensor, visibility: Visibility, *memory: Tensor) -> Tensor:
        """Map [N, S, D] to [N, S, D]. Cross-attention also takes a memory [N, S, D]."""
        x = x + self.attention(self.before_attention(x), visibility, *memory)
        return x + self.network(self.before_network(x))


class PinnsFormer(nn.Module):
    """The solution u(x, t) of an equation: one layer of an encoder and one of a decoder.

    Weights start from Xavier's distribution, biases at 0.01, and biases of queries, keys and values
    at 0, as in the paper's code. With softmax the model has 453,561 parameters.

    Args:
        attention: attention of the encoder.
        cross_attention: attention of the decoder to the encoder's output.

    Raises:
        ConfigError: an attention cannot work there, or has no second derivatives.

    Reference: Zhao et al. 2024, "PINNsFormer: a transformer-based framework for physics-informed
    neural networks", section 3. Saratchandran et al. 2024, "Rethinking Attention", appendix A.2.5.

    Example:
        >>> model = PinnsFormer("softmax", "softmax")
        >>> tuple(model(torch.zeros(7, 5, 1), torch.zeros(7, 5, 1)).shape)
        (7, 5, 1)
    """

    def __init__(self, attention: str, cross_attention: str) -> None:
        super().__init__()
        self.embedding = nn.Linear(2, WIDTH)
        self.encoder = Layer(SelfAttention(WIDTH, _mechanism(attention, "encoder")))
        self.encoder_wave = Wave()
        self.decoder = Layer(CrossAttention(WIDTH, _mechanism(cross_attention, "cross")))
        self.decoder_wave = Wave()
        self.output = network(OUTPUT_DIM, 1)
        networks = (self.embedding, self.encoder.network, self.decoder.network, self.output)
        attentions = (self.encoder.attention.out_proj, self.decoder.attention.out_proj)
        for part in (*networks, *attentions):
            for module in part.modules():
                if isinstance(module, nn.Linear):
                    nn.init.xavier_uniform_(module.weight)
                    nn.init.constant_(module.bias, FIRST_BIAS)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Return u, [N, S, 1], of x [N, S, 1] and t [N, S, 1]."""
        visibility = Visibility(x.size(1), x.size(1), device=x.device)
        states = self.embedding(torch.cat([x, t], -1))
        memory = self.encoder_wave(self.encoder(states, visibility))
        return self.output(self.decoder_wave(self.decoder(states, visibility, memory)))


def _mechanism(text: str, slot: str) -> Attention:
    spec = Spec.parse(text)
    width = WIDTH // HEADS
    attention = build_attention(spec, slot, 0, HEADS, width, 0.0, "--attention")
    # Use the backend of plain operations, whose gradients can be differentiated again.
    use_backend(attention, "reference")
    if not attention.capabilities.double_backward:
        raise ConfigError(
            f"--attention {text}: its gradients cannot be differentiated again, as equations need"
        )
    return attention


@dataclass(frozen=True)
class Equation:
    """A differential equation on 0 <= x <= 2 pi, periodic in x, and 0 <= t <= 1.

    Args:
        residual: function of u and its derivatives by x and t that is 0 for a solution.
        initial: u at t = 0, a function of x.
        exact: the solution, a function of x and t.
    """

    residual: Callable[[Tensor, Tensor, Tensor], Tensor]
    initial: Callable[[Tensor], Tensor]
    exact: Callable[[Tensor, Tensor], Tensor]


CONVECTION_SPEED = 50.0
REACTION_RATE = 5.0


def _bump(x: Tensor) -> Tensor:
    return torch.exp(-((x - torch.pi) ** 2) / (2 * (torch.pi / 4) ** 2))


def _grown_bump(x: Tensor, t: Tensor) -> Tensor:
    grown = _bump(x) * torch.exp(REACTION_RATE * t)
    return grown / (grown + 1 - _bump(x))


EQUATIONS = {
    # u_t + 50 u_x = 0
    "convection": Equation(
        lambda u, u_x, u_t: u_t + CONVECTION_SPEED * u_x,
        torch.sin,
        lambda x, t: torch.sin(x - CONVECTION_SPEED * t),
    ),
    # u_t - 5 u (1 - u) = 0
    "reaction": Equation(lambda u, u_x, u_t: u_t - REACTION_RATE * u * (1 - u), _bump, _grown_bump),
}


class Points:
    """The points inside the domain of an equation, on its boundary, and at its beginning.

    Args:
        equation: the equation.
        side: number of points along each of the two axes.
        device: device of the points.
        dtype: dtype of the points, and so of the model.
    """

    def __init__(
        self,
        equation: Equation,
        side: int,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.equation = equation
        x = torch.linspace(0, LARGEST_X, side, device=device, dtype=dtype)
        t = torch.linspace(0, LARGEST_T, side, device=device, dtype=dtype)
        grid_x, grid_t = torch.meshgrid(x, t, indexing="ij")
        later = STEP * torch.arange(STEPS, device=device, dtype=dtype)[:, None]
        self.x = _sequences(grid_x)
        self.t = _sequences(grid_t) + later
        self.start_x = _sequences(x)
        self.start_t = _sequences(torch.zeros_like(x)) + later
        self.first = _sequences(torch.zeros_like(t))
        self.last = _sequences(0 * t + LARGEST_X)
        self.times = _sequences(t) + later

    def losses(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the mean squares of residual, boundary (all steps) and initial value (first).

        As in the paper's code, the sum of u over all steps is differentiated by x or t of one step,
        because attention connects the steps.
        """
        x = self.x.detach().requires_grad_()
        t = self.t.detach().requires_grad_()
        u = model(x, t)
        u_x, u_t = torch.autograd.grad(u, (x, t), torch.ones_like(u), create_graph=True)
        residual = self.equation.residual(u, u_x, u_t)
        jump = model(self.last, self.times) - model(self.first, self.times)
        start = model(self.start_x, self.start_t)[:, 0]
        error = start - self.equation.initial(self.start_x[:, 0])
        return {
            "residual": residual.square().mean(),
            "boundary": jump.square().mean(),
            "initial": error.square().mean(),
        }

    @torch.no_grad()
    def errors(self, model: nn.Module) -> dict[str, float]:
        """Return rMAE and rMSE of the first steps against the solution.

        rMAE is sum |e| / sum |u|, rMSE the root of sum e^2 / sum u^2.
        """
        u = model(self.x, self.t)[:, 0]
        exact = self.equation.exact(self.x[:, 0], self.t[:, 0])
        error = u - exact
        return {
            "rMAE": (error.abs().sum() / exact.abs().sum()).item(),
            "rMSE": (error.square().sum() / exact.square().sum()).sqrt().item(),
        }


def _sequences(values: Tensor) -> Tensor:
    """Return values [...] of N points as [N, S, 1], repeated in each step."""
    return values.reshape(-1, 1, 1).repeat(1, STEPS, 1)
