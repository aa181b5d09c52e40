"""Untrained models for the tests of this folder, and lines to translate."""

import torch

from tests.tiny import save_tiny_model, tiny_model, tiny_task

SHAPE = {"ffn_embed_dim": 2048}


SHORT = {"beam": 3, "max_len_b": 6}


LINES = ["ein Haus", "", "das Haus ist gross .", "   ", "ein Xaver", "Haus\tHaus", "gross"]


def make_task(words="ein das Haus ist gross . house dog is big a the"):
    return tiny_task(words.split(), tokenizer="moses")


def make_model(task, seed=0, **settings):
    return tiny_model(task, seed, SHAPE, attention="reluformer", **settings).eval()


def make_models(task, number):
    return [make_model(task, seed) for seed in range(number)]


def best_of(translations):
    """Return the first translation of each line."""
    return [best for best, *_ in translations]


def texts_of(translations):
    return [translation.text for translation in translations]


def scores_of(translations):
    return [translation.score for translation in translations]


def cut(text, spans):
    """Return the parts of a text."""
    return [text[begin:end] for begin, end in spans]


def save(path, task, seed=0):
    save_tiny_model(path, task, seed, SHAPE, attention="reluformer")
    return path


DOCUMENTS = [["ein Haus", "", "das Haus ist gross .", "Haus"], [], ["gross"], ["ist ein Haus"] * 4]


def shorten_sentences(translator):
    """Let an untrained model end sentences sooner than by chance."""
    bonus = torch.zeros(len(translator.task.target_dictionary))
    bonus[translator.task.separators[1]] = 3.0
    for model in translator.models:
        model.output_projection.register_forward_hook(lambda *call: call[-1] + bonus)
