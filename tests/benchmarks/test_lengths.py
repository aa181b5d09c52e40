"""benchmarks/lengths.py: the cases, their computation, and the written files."""

import contextlib
import sys

import pytest
import torch

from tests.commands import command_line
from tests.example_modules import example_modules
from tests.outputs import csv_rows
from tests.ranks import errors_of, run_ranks


@contextlib.contextmanager
def lengths_module():
    with example_modules("../benchmarks", ["measuring", "lengths"]) as modules:
        yield modules.lengths


@pytest.fixture
def lengths():
    with lengths_module() as module:
        yield module


def words_of(*flags):
    small = ["--shape", "1,16,2", "--tokens", "96", "--lengths", "32", "--rounds", "1"]
    return command_line(["lengths.py", small, flags])


def arguments_of(lengths, monkeypatch, *flags):
    monkeypatch.setattr(sys, "argv", words_of(*flags))
    return lengths.parse_arguments()


def test_every_back_end_that_runs_here_with_and_without_checkpointing(lengths, monkeypatch):
    arguments = arguments_of(lengths, monkeypatch, "--lengths", "64", "32")
    labels = [(c.what, c.length, c.label) for c in lengths.cases(arguments)]
    decoding = 3 + 2
    assert len(labels) == len(set(labels)) == 2 * (2 * 3 + 2 * 2 + decoding)
    reluformer = "reluformer:gamma=2, reference"
    assert ("training", 32, f"{reluformer}, checkpointing") in labels
    assert ("decoding", 64, "softmax, fused") in labels
    assert "triton" not in str(labels)
    arguments = arguments_of(
        lengths, monkeypatch, "--backends", "auto", "--document-attention", "full", "aligned",
        "--what", "training", "--attentions", "softmax", "--steps", "plain", "graph",
    )  # fmt: skip
    labels = [case.label for case in lengths.cases(arguments)]
    assert len(labels) == 8 and "softmax, auto, aligned, checkpointing, graph" in labels


def test_lines_are_labeled_by_positions(lengths, monkeypatch):
    flags = "--what training --attentions softmax --backends auto --positions sinusoidal rotary"
    arguments = arguments_of(lengths, monkeypatch, flags.split())
    by_label = {case.label: case for case in lengths.cases(arguments)}
    assert list(by_label) == [
        *("softmax, auto", "softmax, auto, checkpointing"),
        *("softmax, auto, rotary", "softmax, auto, checkpointing, rotary"),
    ]
    model = lengths.make_model(arguments, by_label["softmax, auto, rotary"])
    assert model.config.positions == "rotary"


@pytest.mark.parametrize("kind", ["full", "aligned"])
@pytest.mark.parametrize("attention", ["softmax", "reluformer:gamma=2"])
def test_a_step_runs_on_the_given_number_of_tokens(lengths, monkeypatch, kind, attention):
    arguments = arguments_of(lengths, monkeypatch, "--global-layers", "1")
    for what, tokens in (("training", 96), ("decoding", 32)):
        case = lengths.Case(what, 32, attention, "reference", False, kind, "plain", "sinusoidal")
        run, counted = lengths.make_run(arguments, case)
        run()
        assert counted == tokens


@pytest.mark.filterwarnings("ignore")  # the compiler's own, which would end it as errors
@pytest.mark.slow
def test_a_compiled_step_has_the_gradients_of_the_plain_one(lengths, monkeypatch):
    arguments = arguments_of(lengths, monkeypatch)
    batch = lengths.collate(lengths.documents(32, 96), [0])
    gradients = {}
    for step in ("plain", "compiled"):
        case = lengths.Case(
            "training", 32, "softmax", "reference", False, "full", step, "sinusoidal"
        )
        model = lengths.make_model(arguments, case)
        objective = lengths.TranslationObjective(model, 0.1, lengths.AttentionRegularizerConfig())
        off = torch.autocast("cpu", enabled=False)
        lengths.training_step(objective, batch, off, case)()
        gradients[step] = [parameter.grad for parameter in model.parameters()]
    torch.testing.assert_close(gradients["plain"], gradients["compiled"])


def test_a_case_that_runs_out_of_memory_has_no_figures(lengths, tmp_path, monkeypatch):
    fine = lengths.Case("training", 32, "softmax", "fused", False, "full", "plain", "sinusoidal")
    large = lengths.Case(
        "training", 64, "softmax", "reference", False, "full", "plain", "sinusoidal"
    )
    rounds = [lengths.Figures(100, seconds, 400_000) for seconds in (0.5, 0.1, 0.2)]
    out_of_memory = lengths.Figures(problem="out of memory")
    figures = {
        fine: lengths.medians(rounds),
        large: lengths.medians([lengths.Figures(100, 0.1, 1), out_of_memory]),
    }
    assert lengths.per_token(figures[fine]) == pytest.approx((2000, 4))
    assert "| training: softmax, reference | 64 | out of memory |" in lengths.markdown(figures)
    arguments = arguments_of(lengths, monkeypatch, "--csv", str(tmp_path / "x.csv"))
    lengths.write_csv({fine: [figures[fine]], large: [out_of_memory]}, arguments)
    first, second = csv_rows(tmp_path / "x.csv")
    assert (first["us_per_token"], first["length"], first["recompute"]) == ("2000.0", "32", "False")
    assert (second["us_per_token"], second["problem"]) == ("", "out of memory")
    lengths.plot(figures, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_measurements_in_the_file_are_not_repeated(lengths, tmp_path, monkeypatch, capsys):
    file = tmp_path / "x.csv"
    flags = ["--what", "decoding", "--backends", "reference", "--lengths", "32", "64"]
    cases = []

    def measured(arguments, case):
        cases.append((case.length, case.attention))
        if len(cases) == 6:
            raise KeyboardInterrupt
        if case.length == 64 and case.attention == "softmax":
            return lengths.Figures(problem="out of memory")
        return lengths.Figures(96, len(cases) / 10, 1000 * len(cases))

    monkeypatch.setattr(lengths, "measured", measured)
    arguments = arguments_of(lengths, monkeypatch, flags, "--rounds", "2", "--csv", str(file))
    with pytest.raises(KeyboardInterrupt):
        lengths.table(arguments)
    rows = lengths.table(arguments)
    assert len(cases) == 4 + 3 + 1  # the stopped one is measured again
    [lost] = [figures for figures in rows.values() if figures.problem]
    assert lost.problem == "out of memory"
    assert lengths.table(arguments) == rows and len(cases) == 8
    # Other cases join the file and its plot.
    options = arguments_of(lengths, monkeypatch, "--what", "training", "--csv", str(file))
    extended = lengths.table(options)
    assert len(extended) > len(rows) and extended.items() >= rows.items()
    other = arguments_of(lengths, monkeypatch, flags, "--tokens", "64", "--csv", str(file))
    with pytest.raises(SystemExit) as end:
        lengths.table(other)
    assert end.value.code == 2
    assert "made with --shape 1,16,2 --global-layers 2 --tokens 96" in capsys.readouterr().err


@pytest.mark.slow
def test_a_figure_comes_from_a_process_of_its_own(lengths, monkeypatch):
    arguments = arguments_of(lengths, monkeypatch)
    case = lengths.Case(
        "training", 32, "softmax", "reference", False, "full", "plain", "sinusoidal"
    )
    figures = lengths.measured(arguments, case)
    assert figures.problem == "" and figures.tokens == 96
    assert figures.seconds > 0 and figures.peak_bytes is not None
    broken = lengths.measured(arguments, lengths.replace(case, step="graph"))
    assert broken.problem == "a CUDA graph needs a GPU" or torch.cuda.is_available()


@pytest.mark.parametrize("what", ["training", "decoding"])
def test_memory_counts_the_whole_batch_even_for_short_documents(tmp_path, quick_python, what):
    words = words_of("--shape", "1,64,2", "--tokens", "16384", "--most-memory", "1000")

    def work():
        with lengths_module() as lengths:
            sys.argv = words
            fields = ("softmax", "reference", False, "full", "plain", "sinusoidal")
            figures = lengths.measure(lengths.parse_arguments(), lengths.Case(what, 64, *fields))
        assert not figures.problem
        states = figures.tokens * 64 * 4  # bytes of one layer's states
        assert figures.peak_bytes > (8 if what == "training" else 2) * states

    assert run_ranks(quick_python, work, 1, tmp_path, joined=False) == [0], errors_of(tmp_path)
