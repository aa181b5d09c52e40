"""How it is told that an image model is another than that of the checkpoint."""

import re
from pathlib import Path

import pytest

from relu_nmt.cli.vision_train import ImageTrainingSettings
from relu_nmt.config import to_dict
from relu_nmt.errors import CheckpointError
from relu_nmt.recipes.training import change_note, refuse_other_model


def settings(**changes):
    return ImageTrainingSettings.of(**{"data": "d", "image_size": 24, **changes})


def test_another_model_is_told_with_the_flags_that_make_it_so():
    before, after = settings(), settings(image_size="24x18", tanh_layer=True)
    refused = "was trained with --image-size 24 --tanh-layer false, not --image-size 24x18 --tanh"
    with pytest.raises(CheckpointError, match=re.escape(refused)):
        refuse_other_model(Path("c"), to_dict(before.model), after.model)
    note = change_note(to_dict(before, stored_only=True), after, goes_on=False)
    assert "--image-size 24x18 (was 24), --tanh-layer true (was false)" in note
    refuse_other_model(Path("c"), to_dict(before.model), before.model)
    assert not change_note(to_dict(before, stored_only=True), before, goes_on=True)
