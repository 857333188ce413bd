"""The nearest text on the other side, by shared words or shingles: exact, without comparing every pair in Python.

The sides become two sparse matrices of text by element; their product holds what each pair of texts shares.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse

SHINGLE_WORDS = 5
# One other word in the middle of a shorter text takes more than a fifth of its shingles: its words are compared instead.
SHORT_WORDS = 50
PAIRS_AT_ONCE = 4_000_000

Numbers = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]
Matrix = Any  # scipy.sparse.csr_matrix, which has no types


class Near(NamedTuple):
    """A pair of texts by their numbers: elements in both, and in either."""

    ours: int
    theirs: int
    shared: int
    united: int


def nearest(ours: list[str], theirs: list[str], threshold: Decimal) -> dict[int, Near]:
    """Per text of ours that has one, its nearest text of theirs at the threshold or above; the first of several."""
    numbers: dict[str, int] = {}

    def words_of(text: str) -> Numbers:
        return np.unique(_word_numbers(text, numbers))

    def shingles_of(text: str) -> Numbers:
        return np.unique(_shingles(_word_numbers(text, numbers)))

    # a text with more different words than this shares too few of them with any that is short
    most = int((SHORT_WORDS - 1) / threshold)
    found: dict[int, Near] = {}
    few = [[at for at, text in enumerate(side) if _has_few_words(text, most)] for side in (ours, theirs)]
    _join(ours, theirs, few, words_of, threshold, found, short_only=True)
    long = [[at for at, text in enumerate(side) if not _is_short(text)] for side in (ours, theirs)]
    _join(ours, theirs, long, shingles_of, threshold, found, short_only=False)
    return found


def _is_short(text: str) -> bool:
    return text.count(" ") + 1 < SHORT_WORDS


def _has_few_words(text: str, most: int) -> bool:
    return _is_short(text) or len(set(text.split(" "))) <= most


def _word_numbers(text: str, numbers: dict[str, int]) -> Numbers:
    return np.array([numbers.setdefault(word, len(numbers)) for word in text.split(" ")], dtype=np.uint64)


def _shingles(words: Numbers) -> Numbers:
    """A number of 64 bits for each 5 words in a row. Two that differ get the same one by chance: 1 in 10**19."""
    last = len(words) - SHINGLE_WORDS + 1
    found = np.zeros(last, dtype=np.uint64)
    for step in range(SHINGLE_WORDS):
        found = _mixed(found + words[step : last + step])
    return found


def _mixed(values: Numbers) -> Numbers:
    """The finalizer of SplitMix64: every bit of the result depends on every bit of the value."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _join(
    ours: list[str],
    theirs: list[str],
    chosen: list[list[int]],
    elements_of: Callable[[str], Numbers],
    threshold: Decimal,
    found: dict[int, Near],
    *,
    short_only: bool,
) -> None:
    """Adds the nearest pairs of the chosen texts; with `short_only`, of those pairs in which a text is short."""
    mine, other = (np.array(side, dtype=np.int64) for side in chosen)
    if not len(mine) or not len(other):
        return
    right, right_sizes, known = _their_elements([theirs[at] for at in other], elements_of)
    left, left_sizes = _our_elements([ours[at] for at in mine], elements_of, known)
    left, right, weights = _merged(left, right)
    if not len(weights):
        return
    short = [np.array([_is_short(side[at]) for at in rows]) for side, rows in ((ours, mine), (theirs, other))]
    turned = right.T.tocsr()
    part, whole = threshold.as_integer_ratio()
    step = max(1, PAIRS_AT_ONCE // len(other))
    for start in range(0, len(mine), step):
        block = (left[start : start + step].multiply(weights).tocsr() @ turned).tocsr()
        i = np.repeat(np.arange(start, start + block.shape[0]), np.diff(block.indptr))
        j, shared = block.indices, block.data
        united = left_sizes[i] + right_sizes[j] - shared
        # in whole numbers: a similarity of exactly the threshold counts
        near = shared * whole >= united * part
        if short_only:
            near &= short[0][i] | short[1][j]
        if near.any():
            _keep_nearest(found, mine[i[near]], other[j[near]], shared[near], united[near])


def _keep_nearest(
    found: dict[int, Near], ours: Integers, theirs: Integers, shared: Integers, united: Integers
) -> None:
    """Takes the nearest of each of ours (in order); of equally near ones the first of theirs."""
    # equal fractions are equal floats, and different ones of numbers this small are not
    order = np.lexsort((theirs, -(shared / united), ours))
    first = order[np.append(True, np.diff(ours[order]) > 0)]
    for near in map(Near, *(values[first].tolist() for values in (ours, theirs, shared, united))):
        old = found.get(near.ours)
        if old is None or (near.shared * old.united, -near.theirs) > (old.shared * near.united, -old.theirs):
            found[near.ours] = near


def _their_elements(
    texts: list[str], elements_of: Callable[[str], Numbers]
) -> tuple[Matrix, Integers, Numbers]:
    """Texts by elements, how many each text has, and the elements in order."""
    sets = [elements_of(text) for text in texts]
    sizes = np.array([len(elements) for elements in sets], dtype=np.int64)
    known, columns = np.unique(np.concatenate(sets), return_inverse=True)
    return _matrix(columns, sizes, len(known)), sizes, known


def _our_elements(
    texts: list[str], elements_of: Callable[[str], Numbers], known: Numbers
) -> tuple[Matrix, Integers]:
    """The same of the known elements only, so that what is on one side alone takes no memory."""
    sizes, columns, lengths = [], [], []
    for text in texts:
        elements = elements_of(text)
        at = np.minimum(np.searchsorted(known, elements), len(known) - 1)
        at = at[known[at] == elements].astype(np.int32)
        sizes.append(len(elements))
        columns.append(at)
        lengths.append(len(at))
    return _matrix(np.concatenate(columns), np.array(lengths), len(known)), np.array(sizes, dtype=np.int64)


def _matrix(columns: npt.NDArray[Any], lengths: Integers, width: int) -> Matrix:
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    ones = np.ones(len(columns), dtype=np.int8)
    return sparse.csr_matrix((ones, columns.astype(np.int32), bounds), shape=(len(lengths), width))


def _merged(left: Matrix, right: Matrix) -> tuple[Matrix, Matrix, Integers]:
    """Elements that stand in the very same texts as one column with a weight, those of one side alone left out.

    So a preamble of a thousand words that all prompts have costs as much as one word.
    """
    sums = [_sums_of_rows(side, seed) for seed, side in enumerate((left, right))]
    in_both = (np.diff(left.tocsc().indptr) > 0) & (np.diff(right.tocsc().indptr) > 0)
    columns = np.where(in_both)[0]
    _, first, weights = np.unique(np.hstack(sums)[columns], axis=0, return_index=True, return_counts=True)
    kept = columns[first]
    whole = [side.tocsc()[:, kept].astype(np.int64).tocsr() for side in (left, right)]
    return whole[0], whole[1], weights.astype(np.int64)


def _sums_of_rows(matrix: Matrix, seed: int) -> Numbers:
    """Per column a number of 64 bits made from its rows, equal for the same rows."""
    marks = _mixed(np.arange(matrix.shape[0], dtype=np.uint64) * np.uint64(2) + np.uint64(seed))
    by_column = matrix.tocsc()
    so_far = np.concatenate([[np.uint64(0)], np.cumsum(marks[by_column.indices], dtype=np.uint64)])
    sums: Numbers = so_far[by_column.indptr[1:]] - so_far[by_column.indptr[:-1]]
    return sums.reshape(-1, 1)
