"""Lexical shortlists: the target symbols that the translation of a source may need."""

import os
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from relu_nmt.data.dictionary import SPECIAL_SYMBOLS, Dictionary
from relu_nmt.errors import DataError
from relu_nmt.io.text_lines import read_lines

NUM_SPECIAL = len(SPECIAL_SYMBOLS)  # the first ids, which every translation may need
MULTIPLE = 128
"""The size of a batch's list is a multiple of this, since oneDNN compiles each size on CPUs."""
PAIR_MARK = "#languages:"
"""Beginning of the word that names the languages, the last word of a file's first line."""
ROUNDS = 5  # rounds of expectation maximization. After these the lists hardly change.


@dataclass(frozen=True, eq=False)
class Shortlist:
    """Target symbols that the translation of each source symbol may need.

    Reference: Jean et al. 2015, "On using very large target vocabulary for neural machine
    translation", section 3.3: the common symbols, and the likeliest of each source word.
    """

    common: Tensor  # ids of symbols that any translation may need, int64 [F]
    candidates: Tensor  # ids of the symbols for each source symbol, int64 [V, N], padded with 0
    num_symbols: int  # size of the target dictionary, which has frequent symbols first

    def of(self, src_tokens: Tensor, needed: Iterable[int] = ()) -> Tensor:
        """Return the sorted ids for sources [B, S] and the ``needed`` ids, int64 [V']."""
        # Special, common and needed symbols, and the candidates of all source tokens.
        always = torch.tensor([*range(NUM_SPECIAL), *needed])
        of_sources = self.candidates[src_tokens.cpu().flatten()].flatten()
        listed = torch.cat([always, self.common, of_sources]).unique()
        # Fill up with the most frequent other symbols.
        is_unlisted = torch.ones(self.num_symbols, dtype=torch.bool).index_fill_(0, listed, False)
        added = is_unlisted.nonzero()[: -len(listed) % MULTIPLE, 0]
        return torch.cat([listed, added]).sort().values.to(src_tokens.device)

    @classmethod
    def learn(
        cls,
        pairs: Iterable[tuple[np.ndarray, np.ndarray]],
        vocab_sizes: tuple[int, int],
        num_candidates: int,
        num_common: int,
    ) -> "Shortlist":
        """Return the likeliest translations by IBM model 1, and the most frequent symbols.

        It needs 16 bytes for each pair of a source and a target token in a sentence pair.

        Reference: Brown et al. 1993, "The mathematics of statistical machine translation",
        section 4.1.
        """
        # List all pairs of tokens as keys, each with the position of its target token.
        num_source, num_target = vocab_sizes
        keys = [np.zeros(0, np.int64)]
        positions = [np.zeros(0, np.int64)]
        count = 0
        frequency = np.zeros(num_target, dtype=np.int64)
        for source, target in pairs:
            # Source symbol 0 stands for the empty word, which also has translations.
            source = np.append(source, 0).astype(np.int64)
            keys.append((source[:, None] * num_target + target).ravel())
            positions.append(np.tile(np.arange(count, count + len(target)), len(source)))
            count += len(target)
            frequency += np.bincount(target, minlength=num_target)
        # Expectation maximization: share each target token among its source tokens.
        pair_keys, index = np.unique(np.concatenate(keys), return_inverse=True)
        position = np.concatenate(positions)
        sources, targets = np.divmod(pair_keys, num_target)
        probability = np.ones(len(pair_keys))
        for _ in range(ROUNDS):
            share = probability[index]
            share /= np.bincount(position, share)[position]
            counts = np.bincount(index, share)
            probability = counts / np.bincount(sources, counts)[sources]
        # Keep the likeliest targets of each source symbol.
        order = np.lexsort((-probability, sources))
        sources = sources[order]
        targets = targets[order]
        rank = np.arange(len(sources)) - np.searchsorted(sources, sources)
        best = (rank < num_candidates) & (sources > 0)
        candidates = np.zeros((num_source, num_candidates), dtype=np.int64)
        candidates[sources[best], rank[best]] = targets[best]
        # Order symbols by frequency, ties by their ids.
        common = np.argsort(-frequency, kind="stable")[:num_common]
        return cls(torch.from_numpy(common), torch.from_numpy(candidates), num_target)

    def to_text(self, source: Dictionary, target: Dictionary, pair: str | None = None) -> str:
        """Return a line of common symbols and the ``pair``, then the candidates of each symbol."""
        # Leave out special symbols, which every list has anyway.
        first_line = [target[i] for i in self.common.tolist() if i >= NUM_SPECIAL]
        if pair is not None:
            first_line.append(PAIR_MARK + pair)
        text = " ".join(first_line) + "\n"
        for symbol, candidates in enumerate(self.candidates.tolist()):
            if any(candidates):
                symbols = [target[i] for i in candidates if i >= NUM_SPECIAL]
                text += " ".join([source[symbol], *symbols]) + "\n"
        return text

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        source: Dictionary,
        target: Dictionary,
        pair: str | None = None,
    ) -> "Shortlist":
        """Read a file with text from :meth:`to_text`, for these dictionaries and this ``pair``."""
        lines = read_lines(path)
        if not lines:
            raise DataError(f"{path}: the shortlist is empty; run relu-nmt-shortlist again")
        # The first line has the common symbols, and perhaps the languages at its end.
        common, *rows = [line.split(" ") for line in lines]
        named = common[-1].removeprefix(PAIR_MARK)
        if pair is not None and common[-1] == PAIR_MARK + named and named != pair:
            raise DataError(
                f"{path}: the shortlist is for {named}, but the model translates {pair}; run "
                f"relu-nmt-shortlist with --source-lang and --target-lang of the model"
            )
        # Each further line is a source symbol and its candidates.
        lists: dict[int, list[int]] = {}
        for number, (first, *candidates_of_first) in enumerate(rows, start=2):
            unknown = [symbol for symbol in candidates_of_first if symbol not in target]
            if first not in source:
                unknown = [first]
            if unknown:
                raise DataError(
                    f"{path}: line {number}: {unknown[0]!r} is no symbol of the model; learn the "
                    "shortlist from the data folder that it was trained on"
                )
            if source.index(first) in lists:  # any text of known words looks like a shortlist
                raise DataError(
                    f"{path}: line {number}: a second list of {first!r}; give a file that "
                    "relu-nmt-shortlist wrote"
                )
            lists[source.index(first)] = [target.index(symbol) for symbol in candidates_of_first]
        candidates = torch.zeros(len(source), max(map(len, lists.values()), default=0)).long()
        for i, ids in lists.items():
            candidates[i, : len(ids)] = torch.tensor(ids)
        # Ignore common symbols that the dictionary lacks, such as the named languages.
        common_ids = [target.index(symbol) for symbol in common if symbol in target]
        return cls(torch.tensor(common_ids, dtype=torch.int64), candidates, len(target))
