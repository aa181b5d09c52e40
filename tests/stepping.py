"""A search led by hand: a step decoder and the state of one search."""

from relu_nmt.translation.step_decoder import PlainDecoder, SearchStep


class Stepping:
    """The state of a search, advanced by chosen tokens.

    Args:
        model: the model, or a step decoder of one.
        sources: token ids [B, S].
        num_groups: groups of beams that never mix.
    """

    def __init__(self, model, sources, num_groups=1):
        self.decoder = model if hasattr(model, "prunes") else PlainDecoder(model)
        self.state = self.decoder.start(sources, num_groups)
        self.reorder, self.keep = self.state.reorder, self.state.keep

    def next(self, tokens, rows=None):
        return SearchStep(tokens, self.state, rows)

    def step(self, tokens, rows=None, want_weights=False):
        [scores] = self.decoder.step([self.next(tokens, rows)], want_weights=want_weights)
        return scores


def log_probs(model, *inputs):
    """Return the log-probabilities of all target positions, by the full pass."""
    return model.logits(model(*inputs)).log_softmax(-1)
