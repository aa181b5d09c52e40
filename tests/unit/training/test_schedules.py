import math

import pytest

from relu_nmt.errors import ConfigError
from relu_nmt.training.optimization import SCHEDULES, ScheduleConfig


def build(name, max_update=0, maximize=False, **settings):
    config = ScheduleConfig(lr_scheduler=name, **settings)
    return SCHEDULES.get(name)(config, max_update, maximize)


def test_every_schedule_is_built_and_resumes():
    for name in SCHEDULES.names():
        schedule = build(name, max_update=100, warmup_updates=10)
        schedule.end_epoch(50, 1.0)
        resumed = build(name, max_update=100, warmup_updates=10)
        resumed.load_state(schedule.state())
        assert resumed.learning_rate(60, 2) == schedule.learning_rate(60, 2) > 0


def test_the_learning_rates_of_the_paper():
    schedule = build("inverse_sqrt", lr=(6.9877e-4,), warmup_updates=4000, warmup_init_lr=0.0)
    for update, rate in [(1, 1.75e-7), (4000, 6.99e-4), (16000, 3.49e-4), (100000, 1.40e-4)]:
        assert schedule.learning_rate(update, 1) == pytest.approx(rate, rel=5e-3)
        closed = 512**-0.5 * min(update**-0.5, update * 4000**-1.5)
        assert schedule.learning_rate(update, 1) == pytest.approx(closed, rel=1e-4)


def test_inverse_sqrt_warms_up_from_the_given_rate():
    schedule = build("inverse_sqrt", lr=(1e-3,), warmup_updates=100, warmup_init_lr=1e-4)
    assert schedule.learning_rate(50, 1) == pytest.approx(1e-4 + 50 * 9e-4 / 100)
    assert schedule.learning_rate(400, 1) == pytest.approx(5e-4)
    assert build("inverse_sqrt").learning_rate(4000, 1) == pytest.approx(5e-4)
    with pytest.raises(ConfigError, match="--warmup-updates"):
        build("inverse_sqrt", warmup_updates=0)


def test_cosine():
    schedule = build(
        "cosine", lr=(1e-3,), min_lr=1e-5, warmup_updates=10, lr_period_updates=100, lr_shrink=0.5
    )
    assert schedule.learning_rate(5, 1) == pytest.approx(1e-5 + 0.5 * (1e-3 - 1e-5))
    for position in (0, 25, 50, 99):
        expected = 1e-5 + 0.5 * (1e-3 - 1e-5) * (1 + math.cos(math.pi * position / 100))
        assert schedule.learning_rate(10 + position, 1) == pytest.approx(expected)
        assert schedule.learning_rate(110 + position, 1) == pytest.approx(expected / 2)


def test_cosine_periods_grow():
    schedule = build("cosine", lr=(1e-3,), lr_period_updates=100, t_mult=2.0, lr_shrink=1.0)
    # Periods of 100, 200 and 400 updates begin at 0, 100 and 300.
    for start, length in ((0, 100), (100, 200), (300, 400)):
        assert schedule.learning_rate(start + length // 2, 1) == pytest.approx(5e-4)
        assert schedule.learning_rate(start + 1, 1) > 9.9e-4


def test_cosine_takes_its_period_from_max_update():
    schedule = build("cosine", max_update=109, lr=(1e-3,), warmup_updates=10)
    assert schedule.learning_rate(60, 1) == pytest.approx(5e-4)
    assert schedule.learning_rate(109, 1) < 1e-6
    with pytest.raises(ConfigError, match="--lr-period-updates"):
        build("cosine", warmup_updates=10)


def test_polynomial_decay():
    schedule = build(
        "polynomial_decay",
        lr=(1e-3,),
        warmup_updates=10,
        total_num_update=110,
        power=2.0,
        end_learning_rate=1e-5,
    )
    assert schedule.learning_rate(1, 1) == pytest.approx(1e-4)
    assert schedule.learning_rate(10, 1) == pytest.approx(1e-3)
    assert schedule.learning_rate(60, 1) == pytest.approx((1e-3 - 1e-5) * 0.25 + 1e-5)
    assert schedule.learning_rate(110, 1) == schedule.learning_rate(999, 1) == 1e-5


def test_fixed():
    schedule = build("fixed", lr=(1e-3, 5e-4), force_anneal=4, lr_shrink=0.1, warmup_updates=4)
    assert schedule.learning_rate(1, 1) == pytest.approx(0.25e-3)
    rates = [schedule.learning_rate(100, epoch) for epoch in (1, 2, 3, 4, 5)]
    assert rates == pytest.approx([1e-3, 5e-4, 5e-4, 5e-5, 5e-6])


@pytest.mark.parametrize("maximize", [False, True])
def test_plateau(maximize):
    sign = -1 if maximize else 1
    schedule = build(
        "reduce_lr_on_plateau",
        maximize=maximize,
        lr=(1.0,),
        lr_patience=1,
        lr_shrink=0.5,
        warmup_updates=10,
    )
    assert schedule.learning_rate(5, 1) == 0.5
    rates = []
    scores = [10.0, 10 - sign, 10 - 1.0001 * sign, 10.0, 10.0, 10.0, None]
    for epoch, score in enumerate(scores, start=1):
        schedule.end_epoch(epoch * 11, score)
        rates.append(schedule.learning_rate(epoch * 11 + 1, epoch + 1))
    # The improvement by 0.0001 is below the threshold, so two bad epochs halve the rate.
    assert rates == [1.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.25]


def test_plateau_goes_on_from_another_schedule():
    schedule = build("reduce_lr_on_plateau", lr=(1.0,))
    schedule.load_state(build("fixed").state())
    assert schedule.learning_rate(5, 1) == 1.0


def test_scores_during_warm_up_do_not_count():
    schedule = build("reduce_lr_on_plateau", lr=(1.0,), warmup_updates=10)
    for _ in range(3):
        schedule.end_epoch(10, 5.0)
    assert schedule.learning_rate(11, 2) == 1.0
