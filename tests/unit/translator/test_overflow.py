"""Scores that overflow: every decoder refuses them by the same rule."""

import copy
import math

import pytest

from relu_nmt.errors import ConfigError
from relu_nmt.translation.base import Ensemble, StepDecoder
from relu_nmt.translator import Translator
from tests.tiny import tiny_model, tiny_task


@pytest.mark.parametrize("value", [1e38, -1e38, 1e20, math.nan, math.inf])
@pytest.mark.parametrize("attention", ["softmax", "reluformer"])
@pytest.mark.parametrize(
    "name",
    [
        "decoder.layers.0.self_attention.qkv.weight",
        "decoder.layers.0.cross_attention.q.weight",
        "decoder.layers.0.feed_forward.outer.weight",
        "output_projection.weight",
    ],
)
def test_all_decoders_refuse_weights_whose_scores_overflow(name, attention, value):
    task = tiny_task("abcdefgh")
    model = tiny_model(task, attention=attention)
    model.get_parameter(name).data.view(-1)[0] = value
    translators = [Translator([copy.deepcopy(model)], task, "cpu", packed=p) for p in (False, True)]
    translators.append(Translator([model], task, "cpu"))
    translators[-1].ensemble = Ensemble([StepDecoder(model)])
    outcomes = []
    for translator in translators:
        try:
            translator.translate(["a b c", "d"], beam=2, max_len_b=5)
            outcomes.append("translated")
        except ConfigError as error:
            outcomes.append(str(error)[-57:])
    assert len(set(outcomes)) == 1, outcomes
