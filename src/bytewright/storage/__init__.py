"""The only package that writes to disk: atomic, checksummed, without following symbolic links.

Read `atomic` first: it replaces files and folders atomically. `filesystem` holds the single operations,
which fault tests interrupt one by one. `manifest` checks the files of a folder, `json_reader` parses
untrusted JSON and TOML, and `config_reader` builds dataclasses from them. Depends on `errors` only.
"""
