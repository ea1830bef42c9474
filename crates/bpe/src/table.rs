//! A hash table for words of at most 15 bytes.
//!
//! A word and its length fit into 16 bytes, which are compared and hashed as two integers without following a pointer.
//! The entries are in one flat table. Look-ups are grouped: first `approach` prefetches the cache lines of all keys,
//! then `find` reads them. A mispredicted branch costs as much as the rest of a look-up, so no branch depends on the
//! length of a word.

use std::hash::{BuildHasher, RandomState};

use crate::error::OutOfMemory;
use crate::lowlevel::{Keys, PlainKeys, defaults, extend, prefetch};

/// The number of look-ups per group.
pub(crate) const GROUP: usize = 96;

/// A word of at most 15 bytes, with its length in the last byte. No word has the default key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Key {
    low: u64,
    high: u64,
}

impl Key {
    /// The longest word that fits.
    pub(crate) const LONGEST: usize = 15;

    /// Pack `text[start..end]`, which must have 1 to 15 bytes. The surrounding text does not matter, but allows reading 16
    /// bytes at once.
    #[inline(always)]
    pub(crate) fn pack(text: &[u8], start: usize, end: usize) -> Key {
        match text.get(start..).and_then(|rest| rest.first_chunk()) {
            Some(window) => Key::of_window::<PlainKeys>(window, end - start),
            None => Key::of_word(&text[start..end]),
        }
    }

    /// Pack a word of at most 15 bytes.
    #[inline]
    pub(crate) fn of_word(word: &[u8]) -> Key {
        let mut window = [0; 16];
        window[..word.len()].copy_from_slice(word);
        Key::of_window::<PlainKeys>(&window, word.len())
    }

    /// Pack a word of at most 15 bytes at the start of a window.
    #[inline(always)]
    pub(crate) fn of_window<K: Keys>(window: &[u8; 16], len: usize) -> Key {
        let [low, high] = K::pack(window, len);
        Key { low, high }
    }

    /// The word: 16 bytes, of which the last is the length.
    #[inline]
    pub(crate) fn unpack(self) -> [u8; 16] {
        (u128::from(self.low) | u128::from(self.high) << 64).to_le_bytes()
    }

    /// A key for a word that does not fit: its hash and its length, marked as such.
    pub(crate) fn of_long(hash: u64, len: usize) -> Key {
        Key { low: hash, high: 0xff << 56 | len as u64 }
    }

    /// The key of these halves.
    pub(crate) fn from_halves(low: u64, high: u64) -> Key {
        Key { low, high }
    }

    /// The first eight bytes and the rest.
    #[inline(always)]
    pub(crate) fn halves(self) -> (u64, u64) {
        (self.low, self.high)
    }

    /// A hash.
    #[inline(always)]
    pub(crate) fn hash<K: Keys>(self, Seed(seed): Seed) -> u64 {
        K::hash([self.low, self.high], seed)
    }

    /// Whether this is not a word.
    #[inline(always)]
    pub(crate) fn is_empty(self) -> bool {
        self.high == 0
    }
}

/// The random seed of the hashes. It differs between tables, so that no text can be crafted whose words all collide.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seed([u64; 4]);

impl Seed {
    /// A new seed.
    pub(crate) fn draw() -> Seed {
        let state = RandomState::new();
        Seed([1u64, 2, 3, 4].map(|salt| state.hash_one(salt)))
    }
}

/// Open addressing with linear probing; the number of entries is a power of two, and at most half are used.
#[derive(Debug)]
pub(crate) struct Table<V> {
    places: Vec<(Key, V)>,
    num_entries: usize,
    seed: Seed,
}

impl<V: Copy + Default> Table<V> {
    /// A small table.
    pub(crate) fn new() -> Table<V> {
        Table { places: vec![Default::default(); 512], num_entries: 0, seed: Seed::draw() }
    }

    /// A copy of the table.
    pub(crate) fn try_clone(&self) -> Result<Table<V>, OutOfMemory> {
        let mut places = Vec::new();
        extend(&mut places, &self.places)?;
        Ok(Table { places, num_entries: self.num_entries, seed: self.seed })
    }

    /// The number of entries in use.
    pub(crate) fn len(&self) -> usize {
        self.num_entries
    }

    /// The largest number of entries before the table grows.
    pub(crate) fn room(&self) -> usize {
        self.places.len() / 2
    }

    /// The data for look-ups, by value, so that it stays in registers.
    #[inline(always)]
    pub(crate) fn view(&self) -> View<'_, V> {
        View { places: &self.places, shift: 64 - self.places.len().trailing_zeros(), seed: self.seed }
    }

    /// The value of `key`; a default value if it is new. `place` is the start of the search from a current view of the
    /// table. The table grows when it is full.
    #[inline(always)]
    pub(crate) fn find_or_insert(&mut self, key: Key, mut place: usize) -> Result<&mut V, OutOfMemory> {
        let mask = self.places.len() - 1;
        loop {
            place &= mask;
            let found = self.places[place].0;
            if found == key {
                return Ok(&mut self.places[place].1);
            }
            if found.is_empty() {
                return self.insert(key, place);
            }
            place += 1;
        }
    }

    /// All entries, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, V)> {
        self.places.iter().copied().filter(|(key, _)| !key.is_empty())
    }

    #[cold]
    #[inline(never)]
    fn insert(&mut self, key: Key, mut place: usize) -> Result<&mut V, OutOfMemory> {
        if self.num_entries >= self.room() {
            let doubled = defaults(2 * self.places.len())?;
            let old = std::mem::replace(&mut self.places, doubled);
            for (key, value) in old.into_iter().filter(|(key, _)| !key.is_empty()) {
                let vacancy = self.vacancy(key);
                self.places[vacancy] = (key, value);
            }
            place = self.vacancy(key);
        }
        self.num_entries += 1;
        self.places[place].0 = key;
        Ok(&mut self.places[place].1)
    }

    /// The entry for a new key.
    fn vacancy(&self, key: Key) -> usize {
        let mask = self.places.len() - 1;
        let mut place = self.view().approach(key);
        while !self.places[place].0.is_empty() {
            place = (place + 1) & mask;
        }
        place
    }
}

/// A view of the table for look-ups.
#[derive(Clone, Copy)]
pub(crate) struct View<'t, V> {
    places: &'t [(Key, V)],
    shift: u32,
    seed: Seed,
}

impl<V: Copy> View<'_, V> {
    /// The start of the search for `key`, which is prefetched.
    #[inline(always)]
    pub(crate) fn approach(self, key: Key) -> usize {
        let place = (key.hash::<PlainKeys>(self.seed) >> self.shift) as usize;
        prefetch(self.places, place);
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_does_not_depend_on_the_surrounding_text() {
        let text: Vec<u8> = (1..=40).collect();
        for len in 1..=Key::LONGEST {
            for start in 0..=text.len() - len {
                let word = &text[start..start + len];
                let key = Key::pack(&text, start, start + len);
                assert_eq!(key, Key::pack(word, 0, len));
                assert_eq!((&key.unpack()[..len], key.unpack()[15]), (word, len as u8));
                assert!(!key.is_empty());
            }
        }
    }

    #[test]
    fn words_of_zeros_differ_by_their_length() {
        let zeros = [0; 20];
        let keys: Vec<Key> = (1..=Key::LONGEST).map(|len| Key::pack(&zeros, 0, len)).collect();
        for (index, key) in keys.iter().enumerate() {
            assert!(!key.is_empty() && !keys[..index].contains(key));
        }
    }

    #[test]
    fn a_table_keeps_its_entries_as_it_grows() -> Result<(), OutOfMemory> {
        let mut table: Table<u64> = Table::new();
        let first_room = table.room();
        let key = |number: u64| Key::pack(&number.to_le_bytes(), 0, 8);
        for number in 0..3 * first_room as u64 {
            let place = table.view().approach(key(number));
            *table.find_or_insert(key(number), place)? += number + 1;
        }
        assert_eq!(table.len(), 3 * first_room);
        assert!(table.room() >= table.len());
        for number in 0..3 * first_room as u64 {
            let place = table.view().approach(key(number));
            assert_eq!(*table.find_or_insert(key(number), place)?, number + 1);
        }
        assert_eq!(table.len(), 3 * first_room);
        assert_eq!(table.iter().count(), table.len());
        Ok(())
    }
}
