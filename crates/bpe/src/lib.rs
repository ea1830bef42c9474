//! Byte-level BPE: cut text into words, count them, learn merges, encode, decode.
//!
//! The way of the data: [`pattern`] and [`special`] cut text, [`cut`] says where it may be shared out, [`words`] and
//! [`count`] count, [`merge`] learns. No Python types here, no panics that any input can reach, and the same
//! result for every number of threads.

pub mod count;
pub mod cut;
pub mod decode;
pub mod encode;
pub mod error;
mod lowlevel;
pub mod merge;
pub mod pattern;
pub mod special;
mod threads;
pub mod unicode;
mod unicode_tables;
pub mod words;
