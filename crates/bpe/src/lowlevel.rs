//! The only module with `unsafe`: five things that safe Rust cannot say, each behind a safe function.
//!
//! - `map_file`: a read-only memory map. The mapping is private and never written. If another process
//!   shortens the file while it is mapped, the operating system kills us with SIGBUS: a documented limit, not
//!   corruption.
//! - `prefetch`: a hint to the cache, without effect as far as the program can tell.
//! - `with_capacity`: a large vector on huge pages. `madvise` is a hint too: it changes how memory is backed, not
//!   what it holds.
//! - `dispatch`: runs safe code compiled for newer processors, after asking whether this is one.
//! - `classify`: the classes of 64 bytes at a time with AVX2 where the processor has it. The vector function
//!   has no preconditions but the instruction set, which is checked just before the call; its twin in plain
//!   Rust is the definition, and a test compares the two on every byte in every lane.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;

use memmap2::Mmap;

/// How many bytes one set of masks describes.
pub(crate) const BLOCK: usize = 64;

/// One bit per byte of a block: bit `i` speaks of byte `i`. Bytes of non-ASCII characters are in `high` only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Masks {
    /// ASCII letters.
    pub letter: u64,
    /// ASCII digits.
    pub number: u64,
    /// ASCII white space, U+0020 among it.
    pub white: u64,
    /// U+0020 alone.
    pub blank: u64,
    /// The apostrophe.
    pub apostrophe: u64,
    /// Bytes 0x80 and above.
    pub high: u64,
}

/// Map a file into memory, read-only.
pub(crate) fn map_file(file: &File) -> io::Result<Mmap> {
    // SAFETY: the map is private and read-only; see the module's comment on a file that shrinks.
    unsafe { Mmap::map(file) }
}

/// Ask the processor to bring `slice[index]` into its cache.
#[inline(always)]
pub(crate) fn prefetch<T>(slice: &[T], index: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch has no architectural effect, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(slice.as_ptr().wrapping_add(index).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (slice, index);
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

/// Work that is worth compiling for the vector and bit instructions of newer processors.
pub(crate) trait Task {
    /// What it gives.
    type Output;
    /// Do it. Implementations must be `#[inline(always)]`, or they are compiled for the oldest processor.
    fn run(self) -> Self::Output;
}

/// Run a task with the best instructions this processor has.
#[inline(always)]
pub(crate) fn dispatch<T: Task>(task: T) -> T::Output {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("popcnt")
    {
        #[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
        fn run<T: Task>(task: T) -> T::Output {
            task.run()
        }
        // SAFETY: the processor has these instructions, the function's only requirement.
        return unsafe { run(task) };
    }
    task.run()
}

/// Classify `text`, 64 bytes to each element of `masks`; the last block may be shorter, its missing bytes are
/// 0.
pub(crate) fn classify(text: &[u8], masks: &mut [Masks]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, the function's only requirement.
        return unsafe { avx2::classify(text, masks) };
    }
    classify_portably(text, masks);
}

fn classify_portably(text: &[u8], masks: &mut [Masks]) {
    for (block, mask) in text.chunks(BLOCK).zip(masks) {
        *mask = Masks::default();
        for (i, &byte) in block.iter().enumerate() {
            let bit = 1 << i;
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' => mask.letter |= bit,
                b'0'..=b'9' => mask.number |= bit,
                b' ' => {
                    mask.white |= bit;
                    mask.blank |= bit;
                }
                b'\t'..=b'\r' => mask.white |= bit,
                b'\'' => mask.apostrophe |= bit,
                0x80.. => mask.high |= bit,
                _ => {}
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::{BLOCK, Masks};

    #[target_feature(enable = "avx2")]
    pub(super) fn classify(text: &[u8], masks: &mut [Masks]) {
        let (blocks, rest) = text.as_chunks::<BLOCK>();
        let mut masks = masks.iter_mut();
        for (block, mask) in blocks.iter().zip(&mut masks) {
            *mask = classify_block(block);
        }
        if let (false, Some(mask)) = (rest.is_empty(), masks.next()) {
            let mut padded = [0; BLOCK];
            padded[..rest.len()].copy_from_slice(rest);
            *mask = classify_block(&padded);
        }
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn classify_block(block: &[u8; BLOCK]) -> Masks {
        // SAFETY: 64 bytes are two vectors of 32, and `loadu` has no alignment requirement.
        let (low, high) = unsafe {
            let start = block.as_ptr().cast::<__m256i>();
            (_mm256_loadu_si256(start), _mm256_loadu_si256(start.add(1)))
        };
        let mask = |low: __m256i, high: __m256i| {
            u64::from(_mm256_movemask_epi8(low) as u32) | u64::from(_mm256_movemask_epi8(high) as u32) << 32
        };
        let equals = |byte: u8| {
            let wanted = _mm256_set1_epi8(byte as i8);
            mask(_mm256_cmpeq_epi8(low, wanted), _mm256_cmpeq_epi8(high, wanted))
        };
        // `first <= byte <= first + span`, by one wrapping subtraction and an unsigned minimum.
        let within = |low: __m256i, high: __m256i, first: u8, span: u8| {
            let first = _mm256_set1_epi8(first as i8);
            let span = _mm256_set1_epi8(span as i8);
            let test = |vector| {
                let offset = _mm256_sub_epi8(vector, first);
                _mm256_cmpeq_epi8(_mm256_min_epu8(offset, span), offset)
            };
            mask(test(low), test(high))
        };
        let case_bit = _mm256_set1_epi8(0x20);
        let (low_cased, high_cased) = (_mm256_or_si256(low, case_bit), _mm256_or_si256(high, case_bit));
        let blank = equals(b' ');
        Masks {
            letter: within(low_cased, high_cased, b'a', 25),
            number: within(low, high, b'0', 9),
            white: within(low, high, b'\t', 4) | blank,
            blank,
            apostrophe: equals(b'\''),
            high: mask(low, high),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vector_and_plain_classification_agree_on_every_byte_in_every_lane() {
        for shift in 0..BLOCK {
            for len in [256 + BLOCK, 256 + 1, BLOCK, 1] {
                let text: Vec<u8> = (0..len).map(|i| (i + shift) as u8).collect();
                let num_blocks = len.div_ceil(BLOCK);
                let mut fast = vec![Masks::default(); num_blocks];
                let mut plain = fast.clone();
                classify(&text, &mut fast);
                classify_portably(&text, &mut plain);
                assert_eq!(fast, plain);
            }
        }
    }
}
