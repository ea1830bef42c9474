"""The command line: one module per command or group of commands; each calls the library and prints results.

Start with `main`, which maps each command to a class. `texts` has the commands on corpora and tokenizers, and
`models` those on the model of a run. `options` holds the options and checks that commands share, `console`
their output functions. No other package imports this one.
"""


class Terminated(BaseException):
    """SIGTERM arrived; unwinding the stack removes incomplete files, as for Ctrl-C."""
