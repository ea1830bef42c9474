"""Which loss compares runs: that of whole documents or of windows, in bits per byte or per token.

`choose_metric` decides for reports, fits of scaling laws and the lines that a sweep prints. The metric is
that of whole documents if all runs were evaluated on them. Otherwise it is the validation loss if they read
the same tokens, and bits per byte if their tokenizers differ. If no run was validated, it is the training
loss.
"""

from __future__ import annotations

from collections.abc import Sequence

from bytewright.experiments.records import RunRecord
from bytewright.train.metrics import METRICS, Metric

VALIDATION, TRAINING, BITS = (METRICS[name] for name in ("validation_loss", "loss", "bits_per_byte"))
DOCUMENTS = METRICS["document_bits_per_byte"]


def choose_metric(
    records: Sequence[RunRecord], *, prefer_bits: bool = False, documents: bool = True
) -> Metric:
    """Return the metric that all complete runs have, or, if no run is complete, all evaluated runs.

    Runs that stopped or failed before their first evaluation are ignored. `prefer_bits` selects bits per
    byte, if recorded, even if all runs read the same tokens. Without `documents`, the metric is one of
    windows, which has a learning curve.
    """
    complete = [record for record in records if record.status == "complete" and record.lines]
    judged = complete or [record for record in records if record.column("validation_loss")]
    if not judged or not all(record.column("validation_loss") for record in judged):
        return TRAINING
    if documents and all(record.column(DOCUMENTS.name) for record in judged):
        return DOCUMENTS
    has_bits = all(record.column("bits_per_byte") for record in judged)
    return BITS if has_bits and (prefer_bits or not have_same_tokens(records)) else VALIDATION


def have_same_tokens(records: Sequence[RunRecord]) -> bool:
    """Return whether runs that were validated on one text read the same tokens of it."""
    digests = {record.validation.get("tokens") for record in records}
    if None not in digests:
        return len(digests) == 1
    paths = [
        (record.settings.get("data.validation"), record.settings.get("model.vocab_size"))
        for record in records
    ]
    return len(set(paths)) == 1
