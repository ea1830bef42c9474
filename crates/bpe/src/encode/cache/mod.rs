//! The cache of encoded words: each word is merged once, by the first thread that needs it.
//!
//! All threads share one table without locks. An entry is empty, claimed by the thread that fills it, or permanently
//! full. The upper half of the key is written last, so a thread that reads the whole key also reads the matching ids.
//! Two threads may store a new word at the same time, which wastes an entry but does not change results.
//!
//! A word of at most 15 bytes and its packed ids share 32 bytes, half a cache line. Longer words, and ids that do not
//! fit, are spilled to another array.

#[cfg(test)]
mod tests;

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use hashbrown::DefaultHashBuilder;

use super::packing::Packed;
use crate::error::OutOfMemory;
use crate::lowlevel::{Keys, Quad, Task, Zeros, dispatch, prefetch};
use crate::table::{Key, Seed};

/// Words longer than this are not cached.
const LONGEST: usize = 256;
/// The largest number of words in the table.
const MAX_WORDS: usize = 1 << 20;
/// The factor by which a full table grows, or 2 from `LARGE` words on. The first use of new memory takes longer than
/// copying the words.
const GROWTH: usize = 4;
const LARGE: usize = 1 << 17;
/// Instead of the upper half of the key: a thread is writing here.
const CLAIMED: u64 = 1;

/// A word and its ids.
type Place = Quad;

impl Place {
    #[inline(always)]
    fn low(&self) -> &AtomicU64 {
        &self.0[0]
    }

    #[inline(always)]
    fn high(&self) -> &AtomicU64 {
        &self.0[1]
    }

    #[inline(always)]
    fn ids(&self) -> [&AtomicU64; 2] {
        [&self.0[2], &self.0[3]]
    }

    #[inline(always)]
    fn packed(&self) -> Packed {
        Packed(self.ids().map(|id| id.load(Ordering::Relaxed)))
    }
}

/// A cache of encoded words for any number of threads.
#[derive(Debug)]
pub(crate) struct WordCache {
    places: Zeros<Place>,
    num_words: AtomicUsize,
    /// The bytes of long words, four per integer, and the ids.
    spilled: Zeros<AtomicU32>,
    num_spilled: AtomicUsize,
    is_full: AtomicBool,
    seed: Seed,
    hasher: DefaultHashBuilder,
}

impl WordCache {
    /// A cache for `num_words`.
    pub(crate) fn with_room_for(num_words: usize) -> Result<WordCache, OutOfMemory> {
        let num_places = (2 * num_words.min(MAX_WORDS)).next_power_of_two().max(512);
        Ok(WordCache {
            places: Zeros::new(num_places)?,
            num_words: AtomicUsize::new(0),
            spilled: Zeros::new(num_places)?,
            num_spilled: AtomicUsize::new(0),
            is_full: AtomicBool::new(false),
            seed: Seed::draw(),
            hasher: DefaultHashBuilder::default(),
        })
    }

    /// Whether a word did not fit.
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// A larger cache with the same words, or an empty one if this has the maximum size. Other threads may still use this
    /// cache and write a last word to it.
    pub(crate) fn enlarged(&self) -> Result<WordCache, OutOfMemory> {
        let room = self.places.len() / 2;
        let growth = if room < LARGE { GROWTH } else { 2 };
        let mut larger = WordCache::with_room_for(growth * room)?;
        if room >= MAX_WORDS {
            return Ok(larger);
        }
        larger.seed = self.seed;
        larger.hasher = self.hasher.clone();
        let mut num_words = 0;
        for place in self.places.iter() {
            let high = place.high().load(Ordering::Acquire);
            if high > CLAIMED {
                larger.write(Key::from_halves(place.low().load(Ordering::Relaxed), high), place.packed());
                num_words += 1;
            }
        }
        // Read after the entries: all data they refer to exists by now; more may have been spilled since.
        for (new, old) in larger.spilled.iter().zip(self.spilled.iter()) {
            new.store(old.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        larger.num_words = num_words.into();
        larger.num_spilled = self.num_spilled.load(Ordering::Relaxed).min(self.spilled.len()).into();
        Ok(larger)
    }

    /// Remove all words. No other thread may use the cache.
    pub(crate) fn clear(&self) {
        for place in self.places.iter() {
            place.high().store(0, Ordering::Relaxed);
        }
        self.num_words.store(0, Ordering::Relaxed);
        self.num_spilled.store(0, Ordering::Relaxed);
        self.is_full.store(false, Ordering::Relaxed);
    }

    /// The data for look-ups, by value, so that it stays in registers.
    #[inline(always)]
    pub(crate) fn view(&self) -> View<'_> {
        View { places: &self.places, shift: 64 - self.places.len().trailing_zeros(), seed: self.seed }
    }

    /// The key of a non-empty word of any length.
    #[inline(always)]
    pub(crate) fn key(&self, word: &[u8]) -> Key {
        if word.len() <= Key::LONGEST { Key::of_word(word) } else { self.long_key(word) }
    }

    /// The key of a long word; words with different keys are different.
    #[cold]
    pub(crate) fn long_key(&self, word: &[u8]) -> Key {
        Key::of_long(self.hasher.hash_one(word), word.len())
    }

    /// The ids that were spilled for `word`; `None` if there are none or they belong to another word.
    #[inline(never)]
    pub(crate) fn spilled(&self, word: &[u8], packed: Packed) -> Option<&[AtomicU32]> {
        let (start, num_ids) = packed.spilled()?;
        let num_quarters = num_quarters(word);
        let (quarters, ids) = self.spilled.get(start..start + num_quarters + num_ids)?.split_at(num_quarters);
        let is_same = |(quarter, found): (u32, &AtomicU32)| quarter == found.load(Ordering::Relaxed);
        quarters_of(word).zip(quarters).all(is_same).then_some(ids)
    }

    /// Store a word if there is room, with packed ids if possible.
    pub(crate) fn insert(&self, key: Key, word: &[u8], ids: &[u32], packed: Option<Packed>) {
        if word.len() > LONGEST {
            return;
        }
        let packed = packed.filter(|_| word.len() <= Key::LONGEST).or_else(|| self.spill(word, ids));
        match packed {
            Some(packed) if self.num_words.fetch_add(1, Ordering::Relaxed) < self.places.len() / 2 => {
                self.write(key, packed);
            }
            _ => self.is_full.store(true, Ordering::Relaxed),
        }
    }

    /// Write to an empty entry; there is always one, because at most half of them are used.
    fn write(&self, key: Key, Packed(ids): Packed) {
        let (low, high) = key.halves();
        let mask = self.places.len() - 1;
        let mut index = dispatch(Approach { view: self.view(), key });
        loop {
            let place = &self.places[index & mask];
            if place.high().compare_exchange(0, CLAIMED, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                place.low().store(low, Ordering::Relaxed);
                place.ids()[0].store(ids[0], Ordering::Relaxed);
                place.ids()[1].store(ids[1], Ordering::Relaxed);
                place.high().store(high, Ordering::Release);
                return;
            }
            index += 1;
        }
    }

    /// Write ids, and the word itself if it is long, to the array of spilled data.
    fn spill(&self, word: &[u8], ids: &[u32]) -> Option<Packed> {
        let num_quarters = num_quarters(word);
        let len = num_quarters + ids.len();
        let start = self.num_spilled.fetch_add(len, Ordering::Relaxed);
        let spilled = self.spilled.get(start..start + len)?;
        for (place, number) in
            spilled.iter().zip(quarters_of(word).take(num_quarters).chain(ids.iter().copied()))
        {
            place.store(number, Ordering::Relaxed);
        }
        Some(Packed::of_spilled(start, ids.len()))
    }
}

/// The number of integers for the bytes of a word: 0 if its key contains them.
fn num_quarters(word: &[u8]) -> usize {
    if word.len() > Key::LONGEST { word.len().div_ceil(4) } else { 0 }
}

/// The bytes of a word, four per integer.
fn quarters_of(word: &[u8]) -> impl Iterator<Item = u32> {
    word.chunks(4).map(|chunk| {
        let mut bytes = [0; 4];
        bytes[..chunk.len()].copy_from_slice(chunk);
        u32::from_le_bytes(bytes)
    })
}

/// The start of the search for a key.
struct Approach<'c> {
    view: View<'c>,
    key: Key,
}

impl Task for Approach<'_> {
    type Output = usize;

    #[inline(always)]
    fn run<K: Keys>(self) -> usize {
        self.view.approach::<K>(self.key)
    }
}

/// A view of the cache for look-ups.
#[derive(Clone, Copy)]
pub(crate) struct View<'c> {
    places: &'c [Place],
    shift: u32,
    seed: Seed,
}

impl View<'_> {
    /// The start of the search for `key`, which is prefetched.
    #[inline(always)]
    pub(crate) fn approach<K: Keys>(self, key: Key) -> usize {
        let index = (key.hash::<K>(self.seed) >> self.shift) as usize;
        prefetch(self.places, index);
        index
    }

    /// The packed ids of `key`, searched from `index` on; `None` if it is not in the cache.
    #[inline(always)]
    pub(crate) fn find(self, key: Key, mut index: usize) -> Packed {
        let mask = self.places.len() - 1;
        let (low, high) = key.halves();
        loop {
            let place = &self.places[index & mask];
            let found = place.high().load(Ordering::Acquire);
            if found == high && place.low().load(Ordering::Relaxed) == low {
                return place.packed();
            }
            if found == 0 {
                return Packed::default();
            }
            index += 1;
        }
    }
}
