"""Ids on disk: token files, memory-mapped, with a manifest that says which tokenizer made them.

Nothing here knows text, or needs the native extension; a tokenizer appears only as its fingerprint.
"""

from bytewright.data.tokenfile import TokenFile, TokenFileWriter, dtype_for

__all__ = ["TokenFile", "TokenFileWriter", "dtype_for"]
