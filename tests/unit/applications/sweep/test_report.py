"""The report of invented results: complete, escaped, self-contained, equal to the CSV."""

import base64
import csv
import dataclasses
import itertools
import json
import re
import shutil
import statistics
import subprocess
from html.parser import HTMLParser

import pytest

from relu_nmt.applications.sweep.plan import (
    Published,
    models_in,
    read_description,
    read_published,
    write_description,
)
from relu_nmt.applications.sweep.report import lines_over_lengths, read_report, write_report
from relu_nmt.applications.sweep.results import PENDING
from relu_nmt.applications.sweep.settings import SweepSettings
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.recipes.sweep import run
from tests.unit.applications.sweep.made_results import make_sweep


class Tables(HTMLParser):
    """The tables of a page as rows of cell texts, with ``|`` before small print."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.tags, self.in_cell = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self.in_cell = True
        elif tag == "small":
            self.handle_data("|")

    def handle_data(self, data):
        if self.in_cell:
            self.tables[-1][-1][-1] += data

    def handle_endtag(self, tag):
        self.in_cell = self.in_cell and tag not in ("td", "th")

    def with_title(self, *titles):
        """Return the rows of the first table whose header has all the titles."""
        for header, *rows in self.tables:
            if all(any(title in cell for cell in header) for title in titles):
                return rows
        raise AssertionError(titles)


def page_of(folder, description):
    write_report(folder, description)
    return (folder / "report.html").read_text("utf-8")


def varied(description, **values):
    """Return the description with other settings."""
    settings = dataclasses.replace(description.settings, **values)
    return dataclasses.replace(description, settings=settings)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The page and the rows of the CSV of a sweep in which some models failed."""
    folder = tmp_path_factory.mktemp("made")
    description = make_sweep(folder)
    page = page_of(folder, description)
    with open(folder / "results.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return page, rows


def shown(value, decimals=2, signed=False):
    text = f"{float(value):+.{decimals}f}" if signed else f"{float(value):,.{decimals}f}"
    return text.replace("-", "\u2212")


def find(rows, kind, attention, length, seed=""):
    wanted = {"row": kind, "attention": attention, "length": str(length), "seed": str(seed)}
    [row] = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    return row


def scores(rows, attention, length, column="d_bleu"):
    """Return the scores of the seeds that have one."""
    wanted = {"row": "cell", "attention": attention, "length": str(length)}
    found = [row[column] for row in rows if wanted.items() <= row.items()]
    return [shown(score) for score in found if score]


def gains(rows, attention, length):
    """Return the gain of each seed over that of softmax, where both have a score."""
    pairs = [
        [find(rows, "cell", name, length, seed)["d_bleu"] for name in (attention, "softmax")]
        for seed in (1, 2, 3)
    ]
    found = [float(own) - float(base) for own, base in pairs if own and base]
    return ", ".join(shown(gain, signed=True) for gain in found)


def test_the_main_table_has_the_numbers_of_the_csv(made):
    page, rows = made
    header, *table = Tables(page).tables[0]
    assert header == ["attention, L in tokens", "128", "256", "512"]
    assert [row[0] for row in table] == [
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
                expected = shown(row["gain"], signed=True)
                expected += f"|seeds {gains(rows, attention, length)}"
                expected += f"|± {shown(row['gain_document_interval'])} documents"
            elif cell == "diverged":
                assert (row["d_bleu"], row["seeds_diverged"]) == ("", "3")
                continue
            else:
                expected = (
                    f"{shown(row['d_bleu'])}|seeds {', '.join(scores(rows, attention, length))}"
                )
                expected += f"|± {shown(row['d_bleu_document_interval'])} documents"
            assert cell.startswith(expected)
            compared += 1
    assert compared == 7 + 4
    assert table[0][3].endswith("|1 of 3 failed")
    assert table[3][3].endswith("|of seeds 1,2")


def test_every_model_has_its_row(made):
    page, rows = made
    table = Tables(page).with_title("outcome", "logs")
    assert len(table) == 27
    for attention, _, seed, length, bleu, s_bleu, chrf, updates, *_ in table:
        row = find(rows, "cell", attention, length, seed)
        for text, column in ((bleu, "d_bleu"), (s_bleu, "s_bleu"), (chrf, "chrf")):
            assert text == (shown(row[column]) if row[column] else "–")
        assert updates == shown(row["updates"], 0)


def test_the_other_tables_have_the_numbers_of_the_csv(made):
    page, rows = made
    tables = Tables(page)
    for attention, length, *cells in tables.with_title("encoder|entropy, nats"):
        row = find(rows, "mean", attention, length)
        assert cells[0] == shown(row["encoder_entropy"])
        assert cells[7] == shown(100 * float(row["cross_zero_fraction"]), 1) + "%"
        assert cells[9] == shown(row["attention_entropy"])
    for attention, length, *cells in tables.with_title("training|tokens/s"):
        row = find(rows, "mean", attention, length)
        assert cells[0] == shown(row["train_tokens_per_second"], 0)
        assert cells[4] == shown(float(row["train_memory_bytes"]) / 1e6, 0)
        assert cells[5] == shown(row["decode_tokens_per_second"], 0)
        baseline = find(rows, "mean", "softmax", length)
        for column, cell in (("train", cells[1]), ("decode", cells[6])):
            speeds = [float(one[f"{column}_tokens_per_second"]) for one in (row, baseline)]
            assert cell == shown(speeds[0] / speeds[1])
            assert (cell == "1.00") == (attention == "softmax" or column == "decode")
    header = next(
        t[0] for t in tables.tables if t[0][:2] == ["attention", "L, tokens"] and "-" in t[0][2]
    )
    buckets = [title.split("|")[0] for title in header[2:]]
    for attention, length, *cells in tables.with_title(buckets[0], buckets[1]):
        row = find(rows, "mean", attention, length)
        assert cells == [shown(row[f"d_bleu[{bucket}]"]) for bucket in buckets]
    for length, split, groups, mean, *_ in tables.with_title("limit L"):
        row = find(rows, "cell", "softmax", length, 1)
        prefix = "train" if split == "training" else "test"
        assert groups == shown(row[f"{prefix}_groups"], 0)
        assert mean == shown(row[f"{prefix}_mean_tokens"], 1)


def test_the_tables_of_positions_have_the_numbers_of_the_csv(made):
    page, rows = made
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
                    assert cell.strip() == f"{shown(score)}|{shown(sentences, 0)} sentences"
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


def test_single_sentences_have_no_tables_of_groups(made, tmp_path):
    description = make_sweep(tmp_path, lengths=(1,), seeds=(1,), trouble=False)
    page = page_of(tmp_path, description)
    for words in ("Position in the group", "BLEU of groups"):
        assert words in made[0]
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


def test_errors_are_listed_and_escaped(made):
    page, _ = made
    assert "RuntimeError: &lt;out of memory&gt; &amp; more" in page
    assert "<out of memory>" not in page
    table = Tables(page).with_title("what went wrong")
    assert ["softmax length 512 seed 3", "failed", "RuntimeError: <out of memory> & more"] in table
    # The same error is listed once: sparsemax at two lengths with three seeds.
    names = [f"sparsemax length 256 seed {seed}" for seed in (1, 2, 3)]
    assert [row[0] for row in table[1:]] == ["; ".join([*names, "3 more"])]


def test_the_page_is_self_contained(made):
    page, _ = made
    for tag, attributes in Tables(page).tags:
        assert tag not in ("script", "link", "iframe", "object")
        if tag == "img":
            assert attributes.pop("src").startswith("data:image/svg+xml;base64,")
        for name in ("src", "href", "xlink:href"):
            value = attributes.get(name, "")
            assert not re.match(r"\w+:|//", value), value
    assert "url(http" not in page
    assert "@import" not in page
    assert page.count("<figure>") == 5
    for image in re.findall(r'base64,([^"]+)"', page):
        svg = base64.b64decode(image).decode()
        assert not re.search(r'(?:href="|url\()(?!#)', svg)


def test_measured_and_published_stand_in_two_tables(tmp_path):
    description = make_sweep(tmp_path, lengths=(128, 256), seeds=(1, 2), trouble=False)
    columns = {"d_bleu@256": "L = 256", "attention_entropy": "entropy", "d_bleu@64": "L = 64"}
    rows = {"softmax": [31.19, None, 1.5], "theirs": ["diverges <1>", 1.6, None]}
    published = Published("Table 9", "a paper, Table 9", columns, rows)
    description = dataclasses.replace(description, published=published)
    description = write_description(tmp_path, description)
    page = page_of(tmp_path, description)
    measured, theirs = Tables(page).tables[:2]
    assert measured[0] == theirs[0] == ["", "L = 256", "entropy", "L = 64"]
    assert [row[0] for row in measured] == [row[0] for row in theirs]
    assert [row[0] for row in theirs[1:]] == ["softmax", "theirs", "reluformer", "sparsemax"]
    assert theirs[1:3] == [
        ["softmax", "31.19", "–", "1.50"],
        ["theirs", "diverges <1>", "1.60", "–"],
    ]
    assert theirs[3] == ["reluformer", "–", "–", "–"]
    with open(tmp_path / "results.csv", encoding="utf-8", newline="") as file:
        records = list(csv.DictReader(file))
    long, short = (find(records, "mean", "softmax", length) for length in (256, 128))
    bleu = f"{shown(long['d_bleu'])}|seeds {', '.join(scores(records, 'softmax', 256))}"
    assert measured[1] == ["softmax", bleu, shown(short["attention_entropy"]), "–"]
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
    assert read_published(str(path)).value("a", "d_bleu") == 34.22
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
        found = {"feed_forward": network, "overall": overall, "modules": {"a": {"size": size}}}
        path.with_name("evaluate-1.memory.json").write_text(json.dumps(found))
    page = page_of(tmp_path, description)
    rows = Tables(page).with_title("network", "anisotropy")
    assert [row[:2] for row in rows] == [["relu", "64"], ["relu", "256"], ["silu", "64"]]
    assert rows[0][3:] == ["0.265", "0.500", "12.5%", "0.300", "0.600", "–"]
    assert rows[2][3:] == ["0.265", "0.500", "–", "–", "–", "–"]
    captions = re.findall("<figcaption>(.*?)</figcaption>", page)
    # With one length, nothing is plotted over lengths.
    assert [caption.split(" ")[0] for caption in captions] == ["Scores", "Sum", "Over"]


def test_the_course_of_a_diverged_training_is_shown_too(tmp_path):
    description = make_sweep(tmp_path, lengths=(256,), seeds=(1,))
    lines = ["$ relu-nmt-train ...", '{"epoch": 1, "num_updates": 9, "loss": 3}', '{"telemetry": {']
    for updates, scale in ((100, 1.0), (200, 3.0)):
        scalars = {f"attention/encoder.0.{head}/query_norm": scale + head for head in range(2)}
        scalars |= {"attention/encoder.0.0/output_square": None, "attention/cross.0.0/key_norm": 2}
        for layer, name in itertools.product(range(2), ("1", "2-3", "4-7")):
            mean = sum(map(int, name.split("-"))) / len(name.split("-"))
            place = f"attention/decoder.{layer}.n{name}"
            scalars[f"{place}/output_square"] = 5 * mean ** (scale - 1)
        line = {"epoch": 1, "num_updates": updates, "telemetry": scalars}
        lines.append(json.dumps(line))
    log = tmp_path / "models" / "sparsemax-L256-seed1" / "train.log"
    log.write_text("\n".join([*lines, '{"epoch": 1, "telemetry": {"att']))
    table = Tables(page_of(tmp_path, description)).with_title("largest gradient norm", "exponent")
    assert [row[:4] for row in table] == [
        [name, "1", "4,000", "2.50"] for name in ("softmax", "reluformer", "sparsemax")
    ]
    assert table[0][4:] == ["–, –"] * 4
    assert table[2][4:] == ["–, –", "1.50, 3.50", "2.00, 2.00", "0.00, 2.00"]
    [cell] = [c for c in read_report(tmp_path, description).cells if c.status == "diverged"]
    assert cell.course["query_norm"] == {100: 1.5, 200: 3.5}
    assert cell.course["gradient_norm"] == {50: 2.5, 100: 1.25}


def test_commands_and_versions_are_shown(made):
    page, rows = made
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


def test_missing_results_are_pending(tmp_path):
    description = make_sweep(tmp_path, lengths=(128,), seeds=(1,), trouble=False)
    wider = varied(description, seeds=(1, 2))
    data = read_report(tmp_path, wider)
    assert [cell.status for cell in data.cells] == ["done", PENDING] * 3
    page = page_of(tmp_path, wider)
    assert "1 of 2 not begun" in page
    assert len(models_in(tmp_path)) == 3
    assert read_description(tmp_path) == description


def test_documents_of_a_bucket_are_counted_where_there_are_results(tmp_path):
    description = make_sweep(tmp_path, lengths=(128,), seeds=(1,), trouble=False)
    for name in ("evaluate-128.json", "evaluate-128.txt"):
        next((tmp_path / "models").glob(f"softmax*/{name}")).unlink()
    page = page_of(tmp_path, description)
    [header] = (
        header
        for header, *_ in Tables(page).tables
        if "L, tokens" in header[1:2] and "documents" in header[2]
    )
    assert not [title for title in header if "\u2013 documents" in title]


def test_many_translations_that_were_cut_off_are_counted_in_full(tmp_path):
    description = make_sweep(tmp_path, lengths=(128,), seeds=(1, 2), trouble=False)
    paths = sorted((tmp_path / "models").glob("*/evaluate-128.results.json"))
    for path, number in zip(paths, (1234, 1235, 2000, 3000, 0, 1), strict=True):
        path.write_text(json.dumps({**json.loads(path.read_text()), "at_limit": number}))
    page = page_of(tmp_path, description)
    found = re.findall(r"([\d.,e+]+) cut off", page)
    assert found == ["2,500", "1,234.5", "0.5"]


def test_a_report_without_results(tmp_path):
    description = make_sweep(tmp_path, lengths=(128,), seeds=(1,))
    shutil.rmtree(tmp_path / "models")
    page = page_of(tmp_path, description)
    assert "3 evaluations of 3 models: 3 not begun." in page


def test_a_bleu_below_one_does_not_converge(tmp_path):
    description = make_sweep(tmp_path, lengths=(128,), seeds=(1,), trouble=False)
    path = next((tmp_path / "models").glob("softmax*/evaluate-128.txt"))
    path.write_text(re.sub(r"w\d+", "wrong", path.read_text()))
    results = json.loads(path.with_suffix(".results.json").read_text())
    results["d_bleu"]["score"] = 0.0
    path.with_suffix(".results.json").write_text(json.dumps(results))
    page = page_of(tmp_path, description)
    assert Tables(page).tables[0][1] == ["softmax", "not converged"]


def set_bleu(folder, name, *by_seed):
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
    assert "<img" not in page  # a course of one update is no curve
    assert not re.search(r"<h2>[^<]*</h2>\s*(<p class=.note|<h2)", page)
    assert page.count("d-BLEU below 1</td>") == 1


def test_a_single_length_has_no_chart(tmp_path):
    """Only one of two lengths has results."""
    description = make_sweep(tmp_path, lengths=(128, 256), seeds=(1,), trouble=False)
    for path in (tmp_path / "models").glob("*/evaluate-256.*"):
        path.unlink()
    page = page_of(tmp_path, description)
    captions = re.findall("<figcaption>(.*?)</figcaption>", page)
    assert [caption.split(".")[0] for caption in captions] == [
        "Over updates, models of the first seed"
    ]


@pytest.mark.parametrize("seeds", [(1, 2), (1, 2, 3)])
def test_few_seeds_are_dots_without_interval_and_bold(tmp_path, seeds):
    description = make_sweep(tmp_path, lengths=(128, 256), seeds=seeds, trouble=False)
    data = read_report(tmp_path, description)
    lines = lines_over_lengths(data, "d_bleu", 1.0)
    for line, system in zip(lines, data.systems, strict=True):
        own = [c for c in data.cells if c.system == system]
        places = {128: 0, 256: 1}
        assert line.errors is None
        assert line.dots == [(places[c.length], c.record["d_bleu"]) for c in own]
    page = page_of(tmp_path, description)
    assert 'class="best"' not in page and "± 0" not in page
    assert not re.search(r"± [\d.]+ seeds", page)


def test_bold_needs_four_seeds_and_significance(tmp_path):
    description = make_sweep(tmp_path, lengths=(128,), seeds=(1, 2, 3, 4), trouble=False)
    page = page_of(tmp_path, description)
    # reluformer has 2 % more correct words than softmax, in each of four seeds.
    [best] = re.findall(r'class="best">([\d.]+)<', page)
    found = {row[0]: row[1].split("|")[0] for row in Tables(page).tables[0][1:]}
    assert found["reluformer"] == best
    # Seeds that are as often worse as better are not significant, even if documents agree.
    for name, scores_of in (("reluformer", (90, 50, 90, 52)), ("softmax", (70, 71, 70, 71))):
        set_bleu(tmp_path, name, *scores_of)
    assert 'class="best"' not in page_of(tmp_path, description)


def test_no_interval_of_a_score_reaches_below_0(tmp_path):
    description = make_sweep(tmp_path, lengths=(128, 256), seeds=(1, 2, 3, 4), trouble=False)
    by_seed = (1.5, 1.5, 1.5, 21.5)
    set_bleu(tmp_path, "softmax", *by_seed)
    # Student's t with 3 degrees of freedom is 3.182.
    high = 6.5 + 3.182 * statistics.stdev(by_seed) / 2
    table = Tables(page_of(tmp_path, description)).tables[0]
    assert table[1][1].startswith(f"6.50|0.00 to {high:.2f} seeds|")
    [line, *_] = lines_over_lengths(read_report(tmp_path, description), "d_bleu", 1.0)
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
    data = read_report(tmp_path, description)
    assert {cell.status for cell in data.cells} == {"done"}
    weak = next(a for a in data.averages if (a.system.attention, a.length) == ("softmax", 128))
    [strong] = [c.record["d_bleu"] for c in weak.cells if c.model.seed == 1]
    assert weak.record["d_bleu"] == pytest.approx(strong / 2)


def test_an_evaluation_without_references_is_a_failed_cell(tmp_path):
    description = make_sweep(tmp_path, lengths=(128,), seeds=(1,), trouble=False)
    path = next((tmp_path / "models").glob("softmax*/evaluate-128.results.json"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "d_bleu": None}))
    cells = read_report(tmp_path, description).cells
    assert [cell.status for cell in cells] == ["failed", "done", "done"]
    assert "no d-BLEU" in cells[0].record["note"]


def test_gains_have_an_interval_over_seeds(made):
    _, rows = made
    base, own = (
        [float(find(rows, "cell", name, 128, seed)["d_bleu"]) for seed in (1, 2, 3)]
        for name in ("softmax", "reluformer")
    )
    row = find(rows, "mean", "reluformer", 128)
    gains = [b - a for a, b in zip(base, own, strict=True)]
    assert float(row["gain"]) == pytest.approx(statistics.mean(gains))
    # Student's t with 2 degrees of freedom is 4.303.
    expected = 4.303 * statistics.stdev(gains) / 3**0.5
    assert float(row["gain_seed_interval"]) == pytest.approx(expected)


@pytest.mark.parametrize("ending", [".results.json", ".attention.json"])
def test_damaged_results_are_a_failed_cell(tmp_path, ending):
    description = make_sweep(tmp_path, lengths=(128,), seeds=(1,), trouble=False)
    next((tmp_path / "models").glob(f"softmax*/evaluate-128{ending}")).write_text("{")
    data = read_report(tmp_path, description)
    assert [cell.status for cell in data.cells] == ["failed", "done", "done"]
    assert "cannot be read" in data.cells[0].record["note"]


def test_report_only_runs_nothing_from_python(tmp_path, capsys):
    make_sweep(tmp_path, lengths=(128,), seeds=(1,), trouble=False)
    settings = SweepSettings.of(save_dir=str(tmp_path), report_only=True)
    result = run(settings)
    assert result.exit_code == 0
    assert len(result.data.cells) == 3
    assert capsys.readouterr().out == f"report: {tmp_path / 'report.html'}\n"
    assert run(settings, progress=False).report.exists()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("found", [None, [1], {"metric": {}}, {"metric": {}, "counts": "x"}])
def test_damaged_statistics_are_a_failed_cell(tmp_path, found):
    description = make_sweep(tmp_path, lengths=(128,), seeds=(1,), trouble=False)
    path = next((tmp_path / "models").glob("softmax*/evaluate-128.results.json"))
    results = json.loads(path.read_text())
    path.write_text(json.dumps({**results, "document_statistics": found}))
    cells = read_report(tmp_path, description).cells
    assert [cell.status for cell in cells] == ["failed", "done", "done"]


def test_a_damaged_state_affects_only_its_model(tmp_path):
    description = make_sweep(tmp_path, lengths=(128,), seeds=(1,), trouble=False)
    path = next((tmp_path / "models").glob("softmax*/train.json"))
    path.write_text("{")
    with pytest.raises(DataError, match=r"train\.json: damaged .*; delete it to run the step"):
        read_report(tmp_path, description)
    path.unlink()
    data = read_report(tmp_path, description)
    assert [cell.status for cell in data.cells] == ["pending", "done", "done"]


def test_a_folder_keeps_to_its_data_and_remembers_attentions(tmp_path):
    description = make_sweep(tmp_path, lengths=(128,), seeds=(1,))
    merged = write_description(tmp_path, varied(description, attentions=("rela", "softmax")))
    # The baseline stays: each gain of the report is against it.
    assert merged.attentions == ("softmax", "reluformer", "sparsemax", "rela")
    with pytest.raises(ConfigError, match="its results have gen-subset test, not valid"):
        write_description(tmp_path, varied(description, gen_subset="valid"))
    next((tmp_path / "models").glob("*/train.json")).write_text("{}")
    with pytest.raises(DataError, match=r"train\.json: damaged"):
        models_in(tmp_path)


def test_a_folder_has_one_setting(tmp_path):
    description = make_sweep(tmp_path, lengths=(128,), seeds=(1,), trouble=False)
    other = varied(description, budget="9000u")
    with pytest.raises(ConfigError, match=r"made with .*4000.* where there is .*9000.* now"):
        write_description(tmp_path, other)
    # A mistake without results may be corrected.
    for path in (tmp_path / "models").glob("*/train.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "status": "failed"}))
    assert write_description(tmp_path, other).settings == other.settings


def test_the_report_names_the_models_to_start_from(tmp_path):
    description = make_sweep(tmp_path, lengths=(128,), seeds=(1,))
    first = tmp_path / "first"
    page = page_of(tmp_path, varied(description, start_from=str(first)))
    shown = f"<dt>starts from</dt><dd>the sentence models of {first}, "
    assert f"{shown}unknown per model</dd>" in page
    write_description(first, varied(description, budget="20m"))
    page = page_of(tmp_path, varied(description, start_from=str(first)))
    assert f"{shown}20 minutes per model</dd>" in page


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_a_browser_shows_the_report(made, tmp_path):
    page, _ = made
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
    assert done.stdout.count("<img ") == page.count("<img ") == 5
