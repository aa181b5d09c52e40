"""Attention mechanisms, shared by translation and vision.

Start with ``naive.py``, which has every mechanism as a short function. Then read ``reluformer.py``,
``pointwise.py`` and ``regularizer.py``.

A mechanism is listed here by name with its file. ``attentions.get(name)`` imports the file and
returns the class. Your own class registers itself with ``@attentions.register("name")``.
:func:`relu_nmt.attention.base.build_attention` makes a mechanism by name.

Example:
    >>> "reluformer" in attentions.names()
    True
    >>> attentions.get("reluformer").capabilities.causal
    True
"""

from typing import TYPE_CHECKING

from relu_nmt.config.registry import Registry

if TYPE_CHECKING:
    from relu_nmt.attention.base import Attention

attentions: "Registry[type[Attention]]" = Registry(
    "attention",
    {
        "cosformer": "relu_nmt.attention.kernel_features",
        "efficient": "relu_nmt.attention.kernel_features",
        "entmax": "relu_nmt.attention.normalized",
        "entmax15": "relu_nmt.attention.normalized",
        "linear": "relu_nmt.attention.kernel_features",
        "linformer": "relu_nmt.attention.landmarks",
        "nystromformer": "relu_nmt.attention.landmarks",
        "performer": "relu_nmt.attention.kernel_features",
        "pointwise": "relu_nmt.attention.pointwise",
        "polynomial": "relu_nmt.attention.polynomial",
        "rela": "relu_nmt.attention.rela",
        "reluformer": "relu_nmt.attention.reluformer",
        "sima": "relu_nmt.attention.token_axis",
        "soft": "relu_nmt.attention.landmarks",
        "softmax": "relu_nmt.attention.normalized",
        "sparsemax": "relu_nmt.attention.normalized",
        "thresholded_relu": "relu_nmt.attention.thresholded_relu",
        "xca": "relu_nmt.attention.token_axis",
    },
)
