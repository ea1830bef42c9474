//! What words were encoded to, so that each is merged once.
//!
//! A word of at most 15 bytes and up to three ids share 32 bytes. Longer words are kept by themselves, and so
//! are longer results: they are spilled. The cache forgets everything when it is full: words that matter come
//! back at once.

use hashbrown::HashMap;

use crate::table::{Key, Table};

/// Words longer than this are not kept.
const LONGEST: usize = 256;
/// How many words the table may hold.
const MAX_WORDS: usize = 1 << 19;
/// How many ids may be spilled.
const MAX_SPILLED: usize = 1 << 20;

/// The ids of a word: `len` of them, or, where that is more than three, their place among the spilled ids. No
/// word has none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ids {
    pub(crate) ids: [u32; Ids::INLINE],
    pub(crate) len: u32,
}

impl Ids {
    /// How many ids fit.
    pub(crate) const INLINE: usize = 3;
    pub(crate) const INLINE_LEN: u32 = Ids::INLINE as u32;
}

/// A cache of encoded words; each thread has its own.
#[derive(Debug)]
pub(crate) struct WordCache {
    pub(crate) short: Table<Ids>,
    long: HashMap<Box<[u8]>, (u32, u32)>,
    spilled: Vec<u32>,
    /// Where the encoder puts a word's ids before they come here.
    pub(crate) scratch: Vec<u32>,
}

impl Clone for WordCache {
    fn clone(&self) -> WordCache {
        // A cloned vector has no spare room, and where nothing may be allocated, room is all we have.
        let mut spilled = Vec::with_capacity(self.spilled.capacity());
        spilled.extend_from_slice(&self.spilled);
        WordCache { short: self.short.clone(), long: self.long.clone(), spilled, scratch: Vec::new() }
    }
}

impl WordCache {
    /// A cache with room for `num_words` before it grows or forgets.
    pub(crate) fn new(num_words: usize) -> WordCache {
        let short = Table::with_room_for(num_words.min(MAX_WORDS));
        WordCache {
            spilled: Vec::with_capacity(short.room()),
            short,
            long: HashMap::new(),
            scratch: Vec::new(),
        }
    }

    /// Call `emit` with the ids of `word`, in order; returns false if they are not known.
    pub(crate) fn look_up(&self, word: &[u8], mut emit: impl FnMut(u32)) -> bool {
        let (start, len) = if word.len() <= Key::LONGEST {
            let key = Key::pack(word, 0, word.len());
            let table = self.short.view();
            let Ids { ids, len } = table.find(key, table.approach(key));
            if len as usize <= Ids::INLINE {
                ids.into_iter().take(len as usize).for_each(emit);
                return len > 0;
            }
            (ids[0], len)
        } else if let Some(&place) = self.long.get(word) {
            place
        } else {
            return false;
        };
        let spilled = self.spilled.iter().skip(start as usize).take(len as usize);
        spilled.for_each(|&id| emit(id));
        true
    }

    /// Remember a word that is not there yet. Unless `may_grow`, nothing is allocated.
    pub(crate) fn insert(&mut self, word: &[u8], ids: &[u32], may_grow: bool) {
        if word.len() > LONGEST || word.len() > Key::LONGEST && !may_grow {
            return;
        }
        let room = if may_grow { MAX_WORDS } else { self.short.room() };
        let room_spilled = if may_grow { MAX_SPILLED } else { self.spilled.capacity() };
        if self.short.len() >= room || self.spilled.len() + ids.len() > room_spilled {
            self.forget();
        }
        let place = (self.spilled.len() as u32, ids.len() as u32);
        if word.len() > Key::LONGEST {
            self.spilled.extend_from_slice(ids);
            self.long.insert(word.into(), place);
            return;
        }
        let mut value = Ids { ids: [place.0, 0, 0], len: place.1 };
        match value.ids.get_mut(..ids.len()) {
            Some(inline) => inline.copy_from_slice(ids),
            None => self.spilled.extend_from_slice(ids),
        }
        let key = Key::pack(word, 0, word.len());
        let place = self.short.view().approach(key);
        *self.short.find_or_insert(key, place) = value;
    }

    fn forget(&mut self) {
        self.short.clear();
        self.long.clear();
        self.spilled.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids_of(cache: &WordCache, word: &[u8]) -> Option<Vec<u32>> {
        let mut ids = Vec::new();
        cache.look_up(word, |id| ids.push(id)).then_some(ids)
    }

    #[test]
    fn words_and_ids_of_every_length_come_back() {
        let mut cache = WordCache::new(0);
        let words: Vec<Vec<u8>> = (1..=LONGEST).map(|len| vec![b'a'; len]).collect();
        for word in &words {
            assert_eq!(ids_of(&cache, word), None);
            cache.insert(word, &(0..word.len() as u32).collect::<Vec<_>>(), true);
        }
        for word in &words {
            assert_eq!(ids_of(&cache, word), Some((0..word.len() as u32).collect()));
        }
        let too_long = vec![b'a'; LONGEST + 1];
        cache.insert(&too_long, &[1], true);
        assert_eq!(ids_of(&cache, &too_long), None);
    }

    #[test]
    fn a_cache_that_may_not_grow_forgets_instead_and_goes_on() {
        let mut cache = WordCache::new(0);
        let (room, room_spilled) = (cache.short.room(), cache.spilled.capacity());
        for number in 0..10 * room as u32 {
            let word = number.to_le_bytes();
            let ids = [number; 5];
            let num_ids = 1 + number as usize % 5;
            cache.insert(&word, &ids[..num_ids], false);
            assert_eq!(ids_of(&cache, &word), Some(ids[..num_ids].to_vec()));
            assert!(cache.short.len() <= room);
        }
        assert_eq!((cache.short.room(), cache.spilled.capacity()), (room, room_spilled));
        assert_eq!(ids_of(&cache, &0u32.to_le_bytes()), None);
        cache.insert(&[b'a'; 16], &[1], false);
        assert_eq!(ids_of(&cache, &[b'a'; 16]), None, "a long word would need memory of its own");
    }

    #[test]
    fn a_copy_knows_the_same_words_and_has_the_same_room() {
        let mut cache = WordCache::new(1000);
        cache.insert(b"word", &[1, 2, 3, 4], false);
        let copy = cache.clone();
        assert_eq!(ids_of(&copy, b"word"), Some(vec![1, 2, 3, 4]));
        assert!(copy.spilled.capacity() >= cache.spilled.capacity());
    }
}
