"""Models that a report calls converged and better, by their seeds."""

import json
import re
import statistics

import pytest

from relu_nmt.applications.sweep.report import lines_over_lengths, rows_of
from relu_nmt.applications.sweep.results import read_results
from tests.unit.applications.sweep.made_results import make_sweep
from tests.unit.applications.sweep.report_pages import Tables, find, page_of

pytestmark = pytest.mark.usefixtures("no_pictures")


def test_a_bleu_below_one_does_not_converge(tmp_path):
    description = make_sweep(tmp_path, lengths=(128,), seeds=(1,), trouble=False)
    path = next((tmp_path / "models").glob("softmax*/evaluate-128.txt"))
    path.write_text(re.sub(r"w\d+", "wrong", path.read_text()))
    results = json.loads(path.with_suffix(".results.json").read_text())
    results["d_bleu"]["score"] = 0.0
    path.with_suffix(".results.json").write_text(json.dumps(results))
    page = page_of(tmp_path, description)
    assert Tables(page).tables[0][1] == ["softmax", "not converged"]


def set_bleu(folder, name, by_seed):
    """Replace the d-BLEU of a model at 128 tokens, and its statistics for resampling."""
    for seed, score in enumerate(by_seed, 1):
        path = folder / "models" / f"{name}-L128-seed{seed}" / "evaluate-128.results.json"
        results = json.loads(path.read_text())
        results["d_bleu"]["score"] = score
        path.write_text(json.dumps(results))


def test_the_report_says_that_no_model_has_converged(tmp_path):
    description = make_sweep(tmp_path, lengths=(128, 256), seeds=(1, 2), trouble=False)
    for path in (tmp_path / "models").glob("*/evaluate-*.results.json"):
        results = json.loads(path.read_text())
        path.write_text(json.dumps({**results, "d_bleu": {"score": 0.3, "signature": "x"}}))
    for path in (tmp_path / "models").glob("*/checkpoints/results.json"):
        results = json.loads(path.read_text())
        path.write_text(json.dumps({**results, "train": results["train"][:1]}))
    page = page_of(tmp_path, description)
    assert "No model has a d-BLEU yet that could be compared: 12 not converged." in page
    assert "Other scores" not in page
    assert "<img" not in page
    assert not re.search(r"<h2>[^<]*</h2>\s*(<p class=.note|<h2)", page)
    assert page.count("d-BLEU below 1</td>") == 1


def test_a_single_length_has_no_chart(tmp_path):
    """Only one of two lengths has results."""
    description = make_sweep(tmp_path, lengths=(128, 256), seeds=(1,), trouble=False)
    for path in (tmp_path / "models").glob("*/evaluate-256.*"):
        path.unlink()
    page = page_of(tmp_path, description)
    assert "<figcaption>" not in page


@pytest.mark.parametrize("seeds", [(1, 2), (1, 2, 3)])
def test_few_seeds_are_dots_without_interval_and_bold(tmp_path, seeds):
    description = make_sweep(tmp_path, lengths=(128, 256), seeds=seeds, trouble=False)
    cells, averages = read_results(tmp_path, description)
    rows = rows_of(averages)
    for line, system in zip(lines_over_lengths(rows, "d_bleu", 1.0), rows, strict=True):
        system_cells = [c for c in cells if c.system == system]
        x_of_length = {128: 0, 256: 1}
        assert not any(map(any, line.errors))
        assert line.dots == [(x_of_length[c.length], c.record["d_bleu"]) for c in system_cells]
    page = page_of(tmp_path, description)
    assert 'class="best"' not in page and "± 0" not in page
    assert not re.search(r"± [\d.]+ seeds", page)


def test_bold_needs_four_seeds_and_significance(tmp_path):
    description = make_sweep(tmp_path, lengths=(128,), seeds=(1, 2, 3, 4), trouble=False)
    page = page_of(tmp_path, description)
    # reluformer has 2 % more correct words than softmax, in each of four seeds.
    [best] = re.findall(r'class="best">([\d.]+)<', page)
    texts = {row[0]: row[1].split("|")[0] for row in Tables(page).tables[0][1:]}
    assert texts["reluformer"] == best
    # Seeds that are as often worse as better are not significant, even if documents agree.
    for name, scores in (("reluformer", (90, 50, 90, 52)), ("softmax", (70, 71, 70, 71))):
        set_bleu(tmp_path, name, scores)
    assert 'class="best"' not in page_of(tmp_path, description)


def test_no_interval_of_a_score_reaches_below_0(tmp_path):
    description = make_sweep(tmp_path, lengths=(128, 256), seeds=(1, 2, 3, 4), trouble=False)
    by_seed = (1.5, 1.5, 1.5, 21.5)
    set_bleu(tmp_path, "softmax", by_seed)
    # Student's t with 3 degrees of freedom is 3.182.
    high = 6.5 + 3.182 * statistics.stdev(by_seed) / 2
    table = Tables(page_of(tmp_path, description)).tables[0]
    assert table[1][1].startswith(f"6.50|0.00 to {high:.2f} seeds|")
    _, averages = read_results(tmp_path, description)
    [line, *_] = lines_over_lengths(rows_of(averages), "d_bleu", 1.0)
    assert line.errors[0] == pytest.approx((6.5, high - 6.5))
    assert not line.dots


def test_a_model_that_is_weak_at_one_length_has_converged(tmp_path):
    description = make_sweep(
        tmp_path, lengths=(1, 128), mixture=(1, 128), seeds=(1, 2), trouble=False
    )
    path = tmp_path / "models/softmax-mix1+128-seed2/evaluate-128.txt"
    path.write_text(re.sub(r"w\d+", "wrong", path.read_text()))
    results = json.loads(path.with_suffix(".results.json").read_text())
    results["d_bleu"]["score"] = 0.0
    path.with_suffix(".results.json").write_text(json.dumps(results))
    cells, averages = read_results(tmp_path, description)
    assert {cell.status for cell in cells} == {"done"}
    weak = next(a for a in averages if (a.system.attention, a.length) == ("softmax", 128))
    [strong] = [c.record["d_bleu"] for c in weak.cells if c.model.seed == 1]
    assert weak.record["d_bleu"] == pytest.approx(strong / 2)


def test_gains_have_an_interval_over_seeds(report):
    _, rows = report
    gains = []
    for seed in (1, 2, 3):
        score = find(rows, "cell", "reluformer", 128, seed)["d_bleu"]
        base = find(rows, "cell", "softmax", 128, seed)["d_bleu"]
        gains.append(float(score) - float(base))
    row = find(rows, "mean", "reluformer", 128)
    assert float(row["gain"]) == pytest.approx(statistics.mean(gains))
    # Student's t with 2 degrees of freedom is 4.303.
    expected = 4.303 * statistics.stdev(gains) / 3**0.5
    assert float(row["gain_seed_interval"]) == pytest.approx(expected)
