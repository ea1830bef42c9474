//! Memory: files mapped into it, and large tables on huge pages.

use std::alloc::{Layout, handle_alloc_error};
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64};

#[cfg(target_os = "linux")]
use memmap2::Advice;
use memmap2::{Mmap, MmapMut, MmapOptions};

/// Map a file into memory, read-only.
pub(crate) fn map_file(file: &File) -> io::Result<Mmap> {
    // SAFETY: the map is private and read-only; see the module's comment on a file that changes.
    unsafe { MmapOptions::new().map_copy_read_only(file) }
}

/// An empty vector with room for `capacity` elements, on huge pages where the system has them.
///
/// A table of many megabytes in pages of 4 KiB costs a random look-up twice: once for the data and once for
/// the page's address. On pages of 2 MiB the second is free. And memory that is written to for the first time
/// is handed out page by page, which takes longer than writing.
pub(crate) fn with_capacity<T>(capacity: usize) -> Vec<T> {
    let mut vector = Vec::with_capacity(capacity);
    prefer_huge_pages(vector.spare_capacity_mut());
    vector
}

/// Make room for `additional` more elements, and no more than that, on huge pages too.
pub(crate) fn reserve<T>(vector: &mut Vec<T>, additional: usize) {
    if vector.capacity() - vector.len() < additional {
        vector.reserve_exact(additional);
        prefer_huge_pages(vector.spare_capacity_mut());
    }
}

/// Four numbers that threads share, and that never lie across two cache lines.
#[derive(Debug, Default)]
#[repr(align(32))]
pub(crate) struct Quad(pub(crate) [AtomicU64; 4]);

/// Types that consist of integers alone: any bits are a value.
///
/// # Safety
/// They must, and a page of memory must be aligned well enough for them.
pub(crate) unsafe trait AnyBits {}

// SAFETY: an integer.
unsafe impl AnyBits for AtomicU32 {}
// SAFETY: four integers.
unsafe impl AnyBits for Quad {}

/// Zeros to be changed by many threads, on huge pages where the system has them.
///
/// Nobody writes them: memory fresh from the system is zero, and is made so when it is first touched.
#[derive(Debug)]
pub(crate) struct Zeros<T> {
    map: MmapMut,
    len: usize,
    kind: PhantomData<T>,
}

impl<T: AnyBits> Zeros<T> {
    /// So many of them. Where there is no memory the process ends, as with a vector.
    pub(crate) fn new(len: usize) -> Zeros<T> {
        let map = Layout::array::<T>(len).ok().and_then(|layout| MmapMut::map_anon(layout.size()).ok());
        let Some(map) = map else { handle_alloc_error(Layout::new::<T>()) };
        #[cfg(target_os = "linux")]
        let _ = map.advise(Advice::HugePage); // a hint: without, it is only slower
        Zeros { map, len, kind: PhantomData }
    }
}

impl<T: AnyBits> Deref for Zeros<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: the map starts at a page, has room for so many, and lives as long as `self`; any bits are a
        // value; and nobody sees the map as bytes.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast(), self.len) }
    }
}

/// A vector of `len` default values, on huge pages too.
pub(crate) fn defaults<T: Default>(len: usize) -> Vec<T> {
    let mut vector = with_capacity(len);
    vector.resize_with(len, T::default);
    vector
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
            // SAFETY: the pages lie wholly inside memory that is ours, and the hint leaves their contents
            // alone.
            unsafe { libc::madvise(start as *mut libc::c_void, len, libc::MADV_HUGEPAGE) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}
