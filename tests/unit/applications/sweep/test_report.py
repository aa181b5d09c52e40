"""The report of invented results: complete, escaped, self-contained, equal to the CSV."""

import base64
import dataclasses
import json
import re
import shutil
import subprocess
from operator import itemgetter

import pytest

from relu_nmt.applications.sweep.settings import read_published
from relu_nmt.applications.sweep.steps import read_description, write_description
from relu_nmt.errors import DataError
from tests.outputs import csv_rows
from tests.unit.applications.sweep.made_results import make_sweep
from tests.unit.applications.sweep.report_pages import (
    Tables,
    find,
    fixed,
    gains,
    page_of,
    scores,
    varied,
)

pytestmark = pytest.mark.usefixtures("no_pictures")  # but in ``report``, which comes first


def test_the_main_table_has_the_numbers_of_the_csv(report):
    page, rows = report
    header, *table = Tables(page).tables[0]
    assert header == ["attention, L in tokens", "128", "256", "512"]
    assert list(map(itemgetter(0), table)) == [
        "softmax",
        "reluformer",
        "sparsemax",
        "reluformer − softmax",
        "sparsemax − softmax",
    ]
    compared = 0
    for name, *cells in table:
        attention = name.split(" ")[0]
        for length, cell in zip((128, 256, 512), cells, strict=True):
            row = find(rows, "mean", attention, length)
            if "−" in name:
                if cell == "–":
                    assert not row["gain"]
                    continue
                expected = fixed(row["gain"], signed=True)
                expected += f"|seeds {gains(rows, attention, length)}"
                expected += f"|± {fixed(row['gain_document_interval'])} documents"
            elif cell == "diverged":
                assert (row["d_bleu"], row["seeds_diverged"]) == ("", "3")
                continue
            else:
                expected = (
                    f"{fixed(row['d_bleu'])}|seeds {', '.join(scores(rows, attention, length))}"
                )
                expected += f"|± {fixed(row['d_bleu_document_interval'])} documents"
            assert cell.startswith(expected)
            compared += 1
    assert compared == 7 + 4
    assert table[0][3].endswith("|1 of 3 failed")
    assert table[3][3].endswith("|of seeds 1,2")


def test_every_model_has_its_row(report):
    page, rows = report
    table = Tables(page).with_title("outcome", "logs")
    assert len(table) == 27
    for attention, _, seed, length, bleu, s_bleu, chrf, updates, *_ in table:
        row = find(rows, "cell", attention, length, seed)
        for text, column in ((bleu, "d_bleu"), (s_bleu, "s_bleu"), (chrf, "chrf")):
            assert text == (fixed(row[column]) if row[column] else "–")
        assert updates == fixed(row["updates"], 0)


def test_the_other_tables_have_the_numbers_of_the_csv(report):
    page, rows = report
    tables = Tables(page)
    for attention, length, *cells in tables.with_title("encoder|entropy, nats"):
        row = find(rows, "mean", attention, length)
        assert cells[0] == fixed(row["encoder_entropy"])
        assert cells[7] == fixed(100 * float(row["cross_zero_fraction"]), 1) + "%"
        assert cells[9] == fixed(row["attention_entropy"])
    for attention, length, *cells in tables.with_title("training|tokens/s"):
        row = find(rows, "mean", attention, length)
        assert cells[0] == fixed(row["train_tokens_per_second"], 0)
        assert cells[4] == fixed(float(row["train_memory_bytes"]) / 1e6, 0)
        assert cells[5] == fixed(row["decode_tokens_per_second"], 0)
        baseline = find(rows, "mean", "softmax", length)
        for column, cell in (("train", cells[1]), ("decode", cells[6])):
            speeds = [float(record[f"{column}_tokens_per_second"]) for record in (row, baseline)]
            assert cell == fixed(speeds[0] / speeds[1])
            assert (cell == "1.00") == (attention == "softmax" or column == "decode")
    header = next(
        t[0] for t in tables.tables if t[0][:2] == ["attention", "L, tokens"] and "-" in t[0][2]
    )
    buckets = [title.split("|")[0] for title in header[2:]]
    for attention, length, *cells in tables.with_title(buckets[0], buckets[1]):
        row = find(rows, "mean", attention, length)
        assert cells == [fixed(row[f"d_bleu[{bucket}]"]) for bucket in buckets]
    for length, split, groups, mean, *_ in tables.with_title("limit L"):
        row = find(rows, "cell", "softmax", length, 1)
        prefix = "train" if split == "training" else "test"
        assert groups == fixed(row[f"{prefix}_groups"], 0)
        assert mean == fixed(row[f"{prefix}_mean_tokens"], 1)


def test_the_tables_of_positions_have_the_numbers_of_the_csv(report):
    page, rows = report
    positions = ["1", "2-4", "5-9", "10-19", ">19"]
    tables = [rows for header, *rows in Tables(page).tables if header[2:] == positions]
    assert len(tables) == 2
    empty = 0
    for kind, table in zip(("position", "group position"), tables, strict=True):
        assert len(table) == 7
        for attention, length, *cells in table:
            row = find(rows, "mean", attention, length)
            for bucket, cell in zip(positions, cells, strict=True):
                sentences = row[f"sentences[{kind} {bucket}]"]
                score = row.get(f"s_bleu[{kind} {bucket}]", "")
                if sentences == "0.0":
                    assert (cell.strip(), score) == ("–", "")
                    empty += 1
                else:
                    assert cell.strip() == f"{fixed(score)}|{fixed(sentences, 0)} sentences"
    assert empty == 3 * 3 + 2 * 2 + 2 * 1  # groups of 4, 8 and 16 sentences


def test_results_without_positions_have_no_tables_of_them(tmp_path):
    description = make_sweep(tmp_path, lengths=(128,), seeds=(1,), trouble=False)
    for number, path in enumerate((tmp_path / "models").glob("*/evaluate-128.results.json")):
        results = json.loads(path.read_text())
        results["s_bleu_by_position"] = None  # a model without separators
        if number:
            del results["s_bleu_by_position"]  # made by an earlier version
        path.write_text(json.dumps(results))
    assert "by position" not in page_of(tmp_path, description)


def test_single_sentences_have_no_tables_of_groups(report, tmp_path):
    description = make_sweep(tmp_path, lengths=(1,), seeds=(1,), trouble=False)
    page = page_of(tmp_path, description)
    for words in ("Position in the group", "BLEU of groups"):
        assert words in report[0]
        assert words not in page
    assert "Position in the document" in page


def test_the_page_shows_the_number_of_updates(tmp_path):
    """A busy machine makes fewer updates in the same time."""
    description = make_sweep(tmp_path, lengths=(1,), seeds=(1, 2), trouble=False)
    assert "<dt>updates made</dt><dd>4,000</dd>" in page_of(tmp_path, description)
    path = next((tmp_path / "models").glob("*/checkpoints/results.json"))
    results = json.loads(path.read_text())
    path.write_text(json.dumps(results | {"num_updates": 2500}))
    assert "<dt>updates made</dt><dd>2,500 to 4,000</dd>" in page_of(tmp_path, description)


def test_the_page_is_self_contained(report):
    page, _ = report
    for tag, attributes in Tables(page).tags:
        assert tag not in ("script", "link", "iframe", "object")
        if tag == "img":
            assert attributes.pop("src").startswith("data:image/svg+xml;base64,")
        for name in ("src", "href", "xlink:href"):
            value = attributes.get(name, "")
            assert not re.match(r"\w+:|//", value), value
    assert "url(http" not in page
    assert "@import" not in page
    assert page.count("<figure>") == 4
    for image in re.findall(r'base64,([^"]+)"', page):
        svg = base64.b64decode(image).decode()
        assert not re.search(r'(?:href="|url\()(?!#)', svg)


def test_measured_and_published_stand_in_two_tables(tmp_path):
    description = make_sweep(tmp_path, lengths=(128, 256), seeds=(1, 2), trouble=False)
    columns = {"d_bleu@256": "L = 256", "attention_entropy": "entropy", "d_bleu@64": "L = 64"}
    rows = {"softmax": [31.19, None, 1.5], "theirs": ["diverges <1>", 1.6, None]}
    published = {"title": "Table 9", "source": "a paper", "columns": columns, "rows": rows}
    description = dataclasses.replace(description, published=published)
    description = write_description(tmp_path, description)
    page = page_of(tmp_path, description)
    measured, theirs = Tables(page).tables[:2]
    assert measured[0] == theirs[0] == ["", "L = 256", "entropy", "L = 64"]
    assert list(map(itemgetter(0), measured)) == list(map(itemgetter(0), theirs))
    assert list(map(itemgetter(0), theirs[1:])) == ["softmax", "theirs", "reluformer", "sparsemax"]
    assert theirs[1:3] == [
        ["softmax", "31.19", "–", "1.50"],
        ["theirs", "diverges <1>", "1.60", "–"],
    ]
    assert theirs[3] == ["reluformer", "–", "–", "–"]
    records = csv_rows(tmp_path / "results.csv")
    long = find(records, "mean", "softmax", 256)
    short = find(records, "mean", "softmax", 128)
    bleu = f"{fixed(long['d_bleu'])}|seeds {', '.join(scores(records, 'softmax', 256))}"
    assert measured[1] == ["softmax", bleu, fixed(short["attention_entropy"]), "–"]
    assert measured[2] == ["theirs", "–", "–", "–"]
    assert "<title>Table 9</title>" in page
    card = json.loads((tmp_path / "card.json").read_text())
    assert card["published"]["rows"]["softmax"] == [31.19, None, 1.5]
    assert len(card["measured"]) == 6
    [entry] = [e for e in card["measured"] if (e["attention"], e["length"]) == ("softmax", 256)]
    assert entry["d_bleu"] == float(long["d_bleu"]) and entry["status"] == "done"
    assert card["settings"]["budget"] == "4000u"
    # Another run in the same folder without --published keeps them.
    again = write_description(tmp_path, dataclasses.replace(description, published=None))
    assert again.published == published == read_description(tmp_path).published


def test_published_figures_are_read_from_yaml(tmp_path):
    path = tmp_path / "table.yaml"
    good = "title: T\nsource: S\ncolumns: {d_bleu: BLEU}\nrows: {a: [34.22]}\n"
    path.write_text(good)
    assert read_published(str(path))["rows"] == {"a": [34.22]}
    for wrong, reason in (
        ("", "expected title and source"),
        (good.replace("title", "name"), "expected title and source"),
        (good.replace("[34.22]", "[34.22, 1]"), "rows: a: expected title"),
        (good.replace("[34.22]", "[[]]"), "rows: a: expected title"),
        (good.replace("d_bleu", "d_bleu@x"), "columns: d_bleu@x: expected title"),
        (good.replace("source: S", "source: [1]"), "source: expected title"),
        ("a: [", "while parsing"),
    ):
        path.write_text(wrong)
        with pytest.raises(DataError, match=f"^--published {path}: {reason}"):
            read_published(str(path))
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_published(str(tmp_path / "none.yaml"))


def test_memories_are_shown_by_network_and_size(tmp_path):
    description = make_sweep(tmp_path, lengths=(1,), seeds=(1, 2), trouble=False)
    networks = {"softmax": ("relu", 64), "reluformer": ("relu", 256), "sparsemax": ("silu", 64)}
    for path in (tmp_path / "models").glob("*/evaluate-1.results.json"):
        network, size = networks[path.parent.name.split("-")[0]]
        seed = int(path.parent.name[-1])
        overall = {"variance_ratio": 0.25 + seed / 100, "anisotropy": 0.5}
        if network == "relu":  # signed weights have no shares
            overall |= {"null_fraction": 0.125, "top_sums": {"0.2": 0.3, "1": 0.6, "100": 1.0}}
        statistics = {"feed_forward": network, "overall": overall, "modules": {"a": {"size": size}}}
        path.with_name("evaluate-1.memory.json").write_text(json.dumps(statistics))
    page = page_of(tmp_path, description)
    rows = Tables(page).with_title("network", "anisotropy")
    assert [row[:2] for row in rows] == [["relu", "64"], ["relu", "256"], ["silu", "64"]]
    assert rows[0][3:] == ["0.265", "0.500", "12.5%", "0.300", "0.600", "–"]
    assert rows[2][3:] == ["0.265", "0.500", "–", "–", "–", "–"]
    assert "<figcaption>" not in page  # with one length, nothing is plotted over lengths


def test_commands_and_versions_are_shown(report):
    page, rows = report
    assert "relu-nmt-sweep data --budget 4000u -- --max-tokens 4096" in page
    assert page.count("relu-nmt-train ") >= 27
    for word in ("torch", "sacrebleu", "CPU", "revision", "Signature", "Some CPU"):
        assert word in page
    row = find(rows, "cell", "softmax", 128, 1)
    assert row["train_command"].startswith("relu-nmt-train ")
    assert row["d_bleu_signature"].startswith("nrefs:1|")


def test_mixtures_have_one_model_for_all_lengths(tmp_path):
    description = make_sweep(
        tmp_path, lengths=(1, 128), seeds=(1,), mixture=(1, 64, 128), trouble=False
    )
    page = page_of(tmp_path, description)
    tables = Tables(page)
    assert tables.tables[0][0] == ["attention, evaluated at tokens", "sentences", "128"]
    assert "6 evaluations of 3 models: 6 done." in page
    lengths = [row[:2] for row in tables.with_title("limit L")]
    assert lengths == [
        ["sentences", "training"],
        ["sentences", "test"],
        ["64", "training"],
        ["128", "training"],
        ["128", "test"],
    ]
    assert "1,64,128" in page
    # One seed: no interval over seeds, and training has no length to be plotted against.
    assert "seeds|" not in tables.tables[0][1][1]
    assert "training speed, tokens" not in page


def test_the_report_names_the_models_to_start_from(tmp_path):
    description = make_sweep(tmp_path, lengths=(128,), seeds=(1,))
    first = tmp_path / "first"
    page = page_of(tmp_path, varied(description, start_from=str(first)))
    note = f"<dt>starts from</dt><dd>the sentence models of {first}, "
    assert f"{note}unknown per model</dd>" in page
    write_description(first, varied(description, budget="20m"))
    page = page_of(tmp_path, varied(description, start_from=str(first)))
    assert f"{note}20 minutes per model</dd>" in page


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_a_browser_shows_the_report(report, tmp_path):
    page, _ = report
    (tmp_path / "report.html").write_text(page, "utf-8")
    quiet = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    quiet += "--disable-background-networking --disable-component-update --disable-sync"
    command = ["chromium", *quiet.split(), f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    done = subprocess.run(
        [*command, f"file://{tmp_path / 'report.html'}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    parsed = Tables(done.stdout)
    assert parsed.tables == Tables(page).tables
    assert done.stdout.count("<img ") == page.count("<img ") == 4
