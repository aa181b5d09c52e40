"""A tiny recurrent model that obeys the decoding interface, its searches, and an exhaustive one."""

import itertools
from operator import itemgetter

import numpy as np
import torch
from torch import nn

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.translation_batches import pad_rows
from relu_nmt.translation.base import NextTokenScores, StepDecoder, TranslationModel
from relu_nmt.translation.search.config import GenerationConfig
from tests.stepping import Generator
from tests.tiny import EOS

UNK = Dictionary.unk_index
SEPARATOR = 4
SEPARATORS = (SEPARATOR, SEPARATOR)
FIRST_WORD = 4


class ToyState:
    """Keeps one vector for each beam, so a wrong reorder gives other probabilities."""

    def __init__(self, memory, source):
        self.memory = memory  # [B, K, D]
        self.source = source  # [B, S]

    def reorder(self, beam_index):
        index = beam_index[:, :, None].expand(-1, -1, self.memory.size(2))
        self.memory = self.memory.gather(1, index)

    def keep(self, rows):
        self.memory = self.memory[rows]
        self.source = self.source[rows]


class ToyModel(nn.Module):
    """A model and its step decoder: the next token depends on the source and all tokens so far."""

    def __init__(self, vocab_size=7, seed=0, dim=6, sharpness=2.0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.most = {}  # limits of tokens, by side and whether of a sentence
        self.words = torch.randn(vocab_size, dim, generator=generator)
        self.mix = torch.randn(dim, dim, generator=generator) / dim**0.5
        self.out = sharpness * torch.randn(dim, vocab_size, generator=generator)

    def _begin(self, src_tokens):
        real = (src_tokens != Dictionary.pad_index)[:, :, None]
        return (self.words[src_tokens % len(self.words)] * real).sum(1)  # [B, D]

    def _next(self, memory, tokens):
        return torch.tanh(memory @ self.mix + self.words[tokens])

    def most_tokens(self, side, of_sentence=False):
        return self.most.get((side, of_sentence))

    @property
    def model(self):
        return self

    def start(self, src_tokens, num_groups=1, symbols=None):
        return ToyState(self._begin(src_tokens)[:, None], src_tokens)

    def step(self, steps, temperature=1.0, want_weights=False):
        return [self.advance(s.tokens, s.state, temperature, want_weights) for s in steps]

    def advance(self, tokens, state, temperature=1.0, want_weights=False):
        # The first step gives the number of beams.
        memory = state.memory.expand(-1, tokens.size(1), -1)
        state.memory = self._next(memory, tokens)
        weights = None
        if want_weights:  # each token looks at the source position "token number modulo length"
            length = state.source.size(1)
            weights = nn.functional.one_hot(tokens % length, length).float()
        return NextTokenScores((self.logits(state.memory) / temperature).log_softmax(-1), weights)

    def logits(self, features):
        return features @ self.out

    def forward(self, src_tokens, prev_output_tokens):
        memory = self._begin(src_tokens)
        features = []
        for tokens in prev_output_tokens.unbind(1):
            memory = self._next(memory, tokens)
            features.append(memory)
        return torch.stack(features, 1)


def log_probs_of(model, source, outputs):
    """Return the log-probabilities [N, T] of all tokens of outputs [N, T] by teacher forcing."""
    tokens = torch.as_tensor(outputs)
    previous = torch.cat([torch.full((len(tokens), 1), EOS), tokens[:, :-1]], 1)
    features = model(source[None].expand(len(tokens), -1), previous)
    log_probs = model.logits(features).log_softmax(-1)
    return log_probs.gather(2, tokens[:, :, None])[:, :, 0]


def log_prob_of(model, source, tokens):
    """Return the log-probabilities of all tokens of one output."""
    return log_probs_of(model, source, torch.as_tensor(tokens)[None])[0]


def all_outputs(vocab_size, limit, shortest=1):
    """Yield every output of ``shortest`` to ``limit`` words, each ending in the end symbol."""
    words = range(UNK, vocab_size)
    for length in range(shortest, limit + 1):
        for output in itertools.product(words, repeat=length):
            yield [*output, EOS]


def ranked_outputs(model, source, outputs, lenpen):
    """Return the score of each output by teacher forcing, the best first."""
    scores = {}
    for length, group in itertools.groupby(sorted(outputs, key=len), len):
        of_length = list(map(tuple, group))
        totals = log_probs_of(model, source, of_length).sum(1) / length**lenpen
        scores |= dict(zip(of_length, totals.tolist(), strict=True))
    return dict(sorted(scores.items(), key=itemgetter(1), reverse=True))


def toy_models(*seeds, **settings):
    """Return a toy model for each seed."""
    return [ToyModel(seed=seed, **settings) for seed in seeds]


def decoder_of(model):
    """Return the step decoder of a transformer. Toys and step decoders are theirs."""
    return StepDecoder(model) if isinstance(model, TranslationModel) else model


def generator_of(models, symbols=None, separators=None, shortlist=None, **settings):
    """Return a generator of a model or an ensemble, with these settings of the search."""
    decoders = list(map(decoder_of, models if isinstance(models, list) else [models]))
    config = GenerationConfig(**settings)
    return Generator(decoders, config, symbols or Dictionary(), None, separators, shortlist)


def padded(rows):
    """Return rows of token ids as one tensor, padded on the right."""
    return pad_rows([np.asarray(row, dtype=np.int64) for row in rows], Dictionary.pad_index)


def tokens_of(hypotheses):
    """Return the tokens of each hypothesis, as tuples."""
    return [tuple(hypothesis.ids.tolist()) for hypothesis in hypotheses]


def hypothesis_scores(hypotheses):
    """Return the score of each hypothesis."""
    return [hypothesis.score for hypothesis in hypotheses]
