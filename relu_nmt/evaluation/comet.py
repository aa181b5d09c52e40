"""COMET, a trained metric that also reads the source; its library is installed apart."""

import importlib.metadata
from collections.abc import Sequence
from pathlib import Path

from relu_nmt.errors import DataError, MissingExtraError
from relu_nmt.evaluation.bleu import Score

BATCH_SIZE = 16


def comet_score(
    model: str, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
) -> Score:
    """Return the mean COMET of lines; a GPU computes it if there is one.

    Args:
        model: a file, or a name of Hugging Face's hub, from which it is fetched once.
        sources: the source of each line.
        hypotheses: its translation.
        references: what a person translated it to.

    Raises:
        MissingExtraError: the package is not installed.
        DataError: the model cannot be fetched or read.

    Reference: Rei et al. 2020, "COMET: a neural framework for MT evaluation".
    """
    try:
        from comet import download_model, load_from_checkpoint
    except ImportError as missing:
        raise MissingExtraError(
            "--metrics comet needs the package unbabel-comet: pip install unbabel-comet"
        ) from missing
    import torch

    try:
        path = model if Path(model).is_file() else download_model(model)
        metric = load_from_checkpoint(path)
    except Exception as error:  # of the network, the hub or the file
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"--comet-model {model}: cannot be loaded: {reason}") from error
    lines = zip(sources, hypotheses, references, strict=True)
    data = [{"src": source, "mt": own, "ref": reference} for source, own, reference in lines]
    gpus = min(1, torch.cuda.device_count())
    found = metric.predict(data, batch_size=BATCH_SIZE, gpus=gpus, progress_bar=False)
    value = float(found.system_score)
    version = importlib.metadata.version("unbabel-comet")
    return Score(value, f"COMET = {value:.4f}", f"model:{model}|version:{version}")
