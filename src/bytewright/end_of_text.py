"""The token that ends a document: the one special token that corpora, tokenizers and models agree on.

Imports nothing, so that every package, and a command that must start at once, can use it.
"""

from __future__ import annotations

END_OF_TEXT = "<|endoftext|>"
SEPARATOR = f"\n{END_OF_TEXT}\n"
"""What follows every document in a file that we write: the end of its last line, and the token on its own."""
