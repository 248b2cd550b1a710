"""Quality metrics of cost models on programs that were not used for training.

Flow: tests, `scripts/` and debug output compare predicted scores with measured latencies. Scores
are `float[P]`, higher is better; latencies are seconds, inf for failed programs. All programs of a
call belong to one task. `pairwise_accuracy` and `recall_at_k` are the metrics of the Ansor paper,
section 7.5.
"""

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]


def pairwise_accuracy(scores: Floats, latency_s: Floats, min_gap: float = 0.05) -> float:
    """Share of pairs in the right order; equal scores count half; NaN if there is no pair.

    Only pairs whose latencies differ by more than `min_gap` (0.05: 5 %) of the smaller latency
    count; smaller differences are noise. A failed program is slower than any other program.
    """
    scores = np.asarray(scores, np.float64)
    latency_s = np.asarray(latency_s, np.float64)
    n_pairs, right = 0, 0.0
    for i in range(len(scores)):
        pair = latency_s > latency_s[i] * (1.0 + min_gap)
        n_pairs += int(pair.sum())
        right += float((scores[i] > scores[pair]).sum() + 0.5 * (scores[i] == scores[pair]).sum())
    return right / n_pairs if n_pairs else math.nan


def recall_at_k(scores: Floats, latency_s: Floats, k: int) -> float:
    """Share of the k fastest programs that are among the k best scored; k is at most P."""
    k = min(k, len(scores))
    if k < 1:
        return math.nan
    fastest = np.argsort(latency_s, kind="stable")[:k]
    predicted = np.argsort(-np.asarray(scores), kind="stable")[:k]
    return len(np.intersect1d(fastest, predicted)) / k


def rmse(predicted: Floats, label: Floats) -> float:
    """Root mean squared error; labels are best/this in [0, 1]."""
    return float(np.sqrt(np.mean(np.square(np.asarray(predicted) - np.asarray(label)))))


def r_squared(predicted: Floats, label: Floats) -> float:
    """1 - squared error / variance: 1 is perfect, 0 equals the mean; NaN for equal labels."""
    label = np.asarray(label, np.float64)
    spread = float(np.square(label - label.mean()).sum())
    error = float(np.square(np.asarray(predicted) - label).sum())
    return 1.0 - error / spread if spread else math.nan
