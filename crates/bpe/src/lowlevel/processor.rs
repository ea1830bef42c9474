//! The processor: its cache, and instructions that not all processors have.

/// The number of bytes that one set of masks describes.
pub(crate) const BLOCK: usize = 64;

/// One bit per byte of a block: bit `i` describes byte `i`. Bytes of non-ASCII characters are in `high` only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Masks {
    /// ASCII letters.
    pub letter: u64,
    /// ASCII digits.
    pub number: u64,
    /// ASCII white space, including U+0020.
    pub white: u64,
    /// U+0020 only.
    pub blank: u64,
    /// The apostrophe.
    pub apostrophe: u64,
    /// Bytes 0x80 and above.
    pub high: u64,
}

/// Prefetch `slice[index]` into the cache.
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

/// A task that is compiled for the vector, bit and AES instructions of newer processors.
pub(crate) trait Task {
    /// The result.
    type Output;
    /// Run the task. Implementations must be `#[inline(always)]`; otherwise they are compiled for the oldest processor.
    fn run<K: Keys>(self) -> Self::Output;
}

/// Run a task with the best instructions of this processor.
#[inline(always)]
pub(crate) fn dispatch<T: Task>(task: T) -> T::Output {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("popcnt")
        && is_x86_feature_detected!("aes")
    {
        #[target_feature(enable = "avx2,bmi1,bmi2,popcnt,aes")]
        fn run<T: Task>(task: T) -> T::Output {
            task.run::<aes::AesKeys>()
        }
        // SAFETY: the processor has these instructions, the function's only requirement.
        return unsafe { run(task) };
    }
    task.run::<PlainKeys>()
}

/// Computes keys of short words and hashes of keys. One processor always uses the same implementation.
pub(crate) trait Keys {
    /// The first `len % 16` bytes of a window, zeros, and `len` in the last byte.
    fn pack(window: &[u8; 16], len: usize) -> [u64; 2];
    /// A hash with uniform bits that cannot be predicted without the seed.
    fn hash(key: [u64; 2], seed: [u64; 4]) -> u64;
}

/// Keys by multiplication.
pub(crate) struct PlainKeys;

impl Keys for PlainKeys {
    #[inline(always)]
    fn pack(window: &[u8; 16], len: usize) -> [u64; 2] {
        let key = u128::from_le_bytes(*window) & KEPT[len % 16] | LENGTH[len % 16];
        [key as u64, (key >> 64) as u64]
    }

    #[inline(always)]
    fn hash(key: [u64; 2], seed: [u64; 4]) -> u64 {
        let product = u128::from(key[0] ^ seed[0]) * u128::from(key[1] ^ seed[1]);
        product as u64 ^ (product >> 64) as u64
    }
}

/// `KEPT[len]` keeps the first `len` bytes.
static KEPT: [u128; 16] = {
    let mut masks = [0; 16];
    let mut len = 1;
    while len < 16 {
        masks[len] = (1 << (8 * len)) - 1;
        len += 1;
    }
    masks
};

/// `LENGTH[len]` has `len` in its last byte.
static LENGTH: [u128; 16] = {
    let mut lengths = [0; 16];
    let mut len = 1;
    while len < 16 {
        lengths[len] = (len as u128) << 120;
        len += 1;
    }
    lengths
};

#[cfg(target_arch = "x86_64")]
mod aes {
    use std::arch::x86_64::*;
    use std::mem::transmute;

    use super::{KEPT, Keys, LENGTH};

    /// Keys by vector instructions, hashed by three rounds of AES. Only `dispatch` names this type.
    pub(super) struct AesKeys;

    impl Keys for AesKeys {
        #[inline(always)]
        fn pack(window: &[u8; 16], len: usize) -> [u64; 2] {
            // SAFETY: `dispatch` has checked the instructions; a vector and 16 bytes of integers have the same layout,
            // and any bytes are valid for both.
            unsafe {
                let window: __m128i = transmute(*window);
                let kept: __m128i = transmute(KEPT[len % 16]);
                let length: __m128i = transmute(LENGTH[len % 16]);
                transmute::<__m128i, [u64; 2]>(_mm_or_si128(_mm_and_si128(window, kept), length))
            }
        }

        #[inline(always)]
        fn hash(key: [u64; 2], seed: [u64; 4]) -> u64 {
            // SAFETY: as above.
            unsafe {
                let key: __m128i = transmute(key);
                let [first, second]: [__m128i; 2] = transmute(seed);
                // After only two rounds, words that differ in bytes 0, 5, 10 and 15 would still collide often.
                let once = _mm_aesenc_si128(_mm_xor_si128(key, first), second);
                let twice = _mm_aesenc_si128(once, first);
                _mm_cvtsi128_si64(_mm_aesenc_si128(twice, second)) as u64
            }
        }
    }
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

/// What the processor and the operating system report about AMX, the matrix instructions that work on tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmxReport {
    /// The highest basic leaf of CPUID.
    pub max_leaf: u32,
    /// EDX of leaf 7, subleaf 0: bit 22 is AMX-BF16, bit 24 is AMX-TILE.
    pub features: u32,
    /// The extended control register 0: bits 17 and 18 enable the state of the tiles. 0 without XGETBV.
    pub xcr0: u64,
    /// EAX of leaf 0x1D, subleaf 1: the bytes of the first tile palette. 0 if the leaf does not exist.
    pub palette: u32,
}

/// Return what this processor reports about AMX, or None on another architecture.
pub fn read_amx() -> Option<AmxReport> {
    #[cfg(target_arch = "x86_64")]
    // `__cpuid_count` is a safe function in newer versions of Rust.
    #[allow(unused_unsafe)]
    {
        use std::arch::x86_64::{__cpuid_count, _xgetbv};
        // SAFETY: every x86-64 processor has the instruction CPUID.
        let leaf = |leaf, subleaf| unsafe { __cpuid_count(leaf, subleaf) };
        let max_leaf = leaf(0, 0).eax;
        let has_xgetbv = max_leaf >= 1 && leaf(1, 0).ecx & 1 << 27 != 0; // OSXSAVE
        Some(AmxReport {
            max_leaf,
            features: if max_leaf >= 7 { leaf(7, 0).edx } else { 0 },
            // SAFETY: the bit OSXSAVE means that XGETBV exists and that programs may use it.
            xcr0: if has_xgetbv { unsafe { _xgetbv(0) } } else { 0 },
            palette: if max_leaf >= 0x1D { leaf(0x1D, 1).eax } else { 0 },
        })
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_report_of_amx_agrees_with_detected_features() {
        let report = read_amx().unwrap_or(AmxReport { max_leaf: 0, features: 0, xcr0: 0, palette: 0 });
        assert!(report.max_leaf >= 1);
        // AVX is usable if and only if the operating system saves its registers: bits 1 and 2 of XCR0.
        assert_eq!(is_x86_feature_detected!("avx"), report.xcr0 & 6 == 6);
        assert!(report.max_leaf >= 0x1D || report.palette == 0);
    }

    /// Words that differ in a few bytes at any positions are distributed uniformly over a table.
    #[test]
    fn keys_are_equal_on_all_processors_and_hashes_are_uniform() {
        struct Check;
        impl Task for Check {
            type Output = ();

            #[inline(always)]
            fn run<K: Keys>(self) {
                let seed = [1, 2, 3, 4].map(|number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                let window: [u8; 16] = std::array::from_fn(|index| 0xf0 + index as u8);
                for len in 0..16 {
                    assert_eq!(K::pack(&window, len), PlainKeys::pack(&window, len));
                }
                for places in [[0, 1, 2], [0, 5, 10], [1, 6, 11], [2, 7, 12], [3, 8, 13], [4, 9, 14]] {
                    let mut counts = vec![0u32; 1 << 12];
                    for number in 0..1 << 18 {
                        let mut window = window;
                        for (index, place) in places.into_iter().enumerate() {
                            window[place] = (number >> (6 * index) & 63) as u8;
                        }
                        counts[(K::hash(K::pack(&window, 15), seed) >> 52) as usize] += 1;
                    }
                    // 64 on average, give or take 8.
                    assert!(counts.iter().all(|count| (16..=128).contains(count)), "{places:?}");
                }
            }
        }
        dispatch(Check);
        Check.run::<PlainKeys>();
    }

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
