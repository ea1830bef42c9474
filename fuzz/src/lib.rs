//! What the fuzz targets share: how the fuzzer's bytes become input, and what the right answer is.
//!
//! `draw` turns bytes into choices and texts. `naive` contains the definitions, written without any of the crate's
//! ideas, so that a mistake would have to be made twice to go unnoticed.

pub mod draw;
pub mod naive;
