"""The back ends of pointwise attention by name; imports no PyTorch, for the commands' flags."""

from relu_nmt.config import option, settings

BACKENDS = ("auto", "reference", "blockwise", "triton")
BACKEND_HELP = (
    "what computes attention whose weights are pointwise: reference keeps the whole matrix of "
    "weights, blockwise and triton (GPU) need memory linear in the length; auto takes the fastest"
)


@settings
class AttentionBackendConfig:
    """Which code computes attention; it changes speed and memory only and is never stored."""

    attention_backend: str = option("auto", BACKEND_HELP, choices=BACKENDS)
