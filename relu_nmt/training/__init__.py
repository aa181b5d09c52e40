"""Generic training: any objective, any batches.

:data:`OPTIMIZERS` and :data:`SCHEDULES` are the registries of optimizers and schedules.
One of your own is a class in a file for ``--user-module``, registered with
``@OPTIMIZERS.register("name")`` or ``@SCHEDULES.register("name")``. Its ``Config`` is the settings
class of its options: ``--lr-scheduler NAME:option=value,...``.
"""

from typing import TYPE_CHECKING, Any

from relu_nmt.config.registry import Registry

if TYPE_CHECKING:
    from relu_nmt.training.schedules import Schedule

OPTIMIZERS: Registry[Any] = Registry(
    "optimizer", dict.fromkeys(("adam", "adamw", "adafactor"), "relu_nmt.training.optimizers")
)
SCHEDULES: "Registry[type[Schedule]]" = Registry(
    "lr scheduler",
    dict.fromkeys(
        ("inverse_sqrt", "cosine", "polynomial_decay", "fixed", "reduce_lr_on_plateau"),
        "relu_nmt.training.schedules",
    ),
)
