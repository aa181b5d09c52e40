"""The corpora of a translation training, as batches."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from relu_nmt.config.shared import BatchLimits
from relu_nmt.data.batch_plan import BatchRules, Longest, least_limit
from relu_nmt.data.document_settings import SINGLE_SENTENCES
from relu_nmt.data.groups import lengths_in_words
from relu_nmt.data.split import LENGTHS_FILE, Split
from relu_nmt.data.translation_batches import TranslationBatches
from relu_nmt.errors import ConfigError, DataError, counted, reporting
from relu_nmt.io.safe_write import write_text
from relu_nmt.jobs.train.settings import TranslationTrainingSettings
from relu_nmt.translation.agreement import at_folder
from relu_nmt.translation.base import TranslationModel
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.task import TranslationTask


@dataclass(frozen=True)
class Corpora:
    """Opens training and validation data, and prints their sizes with ``say``."""

    settings: TranslationTrainingSettings  # the limits of batches are given beside them
    task: TranslationTask  # of the first of the data folders
    folders: Sequence[str]  # one a shard
    # The model that learns, and its teachers. Batches have only sentences that all can read.
    models: Sequence[TranslationModel]
    say: Callable[[str], None]

    @cached_property
    def longest(self) -> Longest:
        """The longest source and target that all models can take."""
        return longest_of(self.settings.model, self.models)

    def training_batches(self, folder: str, limits: BatchLimits) -> TranslationBatches:
        """Return shuffled batches of the training split of a data folder."""
        settings = self.settings
        lengths = settings.documents.training_lengths
        split = self._training_split(folder)
        # Refuse sentences that fit into no batch, if single sentences are trained on.
        has_sentences = not lengths or SINGLE_SENTENCES in lengths
        if has_sentences and not settings.batching.skip_invalid_size_inputs:
            split.refuse_too_long(limits.max_tokens)
        return self._batches_of(split, limits, lengths, is_training=True)

    def validation_batches(self, limits: BatchLimits) -> dict[str, TranslationBatches]:
        """Return batches of each validation split: of groups if the training is on documents."""
        settings = self.settings
        batches: dict[str, TranslationBatches] = {}
        if settings.trainer.disable_validation:
            return batches
        lengths: tuple[int, ...] = ()
        if settings.documents.active:
            lengths = (settings.documents.validation_length,)
        for name in settings.valid_subset.split(","):
            corpus = self._joined([self.task.load_split(name, settings.load_alignments)])
            batches[name] = self._batches_of(self._cut_and_checked(corpus), limits, lengths)
        return batches

    def _batches_of(
        self, split: Split, limits: BatchLimits, lengths: tuple[int, ...], is_training: bool = False
    ) -> TranslationBatches:
        """Return the batches of a split, and print the lengths of their groups."""
        rules = BatchRules(
            limits=limits,
            lengths=lengths,
            is_training=is_training,
            seed=self.settings.trainer.seed,
            skip_too_long=self.settings.batching.skip_invalid_size_inputs,
            longest=self.longest,
            longest_sentences=(
                least_limit(model.most_tokens("source", True) for model in self.models),
                least_limit(model.most_tokens("target", True) for model in self.models),
            ),
            weights=self.settings.corpus_weights if is_training else (),
        )
        batches = TranslationBatches(split, rules)
        descriptions = batches.describe_lengths()
        name = batches.split.name
        if len(descriptions) > 1:
            name += " (first epoch; another mixture in each)"
        for description in descriptions:
            self.say(f"{name}: {lengths_in_words(description)}")
        num_skipped = batches.planned.num_skipped
        if num_skipped:
            self.say(
                f"{num_skipped:,} of them are longer than --max-tokens or than the model "
                "can take, and left out (--skip-invalid-size-inputs-valid-test)"
            )
        return batches

    def _training_split(self, folder: str) -> Split:
        """Return the training split of a data folder joined with the splits of further folders."""
        settings = self.settings
        first_folder = self.folders[0]
        tasks = [self.task]
        if folder != first_folder:
            tasks = [at_folder(self.task, folder, first_folder)]
        # The dictionaries of further folders must equal the dictionaries of the first.
        for path in settings.extra_data:
            tasks.append(at_folder(self.task, path, first_folder))
        corpora = []
        for task in tasks:
            parts = task.load_chained(settings.train_subset, settings.load_alignments)
            corpora.append(self._joined(parts))
        for corpus in corpora:
            # Refuse a corpus without alignments if the loss learns from them.
            if settings.load_alignments and corpus.alignments is None:
                raise DataError(
                    f"{corpus.stem}: no word alignments of it; run relu-nmt-preprocess with "
                    "--align-suffix, or leave --load-alignments and its --criterion out"
                )
        tags = self._tags(len(corpora))
        without = [corpus for corpus in corpora if corpus.documents is None]
        if settings.documents.active and len(without) < len(corpora):
            for corpus in without:
                self.say(f"{corpus.stem}: no document boundaries, so that each sentence is one")
        return self._cut_and_checked(Split.chained(corpora, tags), has_tags=settings.tag_extra_data)

    def _tags(self, num_corpora: int) -> list[int]:
        """Return the symbol before the sources of each corpus, an unused one. -1: none."""
        tags = [-1] * num_corpora
        if self.settings.tag_extra_data:
            count = len(self.settings.extra_data)
            dictionary = self.task.source_dictionary
            fillers = dictionary.fillers
            if len(fillers) < count:
                raise ConfigError(
                    f"--tag-extra-data: the source dictionary has {len(fillers)} unused entries "
                    f"for {count} tags; preprocess with --padding-factor "
                    f"{len(dictionary) - len(fillers) + count}"
                )
            tags[1:] = fillers[:count]
        return tags

    def _joined(self, splits: list[Split]) -> Split:
        """Return several splits as one, and print their sizes."""
        for part in splits:
            if part.target is None:
                raise DataError(
                    f"{part.source.prefix}: has no target side to learn from; preprocess both sides"
                )
            self.say(f"{part.source.prefix}: {counted(len(part), 'sentence pair')}")
        return Split.chained(splits)

    def _cut_and_checked(self, split: Split, has_tags: bool = False) -> Split:
        """Return a split. If the settings say so, cut long sources and require documents."""
        longest = self.longest[0]
        documents = self.settings.documents
        # Cut long sources, which works for single sentences only.
        if self.settings.truncate_source:
            if longest is None:
                raise ConfigError(
                    "--truncate-source: the model reads sources of any length; give "
                    "--max-source-positions, at which they are cut, or leave the flag out"
                )
            if documents.active:
                raise ConfigError(
                    "--truncate-source cuts single sentences; leave it out for documents"
                )
            # Leave room for the tag of sources, if there is one.
            split = replace(split, longest_source=longest - has_tags)
            if split.num_truncated:
                self.say(
                    f"{split.name}: {counted(split.num_truncated, 'source')} cut at "
                    f"{split.longest_source} tokens (--truncate-source)"
                )
        if documents.active:
            # Require boundaries of documents if groups have several sentences.
            flag = "--doc-mixture" if documents.doc_mixture else "--max-doc-tokens"
            longest_group = max(documents.longest_in_training, documents.validation_length)
            split.require_documents(flag, longest_group)
        return split

    def write_lengths(self, batches: Sequence[TranslationBatches]) -> None:
        """Write the lengths of the groups of sentences, if there are documents."""
        # Describe the first epoch, since later ones draw other mixtures.
        splits = {}
        for part in batches:
            if lengths := part.describe_lengths():
                splits[part.split.name] = lengths
        if not splits:
            return
        content = {
            "sentence_separator": self.settings.documents.sentence_separator,
            "mixture_of_epoch": 1,
            "splits": splits,
        }
        folder = Path(self.settings.trainer.save_dir)
        with reporting(f"--save-dir {folder}: cannot write {LENGTHS_FILE}", ConfigError):
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / LENGTHS_FILE, json.dumps(content, indent=2) + "\n")


def longest_of(config: TransformerConfig, models: Sequence[TranslationModel]) -> Longest:
    """Return the longest source and target to train on, which all models can take."""
    source_limits = [config.max_source_positions]
    target_limits = [config.max_target_positions]
    # Learned positions restart in each sentence of aligned attention, and do not limit groups.
    model = models[0]
    if config.document_attention == "aligned" and isinstance(model, EncoderDecoder):
        if model.encoder.embedding.positions.max_positions is not None:
            source_limits = []
        if model.decoder.embedding.positions.max_positions is not None:
            target_limits = []
    source_limits += [model.most_tokens("source") for model in models]
    target_limits += [model.most_tokens("target") for model in models]
    return least_limit(source_limits), least_limit(target_limits)
