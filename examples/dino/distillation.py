"""Self-distillation without labels (DINO): student and teacher, the head, the loss, the objective.

Shapes: B images, V views of each, K outputs of the head.
"""

import copy
import dataclasses
import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from views import GLOBAL_VIEWS, ViewBatch

from relu_nmt.attention.base import Need
from relu_nmt.attention.records import attention_telemetry, record_attention
from relu_nmt.config import option, settings
from relu_nmt.modules.objective import LossOutput
from relu_nmt.training.trainer import Trainer
from relu_nmt.vision.base import build_vision_model, exempt_from_decay, initialize
from relu_nmt.vision.config import VisionTransformerConfig

HEAD_LAYERS = 3


@settings
class DistillationConfig:
    """Head, temperatures and schedules. The defaults come from the paper.

    Raises:
        ConfigError: a value out of range.
    """

    head_dim: int = option(2048, "inner width of the head", least=1)
    bottleneck_dim: int = option(256, "width before the last layer", least=1)
    outputs: int = option(65_536, "outputs of the head", least=2, metavar="K")
    student_temperature: float = option(0.1, "divisor of the student's outputs", above=0)
    teacher_temperature: float = option(0.04, "divisor of the teacher's outputs", above=0)
    teacher_warmup_temperature: float = option(
        0.04, "divisor in epoch 1", above=0, needs="teacher_warmup_epochs"
    )
    teacher_warmup_epochs: int = option(
        0, "epochs of linear growth to --teacher-temperature", least=0
    )
    teacher_momentum: float = option(
        0.996,
        "share of the teacher that an update keeps, at first. It grows to 1 as a cosine",
        least=0,
        most=1,
    )
    centre_momentum: float = option(
        0.9, "share of the mean of the teacher's outputs that an update keeps", least=0, below=1
    )
    weight_decay_end: float = option(
        0.4,
        "weight decay at the end, to which --weight-decay grows as a cosine",
        least=0,
        metavar="WD",
    )
    freeze_last_layer: int = option(
        1, "epochs in which the head's last layer keeps its weights", least=0
    )

    def teacher_temperature_of(self, epoch: int) -> float:
        """Return the divisor of the teacher's outputs in ``epoch`` (from 1)."""
        if epoch > self.teacher_warmup_epochs:
            return self.teacher_temperature
        start = self.teacher_warmup_temperature
        growth = self.teacher_temperature - start
        return start + growth * (epoch - 1) / max(1, self.teacher_warmup_epochs - 1)


def cosine(start: float, end: float, share: float) -> float:
    """Return the value at a ``share`` of the way from ``start`` to ``end`` on half a cosine."""
    return end + 0.5 * (start - end) * (1 + math.cos(math.pi * share))


class ProjectionHead(nn.Module):
    """Three linear maps with GELU, normalization to length 1, and cosines with K vectors.

    Args:
        dim: width of the features.
        config: its sizes.

    Reference: Caron et al. 2021 (DINO), section 3.1 and appendix C. The weight normalization of
    the last layer has gain 1.

    Example:
        >>> head = ProjectionHead(8, DistillationConfig(head_dim=16, bottleneck_dim=4, outputs=32))
        >>> bool((head(torch.randn(5, 8)).abs() <= 1).all())
        True
    """

    def __init__(self, dim: int, config: DistillationConfig) -> None:
        super().__init__()
        widths = [dim, *[config.head_dim] * (HEAD_LAYERS - 1), config.bottleneck_dim]
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            linear = nn.Linear(before, after)
            initialize(linear.weight)
            nn.init.zeros_(linear.bias)
            layers += [linear, nn.GELU()]
        self.layers = nn.Sequential(*layers[:-1])
        self.last = nn.Linear(config.bottleneck_dim, config.outputs, bias=False)
        exempt_from_decay(self)

    def forward(self, features: Tensor, frozen: bool = False) -> Tensor:
        """Map [N, D] to [N, K].

        Args:
            features: features of N views.
            frozen: give the last layer no gradient.
        """
        weight = self.last.weight.detach() if frozen else self.last.weight
        return F.linear(F.normalize(self.layers(features), dim=-1), F.normalize(weight, dim=-1))


class Network(nn.Module):
    """A vision model with a projection head on its features. Its classifier stays untrained.

    Args:
        config: settings of the vision model.
        num_classes: classes of its classifier.
        distillation: settings of the head.
    """

    def __init__(
        self, config: VisionTransformerConfig, num_classes: int, distillation: DistillationConfig
    ) -> None:
        super().__init__()
        self.backbone = build_vision_model(config, num_classes)
        self.backbone.head.requires_grad_(False)
        self.head = ProjectionHead(self.backbone.head.in_features, distillation)

    def features(self, views: Tensor) -> Tensor:
        """Return the features [V * B, D] of views [V, B, 3, S, S]."""
        return self.backbone(views.flatten(0, 1)).features


class StudentAndTeacher(nn.Module):
    """Two networks with the same weights at first, and the mean of the teacher's outputs.

    Args:
        config: settings of the vision models. The teacher has neither dropout nor stochastic depth.
        num_classes: classes of their classifiers.
        distillation: settings of the heads.

    Raises:
        ConfigError: the attention cannot work with these settings.
    """

    centre: Tensor

    def __init__(
        self, config: VisionTransformerConfig, num_classes: int, distillation: DistillationConfig
    ) -> None:
        super().__init__()
        rates = ("dropout", "attention_dropout", "activation_dropout", "drop_path")
        without_dropout = dataclasses.replace(config, **dict.fromkeys(rates, 0.0))
        self.student = Network(config, num_classes, distillation)
        self.teacher = Network(without_dropout, num_classes, distillation).requires_grad_(False)
        self.teacher.load_state_dict(copy.deepcopy(self.student.state_dict()))
        self.register_buffer("centre", torch.zeros(distillation.outputs))

    @torch.no_grad()
    def update_teacher(self, momentum: float) -> None:
        """Set the teacher to momentum * teacher + (1 - momentum) * student.

        The teacher's statistics of BatchNorm do not follow the student.
        """
        teacher_parameters = list(self.teacher.parameters())
        student_parameters = list(self.student.parameters())
        torch._foreach_lerp_(teacher_parameters, student_parameters, weight=1 - momentum)


def distillation_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the sum over images of the mean cross-entropy of pairs of different views.

    Args:
        student: log-probabilities [V, B, K], the large views first.
        teacher: probabilities [2, B, K] of the large views.

    Reference: Caron et al. 2021 (DINO), Eq. 3: the sum over pairs of a teacher's and another
    student's view, divided by the number of pairs as in its public code.
    """
    pairs = len(teacher) * (len(student) - 1)
    all_pairs = torch.einsum("bk,vbk->", teacher.sum(0), student)
    return (torch.einsum("vbk,vbk->", teacher, student[: len(teacher)]) - all_pairs) / pairs


def entropy(probabilities: Tensor) -> Tensor:
    """Return -sum p log p over the last dimension, in nats."""
    return -torch.xlogy(probabilities, probabilities).sum(-1)


class SelfDistillation(nn.Module):
    """The loss of a batch, and the update of teacher and center after each step.

    Two logged entropies, in nats, show the two forms of collapse. ``teacher_entropy``, a mean over
    images, is log K if all outputs are alike. ``mean_entropy``, of the mean output of a batch, is 0
    if one output wins for all images.

    Args:
        model: student and teacher.
        config: temperatures and schedules.
        total_updates: updates of the training, for the schedules.

    Reference: Caron et al. 2021 (DINO), algorithm 1 and appendix C.
    """

    def __init__(
        self, model: StudentAndTeacher, config: DistillationConfig, total_updates: int
    ) -> None:
        super().__init__()
        self.model = model
        self.config = config
        self._total_updates = total_updates
        # Use buffers, so that a trial batch can restore them.
        self.register_buffer("_sum", torch.zeros_like(model.centre), persistent=False)
        self.register_buffer("_count", torch.zeros(1), persistent=False)

    def follow(self, trainer: Trainer) -> None:
        """Hook into a trainer: read its number of updates, and act before and after steps."""
        self._trainer = trainer
        self._weight_decay = trainer.config.optimizer.weight_decay
        optimizer = trainer.learner.optimizer
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)

    def forward(self, batch: ViewBatch, telemetry: bool = False) -> LossOutput:
        """Return the loss of a batch, summed over its images.

        Args:
            batch: views of images.
            telemetry: also return the attention statistics of the student on large views.
        """
        model = self.model
        config = self.config
        epoch = self._trainer.state.epoch
        with torch.no_grad():
            outputs = model.teacher.head(model.teacher.features(batch.large)).float()
            targets = (outputs - model.centre) / config.teacher_temperature_of(epoch)
            targets = targets.softmax(-1).unflatten(0, batch.large.shape[:2])
            self._sum += outputs.sum(0)
            self._count += len(outputs)
        with record_attention(model.student, Need(telemetry=telemetry)) as records:
            features = model.student.features(batch.large)
        if len(batch.small):
            features = torch.cat([features, model.student.features(batch.small)])
        logits = model.student.head(features, frozen=epoch <= config.freeze_last_layer).float()
        log_probs = (logits / config.student_temperature).log_softmax(-1)
        count = batch.num_sentences
        loss = distillation_loss(log_probs.unflatten(0, (-1, count)), targets)
        return LossOutput(
            loss,
            count,
            {
                "teacher_entropy": (entropy(targets).sum(), GLOBAL_VIEWS * count),
                "mean_entropy": (entropy(targets.mean((0, 1))) * count, count),
            },
            attention_telemetry(records) if telemetry else {},
        )

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Set the weight decay of all parameters that have one."""
        decay = cosine(self._weight_decay, self.config.weight_decay_end, self._share_done)
        for group in optimizer.param_groups:
            if not getattr(group["params"][0], "no_weight_decay", False):
                group["weight_decay"] = decay

    @torch.no_grad()
    def _after_step(self, *_: object) -> None:
        """Move the teacher toward the student, and the center to the outputs of this update."""
        self.model.update_teacher(cosine(self.config.teacher_momentum, 1.0, self._share_done))
        total = torch.cat([self._sum, self._count])
        total = self._trainer.learner.process.sum(total)
        self.model.centre.lerp_(total[:-1] / total[-1], 1 - self.config.centre_momentum)
        self._sum.zero_()
        self._count.zero_()

    @property
    def _share_done(self) -> float:
        """The share of the training before this update, 0 to 1."""
        return min(1.0, self._trainer.state.num_updates / self._total_updates)
