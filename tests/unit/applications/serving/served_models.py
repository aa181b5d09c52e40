"""Tiny models to serve."""

import torch

from relu_nmt.translator import Translator
from tests.tiny import LANGUAGES, tiny_model, tiny_task

WORDS = "ein das Haus ist gross . Garten klein a the house is big garden small"


def make_translator(
    separated=True,
    attention="reluformer",
    num_models=1,
    tokenizer="moses",
    separates_alone=True,
    languages=LANGUAGES,
    words=WORDS,
    **settings,
):
    """Return a translator of untrained models that end sentences soon."""
    task = tiny_task(words.split(), languages, tokenizer=tokenizer)
    if separated:
        task = task.with_sentence_separator(None if separates_alone else task)
    models = []
    for seed in range(num_models):
        shape = {"layers": 2, "ffn_embed_dim": 2048}
        model = tiny_model(task, seed, shape, attention=attention, **settings).eval()
        bonus = torch.zeros(len(task.target_dictionary))
        bonus[task.target_dictionary.eos_index] = 2.0
        if separated:
            bonus[task.separators[1]] = 3.0
        model.output_projection.register_forward_hook(lambda *call, bonus=bonus: call[-1] + bonus)
        models.append(model)
    return Translator(models, task, "cpu", max_doc_tokens=30 if separated else 1)
