//! Ids to bytes.

use hashbrown::HashMap;

use crate::error::{Error, Result};

/// The bytes of every token, by id.
pub struct TokenBytes {
    bytes: Vec<u8>,
    index: Index,
}

/// Where in `bytes` the token of an id begins and ends.
enum Index {
    /// For ids without large gaps; an empty range stands for no token.
    Dense(Vec<(usize, usize)>),
    /// For ids strewn over a wide range, so that memory follows the number of tokens and not the largest id.
    Sparse(HashMap<u32, (usize, usize)>),
}

impl TokenBytes {
    /// Gather tokens.
    pub fn new(tokens: &[(u32, Vec<u8>)]) -> TokenBytes {
        let mut bytes = Vec::with_capacity(tokens.iter().map(|(_, token)| token.len()).sum());
        let ranges = tokens.iter().map(|(id, token)| {
            let start = bytes.len();
            bytes.extend_from_slice(token);
            (*id, (start, bytes.len()))
        });
        let ranges: Vec<_> = ranges.collect();
        let num_ids = ranges.iter().map(|&(id, _)| id as usize + 1).max().unwrap_or(0);
        let index = if num_ids <= 4 * ranges.len() + 1024 {
            let mut dense = vec![(0, 0); num_ids];
            for (id, range) in ranges {
                dense[id as usize] = range;
            }
            Index::Dense(dense)
        } else {
            Index::Sparse(ranges.into_iter().collect())
        };
        TokenBytes { bytes, index }
    }

    /// The bytes of a token.
    #[inline]
    pub fn get(&self, id: u32) -> Option<&[u8]> {
        let &(start, end) = match &self.index {
            Index::Dense(ranges) => ranges.get(id as usize).filter(|range| range.0 < range.1)?,
            Index::Sparse(ranges) => ranges.get(&id)?,
        };
        Some(&self.bytes[start..end])
    }

    /// Append the bytes of all `ids` to `out`.
    pub fn decode(&self, ids: impl Iterator<Item = u32>, out: &mut Vec<u8>) -> Result<()> {
        for (position, id) in ids.enumerate() {
            let token = self.get(id).ok_or(Error::UnknownId { id: id.into(), position })?;
            out.extend_from_slice(token);
        }
        Ok(())
    }
}
