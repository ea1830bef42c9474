//! Decoding ids to bytes.

use hashbrown::HashMap;

use crate::error::{Error, OutOfMemory};
use crate::lowlevel::{defaults, extend, with_capacity};

/// The bytes of every token, by id.
pub struct TokenBytes {
    bytes: Vec<u8>,
    index: Index,
}

/// The start and end in `bytes` of the token of each id.
enum Index {
    /// For ids without large gaps; missing ids have an empty range.
    Dense(Vec<(usize, usize)>),
    /// For sparse ids: memory depends on the number of tokens, not on the largest id.
    Sparse(HashMap<u32, (usize, usize)>),
}

impl TokenBytes {
    /// Build the table of tokens.
    pub fn new(tokens: &[(u32, Vec<u8>)]) -> Result<TokenBytes, OutOfMemory> {
        let mut bytes = with_capacity(tokens.iter().map(|(_, token)| token.len()).sum())?;
        let ranges = tokens.iter().map(|(id, token)| {
            let start = bytes.len();
            bytes.extend_from_slice(token);
            (*id, (start, bytes.len()))
        });
        let num_ids = tokens.iter().map(|&(id, _)| id as usize + 1).max().unwrap_or(0);
        let index = if num_ids <= 4 * tokens.len() + 1024 {
            let mut dense = defaults(num_ids)?;
            for (id, range) in ranges {
                dense[id as usize] = range;
            }
            Index::Dense(dense)
        } else {
            let mut sparse = HashMap::new();
            sparse.try_reserve(tokens.len())?;
            sparse.extend(ranges);
            Index::Sparse(sparse)
        };
        Ok(TokenBytes { bytes, index })
    }

    /// The bytes of a token; `None` if the token is empty or missing.
    #[inline]
    pub fn get(&self, id: u32) -> Option<&[u8]> {
        let range = match &self.index {
            Index::Dense(ranges) => ranges.get(id as usize),
            Index::Sparse(ranges) => ranges.get(&id),
        };
        let &(start, end) = range.filter(|(start, end)| start < end)?;
        Some(&self.bytes[start..end])
    }

    /// Append the bytes of all `ids` to `out`.
    pub fn decode(&self, ids: impl Iterator<Item = u32>, out: &mut Vec<u8>) -> Result<(), Error> {
        for (position, id) in ids.enumerate() {
            let token = self.get(id).ok_or(Error::UnknownId { id: id.into(), position })?;
            extend(out, token)?;
        }
        Ok(())
    }
}
