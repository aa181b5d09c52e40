"""Train a translation model on a data folder, or go on with its training."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from relu_nmt.attention.base import using_backend
from relu_nmt.config import split_paths
from relu_nmt.config.shared import AUTO_TOKENS, BatchLimits
from relu_nmt.data.documents import SINGLE_SENTENCES
from relu_nmt.data.split import LENGTHS_FILE, Split, lengths_in_words
from relu_nmt.data.translation_batches import (
    Longest,
    ShardedBatches,
    TranslationBatches,
    least_limit,
)
from relu_nmt.engine import install
from relu_nmt.errors import CheckpointError, ConfigError, DataError, counted, reporting
from relu_nmt.io.safe_write import write_text
from relu_nmt.jobs.train.settings import TranslationTrainingSettings as Settings
from relu_nmt.jobs.train.settings import detokenizer_settings, search_settings
from relu_nmt.jobs.train.validation_bleu import ValidationBleu
from relu_nmt.jobs.training import Training, run_training
from relu_nmt.training.batches import TrainingData
from relu_nmt.training.checkpoint import Checkpoint, load_weights, read_metadata, same_model
from relu_nmt.training.config import FULLY_SHARDED
from relu_nmt.training.preflight import fitting_tokens
from relu_nmt.training.save_dir import TrainingResult
from relu_nmt.training.state import Components
from relu_nmt.training.trainer import Trainer
from relu_nmt.translation.agreement import LIKE, WITH_SEPARATOR, at_folder, compare_with_data
from relu_nmt.translation.calibration import (
    SAMPLE_TOKENS,
    calibrate,
    changed_slots,
    describe,
    fit_mechanisms,
    scale_queries,
)
from relu_nmt.translation.encoder_decoder import (
    EncoderDecoder,
    build_model,
    start_weights,
    stored_task,
)
from relu_nmt.translation.loss import TranslationObjective
from relu_nmt.translation.search.generator import Generator
from relu_nmt.translation.step_decoder import Ensemble, StepDecoder
from relu_nmt.translation.task import TranslationTask
from relu_nmt.translation.teacher import TaughtObjective
from relu_nmt.translator.models import load_models


def run(settings: Settings, *, progress: bool = True) -> TrainingResult:
    """Train up to a limit or a signal, from a checkpoint if the folder has one.

    Raises:
        ConfigError: settings that contradict each other, the data or the device.
        DataError: the data folder is damaged, or a sentence does not fit into a batch.
        CheckpointError: a checkpoint cannot be read or written, or is one of other dictionaries.
        TrainingError: the loss or the gradient is not finite.
    """
    return run_training(TranslationTraining, settings, progress)


class TranslationTraining(Training):
    """Makes the parts of a translation training."""

    settings: Settings
    task: TranslationTask
    _folders: list[str]
    _earlier: TranslationTask | None
    _longest: Longest
    _longest_sentences: Longest

    def trainer(self) -> Trainer:
        """Make task, model, loss and batches, print their sizes, and return the trainer."""
        # Make the task, the model and the loss.
        settings = self.settings
        self.task = self._open_task()
        model = self._model()
        if (path := self.checkpoint_to_continue) is not None and self._earlier is not None:
            notes = compare_with_data(
                path, self._earlier, self.task, self._folders[0], self.goes_on, self.fresh_start
            )
            for note in notes:
                self.say(f"note: {note}")
        teachers = self._teachers()
        alignment_lambda = settings.alignment_lambda if settings.load_alignments else 0.0
        make_objective: Callable[..., TranslationObjective] = TranslationObjective
        if teachers:
            make_objective = partial(TaughtObjective, teachers, settings.teacher)
        accuracy, penalty = settings.report_accuracy, settings.regularizer
        objective = make_objective(model, settings.smoothing, penalty, accuracy, alignment_lambda)
        # Open the batches, and the scorer of the first validation set.
        models = (model, *teachers)
        self._longest = self._longest_of(*models)
        self._longest_sentences = (
            least_limit(network.most_tokens("source", True) for network in models),
            least_limit(network.most_tokens("target", True) for network in models),
        )
        train, valid = self._batches(objective)
        settings, batching = self.settings, self.settings.batching
        first = next(iter(valid.values()), None) if settings.eval_bleu else None
        scorer = None if first is None else self._bleu_of(model, first)
        return self.trainer_of(
            objective,
            TrainingData(train, valid, scorer),
            self.task.to_state(),
            f"max tokens per device = {batching.max_tokens} and max sentences per "
            f"device = {batching.batch_size}",
            settings.trainer,
            lambda checkpoint: self._start_weights(model, checkpoint, train.batches),
        )

    def _start_weights(
        self, model: EncoderDecoder, checkpoint: Checkpoint, batches: TranslationBatches
    ) -> Mapping[str, Tensor]:
        """Return initial weights from another model, calibrated for mechanisms that it lacks."""
        config = self.settings.model
        weights = start_weights(model, checkpoint)
        slots = changed_slots(checkpoint.metadata.get("model_config", {}), config)
        if not slots:
            return weights

        def build() -> EncoderDecoder:
            with using_backend("auto"):  # the named one may need a GPU
                return build_model(config, self.task)

        # Calibrate a copy on the CPU, as the model itself may be sharded.
        copy = self.new_model(build)
        weights = fit_mechanisms(copy, weights, slots)
        origin = self.settings.trainer.finetune_from_model or ""
        load_weights(copy, weights, origin, advice=same_model(self.fresh_start))
        is_first = self.process.is_first
        measured = calibrate(copy, batches.sample(SAMPLE_TOKENS), slots) if is_first else None
        # Give every process the same factors, since sums may differ in their last digits.
        factors = self.process.gather(measured)[0]
        for factors_of_slot in factors.values():
            for name, factor in factors_of_slot.items():
                scale_queries(weights, name, factor)
        for line in describe(slots, factors):
            self.say(line)
        return weights

    def _open_task(self) -> TranslationTask:
        settings = self.settings
        self._folders = split_paths(settings.data, ":")
        task = TranslationTask.from_data_folder(
            self._folders[0], settings.source_lang, settings.target_lang
        )
        languages = {"source_lang": task.source_lang, "target_lang": task.target_lang}
        # Refuse a detokenizer of another language than the data's.
        for name, language in detokenizer_settings(settings.eval_bleu_detok_args).items():
            if language != languages[name]:
                raise ConfigError(
                    f"--eval-bleu-detok-args: {name} {language}, but the data's is "
                    f"{languages[name]}; text is detokenized as that"
                )
        # Undo the preparation of data that came prepared, for BLEU.
        if task.target_text.keeps_text:
            task = task.with_post_processing(
                settings.eval_bleu_remove_bpe, settings.eval_bleu_detok
            )
        # Add the separator, with its id in the model that training starts from, or a teacher's.
        path, teacher = self.checkpoint_to_continue, settings.teacher.teacher
        earlier = self._earlier = None if path is None else stored_task(path)
        if settings.documents.sentence_separator:
            if path is None and teacher is not None:
                of_teacher = stored_task(split_paths(teacher, ":")[0])
                earlier = of_teacher if of_teacher and of_teacher.separators else None
            task = task.with_sentence_separator(earlier)
        return task

    def _model(self) -> EncoderDecoder:
        """Return a new model, and print its size."""
        task, config = self.task, self.settings.model
        self.say(f"[{task.source_lang}] dictionary: {len(task.source_dictionary)} types")
        self.say(f"[{task.target_lang}] dictionary: {len(task.target_dictionary)} types")
        # Refuse to share embeddings of symbols that two dictionaries number differently.
        if config.share_all_embeddings and not task.joined_dictionary:
            raise ConfigError(
                f"--share-all-embeddings: {self.settings.data} has two dictionaries; preprocess "
                "with --joined-dictionary, or give --share-decoder-input-output-embed in its place"
            )
        model = self.new_model(lambda: build_model(config, task))
        self.say(f"model: {self.settings.arch}, attention {config.attention_names}")
        self.say_size(model)
        return model

    def _longest_of(self, *models: EncoderDecoder) -> Longest:
        """Return the longest source and target to train on, which all models can take."""
        config = self.settings.model
        source_limits = [config.max_source_positions]
        target_limits = [config.max_target_positions]
        # Learned positions restart in each sentence of aligned attention, and do not limit groups.
        if config.document_attention == "aligned":
            if models[0].encoder.embedding.positions.max_positions is not None:
                source_limits = []
            if models[0].decoder.embedding.positions.max_positions is not None:
                target_limits = []
        source_limits += [model.most_tokens("source") for model in models]
        target_limits += [model.most_tokens("target") for model in models]
        return least_limit(source_limits), least_limit(target_limits)

    def _teachers(self) -> list[EncoderDecoder]:
        """Return the models of ``--teacher`` on the device, none without the flag."""
        path = self.settings.teacher.teacher
        if path is None:
            return []
        models, task, _ = load_models(path, "auto", None)
        # Name the separator first, which makes dictionaries differ.
        if (task.separators is None) != (self.task.separators is None):
            how = "without --sentence-separator; take a teacher with it, or leave it out here"
            if task.separators is not None:
                how = f"with --sentence-separator; {WITH_SEPARATOR}"
            raise CheckpointError(f"--teacher {path}: trained {how}")
        for side in ("source", "target"):
            if getattr(task, f"{side}_dictionary") != getattr(self.task, f"{side}_dictionary"):
                raise CheckpointError(
                    f"--teacher {path}: has another {side} dictionary than that of "
                    f"{self._folders[0]}; {LIKE} {split_paths(path, ':')[0]}, or train a teacher "
                    "on this data"
                )
        self.say(f"teacher: {len(models)} model(s), {path}")
        # Prepare them to compute only, with packed weights on a CPU.
        for model in models:
            install(model.to(self.process.device), self._search_dtype)
        return models

    @property
    def _search_dtype(self) -> torch.dtype | None:
        """The dtype of models that do not learn: the one in which training computes."""
        run = self.settings.trainer
        return torch.bfloat16 if run.bf16 else torch.float16 if run.fp16 else None

    def _batches(
        self, objective: TranslationObjective
    ) -> tuple[ShardedBatches, dict[str, TranslationBatches]]:
        """Return the batches for training and validation, and print their sizes."""
        train = ShardedBatches(self._folders, self._training_batches)
        train = self._with_sizes(train, objective)
        trainer = self.settings.trainer
        names = [] if trainer.disable_validation else self.settings.valid_subset.split(",")
        valid = {name: self._validation_batches(name) for name in names}
        if self.process.is_first and not trainer.no_save:
            self._write_lengths([train.batches, *valid.values()])
        return train, valid

    def _with_sizes(self, train: ShardedBatches, objective: nn.Module) -> ShardedBatches:
        """Set the numbers of ``--max-tokens auto`` and ``--update-tokens``. Return such batches."""
        batching, trainer, process = self.settings.batching, self.settings.trainer, self.process
        tokens, update_tokens = batching.max_tokens, batching.update_tokens
        notes: list[str] = []
        if not update_tokens and tokens != AUTO_TOKENS:
            return train
        assert tokens is not None, "--update-tokens needs --max-tokens"
        if tokens == AUTO_TOKENS:
            # Keep the number of a checkpoint to go on from, if there is one.
            path = self.checkpoint_to_continue if self.goes_on else None
            args = read_metadata(path).get("args", {}) if path else {}
            tokens = stored = args.get("batching", {}).get("max_tokens")
            if not stored or trainer.preflight:
                # Bring the model, or this process's part, to the device as the trainer does.
                if trainer.ddp_backend == FULLY_SHARDED:
                    process.wrap(objective, FULLY_SHARDED)
                parts = Components(objective.to(process.device).train(), trainer, process)
                share = -(-update_tokens // process.world_size) if update_tokens else None
                longest = max(train.longest_group, *self.settings.documents.training_lengths, 1)
                batch_of = train.batches.largest_within
                tokens = fitting_tokens(parts, batch_of, longest, share, stored)
                if isinstance(objective, TaughtObjective):
                    objective.forget_largest()
            origin = f", as in {path}" if stored else ""
            notes.append(f"--max-tokens auto: {tokens:,}{origin}")
        if update_tokens:
            # Take the number of batches that comes closest.
            together = tokens * process.world_size
            count = max(1, round(update_tokens / together))
            trainer = replace(trainer, update_freq=(count,))
            notes.append(f"--update-freq {count} for updates of {count * together:,} tokens")
        self.say("; ".join(notes))
        batching = replace(batching, max_tokens=tokens, update_tokens=None)
        self.settings = replace(self.settings, batching=batching, trainer=trainer)
        return train.within(tokens)

    def _training_batches(self, folder: str) -> TranslationBatches:
        """Return shuffled batches of the training split of a data folder."""
        batching, lengths = self.settings.batching, self.settings.documents.training_lengths
        split = self._open_corpora(folder)
        # Refuse sentences that fit into no batch, if single sentences are trained on.
        if not batching.skip_invalid_size_inputs and (not lengths or SINGLE_SENTENCES in lengths):
            split.refuse_too_long(batching.max_tokens)
        seed, weights = self.settings.trainer.seed, self.settings.corpus_weights
        return self._batches_of(split, batching.training_limits, lengths, seed, weights)

    def _validation_batches(self, name: str) -> TranslationBatches:
        """Return batches of all sentences of a split, in groups if documents are trained on."""
        documents, with_alignments = self.settings.documents, self.settings.load_alignments
        split = self._prepared(self._checked([self.task.load_split(name, with_alignments)]))
        lengths = (documents.validation_length,) if documents.active else ()
        return self._batches_of(split, self.settings.batching.validation_limits, lengths)

    def _batches_of(
        self,
        split: Split,
        limits: BatchLimits,
        lengths: tuple[int, ...],
        seed: int | None = None,
        weights: Sequence[float] = (),
    ) -> TranslationBatches:
        """Return the batches of a split, and print the lengths of their groups."""
        skip = self.settings.batching.skip_invalid_size_inputs
        batches = TranslationBatches(
            split, limits, lengths, seed, skip, self._longest, self._longest_sentences, weights
        )
        descriptions = batches.describe_lengths()
        mixed = " (first epoch; another mixture in each)" if len(descriptions) > 1 else ""
        for description in descriptions:
            self.say(f"{batches.split.name}{mixed}: {lengths_in_words(description)}")
        if batches.num_skipped:
            self.say(
                f"{batches.num_skipped:,} of them are longer than --max-tokens or than the model "
                "can take, and left out (--skip-invalid-size-inputs-valid-test)"
            )
        return batches

    def _open_corpora(self, folder: str) -> Split:
        """Return the training split of a data folder joined with the splits of further folders."""
        options, first_folder = self.settings, self._folders[0]
        # Open each further folder, whose dictionaries must equal the dictionaries of the first.
        extra_data = options.extra_data if folder == first_folder else (folder, *options.extra_data)
        tasks = [self.task] if folder == first_folder else []
        tasks += [at_folder(self.task, path, first_folder) for path in extra_data]
        corpora = [
            self._checked(task.load_chained(options.train_subset, options.load_alignments))
            for task in tasks
        ]
        for corpus in corpora:
            # Refuse a corpus without alignments if the loss learns from them.
            if options.load_alignments and corpus.alignments is None:
                raise DataError(
                    f"{corpus.stem}: no word alignments of it; run relu-nmt-preprocess with "
                    "--align-suffix, or leave --load-alignments and its --criterion out"
                )
        # Begin sources of further corpora with unused symbols, if tags are asked for.
        tags, count = [-1] * len(corpora), len(options.extra_data)
        if options.tag_extra_data:
            dictionary = self.task.source_dictionary
            fillers = dictionary.fillers
            if len(fillers) < count:
                raise ConfigError(
                    f"--tag-extra-data: the source dictionary has {len(fillers)} unused entries "
                    f"for {count} tags; preprocess with --padding-factor "
                    f"{len(dictionary) - len(fillers) + count}"
                )
            tags[1:] = fillers[:count]
        # Warn of corpora without boundaries if others have them.
        without = [corpus for corpus in corpora if corpus.documents is None]
        if options.documents.active and len(without) < len(corpora):
            for corpus in without:
                self.say(f"{corpus.stem}: no document boundaries, so that each sentence is one")
        return self._prepared(Split.chained(corpora, tags), options.tag_extra_data)

    def _checked(self, splits: list[Split]) -> Split:
        """Return several splits as one, and print their sizes."""
        for part in splits:
            if part.target is None:
                raise DataError(f"{part.source.prefix}: has no target side to learn from")
            self.say(f"{part.source.prefix}: {counted(len(part), 'sentence pair')}")
        return Split.chained(splits)

    def _prepared(self, split: Split, has_tags: bool = False) -> Split:
        """Return a split with long sources cut and documents required, as the settings say."""
        longest, documents = self._longest[0], self.settings.documents
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
            # Leave room for the tag, if sources have one.
            split.longest_source = longest - has_tags
            if cut := split.num_truncated:
                self.say(
                    f"{split.name}: {counted(cut, 'source')} cut at {split.longest_source} tokens "
                    "(--truncate-source)"
                )
        if documents.active:
            # Require boundaries of documents if groups have several sentences.
            flag = "--doc-mixture" if documents.doc_mixture else "--max-doc-tokens"
            lengths = *documents.training_lengths, documents.validation_length
            split.require_documents(flag, max(lengths))
        return split

    def _write_lengths(self, batches: Iterable[TranslationBatches]) -> None:
        """Write the lengths of the groups of sentences, if there are documents."""
        splits = {part.split.name: part.describe_lengths() for part in batches}
        # Describe the first epoch, since later ones draw other mixtures.
        content = {
            "sentence_separator": self.settings.documents.sentence_separator,
            "mixture_of_epoch": 1,
            "splits": {name: lengths for name, lengths in splits.items() if lengths},
        }
        if not content["splits"]:
            return
        folder = Path(self.settings.trainer.save_dir)
        with reporting(f"--save-dir {folder}: cannot write {LENGTHS_FILE}", ConfigError):
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / LENGTHS_FILE, json.dumps(content, indent=2) + "\n")

    def _bleu_of(self, model: EncoderDecoder, batches: TranslationBatches) -> ValidationBleu:
        options, task = self.settings, self.task
        generator = Generator(
            Ensemble([StepDecoder(model)], self._search_dtype),
            search_settings(options.eval_bleu_args),
            task.target_dictionary,
            task.separators,
            first_symbol=task.target_text.first_symbol,
        )
        is_active, longest = options.documents.active, self._longest[0]
        bleu = ValidationBleu(
            generator, task, batches, options, self.process, self.say, is_active, longest
        )
        if bleu.scorer.note:
            self.say(f"note: {bleu.scorer.note}")
        return bleu
