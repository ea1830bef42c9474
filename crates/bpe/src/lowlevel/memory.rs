//! Memory: mapped files, and large tables on huge pages. Functions that allocate return an error if memory runs out.

use std::alloc::Layout;
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64};

#[cfg(target_os = "linux")]
use memmap2::Advice;
use memmap2::{Mmap, MmapMut, MmapOptions};

use super::reserve::is_from_reserve;
use crate::error::OutOfMemory;

/// The result of an allocation.
type Memory<T> = Result<T, OutOfMemory>;

/// How much address space must be free to start a thread: for its stack, its thread-local variables and a heap. glibc
/// ends the process if a new thread has no memory for its variables.
const ROOM_FOR_THREAD: usize = 64 << 20;

/// Whether there is room for one more thread.
pub(crate) fn has_room_for_thread() -> bool {
    MmapMut::map_anon(ROOM_FOR_THREAD).is_ok()
}

/// Map a file into memory, read-only.
pub(crate) fn map_file(file: &File) -> io::Result<Mmap> {
    // SAFETY: the map is private and read-only; see the module's comment on a file that changes.
    unsafe { MmapOptions::new().map_copy_read_only(file) }
}

/// An empty vector with room for `capacity` elements, on huge pages if available.
///
/// In a large table with pages of 4 KiB, a random access misses the cache twice: for the data and for the address of
/// the page. Pages of 2 MiB avoid the second miss. They also reduce page faults on the first write, which take longer
/// than writing.
pub(crate) fn with_capacity<T>(capacity: usize) -> Memory<Vec<T>> {
    let mut vector = Vec::new();
    reserve(&mut vector, capacity)?;
    Ok(vector)
}

/// Reserve memory for exactly `additional` more elements, also on huge pages.
pub(crate) fn reserve<T>(vector: &mut Vec<T>, additional: usize) -> Memory<()> {
    if vector.capacity() - vector.len() < additional {
        vector.try_reserve_exact(additional)?;
        prefer_huge_pages(vector.spare_capacity_mut());
    }
    Ok(())
}

/// Append an element.
#[inline(always)]
pub(crate) fn push<T>(vector: &mut Vec<T>, element: T) -> Memory<()> {
    if vector.len() == vector.capacity() {
        vector.try_reserve(1)?;
    }
    vector.push(element);
    Ok(())
}

/// Append elements.
#[inline(always)]
pub(crate) fn extend<T: Copy>(vector: &mut Vec<T>, elements: &[T]) -> Memory<()> {
    if vector.capacity() - vector.len() < elements.len() {
        vector.try_reserve(elements.len())?;
    }
    vector.extend_from_slice(elements);
    Ok(())
}

/// Concatenate parts in new memory. Many small copies could exhaust the reserve, so it is not used here.
pub(crate) fn boxed(parts: &[&[u8]]) -> Memory<Box<[u8]>> {
    let mut bytes = with_capacity(parts.iter().map(|part| part.len()).sum())?;
    if is_from_reserve(bytes.as_ptr()) {
        return Err(OutOfMemory);
    }
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    Ok(bytes.into())
}

/// Four integers shared by threads, aligned so that they never span two cache lines.
#[derive(Debug, Default)]
#[repr(align(32))]
pub(crate) struct Quad(pub(crate) [AtomicU64; 4]);

/// Types that consist of integers only: any bits are a valid value.
///
/// # Safety
/// The type must consist of integers only, and its alignment must not exceed that of a page.
pub(crate) unsafe trait AnyBits {}

// SAFETY: an integer.
unsafe impl AnyBits for AtomicU32 {}
// SAFETY: four integers.
unsafe impl AnyBits for Quad {}

/// Zeros that many threads can change, on huge pages if available.
///
/// They are not written explicitly: the system provides new memory as zeros when it is first used.
#[derive(Debug)]
pub(crate) struct Zeros<T> {
    map: MmapMut,
    len: usize,
    kind: PhantomData<T>,
}

impl<T: AnyBits> Zeros<T> {
    /// Allocate `len` zeros.
    pub(crate) fn new(len: usize) -> Memory<Zeros<T>> {
        let layout = Layout::array::<T>(len).map_err(|_| OutOfMemory)?;
        let map = MmapMut::map_anon(layout.size()).map_err(|_| OutOfMemory)?;
        #[cfg(target_os = "linux")]
        let _ = map.advise(Advice::HugePage); // a hint: a failure only makes access slower
        Ok(Zeros { map, len, kind: PhantomData })
    }
}

impl<T: AnyBits> Deref for Zeros<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: the map starts at a page, is large enough, and lives as long as `self`; any bits are a valid value;
        // and the map is never accessed as bytes.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast(), self.len) }
    }
}

/// A vector of `len` default values, also on huge pages.
pub(crate) fn defaults<T: Default>(len: usize) -> Memory<Vec<T>> {
    let mut vector = with_capacity(len)?;
    vector.resize_with(len, T::default);
    Ok(vector)
}

fn prefer_huge_pages<T>(memory: &mut [MaybeUninit<T>]) {
    #[cfg(target_os = "linux")]
    {
        const PAGE: usize = 4096;
        const HUGE_PAGE: usize = 2 << 20;
        let range = memory.as_mut_ptr_range();
        let start = (range.start as usize).next_multiple_of(PAGE);
        let len = (range.end as usize).saturating_sub(start) / PAGE * PAGE;
        if len >= HUGE_PAGE {
            // SAFETY: the pages are completely inside memory that we own, and the hint does not change their
            // contents.
            unsafe { libc::madvise(start as *mut libc::c_void, len, libc::MADV_HUGEPAGE) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}
