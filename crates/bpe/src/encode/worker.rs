//! The state of one encoding thread, and its inner loop.
//!
//! Words are looked up in groups: all keys of a group are hashed and their cache lines prefetched before the first is
//! read. The entries of the cache contain the packed ids of nearly all words.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::cache::{View, WordCache};
use super::output::Output;
use super::packing::{Narrow, Packing, ROOM, Wide};
use super::{Encoder, Id};
use crate::error::{OutOfMemory, Result};
use crate::lowlevel::{Keys, Task, dispatch};
use crate::special::{Piece, Specials};
use crate::table::{GROUP, Key};

/// Encodes on one thread.
pub(super) struct Worker<'e, I> {
    encoder: &'e Encoder,
    cache: Arc<WordCache>,
    /// Whether a full cache may be replaced by a larger one.
    may_grow: bool,
    lookups: Vec<(Key, usize)>,
    /// The ids of the last merged word.
    ids: Vec<u32>,
    pub(super) out: Output<I>,
}

impl<'e, I: Id> Worker<'e, I> {
    /// A worker that writes to `out`.
    pub(super) fn new(encoder: &'e Encoder, out: Output<I>, may_grow: bool) -> Worker<'e, I> {
        Worker {
            encoder,
            cache: encoder.current_cache(),
            may_grow,
            lookups: Vec::new(),
            ids: Vec::new(),
            out,
        }
    }

    /// Encode a text in which these special tokens are recognised.
    pub(super) fn encode(&mut self, text: &[u8], specials: &Specials, special_ids: &[u32]) -> Result<()> {
        specials.split(text, |piece| match piece {
            Piece::Text(text) if self.encoder.is_narrow => self.encode_ordinary::<Narrow>(text),
            Piece::Text(text) => self.encode_ordinary::<Wide>(text),
            Piece::Special { index, .. } => {
                Ok(self.out.extend(special_ids.get(index).copied().into_iter())?)
            }
        })
    }

    /// Store the ids of a word in the cache.
    pub(super) fn learn(&mut self, word: &[u8]) -> Result<(), OutOfMemory> {
        let Worker { encoder, cache, ids, .. } = self;
        let key = cache.key(word);
        if encoder.is_narrow {
            encoder.merge_word::<Narrow>(word, key, cache, ids)
        } else {
            encoder.merge_word::<Wide>(word, key, cache, ids)
        }
    }

    /// Encode text without special tokens.
    fn encode_ordinary<P: Packing>(&mut self, text: &[u8]) -> Result<()> {
        let mut start = 0;
        self.encoder.pattern.scan(text, |base, ends| {
            for group in ends.chunks(GROUP) {
                start = self.encode_group::<P>(text, start, base, group)?;
            }
            if self.cache.is_full() {
                self.encoder.renew(&mut self.cache, self.may_grow);
            }
            Ok(())
        })
    }

    /// Encode the words of `text` that begin at `start` and end at `base + ends[..]`; return the end of the
    /// last.
    #[inline(always)]
    fn encode_group<P: Packing>(
        &mut self,
        text: &[u8],
        start: usize,
        base: usize,
        ends: &[u32],
    ) -> Result<usize, OutOfMemory> {
        let Worker { encoder, cache, lookups, ids, out, .. } = self;
        if lookups.len() < ends.len() {
            lookups.resize(ends.len(), (Key::default(), 0));
        }
        let lookups = &mut lookups[..ends.len()];
        let end = dispatch(Approach { cache, text, start, base, ends, lookups });
        let mut num_done = 0;
        loop {
            let rest = &lookups[num_done..];
            let (num_found, num_ids) = copy_found::<P, I>(cache.view(), rest, out.room(ROOM * rest.len())?);
            out.advance(num_ids);
            num_done += num_found;
            let Some(&(key, place)) = lookups.get(num_done) else { return Ok(end) };
            // A word that is long, has many ids, or is not in the cache.
            let word_start = if num_done == 0 { start } else { base + ends[num_done - 1] as usize };
            let word = &text[word_start..base + ends[num_done] as usize];
            if let Some(spilled) = cache.spilled(word, cache.view().find(key, place)) {
                out.extend(spilled.iter().map(|id| id.load(Ordering::Relaxed)))?;
            } else {
                encoder.merge_word::<P>(word, key, cache, ids)?;
                out.extend(ids.iter().copied())?;
            }
            num_done += 1;
        }
    }
}

/// Compute the keys of a group and prefetch their entries; return the end of the last word.
struct Approach<'a> {
    cache: &'a WordCache,
    text: &'a [u8],
    start: usize,
    base: usize,
    ends: &'a [u32],
    lookups: &'a mut [(Key, usize)],
}

impl Task for Approach<'_> {
    type Output = usize;

    #[inline(always)]
    fn run<K: Keys>(self) -> usize {
        let Approach { cache, text, start, base, ends, lookups } = self;
        let view = cache.view();
        // Shorten the text instead of advancing a position: then the compiler can prove that a word fits into a
        // window that was read.
        let mut rest = &text[start..];
        let mut word_start = start;
        for (lookup, &end) in lookups.iter_mut().zip(ends) {
            let word_end = base + end as usize;
            let len = word_end - word_start;
            word_start = word_end;
            let key = match rest.first_chunk() {
                Some(window) if len <= Key::LONGEST => Key::of_window::<K>(window, len),
                _ => cache.key(&rest[..len]),
            };
            *lookup = (key, view.approach::<K>(key));
            rest = &rest[len..];
        }
        word_start
    }
}

/// Write the ids of words up to the first whose ids are not packed in its entry; return the number of words and of
/// ids.
#[inline(never)]
fn copy_found<P: Packing, I: Id>(view: View<'_>, lookups: &[(Key, usize)], room: &mut [I]) -> (usize, usize) {
    let num_places = room.len();
    let mut rest = room;
    let mut num_words = 0;
    for &(key, place) in lookups {
        let packed = view.find(key, place);
        let len = packed.len();
        // Always write the maximum number of ids; excess values are overwritten by the next word.
        let Some(ids) = rest.first_chunk_mut::<ROOM>().filter(|_| len.wrapping_sub(1) < P::MOST) else {
            break;
        };
        *ids = P::unpack(packed);
        rest = &mut rest[len..];
        num_words += 1;
    }
    (num_words, num_places - rest.len())
}

impl Encoder {
    /// Merge a word that is not in the cache and store it; `ids` are then its ids.
    #[cold]
    #[inline(never)]
    fn merge_word<P: Packing>(
        &self,
        word: &[u8],
        key: Key,
        cache: &WordCache,
        ids: &mut Vec<u32>,
    ) -> Result<(), OutOfMemory> {
        ids.clear();
        self.ranks.merge_word(word, ids)?;
        for id in &mut *ids {
            *id = self.ids[*id as usize];
        }
        cache.insert(key, word, ids, P::pack(ids));
        Ok(())
    }
}
