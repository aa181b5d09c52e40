"""The sections of the report about each model, its commands, and the machine."""

from collections.abc import Iterator

from relu_nmt.sweep.csv_report import CSV_NAME
from relu_nmt.sweep.folder import MODELS
from relu_nmt.sweep.page_parts import (
    UNKNOWN,
    Markup,
    Table,
    code,
    details,
    facts,
    heading,
    joined,
    link,
    number,
    paragraph,
    styled,
)
from relu_nmt.sweep.plan import EVALUATE, TRAIN
from relu_nmt.sweep.report_data import BAD, WORDS, ReportData, length_name
from relu_nmt.sweep.results import Cell
from relu_nmt.sweep.step_state import DONE


def models_section(data: ReportData) -> Iterator[Markup]:
    """Yield a row for every model and length."""
    yield heading("Every model")
    header = [
        *("attention", "trained on", "seed", "evaluated at", "d-BLEU", "s-BLEU", "chrF"),
        *("updates", "valid NLL", "outcome", "logs"),
    ]
    table = Table(header, text_columns=(1, 9, 10))
    for cell in data.cells:
        record = cell.record
        table.add(
            cell.training.attention,
            cell.training.trained_on,
            cell.training.seed,
            length_name(cell.length),
            *(number(record.get(name)) for name in ("d_bleu", "s_bleu", "chrf")),
            number(record.get("updates"), 0),
            number(record.get("valid_nll"), 3),
            _outcome(cell),
            _logs(cell),
        )
    yield table.html()
    yield paragraph(
        joined(
            "Valid NLL is per target token, base 2, of the last validation. All numbers of this "
            "page in full precision, one row per model and length: ",
            link(CSV_NAME, CSV_NAME),
            ".",
        ),
        "note",
    )
    yield from _notes(data)


def _outcome(cell: Cell) -> Markup:
    if cell.status == DONE:
        return joined("done")
    word = WORDS[cell.status]
    return styled(word, "bad") if cell.status in BAD else joined(word)


def _logs(cell: Cell) -> Markup:
    folder = f"{MODELS}/{cell.training.name}"
    parts = []
    if "train_command" in cell.record:
        parts.append(link("training", f"{folder}/{TRAIN}.log"))
    if "evaluate_command" in cell.record:
        parts += [
            " " if parts else "",
            link("evaluation", f"{folder}/{EVALUATE}-{cell.length}.log"),
        ]
    return joined(*parts) if parts else joined(UNKNOWN)


def _notes(data: ReportData) -> Iterator[Markup]:
    """Yield the last log line of everything that went wrong."""
    bad = [cell for cell in data.cells if cell.status in BAD]
    if not bad:
        return
    table = Table(["what went wrong", "outcome", "last line of the log"], text_columns=(1, 2))
    seen = set()
    for cell in bad:
        record = cell.record
        name = f"{cell.training} at {cell.length}"
        if record["note"] and "evaluate_command" not in record:
            name = str(cell.training)
        if name not in seen:
            seen.add(name)
            note = Markup(f'<span class="wrapped">{joined(record["note"])}</span>')
            table.add(name, _outcome(cell), note)
    yield table.html()


def commands_section(data: ReportData) -> Iterator[Markup]:
    """Yield every command, folded away by model."""
    yield heading("Commands")
    yield code(_shell_words(data))
    by_training: dict[str, dict[str, None]] = {}
    for cell in data.cells:
        found = by_training.setdefault(str(cell.training), {})
        for name in ("train_command", "evaluate_command"):
            if name in cell.record:
                found[cell.record[name]] = None
    for name, commands in by_training.items():
        if commands:
            yield details(name, joined(*(code(command) for command in commands)))


def _shell_words(data: ReportData) -> str:
    import shlex

    return shlex.join(["relu-nmt-sweep", *data.description.command])


def machine_section(data: ReportData) -> Iterator[Markup]:
    """Yield machine and versions."""
    yield heading("Machine and versions")
    environment = dict(data.description.environment)
    gpus = environment.pop("gpus", [])
    names = {"cpu": "CPU", "cores": "cores", "system": "system", "revision": "revision"}
    pairs = [(names.get(name, name), value) for name, value in environment.items()]
    pairs.append(("GPU", ", ".join(gpus)))
    for title, column in (("trained on", "device"), ("threads per process", "threads")):
        found = (cell.record.get(column) for cell in data.cells)
        pairs.append((title, "; ".join(dict.fromkeys(str(value) for value in found if value))))
    revisions = {cell.record["relu_nmt"] for cell in data.cells if "relu_nmt" in cell.record}
    if len(revisions) > 1:
        pairs.append(("versions of the steps", "; ".join(sorted(revisions))))
    yield facts(pairs)
