"""Fast decoding on CPUs: packed weights, 8-bit integers, whole layers in one call of a kernel.

:func:`install` prepares a model and returns a decoder for searches, which finds the translations of
:class:`relu_nmt.translation.base.StepDecoder`.
"""

import torch

from relu_nmt.engine.decoder import FastDecoder
from relu_nmt.engine.linear import pack_linear, use_int8
from relu_nmt.translation.base import StepDecoder, TranslationModel
from relu_nmt.translation.encoder_decoder import EncoderDecoder

__all__ = ["FastDecoder", "install"]


def install(model: TranslationModel, dtype: torch.dtype | None = None) -> StepDecoder:
    """Pack the weights of a model on a CPU, and return its decoder.

    Args:
        model: changed in place. Do not train it afterwards.
        dtype: compute in ``torch.float32`` (the default) or ``torch.bfloat16``. ``torch.int8``
            replaces all affine maps by products of 8-bit integers, for good.

    Raises:
        ConfigError: 8-bit integers on a GPU, or on a processor without the instructions.
    """
    # Replace or pack the maps first: the decoder looks for kernels when it is made.
    if dtype == torch.int8:
        use_int8(model)
    elif all(weight.is_cpu for weight in model.parameters()):
        pack_linear(model, dtype or torch.float32)
    if isinstance(model, EncoderDecoder):
        return FastDecoder(model)
    return StepDecoder(model)
