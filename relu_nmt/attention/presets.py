"""What makes a good start for an attention: its options and the weights of its regulariser.

A preset goes with any shape (``--arch``), of translation and vision alike.
"""

from typing import Any

from relu_nmt.config import option, settings

# The paper prints neither gamma nor the weights of the regulariser. With gamma 2 the output starts
# as small as that of softmax over a sentence, and training starts almost as fast. Weights of 0.1
# cost a little at the start and gain more in the end than weights of 0.01 (docs/results.md).
ATTENTION_PRESETS: dict[str, dict[str, Any]] = {
    "none": {},
    "reluformer": {
        "attention": "reluformer:gamma=2",
        "attention_norm_weight": 0.1,
        "attention_entropy_weight": 0.1,
    },
}


@settings
class AttentionPresetOptions:
    """Which attention's settings to begin with."""

    attention_preset: str = option(
        "none",
        "settings of an attention and its regulariser, for any --arch; flags go before it",
        presets=ATTENTION_PRESETS,
        metavar="NAME",
    )
