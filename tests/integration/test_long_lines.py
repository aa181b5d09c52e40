"""A line that is too long for the model, or for the user, costs other lines nothing."""

import pytest

from relu_nmt.translator import Translator
from tests.commands import run_here
from tests.outputs import starting
from tests.tiny import save_tiny_model, tiny_task

MOST = 9
LONG = " ".join("1" * MOST)  # with its end one too many
TEXT = f"1 2 3\n{LONG}\n4 5\n"
SHORT = ("--max-len-b", "4", "--cpu")


@pytest.fixture(scope="module", params=["plain", "separated", "unread"])
def model(tmp_path_factory, request):
    """An untrained model that reads at most MOST tokens, and a separator if it is read."""
    task = tiny_task("12345")
    limit = MOST
    if request.param == "separated":
        task = task.with_sentence_separator()
        limit = MOST + 1
    if request.param == "unread":  # a model that starts from one without the symbol
        task = task.with_sentence_separator(task)
    path = tmp_path_factory.mktemp("long") / "model.safetensors"
    save_tiny_model(path, task, encoder_positions="learned", max_source_positions=limit)
    return path, limit


def test_interactive_gives_one_empty_line_and_tells_of_it(model):
    path, limit = model
    apart = run_here("interactive", "--path", path, SHORT, stdin="1 2 3\n4 5\n").stdout
    first, second, _ = apart.split("\n")
    done = run_here("interactive", "--path", path, SHORT, stdin=TEXT)
    assert done.stdout == f"{first}\n\n{second}\n"
    note = f"NOTE: 1 line of more than {limit} tokens: their translation is empty (line 2)"
    assert note in done.stderr


def test_a_line_of_the_longest_length_is_translated(model, tmp_path):
    fits = LONG.removesuffix(" 1")
    done = run_here("interactive", "--path", model[0], SHORT, stdin=f"{fits}\n")
    assert done.stdout.strip() and "empty" not in done.stderr
    (tmp_path / "text").write_text(f"{fits}\n1 2\n")
    flags = ("--path", model[0], "--max-doc-tokens", model[1], *SHORT)
    assert all(run_here("translate_document", tmp_path / "text", flags).stdout.split("\n")[:2])
    translations = Translator.from_checkpoint(model[0], device="cpu").translate([fits], max_len_b=4)
    assert translations == [done.stdout.strip()]


def test_fairseqs_lines_mark_it_by_its_score(model):
    flags = ("--format", "fairseq", *SHORT)
    lines = run_here("interactive", "--path", model[0], flags, stdin=TEXT).stdout.split("\n")
    sources = starting(lines, f"S-1\t{LONG}")
    assert sources and "H-1\t-inf\t" in lines and "D-1\t-inf\t" in lines


def test_a_document_keeps_its_other_lines(model, tmp_path):
    (tmp_path / "text").write_text(TEXT)
    flags = ("--path", model[0], "--max-doc-tokens", "1", *SHORT)
    done = run_here("translate_document", tmp_path / "text", flags)
    assert done.stdout.count("\n") == 3 and done.stdout.split("\n")[1] == ""
    assert "their translation is empty (line 2)" in done.stderr


def test_the_user_may_bound_and_cut_lines(model):
    flags = ("--path", model[0], *SHORT, "--max-source-length", "5")
    assert "NOTE: 1 line of more than 5 tokens" in run_here("interactive", flags, stdin=TEXT).stderr
    words = " ".join(LONG.split()[: 4 - (model[1] > MOST)])
    expected = run_here("interactive", "--path", model[0], SHORT, stdin=f"{words}\n").stdout
    done = run_here("interactive", flags, "--truncate-source", stdin=TEXT)
    assert done.stdout.split("\n")[1] == expected.split("\n")[0]
    assert "only their beginning is translated (line 2)" in done.stderr
