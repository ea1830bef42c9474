//! What one thread needs to encode, and the loop in which all of its time goes.
//!
//! Words are looked up in groups: all keys of a group are hashed and their cache lines asked for before the
//! first is read. In a place of the cache are the ids of nearly every word, ready to be copied.

use std::sync::Arc;

use super::cache::WordCache;
use super::output::Output;
use super::packing::{Narrow, Packing, ROOM, Wide};
use super::{Encoder, Id};
use crate::error::Result;
use crate::special::{Piece, Specials};
use crate::table::{GROUP, Key};

/// Encodes on one thread.
pub(super) struct Worker<'e, I> {
    encoder: &'e Encoder,
    cache: Arc<WordCache>,
    /// Whether a full cache may be replaced by a larger one.
    may_grow: bool,
    lookups: [(Key, usize); GROUP],
    /// The ids of the word that was merged last.
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
            lookups: [(Key::default(), 0); GROUP],
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
                special_ids.get(index).into_iter().for_each(|&id| self.out.push(id));
                Ok(())
            }
        })
    }

    /// Remember the ids of a word.
    pub(super) fn learn(&mut self, word: &[u8]) {
        let Worker { encoder, cache, ids, .. } = self;
        let key = cache.key(word);
        if encoder.is_narrow {
            encoder.merge_word::<Narrow>(word, key, cache, ids);
        } else {
            encoder.merge_word::<Wide>(word, key, cache, ids);
        }
    }

    /// Encode text without special tokens.
    fn encode_ordinary<P: Packing>(&mut self, text: &[u8]) -> Result<()> {
        let mut start = 0;
        self.encoder.pattern.scan(text, |base, ends| {
            for group in ends.chunks(GROUP) {
                start = self.encode_group::<P>(text, start, base, group);
            }
            if self.cache.is_full() {
                self.encoder.renew(&mut self.cache, self.may_grow);
            }
        })
    }

    /// Encode the words of `text` that begin at `start` and end at `base + ends[..]`; returns where the last
    /// ends.
    #[inline(always)]
    fn encode_group<P: Packing>(&mut self, text: &[u8], start: usize, base: usize, ends: &[u32]) -> usize {
        let Worker { encoder, cache, lookups, ids, out, .. } = self;
        let view = cache.view();
        let mut word_start = start;
        for (lookup, &end) in lookups.iter_mut().zip(ends) {
            let end = base + end as usize;
            let key = if end - word_start <= Key::LONGEST {
                Key::pack(text, word_start, end)
            } else {
                cache.long_key(&text[word_start..end])
            };
            *lookup = (key, view.approach(key));
            word_start = end;
        }
        let mut room = out.room(ROOM * ends.len());
        let mut num_written = 0;
        for (index, (&(key, place), &end)) in lookups.iter().zip(ends).enumerate() {
            let packed = view.find(key, place);
            let num_ids = packed.len();
            if num_ids.wrapping_sub(1) < P::MOST {
                // All of the room is written to: what is too much is overwritten next.
                if let Some(places) = room[num_written..].first_chunk_mut::<ROOM>() {
                    *places = P::unpack(packed);
                }
                num_written += num_ids;
            } else {
                out.advance(num_written);
                num_written = 0;
                let word_start = if index == 0 { start } else { base + ends[index - 1] as usize };
                let word = &text[word_start..base + end as usize];
                if !cache.unspill(word, packed, |id| out.push(id)) {
                    encoder.merge_word::<P>(word, key, cache, ids);
                    ids.iter().for_each(|&id| out.push(id));
                }
                room = out.room(ROOM * ends.len());
            }
        }
        out.advance(num_written);
        word_start
    }
}

impl Encoder {
    /// Merge a word that is not in the cache and put it there; `ids` are then its ids.
    #[cold]
    #[inline(never)]
    fn merge_word<P: Packing>(&self, word: &[u8], key: Key, cache: &WordCache, ids: &mut Vec<u32>) {
        ids.clear();
        self.ranks.merge_word(word, ids);
        for id in &mut *ids {
            *id = self.ids[*id as usize];
        }
        cache.insert(key, word, ids, P::pack(ids));
    }
}
