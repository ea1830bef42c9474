"""The only package that writes to disk: whole files or nothing, checksummed, without following links.

Read `atomic` first: it replaces files and folders atomically. `filesystem` holds the single operations,
which fault tests interrupt one by one. `manifest` computes checksums, `json_reader` checks untrusted JSON,
and `compression` recognises compressed files. Depends on `errors` only.
"""
