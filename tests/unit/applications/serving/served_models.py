"""Tiny models to serve."""

import torch

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.encoder_decoder import build_model
from relu_nmt.translation.task import TranslationTask
from relu_nmt.translator import Translator

WORDS = "ein das Haus ist gross . Garten klein a the house is big garden small"


def make_translator(
    separated=True, attention="reluformer", num_models=1, tokenizer="moses", **settings
):
    """Return a translator of untrained models that end sentences soon."""
    words = Dictionary(WORDS.split())
    pipelines = TextPipeline("de", tokenizer), TextPipeline("en", tokenizer)
    task = TranslationTask(*pipelines, words, words)
    if separated:
        task = task.with_sentence_separator()
    models = []
    for seed in range(num_models):
        torch.manual_seed(seed)
        config = TransformerConfig(
            attention=attention,
            encoder_layers=2,
            decoder_layers=2,
            encoder_embed_dim=16,
            decoder_embed_dim=16,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            **settings,
        )
        model = build_model(config, task).eval()
        bonus = torch.zeros(len(task.target_dictionary))
        bonus[words.eos_index] = 2.0
        if separated:
            bonus[task.separators[1]] = 3.0
        model.output_projection.register_forward_hook(lambda *call, bonus=bonus: call[-1] + bonus)
        models.append(model)
    return Translator(models, task, "cpu", max_doc_tokens=30 if separated else 1)
