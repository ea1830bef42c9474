"""The server: a model of a run behind the completions API of OpenAI, on this machine.

Read `engine` first: one thread that runs all jobs (`jobs`) in a batch of fixed slots (`generate.slots`).
`service` connects it with the event loop and has the figures for Prometheus. `protocol` reads requests and
writes responses, and `text` turns ids into text. `app` has the routes, `guard` the checks before them, and
`server` the process: loading, signals and timeouts. Depends on `generate` and on the packages of the extra
`serve`.
"""
