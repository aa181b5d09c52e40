"""The models of a sweep, and the commands of their steps."""

import pytest

from relu_nmt.applications.sweep.settings import SweepSettings
from relu_nmt.applications.sweep.steps import arguments_of, planned_models, shown_command
from relu_nmt.cli.command import make_parser
from relu_nmt.config import add_settings, read_settings
from relu_nmt.errors import ConfigError
from relu_nmt.jobs.sweep.job import _without_weights, attention_flags, plan_steps
from relu_nmt.jobs.train.settings import TranslationTrainingSettings


def make_settings(train_flags=(), **values):
    values = {
        "lengths": (128, 512),
        "attentions": ("softmax", "reluformer"),
        "seeds": (1, 2),
        "budget": "10u",
        "save_dir": "out",
        **values,
    }
    return SweepSettings.of(data="data", train_flags=tuple(train_flags), **values)


def make_plan(train_flags=(), **values):
    """Return the steps of each model."""
    steps = {}
    for step in plan_steps(make_settings(train_flags, **values)):
        steps.setdefault(step.model, []).append(step)
    return steps


def first_steps(train_flags=(), **values):
    return next(iter(make_plan(train_flags, **values).values()))


def after(command, flag):
    return command[command.index(flag) + 1]


def checkpoint(step, flag="--path"):
    [first, *_] = step.commands
    return after(first, flag) if flag in first else None


def test_a_model_for_each_attention_length_and_seed():
    plan = make_plan()
    models = list(plan)
    assert models == list(planned_models(make_settings()))
    assert len(models) == len(set(models)) == 8
    assert {t.seed for t in models[:4]} == {1}
    assert len({t.name for t in models}) == 8
    assert [step.path(".log").name for step in plan[models[1]]] == ["train.log", "evaluate-128.log"]


def test_a_mixture_is_one_model_evaluated_at_every_length():
    plan = make_plan(doc_mixture=(1, 128), lengths=(1, 128, 512))
    assert list(map(str, plan))[:2] == [
        "softmax mixture 1,128 seed 1",
        "reluformer mixture 1,128 seed 1",
    ]
    train, *evaluations = next(iter(plan.values()))
    assert after(train.commands[0], "--doc-mixture") == "1,128"
    assert "--max-doc-tokens" not in train.commands[0]
    limits = [after(step.commands[0], "--max-doc-tokens") for step in evaluations]
    assert limits == ["1", "128", "512"]
    assert len({step.folder for step in (train, *evaluations)}) == 1


def test_each_model_starts_from_the_sentence_model_of_its_attention_and_seed():
    sentences = make_plan(lengths=(1,), save_dir="sentences")
    checkpoints = {checkpoint(evaluate) for _, evaluate in sentences.values()}
    plan = make_plan(doc_mixture=(1, 128), start_from="sentences/")
    starts = {model: checkpoint(steps[0], "--finetune-from-model") for model, steps in plan.items()}
    assert set(starts.values()) == checkpoints
    for model, start in starts.items():
        assert f"/{model.attention}-L1-seed{model.seed}/" in start
    assert {checkpoint(steps[0], "--finetune-from-model") for steps in sentences.values()} == {None}
    # A slash at the end is no other setting.
    slash = make_settings(start_from="sentences/")
    assert slash.shared_flags == make_settings(start_from="sentences").shared_flags


def test_commands_of_a_model_have_the_given_flags_and_those_of_the_sweep():
    flags = ["--max-tokens", "4096", "-a", "transformer_tiny", "--log-interval", "7"]
    train, evaluate = first_steps(flags, generate_flags=("--beam", "4"))
    command = train.commands[0]
    assert shown_command(command)[:2] == ["relu-nmt-train", "data"]
    assert after(command, "-a") == "transformer_tiny"
    assert "--arch" not in command
    assert after(command, "--attention") == "softmax"
    assert after(command, "--max-update") == "10"
    # The user's flags come later and win over the sweep's own defaults.
    assert command.index("50") < command.index("7")
    generate = evaluate.commands[0]
    folder = "out/models/softmax-L128-seed1"
    assert after(generate, "--path") == f"{folder}/checkpoints/checkpoint_best.safetensors"
    assert after(generate, "--output") == f"{folder}/evaluate-128.txt"
    assert after(generate, "--beam") == "4"
    assert "--attention-stats" in generate


def test_contrasts_are_a_step_of_each_model():
    plan = make_plan(doc_mixture=(1, 128), contrastive="test.contrasts.jsonl")
    for model, (_, evaluate, _, contrasts) in plan.items():
        assert str(contrasts) == f"contrasts of {model}"
        assert not contrasts.is_training
        [command] = contrasts.commands
        assert shown_command(command)[0] == "relu-nmt-score"
        assert after(command, "--contrastive") == "test.contrasts.jsonl"
        assert checkpoint(contrasts) == checkpoint(evaluate)
        assert after(command, "--results") == str(contrasts.path(".results.json"))


def test_attentions_without_weights_are_not_measured():
    settings = make_settings(attentions=("performer",))
    assert "--attention-stats" in plan_steps(settings)[1].commands[0]
    assert "--attention-stats" not in plan_steps(settings, ["performer"])[1].commands[0]


def test_attentions_without_weights_are_found_and_their_options_checked():
    assert _without_weights({"softmax", "xca", "reluformer:gamma=2"}) == {"xca"}
    with pytest.raises(ConfigError, match="--attentions softmax:x=1: unknown option 'x'"):
        _without_weights({"softmax:x=1"})


def test_several_processes_train_a_model_by_torchrun():
    train, evaluate = first_steps(training_processes=4, checkpoint="average:2")
    launched, average = train.commands
    [alone] = first_steps()[0].commands
    launcher = ["torchrun", "--standalone", "--nproc-per-node", "4", "-m", "relu_nmt.cli.train"]
    assert shown_command(launched)[:7] == [*launcher, "data"]
    assert arguments_of(launched)[:3] == arguments_of(alone)[:3]
    assert shown_command(average)[0] == "relu-nmt-average"
    assert shown_command(evaluate.commands[0])[0] == "relu-nmt-generate"


def test_variants_that_validate_by_bleu_use_the_tokenizer_of_the_report():
    plan = make_plan(
        attentions=(), variants=("a: --eval-bleu", "b: --lr 1"), sacrebleu_tokenizer="char"
    )
    first, second = (steps[0].commands[0] for steps in list(plan.values())[:2])
    assert after(first, "--sacrebleu-tokenizer") == "char"
    assert "--sacrebleu-tokenizer" not in second


def test_memories_are_measured_on_demand_and_then_in_every_model_of_a_report():
    plain = make_settings()
    measured = make_settings(memory_stats=True)
    assert "--memory-stats" not in plan_steps(plain)[1].commands[0]
    path = after(plan_steps(measured)[1].commands[0], "--memory-stats")
    assert path == "out/models/softmax-L128-seed1/evaluate-128.memory.json"
    assert plain.shared_flags != measured.shared_flags


def test_averaged_checkpoints_are_a_second_command_of_the_training():
    train, evaluate = first_steps(checkpoint="average:10")
    _, average = train.commands
    assert shown_command(average)[0] == "relu-nmt-average"
    assert after(average, "--num-update-checkpoints") == "10"
    assert after(average, "--output") == after(evaluate.commands[0], "--path")
    assert "--no-epoch-checkpoints" not in train.commands[0]


@pytest.mark.parametrize(
    ("attention", "expected"),
    [
        ("softmax", ("--attention-preset", "none", "--attention", "softmax")),
        ("reluformer", ("--attention-preset", "reluformer")),
        ("reluformer_hybrid", ("--attention-preset", "reluformer_hybrid")),
        ("reluformer_paper", ("--attention-preset", "reluformer_paper")),
        (
            "reluformer:gamma=3",
            ("--attention-preset", "reluformer", "--attention", "reluformer:gamma=3"),
        ),
    ],
)
@pytest.mark.parametrize("arch", ["transformer_tiny", "reluformer_tiny"])
def test_only_reluformers_get_gamma_and_regularizer_of_the_preset(arch, attention, expected):
    assert attention_flags(attention) == expected
    flags = ["--arch", arch, "--max-tokens", "512"]
    command = first_steps(flags, attentions=(attention,))[0].commands[0]
    parser = make_parser("relu-nmt-train", "", user_modules=True)
    add_settings(parser, TranslationTrainingSettings)
    arguments = parser.parse_args(command[3:])
    settings = read_settings(TranslationTrainingSettings, arguments)
    presets = ("reluformer", "reluformer_hybrid", "reluformer_paper")
    spec = "reluformer:gamma=8" if attention in presets else attention
    assert settings.model.attention == spec
    cross = {"softmax": None, "reluformer_paper": None, "reluformer_hybrid": "softmax"}
    assert settings.model.cross_attention == cross.get(attention, "thresholded_relu")
    assert settings.model.encoder_embed_dim == 64
    assert settings.regularizer.attention_norm_weight == (0.0 if attention == "softmax" else 0.1)


def test_variants_are_compared_after_the_attentions_with_flags_of_their_own():
    variants = ("wide: --attention relu:x=1 --lr '1e-3'", "pre: --encoder-normalize-before")
    plan = make_plan(("--lr", "5e-4"), variants=variants, seeds=(1,), lengths=(1,))
    assert [model.name for model in plan] == [
        "softmax-L1-seed1",
        "reluformer-L1-seed1",
        "wide-L1-seed1",
        "pre-L1-seed1",
    ]
    wide, pre = (steps[0].commands[0] for steps in list(plan.values())[2:])
    begin = wide.index("--lr")
    assert wide[begin : begin + 6] == ("--lr", "5e-4", "--attention", "relu:x=1", "--lr", "1e-3")
    assert "--encoder-normalize-before" in pre
    assert "--attention" not in pre


def test_folder_names_are_plain():
    plan = make_plan(attentions=("reluformer:gamma=2,learnable=true", "pointwise:h=relu"))
    names = {model.name for model in plan}
    assert "reluformer-gamma=2-learnable=true-L128-seed1" in names
    assert not set("".join(names)) & set(":/, ")
