import json

import numpy as np
import pytest
import torch

from relu_nmt.attention import attentions
from relu_nmt.attention.base import Attention, Capabilities, Need
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.normalized import SoftmaxAttention
from relu_nmt.attention.records import record_attention
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.modules.config import AttentionPlace
from relu_nmt.translation.base import Ensemble, StepDecoder
from relu_nmt.translator.attention_maps import attention_weights
from tests.stepping import Stepping
from tests.unit.applications.analysis.models import SOURCE, TARGET, make_model, make_translator


@pytest.mark.parametrize("attention", ["softmax", "reluformer"])
def test_weights_equal_those_of_step_by_step_decoding(attention):
    model = make_model(attention)
    source = torch.from_numpy(SOURCE)[None]
    steps = {"decoder": [], "cross": []}
    with torch.inference_mode():
        search = Stepping(model, source)
        for token in [TARGET[-1], *TARGET[:-1]]:
            layer = model.decoder.layers[0]
            with (
                record_attention(layer.self_attention.attention, Need(weights=True)) as records,
                record_attention(layer.cross_attention.attention, Need(weights=True)) as crossed,
            ):
                search.step(torch.tensor([[token]]))
            steps["decoder"].append(records[0].weights[0, 1, 0])
            steps["cross"].append(crossed[0].weights[0, 1, 0])
    for slot, rows in steps.items():
        weights = attention_weights(
            Ensemble([StepDecoder(model)]), [AttentionPlace(slot, 0, 1)], SOURCE, TARGET
        )[0]
        for row, expected in zip(weights, rows, strict=True):
            np.testing.assert_allclose(row[: len(expected)], expected, atol=1e-6)
            assert not row[len(expected) :].any()


def test_all_heads_and_the_encoder():
    model = make_model("reluformer")
    ensemble = Ensemble([StepDecoder(model)])
    head_maps = attention_weights(ensemble, [AttentionPlace("encoder", -1)], SOURCE, TARGET)[0]
    assert head_maps.shape == (2, len(SOURCE), len(SOURCE))
    for head in range(2):
        alone = attention_weights(ensemble, [AttentionPlace("encoder", 1, head)], SOURCE, TARGET)[0]
        np.testing.assert_array_equal(alone, head_maps[head])
    inputs = torch.from_numpy(SOURCE)[None], torch.tensor([[TARGET[-1], *TARGET[:-1]]])
    with torch.no_grad(), record_attention(model, Need(weights=True)) as records:
        model(*inputs)
    np.testing.assert_allclose(records[1].weights[0], head_maps, atol=1e-6)


class WithoutWeights(SoftmaxAttention):
    capabilities = Capabilities(weights=False)

    def forward(self, q, k, v, visibility, *, bias=None, need=None):
        if need is not None and need.weights:
            raise ConfigError("has no weights to show")
        output = super().forward(q, k, v, visibility)
        output.statistics = None
        return output


@pytest.fixture
def without_weights():
    attentions.register("without_weights")(WithoutWeights)
    yield "without_weights"
    del attentions._entries["without_weights"]


def test_weights_of_a_mechanism_without_weights_are_an_error(without_weights):
    model = make_model("softmax", encoder_attention=without_weights)
    ensemble = Ensemble([StepDecoder(model)])
    message = "attention encoder.0: without_weights has no matrix of weights to show"
    with pytest.raises(ConfigError, match=message):
        attention_weights(ensemble, [AttentionPlace("encoder", 0)], SOURCE, TARGET)[0]
    weights = attention_weights(ensemble, [AttentionPlace("cross", 0, 0)], SOURCE, TARGET)[0]
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-6)


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        (AttentionPlace("cross", 2), "layers are cross.0 to cross.1"),
        (AttentionPlace("encoder", -3), "layers are encoder.0 to encoder.1"),
        (AttentionPlace("decoder", 0, 2), "heads are 0 to 1"),
        (AttentionPlace("decoder", 0, -1), "heads are 0 to 1"),
    ],
)
def test_unknown_layers_and_heads_are_errors(requested, message):
    with pytest.raises(ConfigError, match=message):
        attention_weights(Ensemble([StepDecoder(make_model())]), [requested], SOURCE, TARGET)[0]


def test_an_ensemble_is_an_error():
    model = make_model()
    with pytest.raises(ConfigError, match="one model only"):
        attention_weights(
            Ensemble([StepDecoder(model), StepDecoder(model)]),
            [AttentionPlace("cross", 0)],
            SOURCE,
            TARGET,
        )[0]


@pytest.mark.parametrize("text", ["cross", "cross.a", "cross.1.2.3", "", "cross.1.", "self.1"])
def test_malformed_places_are_errors(text):
    with pytest.raises(ConfigError, match=r"SLOT\.LAYER|choose a slot"):
        AttentionPlace.parse(text)
    assert str(AttentionPlace.parse("cross.-1")) == "cross.-1"
    assert AttentionPlace.parse("decoder.3.2") == AttentionPlace("decoder", 3, 2)


def test_a_recorder_ends_with_its_block_and_keeps_other_needs():
    attention = make_model("softmax").encoder.layers[0].self_attention.attention
    assert isinstance(attention, Attention)
    q, k, v = torch.ones(3, 1, 2, 3, 8)
    visibility = Visibility(3, 3)
    with record_attention(attention, Need(weights=True)) as captured:
        output = attention(q, k, v, visibility, need=Need(statistics=True))
        attention(q, k, v, visibility)
    assert len(captured) == 2 and captured[1].weights.shape == (1, 2, 3, 3)
    assert output.statistics is not None
    assert attention(q, k, v, visibility).weights is None


def test_maps_of_a_translator_have_labels():
    translator = make_translator()
    translation = translator.translate_nbest(["ein Haus"], beam=2, max_len_b=5)[0][0]
    cross = translator.attention("ein Haus", translation)
    assert (cross.slot, cross.layer, cross.head) == ("cross", 1, None)
    assert cross.keys == ["ein", "Haus", "</s>"]
    symbols = translator.task.target_dictionary
    assert cross.queries == [symbols[i] for i in translation.hypothesis.ids]
    assert cross.weights.shape == (2, len(cross.queries), 3)
    decoder_map = translator.attention("ein Haus", "das Haus", "decoder", 0, 1)
    assert decoder_map.queries == ["das", "Haus", "</s>"]
    assert decoder_map.keys == ["</s>", "das", "Haus"]
    assert not np.triu(decoder_map.weights, 1).any()
    encoder = translator.attention("ein Xaver", "das", "encoder", 0, 0)
    assert encoder.queries == encoder.keys == ["ein", "Xaver", "</s>"]
    assert translator.attention("ein").keys == ["ein", "</s>"]
    read = json.loads(decoder_map.to_json())
    np.testing.assert_allclose(read.pop("weights"), decoder_map.weights, rtol=1e-3)
    assert read == {
        **{"slot": "decoder", "layer": 0, "head": 1},
        **{"queries": decoder_map.queries, "keys": decoder_map.keys},
    }


def test_a_saved_map_is_a_picture_of_each_head(tmp_path):
    all_heads = make_translator().attention("ein Haus gross", "das Haus")
    all_heads.save(tmp_path / "all.svg")
    text = (tmp_path / "all.svg").read_text("utf-8")
    assert text.count("<image") >= 2 and "</svg>" in text  # one a head
    one_head = make_translator().attention("ein Haus gross", "das Haus", head=1)
    one_head.save(tmp_path / "one.svg")
    assert "</svg>" in (tmp_path / "one.svg").read_text("utf-8")
    with pytest.raises(ConfigError, match=r"ends in \.svg"):
        one_head.save(tmp_path / "one.png")
    with pytest.raises(DataError, match="cannot write it"):
        one_head.save(tmp_path / "none" / "one.svg")
