"""Examples that are new in each run, where other tests always have the same examples."""

from hypothesis import HealthCheck, settings


def fresh(count: int) -> settings:
    """Return the settings of a test on ``count`` new examples."""
    return settings(
        max_examples=count,
        derandomize=False,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
