"""The report of a sweep whose results are missing, damaged or of another setting."""

import dataclasses
import json
import re
import shutil

import pytest

from relu_nmt.applications.sweep.results import read_results
from relu_nmt.applications.sweep.settings import SweepSettings
from relu_nmt.applications.sweep.steps import (
    CONTRASTS,
    DONE,
    PENDING,
    Step,
    read_description,
    trainings_in,
    write_description,
)
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.jobs.sweep.job import run
from tests.unit.applications.sweep.made_results import make_sweep
from tests.unit.applications.sweep.report_pages import Tables, page_of, varied

pytestmark = pytest.mark.usefixtures("no_pictures")


def test_errors_are_listed_and_escaped(report):
    page, _ = report
    assert "RuntimeError: &lt;out of memory&gt; &amp; more" in page
    assert "<out of memory>" not in page
    table = Tables(page).with_title("what went wrong")
    assert ["softmax length 512 seed 3", "failed", "RuntimeError: <out of memory> & more"] in table
    # The same error is listed once: sparsemax at two lengths with three seeds.
    names = [f"sparsemax length 256 seed {seed}" for seed in (1, 2, 3)]
    [[cell, *_]] = table[1:]
    assert cell == "; ".join([*names, "3 more"])


def statuses(cells):
    return [cell.status for cell in cells]


def test_missing_results_are_pending(tmp_path):
    description = make_sweep(tmp_path, lengths=(128,), seeds=(1,), trouble=False)
    wider = varied(description, seeds=(1, 2))
    cells, _ = read_results(tmp_path, wider)
    assert statuses(cells) == ["done", PENDING] * 3
    page = page_of(tmp_path, wider)
    assert "1 of 2 not begun" in page
    assert len(trainings_in(tmp_path)) == 3
    assert read_description(tmp_path) == description


def test_names_of_steps_of_the_text_in_earlier_versions_are_read(tmp_path):
    description = make_sweep(tmp_path, lengths=(128,), seeds=(1,), trouble=False)
    task = {"source tokenizer": "moses", "target detokenizer": "none"}
    write_description(tmp_path, dataclasses.replace(description, task=task))
    path = tmp_path / "sweep.json"
    path.write_text(path.read_text().replace('tokenizer": "', 'tokeniser": "'))
    assert read_description(tmp_path).task == task


def test_documents_of_a_bucket_are_counted_where_there_are_results(tmp_path):
    description = make_sweep(tmp_path, lengths=(128,), seeds=(1,), trouble=False)
    for name in ("evaluate-128.json", "evaluate-128.txt"):
        next((tmp_path / "models").glob(f"softmax*/{name}")).unlink()
    page = page_of(tmp_path, description)
    headers = [header for header, *_ in Tables(page).tables if "L, tokens" in header[1:2]]
    [header] = [header for header in headers if "documents" in header[2]]
    assert "\u2013 documents" not in "".join(header)


def test_many_translations_that_were_cut_off_are_counted_in_full(tmp_path):
    description = make_sweep(tmp_path, lengths=(128,), seeds=(1, 2), trouble=False)
    paths = sorted((tmp_path / "models").glob("*/evaluate-128.results.json"))
    for path, number in zip(paths, (1234, 1235, 2000, 3000, 0, 1), strict=True):
        path.write_text(json.dumps({**json.loads(path.read_text()), "at_limit": number}))
    page = page_of(tmp_path, description)
    numbers = re.findall(r"([\d.,e+]+) cut off", page)
    assert numbers == ["2,500", "1,234.5", "0.5"]


def test_a_report_without_results_says_that_nothing_has_begun(tmp_path):
    description = make_sweep(tmp_path, lengths=(128,), seeds=(1,))
    shutil.rmtree(tmp_path / "models")
    page = page_of(tmp_path, description)
    assert "3 evaluations of 3 models: 3 not begun." in page


def test_an_evaluation_without_references_is_a_failed_cell(tmp_path):
    description = make_sweep(tmp_path, lengths=(128,), seeds=(1,), trouble=False)
    path = next((tmp_path / "models").glob("softmax*/evaluate-128.results.json"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "d_bleu": None}))
    cells, _ = read_results(tmp_path, description)
    assert statuses(cells) == ["failed", "done", "done"]
    assert "no d-BLEU" in cells[0].record["note"]


@pytest.mark.parametrize("ending", [".results.json", ".attention.json"])
def test_damaged_results_are_a_failed_cell(tmp_path, ending):
    description = make_sweep(tmp_path, lengths=(128,), seeds=(1,), trouble=False)
    next((tmp_path / "models").glob(f"softmax*/evaluate-128{ending}")).write_text("{")
    cells, _ = read_results(tmp_path, description)
    assert statuses(cells) == ["failed", "done", "done"]
    assert "cannot be read" in cells[0].record["note"]


def test_report_only_runs_nothing_from_python(tmp_path, capsys):
    make_sweep(tmp_path, lengths=(128,), seeds=(1,), trouble=False)
    settings = SweepSettings.of(save_dir=str(tmp_path), report_only=True)
    assert run(settings).exit_code == 0
    page = tmp_path / "report.html"
    assert "3 evaluations of 3 models: 3 done." in page.read_text("utf-8")
    assert capsys.readouterr().out == f"report: {page}\n"
    page.unlink()
    assert run(settings, progress=False).exit_code == 0 and page.exists()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("stored", [None, [1], {"metric": {}}, {"metric": {}, "counts": "x"}])
def test_damaged_statistics_are_a_failed_cell(tmp_path, stored):
    description = make_sweep(tmp_path, lengths=(128,), seeds=(1,), trouble=False)
    path = next((tmp_path / "models").glob("softmax*/evaluate-128.results.json"))
    results = json.loads(path.read_text())
    path.write_text(json.dumps({**results, "document_statistics": stored}))
    cells, _ = read_results(tmp_path, description)
    assert statuses(cells) == ["failed", "done", "done"]


def test_a_damaged_state_affects_only_its_model(tmp_path):
    description = make_sweep(tmp_path, lengths=(128,), seeds=(1,), trouble=False)
    path = next((tmp_path / "models").glob("softmax*/train.json"))
    for damaged in ("{", path.read_text().replace('"status": "done"', '"status": "5"')):
        path.write_text(damaged)
        with pytest.raises(DataError, match=r"train\.json: damaged .*; delete it to run the step"):
            read_results(tmp_path, description)
    path.unlink()
    cells, _ = read_results(tmp_path, description)
    assert statuses(cells) == ["pending", "done", "done"]


@pytest.mark.parametrize(
    "changes",
    [{"seconds": [1]}, {"d_bleu": {"score": 30.0, "signature": []}}, {"lengths": {"groups": "5"}}],
)
def test_results_with_values_of_other_types_are_a_failure_of_their_evaluation(tmp_path, changes):
    description = make_sweep(tmp_path, lengths=(128,), seeds=(1,), trouble=False)
    path = next((tmp_path / "models").glob("softmax*/evaluate-128.results.json"))
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    cells, _ = read_results(tmp_path, description)
    assert statuses(cells) == ["failed", "done", "done"]
    assert "the results cannot be read" in cells[0].record["note"]


def test_a_folder_keeps_to_its_data_and_remembers_attentions(tmp_path):
    description = make_sweep(tmp_path, lengths=(128,), seeds=(1,))
    merged = write_description(tmp_path, varied(description, attentions=("rela", "softmax")))
    # The baseline stays: each gain of the report is against it.
    assert merged.attentions == ("softmax", "reluformer", "sparsemax", "rela")
    with pytest.raises(ConfigError, match="its results have gen-subset test, not valid"):
        write_description(tmp_path, varied(description, gen_subset="valid"))
    next((tmp_path / "models").glob("*/train.json")).write_text("{}")
    with pytest.raises(DataError, match=r"train\.json: damaged"):
        trainings_in(tmp_path)


def test_a_folder_has_one_setting(tmp_path):
    description = make_sweep(tmp_path, lengths=(128,), seeds=(1,), trouble=False)
    other = varied(description, budget="9000u")
    with pytest.raises(ConfigError, match=r"made with .*4000.* where there is now .*9000"):
        write_description(tmp_path, other)
    # A mistake without results may be corrected.
    for path in (tmp_path / "models").glob("*/train.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "status": "failed"}))
    assert write_description(tmp_path, other).settings == other.settings


def test_damaged_results_of_contrasts_are_an_error_that_names_the_file(tmp_path):
    description = make_sweep(tmp_path, lengths=(256,), seeds=(1,))
    model = trainings_in(tmp_path)[0].model
    step = Step(model, CONTRASTS, model.folder(tmp_path), status=DONE)
    step.write()
    for text in ("[", "[1]", '[{"name": "accuracy"}]'):
        step.path(".results.json").write_text(text)
        with pytest.raises(DataError, match=r"contrasts\.results\.json: damaged; delete "):
            read_results(tmp_path, description)
