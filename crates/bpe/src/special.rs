//! Special tokens: cut out of the text first, the leftmost first and of those the longest.

use aho_corasick::{AhoCorasick, MatchKind};

use crate::error::{Error, Result};

/// A set of special tokens that a text is searched for.
#[derive(Clone, Debug)]
pub struct Specials {
    tokens: Vec<String>,
    finder: Option<AhoCorasick>,
    longest: usize,
}

/// A piece of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'t> {
    /// Text between special tokens; never empty.
    Text(&'t [u8]),
    /// The special token with this index, at this byte of the text.
    Special {
        /// Its index in the order the tokens were given.
        index: usize,
        /// Where it begins.
        position: usize,
    },
}

impl Specials {
    /// Search for these tokens. None of them may be empty.
    pub fn new(tokens: Vec<String>) -> Result<Specials> {
        if tokens.iter().any(String::is_empty) {
            return Err(Error::Vocabulary("a special token is empty; it must be at least one character".into()));
        }
        let finder = if tokens.is_empty() {
            None
        } else {
            let built = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&tokens);
            Some(built.map_err(|error| Error::Vocabulary(format!("the special tokens cannot be searched for: {error}")))?)
        };
        let longest = tokens.iter().map(String::len).max().unwrap_or(0);
        Ok(Specials { tokens, finder, longest })
    }

    /// The token with this index.
    pub fn token(&self, index: usize) -> Option<&str> {
        self.tokens.get(index).map(String::as_str)
    }

    /// The length of the longest token in bytes; 0 if there are none.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Call `visit` for every piece of `text`, in order, until it fails.
    #[inline]
    pub fn split<'t, E>(
        &self,
        text: &'t [u8],
        mut visit: impl FnMut(Piece<'t>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let mut done = 0;
        if let Some(finder) = &self.finder {
            for found in finder.find_iter(text) {
                if found.start() > done {
                    visit(Piece::Text(&text[done..found.start()]))?;
                }
                visit(Piece::Special { index: found.pattern().as_usize(), position: found.start() })?;
                done = found.end();
            }
        }
        if done < text.len() {
            visit(Piece::Text(&text[done..]))?;
        }
        Ok(())
    }

    /// Where the last special token of `text` that ends at or before `limit` ends.
    pub fn last_end(&self, text: &[u8], limit: usize) -> Option<usize> {
        let finder = self.finder.as_ref()?;
        finder.find_iter(text).map(|found| found.end()).take_while(|&end| end <= limit).last()
    }

    /// The first place at or after `from` where a special token ends.
    pub fn next_end(&self, text: &[u8], from: usize) -> Option<usize> {
        let finder = self.finder.as_ref()?;
        finder.find_iter(text).map(|found| found.end()).find(|&end| end >= from)
    }

    /// Whether some special token, wherever the search for it began, would cover both sides of `position`.
    pub fn covers(&self, text: &[u8], position: usize) -> bool {
        self.tokens.iter().any(|token| {
            let token = token.as_bytes();
            (1..token.len()).any(|before| {
                position.checked_sub(before).is_some_and(|start| text[start..].starts_with(token))
            })
        })
    }
}
