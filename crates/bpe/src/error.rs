//! All errors of this crate; each variant is one sentence.

use std::io;
use std::path::{Path, PathBuf};

/// The result of every fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The system does not have enough memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("out of memory")]
pub struct OutOfMemory;

impl From<std::collections::TryReserveError> for OutOfMemory {
    fn from(_: std::collections::TryReserveError) -> OutOfMemory {
        OutOfMemory
    }
}

impl From<hashbrown::TryReserveError> for OutOfMemory {
    fn from(_: hashbrown::TryReserveError) -> OutOfMemory {
        OutOfMemory
    }
}

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Too little memory. Nothing has changed, unless the function's documentation says otherwise.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// A file could not be opened, inspected or mapped.
    #[error("cannot read {path}: {reason}", path = path.display(), reason = reason(source))]
    File {
        /// The file in question.
        path: PathBuf,
        /// The reason from the operating system.
        source: io::Error,
    },
    /// A user-defined regular expression does not compile.
    #[error("the pattern is not a valid regular expression: {0}")]
    Pattern(String),
    /// A user-defined regular expression failed on a text, for example by too much backtracking.
    #[error(
        "the pattern failed on the text at byte {position}, counted from the last special token: {reason}"
    )]
    Match {
        /// The start of the search, counted from the end of the last special token or from the beginning.
        position: usize,
        /// The message of the regular expression engine.
        reason: String,
    },
    /// A vocabulary contradicts itself.
    #[error("{0}")]
    Vocabulary(String),
    /// An id has no token.
    #[error("token id {id} at position {position} is outside the vocabulary")]
    UnknownId {
        /// The id.
        id: u64,
        /// Its position in the sequence.
        position: usize,
    },
    /// A text contains a byte, outside special tokens, that has no token.
    #[error("byte {byte:#04x} at position {position} has no token in this vocabulary")]
    ByteWithoutToken {
        /// The byte.
        byte: u8,
        /// Its position in the text.
        position: usize,
    },
    /// A text contains a special token that is not allowed.
    #[error("the text contains the special token {token:?} at byte {position}, which is not allowed here")]
    DisallowedSpecial {
        /// The special token.
        token: String,
        /// Where it begins, in bytes.
        position: usize,
    },
    /// Word counts whose sums would not fit into 64 bits.
    #[error("the word counts are too large: their sum over all bytes exceeds 2^63")]
    CountOverflow,
    /// More distinct text than 32-bit positions can address.
    #[error("the corpus has {bytes} bytes of distinct words; training can hold at most {limit}")]
    TooManyWords {
        /// The bytes of distinct words in the corpus.
        bytes: u64,
        /// The largest number of bytes that training can address.
        limit: u64,
    },
    /// A table of word counts that no program of this version wrote.
    #[error("the table of word counts is damaged at byte {position}: {reason}")]
    Table {
        /// Where reading stopped.
        position: usize,
        /// What is wrong.
        reason: &'static str,
    },
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// The error of a file that could not be read.
    pub(crate) fn of_file(path: &Path, source: io::Error) -> Error {
        match source.kind() {
            io::ErrorKind::OutOfMemory => Error::Memory(OutOfMemory),
            _ => Error::File { path: path.to_owned(), source },
        }
    }

    /// The same error for a text without its first `num_bytes`.
    pub fn after(self, num_bytes: usize) -> Error {
        match self {
            Error::ByteWithoutToken { byte, position } => {
                Error::ByteWithoutToken { byte, position: position + num_bytes }
            }
            other => other,
        }
    }
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file or folder".into(),
        io::ErrorKind::PermissionDenied => "permission denied".into(),
        io::ErrorKind::IsADirectory => "it is a directory, not a file".into(),
        _ => error.to_string(),
    }
}
