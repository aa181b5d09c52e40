"""The sections of the report about translation quality."""

from collections.abc import Iterator

from relu_nmt.evaluation.length_buckets import DEFAULT_EDGES
from relu_nmt.sweep.page_parts import (
    UNKNOWN,
    Markup,
    Table,
    escape,
    figure,
    heading,
    joined,
    number,
    p_text,
    paragraph,
    small,
    styled,
)
from relu_nmt.sweep.plots import draw, marker_svg
from relu_nmt.sweep.report_data import LENGTH_AXIS, ReportData, length_name, place
from relu_nmt.sweep.results import System
from relu_nmt.sweep.statistics import RESAMPLES, RESAMPLING_SEED


def legend(data: ReportData) -> Markup:
    """Return the names of the systems beside their colours."""
    items = "".join(
        f"<li>{marker_svg(series)}{escape(data.label(system))}</li>"
        for series, system in enumerate(data.systems)
    )
    return Markup(f'<ul class="legend">{items}</ul>')


def signatures(data: ReportData, score: str) -> str:
    """Return the sacreBLEU signatures of a score, of which there should be one."""
    found = (cell.record.get(f"{score}_signature") for cell in data.cells)
    return "; ".join(dict.fromkeys(text for text in found if text))


def bleu_section(data: ReportData) -> Iterator[Markup]:
    """Yield the main table, d-BLEU by system and length, and its plot."""
    yield heading("d-BLEU by document length")
    table = Table([_first_title(data), *data.columns()])
    best = _best_systems(data)
    for mixture in dict.fromkeys(system.mixture for system in data.systems):
        own = [system for system in data.systems if system.mixture == mixture]
        baseline = System(data.description.attentions[0], mixture)
        for system in own:
            cells = (_bleu_cell(data, system, length, best) for length in data.lengths)
            style = "group" if system == own[0] else ""
            table.add(data.label(system), *cells, style=style)
        for system in own:
            if baseline in own and system != baseline:
                name = f"{data.label(system)} less {baseline.attention}"
                table.add(name, *_gains(data, system), style="gain")
    yield table.html()
    yield paragraph(_how_to_read(data), "note")
    if any("d_bleu" in average.record for average in data.averages):
        yield legend(data)
        caption = (
            "d-BLEU against the document length. Bars: 95% intervals over seeds, over documents "
            "where there is one seed."
        )
        panel = data.panel("d-BLEU", "d_bleu", from_zero=False)
        yield figure(draw([panel], LENGTH_AXIS, "bleu"), caption)


def _first_title(data: ReportData) -> str:
    if all(system.mixture for system in data.systems):
        return "attention, evaluated at"
    return "attention, L ="


def _best_systems(data: ReportData) -> dict[int, System]:
    best = {}
    for length in data.lengths:
        found = [
            (a.record["d_bleu"], a.system)
            for a in data.averages
            if a.length == length and "d_bleu" in a.record
        ]
        if len(found) > 1:
            best[length] = max(found, key=lambda pair: pair[0])[1]
    return best


def _bleu_cell(data: ReportData, system: System, length: int, best: dict[int, System]) -> Markup:
    average = data.at(system, length)
    if average is None:
        return joined(UNKNOWN)
    record = average.record
    value = number(record.get("d_bleu"))
    if best.get(length) == system:
        value = styled(value, "best")
    seeds, documents = (record.get(f"d_bleu_{n}_interval") for n in ("seed", "document"))
    return place(
        average,
        value,
        seeds is not None and f"± {number(seeds)} seeds",
        documents is not None and f"± {number(documents)} documents",
    )


def _gains(data: ReportData, system: System) -> Iterator[Markup]:
    for average in data.row(system):
        record = {} if average is None else average.record
        if "gain" not in record:
            yield joined(UNKNOWN)
            continue
        interval, seeds = record["gain_document_interval"], record["gain_seeds"]
        of_seeds = record.get("gain_seed_interval")
        fewer = len(seeds.split(",")) < len(average.cells)
        yield joined(
            number(record["gain"], signed=True),
            small(
                of_seeds is not None and f"± {number(of_seeds)} seeds",
                f"± {number(interval)} documents",
                p_text(record["p_value"]),
                f"seeds {seeds}" if fewer else "",
            ),
        )


def _how_to_read(data: ReportData) -> str:
    text = (
        "Corpus BLEU with one segment per original document, so that every length is scored on "
        "the same references; mean over the seeds that converged. ± seeds: 95% confidence "
        "interval of the mean over seeds (Student's t). ± documents: interval that holds 95% of "
        f"{RESAMPLES:,} bootstrap resamples of the documents (seed {RESAMPLING_SEED}). p: paired "
        "bootstrap over the same resamples as sacreBLEU computes it, in effect one-sided; it knows "
        "nothing of the spread over seeds. “Diverged”: the loss was not finite; "
        "“does not converge”: d-BLEU below 1 at every length."
    )
    found = signatures(data, "d_bleu")
    return f"{text} Signature: {found}." if found else text


def other_scores_section(data: ReportData) -> Iterator[Markup]:
    """Yield s-BLEU and chrF."""
    yield heading("Other scores")
    for score, title in (
        ("s_bleu", "s-BLEU, of sentences"),
        ("group_bleu", "BLEU of groups, whose references differ between lengths"),
        ("chrf", "chrF of documents"),
    ):
        if not any(score in average.record for average in data.averages):
            continue
        found = signatures(data, score)
        caption = f"{title}, mean over seeds" + (f". Signature: {found}" if found else "")
        table = Table([_first_title(data), *data.columns()], caption)
        for system in data.systems:
            cells = []
            for average in data.row(system):
                record = {} if average is None else average.record
                mismatch = record.get("mismatch_rate")
                shown = score == "s_bleu" and mismatch is not None
                below = f"{number(100 * mismatch, 1)}% mismatched" if shown else ""
                limit = record.get("at_limit") if score == "chrf" else None
                cut = f"{number(limit, 0 if limit % 1 == 0 else 1)} cut off" if limit else ""
                cells.append(place(average, number(record.get(score)), below, cut))
            table.add(data.label(system), *cells)
        yield table.html()
    yield paragraph(
        "s-BLEU aligns sentences by the separators in the translation; mismatched groups have "
        "another number of sentences than their source. It is there only for models trained with "
        "--sentence-separator, and for single sentences. Cut off: translations that reached the "
        "longest output allowed.",
        "note",
    )


def bucket_section(data: ReportData) -> Iterator[Markup]:
    """Yield d-BLEU by the length of the reference document."""
    names = _bucket_names(data)
    if not names:
        return
    yield heading("d-BLEU by length of the original document")
    sizes = {}
    for average in data.averages:
        for name in names:
            if f"documents[{name}]" in average.record:
                sizes[name] = average.record[f"documents[{name}]"]
    titles = [joined(name, small(f"{number(sizes[name], 0)} documents")) for name in names]
    table = Table(["attention", "L", *titles])
    for name, average, style in data.rows():
        values = (number(average.record.get(f"d_bleu[{bucket}]")) for bucket in names)
        table.add(name, length_name(average.length), *values, style=style)
    yield table.html()
    yield paragraph(
        "Columns: reference tokens of the document as BLEU counts them. Buckets with few documents "
        "say little.",
        "note",
    )


def _bucket_names(data: ReportData) -> list[str]:
    """Return the names of the buckets that hold documents, the shortest first."""
    found = {
        name.removeprefix("documents[").removesuffix("]")
        for average in data.averages
        for name in average.record
        if name.startswith("documents[")
    }
    edges = [0, *(edge + 1 for edge in DEFAULT_EDGES)]
    return sorted(found, key=lambda name: _shortest(name, edges))


def _shortest(bucket: str, edges: list[int]) -> int:
    return edges[-1] if bucket.startswith(">") else int(bucket.partition("-")[0])
