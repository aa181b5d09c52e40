"""Settings of relu-nmt-preprocess."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from relu_nmt.config import READ, Files, option, refuse_given, settings, shared, split_paths
from relu_nmt.config import like as option_like
from relu_nmt.data.data_folder import DATA_FILES, dictionary_path, pair_name
from relu_nmt.data.documents import SEPARATORS
from relu_nmt.errors import ConfigError
from relu_nmt.tokenization.base import subword_file_name, subword_models, tokenizers

SideT = TypeVar("SideT")
DEFAULT_SUBWORDS = 10000
SPLIT = ("subword", "subword-nmt", "sentencepiece")
"""The need of options of a subword model."""
TEXTS = Files(beside=r"NAME\.[^.-]+(\.(gz|xz|bz2|zst))?", separator=",")
_texts = partial(option, None, metavar="FP", files=TEXTS)
NOT_WITH_LIKE = (
    *("srcdict", "tgtdict", "thresholdsrc", "thresholdtgt", "nwordssrc", "nwordstgt"),
    *("padding_factor", "subword_size", "subword_model", "target_subword_model"),
)
GIVEN = Files(part_of=("destdir",))  # files that the data folder may contain already, and keeps


@settings
class PreprocessSettings(shared.ClusterOptions):
    """All settings of :mod:`relu_nmt.jobs.preprocess.job`."""

    source_lang: str | None = shared.source_lang_option(
        help="source language, the ending of its files"
    )
    target_lang: str | None = shared.target_lang_option(
        help="target language, the ending of its files"
    )
    trainpref: str | None = _texts(
        "training text without its language ending; several are shards (a,b,c)"
    )
    validpref: str | None = _texts("validation text without the ending; several with commas")
    testpref: str | None = _texts("test text without the ending; several with commas")
    destdir: str = option(
        "data-bin",
        "the data folder to make",
        metavar="DIR",
        files=replace(DATA_FILES, written=True),
    )
    joined_dictionary: bool = option(
        False,
        "one dictionary (and one subword model) for both languages",
        needs=("only_source", False),
    )
    srcdict: str | None = option(None, "use this source dictionary", files=GIVEN)
    tgtdict: str | None = option(
        None, "use this target dictionary", files=GIVEN, needs=("only_source", False)
    )
    thresholdsrc: int = option(
        0, "source words (joined: all words) with fewer occurrences are unknown"
    )
    thresholdtgt: int = option(
        0,
        "target words with fewer occurrences are unknown",
        needs=("joined_dictionary", False),
        no_effect="--thresholdsrc is that of the joined dictionary",
    )
    nwordssrc: int = option(
        -1, "largest size of the source (joined: the) dictionary (-1: no limit)", least=-1
    )
    nwordstgt: int = option(
        -1,
        "largest size of the target dictionary (-1: no limit)",
        least=-1,
        needs=("joined_dictionary", False),
        no_effect="--nwordssrc is that of the joined dictionary",
    )
    padding_factor: int = option(
        8, "fill dictionaries up to a multiple of this size", least=1, most=10_000
    )
    only_source: bool = option(False, "there is no target text")
    dict_only: bool = option(False, "make the dictionaries only")
    tokenizer: str = option(
        "none", "tokenizer of the text (moses-aggressive splits hyphens too)", choices=tokenizers
    )
    lowercase: bool = option(False, "lower-case both sides")
    subword: str = option(
        "none", "split words, with a model learned on the training text", choices=subword_models
    )
    subword_size: int = option(
        DEFAULT_SUBWORDS,
        "merges (subword-nmt) or pieces (sentencepiece) to learn",
        least=1,
        most=10_000_000,
        needs=[SPLIT, ("subword_model", None)],
    )
    subword_model: str | None = option(
        None,
        "codes of subword-nmt or model of SentencePiece to use instead",
        files=GIVEN,
        needs=SPLIT,
    )
    target_subword_model: str | None = option(
        None,
        "model of the target if it is not the same, as Marian's source.spm and target.spm",
        files=GIVEN,
        needs=["subword_model", ("only_source", False)],
    )
    subword_sampling: float = option(
        0.0,
        "split training text at random: BPE-dropout, or power of probabilities",
        least=0,
        most=1,
        metavar="X",
        needs=SPLIT,
    )
    document_separator: str = option(
        "none",
        "between documents: a blank line, or a line <d> before each (tag)",
        choices=SEPARATORS,
    )
    align_suffix: str | None = option(
        None,
        "ending of files with word alignments, lines as '0-0 1-2'",
        metavar="SUFFIX",
        needs=[("only_source", False), ("dict_only", False)],
    )
    workers: int = option(0, "processes (0: one per core)", least=0, most=1024)
    no_progress_bar: bool = shared.no_progress_bar_option()
    seed: int = shared.seed_option(
        help="seed of the sample on which a subword model is learned",
        needs=SPLIT,
        no_effect="no subword model is learned",
    )
    overwrite: bool = option(False, "replace a data folder that was made in another way")
    task: str = option_like(shared.FairseqOptions, "task", "translation")
    dataset_impl: str = option_like(shared.FairseqOptions, "dataset_impl", "mmap")
    like: str | None = option(
        None,
        "take dictionaries, text steps and languages from the checkpoint of a model",
        metavar="CKPT",
        files=READ,
    )

    def check(self) -> None:
        """Compare the settings with each other."""
        if not self.source_lang and not self.like:
            raise ConfigError(
                "--source-lang is missing: give the ending of the source files (-s de)"
            )
        if not (self.only_source or self.target_lang or self.like):
            raise ConfigError(
                "--target-lang is missing: give the ending of the target files (-t en), or "
                "--only-source"
            )
        if self.source_lang and self.source_lang == self.target_lang and not self.only_source:
            raise ConfigError(f"--source-lang and --target-lang are both '{self.source_lang}'")
        # Languages become part of file names.
        for language in (self.source_lang, self.target_lang):
            if language and set(language) & set("./-"):
                raise ConfigError(
                    f"language '{language}': it must not contain '.', '-' or '/', since it is part "
                    "of file names like train.de-en.de; rename the files"
                )
        if not (self.trainpref or self.validpref or self.testpref):
            raise ConfigError("no text: give --trainpref, --validpref or --testpref")
        if self.like:
            reason = f": --like takes dictionaries and subwords of {self.like}"
            refuse_given(self, NOT_WITH_LIKE, reason)
        else:
            self._check_dictionaries()
            if self.subword != "none" and not self.subword_model and not self.trainpref:
                raise ConfigError(
                    f"--subword {self.subword} learns on the training text: give --trainpref or "
                    "--subword-model"
                )
        self._check_alignments()
        self._check_shards()

    def _check_alignments(self) -> None:
        if self.align_suffix is None:
            return
        if self.align_suffix in ("", *self.languages):
            raise ConfigError(
                f"--align-suffix '{self.align_suffix}': expected another ending than those of the "
                "text"
            )
        # Refuse steps that would change the tokens that alignments count.
        for flag, value in (("--tokenizer", self.tokenizer), ("--subword", self.subword)):
            if value != "none":
                raise ConfigError(
                    f"--align-suffix: alignments belong to the tokens between spaces of the text, "
                    f"which {flag} {value} would change; split the text before you align it, and "
                    f"leave {'--like' if self.like else flag} out"
                )

    def _check_dictionaries(self) -> None:
        if self.joined_dictionary and self.srcdict and self.tgtdict:
            raise ConfigError("--joined-dictionary: give --srcdict or --tgtdict, not both")
        if self.trainpref or (self.joined_dictionary and (self.srcdict or self.tgtdict)):
            return
        for flag, path in (("--srcdict", self.srcdict), ("--tgtdict", self.tgtdict)):
            if not path and not (flag == "--tgtdict" and self.only_source):
                raise ConfigError(f"without --trainpref, {flag} must name a dictionary")

    def refuse_idle_limits(self) -> None:
        """Refuse limits for given dictionaries, which are not made here. fairseq ignores them."""
        source = self.srcdict and f"--srcdict {self.srcdict}"
        target = self.tgtdict and f"--tgtdict {self.tgtdict}"
        if self.joined_dictionary:
            source, target = source or target, None
        if source:
            refuse_given(self, ["thresholdsrc", "nwordssrc"], f" does nothing with {source}")
        flags = [flag for flag in (source, target) if flag]
        if len(flags) == len(self.sharing):
            refuse_given(self, ["padding_factor"], f" does nothing with {' and '.join(flags)}")
        if target:
            refuse_given(self, ["thresholdtgt", "nwordstgt"], f" does nothing with {target}")

    def _check_shards(self) -> None:
        if len(self.training_texts) < 2:
            if self.cluster:
                raise ConfigError(
                    "--cluster runs a job for each shard of the training text; give several with "
                    "--trainpref a,b,c"
                )
            return
        if self.dict_only:
            raise ConfigError("--dict-only: give one --trainpref, the text to learn from")
        # Require one model, since all shards use the model of the first shard.
        if self.learns_subwords and not self.joined_dictionary and not self.only_source:
            raise ConfigError(
                f"--subword {self.subword} of several --trainpref: add --joined-dictionary, for "
                "one model of both languages, or give --subword-model"
            )

    @property
    def training_texts(self) -> list[str]:
        """The prefixes of the training text, one for each shard."""
        return split_paths(self.trainpref, ",") if self.trainpref else []

    def shards(self) -> list["PreprocessSettings"]:
        """Return the settings of each shard. The first also gets validation and test text."""
        folders = [f"{self.destdir}/shard{i}" for i in range(len(self.training_texts))]
        shards: list[PreprocessSettings] = []
        for i, (text, folder) in enumerate(zip(self.training_texts, folders, strict=True)):
            values: dict[str, Any] = {"trainpref": text, "destdir": folder}
            if i:
                values |= self._results_of_first_shard(folders[0])
            # With sampling, each shard has another seed, as several may have the same text.
            if self.subword_sampling:
                values["seed"] = self.seed + i
            shards.append(replace(self, cluster=None, cluster_parameters=None, **values))
        return shards

    def _results_of_first_shard(self, folder: str) -> dict[str, Any]:
        """Return the settings of further shards, which use the results in a folder."""
        values: dict[str, Any] = {"validpref": None, "testpref": None}
        if not self.like:
            values |= {"srcdict": None, "tgtdict": None}
            for name, group in zip(("srcdict", "tgtdict"), self.sharing, strict=False):
                values[name] = str(dictionary_path(folder, group[0]))
        if self.learns_subwords:
            language = None if self.joined_dictionary else self.languages[0]
            values["subword_model"] = f"{folder}/{subword_file_name(self.subword, language)}"
            values["subword_size"] = DEFAULT_SUBWORDS
        return values

    @property
    def languages(self) -> tuple[str, ...]:
        """The source language and, unless there is no target text, the target language."""
        pair = [self.source_lang]
        if not self.only_source:
            pair.append(self.target_lang)
        return tuple(filter(None, pair))

    def by_language(self, sides: Sequence[SideT]) -> dict[str, SideT]:
        """Return values of source and target by language. Without target text one is left out."""
        return dict(zip(self.languages, sides, strict=False))

    @property
    def sharing(self) -> tuple[tuple[str, ...], ...]:
        """The groups of languages that share a dictionary and a subword model."""
        if self.joined_dictionary:
            return (self.languages,)
        return tuple((language,) for language in self.languages)

    @property
    def pair(self) -> str:
        """The middle of the file names, "de-en"."""
        return pair_name(self.languages[0], None if self.only_source else self.target_lang)

    @property
    def learns_subwords(self) -> bool:
        """Return whether a subword model is to be learned."""
        return self.subword != "none" and self.subword_model is None and self.like is None

    def splits(self) -> dict[str, str]:
        """Return the path prefix of each split by its name: train, valid, valid1, ..., test."""
        result = {}
        if self.trainpref:
            result["train"] = self.trainpref
        for name, prefixes in (("valid", self.validpref), ("test", self.testpref)):
            if prefixes:
                first, *further = split_paths(prefixes, ",")
                result[name] = first
                for k, prefix in enumerate(further, 1):
                    result[f"{name}{k}"] = prefix
        return result
