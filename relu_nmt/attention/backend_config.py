"""The back ends of pointwise attention by name; imports no PyTorch, for the commands' flags."""

from dataclasses import dataclass

from relu_nmt.config import option

BACKENDS = ("auto", "reference", "blockwise", "triton")
BACKEND_HELP = (
    "what computes attention whose weights are pointwise: reference keeps the whole matrix of "
    "weights, blockwise and triton (GPU) need memory linear in the length; auto takes the fastest"
)


@dataclass(frozen=True)
class AttentionBackendConfig:
    """Which code computes attention; it changes speed and memory only and is never stored."""

    attention_backend: str = option("auto", BACKEND_HELP, choices=BACKENDS)
