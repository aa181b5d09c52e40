"""relu_nmt: translation with attention that is not softmax.

The front doors are :class:`relu_nmt.Translator` and :class:`relu_nmt.ImageClassifier`. Importing
the package is cheap and has no side effects; PyTorch is loaded with the first part that needs it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relu_nmt.translator import Translator
    from relu_nmt.vision.loading import ImageClassifier

__version__ = "0.1.0"
__all__ = ["ImageClassifier", "Translator", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "Translator":
        from relu_nmt.translator import Translator

        return Translator
    if name == "ImageClassifier":
        from relu_nmt.vision.loading import ImageClassifier

        return ImageClassifier
    raise AttributeError(f"module 'relu_nmt' has no attribute '{name}'")
