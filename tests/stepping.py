"""Searches led by hand: a step decoder with the state of one search, and a search of tensors."""

import numpy as np

from relu_nmt.data.separators import Separators
from relu_nmt.translation.base import Ensemble, SearchStep, StepDecoder, TranslationModel
from relu_nmt.translation.search import generator
from relu_nmt.translation.search.translations import SourceSentence


class Stepping:
    """The state of a search, advanced by chosen tokens.

    Args:
        model: the model, or a step decoder of one.
        sources: token ids [B, S].
        num_groups: groups of beams that never mix.
    """

    def __init__(self, model, sources, num_groups=1):
        self.decoder = StepDecoder(model) if isinstance(model, TranslationModel) else model
        self.state = self.decoder.start(sources, num_groups)
        self.reorder, self.keep = self.state.reorder, self.state.keep

    def next(self, tokens, is_live=None):
        return SearchStep(tokens, self.state, is_live)

    def step(self, tokens, is_live=None, want_weights=False):
        [scores] = self.decoder.step([self.next(tokens, is_live)], want_weights=want_weights)
        return scores


class Generator(generator.Generator):
    """A generator of decoders, which also takes tensors, as one batch."""

    def __init__(self, decoders, config, symbols, dtype=None, separators=None, shortlist=None):
        if separators is not None:
            separators = Separators(*separators)
        super().__init__(Ensemble(decoders, dtype), config, symbols, separators, shortlist)

    def generate(self, src_tokens, prefixes=None, ids=None, context_sizes=None, **options):
        """Return the hypotheses of src_tokens [B, S] with forced first tokens [B, P].

        ``forced`` and ``banned`` terms are lists with an entry for each sentence.
        """
        pad, sources = self.symbols.pad_index, []
        for i, row in enumerate(src_tokens.cpu().numpy()):
            forced = np.zeros(0, np.int64) if prefixes is None else prefixes[i].cpu().numpy()
            size = 0 if context_sizes is None else context_sizes[i]
            forced = forced[forced != pad]
            fields = {name: values[i] for name, values in options.items() if len(values)}
            sources.append(
                SourceSentence(row[row != pad], [], None, forced[:size], forced[size:], **fields)
            )
        numbers = np.arange(len(sources)) if ids is None else np.array(ids)
        by_number = dict(zip(numbers.tolist(), sources, strict=True))
        [(_, best)] = self.translate_batches(by_number, 0, [numbers])
        return best


def log_probs(model, *inputs):
    """Return the log-probabilities of all target positions, by the full pass."""
    return model.logits(model(*inputs)).log_softmax(-1)
