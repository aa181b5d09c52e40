"""Every family of vision transformers with every attention that fits: registered means tested."""

import pytest
import torch
import torch.nn.functional as F

from relu_nmt.modules.config import AttentionRegularizerConfig
from relu_nmt.vision.base import ImageObjective
from relu_nmt.vision.images import ImageBatch
from tests.tiny import gradients, without_gradient
from tests.unit.training.toy import Toy
from tests.unit.vision.families import PAIRS, one_family_each, pair_model, pictures

every_pair = pytest.mark.parametrize(("family", "attention"), PAIRS)
SIDES = (17, 30)
"""Height and width of images: neither is a multiple of a patch or a window.

No map is 1 x 1, where PyTorch 2.13 on a CPU now and then gives NaN as the bfloat16 gradient of a
depth-wise convolution's weight, as CvT has it with images of 16 pixels.
"""


INVERTING = ("nystromformer:landmarks=3", "soft:stride=2")
"""Here rounding is magnified by the inverse of a matrix of landmarks."""
UNREAD = {"cvt": {"stages.1.1.attention.q_convolution.0.weight"}}
"""Weights of the queries of patches in the last block, where only the class token is used."""


def scores_and_gradients(model, images):
    """Return the logits, and the gradients of their cross-entropy by the names of the weights."""
    model.zero_grad()
    logits = model(images).logits
    F.cross_entropy(logits, torch.tensor([0, 1, 2])).backward()
    return logits.detach(), gradients(model)


def with_larger_weights(model):
    """Let scores differ: with the initial weights, of deviation .02, all are nearly 0."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


@every_pair
def test_every_weight_learns_from_images_of_odd_sizes(family, attention):
    model = pair_model(family, attention, image_size=SIDES).train()
    for sides in (SIDES, (29, 9)):  # those that its positions are for, and others
        _, grads = scores_and_gradients(model, pictures(*sides))
        assert all(grad.isfinite().all() for grad in grads.values())
        # The mean of a row of scores may not matter, and so the bias of the keys.
        still = {name for name in without_gradient(model) if grads[name].dim() > 1}
        assert still <= UNREAD.get(family, set())


@every_pair
@torch.no_grad()
def test_features_and_scores_of_an_image_do_not_depend_on_its_batch(family, attention):
    """Padding to whole patches and windows depends only on the image itself."""
    model = with_larger_weights(pair_model(family, attention, image_size=SIDES)).eval()
    together = model(pictures(*SIDES), blocks=[1])
    alone = model(pictures(*SIDES)[:1], blocks=[1])
    torch.testing.assert_close(alone.logits[0], together.logits[0], rtol=1e-4, atol=1e-5)
    features = together.intermediate[1]
    features_alone = alone.intermediate[1]
    torch.testing.assert_close(features_alone[0], features[0], rtol=1e-4, atol=1e-5)
    assert (features[0] - features[1]).abs().max() > 0.1


def cosine(first, second):
    """Return the similarity of two lists of gradients."""
    first = torch.cat([grad.flatten() for grad in first])
    second = torch.cat([grad.flatten() for grad in second])
    return torch.cosine_similarity(first, second, dim=0)


def of_queries(grads):
    """Return the gradients of the queries' weights. They come first, and affect only the scores."""
    names = ("qkv.weight", ".q.weight", "query_gain")
    return [grad[: grad.size(-1)] for name, grad in grads.items() if name.endswith(names)]


@every_pair
def test_scores_and_gradients_in_bfloat16_are_close_to_float32(family, attention):
    model = with_larger_weights(pair_model(family, attention, image_size=SIDES)).train()
    exact_scores, exact = scores_and_gradients(model, pictures(*SIDES))
    with torch.autocast("cpu", torch.bfloat16):
        scores, rough = scores_and_gradients(model, pictures(*SIDES))
    assert scores.dtype == torch.float32
    assert (scores - exact_scores).norm() < 0.1 * exact_scores.norm()
    assert all(grad.isfinite().all() for grad in rough.values())
    assert cosine(exact.values(), rough.values()) > 0.98
    threshold = 0.7 if attention.startswith(INVERTING) else 0.9
    assert cosine(of_queries(exact), of_queries(rough)) > threshold


class Pictures:
    """Random images."""

    def begin_epoch(self, epoch):
        return 9  # batches

    def load(self, index):
        return ImageBatch(torch.arange(3), pictures(*SIDES, seed=index), torch.arange(3))


def trained(folder, seed, pair, max_update, no_save):
    """Train up to this update, resuming in ``folder`` and return weights and optimizer's state.

    The seed is of the initial weights, and of the random features of a mechanism.
    """
    model = pair_model(*pair, seed=seed, image_size=SIDES, drop_path=0.2)
    toy = Toy(
        folder,
        {"max_update": max_update, "preflight": False},
        {"no_save": no_save},
        logging={"log_format": "none"},
        schedule={"lr": (0.01,), "warmup_updates": 1},
        train=Pictures(),
        valid={},
    )
    trainer = toy.trainer(ImageObjective(model, 0.0, AttentionRegularizerConfig()))
    assert trainer.train().num_updates == max_update
    moments = trainer.learner.optimizer.state_dict()["state"]
    tensors = dict(model.state_dict())
    for index, of_weight in moments.items():
        for name, tensor in of_weight.items():
            tensors[f"{name} of weight {index}"] = tensor
    return tensors


@pytest.mark.parametrize(("family", "attention"), one_family_each())
def test_a_resumed_training_equals_an_uninterrupted_one(family, attention, tmp_path):
    """The resuming model starts with other weights.

    All that is to be stored is either the attention's or the family's.
    """
    uninterrupted = trained(tmp_path / "none", 0, (family, attention), 3, no_save=True)
    before = trained(tmp_path, 0, (family, attention), 1, no_save=False)
    after = trained(tmp_path, 1, (family, attention), 3, no_save=True)
    assert uninterrupted.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in uninterrupted.items())
    assert not torch.equal(before["head.weight"], after["head.weight"])
