//! Text to ids.
//!
//! Special tokens are cut out, the rest is cut into words, and each word is merged, or found in the cache. Cached
//! words are looked up in groups: all keys of a group are hashed and their cache lines asked for before the first
//! is read.

mod cache;
mod parallel;
mod ranks;
mod stream;

use std::sync::{Mutex, PoisonError};

use hashbrown::HashMap;

use crate::cut::next_cut;
use crate::decode::TokenBytes;
use crate::error::{Error, Result};
use crate::pattern::Pattern;
use crate::special::{Piece, Specials};
use crate::words::{GROUP, Key, SHORT};
use cache::{INLINE, WordCache};
use ranks::Ranks;
pub use stream::Stream;

/// A type that ids are written in.
pub trait Id: Copy + Default + Send + 'static {
    /// Convert an id, of which the encoder knows that it fits.
    fn from_id(id: u32) -> Self;
}

impl Id for u16 {
    #[inline(always)]
    fn from_id(id: u32) -> u16 {
        id as u16
    }
}

impl Id for u32 {
    #[inline(always)]
    fn from_id(id: u32) -> u32 {
        id
    }
}

/// A vocabulary, made ready for encoding and decoding.
pub struct Encoder {
    pattern: Pattern,
    specials: Specials,
    special_ids: Vec<u32>,
    ranks: Ranks,
    /// The id of every symbol of `ranks`.
    ids: Vec<u32>,
    tokens: TokenBytes,
    /// Caches that no thread is using. One always exists beforehand, so that a stream need not make one.
    caches: Mutex<Vec<WordCache>>,
}

impl Encoder {
    /// Build an encoder. `tokens` are all tokens with their ids, `merges` are in order of creation, `specials` are
    /// the special tokens with their ids.
    pub fn new(
        tokens: &[(u32, Vec<u8>)],
        merges: &[(Vec<u8>, Vec<u8>)],
        specials: Vec<(String, u32)>,
        pattern: Pattern,
    ) -> Result<Encoder> {
        let (ranks, token_of_symbol) = Ranks::new(merges)?;
        let (special_tokens, special_ids): (Vec<_>, Vec<_>) = specials.into_iter().unzip();
        let id_of: HashMap<&[u8], u32> = tokens
            .iter()
            .filter(|(id, _)| !special_ids.contains(id))
            .map(|(id, token)| (token.as_slice(), *id))
            .collect();
        let ids = token_of_symbol.iter().map(|token| {
            let id = id_of.get(token.as_slice()).copied();
            id.ok_or_else(|| Error::Vocabulary(format!("the vocabulary lacks the token {:?}", String::from_utf8_lossy(token))))
        });
        let encoder = Encoder {
            pattern,
            specials: Specials::new(special_tokens)?,
            special_ids,
            ids: ids.collect::<Result<_>>()?,
            ranks,
            tokens: TokenBytes::new(tokens),
            caches: Mutex::new(Vec::new()),
        };
        encoder.return_cache(encoder.warm_cache(&token_of_symbol));
        Ok(encoder)
    }

    /// The tokens' bytes.
    pub fn tokens(&self) -> &TokenBytes {
        &self.tokens
    }

    /// The first place at or after `from` where `text` may be cut without changing its ids, or its end.
    pub fn next_cut(&self, text: &[u8], from: usize) -> usize {
        next_cut(&self.pattern, &self.specials, text, from)
    }

    /// Encode a text on this thread, with all special tokens recognised.
    pub fn encode<I: Id>(&self, text: &[u8], out: &mut Vec<I>) -> Result<()> {
        self.encode_with(text, &self.specials, &self.special_ids, true, out)
    }

    /// Encode a text in which only some special tokens are recognised and others are an error.
    pub fn encode_selected<I: Id>(
        &self,
        text: &[u8],
        allowed: &[String],
        disallowed: &[String],
        out: &mut Vec<I>,
    ) -> Result<()> {
        let forbidden = Specials::new(disallowed.to_vec())?;
        forbidden.split(text, |piece| match piece {
            Piece::Text(_) => Ok(()),
            Piece::Special { index, position } => {
                let token = forbidden.token(index).unwrap_or_default().to_owned();
                Err(Error::DisallowedSpecial { token, position })
            }
        })?;
        let ids = allowed.iter().map(|token| {
            let index = (0..self.special_ids.len()).find(|&index| self.specials.token(index) == Some(token));
            let id = index.and_then(|index| self.special_ids.get(index)).copied();
            id.ok_or_else(|| Error::Vocabulary(format!("{token:?} is not a special token of this tokenizer")))
        });
        let ids = ids.collect::<Result<Vec<u32>>>()?;
        self.encode_with(text, &Specials::new(allowed.to_vec())?, &ids, true, out)
    }

    fn encode_with<I: Id>(
        &self,
        text: &[u8],
        specials: &Specials,
        special_ids: &[u32],
        may_grow: bool,
        out: &mut Vec<I>,
    ) -> Result<()> {
        let mut cache = self.take_cache();
        let outcome = specials.split(text, |piece| match piece {
            Piece::Text(text) => self.encode_ordinary(text, &mut cache, may_grow, out),
            Piece::Special { index, .. } => {
                out.extend(special_ids.get(index).map(|&id| I::from_id(id)));
                Ok(())
            }
        });
        self.return_cache(cache);
        outcome
    }

    /// Encode text without special tokens.
    fn encode_ordinary<I: Id>(
        &self,
        text: &[u8],
        cache: &mut WordCache,
        may_grow: bool,
        out: &mut Vec<I>,
    ) -> Result<()> {
        let mut start = 0;
        self.pattern.scan(text, |base, ends| {
            for group in ends.chunks(GROUP) {
                start = self.encode_group(text, start, base, group, cache, may_grow, out);
            }
        })
    }

    /// Encode the words of `text` that begin at `start` and end at `base + ends[..]`; returns where the last ends.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)] // the innermost loop: everything it needs, in registers
    fn encode_group<I: Id>(
        &self,
        text: &[u8],
        start: usize,
        base: usize,
        ends: &[u32],
        cache: &mut WordCache,
        may_grow: bool,
        out: &mut Vec<I>,
    ) -> usize {
        let mut lookups = [(Key::default(), 0); GROUP];
        let mut word_start = start;
        for (lookup, &end) in lookups.iter_mut().zip(ends) {
            let end = base + end as usize;
            if end - word_start <= SHORT {
                let key = Key::pack(text, word_start, end);
                *lookup = (key, cache.approach(key));
            }
            word_start = end;
        }
        let mut ready = [I::default(); GROUP * INLINE];
        let mut num_ready = 0;
        let mut word_start = start;
        for (&(key, slot), &end) in lookups.iter().zip(ends) {
            let end = base + end as usize;
            let known = if key.is_empty() { None } else { cache.find(key, slot) };
            match known {
                Some(entry) if entry.len as usize <= INLINE => {
                    for (place, id) in ready[num_ready..].iter_mut().zip(entry.ids) {
                        *place = I::from_id(id);
                    }
                    num_ready += entry.len as usize;
                }
                _ => {
                    out.extend_from_slice(&ready[..num_ready]);
                    num_ready = 0;
                    self.encode_word(&text[word_start..end], cache, may_grow, out);
                }
            }
            word_start = end;
        }
        out.extend_from_slice(&ready[..num_ready]);
        word_start
    }

    /// Encode a word that is long, has many ids, or is not in the cache.
    #[cold]
    #[inline(never)]
    fn encode_word<I: Id>(&self, word: &[u8], cache: &mut WordCache, may_grow: bool, out: &mut Vec<I>) {
        let key = (word.len() <= SHORT).then(|| Key::pack(word, 0, word.len()));
        let known = match key {
            Some(key) => cache.find(key, cache.approach(key)).map(|entry| cache.ids(entry)),
            None => cache.find_long(word),
        };
        if let Some(ids) = known {
            out.extend(ids.iter().map(|&id| I::from_id(id)));
            return;
        }
        let mut ids = Vec::new();
        self.ranks.merge_word(word, &mut ids);
        for id in &mut ids {
            *id = self.ids[*id as usize];
        }
        out.extend(ids.iter().map(|&id| I::from_id(id)));
        match key {
            Some(key) => cache.insert(key, &ids, may_grow),
            None => cache.insert_long(word, &ids, may_grow),
        }
    }

    /// A cache that knows every token which is a word of its own.
    fn warm_cache(&self, token_of_symbol: &[Vec<u8>]) -> WordCache {
        let mut cache = WordCache::new(token_of_symbol.len());
        for token in token_of_symbol.iter().filter(|token| token.len() <= SHORT) {
            self.encode_word::<u32>(token, &mut cache, false, &mut Vec::new());
        }
        cache
    }

    fn take_cache(&self) -> WordCache {
        let idle = self.caches.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.unwrap_or_else(|| WordCache::new(0))
    }

    fn return_cache(&self, cache: WordCache) {
        self.caches.lock().unwrap_or_else(PoisonError::into_inner).push(cache);
    }
}
