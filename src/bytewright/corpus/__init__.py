"""Text files: the storybook with its known entropy, downloads of public corpora, readers of common formats.

A document in a text file ends with `END_OF_TEXT`. Import the parts from their modules; start with `readers`.
"""

END_OF_TEXT = "<|endoftext|>"
"""The special token that ends a document in text files, tokenizers and token files."""
SEPARATOR = f"\n{END_OF_TEXT}\n"
"""The bytes after each document in the text files that Bytewright writes: the token on a line of its own."""
