"""The file formats of tokenizers, one module each; `bytewright.tokenizer.files` is the door to all of them.

Every reader treats its file as hostile: it returns a `Vocabulary` that holds together or raises a
`FormatError` whose one sentence names the file, the place, what was expected and what was found, in memory
proportional to the file and time not much more. Every writer goes through `bytewright.durable`, and refuses
with a `TokenizerError` what its format cannot say, rather than write a file that means something else.
"""
