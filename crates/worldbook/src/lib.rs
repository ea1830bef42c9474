//! The fused generator of the world book: executes a compiled grammar and writes documents.
//!
//! The Python package `bytewright.corpus.worldbook` defines the result. It compiles the grammar to a [`Program`] and the
//! world to a [`World`], and its tests compare the documents byte for byte. [`Writer`] checks both once. After that, no
//! document can fail, except for lack of memory.

mod check;
mod program;
mod world;
mod write;

pub use program::{Alternative, Lexicon, Limits, Operation, Part, Program, Rule};
pub use world::{Bucket, Stream, World, mix, mix_all};
pub use write::Writer;

/// An error of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Too little memory.
    Memory,
    /// The program or the world is inconsistent; the text says how.
    Program(&'static str),
}

impl From<std::collections::TryReserveError> for Error {
    fn from(_: std::collections::TryReserveError) -> Error {
        Error::Memory
    }
}

/// The result of fallible operations of this crate.
pub type Result<T> = std::result::Result<T, Error>;
