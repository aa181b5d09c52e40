"""The names of a data folder, and the journal of a job."""

import pytest

from relu_nmt.data.data_folder import Journal, find_pair, infer_languages
from relu_nmt.errors import DataError


@pytest.fixture
def folder(tmp_path):
    for name in ("train.de-en.de.idx", "train.de-en.en.idx", "dict.de.txt", "a.b.c.d.e"):
        (tmp_path / name).touch()
    return tmp_path


def test_languages_are_found_in_file_names(folder):
    assert infer_languages(folder) == ("de", "en")


def test_several_language_pairs_are_an_error(folder):
    (folder / "train.fr-en.fr.idx").touch()
    with pytest.raises(DataError, match=r"several language pairs \(de-en, fr-en\)"):
        infer_languages(folder)


def test_source_only_text_may_stand_beside_pairs(folder):
    (folder / "test.de-None.de.idx").touch()
    assert infer_languages(folder) == ("de", "en")


def test_a_folder_without_data_is_an_error(tmp_path):
    with pytest.raises(DataError, match="no binarized corpus"):
        infer_languages(tmp_path)
    with pytest.raises(DataError, match="cannot read the data folder: No such file"):
        infer_languages(tmp_path / "none")


def test_splits_are_found_in_either_direction(folder):
    assert find_pair(folder, "train", "de", "en") == "de-en"
    assert find_pair(folder, "train", "en", "de") == "de-en"


def test_source_only_splits_are_found(tmp_path):
    (tmp_path / "test.de-None.de.idx").touch()
    assert find_pair(tmp_path, "test", "de", "en") == "de-None"


def test_a_missing_split_is_an_error(folder):
    with pytest.raises(DataError, match=r"test.de-en.de.idx: no such file.*holds: train"):
        find_pair(folder, "test", "de", "en")


@pytest.fixture
def work(tmp_path):
    return tmp_path / "work"


class Step:
    def __init__(self, path, content="made"):
        self.path = path
        self.content = content
        self.times = 0

    def __call__(self):
        self.times += 1
        self.path.write_text(self.content)
        return {"times": self.times}


def test_finished_step_is_not_done_again(tmp_path, work):
    step = Step(tmp_path / "out")
    for _ in range(3):
        assert Journal(work, "key").finish(step, (step.path,)) == {"times": 1}
    assert step.times == 1


@pytest.mark.parametrize("damage", ["remove", "change"])
def test_step_is_done_again_when_its_file_differs(tmp_path, work, damage):
    step = Step(tmp_path / "out")
    Journal(work, "key").finish(step, (step.path,))
    if damage == "remove":
        step.path.unlink()
    else:
        step.path.write_text("edam")
    assert Journal(work, "key").finish(step, (step.path,)) == {"times": 2}
    assert step.path.read_text() == "made"


def test_step_is_done_again_when_its_result_has_another_form(tmp_path, work):
    step = Step(tmp_path / "out")
    Journal(work, "key").finish(step, (step.path,))
    assert Journal(work, "key").finish(step, (step.path,), {"times": str}) == {"times": 2}


def test_another_job_starts_afresh(tmp_path, work):
    step = Step(tmp_path / "out")
    Journal(work, "key").finish(step, (step.path,))
    (work / "leftover").write_text("x")
    journal = Journal(work, "other key")
    assert not (work / "leftover").exists()
    assert journal.finish(step, (step.path,)) == {"times": 2}


def test_only_unfinished_steps_are_done(tmp_path, work):
    first = Step(tmp_path / "first")
    Journal(work, "key").finish(first, (first.path,))
    second = Step(tmp_path / "second")
    files = {"a": [first.path], "b": [second.path]}
    journal = Journal(work, "key")
    assert journal.finish_all(files, lambda names: [(names, second())]) == {
        "a": {"times": 1},
        "b": (["b"], {"times": 1}),
    }


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{}", b'{"key": 1, "steps": {}}', b"\xff", b"[]"),
        *(b'{"key": "key", "steps": {"out": 1}}', b'{"key": "key", "steps": {"out": {}}}'),
    ],
)
def test_damaged_journal_is_none(tmp_path, work, content):
    step = Step(tmp_path / "out")
    Journal(work, "key").finish(step, (step.path,))
    (work / "journal.json").write_bytes(content)
    assert Journal(work, "key").finish(step, (step.path,)) == {"times": 2}
