"""A tier on this node: one LMDB store, one writer, many readers. Start reading here; the layout is in ``layout.py``."""

from prefeed.store.layout import MIN_BUDGET_BYTES, stored_bytes
from prefeed.store.reader import ReadBatch, StoredValue, TierReader
from prefeed.store.writer import TierStatistics, TierWriter

__all__ = ["MIN_BUDGET_BYTES", "ReadBatch", "StoredValue", "TierReader", "TierStatistics", "TierWriter", "stored_bytes"]
