"""The commands that make, convert and measure texts and tokens: `bytewright corpus …` and `tokenizer …`.

`corpus` and `tokenizer` are the modules to start with. `books` has the commands of the storybook and of the
world book, `tokenizer_inspect` those that print how text is split, and `cluster` what `--cluster` does. The
commands call the packages `corpus`, `data` and `tokenizer`.
"""
