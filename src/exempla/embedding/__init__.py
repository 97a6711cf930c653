"""Training sets in sketch space: the streaming loop from factors to rows.

    basis ──▶ Fisher of the sample in that basis ──▶ rows of every training example

Rows are kept unwhitened, so that damping stays a choice of the question, not of the embedding.

Inside: models (the door: every model of a list), whole (rows in memory), stored (rows on disk,
shard by shard), prepare (basis and Fisher), kept (both in a file), left_out (the Fisher outside the
basis), evidence, gather, forecast, stopping. Imports: fisher, sketch, progress, oracles, store,
checks, arrays, errors.
"""

from exempla.embedding.evidence import typical_square
from exempla.embedding.forecast import forecast_bytes, forecast_stored, forecasting
from exempla.embedding.gather import in_one_array
from exempla.embedding.left_out import energy_of, squares
from exempla.embedding.models import embed_models
from exempla.embedding.prepare import FISHERS, check_fisher
from exempla.embedding.stored import check_part
from exempla.embedding.whole import Embedding, embed_training_set

__all__ = [
    "FISHERS", "Embedding", "check_fisher", "check_part", "embed_models", "embed_training_set",
    "energy_of", "forecast_bytes", "forecast_stored", "forecasting", "in_one_array", "squares",
    "typical_square",
]  # fmt: skip
