//! The only module with `unsafe`: eight things that safe Rust cannot say, each behind a safe function.
//!
//! `memory` has the first three of them, `reserve` the next, `processor` the others.
//!
//! - `map_file`: a read-only memory map. The mapping is private and never written. Of a file that others write
//!   to while it is read, we may see a mixture of old and new; if they shorten it, the operating system kills
//!   us with SIGBUS. Both are documented limits: a file has to stay as it is until it has been read.
//! - `with_capacity`: a large vector on huge pages. `madvise` is a hint too: it changes how memory is backed, not
//!   what it holds.
//! - `Zeros`: numbers in fresh memory, which is zero and need not be written.
//! - `Allocator`: the system's allocator, and a reserve in static memory from which blocks are cut one behind the other.
//! - `prefetch`: a hint to the cache, without effect as far as the program can tell.
//! - `dispatch`: runs safe code compiled for newer processors, after asking whether this is one; and, in
//!   `AesKeys`, gives it instructions for which safe Rust has no word. A test compares them with plain Rust.
//! - `classify`: the classes of 64 bytes at a time with AVX2 where the processor has it. The vector function
//!   has no preconditions but the instruction set, which is checked just before the call; its twin in plain
//!   Rust is the definition, and a test compares the two on every byte in every lane.
//! - `read_amx`: the instructions CPUID and XGETBV, which read facts about the processor and change nothing.
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
