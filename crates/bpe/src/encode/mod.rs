//! Encoding text to ids.
//!
//! Special tokens are separated, the rest is split into words, and each word is merged (`ranks`) or found among the
//! words that some thread has merged before (`cache`). `worker` does this on one thread, `parallel` on several threads,
//! and `stream` for a text that is given in pieces.

mod cache;
mod long_word;
mod output;
mod packing;
mod parallel;
mod ranks;
mod stream;
mod worker;

use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::{HashMap, HashSet};

use crate::cut::next_cut;
use crate::decode::TokenBytes;
use crate::error::{Error, OutOfMemory, Result};
use crate::lowlevel::with_capacity;
use crate::merge::Symbol;
use crate::pattern::Pattern;
use crate::special::{Piece, Specials};
use cache::WordCache;
use output::Output;
use packing::Narrow;
pub use parallel::Batch;
use ranks::Ranks;
pub use stream::Stream;
use worker::Worker;

/// An integer type for ids.
pub trait Id: Copy + Default + Send + 'static {
    /// Convert an id; the encoder guarantees that it fits.
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

/// Encodes and decodes with one vocabulary.
pub struct Encoder {
    pattern: Pattern,
    specials: Specials,
    special_ids: Vec<u32>,
    ranks: Ranks,
    /// The id of each symbol of `ranks`; undefined for a byte without a token.
    ids: Vec<u32>,
    /// Whether each byte has a token; `None` if all have one.
    has_token: Option<[bool; 256]>,
    tokens: TokenBytes,
    /// Whether all ids fit in 16 bits.
    is_narrow: bool,
    /// The words encoded so far, by all threads.
    cache: Mutex<Arc<WordCache>>,
}

impl Encoder {
    /// Build an encoder. `tokens` are all tokens with their ids, `merges` are in order of creation,
    /// `specials` are the special tokens with their ids. A byte that has no token cannot be encoded, and no merge may
    /// use it.
    pub fn new(
        tokens: &[(u32, Vec<u8>)],
        merges: &[(Vec<u8>, Vec<u8>)],
        specials: Vec<(String, u32)>,
        pattern: Pattern,
    ) -> Result<Encoder> {
        let (ranks, token_of_symbol) = Ranks::new(merges)?;
        let (special_tokens, special_ids): (Vec<_>, Vec<_>) = specials.into_iter().unzip();
        let is_special: HashSet<u32> = special_ids.iter().copied().collect();
        let mut id_of: HashMap<&[u8], u32> = HashMap::new();
        id_of.try_reserve(tokens.len()).map_err(OutOfMemory::from)?;
        let is_ordinary = |(id, _): &&(u32, Vec<u8>)| !is_special.contains(id);
        id_of.extend(tokens.iter().filter(is_ordinary).map(|(id, token)| (token.as_slice(), *id)));
        let has_token: [bool; 256] = std::array::from_fn(|byte| id_of.contains_key([byte as u8].as_slice()));
        let is_used = |symbol: usize| symbol >= 256 || has_token[symbol] || ranks.uses(symbol as Symbol);
        let mut ids = with_capacity(token_of_symbol.len())?;
        for (symbol, token) in token_of_symbol.iter().enumerate() {
            let id = id_of.get(&**token).copied();
            ids.push(id.or((!is_used(symbol)).then_some(0)).ok_or_else(|| {
                Error::Vocabulary(format!(
                    "the vocabulary lacks the token {:?}",
                    String::from_utf8_lossy(token)
                ))
            })?);
        }
        let encoder = Encoder {
            pattern,
            specials: Specials::new(special_tokens)?,
            special_ids,
            ids,
            has_token: has_token.contains(&false).then_some(has_token),
            ranks,
            is_narrow: tokens.iter().all(|&(id, _)| Narrow::fits(id)),
            tokens: TokenBytes::new(tokens)?,
            cache: Mutex::new(Arc::new(WordCache::with_room_for(token_of_symbol.len())?)),
        };
        // Most words in most texts are tokens.
        let mut worker: Worker<'_, u32> = Worker::new(&encoder, Output::default(), false);
        for token in &token_of_symbol {
            worker.learn(token)?;
        }
        drop(worker);
        Ok(encoder)
    }

    /// The tokens' bytes.
    pub fn tokens(&self) -> &TokenBytes {
        &self.tokens
    }

    /// The first position at or after `from` where `text` can be split without changing its ids, or its end.
    pub fn next_cut(&self, text: &[u8], from: usize) -> usize {
        next_cut(&self.pattern, &self.specials, text, from)
    }

    /// Encode a text on this thread; all special tokens are recognised.
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
        let named = self.special_ids.iter().enumerate();
        let id_of: HashMap<_, _> = named.map(|(index, &id)| (self.specials.token(index), id)).collect();
        let ids = allowed.iter().map(|token| {
            let id = id_of.get(&Some(token.as_str())).copied();
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
        self.check_bytes(text, specials)?;
        let before = out.len();
        let mut worker = Worker::new(self, Output::after(std::mem::take(out)), may_grow);
        let outcome = worker.encode(text, specials, special_ids);
        *out = worker.out.into_vec();
        outcome.inspect_err(|_| out.truncate(before))
    }

    /// Reject a text that contains a byte without a token outside special tokens.
    fn check_bytes(&self, text: &[u8], specials: &Specials) -> Result<()> {
        let Some(has_token) = &self.has_token else { return Ok(()) };
        let mut start = 0;
        specials.split(text, |piece| {
            match piece {
                Piece::Text(part) => {
                    if let Some(offset) = part.iter().position(|&byte| !has_token[usize::from(byte)]) {
                        return Err(Error::ByteWithoutToken { byte: part[offset], position: start + offset });
                    }
                    start += part.len();
                }
                Piece::Special { index, .. } => start += specials.token(index).map_or(0, str::len),
            }
            Ok(())
        })
    }

    fn current_cache(&self) -> Arc<WordCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replace a full cache by a larger one, unless another thread is already doing so. If this is not possible (not
    /// `may_grow`, or too little memory), clear the cache if no other thread uses it.
    #[cold]
    fn renew(&self, cache: &mut Arc<WordCache>, may_grow: bool) {
        let Ok(mut current) = self.cache.try_lock() else { return };
        if Arc::ptr_eq(&current, cache) {
            let larger = if may_grow { cache.enlarged().ok() } else { None };
            if let Some(larger) = larger {
                *current = Arc::new(larger);
            } else if Arc::strong_count(cache) == 2 {
                cache.clear();
            }
        }
        cache.clone_from(&current);
    }
}
