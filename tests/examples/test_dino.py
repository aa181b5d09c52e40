"""examples/dino: views, loss, the teacher after each update, and training by the trainer."""

import doctest
import math
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from relu_nmt.attention import attentions
from relu_nmt.training.checkpoint import load_checkpoint
from relu_nmt.training.distributed import ProcessGroup
from relu_nmt.training.log import TrainingLog
from relu_nmt.training.trainer import Trainer
from relu_nmt.vision import vision_models
from relu_nmt.vision.config import PreprocessingConfig, VisionTransformerConfig
from tests.commands import command_line, run_here
from tests.example_modules import example_modules
from tests.outputs import assert_same_tensors, column, containing, json_lines, weights
from tests.tiny import num_parameters
from tests.unit.vision.families import SMALL, UNFIT

EXAMPLE = Path(__file__).parents[2] / "examples" / "dino"
MODULES = ("views", "distillation", "teacher", "train")
SHAPE = "--arch vit_ti --image-size 16 --patch-size 4 --embed-dim 32 --heads 2 --layers 2"
VIEWS = "--local-crops 2 --local-size 8"
HEAD = "--head-dim 32 --bottleneck-dim 16 --outputs 32"


@pytest.fixture(scope="module")
def dino():
    with example_modules("dino", MODULES) as modules:
        yield modules


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Images of colored stripes, in two directions or crossing."""
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    steps = np.arange(20)
    for split, count in (("train", 24), ("test", 8)):
        for number in range(3 * count):
            kind = ("rows", "columns", "both")[number % 3]
            phase = rng.integers(6)
            wave = (steps + phase) // 3 % 2
            picture = {"rows": wave[:, None], "columns": wave[None]}.get(kind)
            picture = wave[:, None] ^ wave[None] if picture is None else picture
            picture = np.broadcast_to(picture, (20, 20))[..., None]
            dark = rng.integers(0, 90, 3)
            light = rng.integers(150, 256, 3)
            pixels = np.where(picture, light, dark).astype(np.uint8)
            path = folder / split / kind / f"{number:03d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    return folder


def words(images, folder, *flags):
    common = f"{images} {SHAPE} {VIEWS} {HEAD} --batch-size 24 --cpu --save-dir {folder}"
    common += " --log-format json --log-interval 1 --no-epoch-checkpoints"
    return f"{common} {' '.join(command_line(flags))}".split()


def command(dino, images, folder, capsys, *flags):
    code = dino.train.main(words(images, folder, flags))
    output = capsys.readouterr()
    return code, json_lines(output.out), output.err


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_the_docstrings_hold(dino, name):
    assert doctest.testmod(getattr(dino, name)).failed == 0


def test_the_settings_are_the_published_ones(dino):
    settings = dino.train.DinoSettings.of(data="x", setting="paper")
    assert (settings.model.family, settings.model.embed_dim, settings.model.image_size) == (
        "xcit",
        384,
        (224,),
    )
    run = settings.trainer
    schedule = settings.trainer.schedule
    assert (settings.task.batch_size, run.max_epoch, run.clip_norm) == (256, 100, 3.0)
    assert (schedule.lr, schedule.min_lr, settings.trainer.warmup_epochs) == ((2.5e-4,), 1e-6, 10.0)
    assert settings.trainer.optimizer.weight_decay == 0.04
    views = settings.views
    config = settings.distillation
    assert (views.local_crops, views.local_size) == (8, 96)
    assert (views.global_areas, views.local_areas) == ((0.4, 1.0), (0.05, 0.4))
    assert (config.head_dim, config.bottleneck_dim, config.outputs) == (2048, 256, 65_536)
    assert (config.student_temperature, config.teacher_temperature) == (0.1, 0.04)
    assert (config.teacher_momentum, config.centre_momentum) == (0.996, 0.9)
    assert (config.weight_decay_end, config.freeze_last_layer) == (0.4, 1)
    small = dino.train.DinoSettings.of(data="x")
    assert (small.model.image_size, small.distillation.outputs) == ((32,), 1024)


def test_the_loss_is_that_of_the_paper(dino):
    """Compare with sums in float64 over the pairs of views, image by image."""
    rng = np.random.default_rng(0)
    student = rng.normal(size=(5, 3, 7))
    teacher = rng.normal(size=(2, 3, 7))

    def softmax(z):
        e = np.exp(z - z.max())
        return e / e.sum()

    expected = 0.0
    for image in range(3):
        for t in range(2):
            for s in range(5):
                if s != t:
                    p, q = softmax(teacher[t, image]), softmax(student[s, image])
                    expected -= (p * np.log(q)).sum() / 8
    z = torch.from_numpy(student).requires_grad_()
    p = torch.from_numpy(teacher).softmax(-1)
    loss = dino.distillation.distillation_loss(z.log_softmax(-1), p)
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(
        lambda z: dino.distillation.distillation_loss(z.log_softmax(-1), p), z
    )
    even = torch.full((4,), 0.25, dtype=torch.float64)
    assert dino.distillation.entropy(even).item() == pytest.approx(math.log(4))
    assert dino.distillation.entropy(torch.tensor([1.0, 0.0])).item() == 0


def test_the_head_gives_cosines_and_can_freeze_its_last_layer(dino):
    config = dino.distillation.DistillationConfig(head_dim=8, bottleneck_dim=4, outputs=6)
    head = dino.distillation.ProjectionHead(5, config)
    features = torch.randn(3, 5)
    inner = head.layers(features)
    expected = torch.cosine_similarity(inner[:, None], head.last.weight[None], dim=-1)
    torch.testing.assert_close(head(features), expected)
    head(features, frozen=True).square().sum().backward()
    assert head.last.weight.grad is None and head.layers[0].weight.grad.any()
    paper = dino.distillation.ProjectionHead(384, dino.distillation.DistillationConfig())
    inner = 384 * 2048 + 2048 + 2048 * 2048 + 2048 + 2048 * 256 + 256
    assert num_parameters(paper) == inner + 256 * 65_536


def test_temperatures_and_cosines(dino):
    config = dino.distillation.DistillationConfig(
        teacher_temperature=0.07, teacher_warmup_temperature=0.04, teacher_warmup_epochs=4
    )
    temperatures = list(map(config.teacher_temperature_of, (1, 2, 4, 5, 100)))
    assert temperatures == pytest.approx([0.04, 0.05, 0.07, 0.07, 0.07])
    values = [dino.distillation.cosine(0.04, 0.4, share) for share in (0, 0.5, 1)]
    assert values == pytest.approx([0.04, 0.22, 0.4])


def test_views_are_parts_of_the_image_and_depend_only_on_the_generator(dino):
    config = dino.views.ViewConfig(local_crops=3, local_size=8)
    views = dino.views.Views(config, 16, PreprocessingConfig())
    plain = Image.new("RGB", (40, 24), (124, 116, 104))  # the mean color
    large, small = views(plain, np.random.default_rng(1))
    assert (large.shape, small.shape) == ((2, 3, 16, 16), (3, 3, 8, 8))
    assert large.dtype == small.dtype == np.float32
    noise = np.random.default_rng(0).integers(0, 256, (24, 40, 3), dtype=np.uint8)
    picture = Image.fromarray(noise)
    first, again, other = (views(picture, np.random.default_rng(seed)) for seed in (1, 1, 2))
    for part, same, different in zip(first, again, other, strict=True):
        assert (part == same).all() and not (part == different).all()
    assert not (first[0][0] == first[0][1]).all()
    for name in ("JITTER", "GRAY", "SOLARIZE", "LOCAL_BLUR"):
        assert 0 < getattr(dino.views, name) < 1
    turned = np.asarray(dino.views._with_hue(Image.new("RGB", (1, 1), (200, 20, 20)), 1 / 3))
    np.testing.assert_allclose(turned[0, 0], (20, 200, 20), atol=4)


def fitting_pairs():
    for family in vision_models.names():
        for attention in ("softmax", "sima", "reluformer", "xca"):
            if attention not in UNFIT.get(family, ()):
                yield family, attention


def batch_of(dino, size, local_size, count=4, local_crops=2):
    generator = torch.Generator().manual_seed(0)
    large = torch.randn(2, count, 3, size, size, generator=generator)
    small = torch.randn(local_crops, count, 3, local_size, local_size, generator=generator)
    return dino.views.ViewBatch(torch.arange(count), large, small)


class OneBatch:
    """An epoch of one batch."""

    def __init__(self, batch):
        self.batch = batch

    def begin_epoch(self, epoch):
        return 1

    def largest(self):
        return 0

    def load(self, index):
        return self.batch


def trainer_of(dino, model_values, source, epochs, updates=None, **values):
    """Return a trainer and its objective. By default an epoch has one update."""
    values = {"lr": (1e-2,), "lr_period_updates": 9.0, "head_dim": 16, **values}
    values = {"bottleneck_dim": 8, "outputs": 32, **values}
    settings = dino.train.DinoSettings.of(
        data="x",
        setting="small",
        arch="vit_ti",
        **model_values,
        **{"max_epoch": epochs, "warmup_epochs": 0.0, "no_save": True, "log_format": "none"},
        **values,
    )
    torch.manual_seed(0)
    parts = dino.distillation
    model = parts.StudentAndTeacher(settings.model, 3, settings.distillation)
    objective = parts.SelfDistillation(model, settings.distillation, updates or epochs)
    data = dino.train.TrainingData(source, valid={})
    process = ProcessGroup(0, 1, torch.device("cpu"))
    log = TrainingLog(settings.trainer, shown=False)
    trainer = Trainer(objective, data, settings.trainer, {}, process, log)
    objective.follow(trainer)
    return trainer, objective


@pytest.mark.parametrize("attention", attentions.names())
def test_student_and_teacher_start_alike_with_every_attention(dino, attention):
    config = {**SMALL["vit"], "attention": attention, "drop_path": 0.5, "dropout": 0.5}
    trainer, objective = trainer_of(dino, config, OneBatch(batch_of(dino, 8, 4)), 1)
    student, teacher = objective.model.student, objective.model.teacher
    for weight, other in zip(student.parameters(), teacher.parameters(), strict=True):
        assert weight.equal(other) and weight is not other and not other.requires_grad
    assert trainer.train().num_updates == 1
    views = batch_of(dino, 8, 4).large
    assert teacher.features(views).equal(teacher.features(views))  # no dropout
    for parameter in objective.model.parameters():
        assert not parameter.isnan().any()


@pytest.mark.parametrize(("family", "attention"), list(fitting_pairs()))
def test_every_family_of_models_can_be_distilled(dino, family, attention):
    config = {**SMALL[family], "family": family, "attention": attention}
    size = config["image_size"]
    source = OneBatch(batch_of(dino, size, size // 2))
    trainer, objective = trainer_of(dino, config, source, 2)
    before = {name: p.clone() for name, p in objective.model.student.named_parameters()}
    trainer.train()
    changed = {n for n, p in objective.model.student.named_parameters() if not p.equal(before[n])}
    assert changed >= {"head.last.weight", "head.layers.0.weight"}
    assert containing(changed, "attention")
    assert not changed & {"backbone.head.weight", "backbone.head.bias"}


def test_after_each_update_teacher_center_and_decay_are_as_in_the_paper(dino):
    epochs = 4
    batch = batch_of(dino, 8, 4)
    trainer, objective = trainer_of(dino, SMALL["vit"], OneBatch(batch), epochs)
    model = objective.model
    updates = []
    expected = {name: p.double().clone() for name, p in model.teacher.named_parameters()}
    last = model.student.head.last.weight.clone()
    center = torch.zeros(32, dtype=torch.float64)

    def outputs():
        with torch.no_grad():
            return model.teacher.head(model.teacher.features(batch.large)).double().mean(0)

    means = [outputs()]

    def look(optimizer, args, kwargs):
        students = {n: p.detach().double().clone() for n, p in model.student.named_parameters()}
        decays = column(optimizer.param_groups, "weight_decay")
        updates.append((students, model.centre.clone(), decays))
        means.append(outputs())

    trainer.learner.optimizer.register_step_post_hook(look)
    trainer.train()
    for number, (students, center_now, decays) in enumerate(updates):
        wave = math.cos(math.pi * number / epochs)
        momentum = 1 - 0.5 * (1 - 0.996) * (1 + wave)
        for name, teacher in expected.items():
            expected[name] = momentum * teacher + (1 - momentum) * students[name]
        center = 0.9 * center + 0.1 * means[number]
        torch.testing.assert_close(center_now.double(), center, rtol=1e-5, atol=1e-7)
        assert decays == pytest.approx([0.4 + 0.5 * (0.04 - 0.4) * (1 + wave), 0.0])
        is_frozen = students["head.last.weight"].equal(last.double())
        assert is_frozen == (number == 0)  # in the first epoch, of one update
    assert len(updates) == epochs
    for name, parameter in model.teacher.named_parameters():
        torch.testing.assert_close(parameter.double(), expected[name], rtol=1e-5, atol=1e-7)


class NoisyKinds:
    """Epochs of 20 batches of images of six kinds, each view with different noise."""

    def __init__(self, dino):
        self.batch_type = dino.views.ViewBatch
        self.kinds = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(5))
        self.epoch = 0

    def begin_epoch(self, epoch):
        self.epoch = epoch
        return 20

    def largest(self):
        return 0

    def load(self, index):
        generator = torch.Generator().manual_seed(1000 * self.epoch + index)
        images = self.kinds[torch.randint(6, (24,), generator=generator)]
        large = images + 0.7 * torch.randn(2, 24, 3, 8, 8, generator=generator)
        part = images[:, :, 2:6, 2:6]
        small = part + 0.7 * torch.randn(2, 24, 3, 4, 4, generator=generator)
        return self.batch_type(torch.arange(24), large, small)


def test_distillation_learns_without_collapse(dino):
    kinds = NoisyKinds(dino)
    config = {**SMALL["vit"], "embed_dim": 32, "pooling": "mean"}
    values = {"lr": (1e-3,), "lr_period_updates": 200.0, "teacher_momentum": 0.97}
    values |= {"head_dim": 32, "bottleneck_dim": 16}
    trainer, objective = trainer_of(dino, config, kinds, 10, updates=200, **values)
    epochs = trainer.train().epochs
    first, last = epochs[0], epochs[-1]
    assert last["loss"] < 0.5 * first["loss"]
    for epoch in epochs:
        # Neither one output wins for all images, nor are all outputs alike: log 32.
        assert 0.8 < epoch["mean_entropy"] < 0.9 * math.log(32), epoch
        assert 0.2 < epoch["teacher_entropy"] < 0.7 * epoch["mean_entropy"], epoch
    assert last["mean_entropy"] == pytest.approx(math.log(6), abs=0.3)
    teacher = objective.model.teacher.eval()
    noise = torch.randn(6, 20, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    scores = teacher.head(teacher.features(kinds.kinds[:, None] + 0.7 * noise))
    best = (scores - objective.model.centre).argmax(-1).view(6, 20)
    pure = (best == best.mode(keepdim=True).values).float().mean(1)
    assert pure.min() > 0.6 and len(best.mode().values.unique()) >= 3, best


def test_a_stopped_training_resumes_bit_for_bit_and_its_teacher_is_a_classifier(
    dino, images, tmp_path, capsys
):
    common = "--max-epoch 3 --lr-period-updates 9 --freeze-last-layer 1 --warmup-epochs 1 "
    common += "--drop-path 0.2 --telemetry-interval 4 --teacher-warmup-epochs 2"
    full, parts, board = map(tmp_path.joinpath, ("whole", "parts", "board"))
    code, lines, _ = command(dino, images, full, capsys, common, f"--tensorboard-logdir {board}")
    assert code == 0 and containing(lines, "telemetry")
    assert list(board.rglob("events*"))
    for limit in ("--max-update 2", "--max-update 5", ""):
        code, _, error = command(dino, images, parts, capsys, common, limit)
        assert code == 0, error
    ours = weights(full)
    assert_same_tensors(ours, weights(parts))
    file = full / "teacher.safetensors"
    exported = load_checkpoint(file).model_tensors
    for name, tensor in exported.items():
        assert tensor.equal(ours[f"teacher.backbone.{name}"])
    assert (parts / "teacher.safetensors").read_bytes() != b""

    sets = f"--train {images}/train --test {images}/test --method knn --eval-crop-ratio 1".split()
    done = run_here("vision_probe", file, "--cpu", sets)
    assert "/test: knn: 24 images of 3 classes: top-1 " in done.stdout
    tuned = f"{images} {SHAPE} --cpu --max-update 1 --lr 1e-9 --finetune-from-model {file}"
    tuned += f" --save-dir {tmp_path}/tuned --batch-size 24 --no-epoch-checkpoints"
    run_here("vision_train", tuned.split())
    torch.testing.assert_close(weights(tmp_path / "tuned"), exported, rtol=1e-5, atol=1e-7)

    copied = tmp_path / "copy.safetensors"
    assert dino.teacher.main([str(parts / "checkpoint_last.safetensors"), str(copied)]) == 0
    assert_same_tensors(load_checkpoint(copied).model_tensors, exported)
    capsys.readouterr()
    assert dino.teacher.main([str(file), str(copied)]) == 2
    assert "not the checkpoint of a self-distillation" in capsys.readouterr().err
    code, _, error = command(dino, images, tmp_path / "tuned", capsys, "--max-epoch 3")
    assert code == 2 and "not of self-distillation" in error


@pytest.mark.slow
def test_two_processes_train_as_one_with_accumulation(dino, images, tmp_path, capsys, quick_python):
    """The center is the mean of all processes, and the frozen layer has a gradient in none."""
    common = "--max-epoch 3 --lr-period-updates 9 --warmup-epochs 1 --max-update 4 --batch-size 12"
    assert command(dino, images, tmp_path / "one", capsys, common, "--update-freq 2")[0] == 0
    launcher = [quick_python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launcher, str(EXAMPLE / "train.py"), *words(images, tmp_path / "two", common)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\nteacher: ") == 1
    single, double = weights(tmp_path / "one"), weights(tmp_path / "two")
    torch.testing.assert_close(double, single, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--max-epoch 0", "--max-epoch 0: teacher and weight decay follow it"),
        ("--head-bias 1", "--head-bias: the head is not trained; leave it out"),
        ("--store-ema", "--store-ema: the teacher is an average already"),
        ("--no-disable-validation", "without labels there is nothing to validate on"),
        ("--local-areas 0.4,0.05", "--local-areas: expected two numbers"),
        ("--teacher-warmup-temperature 0.02", "--teacher-warmup-temperature"),
        ("--validate-interval 2", "--validate-interval"),
    ],
)
def test_impossible_settings_are_errors_of_one_line(dino, images, tmp_path, capsys, flags, message):
    code, _, error = command(dino, images, tmp_path, capsys, flags)
    assert code == 2 and message in error and error.count("\n") == 1


def test_sizes_of_the_published_model(dino):
    config = dino.train.DinoSettings.of(data="x", setting="paper").model
    assert isinstance(config, VisionTransformerConfig)
    with torch.device("meta"):
        model = dino.distillation.Network(config, 1000, dino.distillation.DistillationConfig())
    assert num_parameters(model.backbone) == 26_253_304
