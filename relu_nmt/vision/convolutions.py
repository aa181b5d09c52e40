"""Convolutions of maps of patches that train on maps of any size."""

import torch.nn.functional as F
from torch import Tensor, nn


class Convolutions(nn.Sequential):
    """Convolutions, norms and activations, which train on maps of any size, even 1 x 1."""

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, height, width] to [B, C', height', width']."""
        for module in self:
            if isinstance(module, nn.Conv2d):
                x = convolved(module, x)
            elif isinstance(module, nn.BatchNorm2d) and x.numel() == x.size(1):
                mean, variance = module.running_mean, module.running_var
                x = F.batch_norm(x, mean, variance, module.weight, module.bias, eps=module.eps)
            else:
                x = module(x)
        return x


def convolved(convolution: nn.Module, x: Tensor) -> Tensor:
    """Return the convolution of a map. Parts of the kernel may see nothing but padding.

    On a CPU in bfloat16 oneDNN leaves the gradient of such parts unset (PyTorch 2.13), unless the
    padding is part of the map.
    """
    assert isinstance(convolution, nn.Conv2d)
    pads = [int(pad) for pad in convolution.padding]
    sides = zip(x.shape[2:], pads, convolution.kernel_size, strict=True)
    if all(length + pad >= width for length, pad, width in sides):
        return convolution(x)
    x = F.pad(x, (pads[1], pads[1], pads[0], pads[0]))
    weight = convolution.weight
    bias = convolution.bias
    return F.conv2d(x, weight, bias, convolution.stride, groups=convolution.groups)
