"""Losses on a teacher's probabilities and attention, beside plain sums in float64."""

import pytest
import torch

from relu_nmt.data.translation_batches import collate
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.modules.config import AttentionRegularizerConfig
from relu_nmt.translation.config import TeacherConfig
from relu_nmt.translation.loss import TranslationObjective
from relu_nmt.translation.teacher import (
    TaughtObjective,
    attention_distance,
    attention_outputs,
    divergence,
)
from relu_nmt.translation.teacher_cache import CACHE_FILE
from tests.tiny import PAD, gradients, pairs_of_ids, tiny_model, tiny_task

TASK = tiny_task("abcdefgh")
V = len(TASK.target_dictionary)
DEEP = {"layers": 2}
OFF = AttentionRegularizerConfig()


@pytest.fixture
def batch():
    pairs = [([5, 6, 7, 2], [8, 9, 2]), ([10, 2], [11, 4, 5, 6, 2])]
    return collate(pairs_of_ids(pairs), [0, 1])


def model(seed=1, **settings):
    settings = {"dropout": 0.0, **settings}
    return tiny_model(TASK, seed, shape=DEEP, **settings).double()


def taught(student, teachers, **settings):
    """Return the objective of a student in training, with a teacher of these settings."""
    config = TeacherConfig(teacher="given", **settings)
    return TaughtObjective(teachers, config, student, 0.1, OFF).train()


def distributions(models, batch):
    """Return the mean probabilities of models, [B, T, V]."""
    total = 0.0
    with torch.no_grad():
        for network in models:
            features = network.eval()(batch.src_tokens, batch.prev_output_tokens)
            total = total + network.output_projection(features).softmax(-1)
    return total / len(models)


@pytest.mark.parametrize(
    ("count", "weight", "temperature", "k"), [(1, 0.5, 1.0, 3), (2, 0.8, 2.0, 5), (3, 1.0, 0.7, 99)]
)
def test_the_loss_mixes_cross_entropy_and_divergence(batch, count, weight, temperature, k):
    student = model()
    teachers = list(map(model, range(2, 2 + count)))
    settings = {"teacher_weight": weight, "teacher_temperature": temperature, "teacher_top_k": k}
    result = taught(student, teachers, **settings)(batch)
    q_all = distributions(teachers, batch)
    p_all = distributions([student], batch)
    entropy = kl = 0.0
    for row, targets in enumerate(batch.tgt_tokens.tolist()):
        for position, target in enumerate(targets):
            if target == PAD:
                continue
            p = p_all[row, position]
            q = q_all[row, position]
            surprise = -p.log()
            entropy += 0.9 * surprise[target] + 0.1 / (V - 1) * (surprise.sum() - surprise[target])
            best = q.argsort(descending=True)[:k]
            outside = torch.full_like(q, (1 - q[best].sum()) / max(1, V - k))
            sharp = outside.index_copy(0, best, q[best]) ** (1 / temperature)
            sharp /= sharp.sum()
            flat = p ** (1 / temperature)
            flat /= flat.sum()
            kl += (sharp * (sharp / flat).log()).sum()
    loss = float((1 - weight) * entropy + weight * temperature**2 * kl)
    assert result.loss.item() == pytest.approx(loss, rel=1e-5)
    assert float(result.metrics["loss"][0]) == pytest.approx(float(entropy), rel=1e-5)
    assert float(result.metrics["teacher_loss"][0]) == pytest.approx(float(kl), rel=1e-5)


def test_the_divergence_of_equal_distributions_is_0():
    logits = torch.randn(4, V, dtype=torch.float64)
    log_probs, ids = logits.log_softmax(-1).sort(-1, descending=True)
    assert float(divergence((logits / 3).log_softmax(-1), ids, log_probs, 3.0)) == pytest.approx(
        0, abs=1e-12
    )


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_a_student_of_a_smoothed_teacher_learns_the_smoothing_too(temperature):
    """Symbols outside the top k share the rest, so a student need not be surer than its teacher."""
    logits = torch.zeros(1, V, dtype=torch.float64)
    logits[0, 2] = 3.0
    log_probs, ids = logits.log_softmax(-1).topk(2)
    logits.requires_grad_()
    loss = divergence((logits / temperature).log_softmax(-1), ids, log_probs, temperature)
    assert loss.item() == pytest.approx(0, abs=1e-12)
    loss.backward()
    torch.testing.assert_close(logits.grad, torch.zeros_like(logits))


def test_gradients_are_those_of_the_divergence():
    torch.manual_seed(0)
    logits = torch.randn(3, V, dtype=torch.float64, requires_grad=True)
    log_probs, ids = torch.randn(3, V, dtype=torch.float64).log_softmax(-1).topk(4)
    torch.autograd.gradcheck(
        lambda z: divergence(z.log_softmax(-1), ids, log_probs, 1.5), (logits,)
    )


def test_recomputed_blocks_give_the_gradients_of_the_whole(batch, monkeypatch):
    results = []
    for size in (1, 100):
        name = "relu_nmt.translation.teacher.block_rows"
        monkeypatch.setattr(name, lambda _, size=size: size)
        student = model()
        taught(student, [model(2)])(batch).loss.backward()
        results.append(gradients(student))
    torch.testing.assert_close(*results, atol=1e-6, rtol=1e-5)


def test_the_teacher_gets_no_gradient_and_is_no_part_of_the_model(batch):
    teacher = model(2)
    student = model()
    objective = taught(student, [teacher], teacher_attention_weight=1.0)
    objective(batch).loss.backward()
    assert not teacher.training
    assert set(gradients(teacher).values()) == {None}
    assert len(list(objective.parameters())) == len(list(student.parameters()))


def test_validation_is_without_the_teacher(batch):
    student = model()
    result = taught(student, [model(2)]).eval()(batch)
    assert "teacher_loss" not in result.metrics
    plain = TranslationObjective(student, 0.1, OFF).eval()(batch)
    assert torch.equal(result.loss, plain.loss)


def outputs_of(network, batch):
    """Return the outputs of the attentions of a model."""
    with attention_outputs(network, True) as outputs:
        network(batch.src_tokens, batch.prev_output_tokens)
    return outputs


def test_the_loss_of_attention_is_a_mean_of_relative_squares(batch):
    student = model(attention="reluformer")
    teacher = model(2)
    outputs = outputs_of(student, batch)
    taught_outputs = outputs_of(teacher, batch)
    distances = []
    for name in outputs:
        tokens = batch.src_tokens if name.startswith("encoder") else batch.prev_output_tokens
        error = size = 0.0
        for position in (tokens != PAD).nonzero().tolist():
            y = outputs[name][tuple(position)]
            t = taught_outputs[name][tuple(position)]
            error += ((y - t) ** 2).sum().item()
            size += (t**2).sum().item()
        distances.append(error / size)
    assert len(distances) == 6
    mean = sum(distances) / 6
    assert attention_distance(outputs, taught_outputs, batch, PAD).item() == pytest.approx(mean)
    settings = {"teacher_weight": 0.0, "teacher_attention_weight": 3.0}
    result = taught(student, [teacher], **settings)(batch)
    entropy = TranslationObjective(student, 0.1, OFF).train()(batch).loss
    assert result.loss.item() == pytest.approx(entropy.item() + 3 * 8 * mean, rel=1e-5)


def test_recomputed_activations_teach_attention_in_the_same_way(batch):
    results = []
    for again in (False, True):
        student = model(attention="reluformer", checkpoint_activations=again)
        taught(student, [model(2)], teacher_attention_weight=2.0)(batch).loss.backward()
        results.append(gradients(student))
    torch.testing.assert_close(*results)


def test_attention_needs_a_teacher_of_the_same_shape():
    small = tiny_model(TASK, shape={"layers": 1})
    with pytest.raises(ConfigError, match=r"1 \+ 1 layers of width 16, but the model 2 \+ 2"):
        taught(model(), [small], teacher_attention_weight=1.0)


@pytest.mark.parametrize(
    ("teacher", "settings", "message"),
    [
        ("a:b", {}, "a:b are several models; give one"),
        ("a", {"teacher_cache": "c"}, "--teacher-cache keeps probabilities only"),
    ],
)
def test_attention_needs_one_teacher_that_runs(teacher, settings, message):
    with pytest.raises(ConfigError, match=message):
        TeacherConfig(teacher=teacher, teacher_attention_weight=1.0, **settings)


# ------------------------------------------------------------------- the cache


@pytest.fixture
def cached(tmp_path, monkeypatch, batch):
    """Return a function that opens a teacher with a cache, and a list of its passes."""
    (tmp_path / "teacher").write_bytes(b"weights")
    passes = []
    monkeypatch.setattr(TaughtObjective, "_best", counted(TaughtObjective._best, passes))
    settings = {"teacher_top_k": 4, "teacher_cache": str(tmp_path / "cache")}

    def make(**changes):
        config = TeacherConfig(teacher=str(tmp_path / "teacher"), **{**settings, **changes})
        return TaughtObjective([model(2)], config, model(), 0.1, OFF)

    return make, passes


def counted(compute, passes):
    def counting(self, batch, real, rows):
        passes.append(batch)
        return compute(self, batch, real, rows)

    return counting


def test_the_cache_spares_the_teacher(batch, cached):
    make, passes = cached
    teacher = make()
    first, _ = teacher.taught(batch, 3)
    again, _ = teacher.taught(batch, 3)
    assert len(passes) == 1
    for first_values, other in zip(first, again, strict=True):
        assert torch.equal(first_values, other) and first_values.shape == (8, 4)
    plain, _ = make(teacher_cache=None).taught(batch, 3)
    assert torch.equal(first.ids, plain.ids)
    logs = plain.log_probs.double()
    torch.testing.assert_close(first.log_probs.double(), logs, atol=5e-3, rtol=1e-3)


def test_the_largest_batch_of_a_process_runs_the_teacher_whose_memory_the_preflight_counts(
    batch, cached
):
    make, passes = cached
    first, _ = make().taught(batch, 3)
    warm = make()
    again, _ = warm.taught(batch, 3)
    assert len(passes) == 2
    torch.testing.assert_close(tuple(first), tuple(again), rtol=0, atol=0)
    warm.taught(batch, 3)
    assert len(passes) == 2


def test_the_cache_knows_pairs_in_other_batches_and_adds_new_ones(batch, cached):
    make, passes = cached
    teacher = make()
    expected, _ = teacher.taught(batch, 3)
    pairs = pairs_of_ids([([10, 2], [11, 4, 5, 6, 2]), ([5, 6, 7, 2], [8, 9, 2])])
    other = collate(pairs, [7, 8])
    best, _ = teacher.taught(other, 3)
    assert len(passes) == 1
    for values, expected_values in zip(best, expected, strict=True):
        assert torch.equal(values, torch.cat([expected_values[3:], expected_values[:3]]))
    new = collate([pairs[0], pairs[0][::-1]], [0, 1])
    teacher.taught(new, 3)
    teacher.taught(new, 3)
    assert len(passes) == 2


def test_a_cache_of_another_teacher_is_refused(tmp_path, cached):
    make, _ = cached
    make()
    with pytest.raises(ConfigError, match="belongs to another --teacher or --teacher-top-k"):
        make(teacher_top_k=5)
    (tmp_path / "teacher").write_bytes(b"other weights")
    with pytest.raises(ConfigError, match="give another folder"):
        make()


def test_a_damaged_cache_is_one_line(tmp_path, cached):
    make, _ = cached
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / CACHE_FILE).write_bytes(b"no database" * 1000)
    with pytest.raises(DataError, match=r"teacher\.sqlite cannot be used .*; remove it"):
        make()
