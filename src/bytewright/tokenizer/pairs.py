"""Encode pairs of a prompt and a completion to a token file whose mask counts the completions only.

The source is a file of JSON lines, which may be compressed: `{"prompt": "2+2=", "completion": "4"}`. Each
pair becomes one document: prompt, completion, end token. Prompt and completion are encoded separately, so the
tokens of a prompt are those that a user's prompt has. The mask selects the completion and the end token after
it. The file begins with an end token that does not count, so that a window can start before each pair
(`data.windows = "documents"`).
"""

from __future__ import annotations

from itertools import islice

import numpy as np

from bytewright.corpus import END_OF_TEXT
from bytewright.corpus.readers import read_fields
from bytewright.data.tokenfile import TokenFile, TokenFileWriter
from bytewright.errors import FormatError, TokenizerError, UsageError
from bytewright.formatting import Progress
from bytewright.storage import atomic
from bytewright.storage.manifest import manifest_path_of
from bytewright.tokenizer.tokenizer import Tokenizer

PAIRS_AT_ONCE = 4096
"""Pairs that are encoded in one batch, on all cores."""


def encode_pairs(
    tokenizer: Tokenizer,
    source: atomic.StrPath,
    target: atomic.StrPath,
    *,
    prompt: str = "prompt",
    completion: str = "completion",
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> TokenFile:
    """Encode the pairs of JSON lines to a token file with a mask; an existing token file is replaced.

    `prompt` and `completion` are the names of the two fields; others are ignored. A prompt may be empty, a
    completion may not. `progress` gets the bytes done and in total.
    """
    end = tokenizer.special_tokens.get(END_OF_TEXT)
    if end is None:
        message = f"the tokenizer has no token {END_OF_TEXT}, which ends each pair; train one with it"
        raise TokenizerError(message, key="special_tokens", expected=END_OF_TEXT)
    atomic.check_not_input(source, target, manifest_path_of(target))
    with TokenFileWriter(
        target, tokenizer_fingerprint=tokenizer.fingerprint, vocabulary_size=tokenizer.vocab_size, masked=True
    ) as writer:
        writer.append([end], mask=[False])
        lines = read_fields(source, (prompt, completion), progress=progress)
        while pairs := list(islice(lines, PAIRS_AT_ONCE)):
            texts = [text for _, pair in pairs for text in pair]
            encoded = tokenizer.encode_batch(texts, num_threads=num_threads)
            for (line, _), asked, answer in zip(pairs, encoded[::2], encoded[1::2], strict=True):
                if not len(answer):
                    message = f"{source}, line {line}: {completion!r} is empty, so nothing would be learned"
                    raise FormatError(message, path=source, key=completion)
                ids = np.concatenate([asked, answer, [end]])
                writer.append(ids, num_documents=1, mask=np.arange(len(ids)) >= len(asked))
        if not writer.num_documents:
            raise UsageError.at(source, "holds no pairs")
    return TokenFile.open(target)
