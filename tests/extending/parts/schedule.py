from relu_nmt.config import option, settings
from relu_nmt.training import SCHEDULES
from relu_nmt.training.schedules import Schedule, WarmupConfig


@settings(flags=False)
class HalvingConfig(WarmupConfig):
    every: int = option(1000, "updates between two halvings", least=1)


@SCHEDULES.register("halving")
class HalvingSchedule(Schedule):
    """The learning rate, halved after every so many updates."""

    Config = HalvingConfig

    def learning_rate(self, num_updates, epoch):
        if num_updates < self.warmup:
            return self.warming_up(num_updates)
        return self.peak * 0.5 ** (num_updates // self.config.every)
