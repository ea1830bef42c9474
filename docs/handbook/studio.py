"""The figures of studio.md: the limit of open streams."""

from bytewright.studio.context import MAX_STREAMS

FIGURES = [f"At most {MAX_STREAMS} streams can be open"]
GIVEN = {"is answered with 503": "a code of HTTP"}
