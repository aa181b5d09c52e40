"""Translate raw text in Python."""

from relu_nmt.translator.sources import TranslationRequest
from relu_nmt.translator.translator import Translator

__all__ = ["TranslationRequest", "Translator"]
