//! Byte-level BPE: split text into words, count them, learn merges, encode, decode.
//!
//! The modules in the order of the data:
//!
//! - [`unicode`] classifies characters (letter, number, space). [`special`] separates special tokens from a text, and
//!   [`pattern`] splits the rest into words (pre-tokens). [`cut`] finds positions where a text can be split for threads
//!   or streams.
//! - [`source`] provides the bytes of a file, [`count`] counts the words of files and texts in [`words`], and [`merge`]
//!   learns merges from the counts. [`word_table`] stores the counts of part of a corpus, for other processes.
//! - [`encode`] encodes text to ids, at once, on several threads or as a stream; [`decode`] decodes ids.
//!
//! Private modules: `table` is the hash table of short words for counting and encoding. `threads` runs work on several
//! threads. `lowlevel` is the only module with `unsafe`. It also reads the features of the processor ([`read_amx`]),
//! which the Python package needs before it imports torch.
//!
//! The crate has no Python types, no panics that input can cause, and equal results for any number of threads.

pub mod count;
pub mod cut;
pub mod decode;
pub mod encode;
pub mod error;
mod lowlevel;
pub mod merge;
pub mod pattern;
pub mod source;
pub mod special;
mod table;
mod threads;
pub mod unicode;
mod unicode_tables;
pub mod word_table;
pub mod words;

pub use lowlevel::{Allocator, AmxReport, read_amx};
