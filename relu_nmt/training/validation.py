"""Validation: the metrics of each set, the best score, and the end of patience."""

import math
import re
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from relu_nmt.errors import DataError
from relu_nmt.io.progress import progress_bar
from relu_nmt.training.batches import (
    BatchSource,
    TrainingData,
    ValidationScorer,
    load_ahead,
    naming_batch,
)
from relu_nmt.training.config import TrainerConfig
from relu_nmt.training.distributed import is_sharded, whole_weights
from relu_nmt.training.learner import Learner
from relu_nmt.training.log import TrainingLog, add_metrics, be_silent, metric_averages
from relu_nmt.training.save_dir import CurveEntry, TrainingResult, entry
from relu_nmt.training.state import TrainingState

PRINTED_AS_ZERO = 0.005  # scores below it are printed as 0.00
ADVICE = {
    "bleu": "--eval-bleu-print-samples shows translations; if the target language has no spaces "
    "between words, --sacrebleu-tokenizer char counts characters"
}
PATIENCE_ADVICE = "; --patience counts such scores: consider --best-checkpoint-metric loss"


def validate(
    learner: Learner,
    data: TrainingData,
    log: TrainingLog,
    state: TrainingState,
    result: TrainingResult,
) -> float:
    """Validate on all sets, log the scores, and return the one that picks the best checkpoint."""
    config = learner.config
    metric = config.best_checkpoint_metric
    score = math.nan
    first = next(iter(data.valid), None)
    try:
        for subset, source in data.valid.items():
            # Only the first set has a scorer, and decides.
            scorer = data.scorer if subset == first else None
            log.say(f"begin validation on '{subset}' subset", subset)
            stats = measure(learner, source, scorer, say=log.say)
            stats["num_updates"] = state.num_updates
            # Show the best score so far beside the new one.
            if subset == first and metric in stats:
                score = stats[metric]
                scores = [score]
                if state.best_score is not None:
                    scores.append(state.best_score)
                choose = max if config.maximize else min
                stats[f"best_{metric}"] = choose(scores)
            log.validation(state.epoch, subset, stats)
            validations = result.valid.setdefault(subset, [])
            validations.append(entry(state.epoch, stats))
            if scorer is not None:
                for name, signature in scorer.signatures.items():
                    if signature:
                        validations[-1][f"{name}_signature"] = signature
                    _warn_of_stuck_score(name, validations, config, log)
    except DataError:
        # A resumed training validates again.
        state.interrupted = True
        # Remove entries of the sets that were validated before the error.
        for entries in (result.epochs, *result.valid.values()):
            entries[:] = [e for e in entries if e["num_updates"] != state.num_updates]
        raise
    return score


def reason_of_patience(
    config: TrainerConfig, state: TrainingState, result: TrainingResult
) -> str | None:
    """Return the reason to stop if ``--patience`` validations brought no better score."""
    if not 0 < config.patience <= state.bad_validations:
        return None
    metric = config.best_checkpoint_metric
    reason = f"no better {metric} in {config.patience} validations (--patience)"
    validations = result.valid.get(state.best_subset or "", [])
    if config.maximize and losses_of_stuck_score(validations, metric):
        reason += f"; {metric} stayed 0 while the loss fell, so the model may still learn"
    return reason


def measure(
    learner: Learner,
    source: BatchSource,
    scorer: ValidationScorer | None = None,
    say: Callable[[str], object] = be_silent,
) -> dict[str, float]:
    """Return the metrics of a set, losses in bits, over all processes.

    ``say`` prints the progress of a slow validation.
    """
    count = source.begin_epoch(1)
    world_size = learner.process.world_size
    sharded = is_sharded(learner.objective)
    indices = range(learner.process.rank, count, world_size)
    sums: dict[str, tuple[Tensor, float]] = {}
    with learner.evaluating(), learner.average.applied(), torch.no_grad():
        pinned = learner.process.device.type == "cuda"
        batches = load_ahead(source.load, indices, learner.config.num_workers, pinned)
        slow = progress_bar("validation", len(indices), "batches", only_if_slow=True, say=say)
        with slow as advance:
            for batch in batches:
                advance(1)
                if batch.num_sentences == 0 and not sharded:
                    continue
                with naming_batch(batch, "validation"):
                    output = learner.loss(batch)
                # The totals stay on the device, so that a GPU need not wait for each batch.
                metrics = output.metrics.items()
                add_metrics(sums, {name: (total.double(), n) for name, (total, n) in metrics})
        if sharded and len(indices) < -(-count // world_size):
            # Compute any batch, since other processes need this one's weights for theirs.
            batch = source.load(0)
            with naming_batch(batch, "validation"):
                learner.loss(batch)
        # Add up the processes, and score translations.
        of_all: dict[str, tuple[float, float]] = {}
        metrics_here = {name: (float(total), n) for name, (total, n) in sums.items()}
        for process_metrics in learner.process.gather(metrics_here):
            add_metrics(of_all, process_metrics)
        averages = metric_averages(of_all)
        if scorer is not None:
            with whole_weights(learner.objective):
                averages |= scorer.score()
    return averages


def names_of_metrics(learner: Learner, source: BatchSource) -> list[str]:
    """Return the names of the metrics of a set's largest batch, or of the next one with data."""
    count = source.begin_epoch(1)
    with learner.evaluating(), learner.average.applied(), torch.no_grad():
        for index in (source.largest(), *range(count)):
            batch = source.load(index)
            if batch.num_sentences:
                with naming_batch(batch, "validation"):
                    return list(metric_averages(learner.loss(batch).metrics))
    return []


def forget_other_measure(
    state: TrainingState, metric: str, data: TrainingData, say: Callable[[str], None]
) -> None:
    """Forget the best score if it is of another validation set or signature than new scores."""
    if not data.valid:
        return
    # Store the present subset and signature, with which later scores are compared.
    old_subset = state.best_subset
    old_signature = state.best_signature
    state.best_subset = next(iter(data.valid))
    signature = data.scorer.signatures.get(metric) if data.scorer else None
    state.best_signature = signature or old_signature
    how = ""
    if old_subset not in (None, state.best_subset):
        how = f"is of the validation set {old_subset}, no longer the first"
    elif signature:
        # Compare without sacreBLEU's version. A score without a signature used the tokenizer 13a.
        is_comparable = re.search(r"\btok:(13a|none)\b", signature) is not None
        if old_signature is not None:
            settings = old_signature.partition("|version:")[0]
            is_comparable = settings == signature.partition("|version:")[0]
        if not is_comparable:
            earlier = old_signature or "by an earlier version"
            how = f"was measured otherwise ({earlier}) than scores are now ({signature})"
    if how and state.best_score is not None:
        say(
            f"note: the best {metric} so far, {state.best_score:g}, {how}; it is forgotten, "
            "and --patience counts from 0"
        )
        state.best_score = None
        state.bad_validations = 0


def _warn_of_stuck_score(
    name: str, validations: Sequence[CurveEntry], config: TrainerConfig, log: TrainingLog
) -> None:
    """Warn of a score that stays 0 while the loss falls."""
    losses = losses_of_stuck_score(validations, name)
    if losses is None:
        return
    fall = f"from {losses[0]:.3f} to {losses[1]:.3f}"
    advice = ADVICE.get(name, "is it the right metric?")
    if name == config.best_checkpoint_metric and config.patience > 0:
        advice += PATIENCE_ADVICE
    log.warn_once(name, f"{name} stays 0 while the loss falls {fall}; {advice}")


def losses_of_stuck_score(
    validations: Sequence[CurveEntry], metric: str
) -> tuple[float, float] | None:
    """Return the first and last loss if the loss falls while a score stays 0 in two validations."""
    losses: list[float] = []
    for stats in validations:
        score = stats.get(metric)
        loss = stats.get("loss")
        if score is not None and loss is not None:
            if score >= PRINTED_AS_ZERO:
                return None
            losses.append(loss)
    if len(losses) < 2 or losses[-1] >= losses[0]:
        return None
    return losses[0], losses[-1]
