"""Tiny models for the tests of this folder."""

import numpy as np
import torch

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.task import TranslationTask
from relu_nmt.translator import Translator
from tests.tiny import EOS, PAD, tiny_config

SOURCE = np.array([4, 6, 5, 4, EOS])
TARGET = np.array([5, 7, 4, EOS])
WORDS = ["ein", "das", "Haus", "gross"]


def make_model(attention="reluformer", **settings):
    torch.manual_seed(0)
    config = tiny_config({"layers": 2}, attention=attention, **settings)
    return EncoderDecoder(config, 4 + len(WORDS), 4 + len(WORDS), PAD).eval()


def make_translator():
    words = Dictionary(WORDS)
    task = TranslationTask(TextPipeline("de"), TextPipeline("en"), words, words)
    return Translator([make_model()], task, "cpu")
