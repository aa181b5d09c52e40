"""The names of statistics: one table defines them for logs, files, pages and documentation."""

import math
import re
from pathlib import Path

from relu_nmt.applications.attention_statistics import OF_ATTENTION
from relu_nmt.applications.layer_statistics import OF_MEMORIES
from relu_nmt.applications.statistics import ANALYZED, NUM_FREQUENT, STATISTICS, definitions
from relu_nmt.applications.sweep.results import MEMORIES, WEIGHTS
from relu_nmt.applications.weight_statistics import DEFINITIONS
from relu_nmt.attention.records import LOGGED
from relu_nmt.attention.regularizer import NULL_SUM

GUIDE = (Path(__file__).parents[4] / "docs" / "reference" / "statistics.md").read_text("utf-8")


def test_every_name_in_logs_and_files_is_defined():
    measured = " ".join([*WEIGHTS, *MEMORIES]).split()  # by a sweep
    assert {*LOGGED, *ANALYZED, *measured} <= STATISTICS.keys()
    for texts in (OF_ATTENTION, OF_MEMORIES, DEFINITIONS):
        shared = texts.keys() & STATISTICS.keys()
        assert {name: texts[name] for name in shared} == definitions(shared)


def test_the_guide_lists_the_logged_statistics():
    rows = re.search(r"\| STATISTIC \|.*\n\|[- |]+\n((?:\|.*\n)+)", GUIDE).group(1)
    cells = re.findall(r"^\|([^|]*)\|", rows, re.MULTILINE)
    assert re.findall("`(.*?)`", "".join(cells)) == list(LOGGED)


def test_the_threshold_of_null_rows_is_the_one_in_the_formula():
    bound = STATISTICS["null_fraction"].formula.partition("<= ")[2]
    assert math.isclose(float(bound), NULL_SUM)


def test_the_number_of_frequent_words_is_the_one_in_the_definition():
    assert f"the {NUM_FREQUENT} most" in STATISTICS["frequent"].definition


def test_labels_name_the_unit():
    assert STATISTICS["entropy"].label == "entropy, nats"
    assert STATISTICS["sum"].label == "row sum"
