import functools
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace

import pytest
from starlette.exceptions import HTTPException

from relu_nmt.applications.serving.queues import Batcher, QueuedRequest, run_large_answer


def sentence(name, tokens=1):
    return SimpleNamespace(name=name, ids=[0] * tokens, sentences=(name,))


class Model:
    """Notes its batches. The first waits until it is let go, so that others gather meanwhile."""

    def __init__(self):
        self.batches = []
        self.started = threading.Event()
        self.go = threading.Event()

    def __call__(self, sources, first_id):
        self.batches.append([source.name for source in sources])
        self.started.set()
        assert self.go.wait(30)
        if any(source.name == "bad" for source in sources):
            raise ValueError("a bad sentence")
        return [[source.name.upper()] for source in sources]


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as pool:
        yield pool


def until(condition):
    while not condition():
        time.sleep(0.001)


def hold(batcher, model, pool):
    """Occupy the model with one sentence."""
    first = pool.submit(batcher.translate, [sentence("first")], QueuedRequest())
    assert model.started.wait(30)
    return first


def sentences(name, number):
    return [sentence(f"{name}{i}") for i in range(number)]


def submit(batcher, pool, requests):
    """Ask, one after the other."""
    answers = []
    for sources in requests:
        answers.append(pool.submit(batcher.translate, sources, QueuedRequest()))
        until(lambda: len(batcher._queued) == len(answers))
    return answers


def test_requests_take_turns_in_full_batches(model, pool):
    with closing(Batcher(model, max_tokens=4)) as batcher:
        hold(batcher, model, pool)
        requests = [sentences("long", 5), [sentence("short")], [sentence("big", 9)]]
        answers = submit(batcher, pool, requests)
        model.go.set()
        results = [answer.result(30) for answer in answers]
    assert results[0] == [[f"LONG{i}"] for i in range(5)]
    assert results[1:] == [[["SHORT"]], [["BIG"]]]
    # Short requests do not wait until a long one before them is done. A sentence that is
    # longer than a batch is a batch alone.
    assert model.batches[1:3] == [["long0", "short"], ["big"]]
    assert sorted(itertools.chain(*model.batches[3:])) == ["long1", "long2", "long3", "long4"]
    assert max(map(len, model.batches)) <= 4


def test_a_batch_waits_for_others(model, pool):
    model.go.set()
    with closing(Batcher(model, max_tokens=2, wait=30)) as batcher:
        first = pool.submit(batcher.translate, [sentence("one")], QueuedRequest())
        two = pool.submit(batcher.translate, [sentence("two")], QueuedRequest())
        assert first.result(10), two.result(10)
    assert sorted(model.batches[0]) == ["one", "two"]


def test_a_request_does_not_fail_because_of_another(model, pool):
    with closing(Batcher(model, max_tokens=9)) as batcher:
        hold(batcher, model, pool)
        requests = [[sentence("good")], [sentence("bad")], [sentence("fine")]]
        answers = submit(batcher, pool, requests)
        model.go.set()
        assert [answers[0].result(30), answers[2].result(30)] == [[["GOOD"]], [["FINE"]]]
        with pytest.raises(ValueError, match="a bad sentence"):
            answers[1].result(30)
        assert not batcher.is_closed


def test_a_request_that_is_given_up_ends_at_once_and_uses_no_model(model, pool):
    with closing(Batcher(model, max_tokens=9)) as batcher:
        hold(batcher, model, pool)
        request = QueuedRequest()
        answer = pool.submit(batcher.translate, [sentence("gone")], request)
        until(lambda: batcher._queued)
        request.give_up()
        with pytest.raises(HTTPException, match="given up"):
            answer.result(30)
        with pytest.raises(HTTPException, match="given up"):
            batcher.translate([sentence("later")], request)
        model.go.set()
        assert batcher.translate([sentence("next")], QueuedRequest()) == [["NEXT"]]
    assert model.batches == [["first"], ["next"]]


def test_a_function_runs_without_sentences_beside_it(model, pool):
    with closing(Batcher(model, max_tokens=9)) as batcher:
        first = hold(batcher, model, pool)
        threads = pool.submit(batcher.run, lambda: threading.current_thread().name, QueuedRequest())
        assert not threads.done()
        model.go.set()
        assert threads.result(30).startswith("model") and first.result(30)
        with pytest.raises(ZeroDivisionError):
            batcher.run(lambda: 1 / 0, QueuedRequest())


def test_a_function_waits_for_one_batch_however_many_requests_wait(model, pool):
    with closing(Batcher(model, max_tokens=1)) as batcher:
        first = hold(batcher, model, pool)
        answers = submit(batcher, pool, [sentences(letter, 3) for letter in "abcd"])
        num_batches = pool.submit(batcher.run, lambda: len(model.batches), QueuedRequest())
        until(lambda: batcher._pool._work_queue.qsize() >= 2)
        model.go.set()
        assert num_batches.result(30) <= 3
        assert first.result(30) and all(len(other.result(30)) == 3 for other in answers)
        assert len(model.batches) == 13


def test_a_search_with_too_few_results_is_an_error(pool):
    with closing(Batcher(lambda sources, first_id: [], max_tokens=1)) as batcher:
        with pytest.raises(ValueError, match="shorter"):
            batcher.translate([sentence("a")], QueuedRequest())
        assert batcher.run(lambda: 1, QueuedRequest()) == 1


@pytest.fixture
def large_answer_runner():
    """A function that calls another when it is its turn. At most four run or wait."""
    with ThreadPoolExecutor(1, "large answer") as executor:
        run = functools.partial(run_large_answer, executor, threading.Semaphore(4))
        run.num_free = lambda: run.args[1]._value
        run.num_queued = executor._work_queue.qsize
        yield run


def test_turns_come_one_after_the_other(large_answer_runner, pool):
    order = []
    begun = threading.Event()
    free = threading.Event()
    requests = [QueuedRequest() for _ in range(4)]
    holding = pool.submit(
        large_answer_runner, lambda: begun.set() or free.wait(30), QueuedRequest()
    )
    assert begun.wait(30)
    answers = []
    for number in range(3):
        work = functools.partial(order.append, number)
        answers.append(pool.submit(large_answer_runner, work, requests[number]))
        until(lambda: large_answer_runner.num_queued() == len(answers))
    with pytest.raises(HTTPException, match="too many"):
        large_answer_runner(lambda: None, requests[3])
    requests[1].give_up()
    with pytest.raises(HTTPException, match="given up"):
        answers[1].result(30)
    # The next one takes the place of the one that is gone.
    last = pool.submit(large_answer_runner, lambda: order.append(3), requests[3])
    until(lambda: large_answer_runner.num_queued() == 4)
    assert order == []
    free.set()
    assert [answer.result(30) for answer in (answers[0], answers[2], last)] == [None] * 3
    assert holding.result(30) and order == [0, 2, 3]
    with pytest.raises(ZeroDivisionError):
        large_answer_runner(lambda: 1 / 0, QueuedRequest())
    assert large_answer_runner(lambda: "after an error", QueuedRequest()) == "after an error"


def test_a_large_answer_that_is_given_up_waits_in_neither_of_its_threads(
    model, large_answer_runner, pool
):
    with closing(Batcher(model, max_tokens=9)) as batcher:
        first = hold(batcher, model, pool)
        for _ in range(30):
            request = QueuedRequest()
            begun = threading.Event()

            def work(request=request, begun=begun):
                begun.set()
                return batcher.run(lambda: None, request)

            large = pool.submit(large_answer_runner, work, request)
            assert begun.wait(30)
            request.give_up()
            with pytest.raises(HTTPException, match="given up"):
                large.result(30)
            until(lambda: large_answer_runner.num_free() == 4)
        model.go.set()
        assert first.result(30)


def test_closing_finishes_the_batch_and_refuses_the_rest(model, pool):
    batcher = Batcher(model, max_tokens=1)
    first = hold(batcher, model, pool)
    [waiting] = submit(batcher, pool, [[sentence("waiting")]])
    closing = pool.submit(batcher.close)
    until(lambda: batcher.is_closed)
    model.go.set()
    closing.result(30)
    assert first.result(30) == [["FIRST"]]
    with pytest.raises(HTTPException, match="stopping"):
        waiting.result(30)
    with pytest.raises(HTTPException, match="stopping"):
        batcher.translate([sentence("late")], QueuedRequest())
    assert batcher.translate([], QueuedRequest()) == []
