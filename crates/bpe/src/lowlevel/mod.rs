//! The only module with `unsafe`: eight operations that safe Rust cannot express, each behind a safe function.
//!
//! `memory` has the first three of them, `reserve` the next, `processor` the others.
//!
//! - `map_file`: a private, read-only memory map. If another process writes to the file meanwhile, we may read a
//!   mixture of old and new bytes; if it truncates the file, the operating system ends our process with SIGBUS. Both
//!   are documented limits: a file must not change while it is read.
//! - `with_capacity`: a large vector on huge pages. `madvise` is a hint that does not change the contents of memory.
//! - `Zeros`: integers in new memory, which the system has set to zero.
//! - `Allocator`: the system's allocator, and a reserve in static memory from which blocks are allocated in order.
//! - `prefetch`: a hint to the cache without a visible effect.
//! - `dispatch`: runs safe code compiled for newer processors after checking their features. `AesKeys` uses
//!   instructions that safe Rust does not offer. A test compares both with plain Rust.
//! - `classify`: classifies 64 bytes at a time, with AVX2 if available. The vector function requires only the
//!   instruction set, which is checked before the call. The version in plain Rust is the definition, and a test
//!   compares both for every byte in every lane.
//! - `read_amx`: the instructions CPUID and XGETBV, which only read facts about the processor.
#![allow(unsafe_code)]

mod memory;
mod processor;
mod reserve;

pub(crate) use memory::{
    Quad, Zeros, boxed, defaults, extend, has_room_for_thread, map_file, push, reserve, with_capacity,
};
pub use processor::{AmxReport, read_amx};
pub(crate) use processor::{BLOCK, Keys, Masks, PlainKeys, Task, classify, dispatch, prefetch};
pub use reserve::Allocator;
