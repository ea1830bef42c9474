"""Sources of text: two generated books, public corpora, and readers of common file formats.

Read `readers` first. It yields the documents of text, JSON Lines and Parquet files. `file_formats` recognises
formats and decompresses files. `sources` finds the files that a user names, and `ranges` cuts them for the
workers of a cluster. `text` writes documents as one plain text file, `stats` counts words and documents, and
`download` fetches public corpora. `storybook` and `worldbook` generate text with known entropy. `books` reads
and checks their files, and `sections` reads the outline of their grammars. In text files `END_OF_TEXT` ends
a document. Depends on `storage`.
"""

END_OF_TEXT = "<|endoftext|>"
"""The special token that ends a document in text files, tokenizers and token files."""
SEPARATOR = f"\n{END_OF_TEXT}\n"
"""The bytes after each document in the text files that Bytewright writes: the token on a line of its own."""
