"""examples/vision_study: the report of its trainings."""

import json
import re
import shutil
import statistics
from dataclasses import replace

import pytest

from relu_nmt.applications.sweep.steps import DIVERGED, DONE, STARTED, Step, SweepModel
from relu_nmt.evaluation.significance import mean_interval
from relu_nmt.training.save_dir import TrainingResult, entry
from tests.example_modules import example_modules
from tests.outputs import csv_rows, select


@pytest.fixture(scope="module")
def example():
    with example_modules("vision_study", ["study", "relu_studies", "studies", "report"]) as modules:
        yield modules


def make_training(folder, name, seed, accuracy, status=DONE, entropy=None):
    """Write the files of a training: state, results, log, accuracy."""
    model = SweepModel(name, seed, ())
    step = Step(model, None, folder / model.name)
    step.folder.mkdir()
    commands = (("python", "-m", "relu_nmt.cli.vision_train", "data", "--seed", str(seed)),)
    machine = {"cpu": "abacus", "gpus": []}
    replace(step, commands=commands, status=status, environment=machine).write()
    result = TrainingResult(step.checkpoints, num_updates=20, parameters=1234, seconds=60.0)
    for updates in (10, 20):
        stats = {"num_updates": updates, "loss": 30 / updates + seed, "gnorm": 1.0, "wps": 50.0}
        result.train.append(entry(1, {**stats, "ups": 1.0, "train_wall": 10.0}))
    result.valid["valid"] = [entry(1, {"num_updates": 20, "accuracy": accuracy - 1})]
    result.write()
    log = ["$ relu-nmt-vision-train"]
    if entropy is not None:
        telemetry = {"attention/encoder.0.0/entropy": entropy}
        telemetry["attention/encoder.1.0/entropy"] = entropy + 1
        log.append(json.dumps({"epoch": 1, "num_updates": 10, "telemetry": telemetry}))
    step.path(".log").write_text("\n".join(log))
    if status == DONE:
        evaluation = {"accuracies": [{"top1": accuracy, "images": 99}]}
        (step.folder / "accuracy.json").write_text(json.dumps(evaluation))
    return step


def test_the_report_has_means_intervals_and_gains(example, tmp_path):
    for seed, accuracy in enumerate((80.0, 82.0, 84.0), 1):
        make_training(tmp_path, "softmax", seed, accuracy, entropy=seed)
    for seed, accuracy in enumerate((83.0, 84.0, 88.0), 1):
        make_training(tmp_path, "SimA", seed, accuracy)
    make_training(tmp_path, "x^3 fixed", 2, 81.5)
    make_training(tmp_path, "x^3 unscaled", 1, 10.0, DIVERGED)
    make_training(tmp_path, "XCiT SimA", 1, 50.0, STARTED)
    make_training(tmp_path, "XCiT SimA", 2, 50.0)
    make_training(tmp_path, "of another study", 1, 50.0)
    example.report.write_report(tmp_path, example.studies.STUDIES["comparison"])
    rows = csv_rows(tmp_path / "results.csv")
    assert len(select(rows, row="training")) == 10
    means = {row["variant"]: row for row in select(rows, row="mean")}
    assert list(means) == ["softmax", "x^3 fixed", "x^3 unscaled", "SimA", "XCiT SimA"]
    sima = means["SimA"]
    assert float(sima["test_accuracy"]) == pytest.approx(85)
    assert float(sima["test_accuracy_interval"]) == pytest.approx(mean_interval([83, 84, 88]))
    assert float(sima["gain"]) == pytest.approx(3)
    assert float(sima["gain_interval"]) == pytest.approx(mean_interval([3, 2, 4]))
    assert float(sima["train_loss"]) == pytest.approx(1.5 + 2)
    assert (sima["seeds"], sima["gain_seeds"], sima["status"]) == ("1,2,3", "1,2,3", "3 done")
    assert means["softmax"]["gain"] == ""
    assert (means["x^3 fixed"]["gain"], means["x^3 fixed"]["gain_interval"]) == ("-0.5", "")
    diverged = means["x^3 unscaled"]
    assert (diverged["status"], diverged["test_accuracy"]) == ("1 diverged", "")
    assert means["XCiT SimA"]["status"] == "1 started, 1 done"
    assert means["XCiT SimA"]["gain"] == ""  # its baseline is missing
    page = (tmp_path / "report.html").read_text("utf-8")
    # Three seeds are listed, as their interval would be wider than the differences.
    cell = "85.00<small>seeds 83.00, 84.00, 88.00</small>"
    assert re.search(rf'<th scope="row">SimA</th>\s*<td>{cell}</td>', page)
    assert "<td>+3.00<small>seeds +3.00, +2.00, +4.00</small></td>" in page
    assert "±" not in page and "less the baseline" not in page
    assert "training loss, bits per image" in page
    assert "−0.50" in page and "1 diverged" in page and "abacus" in page
    # Learning of ViT and of XCiT. Attention has been measured once, which makes no curve.
    assert page.count("<img") == page.count("<figure>") == 2
    curves = csv_rows(tmp_path / "curves.csv")
    entropies = {}
    rows = select(curves, metric="encoder entropy")
    assert len(rows) == 3
    for row in rows:
        entropies[row["training"]] = float(row["value"])
    assert entropies == {"softmax seed 1": 1.5, "softmax seed 2": 2.5, "softmax seed 3": 3.5}


def test_a_training_whose_checkpoints_are_deleted_stays_in_the_report(example, tmp_path):
    shutil.rmtree(make_training(tmp_path, "softmax", 1, 80.0).checkpoints)
    example.report.write_report(tmp_path, example.studies.STUDIES["comparison"])
    *_, mean = csv_rows(tmp_path / "results.csv")
    assert (mean["test_accuracy"], mean["parameters"], mean["updates"]) == ("80.0", "", "")


def test_the_report_names_the_baselines_of_its_models(example, tmp_path):
    make_training(tmp_path, "XCiT SimA", 1, 50.0)
    make_training(tmp_path, "SimA", 1, 50.0)
    example.report.write_report(tmp_path, example.studies.STUDIES["sima"])
    page = re.sub(r"\s+", " ", (tmp_path / "report.html").read_text("utf-8"))
    assert "baselines of the models are ViT: softmax; XCiT: XCiT XCA. Differences" in page


def test_curves_are_means_over_seeds_at_common_updates(example, tmp_path):
    for seed in (1, 2):
        make_training(tmp_path, "softmax", seed, 50.0)
    trainings = example.report.read_trainings(tmp_path, example.studies.STUDIES["comparison"])
    del trainings[1].curves["train", "loss"][20]
    [panel] = example.report.curve_panels(trainings, {("train", "loss"): "loss"})
    [line] = panel.lines
    assert (line.label, line.points) == ("softmax", {10.0: 3 + 1.5})


def test_plots_over_the_axis_have_a_line_for_each_map(example, tmp_path):
    for seed, accuracy in ((1, 60.0), (2, 64.0)):
        make_training(tmp_path, "softmax qk-norm", seed, accuracy)
        make_training(tmp_path, "relu / L^1", seed, accuracy + seed)
    make_training(tmp_path, "relu / L^0", 1, 50.0)
    make_training(tmp_path, "gelu / L^1.5", 1, 10.0, DIVERGED)
    study = example.studies.STUDIES["alpha"]
    trainings = example.report.read_trainings(tmp_path, study)
    means = example.report.averages(trainings, study)
    accuracy, _ = example.report.axis_panels(means, study, trainings)
    softmax, relu = accuracy.lines
    assert (softmax.label, softmax.points) == ("softmax qk-norm", {0.0: 62.0, 2.0: 62.0})
    assert (relu.label, relu.points) == ("relu", {0.0: 50.0, 1.0: 63.5})
    assert relu.errors == [(0, 0), (0, 0)]
    assert relu.dots == [(1.0, 61.0), (1.0, 66.0)]
    assert sorted(softmax.dots) == [(0, 60), (0, 64), (2, 60), (2, 64)]
    example.report.write_report(tmp_path, study)
    page = (tmp_path / "report.html").read_text("utf-8")
    assert page.count("<img") == 1 and "Over alpha" in page


def test_intervals_of_four_seeds_end_at_100_percent(example, tmp_path):
    scores = [80.0, 99.0, 99.0, 99.0]
    for seed, accuracy in enumerate(scores, 1):
        make_training(tmp_path, "relu / L^1", seed, accuracy)
        make_training(tmp_path, "relu / L^0", seed, 50.0)
    study = example.studies.STUDIES["alpha"]
    trainings = example.report.read_trainings(tmp_path, study)
    means = example.report.averages(trainings, study)
    accuracy, _ = example.report.axis_panels(means, study, trainings)
    # Student's t with 3 degrees of freedom is 3.182.
    interval = 3.182 * statistics.stdev(scores) / 2
    assert accuracy.lines[0].errors[1] == pytest.approx((interval, 100 - 94.25))
    assert not accuracy.lines[0].dots
    example.report.write_report(tmp_path, study)
    page = (tmp_path / "report.html").read_text("utf-8")
    assert f"94.25<small>{94.25 - interval:.2f} to 100.00 seeds</small>" in page
