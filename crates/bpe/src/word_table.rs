//! Tables of word counts as bytes. Processes count parts of a corpus, send their tables, and merge them.
//!
//! A table has 48 bytes of header (magic bytes, then five numbers of 64 bits) and one entry for each distinct word, in
//! increasing order. An entry stores what differs from the previous word: the length of the common prefix, the length of
//! the rest, the rest, and the count. Numbers in entries are LEB128: seven bits per byte, the lowest first. English
//! takes about eight bytes per word. Reading checks everything, so bytes from elsewhere cannot cause a panic.

use std::cmp::Ordering;
use std::time::Duration;

use crate::count::CountStats;
use crate::error::{Error, OutOfMemory, Result};
use crate::lowlevel::{extend, push};
use crate::words::{VisitWords, WordCounts};

const MAGIC: [u8; 8] = *b"bwwords1";
const HEADER: usize = 48;
/// The longest LEB128 number: 64 bits, seven in each byte.
const LONGEST_NUMBER: usize = 10;

/// Counts of words, sorted by word, in compact form.
#[derive(Debug)]
pub struct WordTable {
    entries: Vec<u8>,
    num_distinct: u64,
    stats: CountStats,
}

impl WordTable {
    /// The table of these counts.
    pub fn new(counts: &WordCounts, stats: CountStats) -> Result<WordTable> {
        let mut writer = Writer::default();
        counts.try_for_each_sorted(|word, count| writer.push(word, count))?;
        Ok(writer.finish(stats))
    }

    /// The table that `to_bytes` has written. All entries are checked.
    pub fn parse(bytes: &[u8]) -> Result<WordTable> {
        let damaged = |reason| Error::Table { position: 0, reason };
        let (header, entries) = bytes.split_at_checked(HEADER).ok_or(damaged("its header is truncated"))?;
        let (magic, numbers) = header.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(damaged("it does not begin with the bytes of a table"));
        }
        let mut numbers = numbers.chunks_exact(8).map(|chunk| {
            let mut number = [0; 8];
            number.copy_from_slice(chunk);
            u64::from_le_bytes(number)
        });
        let mut next = || numbers.next().unwrap_or_default();
        let (num_distinct, num_bytes, num_words) = (next(), next(), next());
        let (scan_time, count_time) = (Duration::from_nanos(next()), Duration::from_nanos(next()));
        let mut copy = Vec::new();
        extend(&mut copy, entries)?;
        let stats = CountStats { num_bytes, num_words, scan_time, count_time };
        let table = WordTable { entries: copy, num_distinct, stats };
        let mut cursor = Cursor::new(&table);
        let mut num_found = 0;
        while cursor.advance()? {
            num_found += 1;
        }
        if num_found != num_distinct {
            return Err(damaged("its header has another number of words"));
        }
        Ok(table)
    }

    /// Header and entries.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(self.num_bytes()).map_err(OutOfMemory::from)?;
        bytes.extend_from_slice(&MAGIC);
        let CountStats { num_bytes, num_words, scan_time, count_time } = self.stats;
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let times = [nanoseconds(scan_time), nanoseconds(count_time)];
        for number in [self.num_distinct, num_bytes, num_words].into_iter().chain(times) {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&self.entries);
        Ok(bytes)
    }

    /// The size of `to_bytes`.
    pub fn num_bytes(&self) -> usize {
        HEADER + self.entries.len()
    }

    /// The number of distinct words.
    pub fn num_distinct(&self) -> u64 {
        self.num_distinct
    }

    /// The amount of counted text and the time.
    pub fn stats(&self) -> CountStats {
        self.stats
    }

    /// The sum of two tables. Counts that exceed 64 bits become the largest number.
    pub fn merge(&self, other: &WordTable) -> Result<WordTable> {
        let (mut left, mut right) = (Cursor::new(self), Cursor::new(other));
        let (mut has_left, mut has_right) = (left.advance()?, right.advance()?);
        let mut writer = Writer::default();
        while has_left || has_right {
            let order = match (has_left, has_right) {
                (true, true) => left.word.cmp(&right.word),
                (true, false) => Ordering::Less,
                _ => Ordering::Greater,
            };
            match order {
                Ordering::Less => writer.push(&left.word, left.count)?,
                Ordering::Greater => writer.push(&right.word, right.count)?,
                Ordering::Equal => writer.push(&left.word, left.count.saturating_add(right.count))?,
            }
            if order.is_le() {
                has_left = left.advance()?;
            }
            if order.is_ge() {
                has_right = right.advance()?;
            }
        }
        let mut stats = self.stats;
        stats.add(other.stats);
        Ok(writer.finish(stats))
    }
}

impl VisitWords for WordTable {
    fn visit_words(&self, visit: &mut dyn FnMut(&[u8], u64) -> Result<()>) -> Result<()> {
        let mut cursor = Cursor::new(self);
        while cursor.advance()? {
            visit(&cursor.word, cursor.count)?;
        }
        Ok(())
    }
}

/// Reads the entries of a table in order.
struct Cursor<'t> {
    entries: &'t [u8],
    position: usize,
    word: Vec<u8>,
    count: u64,
}

impl Cursor<'_> {
    fn new(table: &WordTable) -> Cursor<'_> {
        Cursor { entries: &table.entries, position: 0, word: Vec::new(), count: 0 }
    }

    /// Read the next entry; false at the end.
    fn advance(&mut self) -> Result<bool> {
        if self.position == self.entries.len() {
            return Ok(false);
        }
        let (shared, len) = (self.number()?, self.number()?);
        let rest = usize::try_from(len)
            .ok()
            .and_then(|len| self.entries.get(self.position..)?.get(..len))
            .ok_or_else(|| self.damaged("a word is truncated"))?;
        let shared = usize::try_from(shared).unwrap_or(usize::MAX);
        // The order is strict exactly if the rest is greater than what it replaces.
        let replaced = self.word.get(shared..).ok_or_else(|| self.damaged("a prefix is too long"))?;
        if rest.first().is_none_or(|first| replaced.first().is_some_and(|replaced| first <= replaced)) {
            return Err(self.damaged("the words are not sorted"));
        }
        self.word.truncate(shared);
        extend(&mut self.word, rest)?;
        self.position += rest.len();
        self.count = self.number()?;
        if self.count == 0 {
            return Err(self.damaged("a count is 0"));
        }
        Ok(true)
    }

    #[inline]
    fn number(&mut self) -> Result<u64> {
        let rest = self.entries.get(self.position..).unwrap_or_default();
        let mut number = 0;
        for (place, &byte) in rest.iter().take(LONGEST_NUMBER).enumerate() {
            number |= u64::from(byte & 0x7f) << (7 * place);
            if byte < 0x80 {
                self.position += place + 1;
                return Ok(number);
            }
        }
        Err(self.damaged("a number is truncated"))
    }

    #[cold]
    fn damaged(&self, reason: &'static str) -> Error {
        Error::Table { position: HEADER + self.position, reason }
    }
}

/// Writes entries in increasing order of words.
#[derive(Default)]
struct Writer {
    entries: Vec<u8>,
    last: Vec<u8>,
    num_distinct: u64,
}

impl Writer {
    fn push(&mut self, word: &[u8], count: u64) -> Result<()> {
        let shared = self.last.iter().zip(word).take_while(|(last, next)| last == next).count();
        self.push_number(shared as u64)?;
        self.push_number((word.len() - shared) as u64)?;
        extend(&mut self.entries, &word[shared..])?;
        self.push_number(count)?;
        self.last.truncate(shared);
        extend(&mut self.last, &word[shared..])?;
        self.num_distinct += 1;
        Ok(())
    }

    #[inline]
    fn push_number(&mut self, mut number: u64) -> Result<()> {
        while number >= 0x80 {
            push(&mut self.entries, number as u8 | 0x80)?;
            number >>= 7;
        }
        Ok(push(&mut self.entries, number as u8)?)
    }

    fn finish(self, stats: CountStats) -> WordTable {
        WordTable { entries: self.entries, num_distinct: self.num_distinct, stats }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn table(words: &[(&[u8], u64)]) -> Result<WordTable> {
        let mut counts = WordCounts::new();
        words.iter().try_for_each(|&(word, count)| counts.add(word, count))?;
        let num_words =
            words.iter().map(|(_, count)| count).fold(0, |sum: u64, &count| sum.saturating_add(count));
        WordTable::new(&counts, CountStats { num_bytes: 10, num_words, ..CountStats::default() })
    }

    fn listed(table: &WordTable) -> Result<Vec<(Vec<u8>, u64)>> {
        let mut words = Vec::new();
        table.visit_words(&mut |word, count| {
            words.push((word.to_vec(), count));
            Ok(())
        })?;
        Ok(words)
    }

    #[test]
    fn words_of_every_length_are_sorted_like_byte_strings() -> Result<()> {
        let mut expected = BTreeMap::new();
        for number in 0..3000u32 {
            let word: Vec<u8> =
                (0..number % 40 + 1).map(|place| (number.pow(2) >> (place % 9)) as u8 % 3).collect();
            *expected.entry(word).or_insert(0) += u64::from(number) << (number % 50);
        }
        expected.retain(|_, count| *count > 0);
        let words: Vec<(&[u8], u64)> =
            expected.iter().rev().map(|(word, &count)| (word.as_slice(), count)).collect();
        let table = WordTable::parse(&table(&words)?.to_bytes()?)?;
        assert_eq!(listed(&table)?, expected.into_iter().collect::<Vec<_>>());
        Ok(())
    }

    #[test]
    fn merging_adds_counts_and_saturates() -> Result<()> {
        let left = table(&[(b"a", 1), (b"ab", u64::MAX - 1), (b"a word of more than 15 bytes", 3)])?;
        let right = table(&[(b"", 1), (b"ab", 5), (b"b", 200), (b"a word of more than 15 bytes", 4)])?;
        let sum = left.merge(&right)?;
        let words: [(&[u8], u64); 4] =
            [(b"a", 1), (b"a word of more than 15 bytes", 7), (b"ab", u64::MAX), (b"b", 200)];
        assert_eq!(listed(&sum)?, words.map(|(word, count)| (word.to_vec(), count)));
        assert_eq!((sum.num_distinct(), sum.stats().num_bytes), (4, 20));
        assert_eq!(sum.to_bytes()?.len(), sum.num_bytes());
        assert_eq!(listed(&right.merge(&left)?)?, listed(&sum)?);
        Ok(())
    }

    #[test]
    fn no_changed_or_truncated_table_causes_a_panic() -> Result<()> {
        let bytes = table(&[(b"low", 5), (b"lower", 300), (b"newest", 7)])?.to_bytes()?;
        for end in 0..bytes.len() {
            assert!(matches!(WordTable::parse(&bytes[..end]), Err(Error::Table { .. })));
        }
        for place in 0..bytes.len() {
            for value in 0..=255 {
                let mut changed = bytes.clone();
                changed[place] = value;
                if let Ok(table) = WordTable::parse(&changed) {
                    assert_eq!(listed(&table)?.len(), 3);
                }
            }
        }
        for entry in [&[0, 0, 1][..], &[1, 1, b'a', 1], &[0, 1, b'a', 0], &[0, 2, b'a', 1], &[0x80; 20]] {
            let mut changed = table(&[])?.to_bytes()?;
            changed[8] = 1;
            changed.extend_from_slice(entry);
            assert!(matches!(WordTable::parse(&changed), Err(Error::Table { .. })));
        }
        Ok(())
    }
}
