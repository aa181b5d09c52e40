"""examples/lra: sizes of models, the tasks' data, masks, and training by the package's trainer."""

import csv
import doctest
import io
import json
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from relu_nmt.attention import attentions
from relu_nmt.config import from_flat
from relu_nmt.errors import DataError
from relu_nmt.training.save_dir import TrainingResult
from tests.example_modules import example_modules
from tests.outputs import assert_same_tensors, containing, json_lines, values, weights
from tests.tiny import num_parameters

EXAMPLE = Path(__file__).parents[2] / "examples" / "lra"
MODULES = ("listops", "pathfinder", "tasks", "classifier", "train", "table")
COUNTS = {"train": 6, "valid": 3, "test": 3}


@pytest.fixture(scope="module")
def lra():
    with example_modules("lra", MODULES) as modules:
        yield modules


def build(lra, task, attention="softmax", **options):
    kind = lra.tasks.TASKS[task]
    width = from_flat(lra.train.TaskOptions, {"task": task}).width
    config = lra.classifier.ClassifierConfig(attention=attention, **options)
    return lra.classifier.SequenceClassifier(config, kind, width)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_the_docstrings_hold(lra, name):
    assert doctest.testmod(getattr(lra, name)).failed == 0


@pytest.mark.parametrize(
    ("task", "size"),
    [
        ("listops", 209_802),
        ("text", 370_562),
        ("retrieval", 395_138),
        ("image", 174_986),
        ("pathfinder", 173_954),
    ],
)
def test_the_models_have_the_published_sizes(lra, task, size):
    def parameters(attention):
        return num_parameters(build(lra, task, attention))

    assert parameters("softmax") == size
    assert parameters("nystromformer:conv=35") == size + 140
    dynamic = "nystromformer:conv=35,kernel=polynomial,scale=dynamic"
    assert parameters(dynamic) == size + 142


def test_the_presets_are_the_published_ones(lra):
    presets = {name: lra.train.LraSettings.of(data="x", task=name) for name in lra.train.PRESETS}
    steps = {"listops": 5_000, "text": 20_000, "retrieval": 30_000, "image": 35_000}
    steps |= {"pathfinder": 62_400}
    for name, settings in presets.items():
        schedule = settings.trainer.schedule
        run = settings.trainer
        assert schedule.total_num_update == run.max_update
        if name in steps:
            assert run.max_update == steps[name] and schedule.lr == (1e-4,)
    assert presets["listops"].task.width == 2048 and presets["text"].task.width == 4096
    assert presets["listops-small"].task.width == 512
    assert lra.train.LraSettings.of(data="x").task == presets["listops-small"].task
    optimizer = presets["image"].trainer.optimizer
    assert (optimizer.adam_betas, optimizer.adam_eps) == ((0.9, 0.999), 1e-6)
    assert presets["image"].task.batch_size == 256 and presets["image"].model.dropout == 0.1


def by_recursion(tokens):
    """Return the value of an expression by another method than the generator's."""
    token = tokens.pop(0)
    if token.isdigit():
        return int(token)
    values = []
    while tokens[0] != "]":
        values.append(by_recursion(tokens))
    tokens.pop(0)
    values.sort()
    middle = values[(len(values) - 1) // 2] + values[len(values) // 2]
    kinds = {"[MIN": values[0], "[MAX": values[-1], "[MED": middle // 2, "[SM": sum(values) % 10}
    return kinds[token]


def test_listops_are_expressions_with_their_values(lra):
    symbols = set()
    for seed in range(40):
        ids, value = lra.listops.make_expression(np.random.default_rng(seed), 15, 60)
        tokens = [lra.listops.TOKENS[i] for i in ids]
        assert 15 < len(tokens) < 60 and 0 not in ids
        assert lra.listops.evaluate(tokens) == by_recursion(list(tokens)) == value
        symbols |= {*tokens, value}
    assert symbols >= {*lra.listops.OPERATORS, *map(str, range(10)), *range(10)}
    tokens = ["[MED", "2", "[SM", "9", "4", "]", "8", "1", "]"]
    assert lra.listops.evaluate(tokens) == 2  # the median of 1 2 3 8


def test_pathfinder_discs_are_on_one_path_or_on_two(lra, monkeypatch):
    drawn = lra.pathfinder._drawn
    calls = []
    monkeypatch.setattr(lra.pathfinder, "_drawn", lambda *what: calls.append(what) or drawn(*what))
    labels = []
    for seed in range(30):
        pixels, label = lra.pathfinder.make_image(random.Random(seed))
        paths, discs = calls[-1]
        owner_of = {}
        for number, path in enumerate(paths):
            owner_of |= {path[0]: number, path[-1]: number}
        start, end = discs
        assert start != end and max(owner_of[start], owner_of[end]) < 2
        assert (owner_of[start] == owner_of[end]) == bool(label)
        assert list(map(len, paths[:2])) == [15, 15]
        for index, path in enumerate(paths):
            other_discs = np.concatenate([*paths[:index], *paths[index + 1 :]])
            apart = np.linalg.norm(np.array(path)[:, None] - other_discs[None], axis=-1)
            assert apart.min() > lra.pathfinder.GAP
        assert pixels.shape == (1024,) and pixels.dtype == np.uint8 and pixels.max() == 255
        column, row = start
        assert pixels.reshape(32, 32)[round(row - 0.5), round(column - 0.5)] == 255
        labels.append(label)
    assert 8 <= sum(labels) <= 22


def test_generated_samples_are_stored_and_a_damaged_file_is_named(lra, tmp_path):
    notes = []
    first = lra.tasks.open_task("listops", tmp_path, 40, COUNTS, notes.append)
    assert len(notes) == 3
    again = lra.tasks.open_task("listops", tmp_path, 40, COUNTS, notes.append)
    assert len(notes) == 3
    for split, count in COUNTS.items():
        assert len(first[split]) == count
        for (ours,), (theirs,) in zip(first[split].sequences, again[split].sequences, strict=True):
            assert ours.tolist() == theirs.tolist() and 10 < len(ours) < 40
    texts = set()
    for samples in first.values():
        for [ids] in samples.sequences:
            texts.add(ids.tobytes())
    assert len(texts) == sum(COUNTS.values())
    [path] = tmp_path.iterdir()
    path.write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"listops-40-6-3-3\.npz: damaged"):
        lra.tasks.open_task("listops", tmp_path, 40, COUNTS, notes.append)


def save_images(folder, counts):
    for split, count in counts.items():
        for label, name in enumerate(("cat", "dog")):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                color = (10 * number, 100 + number, 50 * label)
                picture = Image.new("RGB", (32, 32), color)
                picture.save(folder / split / name / f"{number:02d}.png")


def test_images_are_rows_of_gray_values(lra, tmp_path):
    save_images(tmp_path, {"train": 10, "test": 2})
    counts = {"train": 100, "valid": 100, "test": 3}
    samples = lra.tasks.open_task("image", tmp_path, 1024, counts, print)
    assert list(samples) == ["train", "valid", "test"]
    assert list(map(len, samples.values())) == [18, 2, 3]
    [dog] = samples["valid"].sequences[1]
    assert samples["valid"].labels.tolist() == [0, 1]
    expected = 0.299 * 90 + 0.587 * 109 + 0.114 * 50
    assert dog.shape == (1024,) and set(dog.tolist()) == {round(expected)}
    for folder in ("train/ant", "train/bee"):  # classes that the test set lacks, and one image
        (tmp_path / folder).mkdir()
        shutil.copy(tmp_path / "test/dog/00.png", tmp_path / folder)
    samples = lra.tasks.open_task("image", tmp_path, 1024, {**counts, "test": 4}, print)
    assert samples["test"].labels.tolist() == [2, 2, 3, 3]
    Image.new("RGB", (32, 31)).save(tmp_path / "test" / "cat" / "00.png")
    with pytest.raises(DataError, match=r"cat/00\.png: expected 32x32 pixels"):
        lra.tasks.open_task("image", tmp_path, 1024, {**counts, "test": 4}, print)
    with pytest.raises(DataError, match="expected train and test"):
        lra.tasks.open_task("image", tmp_path / "none", 1024, counts, print)


def test_texts_are_bytes_plus_one(lra, tmp_path):
    for split in ("train", "test"):
        for kind in ("neg", "pos"):
            (tmp_path / split / kind).mkdir(parents=True)
            (tmp_path / split / kind / "1.txt").write_text(f"{kind} é {split}", "utf-8")
    samples = lra.tasks.open_task("text", tmp_path, 6, COUNTS, print)
    [ids] = samples["train"].sequences[1]
    assert bytes(ids - 1) == "pos é".encode() and samples["train"].labels.tolist() == [0, 1]
    with pytest.raises(DataError, match="expected reviews"):
        lra.tasks.open_task("text", tmp_path / "train", 6, COUNTS, print)


def test_pairs_are_read_and_compared(lra, tmp_path):
    for name in ("train", "eval", "test"):
        line = f"0.0\t1\t2\tone {name}\tother\n"
        (tmp_path / f"new_aan_pairs.{name}.tsv").write_text(line + "1" + line[1:])
    samples = lra.tasks.open_task("retrieval", tmp_path, 4000, COUNTS, print)
    batches = lra.tasks.SequenceBatches(samples["train"], 16, batch_size=2)
    assert batches.begin_epoch(1) == 1
    batch = batches.load(0)
    assert batch.tokens.shape == (2, 2, 16) and batch.labels.tolist() == [0, 1]
    assert bytes((batch.tokens[0, 1, :5] - 1).tolist()) == b"other"
    assert batch.num_tokens == 2 * (len("one train") + len("other"))
    model = build(lra, "retrieval").eval()
    model.positions = torch.nn.Parameter(model.positions[:16].detach())
    a, b = map(model.encode, batch.tokens.unbind(1))
    joined = torch.cat([a, b, a * b, a - b], 1)
    torch.testing.assert_close(model(batch.tokens), model.head(joined))
    (tmp_path / "new_aan_pairs.eval.tsv").write_text("1.0\t1\t2\ttext\n")
    with pytest.raises(DataError, match=r"eval\.tsv:1: expected a label"):
        lra.tasks.open_task("retrieval", tmp_path, 4000, COUNTS, print)


def small_model(lra, attention, **options):
    task = lra.tasks.Task(16, 32, 3)
    config = lra.classifier.ClassifierConfig(attention=attention, **options)
    return lra.classifier.SequenceClassifier(config, task, 16).eval()


def test_zeros_are_padding_unless_all_tokens_are_visible(lra):
    torch.manual_seed(0)
    model = small_model(lra, "softmax")
    tokens = torch.tensor([[[5, 0, 7, 9, 0, 0, 0, 0]]])
    tokens = torch.nn.functional.pad(tokens, (0, 8))
    before = model(tokens)
    with torch.no_grad():
        model.embedding.weight[0] += 100.0
    torch.testing.assert_close(model(tokens), before)
    unmasked = small_model(lra, "softmax", mask="all")
    unmasked.load_state_dict(model.state_dict())
    assert not unmasked(tokens).allclose(before)
    # The mean is over the padded length: three tokens of sixteen.
    states = []
    model.norm.register_forward_hook(lambda module, args, output: states.append(output))
    features = model.encode(tokens[:, 0])
    expected = states[0][0, [0, 2, 3]].sum(0) / 16
    torch.testing.assert_close(features[0], expected)


@pytest.mark.parametrize("name", attentions.names())
def test_every_attention_trains_and_ignores_padding(lra, name):
    torch.manual_seed(0)
    spec = f"{name}:length=16" if attentions.get(name).capabilities.fixed_length else name
    model = small_model(lra, spec)
    tokens = torch.randint(1, 32, (2, 1, 16))
    tokens[0, 0, 5:] = 0
    logits = model(tokens)
    logits.square().sum().backward()
    for parameter in model.parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all()
    with torch.no_grad():
        model.embedding.weight[0] += 1.0
    torch.testing.assert_close(model(tokens)[0], logits[0], rtol=1e-4, atol=1e-5)


def test_a_classifier_learns_which_word_a_text_has(lra, tmp_path, capsys):
    rng = random.Random(0)
    for split, count in (("train", 96), ("test", 32)):
        for kind, word in (("neg", "bad"), ("pos", "good")):
            (tmp_path / split / kind).mkdir(parents=True)
            for number in range(count):
                words = rng.choices(["the", "film", "is", "it"], k=4)
                words[rng.randrange(4)] = word
                (tmp_path / split / kind / f"{number}.txt").write_text(" ".join(words))
    flags = (
        f"{tmp_path} --task text-small --length 32 --attention reluformer --batch-size 32 --cpu "
        "--lr 5e-3 --warmup-updates 10 --max-update 90 --total-num-update 90 "
        f"--validate-interval-updates 90 --save-dir {tmp_path}/run --log-format none"
    )
    assert lra.train.main(flags.split()) == 0
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["valid"]["test"][-1]["accuracy"] > 95


def command(lra, folder, capsys, *flags):
    flags = (
        f"{folder}/data --task listops-small --length 32 --num-train 40 --num-valid 8 --num-test 8 "
        "--attention polynomial:scale=dynamic --batch-size 4 --cpu --warmup-updates 2 "
        "--total-num-update 8 --validate-interval-updates 4 --log-interval 1 --log-format json "
        f"{' '.join(flags)}"
    ).split()
    code = lra.train.main(flags)
    output = capsys.readouterr()
    return code, json_lines(output.out), output.err


def test_a_training_resumes_and_the_table_shows_its_results(lra, tmp_path, capsys):
    board = tmp_path / "board"
    code, lines, _ = command(
        lra,
        tmp_path,
        capsys,
        f"--max-update 8 --save-dir {tmp_path}/whole --telemetry-interval 4",
        f"--tensorboard-logdir {board}",
    )
    assert code == 0 and containing(lines, "telemetry")
    rates = {line["num_updates"]: line["lr"] for line in lines if "lr" in line}
    assert rates[2] == pytest.approx(1e-3) and rates[5] == pytest.approx(5e-4) and rates[8] == 0
    assert list(board.rglob("events*"))
    for updates in (4, 8):
        code, _, _ = command(
            lra, tmp_path, capsys, f"--max-update {updates} --save-dir {tmp_path}/parts"
        )
        assert code == 0
    assert_same_tensors(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    assert lra.table.main([str(tmp_path / "whole")]) == 0
    printed = capsys.readouterr().out
    [cells] = list(csv.reader(io.StringIO(printed.splitlines()[2]), delimiter="|"))
    results = json.loads((tmp_path / "whole" / "results.json").read_text())
    best = results["best"]["num_updates"]
    accuracy = {}
    for split in ("valid", "test"):
        for record in results["valid"][split]:
            if record["num_updates"] == best:
                accuracy[split] = f"{record['accuracy']:.1f}"
    expected = ["8", accuracy["valid"], accuracy["test"], "-"]
    assert list(map(str.strip, cells[4:8])) == expected
    assert lra.table.main([str(tmp_path)]) == 2
    assert lra.table.main([]) == 2
    assert capsys.readouterr().err.count("\n") == 2
    with pytest.raises(SystemExit, match=r"^0$"):
        lra.table.main(["--help"])
    capsys.readouterr()
    for task in ({"arch": "vit_ti"}, {"task": "translation"}):
        TrainingResult(tmp_path, settings={"task": task}).write()
        assert lra.table.main([str(tmp_path)]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert line.endswith(f"{tmp_path}: no training of train.py; give the --save-dir of one")
    code, _, error = command(
        lra, tmp_path, capsys, f"--max-update 9 --length 64 --save-dir {tmp_path}/parts"
    )
    assert code == 2 and "of another task or length" in error
    code, _, error = command(lra, tmp_path, capsys, "--task image-small")
    assert code == 2 and "--length 32: image-small has 1024 pixels" in error


@pytest.mark.parametrize("scale", ["fixed", "dynamic"])
def test_polynomial_landmarks_with_a_convolution_train_and_resume(lra, tmp_path, capsys, scale):
    """The polynomial kernel of "Rethinking Attention", with fewer landmarks than tokens."""
    attention = f"nystromformer:landmarks=8,conv=5,kernel=polynomial,scale={scale}"
    stored = {}
    for folder, updates in (("whole", 6), ("parts", 3), ("parts", 6)):
        flags = f"--attention {attention} --max-update {updates} --save-dir {tmp_path}/{folder}"
        code, lines, error = command(lra, tmp_path, capsys, flags)
        assert code == 0, error
        losses = np.array(values(lines, "loss"), float)
        assert losses.size and np.isfinite(losses).all()
        stored[folder, updates] = weights(tmp_path / folder)
    full, half, parts = stored.values()
    assert_same_tensors(full, parts)
    names = [name for name in full if re.search(r"attention\.(convolution|scale)", name)]
    assert len(names) == (4 if scale == "dynamic" else 2)
    for name in names:
        assert not torch.equal(full[name], half[name])
