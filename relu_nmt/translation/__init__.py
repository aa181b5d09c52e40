"""Translation: the models and their loss, the task around them, and the search."""

from typing import TYPE_CHECKING

from relu_nmt.config.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from relu_nmt.translation.base import TranslationModel

translation_models: "Registry[Callable[..., TranslationModel]]" = Registry(
    "translation model", {"encoder_decoder": "relu_nmt.translation.encoder_decoder"}
)
"""Chosen by ``--translation-model``. See :class:`relu_nmt.translation.base.TranslationModel`."""
