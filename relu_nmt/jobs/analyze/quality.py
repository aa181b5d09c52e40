"""Quality of a model on sentences or groups: losses of the references, and translations."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from torch import Tensor

from relu_nmt.io.work import progress_bar
from relu_nmt.jobs.analyze.answers import Losses
from relu_nmt.modules.config import AttentionPlace
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.translations import SourceSentence
from relu_nmt.translator import Translator
from relu_nmt.translator.attention_maps import layers_of


def reference_losses(
    translator: Translator, sources: Sequence[SourceSentence], left_out: Sequence[int], label: str
) -> Losses:
    """Return the losses of the references of sources, without the tokens of these ids.

    ``label`` names the progress bar.
    """
    bits: list[float] = []
    tokens: list[int] = []
    generator = translator.generator(GenerationConfig(score_reference=True))
    with progress_bar(label, len(sources), "sources", only_if_slow=True) as advance:
        references = generator.translate(sources, on_progress=advance)
    for [reference] in references:
        is_counted = ~np.isin(reference.tokens, left_out)
        log_probs = reference.positional_scores[is_counted]
        bits.append(-float(log_probs.sum(dtype=np.float64)) / math.log(2))
        tokens.append(int(is_counted.sum()))
    return Losses(np.array(bits), np.array(tokens))


def best_translations(
    translator: Translator,
    sources: Sequence[SourceSentence],
    of_documents: bool,
    advance: Callable[[int], object],
) -> list[str]:
    """Return the texts of the best translations, as ``relu-nmt-generate`` finds them."""
    config = GenerationConfig().resolved(of_documents, workers=0)
    translations = translator.searcher(config, on_progress=advance)(sources)
    return [nbest[0].text for nbest in translations]


@contextmanager
def without_heads(model: EncoderDecoder, places: Sequence[AttentionPlace]) -> Iterator[None]:
    """Let the heads at these places add nothing inside the block."""
    with ExitStack() as hooks:
        for place in places:
            layer = layers_of(model, place.slot)[place.layer]
            module = layer.cross_attention if place.slot == "cross" else layer.self_attention
            assert module is not None and place.head is not None
            width = module.embed_dim // module.num_heads
            channels = slice(place.head * width, (place.head + 1) * width)

            def empty(_: Any, inputs: tuple[Tensor], channels: slice = channels) -> tuple[Tensor]:
                values = inputs[0].clone()
                values[..., channels] = 0
                return (values,)

            hooks.enter_context(module.out_proj.register_forward_pre_hook(empty))
        yield
