"""Token ids: files on disk and the batches that training draws from them.

Read `tokenfile` first (memory-mapped ids with a manifest that names their tokenizer), then `dataset` (several
token files as one), `sampler` (which tokens a step trains on) and `rng` (orders from a seed). Depends on
`errors` and `storage`.
"""

from bytewright.data.tokenfile import TokenFile, TokenFileWriter, dtype_for

__all__ = ["TokenFile", "TokenFileWriter", "dtype_for"]
