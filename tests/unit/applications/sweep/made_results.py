"""Make the folder of a sweep with invented results, without a training."""

import dataclasses
import functools
import itertools
import json
import random
import re

from relu_nmt.applications.environment import describe_environment
from relu_nmt.applications.sweep.settings import SweepSettings
from relu_nmt.applications.sweep.steps import (
    DIVERGED,
    DONE,
    FAILED,
    SweepDescription,
    write_description,
)
from relu_nmt.jobs.sweep.job import plan_steps
from relu_nmt.modules.config import SLOTS
from relu_nmt.training.save_dir import TrainingResult, entry

# Share of correct words in an invented translation, by attention.
SKILL = {"softmax": 0.86, "reluformer": 0.88, "sparsemax": 0.84}
SLOWNESS = {"softmax": 1.0, "reluformer": 0.97, "sparsemax": 1.7}

environment_here = functools.cache(describe_environment)


@functools.cache
def make_references(documents=14, seed=1):
    """Return the sentences of each document, and all of them."""
    rng = random.Random(seed)
    counts = [rng.randint(2, 24) for _ in range(documents)]
    lines = []
    for _ in range(sum(counts)):
        lines.append(" ".join(f"w{rng.randint(0, 400)}" for _ in range(12)))
    return counts, lines


def make_sweep(folder, *, lengths=(128, 256, 512), seeds=(1, 2, 3), mixture=(), trouble=True):
    """Write the folder of a sweep and return its description.

    With trouble, sparsemax has diverged from length 256 on, and a softmax has crashed.
    """
    settings = SweepSettings.of(
        data=str(folder / "data"),
        lengths=lengths,
        attentions=tuple(SKILL),
        seeds=seeds,
        budget="4000u",
        doc_mixture=mixture,
        train_flags="--max-tokens 4096 --arch transformer_tiny",
        save_dir=str(folder),
    )
    typed = ("data", "--budget", "4000u", "--", "--max-tokens", "4096")
    settings = dataclasses.replace(settings, command=typed)
    description = SweepDescription(settings, environment_here())
    for _, steps in itertools.groupby(plan_steps(settings), lambda step: step.model):
        train, *evaluations = steps
        model = train.model
        train.checkpoints.mkdir(parents=True)
        bad = trouble and _trouble(model)
        environment = {"cpu": "Some CPU", "OMP_NUM_THREADS": "1", "torch": "2.13.0"}
        status, note = bad or (DONE, "")
        begun = {"started": "2026-11-21", "environment": environment}
        values = {"status": status, "note": note, "seconds": 900.0, "peak_memory": 7 * 10**8}
        dataclasses.replace(train, **begun, **values).write()
        _write_results(train, model)
        _write_lengths(train, model)
        if bad:
            continue
        for step in evaluations:
            dataclasses.replace(step, status=DONE, **begun).write()
            _write_evaluation(step)
    return write_description(folder, description)


def _trouble(model):
    if model.attention == "sparsemax" and max(model.lengths) > 128:
        return DIVERGED, "relu-nmt-train: error: update 812 (epoch 2): loss became not finite"
    if (model.attention, model.seed, model.lengths) == ("softmax", 3, (512,)):
        return FAILED, "RuntimeError: <out of memory> & more"
    return None


def _write_results(step, model):
    speed = 3000 / SLOWNESS[model.attention] / (1 + max(model.lengths) / 2048)
    results = TrainingResult(step.checkpoints, ended="done", num_updates=4000, seconds=1012.5)
    for number, loss, wps in ((50, 7.1, speed / 2), (100, 6.0, speed)):
        stats = {
            "loss": loss,
            "gnorm": 125 / number,
            "wps": wps,
            "ups": wps / 9,
            "train_wall": 450 / wps,
        }
        results.train.append(entry(1, {"num_updates": number, **stats}))
    valid = {"num_updates": 4000, "loss": 5.5, "nll_loss": 4.321}
    results.valid["valid"] = [entry(1, valid)]
    results.write()


def lengths_of(limit, documents, sentences):
    return {
        "max_doc_tokens": limit,
        "documents": documents,
        "sentences": sentences,
        "groups": sentences * 20 // limit,
        "over_long_sentences": 3,
        "over_long_kept": False,
        "mean_tokens": 0.8 * limit,
        "quantiles_tokens": {"0.1": 0.3 * limit, "0.5": 0.8 * limit, "0.9": 0.99 * limit},
        "longest_tokens": limit,
        "mean_sentences": limit / 25,
    }


def _write_lengths(step, model):
    parts = [lengths_of(limit, 5000, 90_000) for limit in model.lengths]
    content = {"splits": {"train": parts, "valid": parts[:1]}}
    (step.checkpoints / "document_lengths.json").write_text(json.dumps(content))


@functools.cache
def _evaluation(attention, seed, length):
    """Return invented translations of the references, and their scores as JSON."""
    counts, lines = make_references()
    rng = random.Random(f"{attention} {seed} {length}")
    skill = SKILL[attention] + rng.uniform(-0.01, 0.01)
    skill += 0.02 * (length > 128) * (attention == "reluformer")
    unread = iter(lines)
    documents = []
    for count in counts:
        words = "\n".join(next(unread) for _ in range(count))
        wrong = re.sub(r"\S+", lambda word: word[0] if rng.random() < skill else "wrong", words)
        documents.append(f"<d>\n{wrong}\n")
    text = "".join(documents)
    return text, json.dumps(make_scores(text, counts, lines, length))


def _write_evaluation(step):
    model = step.model
    length = step.length
    text, scores = _evaluation(model.attention, model.seed, length)
    step.path(".txt").write_text(text)
    step.path(".results.json").write_text(scores)
    slots = {}
    for number, slot in enumerate(SLOTS):
        slots[slot] = {
            "entropy": 1.4 + 0.3 * number + length / 1000,
            "zero_fraction": 0.0 if model.attention == "softmax" else 0.9 + 0.02 * number,
            "mean_log_n": 4.0,
            "null_fraction": 0.01,
            "sum": 0.98,
        }
    overall = {name: value / 2 for name, value in slots["cross"].items()}
    report = {"slots": slots, "overall": overall}
    step.path(".attention.json").write_text(json.dumps(report))


def make_scores(text, counts, lines, length):
    """Return results of an evaluation as JSON values. N-grams are counted once for all scores."""
    from relu_nmt.evaluation import document_scores as docs
    from relu_nmt.evaluation.metrics import Metric
    from relu_nmt.evaluation.significance import SegmentStatistics

    references = docs.cut_by_counts(lines, counts, "lines")
    hypotheses = docs.split_at_separators(text.split("\n")[:-1], "tag")
    metric = Metric()
    references_of_documents = [docs.join_lines(references)]
    of_documents = SegmentStatistics.of(
        metric, docs.join_lines(hypotheses), references_of_documents
    )
    of_lines = SegmentStatistics.of(metric, flattened(hypotheses), [lines])
    d_bleu = of_documents.score()
    return {
        "document_statistics": of_documents.to_json(),
        "sentences": len(lines),
        "groups": 200,
        "tokens": 20_000,
        "seconds": 31.25,
        "tokens_per_second": 640.0 * 256 / (128 + length),
        "mismatches": 3,
        "mismatch_rate": 0.015,
        "d_bleu": {"score": d_bleu, "signature": metric.signature},
        "s_bleu": {"score": of_lines.score(), "signature": metric.signature},
        "group_bleu": {"score": d_bleu - 1, "signature": metric.signature},
        "at_limit": 2,
        "memory_bytes": 4 * 10**8,
        "chrf": {"score": d_bleu + 9, "signature": "nrefs:1|case:mixed|eff:yes|nc:6|nw:0"},
        "s_bleu_by_position": _by_position(of_lines, counts, length),
        "lengths": {**lengths_of(length, len(counts), len(lines)), "over_long_kept": True},
    }


def flattened(documents):
    return list(itertools.chain.from_iterable(documents))


def _by_position(statistics, counts, length):
    """Return scores by position in the document, and in groups of a number of sentences."""
    positions = flattened(map(range, counts))
    buckets = {"1": (1, 1), "2-4": (2, 4), "5-9": (5, 9), "10-19": (10, 19), ">19": (20, 99)}
    scores = {}
    for name, size in (("position", 99), ("group position", max(1, length // 32))):
        scores[name] = {}
        for bucket, (low, high) in buckets.items():
            lines = [i for i, p in enumerate(positions) if low <= p % size + 1 <= high]
            score = statistics.score(lines) if lines else None
            signature = "nrefs:1" if lines else None
            values = {"sentences": len(lines), "score": score, "signature": signature}
            scores[name][bucket] = values
    return scores
