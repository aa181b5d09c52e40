"""The sections of the report about attention weights, lengths, speed and memory."""

from collections.abc import Iterator, Sequence

from relu_nmt.sweep.page_parts import (
    UNKNOWN,
    Markup,
    Table,
    figure,
    heading,
    joined,
    megabytes,
    number,
    paragraph,
    small,
)
from relu_nmt.sweep.plots import Panel, draw
from relu_nmt.sweep.report_data import LENGTH_AXIS, ReportData, length_name
from relu_nmt.sweep.results import SLOTS, Record
from relu_nmt.sweep.score_sections import legend

SLOT_NAMES = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}


def attention_section(data: ReportData) -> Iterator[Markup]:
    """Yield entropy and zeros of the attention weights, by slot."""
    measured = [a for a in data.averages if any(f"{s}_entropy" in a.record for s in SLOTS)]
    zeros = [a for a in data.averages if any(f"{s}_zero_fraction" in a.record for s in SLOTS)]
    if not measured and not zeros:
        return
    yield heading("Attention weights")
    yield legend(data)
    for quantity, caption, found in (
        ("entropy", "Entropy of the attention weights in nats, by slot.", measured),
        ("zero_fraction", "Share of the attention weights that are exactly zero, by slot.", zeros),
    ):
        if found:
            panels = [data.panel(SLOT_NAMES[slot], f"{slot}_{quantity}") for slot in SLOTS]
            yield figure(draw(panels, LENGTH_AXIS, quantity), caption)
    header: list[object] = ["attention", "L"]
    for slot in SLOTS:
        header += [joined(slot, small(name)) for name in ("entropy", "zeros", "row sum")]
    table = Table(header)
    for name, average, style in data.rows():
        record = average.record
        cells = []
        for slot in SLOTS:
            zero = record.get(f"{slot}_zero_fraction")
            cells.append(number(record.get(f"{slot}_entropy")))
            cells.append(UNKNOWN if zero is None else f"{number(100 * zero, 1)}%")
            cells.append(number(record.get(f"{slot}_row_sum")))
        table.add(name, length_name(average.length), *cells, style=style)
    yield table.html()
    yield paragraph(
        "Means over the evaluated groups, their rows of real queries, heads and layers, then over "
        "seeds. Entropy is in nats, of the weights of a row divided by their sum; zeros are "
        "weights of visible keys that are exactly 0. Mechanisms without weights are left out.",
        "note",
    )


def speed_section(data: ReportData) -> Iterator[Markup]:
    """Yield speed and memory of training and decoding."""
    rows = list(data.rows())
    if not rows:
        return
    yield heading("Speed and memory")
    yield legend(data)
    on_gpu = any("gpu_memory_bytes" in name for _, a, _ in rows for name in a.record)
    yield figure(
        draw(_cost_panels(data, on_gpu), LENGTH_AXIS, "speed"),
        "Speed in target tokens per second, and peak memory, against the document length.",
    )
    gpu = ["GPU MB"] if on_gpu else []
    header: list[object] = ["attention", "L"]
    for what, names in (
        ("training", ["tokens/s", "updates/s", "minutes", "MB", *gpu]),
        ("decoding", ["tokens/s", "seconds", "MB", *gpu]),
    ):
        header += [joined(what, small(name)) for name in names]
    table = Table(header)
    for name, average, style in rows:
        cells = [*_training_costs(average.record, on_gpu), *_decoding_costs(average.record, on_gpu)]
        table.add(name, length_name(average.length), *cells, style=style)
    yield table.html()
    yield paragraph(
        "Tokens are those of the target without padding; training speed leaves validation, saving "
        "and the first stretch of the log out; decoding speed is that of the search. Memory is the "
        "most that a process had resident at any time, Python and PyTorch included, GPU memory the "
        "most that tensors took. Steps that ran beside others on the same machine are slower than "
        "alone.",
        "note",
    )


def _cost_panels(data: ReportData, on_gpu: bool) -> list[Panel]:
    """Return the plots of speed and memory; a mixture's training has no length."""
    memory = "gpu_memory_bytes" if on_gpu else "memory_bytes"
    panels = []
    if not all(system.mixture for system in data.systems):
        panels = [
            data.panel("training speed, tokens/s", "train_tokens_per_second"),
            data.panel("training memory, MB", f"train_{memory}", 1e6),
        ]
    panels.append(data.panel("decoding speed, tokens/s", "decode_tokens_per_second"))
    if len(panels) == 1:
        panels.append(data.panel("decoding memory, MB", f"decode_{memory}", 1e6))
    return panels


def _training_costs(record: Record, on_gpu: bool) -> list[str]:
    seconds = record.get("train_seconds")
    cells = [
        number(record.get("train_tokens_per_second"), 0),
        number(record.get("train_updates_per_second")),
        number(None if seconds is None else seconds / 60, 1),
        megabytes(record.get("train_memory_bytes")),
    ]
    return cells + ([megabytes(record.get("train_gpu_memory_bytes"))] if on_gpu else [])


def _decoding_costs(record: Record, on_gpu: bool) -> list[str]:
    cells = [
        number(record.get("decode_tokens_per_second"), 0),
        number(record.get("decode_seconds"), 1),
        megabytes(record.get("decode_memory_bytes")),
    ]
    return cells + ([megabytes(record.get("decode_gpu_memory_bytes"))] if on_gpu else [])


def lengths_section(data: ReportData) -> Iterator[Markup]:
    """Yield how long the groups really are: a limit alone does not tell."""
    table = Table(
        [
            *("limit L", "split", "groups", "tokens: mean", "10%", "median", "90%", "longest"),
            *("sentences per group", "over-long sentences"),
        ],
        text_columns=(1,),
    )
    learnt = {length for cell in data.cells for length in cell.training.lengths}
    for length in sorted({*data.lengths, *learnt}):
        everywhere = [cell.record for cell in data.cells]
        here = [cell.record for cell in data.cells if cell.length == length]
        for prefix, split, records in (
            (f"train[{length}]", "training", everywhere),
            ("train", "training", here),
            ("test", data.description.gen_subset, here),
        ):
            found = next((r for r in records if f"{prefix}_mean_tokens" in r), None)
            if found is not None:
                table.add(length_name(length), split, *_length_cells(found, prefix))
    if table.rows:
        yield heading("Realised lengths")
        yield table.html()
        yield paragraph(
            "Tokens of the longer side of each group, end symbol included. Sentences longer than "
            "L are left out of training and kept whole in evaluation. With a mixture, the groups "
            "of training are those of the first epoch.",
            "note",
        )


def _length_cells(record: Record, prefix: str) -> Sequence[str]:
    def value(name: str, decimals: int = 0) -> str:
        return number(record.get(f"{prefix}_{name}"), decimals)

    return (
        value("groups"),
        value("mean_tokens", 1),
        *(value(f"{quantile}_quantile_tokens") for quantile in ("0.1", "0.5", "0.9")),
        value("longest_tokens"),
        value("mean_sentences", 1),
        value("over_long_sentences"),
    )
