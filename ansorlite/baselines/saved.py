"""Saved cost models of any kind, opened by what the file says it holds.

In: a file that `CorrectionModel.save` or `NeuralModel.save` wrote. Out: the model. Nothing is
executed.
"""

import zipfile

from ansorlite.baselines.neural import NeuralModel
from ansorlite.cost.correction import CorrectionModel
from ansorlite.cost.model import CostModel, PathLike, expanded


def load_model(path: PathLike, seed: int = 0) -> CostModel:
    """Boosted trees, which further measurements refine, or an attention predictor (needs torch).

    Raises UsageError for a file of no such model, MissingExtra without torch.
    """
    neural = zipfile.is_zipfile(expanded(path))
    model: CostModel = NeuralModel("attention", seed) if neural else CorrectionModel(seed=seed)
    model.load(path)
    return model
