import json
import math
import re
from pathlib import Path

import pytest

from relu_nmt.config import flag_of, from_dict, option, settings, to_dict
from relu_nmt.config.fields import options_of
from relu_nmt.errors import ConfigError
from relu_nmt.jobs.vision_train.settings import VisionTrainerConfig
from relu_nmt.training import SCHEDULES
from relu_nmt.training.schedules import Schedule, ScheduleConfig, WarmupConfig, build_schedule
from tests.outputs import starting
from tests.unit.training.toy import parsed


def build(name, max_update=0, maximize=False, **settings):
    return build_schedule(ScheduleConfig(lr_scheduler=name, **settings), max_update, maximize)


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


def test_the_cosine_schedule_follows_its_formula():
    schedule = build(
        "cosine", lr=(1e-3,), min_lr=1e-5, warmup_updates=10, lr_period_updates=100, lr_shrink=0.5
    )
    assert schedule.learning_rate(5, 1) == pytest.approx(1e-5 + 0.5 * (1e-3 - 1e-5))
    for position in (0, 25, 50, 99):
        expected = 1e-5 + 0.5 * (1e-3 - 1e-5) * (1 + math.cos(math.pi * position / 100))
        assert schedule.learning_rate(10 + position, 1) == pytest.approx(expected)
        assert schedule.learning_rate(110 + position, 1) == pytest.approx(expected / 2)


def test_periods_of_the_cosine_schedule_grow_by_t_mult():
    schedule = build("cosine", lr=(1e-3,), lr_period_updates=100, t_mult=2.0, lr_shrink=1.0)
    # Periods of 100, 200 and 400 updates begin at 0, 100 and 300.
    for start, length in ((0, 100), (100, 200), (300, 400)):
        assert schedule.learning_rate(start + length // 2, 1) == pytest.approx(5e-4)
        assert schedule.learning_rate(start + 1, 1) > 9.9e-4
    # log(243) / log(3) is less than 5 in floating point.
    schedule = build("cosine", lr=(1e-3,), lr_period_updates=1, t_mult=3.0, lr_shrink=1.0)
    assert schedule.learning_rate((3**5 - 1) // 2, 1) == 1e-3


def test_cosine_takes_its_period_from_max_update():
    schedule = build("cosine", max_update=109, lr=(1e-3,), warmup_updates=10)
    assert schedule.learning_rate(60, 1) == pytest.approx(5e-4)
    assert schedule.learning_rate(109, 1) < 1e-6
    with pytest.raises(ConfigError, match="--lr-period-updates"):
        build("cosine", warmup_updates=10)


def test_the_polynomial_schedule_follows_its_formula():
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


def test_the_fixed_schedule_shrinks_after_force_anneal():
    schedule = build("fixed", lr=(1e-3, 5e-4), force_anneal=4, lr_shrink=0.1, warmup_updates=4)
    assert schedule.learning_rate(1, 1) == pytest.approx(0.25e-3)
    rates = [schedule.learning_rate(100, epoch) for epoch in range(1, 6)]
    assert rates == pytest.approx([1e-3, 5e-4, 5e-4, 5e-5, 5e-6])


@pytest.mark.parametrize("maximize", [False, True])
def test_the_plateau_schedule_shrinks_when_the_score_stays(maximize):
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


def test_a_score_that_is_no_number_is_never_the_best():
    schedule = build("reduce_lr_on_plateau", lr=(1.0,), lr_patience=1)
    for score in (math.nan, 5.0, 4.0, 3.0):
        schedule.end_epoch(11, score)
    assert schedule.learning_rate(12, 5) == 1.0


def test_scores_during_warm_up_do_not_count():
    schedule = build("reduce_lr_on_plateau", lr=(1.0,), warmup_updates=10)
    for _ in range(3):
        schedule.end_epoch(10, 5.0)
    assert schedule.learning_rate(11, 2) == 1.0


def test_a_list_of_learning_rates_is_for_fixed_only():
    assert ScheduleConfig(lr="1e-3").lr == ScheduleConfig(lr=1e-3).lr == (1e-3,)
    assert ScheduleConfig(lr="[0.0005]").lr == (5e-4,)
    assert parsed(ScheduleConfig, ["--lr", "1e-3,5e-4", "--lr-scheduler", "fixed"]).lr == (
        1e-3,
        5e-4,
    )
    with pytest.raises(ConfigError, match="needs --lr-scheduler fixed"):
        ScheduleConfig(lr=(1e-3, 1e-4))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lr_scheduler": "cosin"}, "did you mean cosine"),
        ({"lr_scheduler": "cosine", "lr": (1e-4,), "min_lr": 1e-3}, "--min-lr"),
        ({"warmup_updates": -1}, "--warmup-updates -1"),
        ({"lr": (-1.0,)}, "--lr"),
        ({"lr": ""}, "--lr '': expected numbers with commas"),
        ({"lr": "nan"}, "--lr nan: expected numbers"),
        ({"lr": "inf"}, "--lr inf: expected a number"),
        ({"lr_shrink": 0.5}, "needs --lr-scheduler cosine or fixed or reduce_lr_on_plateau"),
        ({"lr_scheduler": "cosine", "power": 2}, "--power 2 does nothing with --lr-scheduler cos"),
        ({"warmup_init_lr": 0.1, "lr_scheduler": "fixed"}, "--warmup-init-lr 0.1 does nothing"),
        ({"lr_scheduler": "polynomial_decay", "total_num_update": 0}, "--total-num-update"),
    ],
)
def test_contradictions_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        ScheduleConfig(**values)


def test_options_after_the_colon_are_those_of_the_flags():
    config = parsed(ScheduleConfig, ["--lr-scheduler", "inverse_sqrt:warmup=9,init_lr=1e-5"])
    assert config == ScheduleConfig(warmup_updates=9, warmup_init_lr=1e-5)
    assert config == from_dict(ScheduleConfig, to_dict(config))
    assert config == ScheduleConfig(lr_scheduler="inverse_sqrt:warmup=9,init_lr=1e-5")


def test_an_option_after_the_colon_may_repeat_its_flag_with_the_same_value():
    argv = ["--lr-scheduler", "cosine:min_lr=1e-5", "--min-lr", "0.00001"]
    assert parsed(ScheduleConfig, argv).min_lr == 1e-5


def test_typed_options_go_before_a_file_and_presets(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("lr_scheduler: cosine\nmin_lr: 1e-6\nwarmup_updates: 7\n")
    typed = ["--lr-scheduler", "cosine:min_lr=1e-5", "--config", str(file)]
    config = parsed(VisionTrainerConfig, typed).schedule
    assert (config.min_lr, config.warmup_updates) == (1e-5, 7)
    file.write_text("lr_scheduler: fixed:shrink=0.3,warmup=4\n")
    config = parsed(ScheduleConfig, ["--warmup-updates", "5", "--config", str(file)])
    assert (config.lr_shrink, config.warmup_updates) == (0.3, 5)


@pytest.mark.parametrize("stored", ["fixed:shrink=0.3,warmup=4", "fixed:shrink=9", "own:rate=2"])
def test_a_typed_part_replaces_that_of_a_file_with_its_options(stored, tmp_path):
    file = tmp_path / "results.json"
    file.write_text(json.dumps({"settings": {"lr_scheduler": stored}}))
    config = parsed(ScheduleConfig, ["--lr-scheduler", "cosine", "--config", str(file)])
    assert config == ScheduleConfig(lr_scheduler="cosine")


def test_a_colon_without_options_is_left_out():
    assert parsed(ScheduleConfig, ["--lr-scheduler", "fixed:"]).lr_scheduler == "fixed"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["--lr-scheduler", "inverse_sqrt:warmup=4", "--warmup-updates", "5"],
            r"^--lr-scheduler inverse_sqrt:warmup=4 and --warmup-updates 5 differ; leave one of",
        ),
        # The default of a flag that is typed counts too.
        (["--lr-scheduler", "cosine:shrink=0.5", "--lr-shrink", "0.1"], "--lr-shrink 0.1 differ"),
        (["--lr-scheduler", "inverse_sqrt:power=2"], "unknown option 'power': known: warmup, init"),
        (["--lr-scheduler", "fixed:anneal=0"], "fixed:anneal=0: anneal=0: expected 1 or more"),
        (["--lr-scheduler", "fixt:anneal=1"], "--lr-scheduler fixt:anneal=1: expected one of"),
        (["--lr-scheduler", "fixed:anneal=1,anneal=2"], "option 'anneal' is given twice"),
    ],
)
def test_wrong_options_after_the_colon(argv, message):
    with pytest.raises(ConfigError, match=message):
        parsed(ScheduleConfig, argv)


def test_the_documentation_lists_the_options_of_every_schedule():
    rows = (Path(__file__).parents[3] / "docs/guide/settings.md").read_text("utf-8").split("\n")
    for name, entry in options_of(ScheduleConfig).items():
        for part in entry.parts[1:]:
            owners = [n for n in SCHEDULES.names() if part in options_of(SCHEDULES.get(n).Config)]
            (row,) = starting(rows, f"| `{part}` | `{flag_of(name)}` |")
            names = set(SCHEDULES.names()) if "every schedule" in row else None
            assert set(owners) == (names or set(re.findall(r"`(\w+)`", row.split("|")[3])))


def test_every_option_is_a_flag_as_well():
    for name in SCHEDULES.names():
        for key, value in to_dict(SCHEDULES.get(name).Config()).items():
            if value is not None:
                config = ScheduleConfig(lr_scheduler=f"{name}:{key}={value}", lr=1.0)
                assert config.lr_scheduler == name


@settings(flags=False)
class OwnConfig(WarmupConfig):
    power: float = option(2.0, "exponent")


class OwnSchedule(Schedule):
    Config = OwnConfig

    def learning_rate(self, num_updates, epoch):
        return self.peak * num_updates**-self.config.power


@pytest.fixture
def own_schedule(monkeypatch):
    monkeypatch.setitem(SCHEDULES._entries, "own", OwnSchedule)


def test_a_schedule_of_ones_own_has_the_flags_of_its_options(own_schedule):
    assert build("own").config == OwnConfig()
    assert build("own", power=3, warmup_updates=4).config == OwnConfig(power=3.0, warmup=4)
    assert build("own:warmup=4").config.warmup == 4
    with pytest.raises(ConfigError, match="--lr-threshold 2 does nothing with --lr-scheduler own"):
        ScheduleConfig(lr_scheduler="own", lr_threshold=2)


def test_a_schedule_without_declared_options_may_read_any_setting(monkeypatch):
    monkeypatch.setitem(SCHEDULES._entries, "own", object)
    assert ScheduleConfig(lr_scheduler="own", power=2).power == 2
