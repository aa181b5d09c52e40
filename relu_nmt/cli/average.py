"""Average the weights of checkpoints.

The average often translates better than the last checkpoint alone:

  relu-nmt-average --inputs checkpoints --num-epoch-checkpoints 5 --output average.safetensors
"""

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.config import REQUIRED, WRITTEN, Files, option, settings
from relu_nmt.errors import ConfigError

NUMBERED = r"checkpoint(\d+|_\d+_\d+)\.safetensors"
"""Names of the checkpoints that are saved by epochs and by updates."""


@settings
class AverageSettings:
    """Checkpoints to average, and the file for the average."""

    inputs: tuple[str, ...] = option(
        REQUIRED, "checkpoints, or their folder", several=True, files=Files(names=NUMBERED)
    )
    output: str = option(REQUIRED, "checkpoint to write", files=WRITTEN)
    num_epoch_checkpoints: int | None = option(
        None, "average the last N of the folder that were saved by epochs", least=1
    )
    num_update_checkpoints: int | None = option(
        None, "average the last N of the folder that were saved by updates", least=1
    )
    checkpoint_upper_bound: int | None = option(None, "take none of a later epoch (or update)")

    def check(self) -> None:
        """Compare the settings with each other."""
        flags = "--num-epoch-checkpoints and --num-update-checkpoints"
        counts = [self.num_epoch_checkpoints, self.num_update_checkpoints]
        num_flags = sum(count is not None for count in counts)
        if num_flags > 1:
            raise ConfigError(f"{flags} exclude each other")
        if not num_flags and self.checkpoint_upper_bound is not None:
            raise ConfigError(f"--checkpoint-upper-bound needs {flags.replace('and', 'or')}")
        if num_flags and len(self.inputs) != 1:
            raise ConfigError(f"{flags} need one folder as --inputs")


main = RecipeCommand(
    "relu-nmt-average",
    __doc__,
    AverageSettings,
    "convert.average",
    user_modules=False,
    computes=False,
)

if __name__ == "__main__":
    raise SystemExit(main())
