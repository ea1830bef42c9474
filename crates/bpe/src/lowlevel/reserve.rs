//! A reserve of memory for small requests. An operation that has run out of memory uses it to report its error.
//!
//! Rust ends the process when an ordinary allocation fails. Memory that grows with the input is therefore allocated by
//! functions that return an error. Other requests are small: the reserve serves them if the system has no memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering};

/// The size of the reserve in bytes. It occupies address space, but no memory until it is used.
const LEN: usize = 4 << 20;
/// The largest request that the reserve serves, in bytes.
const LARGEST: usize = 64 << 10;
/// The largest alignment that the reserve serves.
const ALIGNMENT: usize = 4096;
/// The state counts the bytes handed out in its lower half and the blocks in use in its upper half.
const ONE_BLOCK: u64 = 1 << 32;

#[repr(align(4096))]
struct Bytes(UnsafeCell<[u8; LEN]>);

// SAFETY: no two threads own the same bytes, see `take`.
unsafe impl Sync for Bytes {}

static BYTES: Bytes = Bytes(UnsafeCell::new([0; LEN]));
static STATE: AtomicU64 = AtomicU64::new(0);

/// Whether this memory belongs to the reserve.
pub(crate) fn is_from_reserve(pointer: *const u8) -> bool {
    (pointer as usize).wrapping_sub(BYTES.0.get() as usize) < LEN
}

/// Cut the next block off the reserve; null if it does not fit. No two blocks in use overlap.
fn take(layout: Layout) -> *mut u8 {
    if layout.size() > LARGEST || layout.align() > ALIGNMENT {
        return std::ptr::null_mut();
    }
    let mut start = 0;
    let next = |state: u64| {
        start = (state as u32 as usize).next_multiple_of(layout.align());
        let end = start + layout.size();
        (end <= LEN).then_some((state / ONE_BLOCK + 1) * ONE_BLOCK + end as u64)
    };
    match STATE.fetch_update(Ordering::Acquire, Ordering::Relaxed, next) {
        Ok(_) => BYTES.0.get().cast::<u8>().wrapping_add(start),
        Err(_) => std::ptr::null_mut(),
    }
}

/// Return a block. The bytes of the last block are free again; all bytes are if no block is in use any more.
fn give_back(pointer: *mut u8, size: usize) {
    let start = (pointer as usize - BYTES.0.get() as usize) as u64;
    let next = |state: u64| {
        let (num_blocks, end) = (state / ONE_BLOCK - 1, state % ONE_BLOCK);
        let end = if end == start + size as u64 { start } else { end };
        Some(if num_blocks == 0 { 0 } else { num_blocks * ONE_BLOCK + end })
    };
    let _ = STATE.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next);
}

/// The system's allocator, and the reserve for small requests if the system has no memory.
pub struct Allocator;

// SAFETY: every block comes from `System`, or is a part of `BYTES` that no other block overlaps and that has the size
// and alignment requested. It is freed where it was allocated. Nothing here panics.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the rules of `GlobalAlloc`, which are those of `System`.
        let pointer = unsafe { System.alloc(layout) };
        if pointer.is_null() { take(layout) } else { pointer }
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if is_from_reserve(pointer) {
            give_back(pointer, layout.size());
        } else {
            // SAFETY: as above, and the block is one of `System`.
            unsafe { System.dealloc(pointer, layout) }
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        let pointer = unsafe { System.alloc_zeroed(layout) };
        if !pointer.is_null() {
            return pointer;
        }
        let pointer = take(layout);
        if !pointer.is_null() {
            // SAFETY: the block has this size, and nothing else refers to it.
            unsafe { pointer.write_bytes(0, layout.size()) };
        }
        pointer
    }

    #[inline]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if !is_from_reserve(pointer) {
            // SAFETY: as above, and the block is one of `System`.
            let moved = unsafe { System.realloc(pointer, layout, new_size) };
            if !moved.is_null() {
                return moved;
            }
        }
        // SAFETY: the caller guarantees that the size, rounded up to the alignment, does not overflow.
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        // SAFETY: as above.
        let moved = unsafe { self.alloc(new_layout) };
        if !moved.is_null() {
            // SAFETY: both blocks have at least this size, they do not overlap, and the old one is not used any more.
            unsafe {
                moved.copy_from_nonoverlapping(pointer, layout.size().min(new_size));
                self.dealloc(pointer, layout);
            }
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_do_not_overlap_and_are_free_again_after_they_are_returned() {
        let layout = |size, align| Layout::from_size_align(size, align).unwrap_or(Layout::new::<u64>());
        let end = || STATE.load(Ordering::Relaxed) % ONE_BLOCK;
        let mut blocks: Vec<(*mut u8, usize)> = Vec::new();
        for (size, align) in [(1, 1), (100, 64), (8, 8), (LARGEST, 16)] {
            let block = take(layout(size, align));
            assert!(is_from_reserve(block) && (block as usize).is_multiple_of(align));
            assert!(blocks.last().is_none_or(|&(last, size)| last as usize + size <= block as usize));
            blocks.push((block, size));
        }
        assert!(take(layout(LARGEST + 1, 1)).is_null() && take(layout(1, 2 * ALIGNMENT)).is_null());

        let before = end();
        let last = take(layout(24, 1));
        assert_eq!(end(), before + 24);
        give_back(last, 24);
        assert_eq!(end(), before);

        loop {
            match take(layout(LARGEST, 1)) {
                block if block.is_null() => break,
                block => blocks.push((block, LARGEST)),
            }
        }
        assert!((LEN / LARGEST..LEN / LARGEST + 4).contains(&blocks.len()));
        blocks.iter().for_each(|&(block, size)| give_back(block, size)); // the first block first
        assert_eq!(STATE.load(Ordering::Relaxed), 0);
        assert!(!is_from_reserve(std::ptr::null()) && !is_from_reserve(blocks.as_ptr().cast()));
    }
}
