"""Token ids: files on disk and the batches that training draws from them.

Read `tokenfile` first: memory-mapped ids with a manifest that names their tokenizer. `dataset` joins several
token files, `sampler` selects the tokens of a step, and `rng` derives orders from a seed. Depends on `errors`
and `storage`.
"""

from bytewright.data.tokenfile import TokenFile, TokenFileWriter, dtype_for

__all__ = ["TokenFile", "TokenFileWriter", "dtype_for"]
