import pytest

from relu_nmt.data.data_folder import Journal


@pytest.fixture
def work(tmp_path):
    return tmp_path / "work"


class Step:
    def __init__(self, path, content="made"):
        self.path, self.content, self.times = path, content, 0

    def __call__(self):
        self.times += 1
        self.path.write_text(self.content)
        return {"times": self.times}


def test_finished_step_is_not_done_again(tmp_path, work):
    step = Step(tmp_path / "out")
    for _ in range(3):
        assert Journal(work, "key").finish("step", step, (step.path,)) == {"times": 1}
    assert step.times == 1


@pytest.mark.parametrize("damage", ["remove", "change"])
def test_step_is_done_again_when_its_file_differs(tmp_path, work, damage):
    step = Step(tmp_path / "out")
    Journal(work, "key").finish("step", step, (step.path,))
    if damage == "remove":
        step.path.unlink()
    else:
        step.path.write_text("other")
    assert Journal(work, "key").finish("step", step, (step.path,)) == {"times": 2}
    assert step.path.read_text() == "made"


def test_another_job_starts_afresh(tmp_path, work):
    step = Step(tmp_path / "out")
    Journal(work, "key").finish("step", step, (step.path,))
    (work / "leftover").write_text("x")
    journal = Journal(work, "other key")
    assert not (work / "leftover").exists()
    assert journal.result("step") is None


@pytest.mark.parametrize("content", [b"", b"{}", b'{"key": 1, "steps": {}}', b"\xff", b"[]"])
def test_damaged_journal_is_none(work, content):
    Journal(work, "key")
    (work / "journal.json").write_bytes(content)
    assert Journal.read(work) is None
    assert Journal(work, "key").result("step") is None


def test_damaged_entry_is_no_entry(work):
    Journal(work, "key")
    (work / "journal.json").write_text('{"key": "key", "steps": {"a": 1, "b": {"files": {}}}}')
    assert Journal(work, "key").result("a") is None
    assert Journal(work, "key").result("b") is None


def test_close_removes_the_folder(work):
    Journal(work, "key").close()
    assert not work.exists()
