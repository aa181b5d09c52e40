"""Other names of registered parts, for the advice in errors: the same thing in papers and programs.

A name is compared by its small letters and digits, without "attention". An unknown name without an
entry gets the registered names that look like it.
"""

import re
import unicodedata

OTHER_NAMES = {
    "attention": {
        "reluformer or pointwise:h=relu": "relu relul rectified",
        "reluformer:power=2 or pointwise:h=relu2": "relu2 squaredrelu relusquared sqrelu gau",
        "pointwise:h=sigmoid": "sigmoid sigmoidal",
        "pointwise:h=gelu": "gelu",
        "pointwise:h=relu6": "relu6",
        "pointwise:h=softplus": "softplus",
        "pointwise:h=identity": "identity",
        "rela": "rectifiedlinear",
        "softmax": "dot dotproduct scaleddotproduct sdpa vanilla standard full mha multihead flash",
        "sparsemax or entmax15": "sparse",
        "entmax:alpha=1.5": "alphaentmax aentmax adaptiveentmax",
        "polynomial": "poly power cube cubic",
        "linear": "lineartransformer linearized elu elu1 kernel",
        "performer": "favor performers randomfeatures rfa",
        "nystromformer": "nystrom nystroem nystroemformer",
        "sima": "simple",
        "soft": "softmaxfree softmaxfreetransformer",
        "xca": "xcit crosscovariance",
        "": "longformer reformer informer conformer routingformer",
    },
    "pointwise map": {
        "relu2": "squaredrelu relusquared sqrelu",
        "identity": "linear none",
    },
    "position scheme": {
        "rotary": "rope roformer",
        "t5": "relative relativebias bias t5bias",
        "sinusoidal": "sin sine sinusoid absolute",
        "learned": "learnable learnt",
        "none": "nope",
    },
    "feed-forward network": {
        "silu": "swish",
        "gelu-tanh": "geluaccurate gelufast gelunew gelupytorchtanh",
    },
    "norm": {"layer": "layernorm ln", "rms": "rmsnorm"},
    "optimizer": {"adam": "fusedadam cpuadam"},
    "lr scheduler": {
        "inverse_sqrt": "noam isqrt rsqrt invsqrt",
        "polynomial_decay": "linear lineardecay poly polynomial",
        "fixed": "constant none",
        "reduce_lr_on_plateau": "plateau",
    },
    "subword model": {"subword-nmt": "bpe fastbpe", "sentencepiece": "spm unigram"},
    "scorer": {"length": "lenpen lengthpenalty", "coverage": "gnmt cov"},
    "family of vision transformers": {"vit": "deit visiontransformer"},
}


def plain_name(name: object) -> str:
    """Return the small letters and digits of a name, without accents, "attention" and "attn".

    Example:
        >>> plain_name("ReLU²-attention"), plain_name("Nyström"), plain_name("entmax_1.5")
        ('relu2', 'nystrom', 'entmax15')
    """
    letters = unicodedata.normalize("NFKD", str(name)).lower()
    return re.sub(r"[\W_]|attention|attn", "", letters)


def usual_name(kind: str, name: object) -> str | None:
    """Return the names that a kind of part has for another name, or None for an unknown one."""
    for known, others in OTHER_NAMES.get(kind, {}).items():
        if plain_name(name) in others.split():
            return known
    return None
