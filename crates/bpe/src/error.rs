//! Everything that can go wrong in this crate, each variant one clear sentence.

use std::io;
use std::path::{Path, PathBuf};

/// The result of every fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The system has no memory left, or not enough for what was asked.
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

/// What went wrong.
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
        /// What the operating system said.
        source: io::Error,
    },
    /// A user's regular expression does not compile.
    #[error("the pattern is not a valid regular expression: {0}")]
    Pattern(String),
    /// A user's regular expression gave up on some text, for example by backtracking too often.
    #[error(
        "the pattern failed on the text at byte {position}, counted from the last special token: {reason}"
    )]
    Match {
        /// Where the search had begun, counted from the end of the last special token, or from the beginning.
        position: usize,
        /// What the regular expression engine said.
        reason: String,
    },
    /// A vocabulary contradicts itself.
    #[error("{0}")]
    Vocabulary(String),
    /// An id has no token.
    #[error("token id {id} at position {position} is outside the vocabulary")]
    UnknownId {
        /// The id that was asked for.
        id: u64,
        /// Its place in the sequence.
        position: usize,
    },
    /// A text has a byte, outside special tokens, that the vocabulary cannot spell.
    #[error("byte {byte:#04x} at position {position} has no token in this vocabulary")]
    ByteWithoutToken {
        /// The byte.
        byte: u8,
        /// Its place in the text.
        position: usize,
    },
    /// A special token stands in a text that may not hold it.
    #[error("the text holds the special token {token:?} at byte {position}, which is not allowed here")]
    DisallowedSpecial {
        /// The special token.
        token: String,
        /// Where it begins, in bytes.
        position: usize,
    },
    /// Word counts so large that sums over them would not fit in 64 bits.
    #[error("the word counts are too large: their sum over all bytes exceeds 2^63")]
    CountOverflow,
    /// More distinct text than 32-bit positions can address.
    #[error("the corpus has {bytes} bytes of distinct words; training can hold at most {limit}")]
    TooManyWords {
        /// What the corpus holds.
        bytes: u64,
        /// What training can address.
        limit: u64,
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

    /// The same error, found in a text from which the first `num_bytes` have been cut off.
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
