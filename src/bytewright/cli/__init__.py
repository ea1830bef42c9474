"""The command line: one file per command, each only asking the library and printing what it answers.

Nothing imports this package but its own modules. Start reading at `main`.
"""
