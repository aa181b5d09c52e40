import io
import os
import pickle
import platform
import socket
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from relu_nmt.errors import ConfigError, TrainingError
from relu_nmt.training import distributed
from relu_nmt.training.distributed import join_processes, whole_weights
from tests.outputs import containing, last_checkpoint, values
from tests.ranks import errors_of, free_port, run_ranks
from tests.unit.training import toy
from tests.unit.training.toy import Toy, ToySource, json_lines

ROOT = Path(__file__).parents[3]

WORKER = """
import sys
from pathlib import Path
from relu_nmt.training.distributed import join_processes
from tests.unit.training import test_distributed, toy
process = join_processes(cpu=True)
toy.ProcessGroup = lambda *_: process
test_distributed.train(Path(sys.argv[1]), 2, [int(sys.argv[2])])
"""

FAULTS = """
import resource, sys, torch
from relu_nmt.training.distributed import join_processes
if len(sys.argv) > 1:
    join_processes(cpu=True)
faults = []
for _ in range(8):
    [torch.ones(2_000_000) for _ in range(12)]
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[-1] - faults[2])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of the malloc of glibc")
def test_freed_memory_is_used_again():
    """Pages that come anew from the system are faults, 2,000 for a tensor of 8 MB."""
    # With a fixed threshold glibc does not adapt it, which it does by chance.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}

    def num_faults(*flag):
        words = [sys.executable, "-c", FAULTS, *flag]
        return int(subprocess.check_output(words, cwd=ROOT, env=environment))

    assert 10 * num_faults("keep") < num_faults()


def train(folder, update_freq, poisoned=(), backend="pytorch_ddp", max_epoch=2):
    """Train in this process, one of however many."""
    Toy(
        folder,
        {"max_epoch": max_epoch, "update_freq": (update_freq,), "clip_norm": 1.0},
        distributed={"ddp_backend": backend},
        logging={"log_interval": 1},
        optimizer={"store_ema": True},
        dropout=0.0,
        train=ToySource(7, poisoned),
        valid={"valid": ToySource(3)},
    ).trainer().train()


def on_two(python, work, folder):
    """Return the results of ``work(process)`` in two processes."""

    def noted(process):
        (folder / f"told.{process.rank}").write_bytes(pickle.dumps(work(process)))

    codes = run_ranks(python, noted, 2, folder)
    assert codes == [0, 0], errors_of(folder)
    return [pickle.loads((folder / f"told.{rank}").read_bytes()) for rank in range(2)]


@pytest.mark.parametrize("backend", ["pytorch_ddp", "fully_sharded"])
def test_two_processes_make_the_updates_of_one_that_accumulates(
    quick_python, tmp_path, capsys, backend
):
    """7 batches an epoch: at its end the second process has none and must keep step."""
    train(tmp_path / "one", 4)
    left = json_lines(capsys.readouterr().out)

    def work(process):
        toy.ProcessGroup = lambda *_: process
        with redirect_stdout(io.StringIO()) as out:
            train(tmp_path / "two", 2, (), backend)
        process.close()
        names = [task.read_text() for task in Path("/proc/self/task").glob("*/comm")]
        return out.getvalue(), len(containing(names, "gloo"))

    outputs = on_two(quick_python, work, tmp_path)
    right = json_lines(outputs[0][0])
    assert not outputs[1][0]
    for name in ("loss", "nll_loss", "gnorm", "bias", "wpb", "bsz", "valid_loss", "lr"):
        assert values(left, name), name
        assert values(left, name) == pytest.approx(values(right, name), rel=1e-4), name
    assert values(left, "num_updates") == [1, 2, 3, 4]
    # A thread that is left may abort the end of its process.
    assert [threads for _, threads in outputs] == [0, 0]
    alone = last_checkpoint(tmp_path / "one").training_tensors
    parallel = last_checkpoint(tmp_path / "two").training_tensors
    torch.testing.assert_close(alone, parallel, rtol=1e-4, atol=1e-6)


def sharded(process, folder):
    """Train with both back ends, and return the calls of each and the sizes of the parts."""
    calls = {}
    for backend in ("pytorch_ddp", "fully_sharded"):
        trainer = accumulating(folder / backend, process, backend, max_update=2).trainer()
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            trainer.train()
        for event in profiled.key_averages():
            if event.key.startswith("c10d::"):
                calls[backend, event.key.removeprefix("c10d::")] = event.count
    model = trainer.learner.model
    state = trainer.learner.optimizer.state
    calls["parts"] = sum(p.to_local().numel() for p in model.parameters())
    calls["held"] = sum(state[p]["exp_avg"].to_local().numel() for p in model.parameters())
    with whole_weights(trainer.learner.objective):
        calls["whole"] = sum(p.numel() for p in model.parameters() if not hasattr(p, "placements"))
    for name, epochs in (("whole", (2,)), ("resumed", (1, 2))):
        for last in epochs:
            accumulating(folder / name, process, backend, max_epoch=last).trainer().train()
            process.gather("the first has written its checkpoint")
    return calls


def accumulating(folder, process, backend, **limits):
    """Return a training of three batches an update and process, with all that is to be stored."""
    toy.ProcessGroup = lambda *_: process
    return Toy(
        folder,
        {"update_freq": (3,), "clip_norm": 1.0, "preflight": False, **limits},
        checkpoint={"no_epoch_checkpoints": True},
        optimizer={"store_ema": True},
        distributed={"ddp_backend": backend},
        scorer=toy.ToyScorer([1.0] * 9),
    )


def test_sharded_processes_hold_parts_and_resume_bit_for_bit(quick_python, tmp_path):
    reports = on_two(quick_python, lambda process: sharded(process, tmp_path / "sharded"), tmp_path)
    # The first process has of 49 weights halves of 32 and 8, and the only row of the output, 9.
    assert sorted(values(reports, "parts")) == sorted(values(reports, "held")) == [20, 29]
    assert set(values(reports, "whole")) == {49}
    for counts in reports:
        # Two updates: gradients are exchanged once in each, not with each batch, and the sums are.
        assert counts["pytorch_ddp", "allreduce_"] == 2 * 2
        assert counts["fully_sharded", "_reduce_scatter_base_"] == 2
    uninterrupted = last_checkpoint(tmp_path / "sharded/whole")
    resumed = last_checkpoint(tmp_path / "sharded/resumed")
    assert uninterrupted.metadata["training_state"]["num_updates"] == 4
    for counts, other in (
        (uninterrupted.model_tensors, resumed.model_tensors),
        (uninterrupted.training_tensors, resumed.training_tensors),
    ):
        torch.testing.assert_close(counts, other, rtol=0, atol=0)


def test_statistics_are_averaged_over_the_processes(quick_python, tmp_path):
    def average(process):
        tensors = [torch.full((2, 3), float(process.rank)), torch.arange(2.0) * process.rank]
        process.average(tensors)
        return [tensor.unique().tolist() for tensor in tensors]

    assert on_two(quick_python, average, tmp_path) == [[[0.5], [0.0, 0.5]]] * 2


@pytest.mark.slow
def test_a_bad_batch_of_any_process_of_torchrun_is_named(tmp_path, quick_python):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    command = [quick_python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run = subprocess.run(
        [*command, str(script), str(tmp_path / "bad"), "3"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        timeout=300,
    )
    assert run.returncode != 0
    # Batch 3 is the second process's second one.
    assert "update 1 (epoch 1)" in run.stderr
    assert "samples 300, 301." in run.stderr


def test_a_half_set_environment_of_processes_is_an_error(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match="RANK is ''; start several processes with torchrun"):
        join_processes(cpu=True)
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(ConfigError, match="RANK is 'one'"):
        join_processes(cpu=True)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0'; .* .1 to"),
        ({"RANK": "2"}, "RANK is '2'; .* .0 to 1"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK is '-1'"),
        ({}, "MASTER_ADDR is ''; .*unset WORLD_SIZE"),
        ({"MASTER_ADDR": "127.0.0.1"}, "MASTER_PORT is ''"),
        ({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "x"}, "MASTER_PORT is 'x'"),
        ({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "70000"}, "1 to 65535"),
    ],
)
def test_variables_left_over_from_another_start_are_named(variables, message, monkeypatch):
    leave_over(monkeypatch, **{"RANK": "0", **variables})
    with pytest.raises(ConfigError, match=message):
        join_processes(cpu=True)


def leave_over(monkeypatch, **variables):
    for name in ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"WORLD_SIZE": "2", **variables}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(("rank", "other"), [(0, 1), (1, 0)])
def test_a_process_alone_says_for_whom_it_waits_and_gives_up(rank, other, monkeypatch, capsys):
    port = str(free_port())
    leave_over(monkeypatch, RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    monkeypatch.setattr(distributed, "QUIET_WAITING", 1.0)  # to connect, too
    monkeypatch.setattr(distributed, "MOST_WAITING", 1.2)
    address = f"MASTER_ADDR 127.0.0.1, MASTER_PORT {port}"
    with pytest.raises(TrainingError, match=f"process {other} of 2 did not come .*{address}"):
        join_processes(cpu=True)
    assert capsys.readouterr().err == f"process {rank} waits for process {other} of 2 ({address})\n"


def test_a_port_that_is_taken_is_named(monkeypatch):
    with socket.create_server(("", 0)) as server:
        port = str(server.getsockname()[1])
        leave_over(monkeypatch, RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        with pytest.raises(ConfigError, match=f"MASTER_PORT {port}: cannot be used"):
            join_processes(cpu=True)


MEETING = """
from relu_nmt.training.distributed import join_processes
import torch

process = join_processes(cpu=True)
print(process.sum(torch.tensor(process.rank + 1)).item())
process.close()
"""


def test_processes_that_start_without_torchrun_meet(monkeypatch, quick_python):
    port = str(free_port())
    leave_over(monkeypatch, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    processes = []
    for rank in ("1", "0"):
        environment = {**os.environ, "RANK": rank, "PYTHONPATH": str(ROOT)}
        command = [quick_python, "-c", MEETING]
        processes.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        )
    assert [process.communicate(timeout=300)[0] for process in processes] == ["3\n", "3\n"]
