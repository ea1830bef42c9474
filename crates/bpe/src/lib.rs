//! Byte-level BPE: cut text into words, count them, learn merges, encode, decode.
//!
//! The way of the data:
//!
//! - [`unicode`] says what is a letter, a number or a space; [`special`] cuts special tokens out of a text
//!   and [`pattern`] cuts the rest into words (pre-tokens); [`cut`] says where a text may be shared out among
//!   threads or taken in pieces.
//! - [`source`] gives the bytes of a file, [`count`] counts the words of files and texts into [`words`], and
//!   [`merge`] learns merges from these.
//! - [`encode`] turns text into ids, at once, on several threads or as it arrives; [`decode`] turns ids back.
//!
//! Underneath, out of sight: `table`, the hash table of short words that counting and encoding share;
//! `threads`; and `lowlevel`, the only module with `unsafe`, which also reports what the processor has
//! ([`read_amx`]; the Python package needs it before it imports torch).
//!
//! No Python types here, no panics that any input can reach, and the same result for every number of threads.

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
pub mod words;

pub use lowlevel::{Allocator, AmxReport, read_amx};
