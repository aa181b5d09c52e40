"""Aligned document attention: sentences in lower layers, also the document in upper layers."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from relu_nmt.attention import attentions, sentences
from relu_nmt.attention.base import Attention, Need
from relu_nmt.attention.records import attention_sums, record_attention
from relu_nmt.data.translation_batches import collate
from relu_nmt.errors import ConfigError
from relu_nmt.modules import position_schemes
from relu_nmt.modules.config import AttentionRegularizerConfig
from relu_nmt.modules.positions import sinusoids
from relu_nmt.translation.aligned import DocumentGate
from relu_nmt.translation.base import Ensemble, StepDecoder
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.loss import TranslationObjective
from relu_nmt.translator.attention_maps import AttentionPlace, attention_weights
from tests.stepping import Stepping
from tests.tiny import EOS, PAD, both_sides, gradients, pairs_of_ids, without_gradient

SEP = 3
TSEP = 4  # separators differ, as in two dictionaries
VOCAB = 20
SHAPE = {"embed_dim": 16, "ffn_embed_dim": 24, "layers": 2, "attention_heads": 2}
SIDES = both_sides(SHAPE)
SLOTS = {"encoder": "weights", "decoder": "causal", "cross": "cross"}
PRE_NORM = {"encoder_normalize_before": True, "decoder_normalize_before": True}
MECHANISMS = [
    *({"attention": name} for name in attentions.names()),
    *({"attention": "reluformer", "positions": name} for name in position_schemes.names()),
    {"attention": "reluformer", "positions": "sinusoidal+t5"},
    {"attention": "softmax", **PRE_NORM},
    {"attention": "pointwise:gate=silu"},
]
each_mechanism = pytest.mark.parametrize("choices", MECHANISMS, ids=str)
SOURCE = [[5, 6, 7, SEP, 8, 9, SEP, 10, SEP, EOS], [11, 12, SEP, 13, 14, 15, SEP, EOS], [9, EOS]]
TARGET = [[EOS, 5, 6, TSEP, 7, TSEP, 8, 9, 10, TSEP], [EOS, 11, TSEP, 12, 13, TSEP], [EOS, 9, 9, 9]]


def settings(choices, **options):
    """Use the mechanism in every slot that supports it, and softmax elsewhere."""
    values = {**choices, **options}
    name = values["attention"]
    able = attentions.get(name.partition(":")[0]).capabilities
    for slot, capability in (("decoder", "causal"), ("cross", "cross")):
        if not getattr(able, capability):
            values[f"{slot}_attention"] = "softmax"
    return {"dropout": 0.0, **SIDES, **values}


def make_model(choices, aligned=True, **options):
    torch.manual_seed(0)
    kind = {"document_attention": "aligned", **options} if aligned else {}
    config = TransformerConfig(**settings(choices, **kind))
    model = EncoderDecoder(config, VOCAB, VOCAB, PAD, (SEP, TSEP)).double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Weights that start at 0 or 1 must count, too. Weights of both kinds are the same.
            seed = sum(map(ord, name.replace("gate.", "g.")))
            generator.manual_seed(seed)
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(0.2 * noise)
    return model


def padded(rows):
    rows = [torch.tensor(row) for row in rows]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


def batch_of_documents():
    """Return the documents as a batch of a training."""
    targets = [[*target[1:], EOS] for target in TARGET]
    return collate(pairs_of_ids(zip(SOURCE, targets, strict=True)), range(3))


def cut(row, separator, read=False):
    """Return the sentences of a row. A separator begins the next sentence in decoder inputs."""
    parts = [[]]
    for token in row:
        if read and token == separator:
            parts.append([])
        parts[-1].append(token)
        if not read and token == separator:
            parts.append([])
    return list(filter(None, parts))


@each_mechanism
@pytest.mark.parametrize("global_layers", [0, 1, 2])
@torch.no_grad()
def test_one_sentence_equals_that_of_a_sentence_model(choices, global_layers):
    full = make_model(choices, aligned=False)
    model = make_model(choices, global_layers=global_layers)
    assert not full.load_state_dict(model.state_dict(), strict=False).missing_keys
    source = padded([[5, 6, 7, EOS], [8, EOS]])
    target = padded([[EOS, 5, 6], [EOS, 7]])
    real = target != PAD
    torch.testing.assert_close(model(source, target)[real], full(source, target)[real])


@each_mechanism
@torch.no_grad()
def test_lower_layers_equal_a_sentence_model(choices):
    """Encoder and decoder states of documents equal the states of their single sentences."""
    full = make_model(choices, aligned=False)
    model = make_model(choices, global_layers=0)
    features = model(padded(SOURCE), padded(TARGET))
    states = model.encoder(padded(SOURCE)).states
    for row, (source, target) in enumerate(zip(SOURCE, TARGET, strict=True)):
        begin = 0
        for part in cut(source, SEP):
            alone = full.encoder(torch.tensor([part])).states[0]
            torch.testing.assert_close(states[row, begin : begin + len(part)], alone)
            begin += len(part)
        begin = 0
        for part, read in zip(cut(source, SEP), cut(target, TSEP, read=True), strict=False):
            # Each is read as the first is, from </s> on.
            alone = full(torch.tensor([part]), torch.tensor([[EOS, *read[1:]]]))[0]
            torch.testing.assert_close(features[row, begin : begin + len(read)], alone)
            begin += len(read)


@pytest.mark.parametrize("global_layers", [0, 1])
def test_only_upper_layers_read_other_sentences(global_layers):
    model = make_model({"attention": "reluformer"}, global_layers=global_layers)
    source = torch.tensor(SOURCE[:1])
    target = torch.tensor(TARGET[:1])
    changed = source.clone()
    changed[0, 4] = 15  # in the second sentence
    before = model.encoder(source).states[0, [0, 1, 2, 3, 7, 8]]
    after = model.encoder(changed).states[0, [0, 1, 2, 3, 7, 8]]
    assert torch.equal(before, after) == (global_layers == 0)
    unlike = (model(source, target) - model(changed, target)).abs().amax(2)[0] > 0
    assert unlike[3:5].all()  # the second target sentence
    assert unlike[[0, 1, 2, 5, 6, 7]].any() == (global_layers > 0)


def heads(x):
    return x.unflatten(-1, (2, -1)).transpose(1, 2)


def number_vectors(numbers):
    first = sinusoids(torch.zeros(1, dtype=torch.int64), 16)
    return sinusoids(numbers.flatten(), 16).view(*numbers.shape, 16) - first


def dense(module, x, memory, visible, numbers=None):
    """Return masked softmax attention, with vectors of ``numbers`` added to queries and keys."""
    queries = x
    keys = memory
    if numbers is not None:
        of_queries, of_keys = numbers
        queries = x + number_vectors(of_queries) * module.gate.number_gain
        keys = memory + number_vectors(of_keys) * module.gate.number_gain
    if hasattr(module, "qkv"):
        q = module.qkv(queries).chunk(3, -1)[0]
        k = module.qkv(keys).chunk(3, -1)[1]
        v = module.qkv(memory).chunk(3, -1)[2]
    else:
        q = module.q(queries)
        k = module.kv(keys).chunk(2, -1)[0]
        v = module.kv(memory).chunk(2, -1)[1]
    scores = heads(q) @ heads(k).transpose(-1, -2) / math.sqrt(8)
    weights = scores.masked_fill(~visible[:, None], -math.inf).softmax(-1)
    return (weights @ heads(v)).transpose(1, 2).flatten(2)


def by_masks(module, x, memory, local, document, numbers):
    inside = dense(module, x, memory, local)
    if module.gate is not None:
        outside = dense(module, x, memory, document, numbers)
        gate = module.gate
        share = (torch.cat([inside, outside], -1) @ gate.weight.T + gate.bias).sigmoid()
        inside = share * inside + (1 - share) * outside
    return module.out_proj(inside)


def embedded(stack, tokens, numbers):
    # The position of a token in its sentence: how many before it are of the same one.
    same = numbers[:, :, None] == numbers[:, None]
    positions = same.tril(-1).sum(2)
    x = stack.embedding.tokens(tokens.masked_fill(tokens == TSEP, EOS)) * 4
    return x + sinusoids(torch.arange(20), 16).double()[positions]


@pytest.mark.parametrize("global_layers", [0, 1, 2])
def test_gathered_sentences_equal_masks_over_the_document(global_layers):
    model = make_model({"attention": "softmax"}, global_layers=global_layers)
    surplus = [*TARGET[1], 14, TSEP, 15, 5]  # which sees the last source sentence
    source = padded(SOURCE[:2])
    target = padded([TARGET[0], surplus])
    ends = (source == SEP).long()
    of_target = (target == TSEP).cumsum(1)  # the sentence of each token
    of_source = ends.cumsum(1) - ends
    real = (source != PAD)[:, None]
    x = embedded(model.encoder, source, of_source)
    numbers = {"encoder": (of_source, of_source), "decoder": (of_target, of_target)}
    numbers["cross"] = of_target, of_source
    same = of_source[:, :, None] == of_source[:, None]
    # Padding may see anything: nothing reads it.
    eye = torch.eye(source.size(1), dtype=torch.bool)
    for layer in model.encoder.layers:
        y = by_masks(layer.self_attention, x, x, same & real | eye, real | eye, numbers["encoder"])
        x = layer.self_attention_residual.norm(x + y)
        x = layer.feed_forward_residual.norm(x + layer.feed_forward(x))
    memory = x
    read = embedded(model.decoder, target, of_target)
    past = torch.ones(target.size(1), target.size(1), dtype=torch.bool).tril()[None]
    last = of_source.masked_fill(source == PAD, 0).amax(1, keepdim=True)
    alike = of_target[:, :, None] == of_target[:, None]
    across = (of_target.minimum(last)[:, :, None] == of_source[:, None]) & real
    for layer in model.decoder.layers:
        y = by_masks(layer.self_attention, read, read, alike & past, past, numbers["decoder"])
        read = layer.self_attention_residual.norm(read + y)
        all_real = real.expand_as(across)
        y = by_masks(layer.cross_attention, read, memory, across, all_real, numbers["cross"])
        read = layer.cross_attention_residual.norm(read + y)
        read = layer.feed_forward_residual.norm(read + layer.feed_forward(read))
    mask = target != PAD
    torch.testing.assert_close(model(source, target)[mask], read[mask], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("global_layers", [0, 1])
def test_weights_are_returned_for_the_whole_document(global_layers):
    model = make_model({"attention": "softmax"}, global_layers=global_layers)
    source = np.array(SOURCE[0])
    target = np.array([*TARGET[0][1:], EOS])
    ensemble = Ensemble([StepDecoder(model)])
    of_source = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 3])
    of_target = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 3])
    numbers = {"encoder": (of_source, of_source), "decoder": (of_target, of_target)}
    numbers["cross"] = of_target, of_source
    for slot, (queries, keys) in numbers.items():
        [weights] = attention_weights(ensemble, [AttentionPlace(slot, 1, 0)], source, target)
        np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-6)
        outside = weights[queries[:, None] != keys]
        assert outside.any() == (global_layers > 0)
    search = Stepping(model, torch.tensor(SOURCE[:1]))
    for t, token in enumerate(TARGET[0]):
        weights = search.step(torch.tensor([[token]]), want_weights=True).weights[0, 0]
        assert (weights[of_target[t] == torch.from_numpy(of_source)].sum() - 1).abs() < 1e-6


def test_statistics_count_visible_keys():
    model = make_model({"attention": "softmax"}, global_layers=1)
    with record_attention(model.encoder, Need(telemetry=True)) as records:
        model.encoder(padded(SOURCE[:2]))
    counts = np.array([4, 3, 2, 1, 3, 4, 1])  # of the sentences of both
    local = (counts * np.log(counts)).sum()
    document = 10 * math.log(10) + 8 * math.log(8)
    lower, upper = attention_sums(records).values()
    assert len(records) == 3 and (lower.num_rows, upper.num_rows) == (18, 36)
    assert lower.log_counts == pytest.approx(local)
    assert upper.log_counts == pytest.approx(local + document)


def test_the_regularizer_reads_both_attentions():
    model = make_model({"attention": "reluformer"}, global_layers=1).train()
    objective = TranslationObjective(
        model, 0.1, AttentionRegularizerConfig(attention_norm_weight=1.0)
    )
    output = objective(batch_of_documents(), telemetry=True)
    output.loss.backward()
    # Scores of all keys move together with a bias of keys, and ReLU's rows have a scale.
    assert without_gradient(model) == set()
    assert "attention/cross.1.0/sum" in output.telemetry


@each_mechanism
def test_sentences_in_parts_give_the_same_loss_and_gradients(choices, monkeypatch):
    """Training computes sentences of similar lengths together. ``SHORT`` limits the groups."""
    model = make_model(choices, global_layers=1)
    modules = [module for module in model.modules() if isinstance(module, Attention)]
    able = all(module.capabilities.non_negative for module in modules)
    weights = (0.5, 0.5, 0.1) if able else ()
    regularizer = AttentionRegularizerConfig(*weights)
    objective = TranslationObjective(model, 0.1, regularizer).train()
    results = []
    for short in (64, 1):
        monkeypatch.setattr(sentences, "SHORT", short)
        objective.zero_grad()
        with record_attention(model, Need(telemetry=True)) as records:
            output = objective(batch_of_documents())
        output.loss.backward()
        totals = {name: total for name, (total, _) in output.metrics.items()}
        results.append((output.loss, totals, gradients(model)))
        shares = sum(record.visibility.share for record in records)
        assert shares == pytest.approx(9)  # 6 modules, 3 of which have both attentions
        assert (len(records) > 9) == (short == 1)
    torch.testing.assert_close(*results)


SENTENCE_LIMITS = {"max_source_positions": 6, "max_target_positions": 6}


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_documents_may_be_longer_than_any_sentence(positions):
    choices = {"attention": "reluformer", "positions": positions}
    limits = SENTENCE_LIMITS if positions == "learned" else {}
    model = make_model(choices, global_layers=1, **limits)
    assert model.most_tokens("source") is None and model.most_tokens("target") is None
    limit = limits.get("max_source_positions")
    assert model.most_tokens("source", True) == model.most_tokens("target", True) == limit
    source = torch.tensor([[5, 6, 7, 8, SEP] * 200 + [EOS]])
    assert model.encoder(source).states.isfinite().all()


def test_limits_of_a_mechanism_apply_to_sentences_in_lower_layers():
    choices = {"attention": "linformer:length=8", "decoder_attention": "cosformer:horizon=9"}
    for layers, expected in ((0, (None, None)), (1, (8, 9))):
        model = EncoderDecoder(
            TransformerConfig(
                **SIDES, **choices, document_attention="aligned", global_layers=layers
            ),
            VOCAB,
            VOCAB,
            PAD,
            (SEP, TSEP),
        )
        assert (model.most_tokens("source"), model.most_tokens("target")) == expected
        if layers == 0:  # 15 tokens in sentences of 5
            search = Stepping(model, torch.tensor(SOURCE[:1]))
            for token in [EOS, *[5, 6, 7, 8, TSEP] * 3]:
                search.step(torch.full((1, 4), token))


def test_recomputed_activations_have_the_same_gradients():
    results = []
    for again in (False, True):
        model = make_model({"attention": "reluformer"}, checkpoint_activations=again).train()
        model(padded(SOURCE), padded(TARGET)).square().sum().backward()
        results.append(gradients(model))
    torch.testing.assert_close(*results)


def test_gradients_of_the_document_gate_are_correct():
    gate = DocumentGate(3).double()
    local, document = torch.randn(2, 1, 4, 3, dtype=torch.float64, requires_grad=True)

    def joined(weight, bias, local, of_document):
        parameters = {"weight": weight, "bias": bias}
        return torch.func.functional_call(gate, parameters, (local, of_document))

    weight = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(joined, (weight, bias, local, document))
    assert torch.equal(joined(weight, bias, local, local), local)
    with torch.no_grad():
        gate.number_gain.copy_(torch.tensor([1.0, 2.0, 0.0]))
    vectors = gate.numbers(torch.tensor([0, 1, 5]))
    assert vectors[0].eq(0).all()
    torch.testing.assert_close(vectors[2, 1], 2 * torch.tensor(5e-4).sin().double())


@pytest.mark.parametrize(
    ("choices", "separators", "message"),
    [
        ({}, None, "--document-attention aligned needs --sentence-separator"),
        ({"global_layers": 3}, (SEP, TSEP), "--global-layers 3 is more than --encoder-layers 2"),
        ({"document_attention": "full", "global_layers": 1}, None, "--global-layers"),
    ],
)
def test_contradicting_settings_are_an_error(choices, separators, message):
    with pytest.raises(ConfigError, match=message) as caught:
        config = TransformerConfig(**{**SIDES, "document_attention": "aligned", **choices})
        EncoderDecoder(config, VOCAB, VOCAB, PAD, separators)
    assert "\n" not in str(caught.value)
