"""The transformer layer against its formula, and activation checkpointing."""

import pytest
import torch

from relu_nmt.attention.base import Need, build_attention
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.records import record_attention
from relu_nmt.config.registry import Spec
from relu_nmt.data.translation_batches import collate
from relu_nmt.modules.config import AttentionRegularizerConfig, TransformerOptions
from relu_nmt.modules.multihead import CrossAttention, SelfAttention
from relu_nmt.modules.transformer_layer import LayerConfig, Residual, TransformerLayer
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.loss import TranslationObjective
from relu_nmt.vision.base import ImageObjective
from relu_nmt.vision.config import VisionTransformerConfig
from relu_nmt.vision.images import ImageBatch
from relu_nmt.vision.vision_transformer import VisionTransformer
from tests.tiny import EOS, PAD, both_sides, gradients, pairs_of_ids, slots_of, without_gradient


def mechanism(slot):
    return build_attention(Spec("reluformer"), slot, 0, 2, 4, dropout=0.0)


@pytest.mark.parametrize("before", [True, False])
def test_a_decoder_layer_equals_its_formula(before):
    torch.manual_seed(0)
    attention = SelfAttention(8, mechanism("decoder"))
    cross = CrossAttention(8, mechanism("cross"))
    config = LayerConfig(TransformerOptions(), 8, 12, normalize_before=before, layer_scale=0.5)
    layer = TransformerLayer(config, attention, cross).double().eval()
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    memory = torch.randn(2, 4, 8, dtype=torch.float64)
    causal = Visibility(3, 3, causal=True)
    full = Visibility(3, 4)

    def sublayers():
        yield layer.self_attention_residual.norm, lambda y: attention(y, causal)
        yield layer.cross_attention_residual.norm, lambda y: cross(y, full, memory)
        yield layer.feed_forward_residual.norm, layer.feed_forward

    expected = x
    for norm, sublayer in sublayers():
        if before:
            expected = expected + 0.5 * sublayer(norm(expected))
        else:
            expected = norm(expected + 0.5 * sublayer(expected))
    output = layer(x, causal, memory=memory, memory_visibility=full)
    torch.testing.assert_close(output, expected)


def test_without_layer_scale_there_are_no_gains():
    assert Residual(LayerConfig(TransformerOptions(), 8, 12)).gain is None


def translation(attention, **settings):
    torch.manual_seed(0)
    small = {"embed_dim": 8, "ffn_embed_dim": 16, "layers": 2, "attention_heads": 2}
    dropout = {"dropout": 0.2, "activation_dropout": 0.1, "attention_dropout": 0.1}
    config = TransformerConfig(attention=attention, **both_sides(small), **dropout, **settings)
    regularizer = AttentionRegularizerConfig(0.3, 0.2, 0.01)
    objective = TranslationObjective(EncoderDecoder(config, 20, 20, PAD), 0.1, regularizer)
    pairs = [([5, 6, 7, EOS], [8, 9, EOS]), ([10, EOS], [11, 12, 13, 14, EOS])]
    return objective, collate(pairs_of_ids(pairs), ids=[0, 1])


def images(attention, **settings):
    torch.manual_seed(0)
    shape = {"image_size": 8, "patch_size": 4, "embed_dim": 16, "layers": 3, "heads": 2}
    dropout = {"dropout": 0.2, "drop_path": 0.3, "attention_dropout": 0.1}
    config = VisionTransformerConfig(attention=attention, **shape, **dropout, **settings)
    regularizer = AttentionRegularizerConfig(0.3, 0.2, 0.01)
    objective = ImageObjective(VisionTransformer(config, 3), 0.1, regularizer)
    pixels = torch.randn(4, 3, 8, 8)
    return objective, ImageBatch(torch.arange(4), pixels, torch.arange(4) % 3)


CHECKPOINTED = [
    (translation, "softmax", {}),
    (translation, "reluformer", {"positions": "t5", "norm": "rms"}),
    (translation, "reluformer", {"positions": "rotary", "encoder_normalize_before": True}),
    (translation, "softmax", {"feed_forward": "softmax-ln:temperature=2"}),
    (images, "softmax", {"layer_scale": 0.1}),
    (images, "reluformer", {"block": "transformer"}),
    (images, "pointwise:h=relu2", {"block": "gau"}),
]


@pytest.mark.parametrize("telemetry", [False, True])
@pytest.mark.parametrize(("make", "attention", "settings"), CHECKPOINTED)
def test_checkpointed_activations_give_the_same_gradients(make, attention, settings, telemetry):
    results = []
    for recompute in (False, True):
        objective, batch = make(attention, checkpoint_activations=recompute, **settings)
        torch.manual_seed(3)
        output = objective.train()(batch, telemetry=telemetry)
        output.loss.backward()
        results.append((output.loss.detach(), output.telemetry, gradients(objective)))
    (loss, scalars, plain), (again, scalars_again, checkpointed) = results
    assert torch.equal(loss, again) and scalars == scalars_again and bool(scalars) == telemetry
    torch.testing.assert_close(checkpointed, plain, rtol=0, atol=0)
    assert len(without_gradient(objective)) < len(plain)


@pytest.mark.parametrize("redraw", [1, 3])
def test_recomputation_repeats_random_features_without_counting_a_pass(redraw):
    states = []
    for recompute in (False, True):
        attention = f"performer:features=8,redraw={redraw}"
        objective, batch = translation(attention, checkpoint_activations=recompute)
        torch.manual_seed(3)
        for _ in range(2):  # updates, of two batches each
            sum(objective.train()(batch).loss for _ in range(2)).backward()
        states.append(gradients(objective) | {"state": objective.state_dict()})
    torch.testing.assert_close(*states, rtol=0, atol=0)


def test_recomputation_leaves_no_second_record():
    objective, batch = translation("reluformer", checkpoint_activations=True)
    model = objective.model.train()
    with record_attention(model, Need(statistics=True)) as records:
        features = model(batch.src_tokens, batch.prev_output_tokens)
        sum(record.statistics.total.sum() for record in records).add(features.sum()).backward()
    slots = slots_of(records)
    assert slots == [
        *(("encoder", 0), ("encoder", 1)),
        *(("decoder", 0), ("cross", 0), ("decoder", 1), ("cross", 1)),
    ]


def test_checkpointing_saves_memory():
    def kept_bytes(recompute):
        objective, batch = translation("reluformer", checkpoint_activations=recompute)
        sizes = {}

        def pack(x):
            sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        weights = {p.untyped_storage().data_ptr() for p in objective.parameters()}
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            objective.train()(batch)
        return sum(size for storage, size in sizes.items() if storage not in weights)

    assert kept_bytes(True) < kept_bytes(False) / 2


def test_evaluation_runs_each_layer_once():
    objective, batch = translation("reluformer", checkpoint_activations=True)
    calls = []
    objective.model.encoder.layers[0].register_forward_hook(lambda *_: calls.append(1))
    objective.eval()(batch).loss.backward()
    assert calls == [1]
